"""What sources of anchors need from the rest of the house, written by them, with the guarantees they rely on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.core.anchor_rows import AnchorRow

__all__ = ["AnchorRow", "AnchorRows"]


class AnchorRows(Protocol):
    """The anchors of one chain and one source, kept for longer than the process lives and shared by every process that serves
    the chain. Each call is one transaction: done or not done. Raises `StoreUnavailable`, within seconds; it never hangs."""

    async def load(self, above: int = -1) -> tuple[AnchorRow, ...]:
        """Every row above that height, ascending."""
        ...

    async def claim_genesis(self, height: int) -> int:
        """The height that the chain of digests starts at: the first claim wins for ever. The genesis that stands."""
        ...

    async def add(self, rows: Sequence[AnchorRow]) -> None:
        """Keeps these rows; those that are kept already change nothing, and a checkpoint retires the attestations at and below
        it. Raises `AnchorContradiction`, with nothing written, where another digest stands at one of the heights."""
        ...

    async def drop(self, rows: Sequence[AnchorRow], genesis: int | None) -> None:
        """Forgets these rows where the same digests stand at their heights, and the claim of that genesis if it stands."""
        ...

    async def drop_above(self, height: int) -> None:
        """Forgets the rows above `height`."""
        ...
