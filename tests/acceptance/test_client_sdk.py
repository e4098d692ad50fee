"""Creditcoin's client package against a running server, for two contiguous ranges of real blocks.

The package recomputes leaves, roots and digests by itself from the recorded blocks; the anchors are of the server, so
the digest chain that they end in is recomputed here as well, from the genesis digest on.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from app.checker import Refused, check_usc, check_usc_batch
from tests.acceptance.judging import Record, to_bytes
from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.corpus_files import files, load
from tests.oracles.damage import flips
from tests.oracles.sdk import Sdk

INTERVAL = 10


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Range:
    """A contiguous range of recorded blocks, by height, behind a server that anchors it itself."""

    copath: Copath
    sdk: Sdk
    key: int
    name: str
    records: dict[int, Record]
    roots: dict[int, bytes]
    digests: dict[int, bytes]

    @property
    def genesis(self) -> int:
        """The height that the anchors start at."""
        return min(self.records)

    @property
    def attested(self) -> int:
        """The highest height that an anchor can stand on."""
        return self.genesis + (max(self.records) - self.genesis) // INTERVAL * INTERVAL

    def provable(self) -> Iterator[tuple[int, int, Record]]:
        """(height, index, record) of every transaction between genesis and the last anchor."""
        for height, record in self.records.items():
            if self.genesis < height <= self.attested:
                for index in range(len(record["receipts"])):
                    yield height, index, record


def _records(name: str) -> dict[int, Record]:
    records = [load(path) for path in files("contiguous") if path.name.startswith(f"{name}_")]
    return {int(record["block"]["number"], 16): record for record in records}


@pytest.fixture(scope="module", params=["sepolia", "mainnet"])
def anchored(request: pytest.FixtureRequest, node: RecordedNode, sdk: Sdk) -> Iterator[Range]:
    name = request.param
    records = _records(name)
    chain_id = next(iter(records.values()))["chainId"]
    node.chains[f"anchored-{name}"] = RecordedChain(chain_id, records.values())
    roots, digests = {}, {}
    previous = None
    for height, record in sorted(records.items()):
        roots[height] = sdk.root_of_block(record["block"]["transactions"], record["receipts"])
        previous = digests[height] = sdk.digest(height, roots[height], previous)
    anchors = {"source": "self", "genesis": min(records), "interval": INTERVAL, "checkpoint_every": 3}
    with running_copath(chain(7, name, chain_id, node.url(f"anchored-{name}"), anchors=anchors)) as copath:
        found = Range(copath, sdk, 7, name, records, roots, digests)
        until(
            lambda: copath.get("/api/v1/attested-height/7").json["attestedHeight"] == found.attested,
            f"anchors up to {found.attested}",
        )
        yield found


def _judge(anchored: Range, body: dict[str, Any], height: int, index: int, record: Record) -> int:
    """Asserts that a single proof is right; the height of the anchor that it ends in."""
    transaction, receipt = record["block"]["transactions"][index], record["receipts"][index]
    assert (body["chainKey"], body["headerNumber"], body["txIndex"]) == (7, height, index)
    assert body["txHash"] == transaction["hash"]
    assert to_bytes(body["txBytes"]) == anchored.sdk.leaf(transaction, receipt)
    roots = [to_bytes(root) for root in body["continuityProof"]["roots"]]
    upper = height + len(roots) - 1
    assert roots == [anchored.roots[place] for place in range(height, upper + 1)]
    assert to_bytes(body["continuityProof"]["lowerEndpointDigest"]) == anchored.digests[height - 1]
    root, upper_digest = anchored.sdk.recompute(body)
    assert root == to_bytes(body["merkleProof"]["root"]) == anchored.roots[height]
    assert upper_digest == anchored.digests[upper]
    assert (upper - anchored.genesis) % INTERVAL == 0
    place = sum(entry["isLeft"] << level for level, entry in enumerate(body["merkleProof"]["siblings"]))
    assert place == index
    return upper


def test_the_generator_proves_every_transaction_of_the_range(anchored: Range) -> None:
    proven = 0
    for height, index, record in anchored.provable():
        tx_hash = bytes.fromhex(record["block"]["transactions"][index]["hash"][2:])
        result = anchored.sdk.generate_proof(anchored.key, anchored.copath.url, tx_hash)
        assert result["success"], result
        _judge(anchored, result["data"], height, index, record)
        proven += 1
    assert proven >= 30


def test_proofs_by_position_are_the_same_and_the_checker_accepts_the_exact_bytes(anchored: Range) -> None:
    for height, index, record in anchored.provable():
        answer = anchored.copath.get(f"/api/v1/proof/{anchored.key}/{height}/{index}")
        assert answer.status == 200, answer.body[:300]
        assert answer.json["cached"] in (True, False)
        upper = _judge(anchored, answer.json, height, index, record)
        asked = {"chainKey": anchored.key, "headerNumber": height, "txIndex": index}
        check_usc(answer.body, asked, (upper, anchored.digests[upper]))


def test_a_damaged_proof_is_refused(anchored: Range) -> None:
    for height, index, _ in list(anchored.provable())[::7]:
        body = anchored.copath.get(f"/api/v1/proof/{anchored.key}/{height}/{index}").json
        asked = {"chainKey": anchored.key, "headerNumber": height, "txIndex": index}
        upper = height + len(body["continuityProof"]["roots"]) - 1
        anchor = (upper, anchored.digests[upper])
        check_usc(_compact(body), asked, anchor)
        for broken in _damages(body, seed=height):
            with pytest.raises(Refused):
                check_usc(_compact(broken), asked, anchor)
        for other in ((upper, anchored.digests[upper - 1]), (upper - 1, anchored.digests[upper - 1])):
            with pytest.raises(Refused):
                check_usc(_compact(body), asked, other)


def _damages(body: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    hashes = [("continuityProof", "roots", place) for place in range(len(body["continuityProof"]["roots"]))]
    for path in [("txBytes",), ("merkleProof", "root"), ("continuityProof", "lowerEndpointDigest"), *hashes]:
        yield from _flipped(body, path, seed)
    for place, sibling in enumerate(body["merkleProof"]["siblings"]):
        yield from _flipped(body, ("merkleProof", "siblings", place, "hash"), seed)
        other_side = copy.deepcopy(body)
        other_side["merkleProof"]["siblings"][place]["isLeft"] = not sibling["isLeft"]
        yield other_side
        shorter = copy.deepcopy(body)
        del shorter["merkleProof"]["siblings"][place]
        yield shorter
    for change in (lambda roots: roots.pop(), lambda roots: roots.pop(0), lambda roots: roots.append(roots[-1])):
        broken = copy.deepcopy(body)
        change(broken["continuityProof"]["roots"])
        yield broken


def _flipped(body: dict[str, Any], path: tuple[str | int, ...], seed: int) -> Iterator[dict[str, Any]]:
    holder: Any = body
    for step in path[:-1]:
        holder = holder[step]
    for one in flips([to_bytes(holder[path[-1]])], 3, seed):
        broken = copy.deepcopy(body)
        target: Any = broken
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = "0x" + one.nodes[0].hex()
        yield broken


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
        _judge(anchored, single, height, index, record)


def test_B43_an_empty_block_has_a_continuity_proof_and_no_other(anchored: Range) -> None:
    empty = [
        height
        for height, record in anchored.records.items()
        if anchored.genesis < height <= anchored.attested and not record["receipts"]
    ]
    assert empty
    for height in empty[:3]:
        single = anchored.copath.get(f"/api/v1/proof/{anchored.key}/{height}/0")
        assert (single.status, single.code) == (422, "EmptyBlockTxProof")
        alone = anchored.copath.post(f"/api/v1/proof-batch/{anchored.key}", [{"headerNumber": height}])
        assert alone.status == 200, alone.body[:300]
        assert alone.json["merkleProofs"] == {}
        assert alone.json["continuityProof"]["roots"][0] == "0x" + "00" * 32


def test_what_is_not_anchored_is_refused_with_the_reason(anchored: Range) -> None:
    genesis = anchored.copath.get(f"/api/v1/proof/{anchored.key}/{anchored.genesis}/0")
    assert (genesis.status, genesis.code) == (400, "BlockBeforeOrAtGenesis")
    above = anchored.attested + 1
    early = anchored.copath.get(f"/api/v1/proof/{anchored.key}/{above}/0")
    assert (early.status, early.code) == (422, "BlockNotReady")
    assert early.json["retriable"] is True
    assert (early.json["block_number"], early.json["last_attested_block"]) == (above, anchored.attested)
    beyond = anchored.copath.get(f"/api/v1/proof/{anchored.key}/{anchored.attested}/9999")
    assert (beyond.status, beyond.code) in ((400, "TxIndexOutOfBounds"), (422, "EmptyBlockTxProof"))
    unknown = anchored.sdk.generate_proof(anchored.key, anchored.copath.url, b"\xee" * 32)
    assert unknown["success"] is False
    assert "404" in unknown["error"]


def test_B67_javascript_reads_every_number_of_a_body_exactly(anchored: Range) -> None:
    height, index, _ = next(anchored.provable())
    body = anchored.copath.get(f"/api/v1/proof/{anchored.key}/{height}/{index}")
    value, unsafe = anchored.sdk.round_trip(body.body.decode())
    assert value == body.json
    assert unsafe == []
