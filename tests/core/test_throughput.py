"""The units of a second that several processes share: who needs them gets them, and all together never more than there are."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.core.throughput import PATIENCE_S, QUANTUM_S, Throughput
from app.core.tokens import ANSWER_S, BURST_S, LEASE_S, Ask, Lease, Place
from tests.leased_tokens import Row

BETWEEN_S = 0.05
RATE = 100.0


class Fleet:
    """Processes whose clocks differ, one row, and a time that jumps from one thing that happens to the next."""

    def __init__(self, processes: int, rate: float = RATE, delays: Iterator[float] | None = None) -> None:
        self.at = 0.0
        self.row = Row(rate, rate * BURST_S, 0.0)
        self.delays = itertools.repeat(0.001) if delays is None else delays
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.started: list[tuple[float, float]] = []
        self.processes = [Process(self, number, rate) for number in range(processes)]

    def later(self, after_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.at + after_s, next(self._order), do))

    def run(self, for_s: float) -> None:
        end = self.at + for_s
        while self._due and self._due[0][0] <= end:
            self.at, _, do = heapq.heappop(self._due)
            do()
        self.at = end

    def require_bound(self) -> None:
        """That of the docstring, over any time."""
        rate, largest = self.row.rate, max((units for _, units in self.started), default=0.0)
        ahead = max(rate * BURST_S, largest) + rate * (LEASE_S + ANSWER_S)
        for first in range(len(self.started)):
            used = 0.0
            for at, units in self.started[first:]:
                used += units
                assert used <= rate * (at - self.started[first][0]) + ahead + 1e-6 * rate


class Process:
    """One of them: asks when there is something to ask, as the leasing task does."""

    def __init__(self, fleet: Fleet, number: int, rate: float) -> None:
        self.fleet = fleet
        self._skew_s = 1000.0 * number
        self.throughput = Throughput(rate)
        self.throughput.lease(1.0, self.now())
        self.throughput.on_need = self.look
        self.used = 0.0
        self.waits: list[float] = []
        self._silent_until = 0.0
        self._asking = False

    def now(self) -> float:
        return self.fleet.at + self._skew_s

    def call(self, units: float, *, patient: bool = False, then: Callable[[], None] | None = None) -> Place:
        """A call that starts when its turn has come; `then` is done at that moment."""
        asked_at = self.fleet.at

        def start() -> None:
            if place.came:
                self.used += units
                self.waits.append(self.fleet.at - asked_at)
                self.fleet.started.append((self.fleet.at, units))
                if then is not None:
                    self.fleet.later(0.0, then)

        place = Place(units, patient=patient, ring=start)
        if self.throughput.turn_s(units, self.now(), patient=patient) == 0:
            self.throughput.queue(units, self.now())
            place.came = True
            start()
        else:
            self.throughput.join(place, self.now())
        return place

    def busy(self, units: float, *, lines: int = 20, patient: bool = False) -> None:
        """So many calls at a time, each of which is followed by the next one."""
        for _ in range(lines):
            self.call(units, patient=patient, then=lambda: self.busy(units, lines=1, patient=patient))

    def look(self) -> None:
        if self._asking:
            return
        due_s = self.throughput.due_s(self.now())
        if due_s is None:
            return
        if due_s > 0 or self.fleet.at < self._silent_until:
            self.fleet.later(max(due_s, self._silent_until - self.fleet.at), self.look)
            return
        self._asking, self._silent_until = True, self.fleet.at + BETWEEN_S
        ask = self.throughput.ask(self.now())
        self.fleet.later(next(self.fleet.delays), lambda: self._reach(ask))

    def _reach(self, ask: Ask) -> None:
        lease = self.fleet.row.lease(ask, self.fleet.at)
        self.fleet.later(next(self.fleet.delays), lambda: self._answer(ask, lease))

    def _answer(self, ask: Ask, lease: Lease) -> None:
        self._asking = False
        self.throughput.answered(ask, lease, self.now())
        self.look()


# --- by demand ------------------------------------------------------------------------------------------------------


def test_a_busy_process_beside_nine_idle_ones_has_the_whole_rate() -> None:
    fleet = Fleet(10)
    fleet.processes[3].busy(5.0)
    fleet.run(20.0)
    assert 0.97 * RATE * 20 <= fleet.processes[3].used <= RATE * (20 + BURST_S)
    fleet.require_bound()


@pytest.mark.parametrize(("processes", "units"), [(2, 5.0), (2, 80.0), (10, 5.0), (5, 30.0)])
def test_those_who_are_busy_alike_have_parts_alike_and_all_of_it_together(processes: int, units: float) -> None:
    fleet = Fleet(processes + 1)
    for process in fleet.processes[1:]:
        process.busy(units)
    fleet.run(60.0)
    used = [process.used for process in fleet.processes[1:]]
    assert sum(used) >= 0.97 * RATE * 60
    assert min(used) >= 0.9 * max(used)
    fleet.require_bound()


def test_a_slow_database_does_not_slow_down_who_is_busy() -> None:
    fleet = Fleet(2, delays=itertools.repeat(0.15))
    fleet.processes[0].busy(2.0, lines=60)
    fleet.run(20.0)
    assert fleet.processes[0].used >= 0.95 * RATE * 20


def test_who_comes_to_a_flood_waits_for_one_turn_of_it() -> None:
    fleet = Fleet(2)
    flooding, coming = fleet.processes
    flooding.busy(5.0, lines=500)
    fleet.run(5.0)
    for _ in range(20):
        coming.call(5.0)
        fleet.run(1.0)
    assert len(coming.waits) == 20
    assert max(coming.waits) <= 2 * QUANTUM_S + BETWEEN_S


def test_an_idle_process_waits_for_one_question_and_then_holds_nothing() -> None:
    fleet = Fleet(3)
    fleet.processes[1].call(40.0)
    fleet.run(5.0)
    assert fleet.processes[1].waits == [pytest.approx(0.002)]
    assert fleet.processes[0].call(60.0).came is False
    fleet.run(0.01)
    assert fleet.processes[0].waits == [pytest.approx(0.002)]
    assert fleet.row.questions == 2


def test_who_calls_often_finds_in_hand_what_it_needs_and_asks_rarely() -> None:
    fleet = Fleet(2)
    process = fleet.processes[0]
    for number in range(1000):
        fleet.later(number * 0.02, lambda: process.call(1.0) and None)
    fleet.run(2.0)
    process.waits.clear()
    asked_before = fleet.row.questions
    fleet.run(18.0)
    assert max(process.waits) < 0.06
    assert sum(wait_s == 0 for wait_s in process.waits) > 0.95 * len(process.waits)
    assert fleet.row.questions - asked_before <= 18 / BETWEEN_S / 2
    assert fleet.row.tokens < fleet.row.burst
    used = fleet.row.questions
    fleet.run(60.0)
    assert fleet.row.questions <= used + 2, "nothing is asked for any more"


def test_what_is_not_used_is_lost() -> None:
    throughput = Throughput(RATE)
    throughput.lease(1.0, 0.0)
    throughput.answered(Ask(want=30.0), Lease(30.0, 0.0, 70.0), 0.0)
    assert throughput.turn_s(30.0, LEASE_S, patient=False) == 0
    assert throughput.turn_s(30.0, LEASE_S + 0.001, patient=False) > 0


def test_what_is_promised_is_used_when_its_time_has_come_and_asked_for_once() -> None:
    throughput, place = Throughput(RATE), Place(10.0, patient=False)
    throughput.lease(1.0, 0.0)
    throughput.join(place, 0.0)
    ask = throughput.ask(0.0)
    assert (ask.want, ask.patience_s) == (10.0, PATIENCE_S)
    throughput.answered(ask, Lease(10.0, 0.3, -30.0), 0.0)
    throughput.join(Place(5.0, patient=False), 0.1)
    assert throughput.ask(0.1) == Ask()
    assert throughput.due_s(0.1) == pytest.approx(0.2)
    assert not place.came
    assert throughput.due_s(0.3) == 0.0
    assert place.came
    assert throughput.ask(0.3).want == 5.0


def test_a_call_that_takes_more_than_a_burst_waits_for_a_burst_and_is_made_up_for() -> None:
    fleet = Fleet(2)
    one, other = fleet.processes
    one.call(350.0)
    fleet.run(0.1)
    other.call(10.0)
    fleet.run(10.0)
    assert one.waits == [pytest.approx(0.002)]
    assert other.waits == [pytest.approx(2.5, abs=0.02)]
    fleet.require_bound()


def test_backfill_has_what_requests_leave_and_half_of_a_burst_is_left_for_who_comes_next() -> None:
    fleet = Fleet(3)
    filling, asking, coming = fleet.processes
    filling.busy(1.0, lines=50, patient=True)
    fleet.run(20.0)
    assert filling.used >= 0.9 * RATE * 20, "where nobody else wants any"
    coming.call(45.0)
    fleet.run(1.0)
    assert coming.waits == [pytest.approx(0.002)]
    asking.busy(5.0)
    fleet.run(3.0)
    before = filling.used
    fleet.run(20.0)
    assert filling.used == before, "and nothing while requests take all"
    fleet.require_bound()


def test_in_one_process_too_requests_go_before_backfill() -> None:
    throughput = Throughput(RATE)
    throughput.lease(1.0, 0.0)
    patient, urgent = Place(5.0, patient=True), Place(10.0, patient=False)
    throughput.join(patient, 0.0)
    throughput.join(urgent, 0.0)
    ask = throughput.ask(0.0)
    assert (ask.want, ask.kept) == (10.0, 0.0)
    throughput.answered(Ask(), Lease(9.0, 0.0, 91.0), 0.0)
    assert (urgent.came, patient.came) == (False, False), "what is there is not for the smaller call behind"
    throughput.answered(ask, Lease(1.0, 0.0, 90.0), 0.0)
    assert (urgent.came, patient.came) == (True, False)
    ask = throughput.ask(0.0)
    assert (ask.want, ask.kept, ask.patience_s) == (5.0, RATE * BURST_S / 2, 0.0)


def test_who_may_not_be_promised_anything_yet_is_asked_for_again_in_time() -> None:
    throughput = Throughput(RATE)
    throughput.lease(1.0, 0.0)
    throughput.join(Place(10.0, patient=False), 0.0)
    throughput.answered(throughput.ask(0.0), Lease(0.0, PATIENCE_S + 0.4, -540.0), 0.0)
    assert throughput.due_s(0.1) == pytest.approx(0.3)
    assert throughput.turn_s(10.0, 0.1, patient=False) > PATIENCE_S


def test_the_wait_is_told_as_far_as_it_is_known() -> None:
    throughput = Throughput(RATE)
    throughput.lease(1.0, 0.0)
    assert 0 < throughput.turn_s(60.0, 0.0, patient=False) < 0.01, "nobody is known to use any"
    throughput.answered(Ask(), Lease(0.0, 0.0, 20.0), 1.0)
    assert throughput.turn_s(60.0, 1.0, patient=False) == pytest.approx(0.4)
    assert throughput.turn_s(60.0, 1.0, patient=True) == pytest.approx(0.8)
    throughput.join(Place(50.0, patient=False), 1.0)
    throughput.answered(throughput.ask(1.0), Lease(50.0, 1.0, -100.0), 1.0)
    assert throughput.turn_s(10.0, 1.0, patient=False) == pytest.approx(1.2), "half of the rate is what it is promised"


# --- who gives up ---------------------------------------------------------------------------------------------------


def test_who_leaves_the_line_is_not_asked_for() -> None:
    throughput = Throughput(RATE)
    throughput.lease(1.0, 0.0)
    place = Place(10.0, patient=False)
    throughput.join(place, 0.0)
    throughput.give_back(place, 0.0)
    assert throughput.ask(0.0) == Ask()
    assert throughput.due_s(0.0) is None


def test_whose_turn_had_come_gives_the_units_to_the_next_one_as_long_as_they_are_good() -> None:
    throughput = Throughput(RATE)
    throughput.lease(1.0, 0.0)
    first, second = Place(10.0, patient=False), Place(10.0, patient=False)
    throughput.join(first, 0.0)
    throughput.answered(throughput.ask(0.0), Lease(10.0, 0.0, 90.0), 0.0)
    throughput.join(second, 0.1)
    assert (first.came, second.came) == (True, False)
    throughput.give_back(first, 0.1)
    assert second.came
    throughput.give_back(second, LEASE_S - 0.1)
    assert throughput.turn_s(10.0, LEASE_S - 0.1, patient=False) == 0
    assert throughput.turn_s(10.0, LEASE_S + 0.1, patient=False) > 0


# --- alone, and not -------------------------------------------------------------------------------------------------


def test_what_came_by_itself_is_gone_when_units_are_leased_and_what_was_used_is_told() -> None:
    throughput = Throughput(RATE)
    throughput.queue(30.0, 0.0)
    throughput.lease(0.5, 0.0)
    assert throughput.turn_s(1.0, 0.0, patient=False) > 0
    ask = throughput.ask(0.0)
    assert ask.used == 30.0
    throughput.answered(ask, Lease(0.0, 0.0, 70.0), 0.0)
    assert throughput.ask(0.0).used == 0.0


def test_no_more_is_told_than_can_be_missing() -> None:
    """After an hour without a database the row is full: what is missing is this one's part of a burst, and what it uses ahead."""
    throughput = Throughput(RATE)
    throughput.alone(0.25, 0.0)
    for second in range(3600):
        throughput.queue(25.0, float(second))
    throughput.queue(40.0, 3600.0)
    throughput.lease(0.25, 3600.0)
    assert throughput.ask(3600.0).used == 25.0 + 15.0


