"""The native routes: what they prove, how they name it, and how long it may be kept."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
import pytest
from eth_abi import decode as abi_decode

from app.api import native, second_opinion
from app.checker import Refused
from app.core.hexadecimal import to_hex
from app.core.keccak import keccak
from app.core.provable_block import ProvableBlock, Verdict
from app.core.trie import ordered_key
from app.core.trie_proof import verify
from tests.api.fakes import RecordedChain, RecordedHouse, anchored_chain, provable
from tests.api.serving import serving

FIELDS = [
    "format",
    "kind",
    "chainKey",
    "chainId",
    "blockNumber",
    "blockHash",
    "headerRlp",
    "finality",
    "transactionHash",
    "transactionIndex",
    "root",
    "key",
    "value",
    "nodes",
]


@pytest.fixture
def final_block(house: RecordedHouse) -> ProvableBlock:
    """A finalized block with logs in several receipts."""
    return house.by_name["modern"].blocks[0]


@pytest.fixture
def head_block(house: RecordedHouse) -> ProvableBlock:
    """The block one above the finalized height."""
    return house.by_name["modern"].blocks[1]


def tx_with_logs(block: ProvableBlock, at_least: int = 2) -> int:
    """The first transaction, not the block's very first, whose receipt holds so many logs."""
    ends = [0, *memoryview(block.log_ends).cast("I")]
    return next(i for i in range(1, block.receipt_count) if ends[i + 1] - ends[i] >= at_least and ends[i] > 0)


