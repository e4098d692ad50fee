"""What several replicas agree on by rows that expire: who does a thing that is to be done once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """One row as it stood when it was asked for. `mine`: whoever asked holds it for `left_s` seconds more; else another does.
    `note`: what its holder left behind, having done the thing; then nobody has to do it again for `left_s` seconds."""

    mine: bool
    left_s: float
    note: bytes | None = None
