"""What usc proofs cost between two anchors a hundred blocks apart: their own blocks where the roots are known, and each missing
block once where they are not, however many ask."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from tests.api.exchanges import Asked, Exchange, asked
from tests.api.long_bracket import HEIGHTS, MIDDLE, UPPER, busy, cold_chain, roots, tx_hash
from tests.chain.recorded_chain import RecordedChain
from tests.fakes import settle

JSON = [(b"content-type", b"application/json")]
BY_HEIGHT, BY_TX = f"/api/v1/proof/7/{MIDDLE}/1", f"/api/v1/proof-by-tx/7/{tx_hash(index=1)}"
NONE_IN = (0.0, 0.0, 0.0)


def post(doors: Asked, heights: list[int], query: str = "") -> Exchange:
    body = [{"headerNumber": height, "txIndexes": [0]} for height in heights]
    return doors.ask(f"/api/v1/proof-batch/7{query}", "POST", body=json.dumps(body).encode(), headers=JSON)


def post_by_tx(doors: Asked, hashes: list[str]) -> Exchange:
    return doors.ask("/api/v1/proof-batch-by-tx/7", "POST", body=json.dumps(hashes).encode(), headers=JSON)


async def together(*exchanges: Exchange) -> Counter[tuple[int | None, str | None]]:
    await asyncio.gather(*(each.task for each in exchanges))
    return Counter((each.status, None if each.status == 200 else each.code) for each in exchanges)


def filled(recorded: RecordedChain) -> Counter[int | None]:
    """How often each height was filled by its number; under None those by hash."""
    return Counter(request.height for request in recorded.builder.requests)


def judge(exchange: Exchange, first: int = MIDDLE) -> None:
    proof: dict[str, Any] = exchange.json["continuityProof"]
    assert proof["roots"] == ["0x" + roots()[height].hex() for height in range(first, UPPER + 1)]


# --- (known roots) one block ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "calls"), [(BY_HEIGHT, {}), (BY_TX, {"position": 1})])
async def test_a_cold_request_inside_a_known_bracket_costs_one_block(path: str, calls: dict[str, int]) -> None:
    recorded = await cold_chain(HEIGHTS)
    async with asked(recorded) as doors:
        first = await doors.ask(path)
        assert first.status == 200
        judge(first)
        assert first.json["cached"] is False
        assert recorded.calls() == {"fetch": 1, "build": 1, **calls}
        assert (await doors.ask(path)).status == 200
        assert recorded.calls() == {}


async def test_a_known_bracket_alone_costs_nothing() -> None:
    recorded = await cold_chain(HEIGHTS)
    async with asked(recorded) as doors:
        body = json.dumps([{"headerNumber": MIDDLE}]).encode()
        bare = await doors.ask("/api/v1/proof-batch/7", "POST", body=body, headers=JSON)
        assert bare.status == 200
        judge(bare)
        assert recorded.calls() == {}


# --- (unknown roots) each missing block once --------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [range(0), range(MIDDLE - 2, MIDDLE + 3), HEIGHTS], ids=["none", "five", "all"])
async def test_32_callers_share_one_fetch_for_each_missing_block(missing: range) -> None:
    recorded = await cold_chain(set(HEIGHTS) - set(missing))
    async with asked(recorded, process=64, chain=64) as doors:
        held = recorded.upstream.hold("fetch")
        callers = [doors.ask(path) for path in (BY_HEIGHT, BY_TX) * 16]
        await held.reached()
        await settle(200)
        assert held.waiting <= 16, "no more than the chain has permits"
        recorded.upstream.unhold()
        held.release()
        assert await together(*callers) == {(200, None): 32}
        for caller in callers:
            judge(caller)
            assert caller.json["cached"] is False
        assert filled(recorded) == dict.fromkeys({*missing, MIDDLE}, 1)
        assert recorded.calls()["fetch"] == len({*missing, MIDDLE})
        assert recorded.at_rest()
        assert doors.in_flight == NONE_IN


async def test_cached_is_told_only_where_no_root_had_to_be_fetched_either() -> None:
    recorded = await cold_chain(set(HEIGHTS) - {MIDDLE + 1})
    async with asked(recorded) as doors:
        await recorded.at(MIDDLE)
        told = [(await doors.ask(BY_TX)).json["cached"] for _ in range(2)]
        assert told == [False, True]


async def test_missing_blocks_are_filled_several_at_a_time() -> None:
    recorded = await cold_chain(max_fills=8)
    async with asked(recorded) as doors:
        await recorded.at(MIDDLE)
        held = recorded.upstream.hold("fetch")
        caller = doors.ask(BY_HEIGHT)
        await held.reached()
        await settle(100)
        assert held.waiting == 8
        held.release()
        assert (await caller).status == 200


# --- batches ----------------------------------------------------------------------------------------------------------


async def test_a_batch_costs_its_own_blocks_and_shares_them_with_everybody() -> None:
    recorded = await cold_chain(HEIGHTS)
    heights = sorted(busy(5))
    async with asked(recorded) as doors:
        held = recorded.upstream.hold("fetch")
        batches = [post(doors, heights), post_by_tx(doors, [tx_hash(height) for height in heights])]
        single = doors.ask(BY_HEIGHT)
        await held.reached()
        await settle()
        held.release()
        assert await together(*batches, single) == {(200, None): 3}
        assert filled(recorded) == dict.fromkeys(heights, 1)
        for batch in batches:
            judge(batch, heights[0])
        assert await together(post(doors, heights), post_by_tx(doors, [tx_hash(heights[2])])) == {(200, None): 2}
        assert filled(recorded) == dict.fromkeys(heights, 1)
        assert recorded.at_rest()
        assert doors.in_flight == NONE_IN


async def test_32_identical_batches_cost_one_fetch_for_each_missing_block() -> None:
    recorded = await cold_chain()
    async with asked(recorded, process=None, chain=None, warm=None) as doors:
        batches = [post(doors, busy(7), query) for query in ("", "?split=3") * 16]
        assert await together(*batches) == {(200, None): 32}
        assert filled(recorded) == dict.fromkeys(HEIGHTS[min(busy(7)) - HEIGHTS[0] :], 1) | filled(recorded)
        assert set(filled(recorded).values()) == {1}
        assert recorded.calls()["fetch"] == len(HEIGHTS)


@pytest.mark.parametrize("by_tx", [False, True])
async def test_a_batch_waits_for_no_more_blocks_at_a_time_than_it_weighs(by_tx: bool) -> None:
    recorded = await cold_chain(HEIGHTS)
    heights = busy(7)
    async with asked(recorded, max_batch_size=3) as doors:
        held = recorded.upstream.hold("fetch")
        batch = post_by_tx(doors, [tx_hash(height) for height in heights]) if by_tx else post(doors, heights)
        await held.reached()
        await settle(100)
        assert held.waiting == 3
        assert doors.in_flight == (1, 3, 1)
        recorded.upstream.unhold()
        held.release()
        assert await together(batch) == {(200, None): 1}
        assert filled(recorded) == dict.fromkeys(heights, 1)


async def test_a_batch_weighs_the_blocks_that_are_not_at_hand_and_no_others() -> None:
    recorded = await cold_chain(HEIGHTS)
    heights = busy(7)
    for height in heights[:4]:
        await recorded.at(height)
    async with asked(recorded) as doors:
        held = recorded.upstream.hold("fetch")
        batches = [post(doors, heights), post_by_tx(doors, [tx_hash(height) for height in heights])]
        await held.reached()
        await settle()
        assert doors.in_flight == (2, 6, 2)
        held.release()
        assert await together(*batches) == {(200, None): 2}


async def test_a_batch_whose_roots_are_not_at_hand_weighs_one() -> None:
    recorded = await cold_chain(set(HEIGHTS) - {UPPER})
    await recorded.at(MIDDLE)
    async with asked(recorded) as doors:
        held = recorded.upstream.hold("fetch")
        batches = [post(doors, [MIDDLE]), post_by_tx(doors, [tx_hash()])]
        await held.reached()
        await settle()
        assert doors.in_flight == (2, 2, 2)
        held.release()
        assert await together(*batches) == {(200, None): 2}


async def test_a_batch_that_finds_no_places_fetches_nothing_and_a_known_one_needs_none() -> None:
    recorded = await cold_chain(HEIGHTS)
    known = busy(7)[:2]
    for height in known:
        await recorded.at(height)
    recorded.calls()
    async with asked(recorded, process=8, chain=4) as doors:
        held = recorded.upstream.hold("fetch")
        post(doors, busy(7)[2:5])
        await held.reached()
        recorded.calls()
        refused = [post(doors, busy(7)[5:7]), post_by_tx(doors, [tx_hash(height) for height in busy(7)[5:7]])]
        assert await together(*refused) == {(503, "ChainOverloaded"): 2}
        assert all(1 <= int(each.headers["retry-after"]) <= 3 for each in refused)
        assert doors.metric("admission_rejected_total", reason="chain_overloaded") == 2
        assert recorded.calls() == {"position": 2}, "of the one by hash, which has to know how many blocks it is about"
        answered = [post(doors, known), post_by_tx(doors, [tx_hash(height) for height in known])]
        assert await together(*answered) == {(200, None): 2}
        assert recorded.calls() == {}


async def test_A7_a_batch_whose_client_hangs_up_gives_everything_back_and_its_fills_land() -> None:
    recorded = await cold_chain(HEIGHTS)
    async with asked(recorded) as doors:
        held = recorded.upstream.hold("fetch")
        batch = post(doors, busy(5))
        await held.reached()
        batch.hang_up()
        await settle()
        assert batch.task.done()
        assert doors.in_flight == NONE_IN
        held.release()
        await settle(100)
        assert recorded.at_rest()
        assert filled(recorded) == dict.fromkeys(busy(5), 1)


async def test_the_first_item_that_cannot_be_had_ends_the_batch_and_leaves_the_others_fills_alone() -> None:
    recorded = await cold_chain(HEIGHTS)
    unknown = "0x" + "ab" * 32
    async with asked(recorded) as doors:
        held = recorded.upstream.hold("fetch")
        refused = await post_by_tx(doors, [tx_hash(), unknown])
        assert (refused.status, refused.code) == (404, "TxHashNotFound")
        assert doors.in_flight == NONE_IN
        held.release()
        await settle(50)
        assert recorded.at_rest()
        assert (await doors.ask(BY_TX)).status == 200
        assert sum(filled(recorded).values()) == 1


async def test_a_pending_transaction_may_be_asked_for_again_and_fails_its_batch() -> None:
    recorded = await cold_chain(HEIGHTS)
    recorded.upstream.pending.add(bytes.fromhex(tx_hash(index=2)[2:]))
    async with asked(recorded) as doors:
        single = doors.ask(f"/api/v1/proof-by-tx/7/{tx_hash(index=2)}")
        for pending in (await single, await post_by_tx(doors, [tx_hash(), tx_hash(index=2)])):
            assert (pending.status, pending.code, pending.json["retriable"]) == (404, "TxNotMined", True)
            assert int(pending.headers["retry-after"]) >= 1
