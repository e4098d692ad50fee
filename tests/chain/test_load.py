"""How loaded a chain is: what opens the windows of its door and of its permits, and what clears them."""

from __future__ import annotations

import asyncio

import pytest

from app.chain.load import Load
from app.chain.rules import ChainRules
from app.core.blocks import BlockRef
from app.core.budget import Priority
from app.core.errors import ChainOverloaded
from app.metrics import Metrics
from tests.chain.recorded_chain import BUSY, FIRST, LAST, RecordedChain
from tests.fakes import Hold, ManualClock, settle


def load(max_fills: int = 1, max_queued_fills: int = 0, threshold_s: float = 0.0) -> Load:
    rules = ChainRules(
        key=1,
        name="one",
        chain_id=1,
        family="ethereum",
        max_in_flight=2,
        max_fills=max_fills,
        max_queued_fills=max_queued_fills,
        saturation_threshold_s=threshold_s,
    )
    return Load(rules, Metrics(), ManualClock())


async def test_S1_the_rules_of_the_chain_hold_for_both_windows() -> None:
    one = load(threshold_s=10)
    assert one.door.limit == 2
    assert (one.door.window.threshold_s, one.permits.window.threshold_s) == (10, 10)
    assert repr(one).startswith("<Load door=<Gate 0/2 ")


async def test_S1_either_window_saturates_the_chain_and_the_older_one_tells_for_how_long() -> None:
    one = load(threshold_s=10)
    assert (one.saturated, one.open_s) == (False, 0)
    one.door.enter()
    async with one.permits.hold():
        one.permits.note_refusal()
        one.permits.clock.move(6)  # type: ignore[attr-defined]
        one.door.refuse(one.permits.clock.now())
        assert (one.saturated, one.open_s) == (False, 6)
        one.permits.clock.move(4)  # type: ignore[attr-defined]
        assert (one.saturated, one.open_s) == (True, 10)
    assert (one.saturated, one.open_s) == (False, 4)
    one.permits.clock.move(6)  # type: ignore[attr-defined]
    assert one.saturated


async def test_S4_a_refusal_opens_nothing_while_no_permit_is_held() -> None:
    one = load()
    one.permits.note_refusal()
    assert not one.saturated


async def test_S2_a_permit_given_back_clears() -> None:
    one = load()
    async with one.permits.hold():
        one.permits.note_refusal()
        assert one.saturated
    assert not one.saturated


async def test_S2_a_permit_taken_at_once_clears() -> None:
    one = load(max_fills=2)
    async with one.permits.hold():
        one.permits.note_refusal()
        async with one.permits.hold():
            assert not one.saturated


async def test_S7_who_leaves_the_line_clears_nothing() -> None:
    one = load(max_queued_fills=1)
    async with one.permits.hold():
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(one.permits.hold().acquire())
            await settle()
            one.permits.note_refusal()
            waiting.cancel()
        assert one.saturated
    assert not one.saturated


async def test_S3_a_permit_that_was_granted_to_somebody_cancelled_clears_when_it_comes_back() -> None:
    one = load(max_queued_fills=1)
    first = one.permits.hold()
    await first.acquire()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(one.permits.hold().acquire())
        await settle()
        first.release()
        one.permits.note_refusal()  # the permit has gone on to `waiting`, which does not know yet
        assert one.saturated
        waiting.cancel()
    assert one.permits.budget.running() == 0
    assert not one.saturated


# --- a real chain -----------------------------------------------------------------------------------------------------


async def wedged(**rules: int) -> tuple[RecordedChain, Hold]:
    """A chain whose node does not answer, and what lets it go on."""
    recorded = RecordedChain(saturation_threshold_s=0, **rules)
    await recorded.see(finalized=LAST)
    return recorded, recorded.upstream.hold("fetch")


async def test_a_refused_fill_of_a_request_opens_the_window_and_one_of_the_backfill_does_not() -> None:
    recorded, _ = await wedged(max_fills=1, max_queued_fills=0)
    chain = recorded.chain
    async with asyncio.TaskGroup() as group:
        holder = group.create_task(recorded.at(BUSY))
        await settle()
        queued = group.create_task(chain.filling.block(BlockRef(height=FIRST), Priority.BACKFILL))
        await settle()
        with pytest.raises(ChainOverloaded):
            await chain.filling.block(BlockRef(height=FIRST + 1), Priority.BACKFILL)
        assert not chain.saturated
        with pytest.raises(ChainOverloaded):
            await recorded.at(FIRST + 2)
        assert chain.saturated
        assert chain.status()["saturated"] is True
        holder.cancel()
        queued.cancel()
    await chain.aclose()
    assert not chain.saturated


async def test_the_wait_for_a_permit_is_observed() -> None:
    recorded, held = await wedged(max_fills=1, max_queued_fills=1)
    async with asyncio.TaskGroup() as group:
        for height in (BUSY, FIRST):
            group.create_task(recorded.at(height))
        await held.reached()
        await recorded.clock.advance(3)
        held.release()
    labels = {"chain": "sepolia", "class": "request"}
    assert recorded.metric("fill_queue_wait_duration_seconds_count", **labels) == 2
    assert recorded.metric("fill_queue_wait_duration_seconds_sum", **labels) == 3
