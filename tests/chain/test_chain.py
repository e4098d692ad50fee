"""One chain, asked by height, hash and transaction, while the chain behind it grows, forks and fails."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from typing import Any

import pytest

from app.chain.chain import REPLACED_TRIES, Found
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
    LAST,
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


async def test_F1_cold_questions_of_every_kind_by_place_share_one_fetch() -> None:
    made = await scene()
    hold = made.upstream.hold("fetch")
    asking = [asyncio.create_task(made.chain.block(BlockRef(height=BUSY))) for _ in range(16)]
    asking += [asyncio.create_task(made.chain.transaction(tx_hash)) for tx_hash in BUSY_TXS * 5]
    await hold.reached()
    await settle()
    hold.release()
    blocks = {id(found.block) for found in await asyncio.gather(*asking)}
    assert len(blocks) == 1
    assert made.calls() == {"fetch": 1, "build": 1, "position": 3}


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
    assert made.calls() == {"fetch": 1, "build": 1, "name_of": 1}
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
    assert made.calls().get("fetch") == 1
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
    await made.see(finalized=BUSY)  # two blocks further on: nothing shows that the block in hand was replaced
    assert made.metric("reorgs_total", chain="sepolia") == 0
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
    assert made.calls() == {"name_of": 1, "position": 1, "fetch": 1, "build": 1}


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
        assert made.chain.reasons == ()
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


async def test_D1_unmet_receipts_are_refused_for_a_minute_without_a_refetch_and_transactions_proven() -> None:
    made = await scene(finalized=BUSY)
    made.put(with_unmet_receipts(sepolia(BUSY)))
    for elapsed in (0, 59.9):
        made.clock.move(elapsed)
        found = await made.chain.transaction(BUSY_TXS[0])
        assert keccak(found.block.transaction_proof(0).value) == BUSY_TXS[0]
        with pytest.raises(InconsistentSource):
            (await made.at(BUSY)).receipt_proof(0)
    cost = made.calls()
    assert (cost["fetch"], cost["build"]) == (1, 1)
    made.put(sepolia(BUSY))
    made.clock.move(0.2)
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
    """A chain that forks and grows at random, and everything ever said of it, for a judge."""

    def __init__(self, made: RecordedChain, chance: random.Random) -> None:
        self.made = made
        self.chance = chance
        self.finalized = FINALIZED
        self.round = 0
        self.canonical_at: dict[int, dict[int, bytes]] = {}
        """Round -> height -> hash."""
        self.note()

    def note(self) -> None:
        self.round += 1
        self.canonical_at[self.round] = {
            height: name.block_hash for height, name in self.made.upstream.canonical.items()
        }

    async def hear(self) -> None:
        head = self.made.upstream.head
        assert head is not None
        await self.made.see(finalized=self.finalized)

    def fork(self, longest: int) -> None:
        """Replaces a few blocks above finality by others; the new head is at most `longest` above the old one."""
        upstream = self.made.upstream
        head = max(upstream.canonical)
        first = self.chance.randrange(max(self.finalized + 1, head - 3), head + 1)
        last = min(self.chance.randrange(first, head + 1 + longest), LAST)
        contents = [self.chance.choice([EMPTY, sepolia(BUSY), sepolia(BUSY + 1)]) for _ in range(first, last + 1)]
        blocks: list[Record] = []
        parent = "0x" + upstream.canonical[first - 1].block_hash.hex()
        for height, content in enumerate(contents, first):
            extra = f"0x{self.chance.randrange(256):02x}"
            blocks.append(forged(sepolia(height), content=content, parentHash=parent, extraData=extra))
            parent = blocks[-1]["block"]["hash"]
        self.made.reorg(blocks)
        self.note()

    def finalize(self) -> None:
        head = max(self.made.upstream.canonical)
        self.finalized = self.chance.randrange(self.finalized, head)

    def heights(self) -> range:
        return range(BUSY - 6, max(self.made.upstream.canonical) + 3)


@pytest.mark.parametrize("seed", range(8))
async def test_B44_whatever_forks_an_answer_was_canonical_while_it_was_asked_for(seed: int) -> None:
    chance = random.Random(seed)
    made = await scene(max_fills=4)
    restless = Restless(made, chance)
    asked: list[tuple[int, int, asyncio.Task[Found]]] = []  # round at the start, at the end, the answer
    done_in: dict[asyncio.Task[Found], int] = {}
    holds: list[Hold] = []

    def ask() -> None:
        height = chance.choice(restless.heights())
        if chance.random() < 0.3:
            coroutine = made.chain.transaction(chance.choice(BUSY_TXS))
        else:
            coroutine = made.chain.block(BlockRef(height=height))
        task = asyncio.create_task(coroutine)
        task.add_done_callback(lambda done: done_in.setdefault(done, restless.round))
        asked.append((restless.round, height, task))

    def let_go() -> None:
        made.upstream.unhold()
        while holds:
            holds.pop().release()

    for _ in range(120):
        match chance.randrange(8):
            case 0:
                holds.append(made.upstream.hold(chance.choice(["fetch", "accept", "fetch.after", "name_of.after"])))
            case 1:
                let_go()
            case 2:
                let_go()
                restless.fork(longest=1)
                await restless.hear()
            case 3 if asked:
                chance.choice(asked)[2].cancel()
            case 4:
                made.upstream.fail(chance.choice(["fetch", "name_of", "position"]), DOWN)
            case 5:
                made.clock.move(chance.choice([0.1, 0.3, 61.0]))
            case _:
                ask()
        await settle(chance.randrange(4))
    let_go()
    made.upstream.heal()
    await settle(600)
    served = 0
    for start, _, task in asked:
        assert task.done()
        if task.cancelled() or isinstance(task.exception(), ProofError):
            continue
        found = task.result()
        served += 1
        block = found.block
        rounds = range(start, done_in[task] + 1)
        assert any(restless.canonical_at[at].get(block.height) == block.block_hash for at in rounds)
    assert served > 10
    assert made.at_rest()


@pytest.mark.parametrize("seed", range(8))
async def test_what_was_called_final_stays_whatever_the_tracker_missed(seed: int) -> None:
    chance = random.Random(seed)
    made = await scene(max_fills=4)
    restless = Restless(made, chance)
    called_final: dict[int, set[bytes]] = defaultdict(set)
    asked: list[asyncio.Task[Found]] = []
    holds: list[Hold] = []

    async def ask(height: int) -> Found:
        found = await made.chain.block(BlockRef(height=height))
        if found.finality.level is Level.FINALIZED:
            called_final[found.block.height].add(found.block.block_hash)
        return found

    for _ in range(150):
        match chance.randrange(7):
            case 0:
                holds.append(made.upstream.hold(chance.choice(["fetch.after", "accept", "name_of.after"])))
            case 1:
                made.upstream.unhold()
                while holds:
                    holds.pop().release()
            case 2:
                restless.fork(longest=4)  # unheard of
            case 3:
                restless.finalize()
                made.upstream.unhold()
                await restless.hear()
            case _:
                asked.append(asyncio.create_task(ask(chance.choice(restless.heights()))))
        await settle(chance.randrange(4))
    made.upstream.unhold()
    while holds:
        holds.pop().release()
    await settle(600)
    with contextlib.suppress(ProofError):
        await asyncio.gather(*asked)
    assert called_final
    canonical = {height: {name.block_hash} for height, name in made.upstream.canonical.items()}
    assert called_final == {height: canonical[height] for height in called_final}
    for height in range(BUSY - 6, restless.finalized + 1):
        assert {(await made.at(height)).block_hash} == canonical[height]
    assert made.at_rest()
