"""What clients of the reference server rely on, line by line, where no other test here says it: golden bodies, the ends of number
ranges, what is ignored, what a hole looks like, and who may read an answer."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import pytest

from app.api import problems
from app.api.visit import RouteSign, Visit, begin
from app.core.continuity import not_ready
from app.core.errors import InconsistentSource, Overloaded, RpcUnavailable, TxNotMined, UnsupportedBlockFormat
from app.core.hexadecimal import to_hex
from tests.api import golden
from tests.api.fakes import RecordedHouse, anchored_chain, plain_chain
from tests.api.serving import serving
from tests.corpus_files import VECTORS

SINGLE, BY_PLACE, BY_HASH = "/api/v1/proof/2/1000004/0", "/api/v1/proof-batch/2", "/api/v1/proof-batch-by-tx/2"
JSON = {"Content-Type": "application/json"}
CASES = golden.cases(RecordedHouse([plain_chain(), anchored_chain()]))
ENTRY = [{"headerNumber": 1000004, "txIndexes": [0]}]


def literal(body: object) -> bytes:
    """As the server writes it."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


# --- golden bodies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_body_is_what_it_was_to_the_byte(
    client: httpx2.AsyncClient, house: RecordedHouse, case: golden.Case
) -> None:
    response = await golden.answer(client, case)
    assert response.status_code == case.status
    assert response.headers["content-type"] == "application/json"
    assert golden.lasting(response.content) == (golden.GOLDEN / f"{case.name}.json").read_bytes()


def test_every_golden_body_is_asked_for() -> None:
    assert {path.stem for path in golden.GOLDEN.glob("*.json")} == {case.name for case in CASES}


def test_B47_a_refusal_is_that_of_the_reference_server_to_the_byte() -> None:
    """A body that the reference server was seen to send."""
    recorded = json.loads((VECTORS / "usc" / "api_00_error_bodies.json").read_text())["cases"][1]
    refusal = not_ready(25337037, 25337030)
    scope: dict[str, Any] = {"type": "http"}
    template = "/api/v1/proof/{chain_key}/{header_number}/{tx_index}"
    begin(scope, Visit("id", "GET", RouteSign(template, frozenset({"GET"}))))
    response = problems.answer(scope, refusal)
    assert response.status_code == recorded["status"]
    assert bytes(response.body) == literal(recorded["body"])


@pytest.mark.parametrize(
    ("name", "vector"),
    [("proof", "api_01_single_response_shape.json"), ("proof-batch", "api_02_batch_response_shape.json")],
)
def test_bodies_have_the_fields_of_the_vectors_in_their_order(name: str, vector: str) -> None:
    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            keys = [None if key.isdecimal() else key for key in value]
            return [(key, shape(of)) for key, of in zip(keys, value.values(), strict=True)][
                : 1 if None in keys else None
            ]
        if isinstance(value, list):
            return [shape(value[0])] if value else []
        return type(value).__name__

    expected = json.loads((VECTORS / "usc" / vector).read_text())["body"]
    written = (golden.GOLDEN / f"{name}.json").read_text()
    assert shape(json.loads(written)) == shape(expected)


# --- numbers ----------------------------------------------------------------------------------------------------------

