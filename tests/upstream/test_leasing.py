"""Calls of a process that leases its units of a second: what they wait for, and that it is never the database itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise

import pytest

from app.chain.permits import Permits, PermitShift
from app.core.budget import FillBudget
from app.core.deadlines import deadline
from app.core.lasting import StoreUnavailable
from app.core.purpose import Errand, Purpose, for_purpose
from app.core.resting import shift
from app.core.spending import Account, Cost
from app.core.tokens import Ask, Lease
from app.upstream import leasing
from app.upstream.allowance import MIN_USEFUL_S
from app.upstream.faults import CallFailed, Fault
from app.upstream.leasing import BETWEEN_S
from app.upstream.purse import Accounts, Purse
from app.upstream.settling import Settling
from tests.fakes import ManualClock, settle
from tests.leased_tokens import Row

URL = "https://eth.example.org/v2/abcdefgh12345678"
RATE = 100.0
KNOWN = Errand(anonymous=False)


class Bank:
    """What replicas share, in memory. `held`: nothing is answered before it is set."""

    def __init__(self) -> None:
        self.replicas = 3
        self.row = Row(RATE, RATE, time.monotonic())
        self.day_units = 0.0
        self.granted_at_most = 1000.0
        self.asked: list[tuple[float, Ask, float]] = []
        self.question = asyncio.Event()
        self.held = asyncio.Event()
        self.held.set()
        self.telling = asyncio.Event()
        self.told = asyncio.Event()
        self.told.set()
        self.fault: Exception | None = None

    async def lease(self, account: str, rate: float, ask: Ask, cool_s: float) -> Lease:
        self.asked.append((time.monotonic(), ask, cool_s))
        self.question.set()
        await self.held.wait()
        if self.fault is not None:
            raise self.fault
        return self.row.lease(ask, time.monotonic(), cool_s)

    async def settle(self, account: str, day: int, units: float) -> float:
        self.day_units += units
        self.telling.set()
        await self.told.wait()
        return self.day_units

    async def draw(self, account: str, day: int, units: float, most: float) -> float | None:
        if self.day_units + units > min(most, self.granted_at_most):
            return None
        self.day_units += units
        return self.day_units

    async def present(self, for_s: float) -> int:
        return self.replicas

    async def cooling(self) -> Mapping[str, float]:
        return {}

    @property
    def wanted(self) -> list[float]:
        return [ask.want for _, ask, _ in self.asked if ask.want]


class Replica:
    """A process that has just settled."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        accounts = Accounts()
        self.purse = Purse(account=accounts.of(URL, {}, RATE))
        self.account: Account = self.purse.account
        self.settling = Settling(accounts, bank, pause=self._pause)
        self.rounds = asyncio.Event()

    async def _pause(self, _: float) -> None:
        self.rounds.set()
        await asyncio.Event().wait()  # one round is enough

    async def turn(self, units: float) -> None:
        await self.purse.turn(Cost(0.0, units))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no slow database."""
    monkeypatch.setattr(leasing, "ANSWER_S", 10.0)


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    replica = Replica(Bank())
    running = asyncio.create_task(replica.settling.run())
    await replica.rounds.wait()
    yield replica
    running.cancel()
    await asyncio.wait([running])


async def test_a_call_that_finds_too_little_asks_at_once_and_starts(replica: Replica) -> None:
    await replica.turn(40.0)
    assert replica.bank.wanted == [40.0]
    assert replica.purse.waiting == 0


async def test_calls_that_come_together_are_one_question_first_come_first_served(replica: Replica) -> None:
    replica.bank.held.clear()
    came: list[int] = []

    async def call(number: int) -> None:
        await replica.turn(2.0)
        came.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(call(number))
        await settle()
        assert (replica.purse.waiting, came) == (5, [])
        replica.bank.held.set()
    assert came == [0, 1, 2, 3, 4]
    assert replica.bank.wanted == [10.0]


async def test_no_more_is_asked_than_some_20_questions_a_second(replica: Replica) -> None:
    for _ in range(4):
        await replica.turn(2.0)
    times = [at for at, _, _ in replica.bank.asked]
    assert len(times) > 2
    assert min(after - before for before, after in pairwise(times)) >= BETWEEN_S - 0.001


async def test_a_database_that_does_not_answer_is_waited_for_for_a_moment_and_then_left_alone(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leasing, "ANSWER_S", 0.01)
    replica.bank.held.clear()
    await asyncio.gather(*(replica.turn(2.0) for _ in range(5)))
    asked = len(replica.bank.asked)
    await replica.turn(2.0)
    assert not replica.account.throughput.leased
    assert replica.account.throughput.part == pytest.approx(1 / 3)
    assert len(replica.bank.asked) == asked
    replica.account.owe(7.0, time.time())
    with pytest.raises(StoreUnavailable):
        await replica.settling.settle()
    assert replica.bank.day_units == 7.0, "which need not be answered so soon"
    monkeypatch.setattr(leasing, "ANSWER_S", 10.0)
    replica.bank.held.set()
    await replica.settling.settle()
    assert replica.account.throughput.leased, "it is back"


async def test_a_database_that_fails_costs_nobody_the_call(replica: Replica) -> None:
    replica.bank.fault = StoreUnavailable("gone")
    await asyncio.gather(replica.turn(2.0), replica.turn(3.0))
    assert not replica.account.throughput.leased


async def test_a_database_that_fails_while_nobody_calls_costs_nobody_a_question(replica: Replica) -> None:
    replica.bank.fault = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        await replica.settling.settle()
    asked = len(replica.bank.asked)
    await replica.turn(2.0)
    assert len(replica.bank.asked) == asked


async def test_when_settling_ends_nobody_waits_for_it(replica: Replica) -> None:
    replica.bank.fault = RuntimeError("a fault of ours")
    await replica.turn(2.0)
    assert not replica.account.throughput.leased


async def test_a_slow_database_does_not_hold_back_who_is_alone(replica: Replica) -> None:
    replica.bank.replicas = 1
    await replica.settling.settle()
    replica.bank.held.clear()
    replica.account.queue(2.0, time.monotonic())
    asked = len(replica.bank.asked)
    await replica.turn(2.0)
    assert len(replica.bank.asked) == asked


async def test_one_alone_begins_with_what_is_there() -> None:
    bank = Bank()
    bank.replicas, bank.row.tokens = 1, 60.0
    replica = Replica(bank)
    running = asyncio.create_task(replica.settling.run())
    await replica.rounds.wait()
    assert replica.account.turn_s(60.0, KNOWN, time.monotonic()) == 0
    assert replica.account.turn_s(RATE, KNOWN, time.monotonic()) > 0
    running.cancel()
    await asyncio.wait([running])


async def test_who_is_cancelled_leaves_the_line(replica: Replica) -> None:
    replica.bank.held.clear()
    first, second = asyncio.create_task(replica.turn(2.0)), asyncio.create_task(replica.turn(3.0))
    await settle()
    second.cancel()
    await asyncio.wait([second])
    assert replica.purse.waiting == 1
    replica.bank.held.set()
    await first
    assert replica.account.throughput.due_s(time.monotonic()) is None


async def test_a_lease_that_does_not_come_in_time_is_refused_with_the_wait(replica: Replica) -> None:
    replica.bank.held.clear()
    token = deadline.set(time.monotonic() + MIN_USEFUL_S + 0.1)
    with pytest.raises(CallFailed) as caught:
        await replica.turn(2.0)
    deadline.reset(token)
    assert caught.value.fault is Fault.RATE_LIMITED
    assert caught.value.retry_after_s is not None
    assert (replica.purse.waiting, replica.bank.wanted) == (0, [2.0])


async def test_a_turn_that_would_come_too_late_is_refused_at_once(replica: Replica) -> None:
    replica.bank.row.tokens = -6 * RATE
    await replica.settling.settle()
    with pytest.raises(CallFailed) as caught:
        await replica.turn(2.0)
    assert caught.value.retry_after_s == pytest.approx(6, abs=0.9)
    assert replica.bank.wanted == []


async def test_P6_who_waits_for_a_lease_holds_no_permit(replica: Replica) -> None:
    replica.bank.held.clear()
    permits = Permits(FillBudget(1), ManualClock())
    async with permits.hold() as permit:
        token = shift.set(PermitShift(permit))
        calling = asyncio.create_task(replica.turn(2.0))
        await settle()
        assert permits.budget.running() == 0
        replica.bank.held.set()
        await calling
        assert permit.held
        shift.reset(token)


async def test_backfill_waits_behind_requests_and_is_promised_nothing(replica: Replica) -> None:
    replica.bank.row.tokens, replica.bank.row.rate = 1.0, 0.001
    replica.bank.question.clear()
    with for_purpose(Purpose.BACKFILL):
        filling = asyncio.create_task(replica.turn(2.0))
    await replica.bank.question.wait()
    await replica.turn(1.0)
    assert not filling.done()
    filling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await filling
    assert [(ask.want, ask.patience_s > 0) for _, ask, _ in replica.bank.asked if ask.want] == [
        (2.0, False),
        (1.0, True),
    ]


async def test_a_call_waits_for_units_of_the_day_that_are_there_but_not_granted_to_its_replica() -> None:
    bank, accounts, at, rounds = Bank(), Accounts(), 0.0, 0
    purse = Purse(account=accounts.of(URL, {}, None, 90.0), pause=lambda _: asyncio.sleep(0))

    async def pause(seconds: float) -> None:
        nonlocal at, rounds
        at, rounds = at + seconds, rounds + 1
        if rounds == 5:
            settled.set()
        await asyncio.sleep(0 if rounds < 5 else seconds)

    settled = asyncio.Event()
    settling = Settling(accounts, bank, clock=lambda: at, pause=pause)
    running = asyncio.create_task(settling.run())
    await settled.wait()
    cost = Cost(40.0, 0.0)
    assert not purse.account.granted(cost.units, time.time())
    assert purse.closed_s(()) == 0
    await purse.turn(cost)
    purse.charge(cost)
    assert bank.day_units >= 40
    bank.granted_at_most = 0.0
    await purse.turn(cost)
    with pytest.raises(CallFailed) as caught:
        purse.charge(cost)
    assert (caught.value.fault, caught.value.retry_after_s) == (Fault.SPENT, 1.0)
    assert purse.account.wanted == 0
    running.cancel()
    await asyncio.wait([running])


async def test_what_is_spent_while_it_is_told_counts_towards_the_next_grant() -> None:
    bank, accounts, now = Bank(), Accounts(), time.time()
    account = accounts.of(URL, {}, None, 90.0)
    settling = Settling(accounts, bank)
    await settling.settle()
    bank.telling.clear()
    bank.told.clear()
    telling = asyncio.create_task(settling.settle())
    await bank.telling.wait()
    assert account.charge(15.0, KNOWN, now)
    bank.told.set()
    await telling
    assert not account.granted(1.0, now)
    await settling.settle()
    assert account.granted(12.5, now)


async def test_a_pause_is_told_at_once_and_once(replica: Replica) -> None:
    replica.bank.question.clear()
    replica.account.cool(time.monotonic() + 10)
    await replica.bank.question.wait()
    for _ in range(3):
        await replica.settling.settle()
    told = [cool_s for _, _, cool_s in replica.bank.asked if cool_s]
    assert told == [pytest.approx(10, abs=1)]


async def test_a_pause_that_cannot_be_told_is_tried_again_after_a_while_and_not_at_once(replica: Replica) -> None:
    replica.bank.fault = StoreUnavailable("gone")
    replica.bank.question.clear()
    replica.account.cool(time.monotonic() + 10)
    await replica.bank.question.wait()
    await settle()
    (leasing_it,) = replica.settling._leasing.values()
    due_s = leasing_it._due_s()
    assert due_s is not None
    assert due_s > 10 * BETWEEN_S


async def test_a_pause_of_another_is_heard_with_any_answer(replica: Replica) -> None:
    replica.bank.row.cooling_until = time.monotonic() + 10
    await replica.turn(2.0)
    assert replica.account.cooling_until == pytest.approx(time.monotonic() + 10, abs=1)
    replica.bank.row.cooling_until = time.monotonic() + 3600
    await replica.settling.settle()
    assert replica.account.cooling_until < time.monotonic() + 11, "nobody is told to wait for so long"
