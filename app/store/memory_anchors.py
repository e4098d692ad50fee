"""Anchor rows that are kept for as long as the process lives: for the demo, and for whoever has no database."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.anchor_rows import ATTESTATION, CHECKPOINT, AnchorRow
from app.core.lasting import AnchorContradiction


class MemoryAnchorRows:
    """Fits the `AnchorRows` of the anchor sources, for one chain and one source."""

    def __init__(self) -> None:
        self._rows: dict[int, AnchorRow] = {}
        self._genesis: int | None = None

    def __repr__(self) -> str:
        return f"<MemoryAnchorRows {len(self._rows)} from {self._genesis}>"

    async def load(self, above: int = -1) -> tuple[AnchorRow, ...]:
        """As the port says."""
        return tuple(self._rows[height] for height in sorted(self._rows) if height > above)

    async def claim_genesis(self, height: int) -> int:
        """As the port says."""
        if self._genesis is None:
            self._genesis = height
        return self._genesis

    async def add(self, rows: Sequence[AnchorRow]) -> None:
        """As the port says."""
        for row in rows:
            standing = self._rows.get(row.height)
            if standing is not None and standing.digest != row.digest:
                raise AnchorContradiction(
                    f"height {row.height} is anchored with 0x{standing.digest.hex()}, not with 0x{row.digest.hex()}"
                )
        checkpoints = [row.height for row in (*self._rows.values(), *rows) if row.kind == CHECKPOINT]
        retired = max(checkpoints, default=-1)
        kept = [row for row in (*self._rows.values(), *rows) if row.kind != ATTESTATION or row.height > retired]
        self._rows = {row.height: row for row in kept}

    async def drop(self, rows: Sequence[AnchorRow], genesis: int | None) -> None:
        """As the port says."""
        dead = {(row.height, row.digest) for row in rows}
        self._rows = {at: row for at, row in self._rows.items() if (at, row.digest) not in dead}
        if genesis is not None and self._genesis == genesis:
            self._genesis = None

    async def drop_above(self, height: int) -> None:
        """As the port says."""
        self._rows = {at: row for at, row in self._rows.items() if at <= height}
