"""One chain, asked by height, hash and transaction, while the chain behind it grows, forks and fails."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import pytest

from app.chain.chain import Found
from app.chain.finding import REPLACED_TRIES
from app.chain.head import IN_DOUBT
from app.chain.listing import upstream_reasons
from app.core.blocks import BlockRef, Position
from app.core.errors import (
    AttestationsMissing,
    BlockNotOnSourceChain,
    InconsistentSource,
    NotCommittedByHeader,
    NotFinalized,
    ProofError,
    RpcUnavailable,
    TxHashNotFound,
    TxNotMined,
)
from app.core.finality import Finality, Level
from app.core.keccak import keccak
from tests.chain.recorded_chain import (
    BUSY,
    Record,
    RecordedChain,
    branch,
    forged,
    hash_of,
    sepolia,
    tx_hashes,
    with_unmet_receipts,
)
from tests.fakes import Hold, settle

EMPTY, BUSY_TXS = sepolia(BUSY + 2), tx_hashes(sepolia(BUSY))
HEAD, FINALIZED = BUSY + 3, BUSY - 3
DOWN = RpcUnavailable("down")


async def scene(finalized: int = FINALIZED, head: int = HEAD, **options: Any) -> RecordedChain:
    """Blocks around BUSY, of which the chain has heard up to `head`; nothing was paid for yet."""
    made = RecordedChain(BUSY - 6, head, **options)
    await made.see(finalized=finalized)
    made.calls()
    return made


# --- by height ------------------------------------------------------------------------------------------------------


async def test_a_finalized_block_costs_one_fetch_and_then_nothing() -> None:
    made = await scene(finalized=BUSY)
    first = await made.chain.block(BlockRef(height=BUSY))
    assert made.calls() == {"fetch": 1, "build": 1}
    again = [await made.chain.block(BlockRef(height=BUSY)) for _ in range(10)]
    again += [await made.chain.block(BlockRef(block_hash=first.block.block_hash))]
    again += [await made.chain.transaction(tx_hash) for tx_hash in BUSY_TXS]
    assert made.calls() == {}
    assert (first.cached, [found.cached for found in again]) == (False, [True] * len(again))
    assert all(found.block is first.block for found in again)
    assert [found.index for found in again[-3:]] == [0, 1, 2]


async def test_D6_above_finality_every_answer_costs_one_light_call() -> None:
    made = await scene()
    await made.at(BUSY)
    assert made.calls() == {"fetch": 1, "build": 1}
    for _ in range(3):
        assert (await made.at(BUSY)).height == BUSY
        assert made.calls() == {"name_of": 1}
    assert (await made.chain.transaction(BUSY_TXS[1])).index == 1
    assert made.calls() == {"name_of": 1}


async def test_the_light_call_is_shared_by_all_who_ask_meanwhile() -> None:
    made = await scene()
    block = await made.at(BUSY)
    made.calls()
    hold = made.upstream.hold("name_of")
    asking = [asyncio.create_task(made.at(BUSY)) for _ in range(20)]
    asking += [asyncio.create_task(made.by_hash(block.block_hash)) for _ in range(20)]
    by_tx = [asyncio.create_task(made.chain.transaction(tx_hash)) for tx_hash in BUSY_TXS]
    await hold.reached()
    await settle()
    hold.release()
    assert {id(answered) for answered in await asyncio.gather(*asking)} == {id(block)}
    assert [found.index for found in await asyncio.gather(*by_tx)] == [0, 1, 2]
    assert made.calls() == {"name_of": 1}


async def test_F1_cold_questions_of_every_kind_share_one_fetch() -> None:
    made = await scene()
    hold = made.upstream.hold("fetch")
    asking = [asyncio.create_task(made.chain.block(BlockRef(height=BUSY))) for _ in range(16)]
    asking += [asyncio.create_task(made.chain.block(BlockRef(block_hash=hash_of(sepolia(BUSY))))) for _ in range(16)]
    asking += [asyncio.create_task(made.chain.transaction(tx_hash)) for tx_hash in BUSY_TXS * 5]
    await hold.reached()
    await settle()
    hold.release()
    blocks = {id(found.block) for found in await asyncio.gather(*asking)}
    assert len(blocks) == 1
    assert made.calls() == {"fetch": 1, "build": 1, "position": 3, "height_of": 1}


async def test_a_block_that_became_final_is_asked_for_once_more_and_then_never() -> None:
    made = await scene(finalized=BUSY - 1)
    await made.at(BUSY)
    await made.see(finalized=BUSY)
    made.calls()
    await made.at(BUSY)
    assert made.calls() == {"name_of": 1}
    await made.at(BUSY)
    assert made.calls() == {}


async def test_B45_a_height_not_made_yet_is_found_once_it_is_there() -> None:
    made = await scene(head=BUSY)
    for _ in range(2):
        with pytest.raises(BlockNotOnSourceChain):
            await made.at(BUSY + 1)
    assert made.calls() == {}
    made.put(sepolia(BUSY + 1))
    made.clock.move(0.3)
    assert (await made.at(BUSY + 1)).height == BUSY + 1
    assert made.calls()["fetch"] == 1


async def test_a_height_far_above_the_head_costs_nothing() -> None:
    made = await scene(head=BUSY)
    made.clock.move(25)
    with pytest.raises(BlockNotOnSourceChain):
        await made.at(BUSY + 1000)
    assert made.calls() == {}


async def test_B26_a_null_for_a_height_that_exists_is_no_absence() -> None:
    made = await scene()
    made.upstream.fail("fetch", RpcUnavailable("null for a block below the head"), times=2)
    with pytest.raises(RpcUnavailable) as refused:
        await made.at(BUSY)
    assert refused.value.retriable
    made.clock.move(1)
    assert (await made.at(BUSY)).height == BUSY


async def test_B43_an_empty_block_is_at_hand_like_any_other() -> None:
    made = await scene(finalized=HEAD)
    for _ in range(3):
        block = await made.at(BUSY + 2)
        with pytest.raises(ProofError) as refused:
            block.transaction_proof(0)
        assert refused.value.code == "EmptyBlockTxProof"
    assert made.calls() == {"fetch": 1, "build": 1}


# --- by hash --------------------------------------------------------------------------------------------------------


async def test_a_block_by_its_hash_is_checked_to_be_canonical() -> None:
    made = await scene(finalized=BUSY)
    block = await made.by_hash(hash_of(sepolia(BUSY)))
    assert made.calls() == {"fetch": 1, "build": 1, "height_of": 1}
    assert await made.by_hash(block.block_hash) is block
    assert await made.at(BUSY) is block
    assert made.calls() == {}


@pytest.mark.parametrize("finalized", [BUSY, FINALIZED], ids=["finalized", "above-finality"])
async def test_D6_an_orphan_by_its_hash_is_refused_and_costs_the_others_nothing(finalized: int) -> None:
    made = await scene(finalized=finalized)
    orphan = forged(sepolia(BUSY), extraData="0xf0")
    made.put(orphan, canonical=False)
    await made.at(BUSY)
    made.calls()
    for _ in range(3):
        with pytest.raises(BlockNotOnSourceChain, match="not the canonical block"):
            await made.by_hash(hash_of(orphan))
    assert "fetch" not in made.calls()
    block = await made.at(BUSY)
    assert block.block_hash == hash_of(sepolia(BUSY))
    assert made.calls() == ({} if finalized == BUSY else {"name_of": 1})


async def test_a_hash_nobody_knows_is_not_on_the_chain() -> None:
    made = await scene()
    with pytest.raises(BlockNotOnSourceChain):
        await made.by_hash(bytes(32))


# --- by transaction -------------------------------------------------------------------------------------------------


async def test_a_transaction_is_found_where_its_block_holds_it() -> None:
    made = await scene()
    for index, tx_hash in enumerate(BUSY_TXS):
        found = await made.chain.transaction(tx_hash)
        assert (found.block.height, found.index) == (BUSY, index)
        assert keccak(found.block.transaction_proof(index).value) == tx_hash
    assert made.calls() == {"position": 1, "fetch": 1, "build": 1, "name_of": 2}


async def test_B45_an_unknown_transaction_is_not_remembered() -> None:
    made = await scene()
    position = made.upstream.positions.pop(BUSY_TXS[0])
    for _ in range(2):
        with pytest.raises(TxHashNotFound):
            await made.chain.transaction(BUSY_TXS[0])
    assert made.calls() == {"position": 2}
    made.upstream.add_position(BUSY_TXS[0], position)
    assert (await made.chain.transaction(BUSY_TXS[0])).index == 0


async def test_a_pending_transaction_is_said_to_be_and_found_once_mined() -> None:
    made = await scene()
    made.upstream.pending.add(BUSY_TXS[0])
    with pytest.raises(TxNotMined):
        await made.chain.transaction(BUSY_TXS[0])
    made.upstream.pending.clear()
    assert (await made.chain.transaction(BUSY_TXS[0])).index == 0


async def test_a_block_that_does_not_hold_the_transaction_proves_the_node_wrong() -> None:
    made = await scene()
    stranger = keccak(b"stranger")
    made.upstream.add_position(stranger, Position(hash_of(sepolia(BUSY)), BUSY, 0))
    with pytest.raises(InconsistentSource, match="does not hold it"):
        await made.chain.transaction(stranger)


async def test_B08_a_transaction_that_the_header_does_not_commit_to_is_said_so() -> None:
    made = await scene(family="polygon")
    record = sepolia(BUSY)
    listed = record["block"]["transactions"]
    phantom = keccak(b"matic-bor-receipt-" + BUSY.to_bytes(8, "big") + hash_of(record))
    listed.append(dict.fromkeys(("gasPrice", "nonce", "value", "v", "r", "s"), "0x0"))
    listed[-1] |= {
        "blockHash": record["block"]["hash"],
        "blockNumber": hex(BUSY),
        "from": "0x" + "00" * 20,
        "to": "0x" + "00" * 20,
        "gas": "0x0",
        "hash": "0x" + phantom.hex(),
        "input": "0x",
        "transactionIndex": hex(len(listed) - 1),
        "type": "0x0",
    }
    made.put(record)
    for _ in range(2):
        with pytest.raises(NotCommittedByHeader):
            await made.chain.transaction(phantom)
    assert (await made.chain.transaction(BUSY_TXS[2])).index == 2
    assert made.calls()["fetch"] == 1


async def test_a_position_above_the_head_seen_last_is_looked_at_again() -> None:
    made = await scene(head=BUSY - 1)
    made.clock.move(0.1)
    made.put(sepolia(BUSY))
    assert (await made.chain.transaction(BUSY_TXS[0])).block.height == BUSY
    assert made.chain.head.heads.head == BUSY


async def test_B25_a_position_that_a_node_behind_cannot_serve_is_retriable() -> None:
    made = await scene(head=BUSY - 1)
    made.put(sepolia(BUSY))
    made.upstream.tags["latest"] = BUSY - 1
    with pytest.raises(InconsistentSource) as refused:
        await made.chain.transaction(BUSY_TXS[0])
    assert refused.value.retriable
    assert "fetch" not in made.calls()


# --- levels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("height", "level"),
    [(BUSY - 2, Level.FINALIZED), (BUSY - 1, Level.SAFE), (BUSY, Level.SAFE), (BUSY + 1, Level.LATEST)],
)
async def test_an_answer_says_how_final_it_is(height: int, level: Level) -> None:
    made = await scene()
    await made.see(safe=BUSY, finalized=BUSY - 2)
    for ref in (BlockRef(height=height), BlockRef(block_hash=hash_of(sepolia(height)))):
        assert (await made.chain.block(ref)).finality == Finality(level, "rpc-tag", 1)


async def test_a_level_grows_with_the_chain_and_without_a_fetch() -> None:
    made = await scene(finalized=BUSY - 1)
    assert (await made.chain.transaction(BUSY_TXS[0])).finality.level is Level.LATEST
    await made.see(safe=BUSY, finalized=BUSY - 1)
    assert (await made.chain.transaction(BUSY_TXS[0])).finality.level is Level.SAFE
    await made.see(finalized=BUSY)
    assert (await made.chain.transaction(BUSY_TXS[0])).finality.level is Level.FINALIZED
    assert made.calls()["fetch"] == 1


async def test_by_height_a_level_not_reached_is_refused_without_a_call() -> None:
    made = await scene(finalized=BUSY - 1)
    for level in (Level.SAFE, Level.FINALIZED):
        with pytest.raises(NotFinalized) as refused:
            await made.at(BUSY, level)
        assert refused.value.retriable
    assert made.calls() == {}
    assert (await made.at(BUSY - 1, Level.FINALIZED)).height == BUSY - 1


async def test_by_hash_and_by_transaction_a_level_not_reached_is_refused() -> None:
    made = await scene(finalized=BUSY - 1)
    with pytest.raises(NotFinalized):
        await made.by_hash(hash_of(sepolia(BUSY)), Level.SAFE)
    with pytest.raises(NotFinalized):
        await made.chain.transaction(BUSY_TXS[0], Level.FINALIZED)
    assert (await made.chain.transaction(BUSY_TXS[0], Level.LATEST)).index == 0


async def test_before_the_first_head_nothing_is_final_and_blocks_are_served() -> None:
    made = RecordedChain(BUSY, BUSY)
    found = await made.chain.block(BlockRef(height=BUSY))
    assert found.finality.level is Level.LATEST
    with pytest.raises(NotFinalized):
        await made.at(BUSY, Level.FINALIZED)


async def test_depth_says_so() -> None:
    made = RecordedChain(BUSY, BUSY)
    made.upstream.tags["latest"] = BUSY
    await made.chain.head.poll()
    assert (await made.chain.block(BlockRef(height=BUSY))).finality == Finality(Level.LATEST, "depth", 1)


async def test_what_became_final_while_it_was_read_is_asked_for_again() -> None:
    made = await scene(finalized=BUSY - 1, head=BUSY)
    replacement = branch(BUSY, [EMPTY] * 3)
    hold = made.upstream.hold("fetch.after")
    asking = asyncio.create_task(made.chain.block(BlockRef(height=BUSY)))
    await hold.reached()
    made.upstream.unhold()
    made.reorg(replacement)
    await made.see(finalized=BUSY)  # two blocks further on: the new head alone does not show what was replaced
    hold.release()
    found = await asking
    assert found.block.block_hash == hash_of(replacement[0])
    assert found.finality.level is Level.FINALIZED
    assert made.chain.cache.pin_is_final(BUSY)


# --- reorgs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [False, True], ids=["not-seen-yet", "seen"])
async def test_B44_a_replaced_block_is_never_answered_by_number(seen: bool) -> None:
    made = await scene()
    old = await made.at(BUSY)
    replacement = branch(BUSY, [EMPTY, EMPTY, EMPTY, EMPTY])
    made.reorg(replacement)
    if seen:
        await made.see(finalized=FINALIZED)
        assert made.metric("reorgs_total", chain="sepolia") == 1
    made.calls()
    answers = [await made.at(BUSY) for _ in range(3)]
    assert {answer.block_hash for answer in answers} == {hash_of(replacement[0])}
    assert made.calls()["fetch"] == 1
    assert made.chain.filling.held(old.block_hash) is old


@pytest.mark.parametrize("seen", [False, True], ids=["not-seen-yet", "seen"])
async def test_B44_a_moved_transaction_is_found_at_its_new_place(seen: bool) -> None:
    made = await scene()
    await made.chain.transaction(BUSY_TXS[2])
    replacement = branch(BUSY, [EMPTY, sepolia(BUSY), EMPTY, EMPTY])
    made.reorg(replacement)
    if seen:
        await made.see(finalized=FINALIZED)
    made.calls()
    found = await made.chain.transaction(BUSY_TXS[2])
    assert (found.block.block_hash, found.block.height, found.index) == (hash_of(replacement[1]), BUSY + 1, 2)
    # The old block's height is not filled to learn that it moved.
    asked = {"position": 1, "fetch": 1, "build": 1}
    assert made.calls() == (asked if seen else {"name_of": 1, **asked})


@pytest.mark.parametrize("seen", [False, True], ids=["not-seen-yet", "seen"])
@pytest.mark.parametrize("length", [4, 0], ids=["replaced", "shorter"])
async def test_B44_a_vanished_transaction_is_not_found(length: int, seen: bool) -> None:
    made = await scene()
    await made.chain.transaction(BUSY_TXS[0])
    if length:
        made.reorg(branch(BUSY, [EMPTY] * length))
    else:
        made.upstream.revert_from(BUSY)
        made.reorg([forged(sepolia(BUSY - 1), extraData="0xf1")])
    if seen:
        await made.see(finalized=FINALIZED)
    with pytest.raises(TxHashNotFound):
        await made.chain.transaction(BUSY_TXS[0])


async def test_B44_a_replaced_block_by_its_hash_is_not_on_the_chain() -> None:
    made = await scene()
    old = await made.by_hash(hash_of(sepolia(BUSY)))
    made.reorg(branch(BUSY, [EMPTY, EMPTY]))
    made.calls()
    with pytest.raises(BlockNotOnSourceChain):
        await made.by_hash(old.block_hash)
    assert made.calls() == {"name_of": 1}


async def test_D6_after_a_reorg_there_and_back_nothing_is_fetched_again() -> None:
    made = await scene()
    originals = [sepolia(height) for height in range(BUSY, HEAD + 1)]
    replacement = branch(BUSY, [EMPTY, EMPTY])
    old = await made.at(BUSY)
    made.reorg(replacement)
    new = await made.at(BUSY)
    made.reorg(originals)
    made.calls()
    assert await made.at(BUSY) is old
    assert (await made.chain.transaction(BUSY_TXS[0])).block is old
    assert "fetch" not in made.calls()
    made.reorg(replacement)
    assert await made.at(BUSY) is new
    assert "fetch" not in made.calls()


async def test_D6_a_reorg_leaves_the_pins_below_alone() -> None:
    made = await scene(finalized=BUSY - 2, head=BUSY)
    for height in (BUSY - 2, BUSY - 1, BUSY):
        await made.at(height)
    made.reorg(branch(BUSY, [EMPTY]))
    await made.see(finalized=BUSY - 2)
    assert made.metric("reorgs_total", chain="sepolia") == 1
    pinned = [made.chain.cache.hash_at(height) is not None for height in (BUSY - 2, BUSY - 1, BUSY)]
    assert pinned == [True, True, False]


@pytest.mark.parametrize("depth", [1, 3], ids=["shown-by-its-own-height", "deeper-than-shown"])
@pytest.mark.parametrize("point", ["accept", "fetch.after"])
async def test_B44_a_fill_in_flight_does_not_write_the_old_block_back(point: str, depth: int) -> None:
    made = await scene(finalized=BUSY - 3)
    for head in range(BUSY - 1, BUSY + depth):
        await made.see(head, finalized=BUSY - 3)
    made.calls()
    hold = made.upstream.hold(point)
    asking = [asyncio.create_task(made.at(BUSY)) for _ in range(3)]
    asking_tx = asyncio.create_task(made.chain.transaction(BUSY_TXS[0]))
    await hold.reached()
    await settle()
    made.upstream.unhold()
    replacement = branch(BUSY, [EMPTY] * 3 if depth == 1 else [EMPTY, EMPTY, EMPTY, sepolia(BUSY)])
    made.reorg(replacement)
    await made.see(BUSY + depth, finalized=BUSY - 3)
    assert made.metric("reorgs_total", chain="sepolia") == 1
    hold.release()
    assert {block.block_hash for block in await asyncio.gather(*asking)} == {hash_of(replacement[0])}
    if depth == 1:
        with pytest.raises(TxHashNotFound):
            await asking_tx
    else:
        assert (await asking_tx).block.block_hash == hash_of(replacement[3])
    assert made.chain.cache.hash_at(BUSY) == hash_of(replacement[0])
    assert made.chain.cache.peek(hash_of(sepolia(BUSY))) is None
    assert made.at_rest()


async def test_B25_a_head_that_jumps_about_flushes_nothing() -> None:
    made = await scene()
    block = await made.at(BUSY)
    for head in (HEAD, BUSY - 2, HEAD, BUSY - 6, HEAD):
        await made.see(head, finalized=FINALIZED)
        assert made.chain.servable
        assert made.chain.reasons == ((IN_DOUBT,) if head < FINALIZED else ())
    made.calls()
    assert await made.at(BUSY) is block
    assert made.calls() == {"name_of": 1}
    assert made.metric("reorgs_total", chain="sepolia") == 0


async def test_a_position_from_before_a_reorg_is_looked_up_again() -> None:
    made = await scene()
    replacement = branch(BUSY, [EMPTY, sepolia(BUSY)])
    hold = made.upstream.hold("position.after")
    asking = asyncio.create_task(made.chain.transaction(BUSY_TXS[1]))
    await hold.reached()
    made.upstream.unhold()
    made.reorg(replacement)
    hold.release()
    found = await asking
    assert (found.block.block_hash, found.index) == (hash_of(replacement[1]), 1)
    assert made.calls()["position"] == 2


async def test_B45_an_absence_from_before_a_reorg_is_not_told_after_it() -> None:
    made = await scene()
    made.upstream.positions.pop(BUSY_TXS[1])
    hold = made.upstream.hold("position.after")
    asking = asyncio.create_task(made.chain.transaction(BUSY_TXS[1]))
    await hold.reached()
    made.upstream.unhold()
    made.reorg(branch(HEAD, [sepolia(BUSY)]))
    await made.see(finalized=FINALIZED)
    late = asyncio.create_task(made.chain.transaction(BUSY_TXS[1]))
    hold.release()
    assert [found.block.height for found in await asyncio.gather(asking, late)] == [HEAD, HEAD]


async def test_a_transaction_that_moves_faster_than_it_can_be_read_is_given_up() -> None:
    made = await scene()
    other = forged(sepolia(BUSY), extraData="0xf0")
    made.upstream.add_position(BUSY_TXS[0], Position(hash_of(other), BUSY, 0))  # never the block that is fetched
    with pytest.raises(InconsistentSource, match="moved between blocks") as refused:
        await made.chain.transaction(BUSY_TXS[0])
    assert refused.value.retriable
    cost = made.calls()
    assert cost["position"] == REPLACED_TRIES
    assert cost["fetch"] == 1


async def test_a_node_that_names_a_block_without_the_transaction_is_not_believed() -> None:
    made = await scene()
    wrong, right = Position(hash_of(EMPTY), BUSY + 2, 0), made.upstream.positions[BUSY_TXS[0]]
    made.upstream.add_position(BUSY_TXS[0], wrong)
    position = made.upstream.position

    async def corrected(tx_hash: bytes, refuted: Collection[Position] = ()) -> Position | None:
        if wrong in refuted:
            made.upstream.add_position(tx_hash, right)
        return await position(tx_hash, refuted)

    made.upstream.position = corrected  # type: ignore[method-assign]
    found = await made.chain.transaction(BUSY_TXS[0])
    assert (found.block.block_hash, found.index) == (right.block_hash, 0)
    assert made.upstream.refuted == {wrong}


async def test_a_block_that_vanishes_between_position_and_fetch_is_looked_up_again() -> None:
    made = await scene()
    hold = made.upstream.hold("fetch")
    asking = asyncio.create_task(made.chain.transaction(BUSY_TXS[0]))
    await hold.reached()
    made.upstream.unhold()
    made.upstream.revert_from(BUSY)
    hold.release()
    with pytest.raises(TxHashNotFound):
        await asking
    assert made.calls()["position"] == 2


# --- what does not last ---------------------------------------------------------------------------------------------


async def test_D1_unmet_receipts_are_refused_as_long_as_the_caller_is_asked_to_wait_and_transactions_proven() -> None:
    made = await scene(finalized=BUSY)
    made.put(with_unmet_receipts(sepolia(BUSY)))
    for remembered_s in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        found = await made.chain.transaction(BUSY_TXS[0])
        made.calls()
        made.clock.move(remembered_s - 0.01)
        assert keccak(found.block.transaction_proof(0).value) == BUSY_TXS[0]
        with pytest.raises(InconsistentSource) as refused:
            (await made.at(BUSY)).receipt_proof(0)
        assert refused.value.retry_after_s == pytest.approx(0.01 + 1.0)  # the rest of the wait, and half of the spread
        assert made.calls() == {}
        made.clock.move(0.02)
    made.put(sepolia(BUSY))
    assert (await made.at(BUSY)).receipt_proof(0).value
    assert made.calls() == {"fetch": 1, "build": 1}
    await made.at(BUSY)
    assert made.calls() == {}


async def test_receipts_that_were_not_to_be_had_are_asked_for_again_at_once() -> None:
    made = await scene(finalized=BUSY)
    record = sepolia(BUSY)
    record["receipts"] = None
    made.put(record)
    for _ in range(2):
        block = await made.at(BUSY)
        assert block.transaction_proof(0).value
        with pytest.raises(ProofError) as refused:
            block.receipt_proof(0)
        assert refused.value.code in ("InconsistentSource", "RpcUnavailable", "HistoryUnavailable")
    assert made.calls() == {"fetch": 2, "build": 2}
    made.put(sepolia(BUSY))
    assert (await made.at(BUSY)).receipt_proof(0).value


# --- what is said of it ---------------------------------------------------------------------------------------------


async def test_a_chain_without_a_head_is_not_servable_until_it_has_blocks_or_a_head() -> None:
    made = RecordedChain(BUSY, BUSY)

    def says() -> tuple[bool, tuple[str, ...]]:
        return made.chain.servable, made.chain.reasons

    assert says() == (False, ("no head seen yet",))
    await made.see(finalized=BUSY)
    assert says() == (True, ())
    made.clock.move(31)
    assert says() == (False, ("head is stale",))
    await made.see(finalized=BUSY)
    await made.at(BUSY)
    made.clock.move(31)
    assert says() == (True, ("head is stale",))  # what is known is still served


async def test_D7_a_stale_chain_still_answers_and_asks_again_for_what_may_have_changed() -> None:
    made = await scene(finalized=BUSY)
    await made.at(BUSY)
    await made.at(BUSY + 1)
    made.clock.move(3600)
    made.calls()
    assert (await made.at(BUSY)).height == BUSY
    assert made.calls() == {}
    made.upstream.fail("name_of", DOWN, times=None)
    with pytest.raises(RpcUnavailable):
        await made.at(BUSY + 1)


async def test_the_listing_names_heights_and_nothing_secret() -> None:
    made = await scene()
    listed = made.chain.status()
    assert {name: listed[name] for name in ("chainKey", "name", "chainId", "head", "safe", "finalized")} == {
        "chainKey": 7,
        "name": "sepolia",
        "chainId": "11155111",
        "head": HEAD,
        "safe": FINALIZED,
        "finalized": FINALIZED,
    }
    assert listed["kinds"] == ["transaction", "receipt", "log"]
    assert made.metric("chain_safe_head", chain="sepolia") == FINALIZED


async def test_without_anchors_no_continuity_is_promised() -> None:
    made = await scene()
    assert made.chain.anchored.is_set()
    assert made.chain.attested_height is None
    with pytest.raises(AttestationsMissing):
        made.chain.require_anchored(BUSY, BUSY)
    with pytest.raises(AttestationsMissing):
        await made.chain.continuity(BUSY, BUSY)
    assert made.calls() == {}


# --- whatever happens -----------------------------------------------------------------------------------------------


class Restless:
    """A chain that grows and forks at random while it is asked, its answers held up here and there."""

    def __init__(self, made: RecordedChain, seed: int) -> None:
        self.made = made
        self.chance = random.Random(seed)
        self.finalized = FINALIZED
        self.branches = 0
        self.round = 0
        self.canonical_in: dict[int, dict[int, bytes]] = {}
        """Round -> height -> hash."""
        self._holds: list[Hold] = []
        self._note()

    def _note(self) -> None:
        self.round += 1
        self.canonical_in[self.round] = {at: name.block_hash for at, name in self.made.upstream.canonical.items()}

    @property
    def head(self) -> int:
        return max(self.made.upstream.canonical)

    async def hear(self) -> None:
        self.made.upstream.unhold()  # whoever was stopped stays so; the tracker's own questions are not
        await self.made.see(finalized=self.finalized)

    def fork(self, growth: int) -> None:
        """Other blocks from some height above finality on, up to at most `growth` above the head."""
        self.branches += 1
        first = self.chance.randrange(max(self.finalized + 1, self.head - 3), self.head + 1)
        last = self.chance.randrange(max(first, self.head - 1), self.head + 1 + growth)
        blocks: list[Record] = []
        parent = "0x" + self.made.upstream.canonical[first - 1].block_hash.hex()
        for height in range(first, last + 1):
            content = self.chance.choice([EMPTY, EMPTY, sepolia(BUSY)])
            names = {"number": hex(height), "parentHash": parent, "extraData": f"0x{self.branches:04x}"}
            blocks.append(forged(EMPTY, content=content, **names))
            parent = blocks[-1]["block"]["hash"]
        self.made.reorg(blocks)
        self._note()

    def finalize(self) -> None:
        """A little more is final; the head itself never is."""
        self.finalized = min(self.head - 1, self.finalized + self.chance.randrange(5))

    def a_height(self) -> int:
        return self.chance.randrange(self.finalized - 1, self.head + 2)

    def hold(self) -> None:
        point = self.chance.choice(["fetch", "accept", "fetch.after", "name_of.after", "position.after"])
        self._holds.append(self.made.upstream.hold(point))

    def let_go(self) -> None:
        self.made.upstream.unhold()
        while self._holds:
            self._holds.pop().release()

    async def come_to_rest(self) -> None:
        self.let_go()
        self.made.upstream.heal()
        await settle(1000)


@pytest.mark.parametrize("seed", range(12))
async def test_B44_whatever_forks_an_answer_was_canonical_while_it_was_asked_for(seed: int) -> None:
    made = await scene(max_fills=4)
    restless = Restless(made, seed)
    asked: list[tuple[int, asyncio.Task[Found]]] = []
    ended_in: dict[asyncio.Task[Found], int] = {}
    chance = restless.chance
    for _ in range(300):
        match chance.randrange(10):
            case 0 | 1:
                restless.hold()
            case 2:
                restless.let_go()
            case 3:
                restless.fork(growth=1)
                await restless.hear()
            case 4 if chance.random() < 0.3:
                restless.finalize()
                await restless.hear()
            case 5 if asked and chance.random() < 0.3:
                chance.choice(asked)[1].cancel()
            case 6 if chance.random() < 0.3:
                made.upstream.fail(chance.choice(["fetch", "name_of", "position"]), DOWN)
                made.clock.move(0.5)
            case _:
                asking = (
                    made.chain.transaction(chance.choice(BUSY_TXS))
                    if chance.random() < 0.3
                    else made.chain.block(BlockRef(height=restless.a_height()))
                )
                task = asyncio.create_task(asking)
                task.add_done_callback(lambda done: ended_in.setdefault(done, restless.round))
                asked.append((restless.round, task))
        await settle(chance.randrange(12))
    await restless.come_to_rest()
    served = 0
    for started_in, task in asked:
        assert task.done()
        if task.cancelled() or isinstance(task.exception(), ProofError):
            continue
        block = task.result().block
        rounds = range(started_in, ended_in[task] + 1)
        assert any(restless.canonical_in[at].get(block.height) == block.block_hash for at in rounds)
        served += 1
    assert served > len(asked) / 4
    assert made.at_rest()


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_the_tracker_missed_what_was_called_final_stays(seed: int) -> None:
    made = await scene(max_fills=4)
    restless = Restless(made, seed)
    asked: list[asyncio.Task[None]] = []
    called_final: dict[int, set[bytes]] = defaultdict(set)

    async def ask(height: int) -> None:
        found = await made.chain.block(BlockRef(height=height))
        if found.finality.level is Level.FINALIZED:
            called_final[found.block.height].add(found.block.block_hash)

    async def crowd() -> None:
        heights = [restless.a_height() for _ in range(restless.chance.randrange(6))]
        asked.extend(asyncio.create_task(ask(height)) for height in heights)
        await settle(restless.chance.randrange(12))

    for _ in range(40):
        for _ in range(restless.chance.randrange(3)):
            restless.hold()
        await crowd()
        for _ in range(restless.chance.randrange(3)):
            restless.fork(growth=4)  # unheard of, and often too far on for the next head to show it
            await crowd()
        restless.finalize()
        await restless.hear()
        await crowd()
        restless.let_go()
        await crowd()
    await restless.come_to_rest()
    for outcome in await asyncio.gather(*asked, return_exceptions=True):
        assert outcome is None or isinstance(outcome, ProofError)
    assert len(called_final) > 5
    canonical = {height: {name.block_hash} for height, name in made.upstream.canonical.items()}
    assert called_final == {height: canonical[height] for height in called_final}
    for height in range(BUSY - 6, restless.finalized + 1):
        assert {(await made.at(height)).block_hash} == canonical[height]
    assert made.at_rest()


def test_what_is_wrong_with_a_node_is_said_by_name_in_words_of_a_closed_set() -> None:
    well = {"name": "a", "state": "ok", "breaker": "closed", "lastError": {"what": "timed out", "ageSeconds": 9.0}}
    told = [
        well,
        {**well, "name": "b", "breaker": "open"},
        {**well, "name": "c", "breaker": "half-open", "lastError": None},
        {**well, "name": "d", "state": "unverified"},
        {**well, "name": "e", "state": "unverified", "lastError": None},
        {**well, "name": "f", "state": "wrong-chain", "breaker": "open"},
        {**well, "name": "g", "state": "denied"},
        {**well, "name": "h", "state": "astray"},
        {**well, "name": "i", "state": "limited"},
    ]
    assert list(upstream_reasons(told)) == [
        "upstream b fails: timed out",
        "upstream c does not answer",
        "upstream d fails: timed out",
        "upstream f serves another chain",
        "upstream g refuses our credentials",
        "upstream h contradicts the others about what is final",
    ]