FITTING = [2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
UNFIT = [str(2**64), str(2**64 + 1), str(10**30), "-1", "+1", "1.0", "1e3", "0x", " 1", "1_000", "٣", "NOT", ""]


@pytest.mark.parametrize("number", FITTING)
async def test_B67_64_bit_numbers_are_taken_to_their_end(client: httpx2.AsyncClient, number: int) -> None:
    chain = (await client.get(f"/api/v1/proof/{number}/1/0")).json()
    assert (chain["code"], chain["message"]) == (
        "InvalidChainKey",
        f"Chain key not configured: {number} (allowed: [2, 11])",
    )
    height = (await client.get(f"/api/v1/proof/2/{number}/0")).json()
    assert (height["code"], height["block_number"]) == ("BlockNotReady", number)
    index = (await client.get(f"/api/v1/proof/2/1000004/{number}")).json()
    assert (index["code"], f"tx_index {number} " in index["message"]) == ("TxIndexOutOfBounds", True)
    content = json.dumps([{"headerNumber": number, "txIndexes": [number]}])
    batch = (await client.post(BY_PLACE, content=content, headers=JSON)).json()
    assert (batch["code"], batch["block_number"]) == ("BlockNotReady", number)
    content = json.dumps([{"headerNumber": 1000004, "txIndexes": [number]}])
    batch = (await client.post(BY_PLACE, content=content, headers=JSON)).json()
    assert (batch["code"], f"tx_index {number} " in batch["message"]) == ("TxIndexOutOfBounds", True)


@pytest.mark.parametrize("text", UNFIT)
async def test_B67_what_is_no_64_bit_number_is_refused_before_anything_else(
    client: httpx2.AsyncClient, house: RecordedHouse, text: str
) -> None:
    quoted = text.replace(" ", "%20")
    for path in (
        f"/api/v1/proof/{quoted}/1000004/0",
        f"/api/v1/proof/2/{quoted}/0",
        f"/api/v1/proof/2/1000004/{quoted}",
        f"/api/v1/proof-by-tx/{quoted}/0x{'00' * 32}",
        f"/api/v1/attested-height/{quoted}",
    ):
        refused = await client.get(path)
        # Without a segment it is another path, which there is none of.
        expected = (400, "InvalidParameter") if text else (404, "NotFound")
        assert (refused.status_code, refused.json()["code"]) == expected, path
    assert [chain.looked_up for chain in house.served] == [[], []]


@pytest.mark.parametrize("key", [2**53 + 1, 2**63 - 1])
async def test_B67_numbers_of_a_body_are_json_numbers_however_large(key: int) -> None:
    async with serving(RecordedHouse([anchored_chain(key)])) as client:
        single = await client.get(f"/api/v1/proof/{key}/1000004/0")
        batch = await client.post(f"/api/v1/proof-batch/{key}?split=1", content=json.dumps(ENTRY), headers=JSON)
    for response in (single, batch):
        assert response.status_code == 200
        assert response.content.startswith(b'{"chainKey":%d,' % key)
        assert response.json()["chainKey"] == key


async def test_hashes_are_never_shortened(client: httpx2.AsyncClient) -> None:
    content = json.dumps([{"headerNumber": 1000002}])
    body = (await client.post(BY_PLACE, content=content, headers=JSON)).text
    hashes = re.findall(r'"(0x[^"]*)"', body)
    assert "0x" + "00" * 32 in hashes
    assert all(re.fullmatch(r"0x[0-9a-f]{64}", text) for text in hashes)


# --- what is ignored --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["?x=1", "?finality=finalized&encoding=nodes", "?e=0&index=block", "?%00"])
async def test_compatible_routes_have_no_query_parameters(client: httpx2.AsyncClient, query: str) -> None:
    plain, asked = await client.get(SINGLE), await client.get(SINGLE + query)
    assert golden.lasting(asked.content) == golden.lasting(plain.content)
    assert (await client.get(f"/api/v1/attested-height/2{query}")).content == b'{"attestedHeight":1000018}'
    batch = await client.post(BY_PLACE + query, content=json.dumps(ENTRY), headers=JSON)
    assert "batches" not in batch.json()


async def test_get_routes_take_any_content_type(client: httpx2.AsyncClient) -> None:
    # The client package sends one with its GET.
    response = await client.get(SINGLE, headers=JSON)
    assert response.status_code == 200


# --- the anchors ------------------------------------------------------------------------------------------------------


async def test_a_block_on_an_anchor_has_one_root(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    chain: Any = house.by_name["mainnet-early"]
    content = json.dumps([{"headerNumber": 1000010}])
    body = (await client.post(BY_PLACE, content=content, headers=JSON)).json()
    assert body["continuityProof"]["roots"] == [to_hex(chain.anchors.roots[1000010])]
    after = json.dumps([{"headerNumber": 1000011}])
    body = (await client.post(BY_PLACE, content=after, headers=JSON)).json()
    assert body["continuityProof"]["lowerEndpointDigest"] == to_hex(chain.anchors.attestations[1000010])
    assert len(body["continuityProof"]["roots"]) == 8


async def test_a_hole_in_the_anchors_is_our_fault(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    chain: Any = house.by_name["mainnet-early"]
    chain.anchors.attestations.drop_up_to(1000010)
    tx_hash = to_hex(next(b for b in chain.blocks if b.height == 1000004).transaction_hash(0))
    for response in (
        await client.get(SINGLE),
        await client.get(f"/api/v1/proof-by-tx/2/{tx_hash}"),
        await client.post(BY_PLACE, content=json.dumps(ENTRY), headers=JSON),
        await client.post(BY_HASH, content=json.dumps([tx_hash]), headers=JSON),
    ):
        body = response.json()
        assert (response.status_code, body["code"], body["retriable"]) == (500, "Internal", False)
        assert body["message"].startswith("internal error: no anchor below block 1000004")
        assert "retry-after" not in response.headers


# --- codes that depend on nodes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RpcUnavailable("no upstream can be asked"), 503, "rpc unavailable: no upstream can be asked"),
        (RpcUnavailable("rpc unavailable: said already"), 503, "rpc unavailable: said already"),
        (Overloaded("too many proof requests in flight; retry with back-off"), 503, None),
        (InconsistentSource("two roots"), 503, "two roots"),
        (UnsupportedBlockFormat("fields 23 and 24"), 422, "fields 23 and 24"),
        (TxNotMined("the transaction is in no block yet"), 404, None),
    ],
    ids=lambda value: getattr(value, "code", None),
)
async def test_what_nodes_say_keeps_its_code_on_every_route(
    client: httpx2.AsyncClient, house: RecordedHouse, error: Any, status: int, message: str | None
) -> None:
    chain: Any = house.by_name["mainnet-early"]
    tx_hash = to_hex(next(b for b in chain.blocks if b.height == 1000004).transaction_hash(0))
    chain.fails_with = error
    for response in (
        await client.get(SINGLE),
        await client.get(f"/api/v1/proof-by-tx/2/{tx_hash}"),
        await client.post(BY_PLACE, content=json.dumps(ENTRY), headers=JSON),
        await client.post(BY_HASH, content=json.dumps([tx_hash]), headers=JSON),
    ):
        body = response.json()
        assert (response.status_code, body["code"], body["retriable"]) == (status, error.code, error.retriable)
        assert message in (None, body["message"])
        assert list(body) == ["code", "message", "retriable"]
        assert response.headers["content-type"] == "application/json"
        assert ("retry-after" in response.headers) is error.retriable
        if error.retriable:
            assert response.headers["retry-after"] in ("1", "2", "3")


# --- methods, and browsers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [BY_PLACE, BY_HASH])
async def test_B65_batch_routes_tell_that_they_are_posted_to(client: httpx2.AsyncClient, path: str) -> None:
    told = await client.options(path)
    assert (told.status_code, told.content, told.headers["allow"]) == (204, b"", "OPTIONS, POST")
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH"):
        refused = await client.request(method, path)
        assert (refused.status_code, refused.headers["allow"]) == (405, "OPTIONS, POST")
        if method != "HEAD":
            assert list(refused.json()) == ["code", "message", "retriable"]


async def test_B66_a_browser_may_post_a_batch_and_read_the_answer(client: httpx2.AsyncClient) -> None:
    origin = {"Origin": "https://dapp.example"}
    preflight = {
        **origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    allowed = await client.options(BY_PLACE, headers=preflight)
    assert allowed.status_code == 200
    assert "POST" in allowed.headers["access-control-allow-methods"]
    assert "content-type" in allowed.headers["access-control-allow-headers"].lower()
    for content, headers, status in (
        (json.dumps(ENTRY), JSON, 200),
        ("[]", JSON, 400),
        ("[]", {}, 415),
        (json.dumps([{"headerNumber": 1000019}]), JSON, 422),
        ("[" + " " * 2**21 + "]", JSON, 413),
    ):
        response = await client.post(BY_PLACE, content=content, headers={**origin, **headers})
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == "*"
        assert "retry-after" in response.headers["access-control-expose-headers"].lower()
        assert response.headers["x-request-id"]
