"""Creditcoin's client package against a running server, for two contiguous ranges of real blocks.

The package recomputes leaves, roots and digests by itself from the recorded blocks; the anchors are of the server, so
the digest chain that they end in is recomputed here as well, from the genesis digest on.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.checker import Refused, check_usc
from tests.acceptance.anchored_range import Range, anchored_range, judge_single
from tests.acceptance.judging import to_bytes
from tests.acceptance.recorded_node import RecordedNode
from tests.oracles.damage import flips
from tests.oracles.sdk import Sdk


@pytest.fixture(scope="module", params=["sepolia", "mainnet"])
def anchored(request: pytest.FixtureRequest, node: RecordedNode, sdk: Sdk) -> Iterator[Range]:
    with anchored_range(request.param, node, sdk) as found:
        yield found


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def test_the_generator_proves_every_transaction_of_the_range(anchored: Range) -> None:
    proven = 0
    for height, index, record in anchored.provable():
        tx_hash = bytes.fromhex(record["block"]["transactions"][index]["hash"][2:])
        result = anchored.sdk.generate_proof(anchored.key, anchored.copath.url, tx_hash)
        assert result["success"], result
        judge_single(anchored, result["data"], height, index, record)
        proven += 1
    assert proven >= 10


def test_proofs_by_position_are_the_same_and_the_checker_accepts_the_exact_bytes(anchored: Range) -> None:
    for height, index, record in anchored.provable():
        answer = anchored.copath.get(f"/api/v1/proof/{anchored.key}/{height}/{index}")
        assert answer.status == 200, answer.body[:300]
        assert answer.json["cached"] in (True, False)
        upper = judge_single(anchored, answer.json, height, index, record)
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


def test_B43_an_empty_block_has_nothing_to_prove(anchored: Range) -> None:
    for height in anchored.empty()[:3]:
        single = anchored.copath.get(f"/api/v1/proof/{anchored.key}/{height}/0")
        assert (single.status, single.code) == (422, "EmptyBlockTxProof")


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
