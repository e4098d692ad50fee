"""An answer larger than anybody would hold: what is in memory beside the leaves is a piece of it."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from typing import Any

from app.api import batch_bodies
from app.api.batch_bodies import Item
from app.core import merkle
from app.core.continuity import ContinuityProof, digest
from app.core.provable_block import LeafProof

FIRST, COUNT, LEAF_BYTES = 500, 80, 200_000


@dataclass(frozen=True)
class Floor:
    key: int = 7
    name: str = "large"


@dataclass(frozen=True)
class Cut:
    proof: ContinuityProof
    upper_height: int
    upper_digest: bytes


def large_items() -> list[Item]:
    """Blocks of one transaction each, with a lot of data in it."""
    items = []
    for height in range(FIRST, FIRST + COUNT):
        leaf = height.to_bytes(8, "big") * (LEAF_BYTES // 8)
        items.append(Item(height, 0, height.to_bytes(32, "big"), LeafProof(merkle.leaf_hash(leaf), leaf, ())))
    return items


async def test_the_text_of_a_large_answer_is_never_whole_in_memory() -> None:
    items = large_items()
    proof = ContinuityProof(bytes(32), tuple(item.leaf.root for item in items))
    below = proof.lower_endpoint_digest
    for height, root in enumerate(proof.roots, FIRST):
        below = digest(height, root, below)
    continuity: Any = Cut(proof, FIRST + COUNT - 1, below)
    floor: Any = Floor()
    received = {"bytes": 0, "largest": 0}

    async def send(message: Any) -> None:
        body = message.get("body", b"")
        received["bytes"] += len(body)
        received["largest"] = max(received["largest"], len(body))

    async def receive() -> Any:
        raise AssertionError("nothing is read while the answer is sent")

    tracemalloc.start()
    try:
        batch = batch_bodies.whole(range(FIRST, FIRST + COUNT), items, proof)
        response = await batch_bodies.respond({}, floor, [batch], continuity, None)
        await response({"type": "http"}, receive, send)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    whole_bytes = 2 * LEAF_BYTES * COUNT
    assert received["bytes"] > whole_bytes
    assert int(response.headers["content-length"]) == received["bytes"]
    assert received["largest"] < 3 * LEAF_BYTES
    assert peak_bytes < whole_bytes / 4, f"{peak_bytes} bytes for an answer of {received['bytes']}"
