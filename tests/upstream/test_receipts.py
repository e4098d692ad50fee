"""Receipts of one block from a node that answers in every way but the plain one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.core.blocks import BlockBodies, BlockRef
from app.core.deadlines import deadline
from app.core.errors import InconsistentSource, RequestTimeout, RpcUnavailable
from app.core.hexadecimal import from_hex
from tests.corpus_files import recorded
from tests.scripted_behaviours import Behaviour, answer, changed, dropped, error, honest, http, null, raw
from tests.scripted_node import ScriptedNode
from tests.upstream.conftest import Rig, handed, open_rig

BY_NUMBER, BY_HASH = "eth_getBlockByNumber", "eth_getBlockByHash"
WHOLE, EACH = "eth_getBlockReceipts", "eth_getTransactionReceipt"

BUSY = BlockRef(height=17_034_869)
COUNT = 93


def receipts_of(bodies: BlockBodies) -> list[Any]:
    assert bodies.receipts_error is None
    listed: list[Any] = json.loads(bodies.receipts_json or b"null")
    return listed


def asked_again(rig: Rig) -> dict[str, int]:
    """How often each receipt was asked for, where it was more than once."""
    counts: dict[str, int] = {}
    for (tx_hash,) in rig.node.params[EACH]:
        counts[tx_hash] = counts.get(tx_hash, 0) + 1
    return {tx_hash: number for tx_hash, number in counts.items() if number > 1}


@pytest.fixture
def busy_ref(busy: dict[str, Any]) -> BlockRef:
    """The busy block by its hash."""
    return BlockRef(block_hash=from_hex(busy["block"]["hash"]))


# --- in one call ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_hash", [False, True])
@pytest.mark.parametrize(
    ("forms", "spelled"),
    [({"hash"}, ["hash"]), ({"object"}, ["hash", "object"]), ({"number"}, ["hash", "object", "0x"])],
)
async def test_the_form_that_a_node_takes_is_learned_and_remembered(
    busy_rig: Rig, busy: dict[str, Any], busy_ref: BlockRef, by_hash: bool, forms: set[str], spelled: list[str]
) -> None:
    busy_rig.node.receipts_forms = forms
    ref = busy_ref if by_hash else BUSY
    named = busy["block"]["hash"]
    spellings = {"hash": named, "object": {"blockHash": named}, "0x": hex(17_034_869)}
    assert len(receipts_of(await busy_rig.upstream.fetch(ref, handed))) == COUNT
    learned = [[spellings[form]] for form in spelled]
    asked = busy_rig.node.params[WHOLE]
    # By hash the number is not known at first: the other two are tried, and then tried no more.
    assert asked[: len(learned) - 1] == learned[:-1]
    assert asked[-1] == learned[-1]
    busy_rig.node.reset_counts()
    await busy_rig.upstream.fetch(ref, handed)
    assert busy_rig.node.params[WHOLE] == learned[-1:]


async def test_a_node_that_takes_no_form_is_asked_for_each_receipt(busy_rig: Rig) -> None:
    busy_rig.node.receipts_forms = set()
    assert len(receipts_of(await busy_rig.upstream.fetch(BUSY, handed))) == COUNT


@pytest.mark.parametrize("by_hash", [False, True])
async def test_B22_row_15_null_receipts_are_asked_for_again(busy_rig: Rig, busy_ref: BlockRef, by_hash: bool) -> None:
    busy_rig.node.script(WHOLE, null(), error(-32000, "header not found"))
    bodies = await busy_rig.upstream.fetch(busy_ref if by_hash else BUSY, handed)
    assert len(receipts_of(bodies)) == COUNT
    assert busy_rig.clock.pauses == [0.2, 0.4]


@pytest.mark.parametrize("by_hash", [False, True])
async def test_B20_row_15_null_receipts_are_missing_never_empty(
    busy_rig: Rig, busy_ref: BlockRef, by_hash: bool
) -> None:
    busy_rig.node.always(EACH, null())
    busy_rig.node.always(WHOLE, null())
    bodies = await busy_rig.upstream.fetch(busy_ref if by_hash else BUSY, handed)
    assert bodies.receipts_json is None
    assert bodies.receipts_error == "the node answers null for the receipts of a block that it has"
    assert busy_rig.clock.pauses == [0.2, 0.4, 0.8, 1.6]
    assert busy_rig.node.hits[WHOLE] == 5


async def test_B20_null_receipts_are_given_up_near_the_deadline(busy_rig: Rig) -> None:
    busy_rig.node.always(EACH, null())
    busy_rig.node.always(WHOLE, null())
    token = deadline.set(busy_rig.clock.now() + 1.0)
    try:
        bodies = await busy_rig.upstream.fetch(BUSY, handed)
    finally:
        deadline.reset(token)
    assert bodies.receipts_json is None
    assert sum(busy_rig.clock.pauses) <= 1.0


@pytest.mark.parametrize("behaviour", [error(4444, "pruned history unavailable"), error(-32602, "history pruned")])
async def test_B31_pruned_receipts_are_missing_at_once(busy_rig: Rig, behaviour: Behaviour) -> None:
    busy_rig.node.always(WHOLE, behaviour)
    bodies = await busy_rig.upstream.fetch(BUSY, handed)
    assert (bodies.receipts_json, bodies.receipts_error) == (
        None,
        "the node no longer keeps the receipts of this block",
    )
    assert busy_rig.node.hits[WHOLE] == 1


async def test_receipts_that_cannot_be_asked_for_are_unavailable_not_missing(busy_rig: Rig) -> None:
    busy_rig.node.always(WHOLE, http(502))
    with pytest.raises(RpcUnavailable):
        await busy_rig.upstream.fetch(BUSY, handed)
    assert busy_rig.node.hits[WHOLE] == 3


async def test_receipts_of_an_empty_block_are_an_empty_list() -> None:
    empty = recorded("full", "mainnet_2463000")
    async with ScriptedNode.of_corpus(empty) as node, open_rig(node) as rig:
        assert receipts_of(await rig.upstream.fetch(BlockRef(height=2_463_000), handed)) == []
        assert node.hits[EACH] == 0


# --- one by one -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_hash", [False, True])
@pytest.mark.parametrize("empty", ["[]", "[ ]", "[\n]"])
async def test_B21_row_16_an_empty_list_for_a_block_with_transactions_is_no_answer(
    busy_rig: Rig, busy: dict[str, Any], busy_ref: BlockRef, by_hash: bool, empty: str
) -> None:
    busy_rig.node.always(WHOLE, answer([]) if empty == "[]" else _text(empty))
    bodies = await busy_rig.upstream.fetch(busy_ref if by_hash else BUSY, handed)
    assert receipts_of(bodies) == busy["receipts"]
    assert busy_rig.node.hits[EACH] == COUNT
    assert busy_rig.node.batch_sizes == [COUNT - 1]


def _text(result: str) -> Behaviour:
    async def act(node: ScriptedNode, connection: Any, call: Any) -> None:
        await connection.respond(200, f'{{"jsonrpc":"2.0","id":{call["id"]},"result":{result}}}'.encode(), {})

    return Behaviour("text", act=act)


async def test_a_node_without_receipts_by_block_is_remembered(busy_rig: Rig, busy: dict[str, Any]) -> None:
    busy_rig.node.unsupported = {WHOLE}
    for _ in range(3):
        assert receipts_of(await busy_rig.upstream.fetch(BUSY, handed)) == busy["receipts"]
    assert busy_rig.node.hits[WHOLE] == 1


async def test_B32_an_answer_too_big_is_asked_for_in_parts_and_the_next_block_is_not(busy_rig: Rig) -> None:
    busy_rig.node.script(WHOLE, error(-32008, "Response is too big"))
    assert len(receipts_of(await busy_rig.upstream.fetch(BUSY, handed))) == COUNT
    assert busy_rig.node.hits[EACH] == COUNT
    assert len(receipts_of(await busy_rig.upstream.fetch(BUSY, handed))) == COUNT
    assert busy_rig.node.hits == {"eth_chainId": 1, BY_NUMBER: 2, WHOLE: 2, EACH: COUNT}


async def test_B32_an_answer_beyond_our_own_cap_is_asked_for_in_parts(busy: dict[str, Any]) -> None:
    size = len(json.dumps(busy["receipts"]))
    async with ScriptedNode.of_corpus(busy) as node, open_rig(node, max_body_bytes=size - 1000) as rig:
        assert len(receipts_of(await rig.upstream.fetch(BUSY, handed))) == COUNT


async def test_B32_a_block_of_4000_transactions() -> None:
    hashes = [f"0x{index:064x}" for index in range(1, 4001)]
    block_hash = "0x" + "ab" * 32
    block = {"number": "0x5", "hash": block_hash, "parentHash": "0x" + "00" * 32, "timestamp": "0x1"}
    receipts = [{"transactionHash": tx_hash, "blockHash": block_hash} for tx_hash in hashes]
    node = ScriptedNode()
    node.add({**block, "transactions": [{"hash": tx_hash} for tx_hash in hashes]}, receipts)
    node.unsupported = {WHOLE}
    # Finding each of 4000 receipts by a walk over all of them would be the test's own time.
    by_hash = {receipt["transactionHash"]: receipt for receipt in receipts}
    node.always(
        EACH,
        Behaviour(
            "indexed", reply=lambda _, call: {"jsonrpc": "2.0", "id": call["id"], "result": by_hash[call["params"][0]]}
        ),
    )
    await node.start()
    async with open_rig(node) as rig:
        assert receipts_of(await rig.upstream.fetch(BlockRef(height=5), handed)) == receipts
        assert node.hits[EACH] == 4000
        assert max(node.batch_sizes) == 100


async def test_a_node_that_takes_no_batches_is_asked_one_by_one_and_remembered(
    busy_rig: Rig, busy: dict[str, Any]
) -> None:
    busy_rig.node.unsupported = {WHOLE}
    busy_rig.node.batches = False
    for _ in range(2):
        assert receipts_of(await busy_rig.upstream.fetch(BUSY, handed)) == busy["receipts"]
    assert busy_rig.evm.capabilities.batch_limit == 1
    assert busy_rig.node.hits[EACH] == 2 * COUNT
    assert busy_rig.node.open_connections <= 9


async def test_B29_a_batch_over_the_limit_is_halved_and_the_limit_learned(busy_rig: Rig, busy: dict[str, Any]) -> None:
    busy_rig.node.unsupported = {WHOLE}
    busy_rig.node.batch_limit = 25
    assert receipts_of(await busy_rig.upstream.fetch(BUSY, handed)) == busy["receipts"]
    assert asked_again(busy_rig) == {}
    assert busy_rig.counts.batch_limits == [46, 23]
    busy_rig.node.batch_sizes.clear()
    await busy_rig.upstream.fetch(BUSY, handed)
    assert busy_rig.node.batch_sizes == [23] * 4


async def test_B29_a_batch_cut_by_the_size_of_its_answer_goes_on_with_the_rest(
    busy_rig: Rig, busy: dict[str, Any]
) -> None:
    busy_rig.node.unsupported = {WHOLE}
    busy_rig.node.batch_cut = 30
    assert receipts_of(await busy_rig.upstream.fetch(BUSY, handed)) == busy["receipts"]
    assert busy_rig.counts.batch_limits
    assert busy_rig.clock.pauses == []


async def test_B28_only_the_limited_items_of_a_batch_are_asked_for_again_after_the_pause(
    busy_rig: Rig, busy: dict[str, Any]
) -> None:
    node = busy_rig.node
    node.unsupported = {WHOLE}
    node.script(EACH, honest(), *[error(429, "limited")] * 37)
    node.batch_order = lambda answers: answers[::-1]
    assert receipts_of(await busy_rig.upstream.fetch(BUSY, handed)) == busy["receipts"]
    assert node.hits[EACH] == COUNT + 37
    assert sorted(asked_again(busy_rig).values()) == [2] * 37
    assert busy_rig.clock.pauses == [1.0]


async def test_B28_missing_ids_and_a_refused_batch_are_asked_for_again(busy_rig: Rig, busy: dict[str, Any]) -> None:
    node = busy_rig.node
    node.unsupported = {WHOLE}
    node.script(EACH, honest(), dropped(), null(), error(-32603, "internal"), error(-32000, "not found"))
    assert receipts_of(await busy_rig.upstream.fetch(BUSY, handed)) == busy["receipts"]
    assert len(asked_again(busy_rig)) == 4


async def test_B24_no_list_with_a_hole_is_handed_on(busy_rig: Rig, busy: dict[str, Any]) -> None:
    node = busy_rig.node
    node.unsupported = {WHOLE}
    lost = busy["block"]["transactions"][40]["hash"]
    node.always(EACH, _without(lost))
    bodies = await busy_rig.upstream.fetch(BUSY, handed)
    assert bodies.receipts_json is None
    assert bodies.receipts_error == "the node has no receipt for 1 of the block's 93 transactions"
    assert list(asked_again(busy_rig)) == [lost]
    # The block was looked at again: it might have been replaced.
    assert node.params[BY_NUMBER][-1] == [hex(17_034_869), False]


def _without(lost: str) -> Behaviour:
    def reply(node: ScriptedNode, call: Any) -> Any:
        if call["params"] == [lost]:
            return {"jsonrpc": "2.0", "id": call["id"], "result": None}
        return node.honest(call)

    return Behaviour("without", reply=reply)


async def test_B24_a_receipt_that_comes_late_completes_the_list(busy_rig: Rig, busy: dict[str, Any]) -> None:
    busy_rig.node.unsupported = {WHOLE}
    busy_rig.node.script(EACH, honest(), *[honest()] * 40, null())
    assert receipts_of(await busy_rig.upstream.fetch(BUSY, handed)) == busy["receipts"]
    assert busy_rig.node.hits[EACH] == COUNT + 1
    assert busy_rig.clock.pauses == [0.2]


async def test_B24_a_block_that_was_replaced_meanwhile_is_fetched_anew(million: dict[str, Any]) -> None:
    replaced_hash = "0x" + "77" * 32
    orphan = {**million["block"], "hash": replaced_hash}
    node = ScriptedNode()
    node.unsupported = {WHOLE}
    node.add(orphan, None)
    await node.start()
    async with open_rig(node) as rig:

        def reorg(result: Any) -> None:
            node.add(million["block"], million["receipts"])

        # The first receipt is asked for just when the other branch wins.
        node.script(EACH, *[null()] * 4, Behaviour("reorg", reply=lambda _, call: (reorg(call), _null(call))[1]))
        bodies = await rig.upstream.fetch(BlockRef(height=1_000_000), handed)
        assert json.loads(bodies.block_json)["hash"] == million["block"]["hash"]
        assert receipts_of(bodies) == million["receipts"]


def _null(call: Any) -> Any:
    return {"jsonrpc": "2.0", "id": call["id"], "result": None}


async def test_B23_a_receipt_of_another_block_is_refused(busy_rig: Rig) -> None:
    busy_rig.node.unsupported = {WHOLE}
    busy_rig.node.always(EACH, changed(lambda receipt: receipt.update(blockHash="0x" + "66" * 32)))
    with pytest.raises(InconsistentSource) as caught:
        await busy_rig.upstream.fetch(BUSY, handed)
    assert caught.value.extra == {"check": "receipt_block_hash"}
    # One receipt told enough, each time.
    assert busy_rig.node.hits[EACH] == 2


@pytest.mark.parametrize("nothing", [None, "", "0x", "0x0", "0x" + "00" * 32, ...])
async def test_a_receipt_that_names_nothing_is_taken_for_the_one_that_was_asked_for(
    busy_rig: Rig, busy: dict[str, Any], nothing: object
) -> None:
    busy_rig.node.unsupported = {WHOLE}
    changes = {} if nothing is ... else {"transactionHash": nothing, "blockHash": nothing}

    def unname(receipt: dict[str, Any]) -> None:
        del receipt["transactionHash"], receipt["blockHash"]
        receipt.update(changes)

    busy_rig.node.always(EACH, changed(unname))
    given = receipts_of(await busy_rig.upstream.fetch(BUSY, handed))
    assert [receipt["cumulativeGasUsed"] for receipt in given] == [
        receipt["cumulativeGasUsed"] for receipt in busy["receipts"]
    ]


async def test_a_block_whose_transactions_have_no_hashes_is_handed_on_without_receipts_asked_one_by_one(
    busy_rig: Rig,
) -> None:
    def unname(block: dict[str, Any]) -> None:
        if isinstance(block["transactions"][3], dict):
            del block["transactions"][3]["hash"]

    busy_rig.node.unsupported = {WHOLE}
    busy_rig.node.always(BY_NUMBER, changed(unname))
    bodies = await busy_rig.upstream.fetch(BUSY, handed)
    assert bodies.receipts_json is None
    assert "no hash of a transaction" in (bodies.receipts_error or "")
    assert busy_rig.node.hits[EACH] == 0


@pytest.mark.parametrize("receipt", [[], "0x", 5, {"transactionHash": "0x12", "blockHash": None}])
async def test_a_receipt_that_cannot_be_read_is_refused(busy_rig: Rig, receipt: object) -> None:
    busy_rig.node.unsupported = {WHOLE}
    busy_rig.node.always(EACH, answer(receipt))
    with pytest.raises(InconsistentSource):
        await busy_rig.upstream.fetch(BUSY, handed)


async def test_a_receipt_of_another_transaction_is_refused(busy_rig: Rig, busy: dict[str, Any]) -> None:
    busy_rig.node.unsupported = {WHOLE}
    busy_rig.node.always(EACH, answer(busy["receipts"][7]))
    with pytest.raises(InconsistentSource) as caught:
        await busy_rig.upstream.fetch(BUSY, handed)
    assert caught.value.extra == {"check": "receipt_identity"}


async def test_a_node_with_neither_way_gives_a_block_without_receipts(busy_rig: Rig) -> None:
    busy_rig.node.unsupported = {WHOLE, EACH}
    bodies = await busy_rig.upstream.fetch(BUSY, handed)
    assert bodies.receipts_json is None
    assert bodies.receipts_error == "the node gives receipts neither by block nor by transaction"
    assert busy_rig.node.hits[EACH] == 1


async def test_a_node_that_lacks_them_all_is_asked_for_one_only(busy_rig: Rig) -> None:
    busy_rig.node.always(WHOLE, answer([]))
    busy_rig.node.always(EACH, null())
    bodies = await busy_rig.upstream.fetch(BUSY, handed)
    assert bodies.receipts_json is None
    assert bodies.receipts_error == "the node has no receipt for 93 of the block's 93 transactions"
    assert busy_rig.node.hits[EACH] == 5


async def test_receipts_one_by_one_from_a_node_that_goes_down_are_unavailable(busy_rig: Rig) -> None:
    busy_rig.node.unsupported = {WHOLE}
    busy_rig.node.always(EACH, error(-32603, "internal"))
    with pytest.raises(RpcUnavailable):
        await busy_rig.upstream.fetch(BUSY, handed)


async def test_receipts_one_by_one_end_with_the_deadline(busy_rig: Rig) -> None:
    busy_rig.node.unsupported = {WHOLE}
    busy_rig.node.always(EACH, null())
    token = deadline.set(busy_rig.clock.now() + 0.5)
    try:
        with pytest.raises(RequestTimeout):
            await busy_rig.upstream.fetch(BUSY, handed)
    finally:
        deadline.reset(token)


async def test_a_block_whose_transactions_cannot_be_read_is_inconsistent(busy_rig: Rig) -> None:
    busy_rig.node.unsupported = {WHOLE}
    busy_rig.node.always(BY_NUMBER, changed(lambda block: block.update(transactions=[None, 5])))
    with pytest.raises(InconsistentSource):
        await busy_rig.upstream.fetch(BUSY, handed)


async def test_a_batch_answered_with_a_page_is_tried_in_smaller_ones(busy_rig: Rig, busy: dict[str, Any]) -> None:
    """The node's batches always fail in a way that says nothing about batches: single calls still serve."""
    node = busy_rig.node
    node.unsupported = {WHOLE}
    honest_batch = node._batch
    node._batch = lambda calls: honest_batch(calls) and "a page"  # type: ignore[method-assign]
    assert receipts_of(await busy_rig.upstream.fetch(BUSY, handed)) == busy["receipts"]
    assert busy_rig.evm.capabilities.batch_limit == 100


async def test_raw_text_of_receipts_is_handed_on_untouched(busy_rig: Rig) -> None:
    text = '[ {"odd":  1e3} ]'
    busy_rig.node.script(WHOLE, _text(text))
    bodies = await busy_rig.upstream.fetch(BUSY, handed)
    assert bodies.receipts_json == text.encode()


async def test_row_20_an_unknown_type_is_no_business_of_the_upstream(busy_rig: Rig) -> None:
    busy_rig.node.always(WHOLE, changed(lambda receipts: receipts[0].update(type="0x7f")))
    assert receipts_of(await busy_rig.upstream.fetch(BUSY, handed))[0]["type"] == "0x7f"


async def test_a_response_that_is_no_json_is_retried_for_receipts_too(busy_rig: Rig) -> None:
    busy_rig.node.script(WHOLE, raw("oops"))
    assert len(receipts_of(await busy_rig.upstream.fetch(BUSY, handed))) == COUNT
