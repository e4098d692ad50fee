"""Backfill: what nobody asked for, newest first, with permits to spare, each block once, through outages, reorgs and deaths."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

from app.anchors.self_attested import SelfAttested
from app.chain.backfill import HISTORY_MEMORY_S, RANGE_PAUSES_S, Backfill, Outcome, State
from app.chain.figures import Figures
from app.chain.rules import FinalityRule
from app.chain.supervision import Loop, supervise
from app.core.blocks import BlockBodies, BlockRef, Noted
from app.core.budget import Priority
from app.core.errors import HistoryUnavailable, NotFinalized, ProofError, RpcUnavailable, UpstreamBudgetExhausted
from app.core.gaps import Window
from app.core.lasting import StoreUnavailable
from app.core.resting import asleep
from app.core.setbacks import LONGEST_PAUSE_S
from app.store.memory import MemoryLedger
from tests.chain.recorded_chain import (
    FIRST,
    LAST,
    RecordedChain,
    bodies_of,
    branch,
    from_hex,
    hash_of,
    sepolia,
    with_unmet_receipts,
)
from tests.fakes import Hold, HoldPoints, settle

T = TypeVar("T")

TURNS = 1500
"""Enough for every block there is to be filled."""

REQUEST, BACKFILL = Priority.REQUEST, Priority.BACKFILL


class Scene(RecordedChain):
    """A chain whose backfill remembers in `ledger`."""

    def __init__(
        self, first: int = FIRST, last: int = LAST, *, ledger: MemoryLedger | None = None, **more: Any
    ) -> None:
        self.ledger = MemoryLedger() if ledger is None else ledger
        chosen = {"backfill": True, "retention_blocks": last - first + 1, **more}
        super().__init__(first, last, ledger=self.ledger, **chosen)
        assert self.chain.backfill is not None
        self.backfill: Backfill = self.chain.backfill

    @contextlib.asynccontextmanager
    async def backfilling(self) -> AsyncIterator[None]:
        """The worker alone, without those who see it die."""
        async with running(self.backfill.run):
            yield
        await self.chain.aclose()

    async def at_full_width(self) -> Hold:
        """Backfill has found that nothing waits for it: it holds as many permits as it may, at the start of its fetches."""
        await self.see(LAST, finalized=LAST - 10)
        await settle(TURNS)
        hold = self.upstream.hold("fetch")
        await self.see(LAST, finalized=LAST)
        await settle(TURNS)
        return hold

    def built(self) -> list[int]:
        """The heights that were built, in the order in which that began."""
        return [request.height for request in self.builder.requests if request.height is not None]

    def asking(self, *heights: int) -> list[asyncio.Task[Any]]:
        """Requests for blocks."""
        return [asyncio.create_task(self.at(height)) for height in heights]

    @property
    def running(self) -> tuple[int, int]:
        """Permits held for requests, and for backfill."""
        budget = self.chain.permits.budget
        return budget.running(REQUEST), budget.running(BACKFILL)


@contextlib.asynccontextmanager
async def running(body: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """A loop for the length of a `with`. It must not end by itself."""
    task = asyncio.ensure_future(body())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def down_from(high: int, low: int) -> list[int]:
    return list(range(high, low - 1, -1))


def fills(made: RecordedChain) -> dict[str, int]:
    """Calls since the last time, those of the head left out."""
    return {point: calls for point, calls in made.calls().items() if point != "tagged"}


# --- which heights --------------------------------------------------------------------------------------------------


async def test_the_window_is_filled_newest_first_and_each_block_once() -> None:
    made = Scene(retention_blocks=20, max_fills=2)
    await made.see(LAST, finalized=LAST)
    async with made.backfilling():
        await settle(TURNS)
        assert made.built() == down_from(LAST, LAST - 19)
        assert fills(made) == {"fetch": 20, "build": 20, "name_of": 1}  # the genesis, once
        assert (made.backfill.state, made.backfill.window) == (State.CAUGHT_UP, Window(LAST - 19, LAST))
        assert await made.at(LAST - 19)
        assert fills(made) == {}
        assert made.at_rest()
    assert await made.ledger.done() == ((LAST - 19, LAST),)


async def test_P7_nothing_above_the_finalized_height_is_fetched() -> None:
    made = Scene(retention_blocks=4)
    async with made.backfilling():
        await settle(TURNS)
        assert made.backfill.state is State.WAITING
        await made.see(LAST, finalized=FIRST + 3)
        await settle(TURNS)
        assert made.built() == down_from(FIRST + 3, FIRST)
        await made.see(LAST, safe=LAST - 1, finalized=FIRST + 6)
        await settle(TURNS)
        assert made.built()[4:] == down_from(FIRST + 6, FIRST + 4)


async def test_P7_a_reorg_below_the_cursor_moves_it_back_and_what_took_its_place_is_filled() -> None:
    made = Scene(FIRST, FIRST + 10, retention_blocks=5, finality=FinalityRule("depth", 0))
    await made.see(FIRST + 9)
    async with made.backfilling():
        await settle(TURNS)
        assert made.backfill.lowest == FIRST + 5
        replaced = branch(FIRST + 9, [sepolia(FIRST + 30), sepolia(FIRST + 31)])
        made.reorg(replaced)
        made.builder.requests.clear()
        await made.see(FIRST + 10)
        await settle(TURNS)
        assert made.built() == [FIRST + 10, FIRST + 9]
        assert (await made.at(FIRST + 9)).block_hash == hash_of(replaced[0])
    assert await made.ledger.done() == ((FIRST + 6, FIRST + 10),)


async def test_P7_a_block_that_a_reorg_overtook_in_flight_is_not_taken_for_done() -> None:
    made = Scene(FIRST, FIRST + 3, retention_blocks=1, finality=FinalityRule("depth", 0))
    await made.see(FIRST + 3)
    hold = made.builder.hold("build")
    async with made.backfilling():
        await hold.reached()
        made.builder.unhold()
        replaced = branch(FIRST + 3, [sepolia(FIRST + 30)])
        made.reorg(replaced)
        made.chain._on_reorg(FIRST + 3)
        hold.release()
        await settle(TURNS)
        await made.clock.advance(2)
        await settle(TURNS)
        assert made.backfill.state is State.CAUGHT_UP
        assert made.chain.cache.hash_at(FIRST + 3) == hash_of(replaced[0])


async def test_P7_a_reorg_while_a_block_is_noted_leaves_it_neither_noted_nor_done() -> None:
    ledger = StoppingLedger()
    made = Scene(FIRST, FIRST + 3, retention_blocks=2, ledger=ledger, finality=FinalityRule("depth", 0))
    await made.see(FIRST + 3)
    hold = ledger.points.hold("note")
    async with made.backfilling():
        await hold.reached()
        ledger.points.unhold()
        replaced = branch(FIRST + 3, [sepolia(FIRST + 30)])
        made.reorg(replaced)
        made.chain._on_reorg(FIRST + 3)
        made.upstream.fail("fetch", RpcUnavailable("down"), times=None)
        await settle()
        hold.release()
        await settle(TURNS)
        assert await ledger.done() == (), "what a restart would believe"
        made.upstream.heal()
        await made.clock.advance(LONGEST_PAUSE_S)
        await settle(TURNS)
        assert made.built().count(FIRST + 3) == 2
        assert made.backfill.state is State.CAUGHT_UP
        assert ledger.noted == [hash_of(sepolia(FIRST + 3)), hash_of(replaced[0]), hash_of(sepolia(FIRST + 2))]
        assert await ledger.done() == ((FIRST + 2, FIRST + 3),)


class StoppingLedger(MemoryLedger):
    """A ledger that can be held while it notes or forgets. Points: `note`, `forget_from`."""

    def __init__(self) -> None:
        super().__init__()
        self.points = HoldPoints()
        self.noted: list[bytes | None] = []

    async def note(self, blocks: Sequence[Noted]) -> None:
        await self.points.at("note")
        self.noted += [block.block_hash for block in blocks]
        await super().note(blocks)

    async def forget_from(self, height: int) -> None:
        await self.points.at("forget_from")
        await super().forget_from(height)


async def test_a_gap_in_what_is_remembered_is_filled_and_nothing_else() -> None:
    ledger = MemoryLedger()
    for height in [*range(FIRST, FIRST + 20), *range(FIRST + 23, LAST - 1)]:
        await ledger.note([Noted(height, bytes(32))])
    made = Scene(ledger=ledger, max_fills=2, retention_blocks=40)
    await made.see(LAST, finalized=LAST)
    async with made.backfilling():
        await settle(TURNS)
    assert made.built() == [LAST, LAST - 1]
    assert await ledger.done() == ((LAST - 39, LAST),)


async def test_a_block_at_hand_is_not_fetched_again() -> None:
    made = Scene(retention_blocks=3)
    await made.see(LAST, finalized=FIRST)
    await made.at(LAST)
    await made.see(LAST, finalized=LAST)
    made.calls()
    async with made.backfilling():
        await settle(TURNS)
    assert made.calls() == {"fetch": 2, "build": 2, "name_of": 1}, "what was not final yet is asked for by name only"


async def test_the_genesis_of_the_anchors_is_the_end() -> None:
    made = Scene(anchors=SelfAttested(7, LAST - 4, 2, 2))
    await made.see(LAST, finalized=LAST)
    async with made.backfilling():
        await settle(TURNS)
    assert made.built() == down_from(LAST, LAST - 4)


async def test_no_backfill_is_no_backfill_and_the_retention_holds_all_the_same() -> None:
    made = Scene(backfill=False, retention_blocks=5)
    await made.see(LAST, finalized=FIRST + 20)
    await made.at(FIRST + 10)
    await made.at(FIRST + 18)
    async with made.backfilling():
        await settle(TURNS)
        assert (made.backfill.state, made.backfill.remaining) == (State.OFF, 0)
        assert made.chain.cache.entries == 1
        assert made.built() == [FIRST + 10, FIRST + 18]


# --- permits --------------------------------------------------------------------------------------------------------


async def test_P2_a_request_starts_within_one_turn_while_backfill_has_its_share() -> None:
    made = Scene(max_fills=4, retention_blocks=20)
    async with made.backfilling():
        hold = await made.at_full_width()
        assert (made.running, hold.waiting) == ((0, 3), 3)
        asked = made.asking(FIRST)
        await settle(3)
        assert (made.running, hold.waiting) == ((1, 3), 4)
        hold.release()
        await asyncio.gather(*asked)


async def test_P2_P3_with_the_reserve_in_use_a_request_goes_before_any_further_backfill() -> None:
    made = Scene(max_fills=2)
    await made.see(LAST, finalized=LAST)
    hold = made.builder.hold("build")
    async with made.backfilling():
        await hold.reached()
        made.builder.unhold()
        later = made.builder.hold("build")
        asked = made.asking(FIRST, FIRST + 1)
        await settle()
        assert (made.running, made.chain.permits.budget.waiting()) == ((1, 1), 1)
        hold.release()  # the backfill fill ends
        await settle(100)
        assert made.running == (2, 0), "its permit went to the request that waited"
        assert sorted(made.built()) == [FIRST, FIRST + 1, LAST]
        later.release()
        await asyncio.gather(*asked)
        await settle(TURNS)
        assert made.backfill.state is State.CAUGHT_UP


async def test_P3_backfill_starves_while_requests_wait_and_resumes_at_once_when_none_does() -> None:
    made = Scene(max_fills=2, max_queued_fills=20)
    await made.see(LAST, finalized=LAST)
    hold = made.builder.hold("build")
    asked = made.asking(*range(FIRST, FIRST + 12))
    await settle()
    before = made.clock.now()
    async with made.backfilling():
        await settle(200)
        assert made.running == (2, 0)
        assert max(made.built()) < FIRST + 12
        hold.release()
        await asyncio.gather(*asked)
        in_turn = made.built()[:12]
        assert sorted(in_turn) == list(range(FIRST, FIRST + 12)), "no backfill between them"
        await settle(TURNS)
        assert made.clock.now() == before, "P3: within 1 s, and no time has passed"
        assert made.backfill.state is State.CAUGHT_UP
    assert len(made.built()) == len(set(made.built())) == LAST - FIRST + 1


def anchoring(made: RecordedChain) -> contextlib.AbstractAsyncContextManager[None]:
    """The loop that makes the anchors."""
    assert made.chain._background._anchoring is not None
    return running(made.chain._background._anchoring.run)


async def test_P1_backfill_never_has_more_than_its_share_and_never_waits_in_numbers() -> None:
    made = Scene(max_fills=8, anchors=SelfAttested(7, FIRST, 10, 10))
    await made.see(LAST, finalized=LAST)
    budget, peak, fetch = made.chain.permits.budget, 0, made.upstream.fetch

    async def slow(ref: BlockRef, accept: Callable[[BlockBodies], Awaitable[T]]) -> T:
        await settle(10)
        return await fetch(ref, accept)

    made.upstream.fetch = slow  # type: ignore[method-assign]
    async with made.backfilling(), anchoring(made):
        for _ in range(TURNS):
            await asyncio.sleep(0)
            peak = max(peak, budget.running(BACKFILL))
            assert budget.running(BACKFILL) <= 6
            assert budget.waiting(BACKFILL) <= budget.limit
    assert peak == 6
    assert made.chain.permits.refused.total() == 0


async def test_P3_all_that_waits_while_requests_have_every_permit_has_its_place_in_the_line() -> None:
    made = Scene(max_fills=2, anchors=SelfAttested(7, FIRST + 10, 10, 10))
    await made.see(LAST, finalized=LAST)
    hold = made.upstream.hold("fetch")
    asked = made.asking(FIRST, FIRST + 1)
    await settle()
    async with anchoring(made), made.backfilling():
        await settle()
        budget = made.chain.permits.budget
        assert (made.running, budget.waiting(BACKFILL)) == ((2, 0), 2)
        hold.release()
        await asyncio.gather(*asked)
        await settle(TURNS)
        assert (made.backfill.remaining, made.chain.permits.refused.total()) == (0, 0)


@pytest.mark.parametrize("max_fills", [1, 2, 16])
async def test_anchors_and_backfill_share_the_permits_and_the_blocks(max_fills: int) -> None:
    anchors = SelfAttested(7, FIRST, 10, 10)
    made = Scene(anchors=anchors, max_fills=max_fills)
    await made.see(LAST, finalized=LAST)
    made.calls()
    async with made.backfilling(), anchoring(made):
        await settle(TURNS)
    assert (anchors.attested_height, made.backfill.remaining) == (FIRST + 60, 0)
    assert fills(made) == {"fetch": 64, "build": 64}


async def test_beside_the_fill_of_a_request_there_is_one_of_backfill_at_a_time() -> None:
    made = Scene(max_fills=8, retention_blocks=20)
    await made.see(LAST, finalized=FIRST + 20)
    async with made.backfilling():
        await settle(TURNS)
        hold = made.upstream.hold("fetch")
        asked = made.asking(LAST)
        await hold.reached()
        await made.see(LAST, finalized=LAST - 1)
        await settle(TURNS)
        assert made.running == (1, 1)
        hold.release()
        await asyncio.gather(*asked)
        await settle(TURNS)
        assert made.backfill.state is State.CAUGHT_UP


async def test_backfill_is_narrowed_while_builds_wait_and_widens_again() -> None:
    made = Scene(max_fills=8, retention_blocks=20)
    made.builder.waiting = 1
    await made.see(LAST, finalized=FIRST + 20)
    async with made.backfilling():
        await settle(TURNS)
        hold = made.upstream.hold("fetch")
        await made.see(LAST, finalized=FIRST + 40)
        await settle(TURNS)
        assert made.running == (0, 1)
        made.builder.waiting = 0
        made.upstream.unhold()
        hold.release()
        await settle(TURNS)
        made.upstream.hold("fetch")
        await made.see(LAST, finalized=LAST)
        await settle(TURNS)
        assert made.running == (0, 6)


async def test_a_request_that_joins_a_backfill_fill_makes_it_its_own() -> None:
    made = Scene(max_fills=4, retention_blocks=20)
    async with made.backfilling():
        hold = await made.at_full_width()
        assert made.running == (0, 3)
        asked = made.asking(LAST - 1, LAST - 1)
        await settle()
        assert (made.running, hold.waiting) == ((1, 2), 3)
        hold.release()
        assert [block.height for block in await asyncio.gather(*asked)] == [LAST - 1] * 2
        assert made.built().count(LAST - 1) == 1
        assert made.chain.filling.flights.promotions == 1


async def test_a_request_that_joins_a_backfill_fill_in_the_queue_takes_it_to_the_reserve() -> None:
    made = Scene(max_fills=2, anchors=SelfAttested(7, LAST - 1, 1, 10))
    await made.see(LAST, finalized=LAST)
    hold = made.upstream.hold("fetch")
    async with made.backfilling(), anchoring(made):
        await settle()
        budget = made.chain.permits.budget
        assert (made.running, budget.waiting(BACKFILL), hold.waiting) == ((0, 1), 1, 1)
        asked = made.asking(LAST - 1)
        await settle()
        assert (made.running, budget.waiting(), hold.waiting) == ((1, 1), 0, 2)
        hold.release()
        await asyncio.gather(*asked)
        await settle(TURNS)
        assert sorted(made.built()) == [LAST - 1, LAST]


async def test_P6_a_fill_that_sleeps_between_attempts_holds_no_permit() -> None:
    made = Scene(FIRST, FIRST + 3, max_fills=1)
    await made.see(FIRST + 3, finalized=FIRST + 3)
    fetch, slept = made.upstream.fetch, asyncio.Event()

    async def limited(ref: BlockRef, accept: Callable[[BlockBodies], Awaitable[T]]) -> T:
        if ref.height == FIRST + 3 and not slept.is_set():
            async with asleep():  # as the pauses of the real upstream do
                await slept.wait()
        return await fetch(ref, accept)

    made.upstream.fetch = limited  # type: ignore[method-assign]
    async with made.backfilling():
        await settle()
        assert (made.running, made.chain.permits.budget.waiting(), len(made.chain.filling.flights)) == ((0, 0), 0, 1)
        assert (await made.at(FIRST)).height == FIRST, "a request had the only permit meanwhile"
        slept.set()
        await settle(TURNS)
        assert made.backfill.state is State.CAUGHT_UP
        assert made.at_rest()


# --- failures -------------------------------------------------------------------------------------------------------

OUTAGES: list[ProofError] = [RpcUnavailable("down"), UpstreamBudgetExhausted("spent")]


@pytest.mark.parametrize("error", OUTAGES, ids=lambda error: error.code)
async def test_B22_an_outage_of_two_minutes_is_survived_without_a_gap_and_with_few_calls(error: ProofError) -> None:
    made = Scene(retention_blocks=40)
    await made.see(LAST, finalized=LAST)
    async with made.backfilling():
        made.upstream.fail("fetch", error, times=None)
        await settle(TURNS)
        for _ in range(240):
            await made.clock.advance(0.5)
            assert made.running == (0, 0), "P6: back-off holds nothing"
        assert made.backfill.last_error == error.code
        assert made.backfill.state is (State.SPENT if isinstance(error, UpstreamBudgetExhausted) else State.FAILING)
        assert made.upstream.hits["fetch"] < 100
        made.upstream.heal()
        made.builder.requests.clear()
        await made.clock.advance(LONGEST_PAUSE_S)
        await settle(TURNS)
        assert made.backfill.state is State.CAUGHT_UP
        assert sorted(made.built(), reverse=True) == down_from(LAST, LAST - 39)


async def test_B22_a_null_window_of_two_minutes_ends_at_the_same_blocks() -> None:
    """The node has the blocks and answers null for their receipts: blocks without transactions need none."""
    made = Scene(retention_blocks=10, max_fills=2)
    last = 175_884
    lacking = [height for height in down_from(last, last - 9) if sepolia(height)["block"]["transactions"]]
    give(made, (without_receipts(sepolia(height)) for height in range(FIRST, LAST + 1)))
    await made.see(last, finalized=last)
    async with made.backfilling():
        await settle(TURNS)
        for _ in range(240):
            await made.clock.advance(0.5)
        assert (made.backfill.state, made.backfill.remaining) == (State.FAILING, len(lacking)) == (State.FAILING, 6)
        tried = set(made.built())
        give(made, (bodies_of(sepolia(height)) for height in range(FIRST, LAST + 1)))
        made.builder.requests.clear()
        await made.clock.advance(LONGEST_PAUSE_S)
        await settle(TURNS)
        assert made.backfill.remaining == 0
        assert made.built()[0] in tried
        assert sorted(made.built(), reverse=True) == lacking, "each once, none left out"


async def test_one_block_that_cannot_be_had_does_not_keep_the_others() -> None:
    made = Scene(retention_blocks=30)
    broken = FIRST + 41
    give(made, [bodies_of(with_unmet_receipts(sepolia(broken)))])
    await made.see(LAST, finalized=LAST)
    async with made.backfilling():
        await settle(TURNS)
        assert (made.backfill.state, made.backfill.remaining) == (State.FILLING, 1)
        assert made.built().count(broken) == 1
        await made.clock.advance(60)  # the memory of a block with unmet receipts
        give(made, [bodies_of(sepolia(broken))])
        await made.clock.advance(60)
        await settle(TURNS)
        assert made.backfill.state is State.CAUGHT_UP


async def test_a_block_that_is_refused_for_good_is_done() -> None:
    made = Scene(retention_blocks=5)
    strange = sepolia(LAST - 1)
    strange["block"] |= {"futureRoot": "0x" + "11" * 32, "hash": "0x" + "22" * 32}
    made.put(strange)
    await made.see(LAST, finalized=LAST)
    async with made.backfilling():
        await settle(TURNS)
        for _ in range(5):
            await made.clock.advance(600)
        assert made.backfill.state is State.CAUGHT_UP
        assert fills(made) == {"fetch": 5, "build": 5, "name_of": 1}  # the genesis, once
    assert await made.ledger.done() == ((LAST - 4, LAST),)


async def test_below_the_history_that_nodes_keep_nothing_is_asked_for_until_an_hour_has_passed() -> None:
    made = Scene(FIRST, FIRST + 9, max_fills=2)
    fetch, pruned = made.upstream.fetch, FIRST + 5

    async def keeping(ref: BlockRef, accept: Callable[[BlockBodies], Awaitable[T]]) -> T:
        if ref.height is not None and ref.height <= pruned:
            made.upstream.hits["pruned"] += 1
            raise HistoryUnavailable("the node keeps no block that old")
        return await fetch(ref, accept)

    made.upstream.fetch = keeping  # type: ignore[method-assign]
    await made.see(FIRST + 9, finalized=FIRST + 8)
    async with made.backfilling():
        await settle(TURNS)
        assert made.built() == down_from(FIRST + 8, FIRST + 6)
        assert (made.backfill.state, made.upstream.hits["pruned"]) == (State.CAUGHT_UP, 1)
        pruned = FIRST - 1
        made.clock.move(HISTORY_MEMORY_S)
        await made.see(FIRST + 9, finalized=FIRST + 9)
        await settle(TURNS)
        assert made.built()[3:] == [FIRST + 9, *down_from(FIRST + 5, FIRST)]


def give(made: RecordedChain, bodies: Iterable[BlockBodies]) -> None:
    """From now on the node gives these."""
    for each in bodies:
        made.upstream.bodies[name_of_bodies(each)] = [each]


def name_of_bodies(bodies: BlockBodies) -> bytes:
    return from_hex(json.loads(bodies.block_json)["hash"])


def without_receipts(record: dict[str, Any]) -> BlockBodies:
    bodies = bodies_of(record)
    return BlockBodies(bodies.upstream, bodies.block_json, None, "the node answers null for the receipts")


# --- bytes and time -------------------------------------------------------------------------------------------------


async def test_what_falls_out_of_the_window_is_pruned() -> None:
    made = Scene(retention_blocks=5)
    await made.see(LAST, finalized=FIRST + 10)
    await made.at(FIRST)  # asked for below the window: it stays until the next time that is looked after
    async with made.backfilling():
        await settle(TURNS)
        await made.see(LAST, finalized=FIRST + 13)
        await settle(TURNS)
        held = [made.chain.cache.hash_at(height) for height in range(FIRST + 9, FIRST + 14)]
        assert made.chain.cache.entries == 5
        assert all(block_hash and made.chain.cache.peek(block_hash) for block_hash in held)
        assert made.chain.cache.evictions["retention"] == 4
        assert await made.ledger.done() == ((FIRST + 9, FIRST + 13),)


async def test_B48_a_budget_of_bytes_narrows_the_window_and_no_block_is_filled_twice() -> None:
    made = Scene(cache_bytes=120_000, retention_blocks=None, anchor_interval=2)
    await made.see(LAST, finalized=FIRST + 30)
    async with made.backfilling():
        await settle(TURNS)
        narrow = made.backfill.window
        assert 2 < narrow.size < 30
        assert made.backfill.state is State.CAUGHT_UP
        for finalized in range(FIRST + 31, LAST + 1):
            await made.see(LAST, finalized=finalized)
            await settle(200)
            assert made.chain.cache.size_bytes <= 120_000
        assert made.backfill.state is State.CAUGHT_UP
        assert made.chain.cache.evictions["retention"] > 0
        assert made.chain.cache.evictions["capacity"] == 0, "filled and evicted in turn"
    assert len(made.built()) == len(set(made.built()))


async def test_B48_requests_below_the_window_keep_their_blocks_as_long_as_there_is_room() -> None:
    made = Scene(cache_bytes=200_000, retention_blocks=None, max_fills=2)
    await made.see(LAST, finalized=LAST - 5)
    asked = [(await made.at(FIRST)).block_hash, (await made.at(FIRST + 1)).block_hash]
    async with made.backfilling():
        await settle(TURNS)
        for finalized in range(LAST - 4, LAST + 1):
            await made.see(LAST, finalized=finalized)
            await settle(200)
        assert made.backfill.window.low > FIRST + 1
        assert all(made.chain.cache.peek(block_hash) for block_hash in asked)


async def test_B48_hot_misses_and_backfill_share_the_fills_and_the_bytes() -> None:
    made = Scene(cache_bytes=400_000, max_fills=4)
    await made.see(LAST, finalized=LAST)
    async with made.backfilling():
        for height in range(FIRST, FIRST + 20):
            await made.at(height)
            await settle(5)
        await settle(TURNS)
        assert made.chain.cache.size_bytes <= 400_000
        assert made.backfill.state is State.CAUGHT_UP
    assert len(made.built()) == len(set(made.built()))
    counted = {kind: made.metric("fill_total", chain="sepolia", result="ok", **{"class": kind}) for kind in Priority}
    assert sum(filter(None, counted.values())) == len(made.built())
    assert all(counted.values()), "both of them were at work"


# --- a range that somebody waits for --------------------------------------------------------------------------------


class Told:
    """What was said of each height, and how long was paused."""

    def __init__(self, made: RecordedChain) -> None:
        self.clock = made.clock
        self.heights: list[int] = []
        self.outcomes: dict[int, tuple[Outcome, str]] = {}
        self.pauses: list[float] = []

    def __call__(self, height: int, outcome: Outcome, code: str) -> None:
        self.heights.append(height)
        self.outcomes[height] = (outcome, code)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.move(seconds)


async def test_a_range_is_filled_newest_first_and_what_is_done_is_left_alone() -> None:
    made = Scene(max_fills=2, backfill=False)
    told = Told(made)
    await made.see(LAST, finalized=LAST)
    await made.ledger.note([Noted(FIRST + 4, bytes(32))])
    await made.backfill.fill_range(FIRST + 2, FIRST + 6, told, pause=told.pause)
    assert told.heights == down_from(FIRST + 6, FIRST + 2)
    assert [told.outcomes[height][0] for height in told.heights] == ["filled", "filled", "known", "filled", "filled"]
    assert made.built() == [FIRST + 6, FIRST + 5, FIRST + 3, FIRST + 2]
    assert await made.ledger.done() == ((FIRST + 2, FIRST + 6),)
    assert (told.pauses, made.at_rest()) == ([], True)


async def test_a_height_of_a_range_is_tried_a_few_times_and_then_failed() -> None:
    made = Scene()
    told = Told(made)
    give(made, [without_receipts(sepolia(LAST))])
    await made.see(LAST, finalized=LAST)
    made.upstream.fail("fetch", RpcUnavailable("down"), times=2)
    await made.backfill.fill_range(LAST, LAST, told, pause=told.pause)
    assert told.outcomes == {LAST: (Outcome.FAILED, "InconsistentSource")}
    assert told.pauses == list(RANGE_PAUSES_S)
    assert await made.ledger.done() == ()


async def test_what_is_refused_for_good_is_done_and_what_no_node_keeps_is_not() -> None:
    made = Scene()
    told = Told(made)
    strange = sepolia(LAST)
    strange["block"] |= {"futureRoot": "0x" + "11" * 32, "hash": "0x" + "22" * 32}
    made.put(strange)
    await made.see(LAST, finalized=LAST)
    await made.backfill.fill_range(LAST, LAST, told, pause=told.pause)
    made.upstream.fail("fetch", HistoryUnavailable("the node keeps no block that old"), times=None)
    await made.backfill.fill_range(FIRST, FIRST, told, pause=told.pause)
    assert told.outcomes == {
        LAST: (Outcome.REFUSED, "UnsupportedBlockFormat"),
        FIRST: (Outcome.FAILED, "HistoryUnavailable"),
    }
    assert told.pauses == []
    assert await made.ledger.done() == ((LAST, LAST),)


async def test_P7_a_range_that_is_not_final_is_refused_whole() -> None:
    made = Scene()
    told = Told(made)
    with pytest.raises(NotFinalized):
        await made.backfill.fill_range(FIRST, FIRST + 3, told)
    await made.see(LAST, finalized=FIRST + 2)
    with pytest.raises(NotFinalized, match=str(FIRST + 2)):
        await made.backfill.fill_range(FIRST, FIRST + 3, told)
    assert (told.heights, made.built()) == ([], [])


# --- life and death -------------------------------------------------------------------------------------------------


async def test_it_is_not_caught_up_with_what_it_has_not_heard_of() -> None:
    made = Scene(retention_blocks=20)
    await made.see(LAST, finalized=LAST - 5)
    assert made.backfill.state is State.FILLING
    async with made.backfilling():
        await settle(TURNS)
        assert made.backfill.state is State.CAUGHT_UP
        await made.see(LAST, finalized=LAST)
        assert made.backfill.state is State.FILLING
        await settle(TURNS)
        assert made.backfill.state is State.CAUGHT_UP


async def test_B54_a_backfill_that_dies_is_seen_and_begins_again_where_it_was() -> None:
    ledger = StoppingLedger()
    made = Scene(ledger=ledger, retention_blocks=20)
    made.upstream.tags = {"latest": LAST, "safe": LAST, "finalized": LAST}
    ledger.points.fail("note", RuntimeError("a fault of ours"), times=None)
    async with asyncio.TaskGroup() as group:
        life = group.create_task(made.chain.run())
        await settle(TURNS)
        assert made.metric("task_up", name="backfill:sepolia") == 0
        assert made.metric("task_up", name="head:sepolia") == 1, "it takes nobody with it"
        assert "background loop backfill:sepolia is down" in made.chain.reasons
        assert made.at_rest()
        assert (await made.at(LAST)).height == LAST
        ledger.points.heal()
        await made.clock.advance(1)
        await settle(TURNS)
        assert made.metric("task_up", name="backfill:sepolia") == 1
        assert made.backfill.state is State.CAUGHT_UP
        life.cancel()
    assert len(made.built()) == len(set(made.built())), "what had landed was at hand"
    await made.chain.aclose()


async def test_B54_a_reorg_that_the_ledger_could_not_be_told_of_is_not_forgotten() -> None:
    ledger = StoppingLedger()
    made = Scene(FIRST, FIRST + 3, retention_blocks=2, ledger=ledger, finality=FinalityRule("depth", 0))
    await made.see(FIRST + 3)
    async with running(lambda: supervise(Loop("backfill:sepolia"), made.backfill.run, made.metrics)):
        await settle(TURNS)
        ledger.points.fail("forget_from", StoreUnavailable("the store is gone"))
        replaced = branch(FIRST + 3, [sepolia(FIRST + 30)])
        made.reorg(replaced)
        made.chain._on_reorg(FIRST + 3)
        await settle(TURNS)
        assert hash_of(replaced[0]) not in ledger.noted
        assert made.metric("task_up", name="backfill:sepolia") == 1, "it waits for its store"
        await made.clock.advance(1)
        await settle(TURNS)
        assert ledger.noted[-1] == hash_of(replaced[0])
        assert await ledger.done() == ((FIRST + 2, FIRST + 3),)
    await made.chain.aclose()


async def test_a_backfill_that_is_told_to_end_leaves_nothing_behind() -> None:
    made = Scene(max_fills=4)
    await made.see(LAST, finalized=LAST)
    hold = made.upstream.hold("fetch")
    async with made.backfilling():
        await hold.reached()
    assert made.at_rest()


async def test_progress_is_shown() -> None:
    made = Scene(retention_blocks=10, max_fills=2)
    made.metrics.before_scrape(Figures(made.chain, made.metrics).publish)
    assert listed(made) == {
        "state": "waiting for a finalized height",
        "window": None,
        "remaining": None,
        "lowest": None,
    }
    await made.see(LAST, finalized=LAST)
    hold = made.upstream.hold("fetch")
    async with made.backfilling():
        await hold.reached()
        assert listed(made) == {"state": "filling", "window": [LAST - 9, LAST], "remaining": 10, "lowest": None}
        hold.release()
        await settle(TURNS)
        assert listed(made) == {
            "state": "caught up",
            "window": [LAST - 9, LAST],
            "remaining": 0,
            "lowest": LAST - 9,
        }
        assert made.metrics.exposition(None)
        assert made.metric("backfill_remaining_blocks", chain="sepolia") == 0
        assert made.metric("backfill_lowest_height", chain="sepolia") == LAST - 9


async def test_an_outage_is_shown_with_its_code() -> None:
    made = Scene(retention_blocks=10)
    made.upstream.fail("fetch", RpcUnavailable("down"), times=None)
    await made.see(LAST, finalized=LAST)
    async with made.backfilling():
        await settle(TURNS)
        assert (listed(made)["state"], listed(made)["error"]) == ("failing", "RpcUnavailable")


def test_a_chain_without_a_ledger_says_that_its_backfill_is_off() -> None:
    async def said() -> Any:
        return listed(RecordedChain(FIRST, FIRST))

    assert asyncio.run(said()) == {"state": "off", "window": None, "remaining": 0, "lowest": None}


def listed(made: RecordedChain) -> Any:
    return made.chain.status()["backfill"]


async def test_what_one_of_two_nodes_refuses_is_not_done() -> None:
    made = Scene()
    told = Told(made)
    strange, broken = sepolia(LAST), sepolia(LAST)
    strange["block"] |= {"futureRoot": "0x" + "11" * 32, "gasUsed": "0x1"}
    broken["block"]["gasUsed"] = "0x1"
    made.put(strange, bodies_of(broken, "other"))
    await made.see(LAST, finalized=LAST)
    await made.backfill.fill_range(LAST, LAST, told, pause=told.pause)
    assert told.outcomes == {LAST: (Outcome.FAILED, "InconsistentSource")}
    assert await made.ledger.done() == ()
    made.put(strange, bodies_of(sepolia(LAST), "other"))
    made.clock.move(60)
    await made.backfill.fill_range(LAST, LAST, told, pause=told.pause)
    assert told.outcomes == {LAST: (Outcome.FILLED, "")}
    assert await made.ledger.done() == ((LAST, LAST),)
