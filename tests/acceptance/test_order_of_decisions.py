"""In which order a request by hash is decided on: positions, what the heights alone rule out, places, and only then fills.

Counted at the node and at the door.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.core.blocks import BlockRef, Position
from app.core.errors import NotFinalized, TxHashNotFound
from app.core.finality import Level
from tests.api.exchanges import asked
from tests.api.long_bracket import GENESIS, HEIGHTS, MIDDLE, UPPER, blocks, busy, cold_chain, tx_hash
from tests.api.test_bracket_cost import NONE_IN, filled, post, post_by_tx
from tests.chain.recorded_chain import BUSY, FIRST, LAST, RecordedChain, from_hex, hash_of, sepolia
from tests.fakes import settle

UNKNOWN = "0x" + "ab" * 32


def known_at(recorded: RecordedChain, height: int, hashes: list[str]) -> None:
    """The node puts these transactions at another height than theirs."""
    block_hash = hash_of(blocks()[height]) if height in blocks() else bytes(32)
    for index, each in enumerate(hashes):
        recorded.upstream.add_position(from_hex(each), Position(block_hash, height, index))


# --- what the heights rule out costs no block -------------------------------------------------------------------------


async def test_a_batch_by_hash_that_spans_too_much_fetches_nothing() -> None:
    recorded = await cold_chain()
    heights = sorted(busy(7))
    async with asked(recorded, max_batch_span=heights[-1] - heights[0] - 1) as doors:
        position = recorded.upstream.hold("position")
        wide = post_by_tx(doors, [tx_hash(height) for height in heights])
        await position.reached()
        await settle()
        assert doors.in_flight == (1, 1, 1), "one place, for finding out where the transactions are"
        position.release()
        await wide
        assert (wide.status, wide.code) == (400, "BatchSpanTooLarge")
        assert recorded.calls() == {"position": 7}
        assert doors.in_flight == NONE_IN


@pytest.mark.parametrize("height", [GENESIS, GENESIS - 1, 0])
async def test_what_lies_at_or_below_the_genesis_costs_no_block(height: int) -> None:
    recorded = await cold_chain()
    known_at(recorded, height, [UNKNOWN])
    async with asked(recorded) as doors:
        for exchange in (doors.ask(f"/api/v1/proof-by-tx/7/{UNKNOWN}"), post_by_tx(doors, [tx_hash(), UNKNOWN])):
            await exchange
            assert (exchange.status, exchange.code) == (400, "BlockBeforeOrAtGenesis")
        assert set(recorded.calls()) == {"position"}
        assert doors.in_flight == NONE_IN


async def test_what_no_anchor_covers_yet_costs_no_block() -> None:
    recorded = await cold_chain()
    known_at(recorded, UPPER + 1, [UNKNOWN])
    async with asked(recorded) as doors:
        for exchange in (doors.ask(f"/api/v1/proof-by-tx/7/{UNKNOWN}"), post_by_tx(doors, [tx_hash(), UNKNOWN])):
            await exchange
            assert (exchange.status, exchange.code) == (422, "BlockNotReady")
        assert set(recorded.calls()) == {"position"}


async def test_what_is_not_final_yet_costs_no_block_where_it_has_to_be() -> None:
    recorded = RecordedChain()
    await recorded.see(finalized=FIRST)
    recorded.calls()
    by_tx, by_hash = sepolia(BUSY)["block"]["transactions"][0]["hash"], "0x" + hash_of(sepolia(BUSY)).hex()
    async with asked(recorded) as doors:
        for path, calls in (
            (f"transactions/{by_tx}", {"position": 1}),
            (f"receipts/{by_tx}", {"position": 1}),
            (f"logs/{by_tx}/0", {"position": 1}),
            (f"blocks/{by_hash}/transactions/0", {"height_of": 1}),
            (f"blocks/{BUSY}/transactions/0", {}),
        ):
            refused = await doors.ask(f"/api/v1/proofs/sepolia/{path}?finality=finalized")
            assert (refused.status, refused.code) == (409, "NotFinalized"), path
            assert recorded.calls() == calls, path
            recorded.clock.move(20)  # what was heard of a hash is forgotten


async def test_one_missing_hash_costs_no_block_of_the_others() -> None:
    recorded = await cold_chain()
    async with asked(recorded) as doors:
        refused = await post_by_tx(doors, [tx_hash(height) for height in busy(5)] + [UNKNOWN])
        assert (refused.status, refused.code) == (404, "TxHashNotFound")
        assert set(recorded.calls()) == {"position"}
        assert doors.in_flight == NONE_IN


async def test_an_index_that_a_block_at_hand_does_not_have_costs_no_other_block() -> None:
    recorded = await cold_chain(HEIGHTS)
    await recorded.at(MIDDLE)
    recorded.calls()
    async with asked(recorded) as doors:
        cold = next(height for height in busy(3) if height != MIDDLE)
        body = [{"headerNumber": MIDDLE, "txIndexes": [99]}, {"headerNumber": cold, "txIndexes": [0]}]
        refused = doors.ask("/api/v1/proof-batch/7", "POST", body=_json(body), headers=_JSON)
        await refused
        assert (refused.status, refused.code) == (400, "TxIndexOutOfBounds")
        assert recorded.calls() == {}


# --- places -----------------------------------------------------------------------------------------------------------


async def test_three_hashes_of_one_block_take_one_place_and_one_fetch() -> None:
    recorded = await cold_chain(HEIGHTS)
    async with asked(recorded) as doors:
        held = recorded.upstream.hold("fetch")
        batch = post_by_tx(doors, [tx_hash(index=index) for index in range(3)])
        await held.reached()
        await settle()
        assert doors.in_flight == (1, 1, 1)
        held.release()
        assert (await batch).status == 200
        assert recorded.calls() == {"position": 3, "fetch": 1, "build": 1}
        assert doors.in_flight == NONE_IN


async def test_every_block_takes_one_place_however_it_is_named() -> None:
    recorded = await cold_chain(HEIGHTS)
    heights = sorted(busy(4))
    async with asked(recorded) as doors:
        held = recorded.upstream.hold("fetch")
        batch = post_by_tx(doors, [tx_hash(height) for height in heights] + [tx_hash(index=2), tx_hash(index=1)])
        await held.reached()
        await settle()
        distinct = len({*heights, MIDDLE})
        assert doors.in_flight == (1, distinct, 1)
        held.release()
        assert (await batch).status == 200
        assert filled(recorded) == dict.fromkeys({*heights, MIDDLE}, 1)


async def test_places_are_for_what_is_not_at_hand_after_the_positions_are_known() -> None:
    recorded = await cold_chain(HEIGHTS)
    first, second = sorted(busy(2))
    await recorded.at(first)
    recorded.calls()
    async with asked(recorded, process=1, chain=1) as doors:
        # One place is all that there is, and all that one cold block takes beside one at hand.
        assert (await post_by_tx(doors, [tx_hash(first), tx_hash(second)])).status == 200
        assert recorded.calls() == {"position": 1, "fetch": 1, "build": 1}
        assert doors.in_flight == NONE_IN


async def test_a_batch_that_is_refused_for_its_heights_takes_no_more_than_the_place_for_its_positions() -> None:
    recorded = await cold_chain()
    heights = sorted(busy(3))
    async with asked(recorded, process=1, chain=1, max_batch_span=1) as doors:
        refused = await post_by_tx(doors, [tx_hash(height) for height in heights])
        assert (refused.status, refused.code) == (400, "BatchSpanTooLarge")
        assert doors.metric("admission_rejected_total") == 0
        refused = await post(doors, heights)
        assert (refused.status, refused.code) == (400, "BatchSpanTooLarge")


# --- one node's word --------------------------------------------------------------------------------------------------


async def test_no_lasting_refusal_stands_on_the_position_that_one_of_two_nodes_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = await cold_chain(HEIGHTS)
    two: list[dict[str, object]] = [{"name": "one", "state": "ok"}, {"name": "other", "state": "ok"}]
    monkeypatch.setattr(recorded.upstream, "states", lambda: two)
    known_at(recorded, GENESIS, [tx_hash()])  # a lie: it is in the block at MIDDLE
    async with asked(recorded) as doors:
        for exchange in (doors.ask(f"/api/v1/proof-by-tx/7/{tx_hash()}"), post_by_tx(doors, [tx_hash()])):
            await exchange
            assert (exchange.status, exchange.code) == (503, "InconsistentSource")
            assert exchange.json["retriable"] is True


async def test_a_true_lasting_refusal_is_given_with_two_nodes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = await cold_chain()
    two: list[dict[str, object]] = [{"name": "one", "state": "ok"}, {"name": "other", "state": "ok"}]
    monkeypatch.setattr(recorded.upstream, "states", lambda: two)
    heights = sorted(busy(7))
    async with asked(recorded, max_batch_span=1) as doors:
        refused = await post_by_tx(doors, [tx_hash(height) for height in heights])
        assert (refused.status, refused.code) == (400, "BatchSpanTooLarge")
        assert recorded.calls() == {"position": 7, "fetch": 2, "build": 2}, "the lowest and the highest, and no other"
        early = await doors.ask(f"/api/v1/proof-by-tx/7/{tx_hash(GENESIS)}") if _has_transactions(GENESIS) else None
        assert early is None or (early.status, early.code) == (400, "BlockBeforeOrAtGenesis")


def _has_transactions(height: int) -> bool:
    return bool(blocks()[height]["block"]["transactions"])


# --- when to come back ------------------------------------------------------------------------------------------------


async def _finalizing(recorded: RecordedChain, heights: range, every_s: float, lag: int = 8) -> None:
    for height in heights:
        await recorded.see(height, finalized=height - lag)
        recorded.clock.move(every_s)


async def test_who_asks_for_what_is_not_final_is_told_when_it_will_be() -> None:
    recorded = RecordedChain()
    await _finalizing(recorded, range(FIRST + 10, FIRST + 20), 12.0)
    # Finalized: 11 above FIRST, one more every 12 s, the last of them 12 s ago.
    for above, wait_s in ((12, None), (13, 12.0), (16, 48.0)):
        with pytest.raises(NotFinalized) as refused:
            await recorded.chain.block(BlockRef(height=FIRST + above), Level.FINALIZED)
        assert refused.value.retry_after_s == (None if wait_s is None else pytest.approx(wait_s))
    async with asked(recorded) as doors:
        refused_there = await doors.ask(f"/api/v1/proofs/sepolia/blocks/{FIRST + 16}/receipts/0?finality=finalized")
        assert (refused_there.status, refused_there.headers["retry-after"]) == (409, "48")


async def test_a_level_that_was_not_seen_to_move_follows_the_head() -> None:
    recorded = RecordedChain()
    for height in range(FIRST + 10, FIRST + 16):
        await recorded.see(height, finalized=FIRST + 2)
        recorded.clock.move(12.0)
    with pytest.raises(NotFinalized) as refused:
        await recorded.chain.block(BlockRef(height=FIRST + 12), Level.FINALIZED)
    assert refused.value.retry_after_s == pytest.approx(10 * 12.0 - 12.0)


# --- hashes that no node knows ----------------------------------------------------------------------------------------


async def _refusal_of(recorded: RecordedChain) -> TxHashNotFound:
    with pytest.raises(TxHashNotFound) as caught:
        await recorded.chain.transaction(from_hex(UNKNOWN))
    return caught.value


async def test_a_hash_that_may_have_just_been_sent_may_be_asked_for_again_while_blocks_come() -> None:
    recorded = RecordedChain()
    await recorded.see(LAST, finalized=LAST)
    refusal = await _refusal_of(recorded)
    assert refusal.retriable
    assert refusal.code == "TxHashNotFound"
    assert refusal.message.startswith(f"tx hash not found: {UNKNOWN}")
    assert "sent a moment ago" in refusal.message
    assert "index" in refusal.message
    recorded.clock.move(310)
    await recorded.see(LAST, finalized=LAST)
    assert not (await _refusal_of(recorded)).retriable, "it was asked for five minutes ago, and no block has brought it"


async def test_a_hash_that_no_node_knows_is_not_retriable_where_no_block_comes() -> None:
    recorded = RecordedChain()
    await recorded.see(LAST, finalized=LAST)
    recorded.clock.move(3600)
    assert recorded.chain.head.stale
    assert not (await _refusal_of(recorded)).retriable


async def test_before_the_head_was_first_read_a_hash_may_be_new_too() -> None:
    recorded = RecordedChain()
    assert recorded.chain.head.age_s is None
    assert (await _refusal_of(recorded)).retriable


async def test_what_is_retriable_says_when_over_http() -> None:
    recorded = RecordedChain()
    await recorded.see(LAST, finalized=LAST)
    async with asked(recorded) as doors:
        for path in (f"/api/v1/proofs/sepolia/receipts/{UNKNOWN}", f"/api/v1/proofs/sepolia/logs/{UNKNOWN}/0"):
            refused = await doors.ask(path)
            assert (refused.status, refused.code, refused.json["retriable"]) == (404, "TxHashNotFound", True)
            assert 1 <= int(refused.headers["retry-after"]) <= 3


_JSON = [(b"content-type", b"application/json")]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
