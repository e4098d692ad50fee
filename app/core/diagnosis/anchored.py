"""Leaves of binary trees whose roots are chained up to an anchor.

anchor <- digests of the heights below it <- root of the block's tree <- siblings <- transaction bytes
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from app.core import continuity, merkle
from app.core.proof_forms import Statement

from .verdict import Diagnosis, Fault, require

MAX_ROOTS = 50_000
MAX_LEAF_BYTES = 10 << 20
"""Of the verifier on chain: roots of a digest chain, and bytes of one transaction."""


def single_verdict(statement: Statement) -> Diagnosis:
    """Of one transaction under an anchor. Raises `Fault`."""
    proof = statement.fields
    height = proof["headerNumber"]
    roots = proof["continuityProof"]["roots"]
    _require_leaf(proof, height, proof["txIndex"], roots, height, "")
    upper = _require_anchored(statement, height, height)
    return Diagnosis("Valid", f"transaction {proof['txIndex']} of block {height} is under the anchor at {upper}", True)


def batch_verdict(statement: Statement) -> Diagnosis:
    """Of the transactions of several blocks under one anchor. Raises `Fault`."""
    batch = statement.fields
    first, last = batch["fromHeader"], batch["toHeader"]
    roots = batch["continuityProof"]["roots"]
    _require_order(batch)
    count = 0
    for height, index, leaf in _leaves(batch):
        _require_leaf(leaf, height, index, roots, first, f"merkleProofs.{height}.{index}.")
        count += 1
    upper = _require_anchored(statement, first, last)
    message = f"{count} transactions of the blocks {first} to {last} are under the anchor at {upper}"
    return Diagnosis("Valid", message, True)


def split_verdict(statement: Statement) -> Diagnosis:
    """Of batches that are parts of one, each a proof by itself under the same anchor. Raises `Fault`."""
    whole = statement.fields
    batches, most = whole["batches"], whole["split"]
    if not batches:
        raise Fault("MalformedField", "batches", "nothing is claimed", "one batch or more", "none")
    for place, batch in enumerate(batches):
        at = f"batches[{place}]"
        require(batch["chainKey"], whole["chainKey"], "MalformedField", f"{at}.chainKey", "a part of another chain")
        for name in ("fromHeader", "toHeader"):
            if not whole["fromHeader"] <= batch[name] <= whole["toHeader"]:
                stated = f"{whole['fromHeader']} to {whole['toHeader']}"
                raise Fault("MalformedField", f"{at}.{name}", "a part outside the stated range", stated, batch[name])
        size = sum(len(by_index) for by_index in batch["merkleProofs"].values())
        if size > most:
            raise Fault("MalformedField", f"{at}.merkleProofs", "a part is larger than stated", f"{most} or less", size)
        try:
            batch_verdict(replace(statement, kind="batch", fields=batch))
        except Fault as fault:
            raise fault.within(at) from fault
    return Diagnosis("Valid", f"each of {len(batches)} batches is under the anchor", True)


def _leaves(batch: dict[str, Any]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for height, by_index in batch["merkleProofs"].items():
        for index, leaf in by_index.items():
            yield int(height), int(index), leaf


def _require_order(batch: dict[str, Any]) -> None:
    first, last = batch["fromHeader"], batch["toHeader"]
    if first > last:
        raise Fault("MalformedField", "toHeader", "the range ends before it begins", f"{first} or more", last)
    before = (first, -1)
    for height, by_index in batch["merkleProofs"].items():
        at = f"merkleProofs.{height}"
        if not first <= int(height) <= last:
            raise Fault("MalformedField", at, "a block outside the stated range", f"{first} to {last}", int(height))
        if not by_index:
            raise Fault("MalformedField", at, "a block without a transaction has no entry")
        for index in by_index:
            place = (int(height), int(index))
            if place <= before or place[1] >= 1 << 64:
                raise Fault("MalformedField", f"{at}.{index}", "blocks and indexes go up, each once")
            before = place


def _require_leaf(leaf: dict[str, Any], height: int, index: int, roots: list[bytes], first: int, at: str) -> None:
    """That the bytes stand at an index of the tree whose root the digest chain, which begins at `first`, has at `height`."""
    siblings, root, tx_bytes = leaf["merkleProof"]["siblings"], leaf["merkleProof"]["root"], leaf["txBytes"]
    if not 0 < len(tx_bytes) <= MAX_LEAF_BYTES:
        message = "a verifier on chain takes no such transaction"
        raise Fault("MalformedField", f"{at}txBytes", message, f"1 to {MAX_LEAF_BYTES} bytes", f"{len(tx_bytes)} bytes")
    if len(siblings) > merkle.MAX_SIBLINGS:
        message = "a verifier on chain takes no more siblings"
        raise Fault("MalformedField", f"{at}merkleProof.siblings", message, merkle.MAX_SIBLINGS, len(siblings))
    node, proven = merkle.follow(tx_bytes, [(each["hash"], each["isLeft"]) for each in siblings])
    place = height - first
    chained = roots[place] if place < len(roots) else None
    if node != root:
        if node == chained:
            message = "the block's tree has another root"
            raise Fault("RootMismatch", f"{at}merkleProof.root", message, node, root)
        message = "transaction bytes and siblings lead to another root"
        raise Fault("LeafMismatch", f"{at}txBytes", message, root, node)
    if proven != index:
        message = "the siblings are those of another index"
        raise Fault("IndexMismatch", f"{at}txIndex" if not at else at.rstrip("."), message, proven, index)
    if chained is None:
        message = f"the digest chain ends before block {height}"
        raise Fault("ContinuityMismatch", "continuityProof.roots", message, f"{place + 1} roots", f"{len(roots)} roots")
    if chained != root:
        message = f"the digest chain has another root at block {height}"
        raise Fault("ContinuityMismatch", f"continuityProof.roots[{place}]", message, root, chained)


def _require_anchored(statement: Statement, first: int, last: int) -> int:
    """That the digest chain, from `first` on, covers `last` and ends in the anchor, whose height is returned."""
    chain = statement.fields["continuityProof"]
    digest, roots = chain["lowerEndpointDigest"], chain["roots"]
    if not 0 < len(roots) <= MAX_ROOTS:
        message = "a verifier on chain takes no such chain"
        raise Fault(
            "ContinuityMismatch", "continuityProof.roots", message, f"1 to {MAX_ROOTS} roots", f"{len(roots)} roots"
        )
    upper = first + len(roots) - 1
    if upper < last:
        message = f"the digest chain ends before block {last}"
        raise Fault("ContinuityMismatch", "continuityProof.roots", message, last, upper)
    if statement.anchor is None:
        message = (
            'a usc proof holds under an anchor only: give the one that you trust as "anchor": {"height", "digest"}'
        )
        raise Fault("AnchorMissing", "anchor", message)
    height, trusted = statement.anchor
    if upper != height:
        message = "the digest chain ends at another height than the anchor"
        raise Fault("AnchorMismatch", "continuityProof.roots", message, height, upper)
    for at, root in enumerate(roots, first):
        digest = continuity.digest(at, root, digest)
    if digest != trusted:
        message = (
            "the digest chain ends in another digest than the anchor's: some root, or the digest below it, is another"
        )
        raise Fault("AnchorMismatch", "continuityProof", message, trusted, digest)
    return upper
