"""Batches over a running server, and what verifiers say of them: the client package, our checker, and a contract in an EVM."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from app.checker import check_usc_batch
from tests.acceptance.anchored_range import INTERVAL, KEY, Range, anchored_range, judge_single
from tests.acceptance.judging import COMPATIBLE, judge_error
from tests.acceptance.recorded_node import RecordedNode
from tests.acceptance.server import Answer
from tests.oracles.sdk import Sdk
from tests.oracles.usc_damage import usc_damages
from tests.oracles.usc_verifier import UscVerifier

BATCH, BATCH_BY_TX = f"/api/v1/proof-batch/{KEY}", f"/api/v1/proof-batch-by-tx/{KEY}"
JSON_TYPE = {"Content-Type": "application/json"}
CHECKPOINT_EVERY = 3


@pytest.fixture(scope="module", params=["sepolia", "mainnet"])
def anchored(request: pytest.FixtureRequest, node: RecordedNode, sdk: Sdk) -> Iterator[Range]:
    with anchored_range(request.param, node, sdk) as found:
        yield found


@pytest.fixture(scope="module")
def verifier(anchored: Range) -> UscVerifier:
    """It knows the anchors that stand: every third is a checkpoint, which retired the attestations up to it."""
    made = UscVerifier()
    steps = (anchored.attested - anchored.genesis) // INTERVAL
    retired = steps // CHECKPOINT_EVERY * CHECKPOINT_EVERY
    for step in range(1, steps + 1):
        height = anchored.genesis + step * INTERVAL
        if step % CHECKPOINT_EVERY == 0:
            made.set_checkpoint(KEY, height, anchored.digests[height])
        elif step > retired:
            made.set_attestation(KEY, height, anchored.digests[height])
    return made


def hashes(anchored: Range) -> list[str]:
    return [record["block"]["transactions"][index]["hash"] for _, index, record in anchored.provable()]


def by_place(places: list[tuple[int, int]]) -> list[dict[str, object]]:
    heights = sorted({height for height, _ in places})
    return [{"headerNumber": each, "txIndexes": [index for at, index in places if at == each]} for each in heights]


# --- one continuity proof for all -------------------------------------------------------------------------------------


def test_batches_share_one_chain_of_roots(anchored: Range) -> None:
    places = list(anchored.provable())[:20]
    heights = sorted({height for height, _, _ in places})[:10]
    places = [place for place in places if place[0] in heights]
    by_hash = anchored.copath.post(
        BATCH_BY_TX, [record["block"]["transactions"][index]["hash"] for _, index, record in places]
    )
    by_position = anchored.copath.post(BATCH, by_place([place[:2] for place in places]))
    assert (by_hash.status, by_position.status) == (200, 200), (by_hash.body[:300], by_position.body[:300])
    body = by_hash.json
    assert {**by_position.json, "generatedAt": body["generatedAt"]} == body
    assert (body["fromHeader"], body["toHeader"], body["cached"]) == (heights[0], heights[-1], False)
    roots = body["continuityProof"]["roots"]
    upper = heights[0] + len(roots) - 1
    assert upper >= heights[-1]
    check_usc_batch(by_hash.body, {"chainKey": KEY}, (upper, anchored.digests[upper]))
    assert list(body["merkleProofs"]) == [str(height) for height in heights]
    for height, index, record in places:
        # What a client passes to the verifier: its own item, and the roots from its height on.
        continuity = {
            "lowerEndpointDigest": "0x" + anchored.digests[height - 1].hex(),
            "roots": roots[height - heights[0] :],
        }
        item = body["merkleProofs"][str(height)][str(index)]
        single = {"chainKey": KEY, "headerNumber": height, "txIndex": index, **item, "continuityProof": continuity}
        judge_single(anchored, single, height, index, record)


def test_B43_an_empty_block_has_a_continuity_proof(anchored: Range) -> None:
    empty = anchored.empty()
    assert empty
    for height in empty[:3]:
        alone = anchored.copath.post(BATCH, [{"headerNumber": height}])
        assert alone.status == 200, alone.body[:300]
        assert alone.json["merkleProofs"] == {}
        assert alone.json["continuityProof"]["roots"][0] == "0x" + "00" * 32
        asked = anchored.copath.post(BATCH, [{"headerNumber": height, "txIndexes": [0]}])
        judge_error(asked, 422, "EmptyBlockTxProof", COMPATIBLE)


# --- the contract -----------------------------------------------------------------------------------------------------


def test_the_contract_accepts_every_single_proof_on_and_off_anchors(anchored: Range, verifier: UscVerifier) -> None:
    on_anchor = 0
    for height, index, _ in anchored.provable():
        body = anchored.copath.get(f"/api/v1/proof/{KEY}/{height}/{index}").json
        assert verifier.verify(body, emit=True) == [(KEY, height, index)]
        assert verifier.index_of(body["merkleProof"]) == index
        on_anchor += (height - anchored.genesis) % INTERVAL == 0
    assert on_anchor or anchored.name == "mainnet"


def test_the_contract_accepts_batches_within_and_across_checkpoints(anchored: Range, verifier: UscVerifier) -> None:
    places = [(height, index) for height, index, _ in anchored.provable()]
    checkpoint = anchored.genesis + CHECKPOINT_EVERY * INTERVAL
    across = 0
    for start in range(len(places)):
        part = places[start : start + 10]
        answer = anchored.copath.post(BATCH, by_place(part)) if len({height for height, _ in part}) <= 10 else None
        assert answer is not None
        assert answer.status == 200, answer.body[:300]
        assert verifier.verify_batch(answer.json, emit=True) == [(KEY, *place) for place in part]
        across += part[0][0] <= checkpoint < part[-1][0]
    assert across or anchored.attested <= checkpoint


@pytest.mark.parametrize("size", [1, 3, 10])
def test_the_contract_accepts_every_sub_batch_of_a_split_one(anchored: Range, verifier: UscVerifier, size: int) -> None:
    places = [(height, index) for height, index, _ in anchored.provable()]
    answer = anchored.copath.post(f"{BATCH_BY_TX}?split={size}", hashes(anchored))
    assert answer.status == 200, answer.body[:300]
    verified = []
    for batch in answer.json["batches"]:
        verified += verifier.verify_batch(batch, emit=True)
    assert verified == [(KEY, *place) for place in places]


def test_the_contract_refuses_each_damaged_proof(anchored: Range, verifier: UscVerifier) -> None:
    places = [(height, index) for height, index, _ in anchored.provable()]
    single = anchored.copath.get(f"/api/v1/proof/{KEY}/{places[0][0]}/{places[0][1]}").json
    batch = anchored.copath.post(BATCH, by_place(places[-4:])).json
    for body in (single, batch):
        assert verifier.accepts(body)
        tried = 0
        for what, broken in usc_damages(body, seed=anchored.genesis):
            assert not verifier.accepts(broken), what
            tried += 1
        assert tried > 20


# --- what is refused, over a real connection --------------------------------------------------------------------------


def test_B47_the_order_of_what_is_wrong_with_heights(anchored: Range) -> None:
    far = anchored.attested + 5000
    wide = anchored.copath.post(BATCH, [{"headerNumber": anchored.attested}, {"headerNumber": far}])
    judge_error(wide, 422, "BlockNotReady", COMPATIBLE)
    assert (wide.json["block_number"], wide.json["last_attested_block"]) == (far, anchored.attested)
    assert int(wide.headers["retry-after"]) >= 1
    low = anchored.copath.post(BATCH, [{"headerNumber": anchored.genesis}, {"headerNumber": far}])
    judge_error(low, 400, "BlockBeforeOrAtGenesis", COMPATIBLE)


@pytest.mark.parametrize("path", [BATCH, BATCH_BY_TX])
def test_B72_bodies_that_cannot_be_read(path: str, anchored: Range) -> None:
    for body in (b"", b"{", b"[" * 100_000, b"\xff\xfe"):
        judge_error(anchored.copath.client.send("POST", path, body, JSON_TYPE), 400, "MalformedJson", COMPATIBLE)
    for headers in ({}, {"Content-Type": "text/plain"}):
        answer = anchored.copath.client.send("POST", path, b"[]", headers)
        judge_error(answer, 415, "UnsupportedMediaType", COMPATIBLE)
    large = anchored.copath.client.send("POST", path, b"[" + b" " * (2 * 2**20) + b"]", JSON_TYPE)
    judge_error(large, 413, "PayloadTooLarge", COMPATIBLE)
    anchored.copath.client.close()


def test_a_body_that_grows_beyond_the_limit_without_announcing_its_size(anchored: Range) -> None:
    with socket.create_connection(("127.0.0.1", anchored.copath.port), timeout=30) as line:
        head = f"POST {BATCH} HTTP/1.1\r\nHost: copath\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        line.sendall(head.encode())
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        try:
            for _ in range(40):
                line.sendall(chunk)
        except OSError:
            pass  # it does not read to the end
        received = b""
        while b"\r\n\r\n" not in received and (piece := line.recv(65536)):
            received += piece
    assert received.startswith(b"HTTP/1.1 413 ")


# --- the client package of before batches -----------------------------------------------------------------------------


def test_javascript_reads_every_number_of_a_batch_exactly(anchored: Range) -> None:
    answer: Answer = anchored.copath.post(f"{BATCH_BY_TX}?split=5", hashes(anchored)[:12])
    value, unsafe = anchored.sdk.round_trip(answer.body.decode())
    assert value == answer.json
    assert unsafe == []
    maps: dict[str, Any] = json.loads(answer.body)["batches"][0]["merkleProofs"]
    assert all(height.isdecimal() and index.isdecimal() for height, of in maps.items() for index in of)
