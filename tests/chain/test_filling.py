"""Fills: one fetch and one build whoever asks, landed only while true, and every permit back afterwards."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from app.chain.filling import BRIEFLY_S, types_in
from app.chain.memory import FIRST_WAIT_S, MAX_BLOCKS
from app.core.blocks import BlockRef
from app.core.budget import Priority
from app.core.deadlines import Trail, deadline, trail
from app.core.errors import (
    BlockNotOnSourceChain,
    ChainOverloaded,
    InconsistentSource,
    Internal,
    NotCommittedByHeader,
    ProofError,
    RequestTimeout,
    RpcUnavailable,
    UnsupportedBlockFormat,
)
from app.core.provable_block import ProvableBlock, Verdict
from tests.chain.recorded_chain import (
    BUSY,
    SEPOLIA,
    RecordedChain,
    bodies_of,
    forged,
    hash_of,
    name_of,
    sepolia,
    with_unmet_receipts,
)
from tests.fakes import Hold, settle

AT = BlockRef(height=BUSY)
BUSY_HASH = hash_of(sepolia(BUSY))
BY_HASH = BlockRef(block_hash=BUSY_HASH)
DOWN = RpcUnavailable("down")


def scene(first: int = BUSY, last: int = BUSY, **options: Any) -> RecordedChain:
    return RecordedChain(first, last, **options)


def served_with(record: dict[str, Any], **options: Any) -> RecordedChain:
    """A chain whose node gives this record as the block at BUSY."""
    made = scene(**options)
    made.upstream.bodies[name_of(record).block_hash] = [bodies_of(record)]
    return made


def fill_results(made: RecordedChain) -> dict[tuple[str, str], float]:
    counted = {}
    for metric in made.metrics.fill_total.collect():
        for sample in metric.samples:
            if sample.name.endswith("_total") and sample.value:
                counted[sample.labels["class"], sample.labels["result"]] = sample.value
    return counted


# --- one fill -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ref", [AT, BY_HASH], ids=["by-height", "by-hash"])
async def test_F1_all_who_ask_share_one_fetch_and_one_build(ref: BlockRef) -> None:
    made = scene()
    hold = made.upstream.hold("accept")
    asking = [asyncio.create_task(made.chain.filling.block(ref)) for _ in range(50)]
    await hold.reached()
    assert made.chain.permits.budget.running() == 1
    hold.release()
    blocks = await asyncio.gather(*asking)
    assert made.calls() == {"fetch": 1, "build": 1}
    assert all(block is blocks[0] for block in blocks)
    assert made.chain.filling.held(BUSY_HASH) is blocks[0]
    assert made.at_rest()
    assert fill_results(made) == {("request", "ok"): 1}


async def test_a_block_is_built_from_what_the_node_gave_and_what_was_asked() -> None:
    made = scene()
    await made.chain.filling.block(AT)
    (request,) = made.builder.requests
    given = bodies_of(sepolia(BUSY))
    assert (request.height, request.block_hash) == (BUSY, None)
    assert (request.family, request.chain_id, request.anchored) == ("ethereum", SEPOLIA, False)
    assert (request.block_json, request.receipts_json) == (given.block_json, given.receipts_json)
    await made.chain.filling.block(BY_HASH)
    assert (made.builder.requests[1].height, made.builder.requests[1].block_hash) == (None, BUSY_HASH)


async def test_B51_callers_that_leave_take_nothing_from_the_others() -> None:
    made = scene()
    hold = made.upstream.hold("fetch")
    asking = [asyncio.create_task(made.chain.filling.block(AT)) for _ in range(50)]
    await hold.reached()
    for task in [asking[0], *asking[2:26]]:
        task.cancel()
    await settle()
    hold.release()
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(asyncio.CancelledError) == 25
    assert [type(outcome) for outcome in outcomes].count(ProvableBlock) == 25
    assert made.calls() == {"fetch": 1, "build": 1}
    assert made.at_rest()


async def test_a_fill_that_everybody_left_still_lands() -> None:
    made = scene()
    hold = made.upstream.hold("fetch")
    asking = asyncio.create_task(made.chain.filling.block(AT))
    await hold.reached()
    asking.cancel()
    await settle()
    assert made.chain.permits.budget.running() == 1
    hold.release()
    await settle()
    assert made.chain.filling.held(BUSY_HASH) is not None
    assert made.at_rest()


async def test_B51_the_first_generation_fails_and_the_second_serves_all() -> None:
    made = scene()
    made.upstream.fail("fetch", DOWN)
    outcomes = await asyncio.gather(*(made.chain.filling.block(AT) for _ in range(20)))
    assert all(isinstance(outcome, ProvableBlock) for outcome in outcomes)
    assert made.calls() == {"fetch": 2, "build": 1}
    assert fill_results(made) == {("request", "unavailable"): 1, ("request", "ok"): 1}


async def test_B22_two_nulls_are_an_error_remembered_for_a_moment_and_then_data() -> None:
    made = scene()
    made.upstream.fail("fetch", DOWN, times=2)
    outcomes = await asyncio.gather(*(made.chain.filling.block(AT) for _ in range(20)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {RpcUnavailable}
    with pytest.raises(RpcUnavailable):
        await made.chain.filling.block(AT)
    assert made.calls() == {"fetch": 2}
    made.clock.move(0.251)
    assert (await made.chain.filling.block(AT)).height == BUSY
    assert made.calls() == {"fetch": 1, "build": 1}
    assert made.at_rest()


async def test_data_that_fails_a_check_is_for_the_next_node() -> None:
    made = scene()
    broken = sepolia(BUSY)
    broken["block"]["gasUsed"] = "0x1"
    made.upstream.bodies[BUSY_HASH] = [bodies_of(broken, "first"), bodies_of(sepolia(BUSY), "second")]
    assert (await made.chain.filling.block(AT)).block_hash == BUSY_HASH
    assert made.calls() == {"fetch": 1, "build": 2}
    assert made.upstream.content_failures == {"header_hash": 1}
    made.upstream.bodies[BUSY_HASH] = [bodies_of(broken)]
    with pytest.raises(InconsistentSource):
        await made.chain.filling.block(BY_HASH)
    assert fill_results(made) == {("request", "ok"): 1, ("request", "invalid"): 2}


async def test_another_block_than_the_one_asked_for_is_refused_though_it_is_valid() -> None:
    made = scene()
    made.upstream.bodies[BUSY_HASH] = [bodies_of(sepolia(BUSY + 1))]
    for ref in (AT, BY_HASH):
        with pytest.raises(InconsistentSource):
            await made.chain.filling.block(ref)
    assert made.upstream.content_failures == {"identity": 4}
    assert made.chain.cache.entries == 0
    assert made.chain.cache.hash_at(BUSY) is None


async def test_an_absence_is_told_and_not_remembered() -> None:
    made = scene()
    ref = BlockRef(height=BUSY + 1)
    for _ in range(2):
        with pytest.raises(BlockNotOnSourceChain):
            await made.chain.filling.block(ref)
    assert made.calls() == {"fetch": 2}
    made.put(sepolia(BUSY + 1))
    assert (await made.chain.filling.block(ref)).height == BUSY + 1


async def test_a_header_with_unknown_fields_sounds_the_alarm() -> None:
    record = sepolia(BUSY)
    record["block"]["futureRoot"] = "0x" + "11" * 32
    record["block"]["hash"] = "0x" + "22" * 32
    made = scene()
    made.put(record)
    with pytest.raises(UnsupportedBlockFormat):
        await made.chain.filling.block(AT)
    assert made.metric("unknown_header_fields_total", chain="sepolia") == 1, "counted once, when no node knew better"
    with pytest.raises(UnsupportedBlockFormat):
        await made.chain.filling.block(AT)
    assert made.calls() == {"fetch": 1, "build": 1}


# --- which chain ----------------------------------------------------------------------------------------------------


async def test_B35_a_chain_id_that_is_not_known_is_asked_for_once() -> None:
    made = scene(chain_id=None)
    made.upstream.known_chain_id = None
    assert (await made.chain.filling.block(AT)).chain_id == SEPOLIA
    await made.chain.filling.block(BY_HASH)
    assert made.calls() == {"fetch": 2, "build": 2, "chain_id": 1}
    assert made.chain.chain_id == SEPOLIA


async def test_B35_a_chain_that_no_node_proves_to_serve_is_not_built() -> None:
    made = scene(chain_id=None)
    made.upstream.known_chain_id = None
    made.upstream.fail("chain_id", RpcUnavailable("the node serves another chain"), times=None)
    with pytest.raises(RpcUnavailable):
        await made.chain.filling.block(AT)
    assert "chain id not known yet" in made.chain.reasons
    assert made.builder.requests == []
    made.upstream.heal()
    made.clock.move(1)
    assert (await made.chain.filling.block(AT)).chain_id == SEPOLIA


# --- what lasts and what does not -----------------------------------------------------------------------------------


async def test_unmet_receipts_are_remembered_for_as_long_as_callers_are_asked_to_wait() -> None:
    made = served_with(with_unmet_receipts(sepolia(BUSY)))
    block = await made.chain.filling.block(AT)
    assert block.receipts_verdict is Verdict.UNMET
    assert block.transaction_proof(0).value
    with pytest.raises(InconsistentSource, match="receiptsRoot"):
        block.receipt_proof(0)
    assert made.chain.cache.entries == 0
    made.clock.move(FIRST_WAIT_S - 0.01)
    assert made.chain.filling.held(BUSY_HASH) is block
    made.clock.move(0.02)
    assert made.chain.filling.held(BUSY_HASH) is None
    assert made.metric("root_mismatch_total", chain="sepolia", upstream="fake", trie="receipts") == 1


async def test_a_proven_block_takes_the_place_of_the_one_with_unmet_receipts() -> None:
    made = served_with(with_unmet_receipts(sepolia(BUSY)))
    await made.chain.filling.block(AT)
    made.put(sepolia(BUSY))
    proven = await made.chain.filling.block(BY_HASH)
    assert proven.receipts_verdict is Verdict.PROVEN
    assert made.chain.filling.held(BUSY_HASH) is proven


async def test_no_more_than_so_many_unmet_blocks_are_remembered() -> None:
    made = scene(BUSY, BUSY)
    hashes = []
    for number in range(MAX_BLOCKS + 2):
        record = forged(with_unmet_receipts(sepolia(BUSY)), extraData=f"0x{number:04x}")
        made.put(record)
        hashes.append(hash_of(record))
        await made.chain.filling.block(BlockRef(block_hash=hashes[-1]))
    held = [made.chain.filling.held(block_hash) is not None for block_hash in hashes]
    assert held.count(True) == MAX_BLOCKS
    assert held[-1]


async def test_receipts_that_were_not_to_be_had_are_not_remembered() -> None:
    record = sepolia(BUSY)
    record["receipts"] = None
    made = served_with(record)
    block = await made.chain.filling.block(AT)
    assert block.receipts_verdict is Verdict.UNAVAILABLE
    assert block.transaction_proof(0).value
    assert made.chain.filling.held(BUSY_HASH) is None
    assert made.metric("root_mismatch_total", chain="sepolia", upstream="fake", trie="receipts") == 0


async def test_transactions_that_meet_no_root_are_a_property_of_the_block() -> None:
    record = forged(sepolia(BUSY), transactionsRoot="0x" + "77" * 32)
    made = scene()
    made.put(record)
    await made.see(BUSY, finalized=BUSY)
    block = await made.chain.filling.block(AT)
    assert (block.transactions_verdict, block.receipts_verdict) == (Verdict.UNMET, Verdict.PROVEN)
    assert made.chain.cache.peek(hash_of(record)) is block
    assert made.metric("root_mismatch_total", chain="sepolia", upstream="fake", trie="transactions") == 1


def _of_another_type() -> dict[str, Any]:
    record = sepolia(BUSY)
    record["block"]["transactions"][0] |= {"type": "0x7f"}
    return record


def _of_another_header() -> dict[str, Any]:
    """A header with a field that is not known here, and that does not hash to its hash."""
    record = sepolia(BUSY)
    record["block"] |= {"futureRoot": "0x" + "11" * 32, "gasUsed": "0x1"}
    return record


async def test_near_the_head_what_the_only_node_refuses_is_remembered_for_a_moment() -> None:
    made = served_with(_of_another_type())
    block = await made.chain.filling.block(AT)
    assert block.transactions_verdict is Verdict.CLAIMED_TYPE
    assert made.metric("unsupported_transaction_type_total", chain="sepolia", type="0x7f") == 1
    made.clock.move(BRIEFLY_S - 0.01)
    assert made.chain.filling.held(BUSY_HASH) is block
    assert made.chain.cache.entries == 0
    made.put(sepolia(BUSY))
    made.clock.move(0.02)
    assert (await made.chain.filling.block(AT)).transactions_verdict is Verdict.PROVEN
    assert made.chain.cache.entries == 1


async def test_near_the_head_a_block_refused_as_a_whole_is_remembered_for_a_moment() -> None:
    made = served_with(_of_another_header())
    for moved_s in (0.0, BRIEFLY_S - 0.01):
        made.clock.move(moved_s)
        with pytest.raises(UnsupportedBlockFormat):
            await made.chain.filling.block(AT)
    assert made.calls() == {"fetch": 1, "build": 1}
    made.put(sepolia(BUSY))
    made.clock.move(0.02)
    assert (await made.chain.filling.block(AT)).transactions_verdict is Verdict.PROVEN


@pytest.mark.parametrize("final", [True, False])
async def test_what_two_nodes_refuse_is_kept(final: bool) -> None:
    made = scene()
    made.upstream.add_block(
        name_of(sepolia(BUSY)), bodies_of(_of_another_type()), bodies_of(_of_another_type(), "other")
    )
    if final:
        await made.see(BUSY, finalized=BUSY)
    block = await made.chain.filling.block(AT)
    assert block.transactions_verdict is Verdict.UNSUPPORTED_TYPE
    assert made.chain.cache.peek(BUSY_HASH) is block


async def test_a_type_that_one_node_alone_does_not_know_is_no_type_of_the_chain() -> None:
    made = scene()
    made.upstream.add_block(name_of(sepolia(BUSY)), bodies_of(_of_another_type()), bodies_of(sepolia(BUSY), "other"))
    assert (await made.chain.filling.block(AT)).transactions_verdict is Verdict.PROVEN
    assert made.metric("unsupported_transaction_type_total", chain="sepolia", type="0x7f") is None


@pytest.mark.parametrize(
    ("detail", "types"),
    [
        ("0x7f", ["0x7f"]),
        ("0x64, 0x7e", ["0x64", "0x7e"]),
        (f"0x7e does not meet 0x{'ab' * 32}", ["0x7e"]),
        ("0xff", ["other"]),
        ("0xffffffff", ["other"]),
        ("", ["other"]),
    ],
)
def test_types_are_counted_in_a_closed_set(detail: str, types: list[str]) -> None:
    assert types_in(detail) == types


@pytest.mark.parametrize("final", [True, False])
async def test_what_one_of_two_nodes_refuses_is_neither_kept_nor_refused_for_good(final: bool) -> None:
    made = scene()
    broken = sepolia(BUSY)
    broken["block"]["gasUsed"] = "0x1"
    made.upstream.add_block(name_of(sepolia(BUSY)), bodies_of(_of_another_type()), bodies_of(broken, "other"))
    if final:
        await made.see(BUSY, finalized=BUSY)
    block = await made.chain.filling.block(AT)
    with pytest.raises(InconsistentSource, match="no other could be asked"):
        block.transaction_proof(0)
    assert block.receipt_proof(0).value
    assert made.chain.cache.entries == 0
    made.put(sepolia(BUSY))
    made.clock.move(FIRST_WAIT_S + 0.01)
    assert (await made.chain.filling.block(AT)).transaction_proof(0).value


async def test_a_build_that_crashes_on_one_node_is_tried_with_the_other() -> None:
    made = scene()
    made.put(sepolia(BUSY), bodies_of(sepolia(BUSY), "other"))
    made.builder.fail("build", Internal("the block could not be built"))
    assert (await made.chain.filling.block(AT)).transactions_verdict is Verdict.PROVEN
    assert made.calls() == {"fetch": 1, "build": 2}


async def test_B43_F12_an_empty_block_is_kept_like_any_other() -> None:
    made = scene(BUSY + 2, BUSY + 2)
    block = await made.chain.filling.block(BlockRef(height=BUSY + 2))
    assert block.transaction_count == 0
    assert made.chain.filling.held(block.block_hash) is block


async def test_a_header_that_commits_to_no_receipts_settles_the_block() -> None:
    record = forged(sepolia(BUSY), receiptsRoot="0x" + "00" * 32)
    made = scene()
    made.put(record)
    block = await made.chain.filling.block(AT)
    with pytest.raises(NotCommittedByHeader):
        block.receipt_proof(0)
    assert made.chain.cache.peek(hash_of(record)) is block


# --- pins -----------------------------------------------------------------------------------------------------------


async def test_a_block_asked_for_by_height_is_pinned_there_and_one_by_hash_is_not() -> None:
    made = scene()
    await made.chain.filling.block(BY_HASH)
    assert made.chain.cache.hash_at(BUSY) is None
    await made.chain.filling.block(AT)
    assert made.chain.cache.hash_at(BUSY) == BUSY_HASH
    assert not made.chain.cache.pin_is_final(BUSY)


@pytest.mark.parametrize(("finalized", "final"), [(BUSY, True), (BUSY - 1, False)])
async def test_a_pin_is_final_when_the_height_was(finalized: int, final: bool) -> None:
    made = scene(BUSY - 1, BUSY + 1)
    await made.see(finalized=finalized)
    await made.chain.filling.block(AT)
    assert made.chain.cache.pin_is_final(BUSY) is final


async def test_what_became_final_while_it_was_read_is_not_pinned_as_final() -> None:
    made = scene(BUSY - 1, BUSY + 1)
    await made.see(finalized=BUSY - 1)
    hold = made.upstream.hold("fetch.after")
    asking = asyncio.create_task(made.chain.filling.block(AT))
    await hold.reached()
    await made.see(finalized=BUSY)
    hold.release()
    await asking
    assert made.chain.cache.hash_at(BUSY) == BUSY_HASH
    assert not made.chain.cache.pin_is_final(BUSY)


# --- overtaken ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["fetch", "fetch.after", "accept", "build"])
async def test_F9_a_fill_that_a_reorg_overtook_is_neither_landed_nor_answered(stage: str) -> None:
    made = scene()
    other = forged(sepolia(BUSY), extraData="0xf0")
    point = made.builder if stage == "build" else made.upstream
    hold = point.hold(stage)
    asking = [asyncio.create_task(made.chain.filling.block(AT)) for _ in range(5)]
    await hold.reached()
    if stage != "fetch":
        made.upstream.unhold()
        made.builder.unhold()
    made.put(other)
    made.chain.filling.overtake(BUSY)
    late = asyncio.create_task(made.chain.filling.block(AT))
    hold.release()
    blocks = await asyncio.gather(*asking, late)
    assert {block.block_hash for block in blocks} == {hash_of(other)}
    assert made.chain.cache.hash_at(BUSY) == hash_of(other)
    if stage != "fetch":
        assert made.chain.cache.peek(BUSY_HASH) is None
    assert made.at_rest()


async def test_fills_below_a_reorg_and_fills_by_hash_go_on() -> None:
    made = scene(BUSY - 1, BUSY)
    hold = made.upstream.hold("fetch")
    refs = [BlockRef(height=BUSY - 1), BY_HASH]
    asking = [asyncio.create_task(made.chain.filling.block(ref)) for ref in refs]
    await settle()
    made.chain.filling.overtake(BUSY)
    hold.release()
    await asyncio.gather(*asking)
    assert made.calls() == {"fetch": 2, "build": 2}


# --- permits and deadlines ------------------------------------------------------------------------------------------


async def test_a_queued_fill_whose_callers_left_gives_up_its_place() -> None:
    made = scene(BUSY - 1, BUSY, max_fills=1)
    hold = made.upstream.hold("fetch")
    first = asyncio.create_task(made.chain.filling.block(AT))
    await hold.reached()
    second = asyncio.create_task(made.chain.filling.block(BlockRef(height=BUSY - 1)))
    await settle()
    assert made.chain.permits.budget.waiting() == 1
    second.cancel()
    await settle()
    assert made.chain.permits.budget.waiting() == 0
    hold.release()
    await first
    assert made.calls() == {"fetch": 1, "build": 1}
    assert fill_results(made) == {("request", "ok"): 1, ("request", "cancelled"): 1}


async def test_a_queued_fill_that_no_caller_has_time_for_any_more_is_late_and_not_cancelled() -> None:
    made = scene(BUSY - 3, BUSY, max_fills=1)
    made.clock.drive()
    hold = made.upstream.hold("fetch")
    first = asyncio.create_task(made.chain.filling.block(AT))
    await hold.reached()
    token = deadline.set(made.clock.now() + 5.0)
    second = asyncio.create_task(made.chain.filling.block(BlockRef(height=BUSY - 1)))
    deadline.reset(token)
    await made.clock.advance(5.1)
    with pytest.raises((ChainOverloaded, RequestTimeout)):
        await second
    hold.release()
    await first
    assert fill_results(made) == {("request", "ok"): 1, ("request", "timeout"): 1}


async def test_whoever_waits_for_another_ones_fill_is_told_apart() -> None:
    made = scene()
    hold = made.upstream.hold("fetch")
    trails = [Trail(), Trail()]
    tasks = []
    for here in trails:
        token = trail.set(here)
        tasks.append(asyncio.create_task(made.chain.block(AT)))
        trail.reset(token)
        await settle()
    hold.release()
    await asyncio.gather(*tasks)
    assert [here.joined for here in trails] == [False, True]


async def test_more_fills_than_may_wait_are_refused_at_once() -> None:
    made = scene(BUSY - 3, BUSY, max_fills=1, max_queued_fills=1)
    hold = made.upstream.hold("fetch")
    running = asyncio.create_task(made.chain.filling.block(AT))
    await hold.reached()
    waiting = asyncio.create_task(made.chain.filling.block(BlockRef(height=BUSY - 1)))
    await settle()
    with pytest.raises(ChainOverloaded) as refused:
        await made.chain.filling.block(BlockRef(height=BUSY - 2))
    assert refused.value.extra["reason"] == "fill_queue_full"
    followers = [asyncio.create_task(made.chain.filling.block(AT)) for _ in range(10)]
    await settle()
    hold.release()
    await asyncio.gather(running, waiting, *followers)
    assert made.calls() == {"fetch": 2, "build": 2}
    assert fill_results(made) == {("request", "ok"): 2, ("request", "refused"): 1}


async def test_a_caller_that_could_not_use_a_permit_any_more_is_refused_and_the_fill_spared() -> None:
    made = scene(BUSY - 1, BUSY, max_fills=1)
    hold = made.upstream.hold("fetch")
    running = asyncio.create_task(made.chain.filling.block(AT))
    await hold.reached()
    deadline.set(made.clock.now() + 2)
    hurried = asyncio.create_task(made.chain.filling.block(BlockRef(height=BUSY - 1)))
    await made.clock.advance(1.5)
    assert hurried.done()
    with pytest.raises(ChainOverloaded) as refused:
        await hurried
    assert refused.value.extra["reason"] == "fill_wait_timeout"
    assert made.upstream.hits["fetch"] == 1
    hold.release()
    await running
    assert made.at_rest()


async def test_F4_the_deadline_of_the_first_caller_is_not_that_of_the_fill() -> None:
    made = scene()
    hold = made.upstream.hold("fetch")
    patient = asyncio.create_task(made.chain.filling.block(AT))
    deadline.set(made.clock.now() + 1)
    hurried = asyncio.create_task(made.chain.filling.block(AT))
    await hold.reached()
    await made.clock.advance(1.01)
    assert hurried.done()
    with pytest.raises(RequestTimeout) as late:
        await hurried
    assert late.value.extra["stage"] == "fetch"
    hold.release()
    assert (await patient).height == BUSY
    assert made.calls() == {"fetch": 1, "build": 1}


async def test_a_fill_hands_its_own_deadline_to_the_upstream() -> None:
    made = scene()
    seen: list[float | None] = []
    fetch = made.upstream.fetch

    async def listening(*arguments: Any) -> ProvableBlock:
        seen.append(deadline.get())
        return await fetch(*arguments)

    made.upstream.fetch = listening  # type: ignore[assignment]
    deadline.set(made.clock.now() + 1)
    await made.chain.filling.block(AT)
    assert seen == [made.clock.now() + 120]


async def test_a_fill_that_takes_too_long_is_cut_and_counted() -> None:
    made = scene()
    hold = made.upstream.hold("fetch")
    asking = asyncio.create_task(made.chain.filling.block(AT))
    await hold.reached()
    await made.clock.advance(121)
    assert asking.done()
    with pytest.raises(RequestTimeout):
        await asking
    assert made.calls() == {"fetch": 1}  # a second stall is not bought
    assert made.at_rest()


async def test_a_request_that_joins_a_backfill_promotes_it() -> None:
    made = scene(BUSY - 1, BUSY, max_fills=1)
    hold = made.upstream.hold("fetch")
    running = asyncio.create_task(made.chain.filling.block(AT, Priority.BACKFILL))
    await hold.reached()
    assert made.chain.permits.budget.running(Priority.BACKFILL) == 1
    asking = asyncio.create_task(made.chain.filling.block(AT))
    await settle()
    assert made.chain.permits.budget.running(Priority.BACKFILL) == 0
    assert made.chain.permits.budget.running(Priority.REQUEST) == 1
    hold.release()
    await asyncio.gather(running, asking)
    assert made.at_rest()


async def test_F7_the_permit_is_held_until_the_build_has_ended() -> None:
    made = scene(max_fills=1)
    hold = made.builder.hold("build.after")
    asking = asyncio.create_task(made.chain.filling.block(AT))
    await hold.reached()
    asking.cancel()
    await settle()
    assert made.chain.permits.budget.running() == 1
    hold.release()
    await settle()
    assert made.at_rest()


async def test_closing_ends_what_is_in_flight() -> None:
    made = scene(BUSY - 3, BUSY, max_fills=2)
    hold = made.upstream.hold("fetch")
    asking = [asyncio.create_task(made.chain.filling.block(BlockRef(height=BUSY - back))) for back in range(4)]
    await hold.reached()
    await settle()
    await made.chain.aclose()
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert [outcome.code for outcome in outcomes if isinstance(outcome, ProofError)] == ["Draining"] * 4
    assert made.at_rest()


@pytest.mark.parametrize("seed", range(6))
async def test_B52_G2_after_any_mix_everything_is_back_where_it_was(seed: int) -> None:
    chance = random.Random(seed)
    made = scene(BUSY - 12, BUSY, max_fills=3, max_queued_fills=4)
    failures = [DOWN, RequestTimeout("late", stage="fetch"), BlockNotOnSourceChain("gone"), KeyError("a fault of ours")]
    refs = [BlockRef(height=height) for height in range(BUSY - 12, BUSY + 1)] + [BY_HASH]
    tasks: list[asyncio.Task[ProvableBlock]] = []
    holds: list[Hold] = []

    def let_go() -> None:
        made.upstream.unhold()
        while holds:
            holds.pop().release()

    for _ in range(150):
        match chance.randrange(8):
            case 0:
                point = chance.choice(["fetch", "accept", "fetch.after"])
                holds.append(made.upstream.hold(point))
            case 1:
                let_go()
            case 2:
                made.upstream.fail("fetch", chance.choice(failures), after=chance.random() < 0.5)
            case 3 if tasks:
                chance.choice(tasks).cancel()
            case 4:
                made.chain.filling.overtake(chance.randrange(BUSY - 12, BUSY + 1))
            case 5:
                await made.clock.advance(chance.choice([0.1, 0.6, 1.5]))
            case _:
                ends_at = made.clock.now() + chance.choice([0.4, 1.0, 30.0]) if chance.random() < 0.5 else None
                deadline.set(ends_at)
                priority = chance.choice(list(Priority))
                tasks.append(asyncio.create_task(made.chain.filling.block(chance.choice(refs), priority)))
        await settle(chance.randrange(4))
        budget = made.chain.permits.budget
        assert budget.running() <= 3
        assert budget.running(Priority.BACKFILL) <= 2
    let_go()
    made.upstream.heal()
    deadline.set(None)
    await settle(400)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, ProvableBlock | ProofError | asyncio.CancelledError) for outcome in outcomes)
    assert made.at_rest()
    made.clock.move(61)
    for ref in refs:
        assert (await made.chain.filling.block(ref)).receipts_verdict is Verdict.PROVEN
    assert made.at_rest()
