"""Single flight: one fill per key, whoever comes, leaves, fails or is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from app.chain.fill import Fill, Stage, Verdict, judge
from app.chain.flight import Flights
from app.chain.permits import Permits
from app.core import errors
from app.core.budget import FillBudget, Priority
from tests.fakes import HoldPoints, ManualClock, settle

REQUEST, BACKFILL = Priority.REQUEST, Priority.BACKFILL
Fly = Flights[str, Any]


class Source(HoldPoints):
    """Fills that count, stop and fail as told. `fill(key)` yields `(key, number of the fetch)`."""

    def __init__(self, *, queued: bool = False) -> None:
        super().__init__()
        self.queued = queued
        self.landed: list[Any] = []
        self.handles: list[Fill] = []

    @property
    def fetches(self) -> int:
        return self.hits["fetch"]

    def fill(self, key: str) -> Callable[[Fill], Awaitable[Any]]:
        async def run(fill: Fill) -> Any:
            self.handles.append(fill)
            await self.at("queue")
            fill.enter(Stage.FETCHING)
            await self.at("fetch")
            await self.at("fetch.after")
            fill.enter(Stage.BUILDING)
            await self.at("build")
            return key, self.fetches

        return run

    async def get(self, flights: Fly, key: str = "k", **more: Any) -> Any:
        return await flights.get(key, self.fill(key), land=self.landed.append, **more)


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock().drive()


@pytest.fixture
async def flights(clock: ManualClock) -> AsyncIterator[Fly]:
    """The task that is cancelled at the end of a test is nobody's business there."""
    flights: Fly = Flights(clock, jitter=lambda: 0.5)
    yield flights
    await flights.aclose()
    assert (len(flights), flights.waiting, flights._flying) == (0, 0, {})


@pytest.fixture
def source() -> Source:
    return Source()


def several(source: Source, flights: Fly, count: int, **more: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(source.get(flights, **more)) for _ in range(count)]


