"""What can be wrong with a proof, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from app.core.proof_forms import shown

Reason = Literal[
    "Valid",
    "MalformedField",  # a field is missing, unknown, or not of its form
    "DuplicateField",  # an object has a name twice
    "HeaderHashMismatch",  # the header does not hash to the block hash
    "HeaderMismatch",  # the header says something else of the block than the proof
    "RootMismatch",  # the first node, or the siblings, do not lead to the root
    "NodeHashMismatch",  # a node is not the one its parent commits to
    "KeyMismatch",  # the nodes, or the index, are of another key
    "ValueMismatch",  # the key holds another value, or it hashes to another hash
    "TruncatedProof",  # the path goes on below the last node
    "ExtraNodes",  # nodes are left over where the path ends
    "Absent",  # the nodes prove that the key is not in the trie
    "MalformedNode",  # a node is no canonical encoding of a trie node
    "LogMismatch",  # the log is not the one in the receipt
    "EncodingMismatch",  # an encoding does not hold the nodes
    "LeafMismatch",  # the transaction bytes and siblings do not lead to the root of the block's tree
    "IndexMismatch",  # the siblings are those of another index
    "ContinuityMismatch",  # the digest chain holds another root at the block's height, or does not reach it
    "AnchorMissing",  # a usc proof holds under an anchor only, and none was given
    "AnchorMismatch",  # the digest chain ends elsewhere than in the anchor
]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict. `node` counts from the root, `nibble` along the key. `expected` is what the trusted side demands, `found` what
    the proof has: hex, numbers, or words."""

    reason: Reason
    message: str
    valid: bool = False
    field: str | None = None
    node: int | None = None
    nibble: int | None = None
    expected: int | str | None = None
    found: int | str | None = None

    def as_json(self) -> dict[str, object]:
        """The verdict as it is answered."""
        names = ("valid", "reason", "node", "nibble", "field", "expected", "found", "message")
        return {name: getattr(self, name) for name in names}


class Fault(Exception):
    """A proof does not hold."""

    def __init__(
        self, reason: Reason, field: str, message: str, expected: object = None, found: object = None, **at: int
    ) -> None:
        super().__init__(reason)
        of_both = (None if expected is None else shown(expected)), (None if found is None else shown(found))
        self.diagnosis = Diagnosis(
            reason, message, False, field, at.get("node"), at.get("nibble"), of_both[0], of_both[1]
        )

    def within(self, part: str) -> Fault:
        """The same fault, as seen from outside the part that has it. The anchor is no part of anything."""
        if self.diagnosis.field != "anchor":
            self.diagnosis = replace(self.diagnosis, field=f"{part}.{self.diagnosis.field}")
        return self


def require(claimed: object, expected: object, reason: Reason, field: str, message: str) -> None:
    """Raises `Fault` unless what is claimed is what is expected."""
    if claimed != expected:
        raise Fault(reason, field, message, expected, claimed)
