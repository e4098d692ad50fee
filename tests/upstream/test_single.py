"""One node as the upstream of a chain: what its answers mean, what is asked again, and what never is."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest

from app.core.blocks import BlockBodies, BlockRef
from app.core.deadlines import deadline
from app.core.errors import (
    BlockNotOnSourceChain,
    ContentInvalid,
    EmptyBlockTxProof,
    HistoryUnavailable,
    InconsistentSource,
    ProofError,
    RequestTimeout,
    RpcUnavailable,
    TxNotMined,
)
from app.core.hexadecimal import from_hex
from tests.corpus_files import recorded
from tests.scripted_behaviours import (
    Behaviour,
    answer,
    changed,
    error,
    hang,
    held,
    honest,
    html,
    http,
    null,
    raw,
    reset,
    truncated,
)
from tests.scripted_node import ScriptedNode, closed_port
from tests.upstream.conftest import Rig, handed, open_rig

BY_NUMBER, BY_HASH, RECEIPTS = "eth_getBlockByNumber", "eth_getBlockByHash", "eth_getBlockReceipts"
HEAD, TX, TX_RECEIPT = "eth_blockNumber", "eth_getTransactionByHash", "eth_getTransactionReceipt"

MILLION = BlockRef(height=1_000_000)
MILLION_HASH = "0x8e38b4dbf6b11fcc3b9dee84fb7986e29ca0a02cecd8977c161ff7333329681e"
BY_ITS_HASH = BlockRef(block_hash=from_hex(MILLION_HASH))
FIRST_TX = "0xea1093d492a1dcb1bef708f771a99a96ff05dcab81ca76c31940300177fcf49f"


def numbers(bodies: BlockBodies) -> tuple[str, int]:
    """Height as spelled and how many receipts came with the block."""
    receipts = json.loads(bodies.receipts_json or b"[]")
    return json.loads(bodies.block_json)["number"], len(receipts)


# --- fetching a block -----------------------------------------------------------------------------------------------


async def test_by_height_the_receipts_are_asked_for_by_the_hash_of_the_block(rig: Rig) -> None:
    bodies = await rig.upstream.fetch(MILLION, handed)
    assert numbers(bodies) == ("0xf4240", 2)
    assert (bodies.upstream, bodies.receipts_error) == ("node-a", None)
    assert rig.node.params == {
        "eth_chainId": [[]],
        BY_NUMBER: [["0xf4240", True]],
        RECEIPTS: [[MILLION_HASH]],
    }


async def test_by_hash_block_and_receipts_are_asked_for_at_the_same_time(rig: Rig) -> None:
    gates = asyncio.Event(), asyncio.Event()
    rig.node.script(BY_HASH, held(gates[0]))
    rig.node.script(RECEIPTS, held(gates[1]))
    fetching = asyncio.ensure_future(rig.upstream.fetch(BY_ITS_HASH, handed))
    await rig.node.until(BY_HASH)
    await rig.node.until(RECEIPTS)
    for gate in gates:
        gate.set()
    assert numbers(await fetching) == ("0xf4240", 2)
    assert rig.node.hits == {"eth_chainId": 1, BY_HASH: 1, RECEIPTS: 1}


async def test_what_accept_returns_is_returned(rig: Rig) -> None:
    async def accept(bodies: BlockBodies) -> int:
        return len(bodies.block_json)

    assert await rig.upstream.fetch(MILLION, accept) > 1000


async def test_a_proof_error_of_accept_passes_through(rig: Rig) -> None:
    async def accept(bodies: BlockBodies) -> None:
        raise EmptyBlockTxProof("empty")

    with pytest.raises(EmptyBlockTxProof):
        await rig.upstream.fetch(MILLION, accept)
    assert rig.node.hits[BY_NUMBER] == 1


@pytest.mark.parametrize(
    ("height", "spelled"),
    [(0, "0x0"), (15, "0xf"), (16, "0x10"), (255, "0xff"), (256, "0x100"), (0x07D6D1, "0x7d6d1")],
)
async def test_B33_heights_are_spelled_exactly(million: dict[str, Any], height: int, spelled: str) -> None:
    block = {**million["block"], "number": hex(height)}
    node = ScriptedNode()
    node.add(block, million["receipts"])
    node.receipts_forms = {"number"}
    await node.start()
    async with open_rig(node) as rig:
        await rig.upstream.fetch(BlockRef(height=height), handed)
        assert node.params[BY_NUMBER] == [[spelled, True]]
        assert node.params[RECEIPTS][-1] == [spelled]
        await rig.upstream.name_of(height)
        assert node.params[BY_NUMBER][-1] == [spelled, False]


async def test_B36_block_data_is_never_asked_for_by_tag(rig: Rig, million: dict[str, Any]) -> None:
    # The node's head moves on between any two calls.
    latest = await rig.upstream.tagged("latest")
    assert latest is not None
    following = {**million["block"], "number": "0xf4241", "hash": "0x" + "11" * 32, "transactions": []}
    rig.node.script(BY_NUMBER, honest())
    rig.node.add(following, [])
    bodies = await rig.upstream.fetch(BlockRef(height=latest.height), handed)
    assert numbers(bodies) == ("0xf4240", 2)
    data_calls = rig.node.params[BY_NUMBER][1:] + rig.node.params[RECEIPTS]
    assert all(call[0].startswith("0x") for call in data_calls)


# --- blocks that are not there --------------------------------------------------------------------------------------


async def test_B26_a_block_above_the_head_is_not_on_the_chain_yet(rig: Rig) -> None:
    with pytest.raises(BlockNotOnSourceChain) as caught:
        await rig.upstream.fetch(BlockRef(height=1_000_001), handed)
    assert caught.value.retriable
    assert rig.clock.pauses == []


async def test_B26_row_12_null_below_the_head_is_a_lagging_node(rig: Rig) -> None:
    rig.node.always(BY_NUMBER, null())
    with pytest.raises(RpcUnavailable) as caught:
        await rig.upstream.fetch(BlockRef(height=999_999), handed)
    assert caught.value.retriable
    assert rig.node.hits[BY_NUMBER] == 3
    assert rig.clock.pauses == [0.2, 0.4]


async def test_B26_null_that_becomes_a_block_is_a_block(rig: Rig) -> None:
    rig.node.script(BY_NUMBER, null(), null())
    assert numbers(await rig.upstream.fetch(MILLION, handed)) == ("0xf4240", 2)


async def test_B25_a_head_that_went_back_does_not_make_a_known_height_absent(rig: Rig) -> None:
    await rig.upstream.tagged("latest")
    rig.node.head = 999_998
    rig.node.always(BY_NUMBER, null())
    with pytest.raises(RpcUnavailable):
        await rig.upstream.fetch(MILLION, handed)
    rig.clock.at += 61.0
    with pytest.raises(BlockNotOnSourceChain):
        await rig.upstream.fetch(MILLION, handed)


@pytest.mark.parametrize("behaviour", [html(), error(-32000, "upset"), answer("many"), answer({})])
async def test_absence_is_not_claimed_when_the_head_cannot_be_found_out(rig: Rig, behaviour: Behaviour) -> None:
    rig.node.always(HEAD, behaviour)
    with pytest.raises(RpcUnavailable):
        await rig.upstream.fetch(BlockRef(height=1_000_001), handed)


async def test_a_hash_that_names_no_block_is_not_on_the_chain(rig: Rig) -> None:
    with pytest.raises(BlockNotOnSourceChain):
        await rig.upstream.fetch(BlockRef(block_hash=bytes(32)), handed)
    assert rig.evm.connections_held == 0


@pytest.mark.parametrize(
    "message", ["header not found", "unknown block", "block not found", "Block with such an ID doesn't exist"]
)
async def test_row_14_an_error_that_means_null_is_null(rig: Rig, message: str) -> None:
    rig.node.always(BY_NUMBER, error(-32000, message))
    rig.node.always(BY_HASH, error(-32000, message))
    with pytest.raises(RpcUnavailable):
        await rig.upstream.fetch(MILLION, handed)
    with pytest.raises(BlockNotOnSourceChain):
        await rig.upstream.fetch(BlockRef(height=1_000_001), handed)
    with pytest.raises(BlockNotOnSourceChain):
        await rig.upstream.fetch(BY_ITS_HASH, handed)


@pytest.mark.parametrize(
    "behaviour",
    [error(4444, "pruned history unavailable"), error(-32602, "history expired"), error(-32000, "missing trie node")],
)
async def test_B31_a_block_that_was_pruned_is_no_archive_and_no_retry(rig: Rig, behaviour: Behaviour) -> None:
    rig.node.always(BY_NUMBER, behaviour)
    with pytest.raises(HistoryUnavailable) as caught:
        await rig.upstream.fetch(MILLION, handed)
    assert not caught.value.retriable
    assert rig.node.hits[BY_NUMBER] == 1


# --- content --------------------------------------------------------------------------------------------------------


async def test_B23_B37_row_17_content_that_fails_is_fetched_once_more_then_inconsistent(rig: Rig) -> None:
    async def refuse(bodies: BlockBodies) -> None:
        raise ContentInvalid("receipts_root", "expected 0xaa, found 0xbb")

    with pytest.raises(InconsistentSource) as caught:
        await rig.upstream.fetch(MILLION, refuse)
    assert "receipts_root" in caught.value.message
    assert "0xaa" in caught.value.message
    assert caught.value.extra == {"check": "receipts_root"}
    assert rig.node.hits == {"eth_chainId": 1, BY_NUMBER: 2, RECEIPTS: 2}
    assert rig.counts.invalid == {"receipts_root": 2}


async def test_B23_a_mix_of_two_nodes_is_healed_by_the_second_fetch(rig: Rig) -> None:
    foreign = "0x" + "22" * 32
    rig.node.script(RECEIPTS, changed(lambda receipts: receipts[0].update(blockHash=foreign)))

    async def accept(bodies: BlockBodies) -> str:
        for receipt in json.loads(bodies.receipts_json or b""):
            if receipt["blockHash"] != MILLION_HASH:
                raise ContentInvalid("receipt_block_hash", "foreign")
        return "accepted"

    assert await rig.upstream.fetch(MILLION, accept) == "accepted"
    assert rig.node.params[RECEIPTS] == [[MILLION_HASH]] * 2
    assert rig.counts.invalid == {"receipt_block_hash": 1}


@pytest.mark.parametrize("ref", [MILLION, BY_ITS_HASH])
async def test_row_19_another_valid_block_than_the_one_asked_for_is_refused(rig: Rig, ref: BlockRef) -> None:
    other = recorded("contiguous", "mainnet_1000002")["block"]
    rig.node.always(BY_NUMBER, answer(other))
    rig.node.always(BY_HASH, answer(other))
    with pytest.raises(InconsistentSource) as caught:
        await rig.upstream.fetch(ref, handed)
    assert caught.value.extra == {"check": "identity"}


@pytest.mark.parametrize("block", [{}, [], "0x1", 7, {"number": "0xf4240", "hash": "0x12"}, {"number": None}])
async def test_row_09_a_block_that_cannot_be_read_is_inconsistent_not_a_crash(rig: Rig, block: object) -> None:
    rig.node.always(BY_NUMBER, answer(block))
    with pytest.raises(InconsistentSource):
        await rig.upstream.fetch(MILLION, handed)
    with pytest.raises(InconsistentSource):
        await rig.upstream.name_of(1_000_000)


async def test_B34_sloppy_numbers_are_read(rig: Rig) -> None:
    rig.node.script(BY_NUMBER, changed(lambda block: block.update(number="0x0f4240", timestamp=1455404053)))
    name = await rig.upstream.name_of(1_000_000)
    assert name is not None
    assert name.timestamp == 1455404053


# --- retries --------------------------------------------------------------------------------------------------------

TRANSIENT = [
    http(500),
    http(502, "<html>"),
    http(503),
    html(),
    raw(b""),
    raw("invalid host specified"),
    reset(after_bytes=10),
    truncated(),
    error(-32603, "Internal error"),
    error(-32001, "all nodes are unavailable"),
]


@pytest.mark.parametrize("behaviour", TRANSIENT)
async def test_B30_a_transient_failure_is_retried_and_then_serves(rig: Rig, behaviour: Behaviour) -> None:
    rig.node.script(BY_NUMBER, behaviour, behaviour)
    assert numbers(await rig.upstream.fetch(MILLION, handed)) == ("0xf4240", 2)
    assert rig.node.hits[BY_NUMBER] == 3
    assert rig.clock.pauses == [0.15, 0.3]


@pytest.mark.parametrize("behaviour", TRANSIENT)
async def test_B27_B30_a_lasting_failure_is_bounded_and_says_unavailable(rig: Rig, behaviour: Behaviour) -> None:
    rig.node.always(BY_NUMBER, behaviour)
    with pytest.raises(RpcUnavailable) as caught:
        await rig.upstream.fetch(MILLION, handed)
    assert rig.node.hits[BY_NUMBER] == 3
    assert rig.node.url not in str(caught.value)
    assert "<html>" not in str(caught.value)


async def test_row_01_a_refused_connection_is_unavailable() -> None:
    with closed_port() as port:
        async with open_rig(ScriptedNode(), url=f"http://127.0.0.1:{port}/KEY") as rig:
            with pytest.raises(RpcUnavailable) as caught:
                await rig.upstream.fetch(MILLION, handed)
            assert str(caught.value) == "upstream node-a: the connection was refused"
            assert rig.counts.results("eth_chainId") == {"transport": 3}


async def test_row_03_a_node_that_hangs_is_given_up_after_its_attempts(rig: Rig) -> None:
    await rig.evm.verify_chain()
    rig.limit(attempt_timeout_s=0.1)
    rig.node.always(BY_NUMBER, hang())
    with pytest.raises(RpcUnavailable):
        await rig.upstream.fetch(MILLION, handed)
    assert rig.counts.results(BY_NUMBER) == {"timeout": 3}


@pytest.mark.parametrize("status", [401, 402, 403, 400, 404])
async def test_row_07_a_client_error_is_not_retried(rig: Rig, status: int) -> None:
    rig.node.always(BY_NUMBER, http(status, "no"))
    with pytest.raises(RpcUnavailable):
        await rig.upstream.fetch(MILLION, handed)
    assert rig.node.hits[BY_NUMBER] == 1


async def test_B30_row_05_a_limit_is_waited_for_by_everybody_and_retried_by_nobody(rig: Rig) -> None:
    rig.node.script(BY_NUMBER, http(429, "", retry_after="30"))
    for _ in range(20):
        with pytest.raises(RpcUnavailable) as caught:
            await rig.upstream.fetch(MILLION, handed)
        assert caught.value.retry_after_s == 30.0
    assert rig.node.hits[BY_NUMBER] == 1
    rig.clock.at += 30.0
    assert numbers(await rig.upstream.fetch(MILLION, handed)) == ("0xf4240", 2)


async def test_B30_row_27_retries_under_a_storm_are_a_tenth_of_the_calls(rig: Rig) -> None:
    rig.node.always(BY_NUMBER, http(503))
    for _ in range(400):
        with pytest.raises(RpcUnavailable):
            await rig.upstream.fetch(MILLION, handed)
        # No time passes: the budget is refilled by calls alone.
        rig.clock.at = 1000.0
    assert rig.node.hits[BY_NUMBER] <= 400 * 1.1 + 32
    rig.node.always(BY_NUMBER, None)
    assert numbers(await rig.upstream.fetch(MILLION, handed)) == ("0xf4240", 2)


async def test_U11_pauses_shrink_near_the_deadline_and_then_the_call_is_given_up(rig: Rig) -> None:
    rig.node.always(BY_NUMBER, http(500))
    await rig.evm.verify_chain()
    token = deadline.set(rig.clock.now() + 0.4)
    try:
        with pytest.raises(RpcUnavailable):
            await rig.upstream.fetch(MILLION, handed)
    finally:
        deadline.reset(token)
    assert rig.clock.pauses == [0.15, pytest.approx(0.05)]


async def test_a_call_cut_by_the_deadline_says_so_and_names_the_stage(rig: Rig) -> None:
    rig.node.always(BY_NUMBER, hang())
    await rig.evm.verify_chain()
    token = deadline.set(rig.clock.now() + 0.15)
    try:
        with pytest.raises(RequestTimeout) as caught:
            await rig.upstream.fetch(MILLION, handed)
    finally:
        deadline.reset(token)
    assert caught.value.extra == {"stage": "fetch"}


async def test_a_cancelled_fetch_by_hash_frees_both_connections(rig: Rig) -> None:
    gate = asyncio.Event()
    rig.node.script(BY_HASH, held(gate))
    rig.node.script(RECEIPTS, held(gate))
    fetching = asyncio.ensure_future(rig.upstream.fetch(BY_ITS_HASH, handed))
    await rig.node.until(BY_HASH)
    await rig.node.until(RECEIPTS)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert rig.evm.connections_held == 0
    gate.set()
    assert numbers(await rig.upstream.fetch(BY_ITS_HASH, handed)) == ("0xf4240", 2)


# --- names, tags, positions -----------------------------------------------------------------------------------------


async def test_the_name_of_a_block_is_asked_for_without_its_transactions(rig: Rig) -> None:
    name = await rig.upstream.name_of(1_000_000)
    assert name is not None
    assert name.height == 1_000_000
    assert name.block_hash == from_hex(MILLION_HASH)
    assert rig.node.params[BY_NUMBER] == [["0xf4240", False]]


async def test_no_name_where_the_node_has_none_below_its_head(rig: Rig) -> None:
    assert await rig.upstream.name_of(999_999) is None
    with pytest.raises(BlockNotOnSourceChain):
        await rig.upstream.name_of(1_000_001)


async def test_another_height_than_the_one_asked_for_is_inconsistent(rig: Rig) -> None:
    rig.node.always(BY_NUMBER, changed(lambda block: block.update(number="0xf4241")))
    with pytest.raises(InconsistentSource):
        await rig.upstream.name_of(1_000_000)


async def test_the_height_of_a_block_by_its_hash(rig: Rig) -> None:
    assert await rig.upstream.height_of(from_hex(MILLION_HASH)) == 1_000_000
    assert rig.node.params[BY_HASH] == [[MILLION_HASH, False]]
    assert await rig.upstream.height_of(bytes(32)) is None


@pytest.mark.parametrize(
    ("behaviour", "refused"),
    [(http(502), RpcUnavailable), (changed(lambda block: block.update(hash="0x" + "55" * 32)), InconsistentSource)],
)
async def test_a_height_that_was_not_found_out_is_no_absence(
    rig: Rig, behaviour: Behaviour, refused: type[ProofError]
) -> None:
    rig.node.always(BY_HASH, behaviour)
    with pytest.raises(refused):
        await rig.upstream.height_of(from_hex(MILLION_HASH))


async def test_a_tag_names_a_block_that_was_returned(rig: Rig, million: dict[str, Any]) -> None:
    rig.node.add({**million["block"], "number": "0xf423f", "hash": "0x" + "33" * 32, "transactions": []}, [])
    rig.node.finalized = 999_999
    latest, finalized = await rig.upstream.tagged("latest"), await rig.upstream.tagged("finalized")
    assert latest is not None
    assert finalized is not None
    assert (latest.height, finalized.height) == (1_000_000, 999_999)


@pytest.mark.parametrize(
    "behaviour",
    [
        null(),
        error(-32000, "safe block not found"),
        error(-32602, "invalid argument 0: hex string without 0x prefix"),
        error(-32601, "no"),
        error(-32000, "what is that?"),
    ],
)
async def test_B38_a_node_that_does_not_know_a_tag_has_none(rig: Rig, behaviour: Behaviour) -> None:
    rig.node.always(BY_NUMBER, behaviour)
    assert await rig.upstream.tagged("safe") is None


@pytest.mark.parametrize("behaviour", [http(500), html(), http(401), error(-32005, "limit"), error(-32002, "timeout")])
async def test_a_node_that_cannot_be_asked_is_not_one_without_the_tag(rig: Rig, behaviour: Behaviour) -> None:
    rig.node.always(BY_NUMBER, behaviour)
    with pytest.raises(RpcUnavailable):
        await rig.upstream.tagged("safe")


async def test_the_position_of_a_transaction(rig: Rig) -> None:
    position = await rig.upstream.position(from_hex(FIRST_TX))
    assert position is not None
    assert (position.height, position.index) == (1_000_000, 0)
    assert position.block_hash == from_hex(MILLION_HASH)
    assert rig.node.params[TX] == [[FIRST_TX]]


@pytest.mark.parametrize("behaviour", [null(), error(-32000, "transaction not found")])
async def test_a_transaction_that_the_node_does_not_know_has_no_position(rig: Rig, behaviour: Behaviour) -> None:
    rig.node.script(TX, behaviour)
    assert await rig.upstream.position(from_hex(FIRST_TX)) is None


async def test_a_pending_transaction_is_not_mined_yet(rig: Rig) -> None:
    pending = "0x" + "44" * 32
    rig.node.pending[pending] = {
        "hash": pending, "blockHash": None, "blockNumber": None, "transactionIndex": None
    }  # fmt: skip
    with pytest.raises(TxNotMined):
        await rig.upstream.position(from_hex(pending))


async def test_an_answer_about_another_transaction_is_inconsistent(rig: Rig) -> None:
    rig.node.always(TX, changed(lambda found: found.update(hash="0x" + "55" * 32)))
    with pytest.raises(InconsistentSource):
        await rig.upstream.position(from_hex(FIRST_TX))
    assert rig.node.hits[TX] == 2


@pytest.mark.parametrize("method", [BY_NUMBER, BY_HASH, TX])
async def test_not_found_out_is_never_absent(rig: Rig, method: str) -> None:
    rig.node.always(method, http(502))
    with pytest.raises(RpcUnavailable):
        await rig.upstream.position(from_hex(FIRST_TX)) if method == TX else await rig.upstream.fetch(
            MILLION if method == BY_NUMBER else BY_ITS_HASH, handed
        )


# --- B35 ------------------------------------------------------------------------------------------------------------


async def test_B35_the_wrong_chain_is_unavailable_and_named_without_the_url(rig: Rig) -> None:
    rig.node.chain_id = 11155111
    with pytest.raises(RpcUnavailable) as caught:
        await rig.upstream.fetch(MILLION, handed)
    assert caught.value.message == "upstream node-a: the node serves chain 11155111, configured 1"


async def test_B35_an_upstream_that_is_down_at_the_start_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with closed_port() as port:
        async with open_rig(ScriptedNode(), url=f"http://127.0.0.1:{port}/KEY") as rig:
            for _ in range(3):
                with pytest.raises(RpcUnavailable):
                    await rig.upstream.sightings("latest")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "KEY" not in caplog.text


async def test_B35_a_node_tells_its_chain_once(million: dict[str, Any]) -> None:
    async with ScriptedNode.of_corpus(million) as node, open_rig(node, chain_id=None) as rig:
        assert rig.upstream.known_chain_id is None
        for _ in range(2):
            assert await rig.upstream.chain_id() == 1
        assert node.hits == {"eth_chainId": 1}


async def test_a_listing_names_the_node_and_says_how_it_stands(rig: Rig) -> None:
    def state() -> object:
        (listed,) = rig.upstream.states()
        assert listed["name"] == "node-a"
        assert rig.node.url not in str(listed)
        return listed["state"]

    assert (state(), rig.upstream.known_chain_id) == ("unverified", 1)
    await rig.upstream.fetch(MILLION, handed)
    (listed,) = rig.upstream.states()
    assert (listed["head"], listed["lag"], listed["breaker"], listed["cooldownSeconds"]) == (
        1_000_000,
        0,
        "closed",
        0.0,
    )
    for behaviour, word, pause_s in ((http(429), "limited", 1.0), (http(401), "denied", 60.0)):
        rig.node.script(BY_NUMBER, behaviour)
        with pytest.raises(RpcUnavailable):
            await rig.upstream.tagged("latest")
        assert state() == word
        rig.clock.at += pause_s
    await rig.upstream.tagged("latest")
    assert state() == "ok"
    rig.node.chain_id = 5
    rig.clock.at += 300.0
    with pytest.raises(RpcUnavailable):
        await rig.upstream.tagged("latest")
    assert (state(), rig.upstream.known_chain_id) == ("wrong-chain", 1)


async def test_every_failure_is_a_proof_error(rig: Rig) -> None:
    """Whatever single answer a node gives to any call, nothing but a proof error comes out."""
    answers: list[Behaviour] = [
        answer(value) for value in (None, [], {}, "", "0x", 0, True, 1.5, "latest", [None], [[]], {"hash": 1})
    ]
    for method in (BY_NUMBER, BY_HASH, RECEIPTS, TX, HEAD, TX_RECEIPT):
        for behaviour in copy.copy(answers):
            rig.node.always(method, behaviour)
            for ask in (
                lambda: rig.upstream.fetch(MILLION, handed),
                lambda: rig.upstream.fetch(BY_ITS_HASH, handed),
                lambda: rig.upstream.name_of(1_000_001),
                lambda: rig.upstream.tagged("latest"),
                lambda: rig.upstream.position(from_hex(FIRST_TX)),
            ):
                outcome = (await asyncio.gather(ask(), return_exceptions=True))[0]
                assert not isinstance(outcome, BaseException) or isinstance(outcome, ProofError)
        rig.node.always(method, None)
