"""The compatible routes, as existing clients use them."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import pytest

from app.api import second_opinion
from app.checker import Refused
from app.core import continuity, merkle
from app.core.blocks import BlockRef
from app.core.hexadecimal import to_hex
from tests.api.fakes import RecordedAnchors, RecordedHouse

WITH_TRANSACTIONS = 1000004  # two of them


def chain_of(house: RecordedHouse) -> Any:
    return house.by_name["mainnet-early"]


async def test_the_body_has_the_reference_servers_fields_in_its_order(
    client: httpx2.AsyncClient, house: RecordedHouse
) -> None:
    block = (await chain_of(house).block(BlockRef(height=WITH_TRANSACTIONS))).block
    response = await client.get(f"/api/v1/proof/2/{WITH_TRANSACTIONS}/1")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = json.loads(response.content)
    assert list(body) == [
        "chainKey",
        "headerNumber",
        "txIndex",
        "txHash",
        "txBytes",
        "continuityProof",
        "merkleProof",
        "cached",
        "generatedAt",
    ]
    assert (body["chainKey"], body["headerNumber"], body["txIndex"]) == (2, WITH_TRANSACTIONS, 1)
    assert body["txHash"] == to_hex(block.transaction_hash(1))
    assert list(body["continuityProof"]) == ["lowerEndpointDigest", "roots"]
    assert list(body["merkleProof"]) == ["root", "siblings"]
    assert [list(sibling) for sibling in body["merkleProof"]["siblings"]] == [["hash", "isLeft"]]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", body["generatedAt"])


async def test_the_proof_leads_from_the_leaf_to_the_anchor(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    body = (await client.get(f"/api/v1/proof/2/{WITH_TRANSACTIONS}/0")).json()
    siblings = [(bytes.fromhex(s["hash"][2:]), s["isLeft"]) for s in body["merkleProof"]["siblings"]]
    root = bytes.fromhex(body["merkleProof"]["root"][2:])
    assert merkle.verify(root, bytes.fromhex(body["txBytes"][2:]), siblings) == 0
    assert body["continuityProof"]["roots"][0] == body["merkleProof"]["root"]
    digest = bytes.fromhex(body["continuityProof"]["lowerEndpointDigest"][2:])
    for height, root_hex in enumerate(body["continuityProof"]["roots"], WITH_TRANSACTIONS):
        digest = continuity.digest(height, bytes.fromhex(root_hex[2:]), digest)
    assert digest == chain_of(house).anchors.attestations[1000010]


async def test_both_routes_prove_the_same(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    by_height = (await client.get(f"/api/v1/proof/2/{WITH_TRANSACTIONS}/1")).json()
    by_hash = (await client.get(f"/api/v1/proof-by-tx/2/{by_height['txHash']}")).json()
    for passing in ("generatedAt", "cached"):
        del by_height[passing], by_hash[passing]
    assert by_height == by_hash


async def test_cached_is_true_only_when_no_block_was_fetched(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    tx_hash = to_hex(chain_of(house).blocks[3].transaction_hash(0))
    told = [(await client.get(f"/api/v1/proof-by-tx/2/{tx_hash}")).json()["cached"] for _ in range(2)]
    assert told == [False, True]
    assert (await client.get(f"/api/v1/proof/2/{WITH_TRANSACTIONS}/0")).json()["cached"] is False
    assert chain_of(house).looked_up == ["block"]


async def test_B73_four_spellings_of_a_hash_are_one_look_up_and_one_etag(
    client: httpx2.AsyncClient, house: RecordedHouse
) -> None:
    digits = chain_of(house).blocks[3].transaction_hash(0).hex()
    spellings = [f"0x{digits}", f"0X{digits.upper()}", digits, digits.upper()]
    answers = [await client.get(f"/api/v1/proof-by-tx/2/{spelling}") for spelling in spellings]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["txHash"] for answer in answers} == {f"0x{digits}"}
    assert len({answer.headers["etag"] for answer in answers}) == 1
    assert chain_of(house).looked_up == ["block"]


@pytest.mark.parametrize(
    ("path", "status", "code", "message"),
    [
        ("proof/3/1000004/0", 400, "InvalidChainKey", "Chain key not configured: 3 (allowed: [2, 11])"),
        ("proof/3/NOT/0", 400, "InvalidChainKey", "Chain key not configured: 3 (allowed: [2, 11])"),
        ("proof-by-tx/3/0x00", 400, "InvalidChainKey", "Chain key not configured: 3 (allowed: [2, 11])"),
        ("attested-height/3", 400, "InvalidChainKey", "Chain key not configured: 3 (allowed: [2, 11])"),
        (
            "attested-height/NOT",
            400,
            "InvalidParameter",
            "invalid parameter: could not parse chain_key from request path",
        ),
        ("proof/NOT/0/0", 400, "InvalidParameter", None),
        ("proof/2/-4/0", 400, "InvalidParameter", None),
        ("proof/2/1e3/0", 400, "InvalidParameter", None),
        ("proof/2/1000004/+1", 400, "InvalidParameter", None),
        ("proof/2/1000004/18446744073709551616", 400, "InvalidParameter", None),
        ("proof-by-tx/2/0xUNEXPECTED", 400, "InvalidParameter", None),
        (
            "proof-by-tx/2/0xabcd",
            400,
            "InvalidParameter",
            "invalid parameter: tx_hash must be 32 bytes, got 2",
        ),
        ("proof/11/22869878/0", 404, "AttestationsMissing", "attestations missing for chain 11"),
        ("proof-by-tx/11/" + "00" * 32, 404, "AttestationsMissing", "attestations missing for chain 11"),
        ("proof/2/1000001/0", 400, "BlockBeforeOrAtGenesis", None),
        ("proof/2/0/0", 400, "BlockBeforeOrAtGenesis", None),
        (
            "proof/2/1000019/0",
            422,
            "BlockNotReady",
            "The continuity proof cannot be created because block 1000019 is not attested to yet. "
            "Last attested block: 1000018",
        ),
        ("proof/2/18446744073709551615/0", 422, "BlockNotReady", None),
    ],
)
async def test_refusals_come_before_any_look_up_in_the_reference_servers_words(
    client: httpx2.AsyncClient, house: RecordedHouse, path: str, status: int, code: str, message: str | None
) -> None:
    response = await client.get(f"/api/v1/{path}")
    body = response.json()
    assert (response.status_code, body["code"]) == (status, code)
    assert message in (None, body["message"])
    assert response.headers["content-type"] == "application/json"
    assert set(body) - {"block_number", "last_attested_block"} == {"code", "message", "retriable"}
    assert [chain.looked_up for chain in house.served] == [[], []]


async def test_B47_attested_height_decides_what_is_ready(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    height = (await client.get("/api/v1/attested-height/2")).json()["attestedHeight"]
    assert height == 1000018
    ready = await client.get(f"/api/v1/proof/2/{height}/0")
    assert ready.status_code == 200
    not_yet = await client.get(f"/api/v1/proof/2/{height + 1}/0")
    assert (not_yet.json()["block_number"], not_yet.json()["last_attested_block"]) == (height + 1, height)
    assert not_yet.json()["retriable"] is True
    assert 1 <= int(not_yet.headers["retry-after"]) <= 3
    unknown = await client.get("/api/v1/proof-by-tx/2/" + "00" * 32)
    assert (unknown.status_code, unknown.json()["code"], unknown.json()["retriable"]) == (404, "TxHashNotFound", False)
    assert unknown.json()["message"] == "tx hash not found: 0x" + "00" * 32


@pytest.mark.parametrize(("height", "code"), [(1000001, "BlockBeforeOrAtGenesis"), (1000021, "BlockNotReady")])
async def test_by_hash_the_bounds_follow_once_the_position_is_known(
    client: httpx2.AsyncClient, house: RecordedHouse, height: int, code: str
) -> None:
    block = (await chain_of(house).block(BlockRef(height=height))).block
    response = await client.get(f"/api/v1/proof-by-tx/2/{to_hex(block.transaction_hash(0))}")
    assert response.json()["code"] == code


async def test_attested_height_is_null_where_there_is_none(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    assert (await client.get("/api/v1/attested-height/11")).content == b'{"attestedHeight":null}'
    chain = chain_of(house)
    chain.anchors = RecordedAnchors(2, chain.blocks, ())
    assert (await client.get("/api/v1/attested-height/2")).json() == {"attestedHeight": None}


async def test_an_index_past_the_end_is_permanent(client: httpx2.AsyncClient) -> None:
    response = await client.get(f"/api/v1/proof/2/{WITH_TRANSACTIONS}/2")
    assert response.status_code == 400
    assert response.json() == {
        "code": "TxIndexOutOfBounds",
        "message": f"tx_index 2 at height {WITH_TRANSACTIONS} out of bounds (len=2)",
        "retriable": False,
    }


async def test_B43_an_empty_block_has_nothing_to_prove(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    empty = next(b.height for b in chain_of(house).blocks if b.transaction_count == 0 and 1000001 < b.height <= 1000018)
    response = await client.get(f"/api/v1/proof/2/{empty}/0")
    assert response.status_code == 422
    assert response.json() == {
        "code": "EmptyBlockTxProof",
        "message": f"block {empty} is empty; tx proof unavailable (use a continuity-only proof)",
        "retriable": False,
    }
    assert house.counted("copath_proof_outcome_total", outcome="EmptyBlockTxProof", chain="mainnet-early") == 1


async def test_the_verifier_is_asked_about_what_the_client_asked_for(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[tuple[dict[str, Any], tuple[int, bytes]]] = []
    monkeypatch.setattr(
        second_opinion.checker, "check_usc", lambda body, asked, anchor: pinned.append((dict(asked), anchor))
    )
    tx_hash = to_hex(chain_of(house).blocks[3].transaction_hash(0))
    await client.get(f"/api/v1/proof/2/{WITH_TRANSACTIONS}/1")
    await client.get(f"/api/v1/proof-by-tx/2/{tx_hash}")
    anchor = (1000010, chain_of(house).anchors.attestations[1000010])
    assert pinned == [
        ({"chainKey": 2, "headerNumber": WITH_TRANSACTIONS, "txIndex": 1}, anchor),
        ({"chainKey": 2, "txHash": tx_hash}, anchor),
    ]


async def test_a_proof_that_the_verifier_refuses_is_never_sent(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise Refused("RootMismatch", "merkleProof.root")

    monkeypatch.setattr(second_opinion.checker, "check_usc", refuse)
    response = await client.get(f"/api/v1/proof/2/{WITH_TRANSACTIONS}/0")
    assert response.status_code == 500
    assert response.json()["code"] == "SelfCheckFailed"
    assert "txBytes" not in response.text
    assert response.headers["cache-control"] == "no-store"
    assert house.counted("copath_selfcheck_failures_total", chain="mainnet-early", kind="usc") == 1


async def test_usc_answers_are_never_immutable(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    chain_of(house).anchors_rest_s = 1e9
    first = await client.get(f"/api/v1/proof/2/{WITH_TRANSACTIONS}/0")
    assert first.headers["etag"].startswith('W/"')
    age = re.fullmatch(r"public, max-age=(\d+)", first.headers["cache-control"])
    assert age is not None
    assert 0 < int(age[1]) <= 60
    again = await client.get(f"/api/v1/proof/2/{WITH_TRANSACTIONS}/0", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    chain = chain_of(house)
    chain.anchors = RecordedAnchors(2, chain.blocks, (1000018,))
    moved = await client.get(f"/api/v1/proof/2/{WITH_TRANSACTIONS}/0", headers={"If-None-Match": first.headers["etag"]})
    assert moved.status_code == 200, "another anchor is another answer"