def data(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def assert_proven(body: dict[str, Any], block: ProvableBlock, index: int) -> None:
    """The trie proof of a body holds against the header of the block it names."""
    assert keccak(data(body["headerRlp"])) == data(body["blockHash"]) == block.block_hash
    assert data(body["root"]) in data(body["headerRlp"])
    nodes = tuple(data(node) for node in body["nodes"])
    assert data(body["key"]) == ordered_key(index)
    assert verify(data(body["root"]), data(body["key"]), nodes) == data(body["value"])


@pytest.mark.parametrize("kind", ["transaction", "receipt"])
async def test_by_hash_and_by_position_give_the_same_bytes(
    client: httpx2.AsyncClient, final_block: ProvableBlock, kind: str
) -> None:
    tx_hash = to_hex(final_block.transaction_hash(5))
    by_hash = await client.get(f"/api/v1/proofs/modern/{kind}s/{tx_hash}")
    others = [
        await client.get(f"/api/v1/proofs/{chain}/blocks/{block}/{kind}s/5")
        for chain in ("11", "modern")
        for block in (str(final_block.height), hex(final_block.height), to_hex(final_block.block_hash))
    ]
    assert {other.content for other in others} == {by_hash.content}
    assert {other.headers["etag"] for other in others} == {by_hash.headers["etag"]}
    body = json.loads(by_hash.content)
    assert list(body) == FIELDS
    assert (body["format"], body["kind"]) == ("copath/1", kind)
    assert (body["chainKey"], body["chainId"]) == ("11", "1")
    assert (body["blockNumber"], body["transactionIndex"], body["transactionHash"]) == (final_block.height, 5, tx_hash)
    assert body["finality"] == {"level": "finalized", "by": "rpc-tag", "sources": 1}
    assert_proven(body, final_block, 5)


async def test_a_log_is_proven_by_any_of_its_three_names(
    client: httpx2.AsyncClient, final_block: ProvableBlock
) -> None:
    index = tx_with_logs(final_block)
    tx_hash = to_hex(final_block.transaction_hash(index))
    named = await client.get(f"/api/v1/proofs/modern/logs/{tx_hash}/1")
    body = json.loads(named.content)
    assert list(body) == [*FIELDS, "log"]
    assert list(body["log"]) == ["address", "topics", "data", "indexInReceipt", "indexInBlock", "rlp"]
    assert body["kind"] == "log"
    assert body["log"]["indexInReceipt"] == 1
    in_block = body["log"]["indexInBlock"]
    assert in_block > 1
    assert data(body["log"]["rlp"]) in data(body["value"])
    assert_proven(body, final_block, index)
    for path in (
        f"logs/{tx_hash}/1?index=receipt",
        f"logs/{tx_hash}/{in_block}?index=block",
        f"blocks/{final_block.height}/logs/{in_block}",
        f"blocks/{to_hex(final_block.block_hash)}/logs/{in_block}?e=1",
    ):
        assert (await client.get(f"/api/v1/proofs/modern/{path}")).content == named.content, path


async def test_B39_a_log_of_another_transaction_is_out_of_bounds(
    client: httpx2.AsyncClient, final_block: ProvableBlock
) -> None:
    index = tx_with_logs(final_block)
    tx_hash = to_hex(final_block.transaction_hash(index))
    for path in (f"{tx_hash}/0?index=block", f"{tx_hash}/100000", f"{tx_hash}/100000?index=block"):
        response = await client.get(f"/api/v1/proofs/modern/logs/{path}")
        assert (response.status_code, response.json()["code"]) == (404, "LogIndexOutOfBounds"), path
        assert response.json()["retriable"] is False


async def test_B43_an_empty_block_proves_no_item_at_all(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    empty = house.by_name["modern"].blocks[2]
    assert empty.transaction_count == 0
    for items in ("transactions", "receipts", "logs"):
        response = await client.get(f"/api/v1/proofs/modern/blocks/{empty.height}/{items}/0")
        assert (response.status_code, response.json()["code"]) == (422, "EmptyBlockTxProof")
    assert house.counted("copath_proof_outcome_total", outcome="EmptyBlockTxProof", chain="modern") == 3


@pytest.mark.parametrize(
    "path",
    [
        "transactions/0xabc",
        "receipts/" + "g" * 64,
        "logs/" + "00" * 32 + "/-1",
        "logs/" + "00" * 32 + "/0?index=both",
        "blocks/latest/receipts/0",
        "blocks/9007199254740992/receipts/0",
        "blocks/-1/receipts/0",
        "blocks/1e3/receipts/0",
        "blocks/1/receipts/1_000",
        "blocks/1/receipts/9007199254740992",
        "blocks/1/logs/0x1",
        "receipts/" + "00" * 32 + "?finality=certain",
        "receipts/" + "00" * 32 + "?finality=safe&finality=safe",
        "receipts/" + "00" * 32 + "?encoding=nodes&encoding=polygon-exit",
    ],
)
async def test_B73_malformed_input_is_a_problem_before_any_look_up(
    client: httpx2.AsyncClient, house: RecordedHouse, path: str
) -> None:
    response = await client.get(f"/api/v1/proofs/modern/{path}")
    assert (response.status_code, response.json()["code"]) == (400, "InvalidParameter")
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == 400
    assert house.by_name["modern"].looked_up == []


@pytest.mark.parametrize("chain", ["3", "unknown", "MODERN", "9007199254740993", "%20"])
async def test_an_unknown_chain_is_refused_at_the_door(client: httpx2.AsyncClient, chain: str) -> None:
    response = await client.get(f"/api/v1/proofs/{chain}/receipts/nonsense")
    assert response.status_code == 400
    assert response.json()["code"] in ("InvalidChainKey", "InvalidParameter")
    if chain in ("3", "unknown"):
        named = "2 (mainnet-early), 11 (modern)"
        assert response.json()["message"] == f"Chain not configured: {chain} (allowed: {named})"


async def test_an_encoding_that_is_asked_for_is_in_the_body_and_in_the_immutable_url(
    client: httpx2.AsyncClient, final_block: ProvableBlock
) -> None:
    path = f"/api/v1/proofs/modern/blocks/{to_hex(final_block.block_hash)}/receipts/0?e=1"
    plain, asked = await client.get(path), await client.get(f"{path}&encoding=nodes&encoding=nodes")
    body = asked.json()
    (decoded,) = abi_decode(["bytes[]"], bytes.fromhex(body["encodings"].pop("nodes")[2:]))
    assert [to_hex(node) for node in decoded] == body["nodes"]
    assert body.pop("encodings") == {}
    assert body == plain.json()
    assert asked.headers["etag"] != plain.headers["etag"]
    assert asked.headers["content-location"] == f"{plain.headers['content-location']}&encoding=nodes"
    named = await client.get(asked.headers["content-location"])
    assert (named.content, "immutable" in named.headers["cache-control"]) == (asked.content, True)
    verdict = await client.post("/api/v1/proofs/verify", json=asked.json())
    assert verdict.json()["valid"] is True


async def test_unknown_encodings_are_told_the_known_ones(
    client: httpx2.AsyncClient, final_block: ProvableBlock
) -> None:
    path = f"/api/v1/proofs/modern/blocks/{final_block.height}/receipts/0"
    refused = await client.get(path, params={"encoding": "op-merkletrie"})
    assert refused.json()["message"] == "encoding must be one of nodes, not 'op-merkletrie'"


async def test_a_level_that_is_not_reached_is_a_conflict(client: httpx2.AsyncClient, head_block: ProvableBlock) -> None:
    path = f"/api/v1/proofs/modern/blocks/{head_block.height}/receipts/0"
    assert (await client.get(path, params={"finality": "safe"})).json()["finality"]["level"] == "safe"
    refused = await client.get(path, params={"finality": "finalized"})
    assert (refused.status_code, refused.json()["code"]) == (409, "NotFinalized")
    assert "retry-after" in refused.headers


async def test_B46_only_a_final_block_under_its_hash_and_version_is_immutable(
    client: httpx2.AsyncClient, final_block: ProvableBlock, head_block: ProvableBlock
) -> None:
    immutable = "public, max-age=31536000, immutable"
    final, head = to_hex(final_block.block_hash), to_hex(head_block.block_hash)
    expected = {
        f"blocks/{final}/receipts/0?e=1": immutable,
        f"blocks/{final}/receipts/0?e=2": "public, max-age=60",
        f"blocks/{final}/receipts/0": "public, max-age=60",
        f"blocks/{final_block.height}/receipts/0?e=1": "public, max-age=60",
        f"receipts/{to_hex(final_block.transaction_hash(0))}?e=1": "public, max-age=60",
        f"blocks/{head}/receipts/0?e=1": "public, max-age=2",
        f"blocks/{head_block.height}/receipts/0": "public, max-age=2",
    }
    for path, cache_control in expected.items():
        response = await client.get(f"/api/v1/proofs/modern/{path}")
        assert response.headers["cache-control"] == cache_control, path
        assert response.headers["etag"].startswith('"'), path
        location = response.headers.get("content-location")
        is_final = path.split("/")[1].split("?")[0] not in (head, str(head_block.height))
        assert (location is not None) is is_final, path


@pytest.mark.parametrize("kind", ["transactions", "receipts", "logs"])
async def test_content_location_leads_to_the_same_bytes_for_ever(
    client: httpx2.AsyncClient, final_block: ProvableBlock, kind: str
) -> None:
    tx_hash = to_hex(final_block.transaction_hash(tx_with_logs(final_block)))
    tail = "/1" if kind == "logs" else ""
    answer = await client.get(f"/api/v1/proofs/modern/{kind}/{tx_hash}{tail}")
    location = answer.headers["content-location"]
    same = await client.get(location)
    assert same.headers["cache-control"].endswith("immutable")
    assert same.headers["content-location"] == location
    assert (same.content, same.headers["etag"]) == (answer.content, answer.headers["etag"])


async def test_the_verifier_is_asked_about_what_the_client_asked_for(
    client: httpx2.AsyncClient, final_block: ProvableBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[dict[str, Any]] = []
    monkeypatch.setattr(second_opinion.checker, "check_native", lambda body, asked: pinned.append(dict(asked)))
    index = tx_with_logs(final_block)
    tx_hash, block_hash = to_hex(final_block.transaction_hash(index)), to_hex(final_block.block_hash)
    for path in (
        f"transactions/{tx_hash}",
        f"receipts/{tx_hash.upper()}",
        f"logs/{tx_hash}/1",
        f"blocks/{final_block.height}/transactions/{index}",
        f"blocks/{block_hash}/receipts/{index}",
        f"blocks/{hex(final_block.height)}/logs/4",
    ):
        assert (await client.get(f"/api/v1/proofs/11/{path}")).status_code == 200
    common = {"chainKey": "11", "chainId": "1"}
    assert pinned == [
        common | {"kind": "transaction", "transactionHash": tx_hash},
        common | {"kind": "receipt", "transactionHash": tx_hash},
        common | {"kind": "log", "transactionHash": tx_hash, "log.indexInReceipt": 1},
        common | {"kind": "transaction", "blockNumber": final_block.height, "transactionIndex": index},
        common | {"kind": "receipt", "blockHash": block_hash, "transactionIndex": index},
        common | {"kind": "log", "blockNumber": final_block.height, "log.indexInBlock": 4},
    ]


async def test_a_proof_that_the_verifier_refuses_is_never_sent(
    client: httpx2.AsyncClient, house: RecordedHouse, final_block: ProvableBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise Refused("RootMismatch", "root")

    monkeypatch.setattr(second_opinion.checker, "check_native", refuse)
    response = await client.get(f"/api/v1/proofs/modern/blocks/{final_block.height}/receipts/0")
    assert (response.status_code, response.json()["code"]) == (500, "SelfCheckFailed")
    assert "nodes" not in response.json()
    assert house.counted("copath_selfcheck_failures_total", chain="modern", kind="receipt") == 1


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, dict[str, Any]]]:
    """What the verifier was asked; it decides as it always does."""
    seen: list[tuple[bytes, dict[str, Any]]] = []
    check = second_opinion.checker.check_native

    def noted(body: bytes, asked: Mapping[str, object]) -> None:
        seen.append((body, dict(asked)))
        check(body, asked)

    monkeypatch.setattr(second_opinion.checker, "check_native", noted)
    return seen


async def test_the_same_bytes_for_the_same_question_are_judged_once(
    client: httpx2.AsyncClient, final_block: ProvableBlock, judged: list[tuple[bytes, dict[str, Any]]]
) -> None:
    by_height = f"/api/v1/proofs/11/blocks/{final_block.height}/receipts/0"
    first, again = await client.get(by_height), await client.get(by_height)
    assert (first.status_code, first.content) == (200, again.content)
    assert len(judged) == 1


async def test_the_same_bytes_for_another_question_are_judged_anew(
    client: httpx2.AsyncClient, final_block: ProvableBlock, judged: list[tuple[bytes, dict[str, Any]]]
) -> None:
    tx_hash, block_hash = to_hex(final_block.transaction_hash(0)), to_hex(final_block.block_hash)
    paths = (f"blocks/{final_block.height}/receipts/0", f"blocks/{block_hash}/receipts/0", f"receipts/{tx_hash}")
    bodies = {(await client.get(f"/api/v1/proofs/11/{path}")).content for path in paths}
    assert len(bodies) == 1
    assert len(judged) == len({str(asked) for _, asked in judged}) == 3


async def test_other_bytes_for_the_same_question_are_judged(
    client: httpx2.AsyncClient, final_block: ProvableBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/api/v1/proofs/11/blocks/{final_block.height}/receipts/0"
    assert (await client.get(path)).status_code == 200
    honest = second_opinion.wire.native_body
    spoilt: list[Callable[[bytes], bytes]] = [
        lambda body: body.replace(b'"value":"0x', b'"value":"0x00'),
        lambda body: body.replace(b'"blockNumber":', b'"blockNumber":1'),
        lambda body: body[:-1],
    ]
    for spoil in spoilt:
        monkeypatch.setattr(native.wire, "native_body", lambda *of, spoil=spoil: spoil(honest(*of)))
        assert (await client.get(path)).json()["code"] == "SelfCheckFailed"
    monkeypatch.setattr(native.wire, "native_body", honest)
    assert (await client.get(path)).status_code == 200


async def test_what_was_refused_is_judged_again(
    client: httpx2.AsyncClient, final_block: ProvableBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [Refused("RootMismatch", "root")] * 2

    def refuse_twice(*_: object) -> None:
        if refusals:
            raise refusals.pop()

    monkeypatch.setattr(second_opinion.checker, "check_native", refuse_twice)
    path = f"/api/v1/proofs/11/blocks/{final_block.height}/receipts/0"
    assert [(await client.get(path)).status_code for _ in range(3)] == [500, 500, 200]


def test_the_memory_of_accepted_answers_is_bounded_and_forgets_what_was_not_asked_for_longest() -> None:
    accepted = second_opinion.Accepted(2)
    accepted.add(b"a")
    accepted.add(b"b")
    assert b"a" in accepted
    accepted.add(b"c")
    assert [digest in accepted for digest in (b"a", b"b", b"c")] == [True, False, True]


async def test_a_receipt_whose_transaction_hash_is_not_proven_says_so() -> None:
    block = provable("full", "mainnet_19426587", anchored=False)
    unproven = block.__class__(
        **{name: getattr(block, name) for name in block.__struct_fields__}
        | {"transactions": None, "transactions_verdict": Verdict.UNSUPPORTED_TYPE, "transactions_detail": "0x7d"}
    )
    house = RecordedHouse([RecordedChain(1, "odd", [unproven])])
    async with serving(house) as client:
        receipt = await client.get(f"/api/v1/proofs/odd/receipts/{to_hex(block.transaction_hash(3))}")
        transaction = await client.get(f"/api/v1/proofs/odd/transactions/{to_hex(block.transaction_hash(3))}")
    assert receipt.json()["transactionHashBy"] == "rpc"
    assert (transaction.status_code, transaction.json()["code"]) == (422, "UnsupportedTransactionType")


async def test_B64_answers_do_not_depend_on_what_was_asked_before(final_block: ProvableBlock) -> None:
    tx_hash = to_hex(final_block.transaction_hash(tx_with_logs(final_block)))
    native = [
        f"/api/v1/proofs/11/{path}" for path in (f"transactions/{tx_hash}", f"receipts/{tx_hash}", f"logs/{tx_hash}/0")
    ]
    cold = {}
    for path in native:
        async with serving(RecordedHouse([RecordedChain(11, "modern", [final_block])])) as client:
            cold[path] = (await client.get(path)).content
    for order in itertools.permutations(native):
        house = RecordedHouse([RecordedChain(11, "modern", [final_block]), anchored_chain()])
        async with serving(house) as client:
            answers = await asyncio.gather(
                *(client.get(path) for path in (*order, "/api/v1/proof/2/1000004/0", *order))
            )
        for path, answer in zip((*order, None, *order), answers, strict=True):
            assert path is None or answer.content == cold[path]


async def test_B67_every_number_in_a_native_body_is_exact_in_any_json_reader(
    client: httpx2.AsyncClient, final_block: ProvableBlock
) -> None:
    def numbers(value: Any) -> list[int]:
        if isinstance(value, dict):
            return [number for inner in value.values() for number in numbers(inner)]
        if isinstance(value, list):
            return [number for inner in value for number in numbers(inner)]
        assert not isinstance(value, float)
        return [value] if isinstance(value, int) and not isinstance(value, bool) else []

    big = ProvableBlock(
        **{name: getattr(final_block, name) for name in final_block.__struct_fields__} | {"chain_id": 2**64 + 1}
    )
    async with serving(RecordedHouse([RecordedChain(2**63 - 1, "big", [big])])) as other:
        body = (await other.get(f"/api/v1/proofs/big/blocks/{big.height}/logs/0")).json()
        assert (await other.get(f"/api/v1/proofs/{2**63 - 1}/blocks/{big.height}/logs/0")).json() == body
    assert (body["chainId"], body["chainKey"]) == (str(2**64 + 1), str(2**63 - 1))
    assert max(numbers(body)) <= 2**53 - 1