def test_without_a_database_each_goes_on_with_its_part_and_nobody_waits_in_vain() -> None:
    throughput, rung = Throughput(RATE), []
    throughput.lease(0.25, 0.0)
    throughput.answered(Ask(spare=60.0), Lease(60.0, 0.0, 40.0), 0.0)
    place = Place(90.0, patient=False, ring=lambda: rung.append(place.came))
    throughput.join(place, 0.0)
    throughput.alone(0.25, 0.1)
    assert rung == [False]
    assert throughput.turn_s(25.0, 0.1, patient=False) == 0, "of what was leased its part is kept"
    assert throughput.turn_s(90.0, 0.1, patient=False) == 0, "as much as it may ever have in hand"
    throughput.queue(50.0, 0.1)
    assert throughput.turn_s(25.0, 0.1, patient=False) == pytest.approx(2.0)
    throughput.give_back(place, 0.1)
    assert throughput.turn_s(25.0, 0.1, patient=False) == pytest.approx(2.0)


def test_at_the_start_nothing_is_in_hand() -> None:
    throughput = Throughput(RATE)
    throughput.empty(0.0)
    assert throughput.turn_s(50.0, 0.0, patient=False) == pytest.approx(0.5)


def test_who_is_the_only_one_has_what_the_row_has() -> None:
    throughput = Throughput(RATE)
    throughput.empty(0.0)
    ask = throughput.ask(0.0)
    throughput.queue(30.0, 0.1)
    throughput.answered(ask, Lease(0.0, 0.0, 90.0), 0.1)
    throughput.only(0.1)
    assert throughput.turn_s(60.0, 0.1, patient=False) == 0
    assert throughput.turn_s(61.0, 0.1, patient=False) == pytest.approx(0.01)
    throughput.queue(60.0, 0.1)
    throughput.answered(throughput.ask(0.2), Lease(0.0, 0.0, 10.0), 0.2)
    throughput.only(0.2)
    assert throughput.turn_s(10.0, 0.2, patient=False) == 0
    assert throughput.turn_s(11.0, 0.2, patient=False) > 0, "and no more than that, however often it is told"


