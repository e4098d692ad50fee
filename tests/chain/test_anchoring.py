"""The background work of one chain: its head is followed, what became final is anchored, and both survive bad weather."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from app.anchors.ports import AnchorRow
from app.anchors.self_attested import SelfAttested
from app.core.blocks import BlockRef
from app.core.budget import Priority
from app.core.errors import RpcUnavailable
from app.core.lasting import AnchorContradiction, StoreUnavailable
from app.store.memory_anchors import MemoryAnchorRows
from tests.chain.recorded_chain import (
    BUSY,
    FIRST,
    LAST,
    RecordedChain,
    branch,
    hash_of,
    sepolia,
    with_unmet_receipts,
)
from tests.fakes import settle

DOWN = RpcUnavailable("down")
GENESIS = BUSY - 5


class Mortal(SelfAttested):
    """Anchors that can be told to die of a fault of our own."""

    dying = False

    async def advance(self, finalized: int, root_at: Callable[[int], Awaitable[bytes]]) -> None:
        if self.dying:
            raise ZeroDivisionError
        await super().advance(finalized, root_at)


def anchored_chain(anchors: SelfAttested | None = None, **options: Any) -> RecordedChain:
    made = RecordedChain(GENESIS, LAST, anchors=anchors or SelfAttested(7, GENESIS, 1, 100), **options)
    made.upstream.tags = {"latest": BUSY, "safe": BUSY, "finalized": BUSY}
    for loop in made.chain.loops:
        made.metrics.register_task(loop.name)
    return made


def now(made: RecordedChain, head: int, finalized: int) -> None:
    """The nodes have come that far; the chain hears of it at its next poll."""
    made.upstream.tags = {"latest": head, "safe": finalized, "finalized": finalized}


@contextlib.asynccontextmanager
async def running(made: RecordedChain) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(made.chain.run())
    await settle(200)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.chain.aclose()
        assert made.at_rest()


async def pass_time(made: RecordedChain, seconds: float) -> None:
    while seconds > 0:
        await made.clock.advance(min(1.0, seconds))
        await settle(100)
        seconds -= 1.0


async def test_what_is_final_is_anchored_and_what_becomes_final_too() -> None:
    made = anchored_chain()
    assert not made.chain.anchored.is_set()
    async with running(made):
        assert made.attested() == BUSY
        assert made.chain.anchored.is_set()
        assert made.metric("chain_attested_head", chain="sepolia") == BUSY
        now(made, LAST, BUSY + 3)
        await pass_time(made, 9)
        assert made.attested() == BUSY + 3
        assert made.metric("chain_attested_head", chain="sepolia") == BUSY + 3
        assert made.metric("chain_safe_head", chain="sepolia") == BUSY + 3


async def test_each_block_is_fetched_once_and_then_served_from_memory() -> None:
    made = anchored_chain()
    async with running(made):
        cost = made.calls()
        assert (cost["fetch"], cost["build"]) == (6, 6)
        assert cost["name_of"] == 1  # the genesis
        assert (await made.chain.block(BlockRef(height=BUSY))).cached
        assert len((await made.chain.continuity(BUSY - 4, BUSY)).proof.roots) == 5
        assert made.calls() == {}


@pytest.mark.parametrize("max_fills", [1, 2, 16])
async def test_anchoring_takes_backfill_permits_and_is_never_turned_away(max_fills: int) -> None:
    made = anchored_chain(max_fills=max_fills)
    hold = made.upstream.hold("fetch")
    async with running(made):
        budget = made.chain.permits.budget
        assert budget.running(Priority.REQUEST) == 0
        assert budget.running(Priority.BACKFILL) == min(6, max_fills - budget.reserve)
        hold.release()
        await settle(300)
        assert made.attested() == BUSY
        assert made.chain.anchoring_stalled is None
        assert made.metric("fill_total", chain="sepolia", **{"class": "backfill", "result": "ok"}) == 6
        assert sum(made.chain.permits.refused.values()) == 0


async def test_P3_a_request_goes_before_the_anchoring_that_waits() -> None:
    made = anchored_chain(max_fills=1)
    hold = made.upstream.hold("fetch")
    async with running(made):
        asking = asyncio.create_task(made.chain.block(BlockRef(height=BUSY)))
        await settle()
        made.upstream.unhold()
        after = made.upstream.hold("accept")
        hold.release()
        await settle()
        after.release()
        await asking
        assert (made.attested() or 0) < BUSY
        await settle(200)
        assert made.attested() == BUSY


async def test_B22_two_minutes_of_nulls_leave_no_gap(caplog: pytest.LogCaptureFixture) -> None:
    made = anchored_chain()
    async with running(made):
        made.upstream.fail("fetch", RpcUnavailable("null"), times=None)
        now(made, LAST, BUSY + 10)
        with caplog.at_level(logging.WARNING):
            await pass_time(made, 120)
        assert made.attested() == BUSY
        assert made.chain.anchoring_stalled == "RpcUnavailable"
        assert [record.message for record in caplog.records].count("anchoring_stalled") == 1
        assert made.chain.status()["anchors"] == {
            "source": "self",
            "genesis": GENESIS,
            "attestedHeight": BUSY,
            "checkpointHeight": None,
            "note": "development: accepted by no chain",
            "stalled": "RpcUnavailable",
        }
        assert made.reasons() == ("head has stopped moving",)
        made.upstream.heal()
        await pass_time(made, 5)
        assert made.attested() == BUSY + 10
        assert len((await made.chain.continuity(GENESIS + 1, BUSY + 10)).proof.roots) == 15
        assert "stalled" not in str(made.chain.status())


async def test_a_block_that_cannot_be_anchored_stalls_above_the_ones_that_can() -> None:
    made = anchored_chain()
    made.put(with_unmet_receipts(sepolia(BUSY)))
    async with running(made):
        assert made.attested() == BUSY - 1
        assert made.metric("chain_attested_head", chain="sepolia") == BUSY - 1
        assert made.chain.anchoring_stalled == "InconsistentSource"
        assert not made.chain.anchored.is_set()
        made.put(sepolia(BUSY))
        await pass_time(made, 65)
        assert made.attested() == BUSY


async def test_anchors_are_made_of_what_became_final_and_not_of_what_was_there_before() -> None:
    made = anchored_chain()
    async with running(made):
        now(made, BUSY + 1, BUSY)
        await pass_time(made, 3)
        old = await made.at(BUSY + 1)
        empty = sepolia(BUSY + 2)
        replacement = branch(BUSY + 1, [empty, sepolia(BUSY), empty, empty])
        made.reorg(replacement)
        now(made, BUSY + 4, BUSY + 4)
        await pass_time(made, 10)
        assert made.attested() == BUSY + 4
        assert (await made.at(BUSY + 1)).block_hash == hash_of(replacement[0]) != old.block_hash
        roots = (await made.chain.continuity(BUSY + 1, BUSY + 4)).proof.roots
        assert roots == tuple([(await made.at(height)).usc_root for height in range(BUSY + 1, BUSY + 5)])
        assert roots[1] == (await made.at(BUSY)).usc_root  # the same transactions, moved


@pytest.mark.parametrize("loop", ["head", "anchors"])
async def test_B54_a_loop_that_dies_is_named_started_again_and_goes_on(loop: str) -> None:
    anchors = Mortal(7, GENESIS, 1, 100)
    made = anchored_chain(anchors)
    async with running(made):
        assert made.metric("task_up", name=f"{loop}:sepolia") == 1
        if loop == "head":
            made.upstream.fail("tagged", ZeroDivisionError())
        else:
            anchors.dying = True
            now(made, LAST, BUSY + 2)
        await _until_down(made, f"{loop}:sepolia")
        anchors.dying = False
        gc.collect()
        assert made.reasons() == (f"background loop {loop}:sepolia is down",)
        assert made.metric("unhandled_exceptions_total", source="task") == 1
        now(made, LAST, BUSY + 3)
        await pass_time(made, 12)
        assert made.metric("task_up", name=f"{loop}:sepolia") == 1
        assert made.reasons() == ()
        assert made.attested() == BUSY + 3


async def _until_down(made: RecordedChain, loop: str) -> None:
    for _ in range(60):
        if made.metric("task_up", name=loop) == 0:
            return
        await pass_time(made, 0.25)
    raise AssertionError("the loop is still up")


async def test_D7_a_node_that_is_gone_makes_the_head_stale_and_visible() -> None:
    made = anchored_chain()
    async with running(made):
        made.upstream.fail("tagged", DOWN, times=None)
        await pass_time(made, 29)
        assert made.reasons() == ()
        await pass_time(made, 4)
        assert made.reasons() == ("head is stale",)
        made.upstream.heal()
        await pass_time(made, 3)
        assert made.reasons() == ()


async def test_no_genesis_means_the_first_finalized_height_seen() -> None:
    made = RecordedChain(FIRST, LAST, anchors=SelfAttested(7, None, 1, 100))
    now(made, LAST, BUSY)
    async with running(made):
        assert made.chain.anchors is not None
        assert made.chain.anchors.genesis == BUSY
        assert made.attested() is None
        assert made.calls()["fetch"] == 1
        now(made, LAST, BUSY + 2)
        await pass_time(made, 9)
        assert made.attested() == BUSY + 2


async def test_without_anchors_only_the_head_is_followed() -> None:
    made = RecordedChain(BUSY, BUSY)
    async with running(made):
        assert [loop.name for loop in made.chain.loops] == ["head:sepolia"]
        assert made.chain.head.heads.head == BUSY
        assert "fetch" not in made.calls()


async def test_leaving_ends_everything() -> None:
    made = anchored_chain()
    made.upstream.hold("fetch")
    async with running(made) as task:
        assert not task.done()
    assert task.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- anchors of others, and a database that is away -----------------------------------------------------------------------


class Polled(SelfAttested):
    """Anchors of somebody else, who is asked every 5 s."""

    poll_interval_s = 5.0  # type: ignore[assignment]  # a source of another kind

    def __init__(self) -> None:
        super().__init__(7, GENESIS, 1, 100)
        self.polls: list[int | None] = []
        self.fails_with: Exception | None = None

    async def advance(self, finalized: int | None, root_at: Callable[[int], Awaitable[bytes]]) -> None:
        self.polls.append(finalized)
        if self.fails_with is not None:
            raise self.fails_with


async def test_anchors_of_others_are_polled_whatever_is_final_here() -> None:
    anchors = Polled()
    made = anchored_chain(anchors)
    made.upstream.fail("tagged", DOWN, times=None)
    made.upstream.fail("sightings", DOWN, times=None)
    async with running(made):
        assert made.chain.anchored.is_set()
        await pass_time(made, 16)
        assert anchors.polls == [None] * 4


async def test_what_becomes_final_is_no_reason_to_poll() -> None:
    anchors = Polled()
    made = anchored_chain(anchors)
    async with running(made):
        for finalized in range(BUSY + 1, BUSY + 5):
            now(made, LAST, finalized)
            await pass_time(made, 1)
        assert len(anchors.polls) == 1


async def test_a_source_that_fails_is_polled_on_and_the_first_good_poll_counts() -> None:
    anchors = Polled()
    anchors.fails_with = DOWN
    made = anchored_chain(anchors)
    async with running(made):
        assert not made.chain.anchored.is_set()
        assert made.chain.anchoring_stalled == "RpcUnavailable"
        anchors.fails_with = None
        await pass_time(made, 6)
        assert made.chain.anchored.is_set()
        assert made.chain.anchoring_stalled is None


@pytest.mark.parametrize("trouble", [StoreUnavailable(), AnchorContradiction("height 5 is anchored otherwise")])
async def test_rows_that_cannot_be_had_or_contradict_stall_the_anchors_and_nothing_else(
    trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    rows = MemoryAnchorRows()
    made = anchored_chain(SelfAttested(7, GENESIS, 1, 100, rows=rows))
    async with running(made):
        assert made.attested() == BUSY
        keep, failing = rows.add, [trouble]

        async def add(new: Sequence[AnchorRow]) -> None:
            if failing:
                raise failing[0]
            await keep(new)

        rows.add = add  # type: ignore[method-assign]  # until it is mended
        now(made, LAST, BUSY + 10)
        with caplog.at_level(logging.WARNING):
            await pass_time(made, 30)
        assert made.attested() == BUSY
        assert made.chain.anchoring_stalled == type(trouble).__name__
        assert [record.message for record in caplog.records].count("anchoring_stalled") == 1
        assert (await made.chain.continuity(BUSY, BUSY)).upper_height == BUSY
        failing.clear()
        await pass_time(made, 5)
        assert made.attested() == BUSY + 10