async def outcomes(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


# --- one fill for all -----------------------------------------------------------------------------------------------


async def test_F1_concurrent_misses_share_one_fill(flights: Fly, source: Source) -> None:
    assert await outcomes(several(source, flights, 20)) == [("k", 1)] * 20
    assert (source.fetches, source.hits["build"], flights.fills, flights.joins) == (1, 1, 1, 19)
    assert source.landed == [("k", 1)]


async def test_the_value_has_landed_before_the_key_is_free(flights: Fly, source: Source) -> None:
    """Between in flight and settled there is no gap in which a caller would start a second fill."""
    task = asyncio.create_task(source.get(flights))
    while not task.done():
        assert source.landed or "k" in flights or not source.fetches
        await asyncio.sleep(0)
    assert "k" not in flights


async def test_F15_two_keys_never_wait_for_each_other(flights: Fly, source: Source) -> None:
    held = source.hold("fetch")
    slow = asyncio.create_task(source.get(flights, "slow"))
    await held.reached()
    source.unhold()
    assert await source.get(flights, "quick") == ("quick", 2)
    assert not slow.done()
    held.release()
    await slow


async def test_the_stages_and_leases_are_visible(flights: Fly, source: Source) -> None:
    queued = source.hold("queue")
    tasks = several(source, flights, 3)
    await queued.reached()
    assert repr(flights) == "<Flights 1 in flight (1 queued), 3 waiting, 0 memos>"
    assert source.handles[0].deadline is None, "a queued fill is bounded by those who wait for it"
    queued.release()
    await outcomes(tasks)
    assert repr(flights) == "<Flights 0 in flight (0 queued), 0 waiting, 0 memos>"


# --- callers come and go --------------------------------------------------------------------------------------------


async def test_B51_cancelling_25_of_50_waiters_and_the_first_leaves_the_other_25_served_by_one_fill(
    flights: Fly, source: Source
) -> None:
    held = source.hold("fetch")
    tasks = several(source, flights, 50)
    await held.reached()
    gone = [0, *random.Random(51).sample(range(1, 50), 24)]
    for number in gone:
        tasks[number].cancel()
    await settle()
    held.release()
    results = await outcomes(tasks)
    assert all(isinstance(results[number], asyncio.CancelledError) for number in gone)
    assert [result for number, result in enumerate(results) if number not in gone] == [("k", 1)] * 25
    assert (source.fetches, flights.fills) == (1, 1)


async def test_F4_the_creators_deadline_changes_nothing_for_the_followers(
    flights: Fly, source: Source, clock: ManualClock
) -> None:
    held = source.hold("fetch")
    creator = asyncio.create_task(source.get(flights, deadline=clock.now() + 0.2))
    await held.reached()
    followers = several(source, flights, 5)
    await clock.advance(0.2)
    with pytest.raises(errors.RequestTimeout) as late:
        await creator
    assert late.value.extra == {"stage": "fetch"}
    held.release()
    assert await outcomes(followers) == [("k", 1)] * 5
    assert source.fetches == 1


async def test_F4_a_fill_does_not_run_in_the_context_of_who_came_first(flights: Fly) -> None:
    deadline: contextvars.ContextVar[float | None] = contextvars.ContextVar("deadline", default=None)

    async def fill(fill: Fill) -> float | None:
        return deadline.get()

    deadline.set(0.1)
    assert await flights.get("k", fill) is None


async def test_F5_one_followers_timeout_is_its_own(flights: Fly, source: Source, clock: ManualClock) -> None:
    held = source.hold("fetch")
    patient, hasty = (
        asyncio.create_task(source.get(flights)),
        asyncio.create_task(source.get(flights, deadline=clock.now() + 1.0)),
    )
    await held.reached()
    await clock.advance(1.0)
    with pytest.raises(errors.RequestTimeout):
        await hasty
    held.release()
    assert await patient == ("k", 1)


async def test_T4_a_callers_own_timeout_around_it_stays_a_timeout(
    flights: Fly, source: Source, clock: ManualClock
) -> None:
    held = source.hold("fetch")

    async def call() -> None:
        async with asyncio.timeout(1.0):
            await source.get(flights, deadline=clock.now() + 5.0)

    task = asyncio.create_task(call())
    await held.reached()
    await clock.advance(1.0)
    with pytest.raises(TimeoutError):
        await task
    held.release()
    await settle()
    assert source.landed == [("k", 1)]


async def test_a_deadline_that_has_passed_starts_nothing(flights: Fly, source: Source, clock: ManualClock) -> None:
    with pytest.raises(errors.RequestTimeout):
        await source.get(flights, deadline=clock.now())
    assert flights.fills == 0


async def test_the_last_one_leaving_a_queued_fill_cancels_it(flights: Fly, source: Source) -> None:
    queued = source.hold("queue")
    tasks = several(source, flights, 2)
    await queued.reached()
    tasks[0].cancel()
    await settle()
    assert "k" in flights
    tasks[1].cancel()
    await settle()
    assert ("k" in flights, flights.abandoned, queued.waiting, source.fetches) == (False, 1, 0, 0)


async def test_the_last_one_leaving_a_started_fill_lets_it_finish(flights: Fly, source: Source) -> None:
    held = source.hold("fetch")
    task = asyncio.create_task(source.get(flights))
    await held.reached()
    task.cancel()
    await settle()
    assert "k" in flights
    held.release()
    await settle()
    assert (source.landed, flights.abandoned) == ([("k", 1)], 0)


async def test_F8_a_fill_being_cancelled_is_never_handed_to_a_later_caller(flights: Fly) -> None:
    unwinding, fills = asyncio.Event(), 0

    async def fill(fill: Fill) -> int:
        nonlocal fills
        fills += 1
        mine = fills
        if mine == 1:
            try:
                await asyncio.Event().wait()
            finally:
                await unwinding.wait()
        return mine

    first = asyncio.create_task(flights.get("k", fill))
    await settle()
    first.cancel()
    await settle()
    assert flights._flying, "the first fill still unwinds"
    assert await flights.get("k", fill) == 2
    unwinding.set()
    await settle()


async def test_F8_an_old_fills_end_does_not_remove_the_new_one(flights: Fly, source: Source) -> None:
    unwinding = asyncio.Event()

    async def stubborn(fill: Fill) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await unwinding.wait()

    first = asyncio.create_task(flights.get("k", stubborn))
    await settle()
    first.cancel()
    await settle()
    held = source.hold("fetch")
    second = asyncio.create_task(source.get(flights))
    await held.reached()
    unwinding.set()
    await settle()
    assert "k" in flights
    held.release()
    assert await second == ("k", 1)


async def test_a_waiter_that_could_not_finish_is_refused_at_its_cutoff_and_the_others_wait_on(
    flights: Fly, source: Source, clock: ManualClock
) -> None:
    queued = source.hold("queue")
    hasty = asyncio.create_task(source.get(flights, cutoff=clock.now() + 1.0))
    patient = asyncio.create_task(source.get(flights, cutoff=clock.now() + 9.0))
    await queued.reached()
    await clock.advance(1.0)
    with pytest.raises(errors.ChainOverloaded) as refused:
        await hasty
    assert refused.value.extra["reason"] == "fill_wait_timeout"
    with pytest.raises(errors.ChainOverloaded):
        await source.get(flights, cutoff=clock.now())
    queued.release()
    assert await patient == ("k", 1)


async def test_a_cutoff_is_for_the_queue_only(flights: Fly, source: Source, clock: ManualClock) -> None:
    held = source.hold("fetch")
    task = asyncio.create_task(source.get(flights, cutoff=clock.now() + 1.0))
    await held.reached()
    await clock.advance(2.0)
    late_joiner = asyncio.create_task(source.get(flights, cutoff=clock.now() - 1.0))
    await settle()
    held.release()
    assert await outcomes([task, late_joiner]) == [("k", 1)] * 2


# --- failures -------------------------------------------------------------------------------------------------------


def down() -> errors.RpcUnavailable:
    return errors.RpcUnavailable("no upstream gave an answer")


async def test_F2_B51_a_first_failure_is_tried_again_for_all_with_exactly_two_fetches(
    flights: Fly, source: Source
) -> None:
    source.fail("fetch", down())
    assert await outcomes(several(source, flights, 16)) == [("k", 2)] * 16
    assert (source.fetches, flights.handovers) == (2, 1)
    assert [fill.generation for fill in source.handles] == [1, 2]


async def test_F3_B51_with_the_upstream_down_all_fail_after_two_fetches_and_it_is_remembered_for_a_moment(
    flights: Fly, source: Source, clock: ManualClock
) -> None:
    source.fail("fetch", down(), times=None)
    results = await outcomes(several(source, flights, 32))
    assert [type(result) for result in results] == [errors.RpcUnavailable] * 32
    assert len({id(result) for result in results}) == 32, "an exception raised twice grows its traceback twice"
    with pytest.raises(errors.RpcUnavailable) as remembered:
        await source.get(flights)
    assert remembered.value.retry_after_s == pytest.approx(0.25 + 1.0)  # and half of the spread
    assert (source.fetches, flights.memo_hits) == (2, 1)
    clock.move(0.25)
    source.heal()
    assert await source.get(flights) == ("k", 3)


@pytest.mark.parametrize(("chance", "memo_s"), [(0.0, 0.125), (1.0, 0.375)])
async def test_F3_the_memory_is_spread_by_half_in_both_directions(
    clock: ManualClock, source: Source, chance: float, memo_s: float
) -> None:
    flights: Fly = Flights(clock, jitter=lambda: chance)
    source.fail("fetch", down(), times=None)
    await outcomes(several(source, flights, 1))
    with pytest.raises(errors.RpcUnavailable) as remembered:
        await source.get(flights)
    assert remembered.value.retry_after_s == pytest.approx(memo_s + 2.0 * chance)
    clock.move(memo_s + 0.001)
    source.heal()
    assert await source.get(flights)


async def test_A11_those_who_failed_together_do_not_come_back_in_step(clock: ManualClock, source: Source) -> None:
    chances = iter(number / 100 for number in range(1000))
    flights: Fly = Flights(clock, jitter=lambda: next(chances))
    source.fail("fetch", errors.RpcUnavailable("down", retry_after_s=1.0), times=None)
    results = await outcomes(several(source, flights, 32))
    waits = sorted(result.retry_after_s for result in results if isinstance(result, errors.RpcUnavailable))
    assert len(set(waits)) == len(waits) == 32
    assert 1.0 <= waits[0] < waits[-1] <= 3.0


async def test_F3_a_stall_counts_as_two_failures(flights: Fly, source: Source, clock: ManualClock) -> None:
    source.hold("fetch")
    tasks = several(source, flights, 4)
    await clock.advance(20.0)
    results = await outcomes(tasks)
    assert [type(result) for result in results] == [errors.RequestTimeout] * 4
    assert results[0].extra == {"stage": "fetch"}
    assert source.fetches == 1
    with pytest.raises(errors.RequestTimeout):
        await source.get(flights)
    assert source.fetches == 1


async def test_F3_whatever_ate_half_of_the_time_is_a_stall_by_any_name(
    flights: Fly, source: Source, clock: ManualClock
) -> None:
    held = source.hold("fetch")
    source.fail("fetch.after", down())
    tasks = several(source, flights, 2)
    await clock.advance(10.0)
    held.release()
    assert [type(result) for result in await outcomes(tasks)] == [errors.RpcUnavailable] * 2
    assert source.fetches == 1


async def test_the_fills_own_deadline_starts_when_it_leaves_the_queue(
    flights: Fly, source: Source, clock: ManualClock
) -> None:
    queued, held = source.hold("queue"), source.hold("fetch")
    task = asyncio.create_task(source.get(flights))
    await clock.advance(300.0)
    assert not task.done()
    queued.release()
    await held.reached()
    assert source.handles[0].deadline == clock.now() + 20.0
    await clock.advance(19.0)
    assert not task.done()
    held.release()
    await task


async def test_F3_a_first_failure_that_nobody_saw_counts(flights: Fly, source: Source) -> None:
    held = source.hold("fetch")
    source.fail("fetch", down(), times=None)
    gone = asyncio.create_task(source.get(flights))
    await held.reached()
    gone.cancel()
    await settle()
    held.release()
    await settle()
    with pytest.raises(errors.RpcUnavailable):
        await source.get(flights)
    assert source.fetches == 2
    assert source.handles[-1].generation == 2


async def test_a_success_forgets_the_failure_before_it(flights: Fly, source: Source) -> None:
    held = source.hold("fetch")
    source.fail("fetch", down())
    gone = asyncio.create_task(source.get(flights))
    await held.reached()
    gone.cancel()
    await settle()
    held.release()
    await settle()
    await source.get(flights)
    await source.get(flights)
    assert source.handles[-1].generation == 1


async def test_who_can_no_longer_finish_a_second_fill_gets_the_first_error(
    flights: Fly, source: Source, clock: ManualClock
) -> None:
    held = source.hold("fetch")
    source.fail("fetch", down())
    hasty = asyncio.create_task(source.get(flights, cutoff=clock.now() + 1.0))
    patient = asyncio.create_task(source.get(flights))
    await held.reached()
    await clock.advance(1.0)
    held.release()
    results = await outcomes([hasty, patient])
    assert isinstance(results[0], errors.RpcUnavailable)
    assert results[1] == ("k", 2)


@pytest.mark.parametrize(
    "error",
    [
        errors.UnsupportedTransactionType("unsupported transaction type 0x6a"),
        errors.NotCommittedByHeader("the header does not commit to receipts"),
        errors.HistoryUnavailable("pruned"),
    ],
)
async def test_what_is_true_of_the_block_is_told_at_once_and_remembered_for_a_minute(
    flights: Fly, source: Source, clock: ManualClock, error: errors.ProofError
) -> None:
    source.fail("build", error, times=None)
    results = await outcomes(several(source, flights, 8))
    assert [(type(result), result.message) for result in results] == [(type(error), error.message)] * 8
    clock.move(59.0)
    with pytest.raises(type(error)) as remembered:
        await source.get(flights)
    assert remembered.value.retry_after_s is None
    assert source.fetches == 1
    clock.move(1.0)
    source.heal()
    assert await source.get(flights) == ("k", 2)


@pytest.mark.parametrize(
    "error", [errors.BlockNotOnSourceChain("no such block"), errors.ChainOverloaded("full"), errors.TxNotMined("yet")]
)
async def test_an_answer_or_a_refusal_is_told_at_once_and_not_remembered(
    flights: Fly, source: Source, error: errors.ProofError
) -> None:
    source.fail("fetch", error)
    assert [type(result) for result in await outcomes(several(source, flights, 3))] == [type(error)] * 3
    assert await source.get(flights) == ("k", 2)
    assert flights.memo_hits == 0


async def test_a_crash_is_an_internal_error_logged_once_with_its_cause(
    flights: Fly, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.fail("build", KeyError("bug"), times=None)
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    with caplog.at_level(logging.ERROR):
        results = await outcomes(several(source, flights, 5))
    assert [type(result) for result in results] == [errors.Internal] * 5
    assert "bug" not in str(results[0])
    assert [type(fault) for fault in told] == [KeyError] * 2, "one a generation, to whoever counts and logs faults"
    assert caplog.records == [], "and not twice"


async def test_the_memory_of_failures_is_bounded(clock: ManualClock, source: Source) -> None:
    flights: Fly = Flights(clock, max_memos=4)
    source.fail("build", errors.UnsupportedBlockFormat("never"), times=None)
    for number in range(10):
        with pytest.raises(errors.UnsupportedBlockFormat):
            await source.get(flights, f"k{number}")
    assert [number for number in range(10) if f"k{number}" in flights._memos] == [6, 7, 8, 9]


async def test_F10_a_joined_waiter_sees_the_outcome_of_the_run_it_waited_on(flights: Fly) -> None:
    async def nothing(fill: Fill) -> None:
        return None

    assert await flights.get("k", nothing) is None, "a None is a None that the fill returned"
    failing, go = 0, asyncio.Event()

    async def fill(fill: Fill) -> None:
        nonlocal failing
        failing += 1
        await go.wait()
        raise errors.RpcUnavailable(f"failure {failing}")

    tasks = [asyncio.create_task(flights.get("k", fill)) for _ in range(4)]
    await settle()
    go.set()
    assert [str(result) for result in await outcomes(tasks)] == ["failure 2"] * 4


def test_every_error_has_exactly_one_verdict() -> None:
    verdicts = {kind.code: judge(kind("x")) for kind in errors.ProofError.__subclasses__()}
    assert {code for code, verdict in verdicts.items() if verdict is Verdict.FAILURE} == {
        "RpcUnavailable",
        "InconsistentSource",
        "SelfCheckFailed",
        "MerkleError",
        "Internal",
    }
    assert {code for code, verdict in verdicts.items() if verdict is Verdict.STALL} == {"RequestTimeout"}
    permanent = [kind for kind in errors.ProofError.__subclasses__() if verdicts[kind.code] is Verdict.PERMANENT]
    assert permanent
    assert not [kind for kind in permanent if kind.retriable]
    assert judge(TimeoutError()) is Verdict.STALL
    assert judge(KeyError()) is Verdict.FAILURE


# --- the end of things ----------------------------------------------------------------------------------------------


async def test_F6_a_fill_killed_by_somebody_leaves_no_entry_and_its_waiters_are_served(
    flights: Fly, source: Source
) -> None:
    source.hold("fetch")
    tasks = several(source, flights, 3)
    await settle()
    (killed,) = flights._flying
    source.unhold()
    killed.cancel()
    assert await outcomes(tasks) == [("k", 2)] * 3
    assert await source.get(flights) == ("k", 3)


async def test_F6_a_fill_killed_twice_is_an_error_and_not_a_hang(flights: Fly, source: Source) -> None:
    source.hold("fetch")
    tasks = several(source, flights, 3)
    for _ in range(2):
        await settle()
        (killed,) = flights._flying
        killed.cancel()
    assert [type(result) for result in await outcomes(tasks)] == [errors.RpcUnavailable] * 3
    source.unhold()
    assert await source.get(flights) == ("k", 3)


async def test_F6_closing_tells_the_waiters_and_waits_for_the_work(clock: ManualClock) -> None:
    flights: Fly = Flights(clock)
    building, ended = asyncio.Event(), False

    async def fill(fill: Fill) -> None:
        nonlocal ended
        fill.enter(Stage.BUILDING)
        try:
            await asyncio.Event().wait()
        finally:
            await building.wait()
            ended = True

    tasks = [asyncio.create_task(flights.get("k", fill)) for _ in range(3)]
    await settle()
    closing = asyncio.create_task(flights.aclose())
    assert [type(result) for result in await outcomes(tasks)] == [errors.Draining] * 3
    assert (closing.done(), ended) == (False, False)
    building.set()
    await closing
    assert ended
    with pytest.raises(errors.Draining):
        await flights.get("k", fill)


async def test_F6_closing_reaches_runs_that_were_overtaken(clock: ManualClock, source: Source) -> None:
    flights: Fly = Flights(clock)
    source.hold("fetch")
    task = asyncio.create_task(source.get(flights))
    await settle()
    flights.invalidate(lambda key: True)
    await flights.aclose()
    with pytest.raises(errors.Draining):
        await task
    assert flights.fills == 1


async def test_F11_fills_are_kept_alive_and_no_exception_goes_unretrieved(clock: ManualClock, source: Source) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    flights: Fly = Flights(clock)
    held = source.hold("fetch")
    source.fail("fetch", down(), times=None)
    tasks = several(source, flights, 4)
    await held.reached()
    for task in tasks[:2]:
        task.cancel()
    gc.collect()
    held.release()
    await settle()
    tasks[2].cancel()  # in the turn in which it is told
    await outcomes(tasks)
    alone = asyncio.create_task(source.get(flights, "alone"))
    await settle(2)
    alone.cancel()
    await settle()
    del tasks, alone
    gc.collect()
    await settle()
    assert complaints == []
    assert not flights._flying


# --- reorgs ---------------------------------------------------------------------------------------------------------


async def test_F9_B44_a_fill_that_was_overtaken_is_not_landed_and_its_waiters_get_a_new_one(
    flights: Fly, source: Source
) -> None:
    held = source.hold("fetch")
    waiters = several(source, flights, 3)
    other = asyncio.create_task(source.get(flights, "other"))
    await held.reached()
    assert flights.invalidate(lambda key: key == "k") == 1
    assert ("k" in flights, "other" in flights) == (False, True)
    assert [fill.valid for fill in source.handles] == [False, True]
    held.release()
    assert await outcomes(waiters) == [("k", 3)] * 3
    assert await other == ("other", 2)
    assert sorted(source.landed) == [("k", 3), ("other", 2)]
    assert flights.overtaken == 1


async def test_F9_who_comes_after_the_reorg_does_not_join_a_fill_from_before(flights: Fly, source: Source) -> None:
    held = source.hold("fetch")
    before = asyncio.create_task(source.get(flights))
    await held.reached()
    flights.invalidate(lambda key: True)
    source.unhold()
    new = source.hold("build")
    after = asyncio.create_task(source.get(flights))
    await new.reached()
    source.unhold()
    held.release()
    await settle()
    new.release()
    assert await outcomes([before, after]) == [("k", 2)] * 2
    assert (source.landed, flights.fills) == ([("k", 2)], 2)


async def test_F9_an_epoch_that_moved_is_asked_for_before_landing(flights: Fly, source: Source) -> None:
    answers = iter([False, True])
    assert await source.get(flights, still_valid=lambda: next(answers)) == ("k", 2)
    assert source.landed == [("k", 2)]


async def test_F9_overtaken_again_is_a_retriable_error_that_is_not_remembered(flights: Fly, source: Source) -> None:
    with pytest.raises(errors.RpcUnavailable, match="chain changed"):
        await source.get(flights, still_valid=lambda: False)
    assert source.landed == []
    assert await source.get(flights) == ("k", 3)


async def test_F9_an_answer_about_the_old_chain_is_not_given(flights: Fly, source: Source) -> None:
    held = source.hold("fetch")
    source.fail("fetch", errors.BlockNotOnSourceChain("gone"))
    task = asyncio.create_task(source.get(flights))
    await held.reached()
    flights.invalidate(lambda key: True)
    held.release()
    assert await task == ("k", 2)


async def test_invalidation_forgets_what_was_remembered(flights: Fly, source: Source) -> None:
    source.fail("build", errors.UnsupportedBlockFormat("never"))
    await outcomes(several(source, flights, 1))
    flights.invalidate(lambda key: True)
    assert await source.get(flights) == ("k", 2)


# --- permits --------------------------------------------------------------------------------------------------------


def permitted(source: Source, permits: Permits) -> Callable[[Fill], Awaitable[Any]]:
    async def fill(fill: Fill) -> Any:
        permit = permits.hold(fill.priority)
        fill.on_promote(permit.promote)
        async with permit:
            return await source.fill("k")(fill)

    return fill


async def test_a_request_that_joins_a_backfill_fill_promotes_it(
    flights: Fly, source: Source, clock: ManualClock
) -> None:
    permits = Permits(FillBudget(2), clock)
    async with permits.hold(BACKFILL):
        fill = permitted(source, permits)
        backfill = asyncio.create_task(flights.get("k", fill, priority=BACKFILL))
        await settle()
        assert (permits.budget.waiting(BACKFILL), source.fetches) == (1, 0)
        request = asyncio.create_task(flights.get("k", fill))
        assert await outcomes([backfill, request]) == [("k", 1)] * 2
        assert (flights.promotions, source.handles[0].priority) == (1, REQUEST)
    assert permits.budget.running() == 0


async def test_P4_a_queued_fill_that_nobody_waits_for_takes_no_permit(
    flights: Fly, source: Source, clock: ManualClock
) -> None:
    permits = Permits(FillBudget(1), clock)
    async with permits.hold():
        task = asyncio.create_task(flights.get("k", permitted(source, permits)))
        await settle()
        assert permits.budget.waiting() == 1
        task.cancel()
        await settle()
        assert permits.budget.waiting() == 0
    assert (permits.budget.running(), source.fetches) == (0, 0)


async def test_F7_the_permit_is_held_until_the_work_has_ended_though_nobody_waits(
    flights: Fly, source: Source, clock: ManualClock
) -> None:
    permits = Permits(FillBudget(1), clock)
    built = source.hold("build")
    task = asyncio.create_task(flights.get("k", permitted(source, permits)))
    await built.reached()
    task.cancel()
    await settle()
    assert permits.budget.running() == 1
    built.release()
    await settle()
    assert permits.budget.running() == 0


async def test_a_backfill_run_may_be_created_again_by_a_request(flights: Fly, source: Source) -> None:
    held = source.hold("fetch")
    source.fail("fetch", down())
    tasks = several(source, flights, 1, priority=BACKFILL) + several(source, flights, 1)
    await held.reached()
    held.release()
    assert await outcomes(tasks) == [("k", 2)] * 2
    assert [fill.priority for fill in source.handles] == [REQUEST, REQUEST]


async def test_G2_after_any_mix_of_ends_every_gauge_is_at_its_start(clock: ManualClock) -> None:
    chance = random.Random(2)
    flights: Fly = Flights(clock, jitter=chance.random)
    permits = Permits(FillBudget(3, max_queued=6), clock)
    ends: Counter[str] = Counter()

    async def fill(fill: Fill) -> int:
        permit = permits.hold(fill.priority, cutoff=None)
        fill.on_promote(permit.promote)
        async with permit:
            fill.enter(Stage.FETCHING)
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            roll = chance.random()
            if roll < 0.2:
                raise errors.RpcUnavailable("down")
            if roll < 0.25:
                raise errors.UnsupportedBlockFormat("never")
            if roll < 0.3:
                raise ValueError("bug")
            if roll < 0.32:
                await asyncio.sleep(30)  # by the clock of this test: a stall
            return 1

    async def call() -> None:
        key = f"k{chance.randrange(40)}"
        cutoff, deadline = chance.choice([(None, None), (clock.now() + 1, clock.now() + 2), (None, clock.now() + 1)])
        try:
            await flights.get(key, fill, priority=chance.choice([REQUEST, BACKFILL]), cutoff=cutoff, deadline=deadline)
            ends["value"] += 1
        except errors.ProofError as error:
            ends[error.code] += 1
        except asyncio.CancelledError:
            ends["cancelled"] += 1

    tasks: dict[asyncio.Task[None], None] = {}  # a set would make the order, and so the run, another one each time
    for _ in range(20_000):
        roll = chance.random()
        if roll < 0.3:
            task = asyncio.create_task(call())
            tasks[task] = None
            task.add_done_callback(tasks.pop)
        elif roll < 0.4 and tasks:
            chance.choice(tuple(tasks)).cancel()
        elif roll < 0.42:
            clock.move(1.0)
        elif roll < 0.425:
            flights.invalidate(lambda key: key.endswith("7"))
        else:
            await asyncio.sleep(0)
    while tasks:
        clock.move(1.0)
        await asyncio.sleep(0)
    for _ in range(40):
        await clock.advance(1.0)
    assert (len(flights), flights.waiting, flights._flying) == (0, 0, {})
    assert (permits.budget.running(), permits.budget.waiting()) == (0, 0)
    assert {
        "value",
        "cancelled",
        "RpcUnavailable",
        "RequestTimeout",
        "Internal",
        "UnsupportedBlockFormat",
    } <= ends.keys()
