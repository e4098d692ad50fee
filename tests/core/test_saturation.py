"""Saturation windows: opened by refusals, cleared by any progress, and never left open with nobody inside to clear them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.admission import Door, Lane, Place, Shed
from app.core.budget import FillBudget, Granted, Priority, Refused, Ticket, TicketState
from app.core.saturation import Gate, SaturationWindow

# --- one window -------------------------------------------------------------------------------------------------------


def test_S1_without_traffic_nothing_is_ever_saturated() -> None:
    window = SaturationWindow(threshold_s=0)
    assert not any(window.is_open(now) or window.saturated(now) for now in (0.0, 1e9))
    assert window.open_s(1e9) == 0


def test_S1_at_threshold_0_one_refusal_saturates() -> None:
    window = SaturationWindow(threshold_s=0)
    window.refuse(5.0)
    assert window.saturated(5.0)


def test_S1_further_refusals_do_not_restart_the_window() -> None:
    window = SaturationWindow(threshold_s=10)
    for now in range(100, 110):
        window.refuse(float(now))
        assert not window.saturated(float(now))
    assert window.open_s(110.0) == 10
    assert window.saturated(110.0)
    assert repr(window) == "<SaturationWindow open since 100.0>"


def test_S2_progress_clears_and_the_next_refusal_begins_anew() -> None:
    window = SaturationWindow(threshold_s=10)
    window.refuse(100.0)
    window.progress()
    assert not window.is_open(100.0)
    window.refuse(109.0)
    assert not window.saturated(110.0)
    assert window.saturated(119.0)


@pytest.mark.parametrize("gap_s", [0.5, 59.9])
def test_S5_wedged_and_refusing_stays_saturated_for_as_long_as_it_lasts(gap_s: float) -> None:
    window = SaturationWindow(threshold_s=10, expiry_s=60)
    now = 0.0
    while now < 600:
        window.refuse(now)
        assert window.saturated(now) is (now >= 10)
        now += gap_s


def test_S5_wedged_and_no_longer_asked_recovers_after_the_expiry() -> None:
    window = SaturationWindow(threshold_s=10, expiry_s=60)
    window.refuse(0.0)
    window.refuse(12.0)
    assert window.saturated(71.9)
    assert not window.is_open(72.0)
    window.refuse(75.0)
    assert window.open_s(76.0) == 1


@pytest.mark.parametrize(("threshold_s", "expiry_s"), [(-1, 60), (10, 0), (10, -1)])
def test_windows_that_make_no_sense_are_refused(threshold_s: float, expiry_s: float) -> None:
    with pytest.raises(ValueError, match="must"):
        SaturationWindow(threshold_s, expiry_s)


# --- gates ------------------------------------------------------------------------------------------------------------


def gate(limit: int | None, threshold_s: float = 0) -> Gate:
    return Gate(limit, SaturationWindow(threshold_s))


def test_S2_taking_a_place_and_giving_one_back_are_progress() -> None:
    busy = gate(2)
    busy.enter()
    busy.refuse(0.0)
    assert busy.window.saturated(0.0)
    busy.enter()
    assert not busy.window.is_open(0.0)
    busy.refuse(1.0)
    busy.leave()
    assert not busy.window.is_open(1.0)


def test_S4_a_refusal_that_no_holder_will_clear_opens_nothing() -> None:
    empty = gate(1)
    empty.refuse(0.0)
    assert not empty.window.is_open(0.0)


def test_a_gate_counts_what_is_taken() -> None:
    counted = gate(3)
    counted.enter(2)
    assert (counted.taken, counted.has_room(), counted.has_room(2)) == (2, True, False)
    with pytest.raises(RuntimeError, match="no room"):
        counted.enter(2)
    counted.leave(2)
    with pytest.raises(RuntimeError, match="more places"):
        counted.leave()
    assert repr(counted) == "<Gate 0/3 <SaturationWindow clear>>"


def test_A12_no_limit_is_none_and_0_is_refused() -> None:
    unlimited = gate(None)
    unlimited.enter(10**9)
    assert unlimited.has_room(10**9)
    for limit in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            gate(limit)


class Interrupting(SaturationWindow):
    """Somebody arrives just before and just after the window is told of progress: the moments between two steps of an exit."""

    __slots__ = ("arrive",)

    def __init__(self) -> None:
        super().__init__(threshold_s=0)
        self.arrive: Callable[[], None] = lambda: None

    def progress(self) -> None:
        arrive, self.arrive = self.arrive, lambda: None
        arrive()
        super().progress()
        arrive()


@pytest.mark.parametrize("which", ["process", "chain"])
def test_S3_whoever_arrives_in_the_middle_of_an_exit_leaves_no_window_open(which: str) -> None:
    windows = {"process": Interrupting(), "chain": Interrupting()}
    door = Door(Gate(1, windows["process"]), {7: Gate(1, windows["chain"])}, gate(None))
    holder = door.enter(Lane.COLD, 7, 0.0)
    assert isinstance(holder, Place)
    arrived: list[Place | Shed] = []
    windows[which].arrive = lambda: arrived.append(door.enter(Lane.COLD, 7, 0.0))
    door.leave(holder, 0.0)
    assert len(arrived) == 2
    for outcome in arrived:
        if isinstance(outcome, Place):
            door.leave(outcome, 0.0)
    assert (door.process.taken, door.chains[7].taken) == (0, 0)
    assert not any(window.is_open(0.0) for window in windows.values())


def test_S3_whoever_arrives_in_the_middle_of_leaving_one_gate_leaves_no_window_open() -> None:
    window = Interrupting()
    single = Gate(1, window)
    single.enter()

    def arrive() -> None:
        if not single.has_room():
            single.refuse(0.0)

    window.arrive = arrive
    single.leave()
    assert not window.is_open(0.0)


# --- S3: every interleaving of requests that come, fill, are refused and go -------------------------------------------


@dataclass
class Job:
    """One request, as far as it has come. `told` is false between the refusal of a permit and the moment the door hears of it."""

    at: str = "outside"
    place: Place | None = None
    ticket: Ticket | None = None

    @property
    def over(self) -> bool:
        return self.at == "gone"


@dataclass
class World:
    """One chain behind the real door, with its real budget. Each method of `MOVES` is one step between two awaits."""

    places: int
    permits: int
    queue: int
    jobs: list[Job]
    door: Door = field(init=False)
    budget: FillBudget = field(init=False)
    fills: SaturationWindow = field(init=False)
    expired: bool = False

    def __post_init__(self) -> None:
        self.door = Door(gate(self.places), {7: gate(self.places)}, gate(None))
        self.budget = FillBudget(self.permits, reserve=0, max_queued=self.queue)
        self.fills = SaturationWindow(threshold_s=0)

    def moves(self) -> Iterator[tuple[int, str]]:
        for index, job in enumerate(self.jobs):
            waits = job.ticket is not None and job.ticket.state is TicketState.WAITING
            match job.at:
                case "outside":
                    yield index, "arrive"
                case "inside":
                    yield index, "ask"
                    yield index, "exit"  # answered from the cache, failed, hung up
                case "asked" if waits:
                    yield index, "withdraw"  # hung up, or its cutoff came
                case "asked":
                    yield index, "finish"  # with a block or with an error
                case "refused":
                    yield index, "tell"
                case "done":
                    yield index, "exit"

    def do(self, index: int, move: str) -> None:
        getattr(self, move)(self.jobs[index])

    def arrive(self, job: Job) -> None:
        outcome = self.door.enter(Lane.COLD, 7, 0.0)
        job.at, job.place = ("gone", None) if isinstance(outcome, Shed) else ("inside", outcome)

    def ask(self, job: Job) -> None:
        decision = self.budget.request(0.0, Priority.REQUEST)
        if isinstance(decision, Refused):
            job.at = "refused"
            return
        job.at, job.ticket = "asked", decision.ticket
        if isinstance(decision, Granted):
            self.fills.progress()

    def finish(self, job: Job) -> None:
        assert job.ticket is not None
        self.budget.release(job.ticket, 0.0)
        self.fills.progress()
        job.at = "done"

    def withdraw(self, job: Job) -> None:
        assert job.ticket is not None
        self.budget.cancel(job.ticket, 0.0)
        job.at = "refused"

    def tell(self, job: Job) -> None:
        if self.budget.running():
            self.fills.refuse(0.0)
        job.at = "done"

    def exit(self, job: Job) -> None:
        assert job.place is not None
        self.door.leave(job.place, 0.0)
        job.at = "gone"

    def check(self) -> None:
        """An open window has somebody inside who will clear it: with nobody left, none is open."""
        for window, holders in (
            (self.door.process.window, self.door.process.taken),
            (self.door.chains[7].window, self.door.chains[7].taken),
            (self.fills, self.budget.running()),
        ):
            assert holders or not window.is_open(0.0)
        if all(job.over for job in self.jobs):
            assert (self.door.process.taken, self.door.chains[7].taken, self.budget.running()) == (0, 0, 0)

    def state(self) -> tuple[object, ...]:
        tickets = tuple(None if job.ticket is None else job.ticket.state for job in self.jobs)
        windows = (self.door.process.window, self.door.chains[7].window, self.fills)
        return tuple(job.at for job in self.jobs), tickets, tuple(window.is_open(0.0) for window in windows)


def explore(places: int, permits: int, queue: int, jobs: int) -> int:
    """Every reachable state of such a world, each checked; how many there are."""
    seen: set[object] = set()
    frontier: list[tuple[tuple[int, str], ...]] = [()]
    while frontier:
        schedule = frontier.pop()
        world = World(places, permits, queue, [Job() for _ in range(jobs)])
        for move in schedule:
            world.do(*move)
        # Who waits longer is part of the state too: the order in which they asked.
        key = (world.state(), tuple(index for index, move in schedule if move == "ask"))
        if key in seen:
            continue
        seen.add(key)
        world.check()
        frontier += [(*schedule, move) for move in world.moves()]
    return len(seen)


@pytest.mark.parametrize("queue", [0, 1, 2])
@pytest.mark.parametrize("permits", [1, 2])
@pytest.mark.parametrize("places", [1, 2, 3])
def test_S3_an_open_window_has_a_holder_in_every_interleaving(places: int, permits: int, queue: int) -> None:
    assert explore(places, permits, queue, jobs=3) > 30


def test_S3_one_place_one_permit_and_no_queue() -> None:
    assert explore(1, 1, 0, jobs=4) > 100
    assert explore(4, 1, 0, jobs=4) > 1000


@given(
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3)),
    st.integers(2, 12),
    st.randoms(use_true_random=False),
)
def test_S3_a_random_walk_of_many_requests_conserves_everything(
    sizes: tuple[int, int, int], jobs: int, chance: object
) -> None:
    world = World(*sizes, [Job() for _ in range(jobs)])
    for _ in count():
        moves = list(world.moves())
        if not moves:
            break
        world.do(*chance.choice(moves))  # type: ignore[attr-defined]
        world.check()
    assert all(job.over for job in world.jobs)
    assert not any(
        window.is_open(0.0) for window in (world.door.process.window, world.door.chains[7].window, world.fills)
    )
