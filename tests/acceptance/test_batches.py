"""Batches of usc proofs: one chain of roots for all, all or nothing, and checked before anything is asked of a node."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from app.checker import check_usc_batch
from tests.acceptance.anchored_range import KEY, Range, anchored_range, judge_single
from tests.acceptance.judging import COMPATIBLE, judge_error
from tests.acceptance.recorded_node import RecordedNode
from tests.oracles.sdk import Sdk

HASH = "0x" + "ab" * 32


@pytest.fixture(scope="module")
def anchored(node: RecordedNode, sdk: Sdk) -> Iterator[Range]:
    with anchored_range("sepolia", node, sdk) as found:
        if found.copath.post(f"/api/v1/proof-batch/{KEY}", []).code == "NotFound":
            pytest.skip("this server has no batch routes")
        yield found


BATCH, BATCH_BY_TX = "/api/v1/proof-batch/7", "/api/v1/proof-batch-by-tx/7"
ENTRY = {"headerNumber": 2, "txIndexes": [0]}
POSTED = [
    (BATCH, [], 400, "EmptyProofQueries"),
    (BATCH, [{"headerNumber": height} for height in range(11)], 400, "TooManyProofQueries"),
    (BATCH, [ENTRY, {"headerNumber": 2, "txIndexes": list(range(11))}], 400, "TooManyTxQueriesInProofQuery"),
    (BATCH_BY_TX, [], 400, "EmptyTxHashes"),
    (BATCH_BY_TX, [HASH] * 101, 400, "TooManyTxHashes"),
    (BATCH_BY_TX, [HASH, "0x12"], 400, "InvalidParameter"),
    (BATCH_BY_TX, [HASH, "no hash"], 400, "InvalidParameter"),
    ("/api/v1/proof-batch/3", [ENTRY], 400, "InvalidChainKey"),
    ("/api/v1/proof-batch-by-tx/3", [HASH], 400, "InvalidChainKey"),
    ("/api/v1/proof-batch/NOT", [ENTRY], 400, "InvalidParameter"),
]
WRONG_SHAPES = [
    (BATCH, {"headerNumber": 2}),
    (BATCH, "2"),
    (BATCH, [2]),
    (BATCH, [{"txIndexes": [0]}]),
    (BATCH, [{"headerNumber": -1}]),
    (BATCH, [{"headerNumber": 2**64}]),
    (BATCH, [{"headerNumber": "2"}]),
    (BATCH, [{"headerNumber": 2.5}]),
    (BATCH, [{"headerNumber": True}]),
    (BATCH, [{"headerNumber": 2, "txIndexes": ["0"]}]),
    (BATCH, [{"headerNumber": 2, "txIndexes": None}]),
    (BATCH_BY_TX, {"hashes": [HASH]}),
    (BATCH_BY_TX, [12]),
    (BATCH_BY_TX, [None]),
]


@pytest.mark.parametrize(("path", "value", "status", "code"), POSTED)
def test_batches_are_checked_before_anything_is_asked(
    path: str, value: object, status: int, code: str, anchored: Range
) -> None:
    judge_error(anchored.copath.post(path, value), status, code, COMPATIBLE)


@pytest.mark.parametrize(("path", "value"), WRONG_SHAPES, ids=lambda value: json.dumps(value)[:40])
def test_a_batch_of_the_wrong_shape(path: str, value: object, anchored: Range) -> None:
    answer = anchored.copath.post(path, value)
    assert answer.status in (400, 422)
    judge_error(answer, answer.status, "InvalidParameter", COMPATIBLE)


@pytest.mark.parametrize("path", [BATCH, BATCH_BY_TX])
def test_B72_bodies_that_cannot_be_read(path: str, anchored: Range) -> None:
    json_type = {"Content-Type": "application/json"}
    for body in (b"", b"{", b"[1,", b"\xff\xfe", b"[" * 100_000, b"nonsense", b"[NaN]"):
        answer = anchored.copath.client.send("POST", path, body, json_type)
        judge_error(answer, 400, "MalformedJson", COMPATIBLE)
    for content_type in ({"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        answer = anchored.copath.client.send("POST", path, b"[]", content_type)
        judge_error(answer, 415, "UnsupportedMediaType", COMPATIBLE)
    large = anchored.copath.client.send("POST", path, b"[" + b" " * (2 * 2**20) + b"]", json_type)
    judge_error(large, 413, "PayloadTooLarge", COMPATIBLE)
    anchored.copath.client.close()


def test_a_batch_whose_blocks_lie_too_far_apart(anchored: Range) -> None:
    path = f"/api/v1/proof-batch/{KEY}"
    far = anchored.attested + 5000
    # A height without an anchor is refused before the distance is looked at, and one at genesis before that.
    wide = anchored.copath.post(path, [{"headerNumber": anchored.attested}, {"headerNumber": far}])
    judge_error(wide, 422, "BlockNotReady", COMPATIBLE)
    low = anchored.copath.post(path, [{"headerNumber": anchored.genesis}, {"headerNumber": far}])
    judge_error(low, 400, "BlockBeforeOrAtGenesis", COMPATIBLE)


def test_a_batch_by_get_is_told_to_post(anchored: Range) -> None:
    for path in (BATCH, BATCH_BY_TX):
        refused = anchored.copath.get(path)
        judge_error(refused, 405, "MethodNotAllowed", COMPATIBLE)
        assert "POST" in refused.headers["allow"]


def test_batches_share_one_chain_of_roots(anchored: Range) -> None:
    places = list(anchored.provable())[:10]
    heights = sorted({height for height, _, _ in places})
    by_hash = anchored.copath.post(
        f"/api/v1/proof-batch-by-tx/{anchored.key}",
        [record["block"]["transactions"][index]["hash"] for _, index, record in places],
    )
    by_place = anchored.copath.post(
        f"/api/v1/proof-batch/{anchored.key}",
        [
            {"headerNumber": height, "txIndexes": [index for at, index, _ in places if at == height]}
            for height in heights
        ],
    )
    assert (by_hash.status, by_place.status) == (200, 200), (by_hash.body[:300], by_place.body[:300])
    body = by_hash.json
    assert {**by_place.json, "generatedAt": body["generatedAt"]} == body
    assert (body["fromHeader"], body["toHeader"], body["cached"]) == (heights[0], heights[-1], False)
    roots = body["continuityProof"]["roots"]
    upper = heights[0] + len(roots) - 1
    assert upper >= heights[-1]
    check_usc_batch(by_hash.body, {"chainKey": anchored.key}, (upper, anchored.digests[upper]))
    assert list(body["merkleProofs"]) == [str(height) for height in heights]
    for height, index, record in places:
        # What a client passes to the verifier: its own item, and the roots from its height on.
        lower = body["continuityProof"]["lowerEndpointDigest"] if height == heights[0] else None
        item = body["merkleProofs"][str(height)][str(index)]
        digest = lower or "0x" + anchored.digests[height - 1].hex()
        single = {
            "chainKey": anchored.key,
            "headerNumber": height,
            "txIndex": index,
            **item,
            "continuityProof": {"lowerEndpointDigest": digest, "roots": roots[height - heights[0] :]},
        }
        judge_single(anchored, single, height, index, record)


def test_B43_an_empty_block_has_a_continuity_proof(anchored: Range) -> None:
    for height in anchored.empty()[:3]:
        alone = anchored.copath.post(f"/api/v1/proof-batch/{KEY}", [{"headerNumber": height}])
        assert alone.status == 200, alone.body[:300]
        assert alone.json["merkleProofs"] == {}
        assert alone.json["continuityProof"]["roots"][0] == "0x" + "00" * 32
