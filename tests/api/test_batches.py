"""The batch routes: what is read from a body, in which order it is judged, and how many proofs become one answer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api import batch_bodies, batch_questions, second_opinion
from app.api.batch_questions import MAX_COMMAS
from app.checker import Refused, check_usc_batch
from app.core import continuity
from app.core.blocks import BlockRef
from app.core.errors import InconsistentSource
from app.core.hexadecimal import to_hex
from tests.api.fakes import RecordedAnchors, RecordedHouse
from tests.api.serving import serving

BY_PLACE, BY_HASH = "/api/v1/proof-batch/2", "/api/v1/proof-batch-by-tx/2"
HASH = "0x" + "ab" * 32
MAX_U64 = 2**64 - 1


def chain_of(house: RecordedHouse) -> Any:
    return house.by_name["mainnet-early"]


def provable(house: RecordedHouse, upper: int = 1000018) -> list[tuple[int, int, str]]:
    """(height, index, hash) of every transaction above the genesis and up to `upper`."""
    return [
        (block.height, index, to_hex(block.transaction_hash(index)))
        for block in chain_of(house).blocks
        if 1000001 < block.height <= upper
        for index in range(block.transaction_count)
    ]


def entries(places: Sequence[tuple[int, int, str]]) -> list[dict[str, object]]:
    return [
        {"headerNumber": height, "txIndexes": [index for at, index, _ in places if at == height]}
        for height in sorted({height for height, _, _ in places})
    ]


async def posted(client: httpx2.AsyncClient, path: str, value: object, **more: Any) -> httpx2.Response:
    return await client.post(path, content=json.dumps(value), headers={"Content-Type": "application/json"}, **more)


def assert_plain(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    body: dict[str, Any] = response.json()
    assert (response.status_code, body["code"]) == (status, code), body
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    assert set(body) - {"block_number", "last_attested_block"} == {"code", "message", "retriable"}
    return body


# --- what is refused, in which words and in which order ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "status", "code", "message"),
    [
        (BY_PLACE, [], 400, "EmptyProofQueries", "Batch request should contain at least one proof query"),
        (
            BY_PLACE,
            [{"headerNumber": 1000004}] * 11,
            400,
            "TooManyProofQueries",
            "Batch request cannot contain more than 10 proof queries",
        ),
        (
            BY_PLACE,
            [{"headerNumber": 1000004, "txIndexes": [0] * 11}],
            400,
            "TooManyTxQueriesInProofQuery",
            "Each proof query can contain at most 10 tx indexes",
        ),
        (BY_PLACE, [{"headerNumber": 0, "txIndexes": [0] * 11}] * 11, 400, "TooManyProofQueries", None),
        (BY_HASH, [], 400, "EmptyTxHashes", "Batch request should contain at least one tx hash"),
        (BY_HASH, [HASH] * 101, 400, "TooManyTxHashes", "Batch request cannot contain more than 100 tx hashes"),
        (BY_HASH, ["no hash"] * 101, 400, "TooManyTxHashes", None),
        (BY_HASH, [HASH, "0x12"], 400, "InvalidParameter", "invalid parameter: tx_hash must be 32 bytes, got 1"),
        (BY_HASH, [HASH, "0xzz"], 400, "InvalidParameter", None),
        ("/api/v1/proof-batch/3", [], 400, "InvalidChainKey", "Chain key not configured: 3 (allowed: [2, 11])"),
        ("/api/v1/proof-batch-by-tx/3", [HASH], 400, "InvalidChainKey", None),
        ("/api/v1/proof-batch/NOT", [], 400, "InvalidParameter", None),
        ("/api/v1/proof-batch-by-tx/-1", [HASH], 400, "InvalidParameter", None),
        ("/api/v1/proof-batch/11", [], 400, "EmptyProofQueries", None),
        (
            "/api/v1/proof-batch/11",
            [{"headerNumber": 1}],
            404,
            "AttestationsMissing",
            "attestations missing for chain 11",
        ),
        ("/api/v1/proof-batch-by-tx/11", [HASH], 404, "AttestationsMissing", "attestations missing for chain 11"),
        (BY_PLACE, [{"headerNumber": 1000004}, {"headerNumber": 1000001}], 400, "BlockBeforeOrAtGenesis", None),
        (BY_PLACE, [{"headerNumber": MAX_U64}, {"headerNumber": 0}], 400, "BlockBeforeOrAtGenesis", None),
        (BY_PLACE, [{"headerNumber": 1000004}, {"headerNumber": MAX_U64}], 422, "BlockNotReady", None),
        (BY_PLACE, [{"headerNumber": 2**53}], 422, "BlockNotReady", None),
        (BY_PLACE, [{"headerNumber": 2**63}], 422, "BlockNotReady", None),
    ],
)
async def test_refusals_come_before_any_look_up_in_the_reference_servers_words(
    client: httpx2.AsyncClient,
    house: RecordedHouse,
    path: str,
    value: object,
    status: int,
    code: str,
    message: str | None,
) -> None:
    body = assert_plain(await posted(client, path, value), status, code)
    assert message in (None, body["message"])
    assert [chain.looked_up for chain in house.served] == [[], []]


async def test_B47_the_first_height_that_is_not_attested_is_named(client: httpx2.AsyncClient) -> None:
    asked = [{"headerNumber": height} for height in (1000025, 1000004, 1000019, 1000021)]
    refused = await posted(client, BY_PLACE, asked)
    body = assert_plain(refused, 422, "BlockNotReady")
    assert (body["block_number"], body["last_attested_block"], body["retriable"]) == (1000019, 1000018, True)
    assert int(refused.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (BY_PLACE, {"headerNumber": 2}),
        (BY_PLACE, "2"),
        (BY_PLACE, None),
        (BY_PLACE, [2]),
        (BY_PLACE, [[]]),
        (BY_PLACE, [{"txIndexes": [0]}]),
        (BY_PLACE, [{"headerNumber": -1}]),
        (BY_PLACE, [{"headerNumber": 2**64}]),
        (BY_PLACE, [{"headerNumber": "2"}]),
        (BY_PLACE, [{"headerNumber": 2.5}]),
        (BY_PLACE, [{"headerNumber": 2.0}]),
        (BY_PLACE, [{"headerNumber": True}]),
        (BY_PLACE, [{"headerNumber": None}]),
        (BY_PLACE, [{"headerNumber": 2, "txIndexes": 0}]),
        (BY_PLACE, [{"headerNumber": 2, "txIndexes": ["0"]}]),
        (BY_PLACE, [{"headerNumber": 2, "txIndexes": [2**64]}]),
        (BY_PLACE, [{"headerNumber": 2, "txIndexes": [False]}]),
        (BY_PLACE, [{"headerNumber": 2, "txIndexes": None}]),
        (BY_PLACE, [{"headerNumber": 2, "txIndexes": [0] * 11}, {}]),
        (BY_HASH, {"hashes": [HASH]}),
        (BY_HASH, [12]),
        (BY_HASH, [HASH] * 101 + [None]),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
async def test_a_body_of_the_wrong_shape_is_told_where(client: httpx2.AsyncClient, path: str, value: object) -> None:
    body = assert_plain(await posted(client, path, value), 400, "InvalidParameter")
    assert body["message"].startswith("invalid parameter: body"), body


@pytest.mark.parametrize("path", [BY_PLACE, BY_HASH])
async def test_B72_bodies_that_cannot_be_read(client: httpx2.AsyncClient, path: str) -> None:
    json_type = {"Content-Type": "application/json"}
    for content in (b"", b"{", b"[1,", b"\xff\xfe", b"[" * 100_000, b"nonsense", b"[NaN]", b"[1e999]"):
        assert_plain(await client.post(path, content=content, headers=json_type), 400, "MalformedJson")
    for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        assert_plain(await client.post(path, content=b"[]", headers=headers), 415, "UnsupportedMediaType")
    large = b"[" + b" " * (2 * 2**20 - 1) + b"]"
    assert_plain(await client.post(path, content=large, headers=json_type), 413, "PayloadTooLarge")
    fits = b"[" + b" " * (2 * 2**20 - 2) + b"]"
    assert (await client.post(path, content=fits, headers=json_type)).json()["code"].startswith("Empty")


@pytest.mark.parametrize(
    "media_type", ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/x+json"]
)
async def test_json_by_any_of_its_names(client: httpx2.AsyncClient, media_type: str) -> None:
    response = await client.post(BY_PLACE, content=b"[]", headers={"Content-Type": media_type})
    assert response.json()["code"] == "EmptyProofQueries"


@pytest.mark.parametrize(("path", "code"), [(BY_PLACE, "TooManyProofQueries"), (BY_HASH, "TooManyTxHashes")])
async def test_a_body_of_far_too_many_things_is_not_taken_apart(
    client: httpx2.AsyncClient, path: str, code: str
) -> None:
    crowd = b"[" + b"[]," * (MAX_COMMAS + 1) + b"[]]"
    response = await client.post(path, content=crowd, headers={"Content-Type": "application/json"})
    assert_plain(response, 400, code)


@pytest.mark.parametrize("text", ["0", "11", "-1", "1.0", "010", "", "ten", "10&split=10", "%D9%A1"])
async def test_a_split_that_is_none(client: httpx2.AsyncClient, house: RecordedHouse, text: str) -> None:
    for path, value in ((BY_PLACE, [{"headerNumber": 1000004}]), (BY_HASH, [HASH])):
        assert_plain(await posted(client, f"{path}?split={text}", value), 400, "InvalidParameter")
    assert chain_of(house).looked_up == []


async def test_a_batch_by_get_is_told_to_post(client: httpx2.AsyncClient) -> None:
    for path in (BY_PLACE, BY_HASH):
        refused = await client.get(path)
        assert_plain(refused, 405, "MethodNotAllowed")
        assert refused.headers["allow"] == "OPTIONS, POST"


# --- the span ---------------------------------------------------------------------------------------------------------


async def test_a_span_is_judged_after_the_anchors_and_before_any_block(house: RecordedHouse) -> None:
    async with serving(house, max_batch_span=14) as client:
        for highest, status, code in (
            (1000016, 200, None),
            (1000017, 400, "BatchSpanTooLarge"),
            (1000019, 422, "BlockNotReady"),
        ):
            asked = [{"headerNumber": 1000002, "txIndexes": []}, {"headerNumber": highest}]
            response = await posted(client, BY_PLACE, asked)
            assert (response.status_code, response.json().get("code")) == (status, code)
        low = [{"headerNumber": 1000001}, {"headerNumber": 1000018}]
        assert_plain(await posted(client, BY_PLACE, low), 400, "BlockBeforeOrAtGenesis")
        wide = [{"headerNumber": 1000002, "txIndexes": [0]}, {"headerNumber": 1000018, "txIndexes": [0]}]
        body = assert_plain(await posted(client, BY_PLACE, wide), 400, "BatchSpanTooLarge")
        assert body["message"] == "Batch spans 16 blocks, from 1000002 to 1000018; the maximum is 14"
        assert chain_of(house).looked_up == []
        ends = [provable(house)[0][2], provable(house)[-1][2]]
        assert_plain(await posted(client, BY_HASH, ends), 400, "BatchSpanTooLarge")


# --- answers ----------------------------------------------------------------------------------------------------------


async def test_the_body_has_the_reference_servers_fields_in_its_order(
    client: httpx2.AsyncClient, house: RecordedHouse
) -> None:
    places = provable(house)[:6]
    response = await posted(client, BY_PLACE, entries(places))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    body = response.json()
    assert list(body) == [
        "chainKey",
        "fromHeader",
        "toHeader",
        "continuityProof",
        "merkleProofs",
        "cached",
        "generatedAt",
    ]
    assert list(body["continuityProof"]) == ["lowerEndpointDigest", "roots"]
    assert (body["chainKey"], body["fromHeader"], body["toHeader"]) == (2, places[0][0], places[-1][0])
    assert body["cached"] is False
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", body["generatedAt"])
    listed = [(int(height), int(index)) for height, of in body["merkleProofs"].items() for index in of]
    assert listed == [place[:2] for place in places]
    for height, index, tx_hash in places:
        item = body["merkleProofs"][str(height)][str(index)]
        assert list(item) == ["txHash", "txBytes", "merkleProof"]
        single = (await client.get(f"/api/v1/proof/2/{height}/{index}")).json()
        assert item == {name: single[name] for name in item}
        assert item["txHash"] == tx_hash
    first = (await client.get(f"/api/v1/proof/2/{places[0][0]}/0")).json()
    assert body["continuityProof"]["lowerEndpointDigest"] == first["continuityProof"]["lowerEndpointDigest"]


async def test_both_routes_prove_the_same(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    places = provable(house)[:8]
    by_place = (await posted(client, BY_PLACE, entries(places))).json()
    shuffled = [tx_hash for _, _, tx_hash in places[::-1]]
    by_hash = (await posted(client, BY_HASH, [*shuffled, shuffled[0].upper().replace("X", "x"), shuffled[1]])).json()
    for body in (by_place, by_hash):
        del body["generatedAt"]
    assert json.dumps(by_place) == json.dumps(by_hash)


async def test_entries_are_merged_deduplicated_and_sorted(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    scattered = [
        {"headerNumber": 1000007, "txIndexes": []},
        {"headerNumber": 1000004, "txIndexes": [1], "more": {"ignored": [1, 2]}},
        {"headerNumber": 1000002},
        {"headerNumber": 1000004, "txIndexes": [0, 1, 0]},
    ]
    body = (await posted(client, BY_PLACE, scattered)).json()
    assert (body["fromHeader"], body["toHeader"]) == (1000002, 1000007)
    assert [(height, list(of)) for height, of in body["merkleProofs"].items()] == [("1000004", ["0", "1"])]
    assert chain_of(house).looked_up == ["block"], "a height without indexes needs no block"


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.none() | st.integers(0, 300)), min_size=1))
def test_places_are_grouped_in_ascending_order(places: list[tuple[int, int | None]]) -> None:
    queries = batch_questions.merged(places)
    assert list(queries) == sorted({height for height, _ in places})
    for height, indexes in queries.items():
        assert list(indexes) == sorted({index for at, index in places if at == height and index is not None})


async def test_keys_ascend_as_numbers(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    batch = batch_bodies.Batch(9, 1000, [], continuity.ContinuityProof(bytes(32), (bytes(32),)))
    blocks = [block for block in chain_of(house).blocks if block.transaction_count]
    leaf = blocks[0].leaf_proof(0)
    items = [batch_bodies.Item(height, index, bytes(32), leaf) for height in (9, 10, 1000) for index in (2, 10)]
    (piece,) = batch_bodies.pieces(2, batch_bodies.Batch(9, 1000, items, batch.proof))
    written = json.loads(piece.framed(piece.core()))["merkleProofs"]
    assert [(height, list(of)) for height, of in written.items()] == [(h, ["2", "10"]) for h in ("9", "10", "1000")]


async def test_B43_an_empty_block_has_a_continuity_proof_and_nothing_else(
    client: httpx2.AsyncClient, house: RecordedHouse
) -> None:
    empty = next(b.height for b in chain_of(house).blocks if b.transaction_count == 0 and 1000001 < b.height <= 1000018)
    alone = await posted(client, BY_PLACE, [{"headerNumber": empty}])
    assert alone.status_code == 200
    assert alone.json()["merkleProofs"] == {}
    assert alone.json()["continuityProof"]["roots"][0] == to_hex(bytes(32))
    assert chain_of(house).looked_up == []
    asked = await posted(client, BY_PLACE, [{"headerNumber": empty, "txIndexes": [0]}])
    body = assert_plain(asked, 422, "EmptyBlockTxProof")
    assert body["message"] == f"block {empty} is empty; tx proof unavailable (use a continuity-only proof)"


async def test_one_that_fails_fails_all(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    good = provable(house)[:3]
    bad_index = [*entries(good), {"headerNumber": 1000004, "txIndexes": [2]}]
    body = assert_plain(await posted(client, BY_PLACE, bad_index), 400, "TxIndexOutOfBounds")
    assert body["message"] == "tx_index 2 at height 1000004 out of bounds (len=2)"
    body = assert_plain(await posted(client, BY_HASH, [*(h for _, _, h in good), HASH]), 404, "TxHashNotFound")
    assert body["message"] == f"tx hash not found: {HASH}"


@pytest.mark.parametrize(("height", "code"), [(1000001, "BlockBeforeOrAtGenesis"), (1000021, "BlockNotReady")])
async def test_by_hash_the_bounds_follow_once_every_position_is_known(
    client: httpx2.AsyncClient, house: RecordedHouse, height: int, code: str
) -> None:
    block = (await chain_of(house).block(BlockRef(height=height))).block
    outside, inside = to_hex(block.transaction_hash(0)), provable(house)[0][2]
    assert (await posted(client, BY_HASH, [inside, outside])).json()["code"] == code
    assert (await posted(client, BY_HASH, [outside, HASH])).json()["code"] == "TxHashNotFound"


async def test_a_block_that_is_not_the_attested_one_is_no_proof(
    client: httpx2.AsyncClient, house: RecordedHouse
) -> None:
    chain = chain_of(house)
    place = provable(house)[0]
    others = [*chain.blocks[:-1]]
    at = next(at for at, block in enumerate(others) if block.height == place[0])
    chain.anchors = RecordedAnchors(2, chain.blocks, (1000018,))
    chain.anchors.roots[place[0]] = b"\x01" * 32
    rebuilt, previous = RecordedAnchors(2, chain.blocks[:1], ()), None
    for block in chain.blocks:
        previous = continuity.digest(block.height, chain.anchors.roots[block.height], previous)
        rebuilt.attestations.put(block.height, previous)
    rebuilt.roots = chain.anchors.roots
    rebuilt.attestations.drop_above(1000018)
    chain.anchors = rebuilt
    assert others[at].usc_root != rebuilt.roots[place[0]]
    for response in (
        await posted(client, BY_PLACE, entries([place])),
        await posted(client, BY_HASH, [place[2]]),
        await client.get(f"/api/v1/proof/2/{place[0]}/{place[1]}"),
    ):
        body = assert_plain(response, 503, InconsistentSource.code)
        assert str(place[0]) in body["message"]
    assert house.counted("copath_selfcheck_failures_total", chain="mainnet-early", kind="usc") == 0


# --- split ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 11))
async def test_split_every_sub_batch_stands_alone(client: httpx2.AsyncClient, house: RecordedHouse, size: int) -> None:
    places = provable(house)
    hashes = [tx_hash for _, _, tx_hash in places]
    whole = (await posted(client, BY_HASH, hashes)).json()
    response = await posted(client, f"{BY_HASH}?split={size}", hashes)
    body = response.json()
    assert list(body) == ["chainKey", "fromHeader", "toHeader", "split", "batches"]
    assert (body["chainKey"], body["fromHeader"], body["toHeader"]) == (2, whole["fromHeader"], whole["toHeader"])
    assert body["split"] == size
    anchor = (1000018, chain_of(house).anchors.attestations[1000018])
    listed = []
    for batch in body["batches"]:
        text = json.dumps(batch, separators=(",", ":")).encode()
        assert text in response.content
        check_usc_batch(text, {"chainKey": 2}, anchor)
        inside = [(int(height), int(index)) for height, of in batch["merkleProofs"].items() for index in of]
        assert 0 < len(inside) <= size
        assert (batch["fromHeader"], batch["toHeader"]) == (inside[0][0], inside[-1][0])
        listed += inside
    assert listed == [place[:2] for place in places]
    assert len(body["batches"]) == -(-len(places) // size)


async def test_split_heights_alone_are_the_first_sub_batch(client: httpx2.AsyncClient) -> None:
    asked = [{"headerNumber": 1000004, "txIndexes": [0, 1]}, {"headerNumber": 1000002}, {"headerNumber": 1000009}]
    batches = (await posted(client, f"{BY_PLACE}?split=1", asked)).json()["batches"]
    ranges = [(batch["fromHeader"], batch["toHeader"], list(batch["merkleProofs"])) for batch in batches]
    assert ranges == [(1000002, 1000009, []), (1000004, 1000004, ["1000004"]), (1000004, 1000004, ["1000004"])]
    alone = (await posted(client, f"{BY_PLACE}?split=10", [{"headerNumber": 1000002}])).json()["batches"]
    assert [batch["merkleProofs"] for batch in alone] == [{}]


# --- pieces -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["", "?split=3"])
async def test_an_answer_in_many_pieces_is_the_same_answer(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    hashes = [tx_hash for _, _, tx_hash in provable(house)]
    whole = await posted(client, BY_HASH + size, hashes)
    judged: list[bytes] = []
    accept = second_opinion.checker.check_usc_batch

    def judge(body: bytes, asked: Any, anchor: Any) -> None:
        judged.append(body)
        accept(body, asked, anchor)

    monkeypatch.setattr(second_opinion.checker, "check_usc_batch", judge)
    for piece_bytes in (1, 3000, 10_000):
        judged.clear()
        monkeypatch.setattr(batch_bodies, "PIECE_BYTES", piece_bytes)
        pieced = await posted(client, BY_HASH + size, hashes)
        assert int(pieced.headers["content-length"]) == len(pieced.content)
        times = re.compile(rb'"generatedAt":"[^"]+"')
        assert times.sub(b"", pieced.content) == times.sub(b"", whole.content)
        assert len(judged) > 4
        items = [item for body in judged for of in json.loads(body)["merkleProofs"].values() for item in of.values()]
        assert [item["txHash"] for item in items] == hashes


async def test_a_piece_beside_the_loop_is_judged_too(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_bodies, "ASIDE_BYTES", 1)
    hashes = [tx_hash for _, _, tx_hash in provable(house)[:3]]
    assert (await posted(client, BY_HASH, hashes)).status_code == 200
    monkeypatch.setattr(second_opinion.checker, "check_usc_batch", refuse)
    assert_plain(await posted(client, BY_HASH, hashes), 500, "SelfCheckFailed")


async def test_a_piece_that_comes_out_otherwise_is_not_sent(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_bodies, "PIECE_BYTES", 1)
    write, written = batch_bodies.wire.batch_item, []

    def unsteady(tx_hash: bytes, leaf: Any) -> bytes:
        written.append(tx_hash)
        return write(tx_hash if len(written) <= 3 else bytes(32), leaf)

    monkeypatch.setattr(batch_bodies.wire, "batch_item", unsteady)
    hashes = [tx_hash for _, _, tx_hash in provable(house)[:3]]
    with house.counting("copath_unhandled_exceptions_total", source="asgi"):
        try:
            response = await posted(client, BY_HASH, hashes)
        except Exception:  # noqa: BLE001 - how a broken connection shows depends on the client
            return
    assert to_hex(bytes(32)) not in response.text


async def test_more_than_is_held_for_one_answer_is_refused(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = provable(house)[:3]
    leaves = [len((await chain_of(house).block(BlockRef(height=h))).block.leaf_proof(i).leaf) for h, i, _ in places]
    monkeypatch.setattr(batch_bodies, "MAX_LEAVES_BYTES", sum(leaves))
    assert (await posted(client, BY_PLACE, entries(places))).status_code == 200
    monkeypatch.setattr(batch_bodies, "MAX_LEAVES_BYTES", sum(leaves) - 1)
    assert_plain(await posted(client, BY_PLACE, entries(places)), 413, "PayloadTooLarge")
    assert_plain(await posted(client, BY_HASH, [tx_hash for _, _, tx_hash in places]), 413, "PayloadTooLarge")


# --- the second opinion -----------------------------------------------------------------------------------------------


def refuse(*_: object) -> None:
    raise Refused("RootMismatch", "merkleProofs")


async def test_the_verifier_is_asked_about_what_the_client_asked_for(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[tuple[bytes, dict[str, Any], tuple[int, bytes]]] = []
    monkeypatch.setattr(
        second_opinion.checker,
        "check_usc_batch",
        lambda body, asked, anchor: pinned.append((body, dict(asked), anchor)),
    )
    places = provable(house)[:3]
    names = {f"merkleProofs.{height}.{index}.txHash": tx_hash for height, index, tx_hash in places}
    span = {"chainKey": 2, "fromHeader": places[0][0], "toHeader": places[-1][0]}
    anchor = (1000010, chain_of(house).anchors.attestations[1000010])
    for path, asked in ((BY_PLACE, entries(places)), (BY_HASH, [tx_hash for _, _, tx_hash in places])):
        answer = await posted(client, path, asked)
        assert pinned == [(answer.content, {**span, **names}, anchor)]
        pinned.clear()


async def test_a_batch_that_the_verifier_refuses_is_never_sent(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_opinion.checker, "check_usc_batch", refuse)
    response = await posted(client, BY_HASH, [tx_hash for _, _, tx_hash in provable(house)[:3]])
    assert_plain(response, 500, "SelfCheckFailed")
    assert "txBytes" not in response.text
    assert house.counted("copath_selfcheck_failures_total", chain="mainnet-early", kind="usc") == 1