# --- never more -----------------------------------------------------------------------------------------------------

delays = st.floats(0.0, ANSWER_S / 2)


@given(
    rate=st.sampled_from([1.0, 10.0, 500.0]),
    calls=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([0.01, 0.1, 0.5, 1.3]), st.booleans(), st.floats(0, 1.5)),
        max_size=60,
    ),
    delayed=st.lists(delays, min_size=1, max_size=20),
)
@example(rate=10.0, calls=[(number % 3, 0.3, False, 0.0) for number in range(60)], delayed=[0.25])
@example(
    rate=10.0, calls=[(0, 0.05, False, 0.05)] * 30 + [(1, 1.0, False, 0.4), (2, 0.5, False, 0.0)], delayed=[0.2, 0.01]
)
def test_three_processes_however_interleaved_use_no_more_than_the_rate_and_two_bursts(
    rate: float, calls: list[tuple[int, float, bool, float]], delayed: list[float]
) -> None:
    """`calls`: of which process, of how much of a burst, whether for backfill, and how long after the one before."""
    fleet = Fleet(3, rate, itertools.cycle(delayed))
    for number, share, patient, after_s in calls:
        fleet.run(after_s)
        fleet.processes[number].call(share * rate * BURST_S, patient=patient)
    fleet.run(1000.0)
    fleet.require_bound()
    assert len(fleet.started) == len(calls), "and everybody has a turn"
