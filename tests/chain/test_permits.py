"""Permits under waiting, cutoffs and cancellation: after anything, everything is where it was."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from app.chain.permits import Permit, Permits, PermitShift
from app.core.budget import FillBudget, Priority, Refusal
from app.core.errors import ChainOverloaded
from tests.fakes import ManualClock, settle

REQUEST, BACKFILL = Priority.REQUEST, Priority.BACKFILL


def permits_of(limit: int, *, reserve: int | None = None, max_queued: int = 64) -> Permits:
    return Permits(FillBudget(limit, reserve=reserve, max_queued=max_queued), ManualClock())


async def held(permits: Permits, priority: Priority = REQUEST) -> Permit:
    permit = permits.hold(priority)
    await permit.acquire()
    return permit


async def test_a_permit_is_held_inside_and_back_outside() -> None:
    permits = permits_of(2)
    async with permits.hold(BACKFILL):
        assert repr(permits) == "<Permits 1/2 running (1 backfill), 0 waiting>"
    assert repr(permits) == "<Permits 0/2 running (0 backfill), 0 waiting>"


async def test_an_error_inside_gives_the_permit_back() -> None:
    permits = permits_of(1)
    with pytest.raises(KeyError):
        async with permits.hold():
            raise KeyError
    assert permits.budget.running() == 0


async def test_waiters_are_woken_in_order() -> None:
    permits = permits_of(1)
    holder = await held(permits)
    order: list[int] = []

    async def wait(number: int) -> None:
        async with permits.hold():
            order.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(wait(number))
        await settle()
        assert order == []
        holder.release()
    assert order == list(range(5))


async def test_P2_a_request_starts_within_one_turn_while_backfill_is_saturated() -> None:
    permits = permits_of(4)
    for _ in range(3):
        await held(permits, BACKFILL)
    task = asyncio.create_task(held(permits))
    await asyncio.sleep(0)
    assert task.done()


async def test_P2_P3_a_waiting_request_goes_before_waiting_backfill() -> None:
    permits = permits_of(2)
    backfill, request = await held(permits, BACKFILL), await held(permits)
    next_backfill = asyncio.create_task(held(permits, BACKFILL))
    await settle()
    next_request = asyncio.create_task(held(permits))
    await settle()
    backfill.release()
    await settle()
    assert (next_request.done(), next_backfill.done()) == (True, False)
    request.release()
    await next_backfill


async def test_P4_a_cancelled_waiter_leaves_nothing_behind_and_the_next_one_starts() -> None:
    permits = permits_of(1)
    holder = await held(permits)
    first = asyncio.create_task(held(permits))
    second = asyncio.create_task(held(permits))
    await settle()
    first.cancel()
    await settle()
    assert permits.budget.waiting() == 1
    holder.release()
    (await second).release()
    assert (permits.budget.running(), permits.budget.waiting()) == (0, 0)


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_P4_a_waiter_cancelled_in_the_turn_of_its_grant_hands_the_permit_on(cancel_first: bool) -> None:
    permits = permits_of(1)
    holder = await held(permits)
    unlucky = asyncio.create_task(held(permits))
    lucky = asyncio.create_task(held(permits))
    await settle()
    if cancel_first:
        unlucky.cancel()
        holder.release()
    else:
        holder.release()
        unlucky.cancel()
    permit = await lucky
    assert unlucky.cancelled()
    permit.release()
    assert (permits.budget.running(), permits.budget.waiting()) == (0, 0)


async def test_P4_four_tasks_of_250_cancelled_acquires_never_hang() -> None:
    permits = permits_of(1)

    async def churn() -> None:
        for _ in range(250):
            task = asyncio.create_task(held(permits))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await task).release()

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(churn())
    assert (permits.budget.running(), permits.budget.waiting()) == (0, 0)


async def test_P5_raising_the_limit_wakes_a_waiter_without_a_release() -> None:
    permits = permits_of(1)
    await held(permits)
    waiter = asyncio.create_task(held(permits))
    await settle()
    permits.set_limit(2)
    await waiter


async def test_P5_lowering_the_limit_is_paid_by_releases() -> None:
    permits = permits_of(3)
    holders = [await held(permits) for _ in range(3)]
    permits.set_limit(1)
    waiter = asyncio.create_task(held(permits))
    await settle()
    for holder in holders[:2]:
        holder.release()
    await settle()
    assert not waiter.done()
    holders[2].release()
    await waiter
    assert permits.budget.running() == 1


async def test_P6_a_sleeping_fill_holds_nothing() -> None:
    permits = permits_of(1)
    async with permits.hold() as permit:
        async with PermitShift(permit).asleep():
            assert permits.budget.running() == 0
            other = await held(permits)
            asyncio.get_running_loop().call_soon(other.release)
        assert permits.budget.running() == 1
    assert permits.budget.running() == 0


async def test_P6_a_fill_cancelled_in_its_sleep_holds_nothing_and_asks_for_nothing() -> None:
    permits = permits_of(1)

    async def fill() -> None:
        async with permits.hold() as permit, PermitShift(permit).asleep():
            await asyncio.Event().wait()

    task = asyncio.create_task(fill())
    await settle()
    task.cancel()
    await settle()
    assert task.cancelled()
    assert (permits.budget.running(), permits.budget.waiting()) == (0, 0)


async def test_P6_a_fill_that_wakes_waits_for_its_permit_though_the_queue_is_full() -> None:
    permits = permits_of(1, max_queued=0)
    async with permits.hold() as permit:
        async with PermitShift(permit).asleep():
            other = await held(permits)
            asyncio.get_running_loop().call_soon(other.release)
        assert permit.held
    assert permits.refused == {Refusal.QUEUE_FULL: 0, Refusal.WAIT_TIMEOUT: 0}


async def test_P6_a_fill_whose_time_ran_out_in_its_sleep_is_refused_with_nothing_held() -> None:
    clock = ManualClock()
    permits = Permits(FillBudget(1), clock)
    with pytest.raises(ChainOverloaded):
        async with permits.hold(cutoff=clock.now() + 1) as permit, PermitShift(permit).asleep():
            clock.move(1)
    assert (permits.budget.running(), permits.budget.waiting()) == (0, 0)


class Crew:
    """A fill of three branches, each of which sleeps, works and ends when it is told to."""

    def __init__(self, permit: Permit) -> None:
        self.shift = PermitShift(permit)
        self.steps = [asyncio.Queue[str]() for _ in range(3)]

    async def work(self) -> None:
        async with self.shift.parted(3) as ended, asyncio.TaskGroup() as group:
            for steps in self.steps:
                group.create_task(self._branch(steps)).add_done_callback(lambda _: ended())

    async def _branch(self, steps: asyncio.Queue[str]) -> None:
        while await steps.get() == "sleep":
            async with self.shift.asleep():
                assert await steps.get() == "wake"

    async def tell(self, branch: int, step: str) -> None:
        self.steps[branch].put_nowait(step)
        await settle()


async def test_P6_a_fill_of_many_branches_holds_its_permit_while_any_of_them_works() -> None:
    permits = permits_of(1)
    async with permits.hold() as permit:
        crew = Crew(permit)
        working = asyncio.create_task(crew.work())
        await crew.tell(0, "sleep")
        await crew.tell(1, "sleep")
        assert permit.held, "the third is at work"
        await crew.tell(2, "end")
        assert not permit.held, "one has ended and two sleep"
        other = await held(permits)
        await crew.tell(0, "wake")
        await crew.tell(1, "wake")
        assert permits.budget.waiting() == 1, "one waits for both"
        other.release()
        await settle()
        assert permit.held
        await crew.tell(0, "sleep")
        assert permit.held
        await crew.tell(1, "end")
        assert not permit.held
        await crew.tell(0, "wake")
        await crew.tell(0, "end")
        await working
        assert permit.held, "who waited for the branches takes up the work"
        async with crew.shift.asleep():
            assert not permit.held
    assert permits.budget.running() == 0


@pytest.mark.parametrize("asleep", [0, 1, 2, 3])
async def test_P6_a_fill_cancelled_with_its_branches_leaves_nothing(asleep: int) -> None:
    permits = permits_of(1)
    holder: list[Permit] = []

    async def fill() -> None:
        async with permits.hold() as permit:
            holder.append(permit)
            crews.append(Crew(permit))
            await crews[0].work()

    crews: list[Crew] = []
    task = asyncio.create_task(fill())
    await settle()
    for branch in range(asleep):
        await crews[0].tell(branch, "sleep")
    assert holder[0].held == (asleep < 3)
    task.cancel()
    await settle()
    assert task.cancelled()
    assert (permits.budget.running(), permits.budget.waiting()) == (0, 0)


async def test_P6_a_branch_that_never_said_that_it_ended_works_no_more() -> None:
    permits = permits_of(1)
    async with permits.hold() as permit:
        shift = PermitShift(permit)
        async with shift.parted(2) as ended:
            ended()
        async with shift.asleep():
            assert not permit.held
        assert repr(shift) == "<PermitShift 1 at work, 0 asleep>"


async def test_P6_of_branches_that_wait_for_the_permit_another_takes_over_from_one_that_is_cancelled() -> None:
    permits = permits_of(1)
    async with permits.hold() as permit:
        shift = PermitShift(permit)
        awake = asyncio.Event()

        async def branch() -> None:
            async with shift.asleep():
                await awake.wait()

        async with shift.parted(2) as ended:
            branches = [asyncio.create_task(branch()) for _ in range(2)]
            for each in branches:
                each.add_done_callback(lambda _: ended())
            await settle()
            other = await held(permits)
            awake.set()
            await settle()
            branches[0].cancel()
            await settle()
            assert permits.budget.waiting() == 1
            other.release()
            await asyncio.wait(branches)
            assert permit.held
    assert permits.budget.running() == 0


async def test_a_full_queue_refuses_with_its_reason() -> None:
    permits = permits_of(1, max_queued=0)
    holder = await held(permits)
    with pytest.raises(ChainOverloaded) as refused:
        await held(permits)
    assert refused.value.extra == {"reason": "fill_queue_full", "phase": "fill_queue"}
    assert permits.refused == {Refusal.QUEUE_FULL: 1, Refusal.WAIT_TIMEOUT: 0}
    holder.release()


async def test_a_waiter_is_refused_at_its_cutoff_and_not_later() -> None:
    clock = ManualClock().drive()
    permits = Permits(FillBudget(1), clock)
    await held(permits)
    waiter = asyncio.create_task(permits.hold(cutoff=clock.now() + 2.0).acquire())
    await clock.advance(1.9)
    assert not waiter.done()
    await clock.advance(0.1)
    with pytest.raises(ChainOverloaded) as refused:
        await waiter
    assert refused.value.extra["reason"] == "fill_wait_timeout"
    assert (permits.budget.waiting(), permits.refused[Refusal.WAIT_TIMEOUT]) == (0, 1)


async def test_a_refused_permit_may_be_asked_for_again() -> None:
    clock = ManualClock().drive()
    permits = Permits(FillBudget(1), clock)
    holder = await held(permits)
    permit = permits.hold(cutoff=clock.now() + 1.0)
    waiter = asyncio.create_task(permit.acquire())
    await clock.advance(1.0)
    with pytest.raises(ChainOverloaded):
        await waiter
    holder.release()
    permit.cutoff = None
    async with permit:
        assert permits.budget.running() == 1


async def test_a_timer_that_rings_early_still_refuses() -> None:
    """Timers of the loop and the clock need not agree to the last bit."""
    clock = ManualClock()
    permits = Permits(FillBudget(1), clock)
    await held(permits)
    waiter = asyncio.create_task(permits.hold(cutoff=clock.now() + 1e-9).acquire())
    with pytest.raises(ChainOverloaded):
        await waiter


async def test_a_cutoff_that_has_come_is_refused_though_a_permit_is_free() -> None:
    permits = permits_of(1)
    with pytest.raises(ChainOverloaded) as refused:
        await permits.hold(cutoff=permits.clock.now()).acquire()
    assert refused.value.extra["reason"] == "fill_wait_timeout"


async def test_promotion_before_while_waiting_and_while_running() -> None:
    permits = permits_of(2)
    running = await held(permits, BACKFILL)
    waiting = permits.hold(BACKFILL)
    task = asyncio.create_task(waiting.acquire())
    await settle()
    assert not task.done()
    waiting.promote()
    await task
    assert (permits.budget.running(REQUEST), permits.budget.running(BACKFILL)) == (1, 1)
    running.promote()
    assert (permits.budget.running(REQUEST), permits.budget.running(BACKFILL)) == (2, 0)
    running.release()
    waiting.release()
    early = permits.hold(BACKFILL)
    early.promote()
    async with early:
        assert permits.budget.running(REQUEST) == 1


async def test_misuse_is_loud() -> None:
    permits = permits_of(2)
    permit = await held(permits)
    with pytest.raises(RuntimeError, match="already"):
        await permit.acquire()
    permit.release()
    with pytest.raises(RuntimeError, match="not held"):
        permit.release()
    assert permits.budget.running() == 0


async def test_waits_are_told_for_grants_only() -> None:
    clock = ManualClock().drive()
    waits: list[tuple[Priority, float]] = []
    permits = Permits(FillBudget(1), clock, on_wait=lambda priority, waited_s: waits.append((priority, waited_s)))
    holder = await held(permits)
    task = asyncio.create_task(held(permits))
    late = asyncio.create_task(permits.hold(cutoff=clock.now() + 1.0).acquire())
    await clock.advance(3.0)
    holder.release()
    await task
    with pytest.raises(ChainOverloaded):
        await late
    assert waits == [(REQUEST, 0.0), (REQUEST, 3.0)]


async def test_B52_B53_a_hundred_thousand_random_steps_leave_every_permit_at_its_start() -> None:
    clock = ManualClock().drive()
    permits = Permits(FillBudget(5, max_queued=12), clock)
    chance = random.Random(52)
    outcomes = {"done": 0, "cancelled": 0, "refused": 0}
    started: list[Permit] = []
    peak = 0

    async def fill(permit: Permit) -> None:
        nonlocal peak
        try:
            async with permit:
                peak = max(peak, permits.budget.running())
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                if chance.random() < 0.1:
                    async with PermitShift(permit).asleep():
                        await asyncio.sleep(0)
            outcomes["done"] += 1
        except ChainOverloaded:
            outcomes["refused"] += 1
        except asyncio.CancelledError:
            outcomes["cancelled"] += 1
            raise

    tasks: dict[asyncio.Task[None], None] = {}  # a set would make the order, and so the run, another one each time
    steps = 0
    while steps < 100_000:
        steps += 1
        roll = chance.random()
        if roll < 0.4:
            # A cutoff in step with the clock below: the timer and the grant often fall into the same turn.
            cutoff = chance.choice([None, clock.now() + chance.randrange(4)])
            permit = permits.hold(chance.choice([REQUEST, REQUEST, BACKFILL]), cutoff=cutoff)
            started.append(permit)
            task = asyncio.create_task(fill(permit))
            tasks[task] = None
            task.add_done_callback(tasks.pop)
        elif roll < 0.5 and tasks:
            chance.choice(tuple(tasks)).cancel()
        elif roll < 0.55:
            clock.move(1.0)
        elif roll < 0.6 and started:
            started.pop().promote()
        else:
            await asyncio.sleep(0)
    while tasks:
        clock.move(1.0)
        await asyncio.sleep(0)
    assert (permits.budget.running(), permits.budget.waiting(), permits._wakers) == (0, 0, {})
    assert peak == 5
    assert min(outcomes.values()) > 500, outcomes
    permit = await held(permits)
    permit.release()
