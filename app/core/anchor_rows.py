"""An anchor as it is written down: one row of a table, or one line of a file."""

from __future__ import annotations

from dataclasses import dataclass

ATTESTATION = "attestation"
CHECKPOINT = "checkpoint"
GENESIS = "genesis"
KINDS = (ATTESTATION, CHECKPOINT, GENESIS)


@dataclass(frozen=True, slots=True)
class AnchorRow:
    """A height, the digest (32 bytes) that verifiers accept there, and its kind: one of `KINDS`.

    A checkpoint retires the attestations at and below it. The genesis is the height that a chain of digests starts at: the
    lowest end that a proof can have, and itself never proven."""

    height: int
    digest: bytes
    kind: str
