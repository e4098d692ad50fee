"""What a chain remembers of its final blocks, for as long as the process lives."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.blocks import Noted, Position
from app.core.gaps import Heights


class MemoryLedger:
    """Fits the chain's `Ledger`. Keeps which heights are done; blocks in memory know the rest themselves."""

    def __init__(self) -> None:
        self._done = Heights()

    def __repr__(self) -> str:
        return f"<MemoryLedger {self._done!r}>"

    async def done(self) -> tuple[tuple[int, int], ...]:
        """As the port says."""
        return tuple(self._done)

    async def note(self, blocks: Sequence[Noted]) -> None:
        """As the port says."""
        for block in blocks:
            self._done.add(block.height, block.height)

    async def hash_at(self, height: int) -> bytes | None:
        """None: what is not in the chain's memory is not in this one."""
        return None

    async def position(self, tx_hash: bytes) -> Position | None:
        """None, as above."""
        return None

    async def roots(self, first: int, last: int) -> tuple[tuple[int, bytes], ...]:
        """None, as above."""
        return ()

    async def finalized(self) -> int | None:
        """None, as above."""
        return None

    async def note_finalized(self, height: int) -> None:
        """Nothing is kept of it."""

    async def forget_from(self, height: int) -> None:
        """As the port says."""
        if self._done.highest is not None:
            self._done.remove(height, self._done.highest)

    async def forget_below(self, height: int) -> None:
        """As the port says."""
        if self._done.lowest is not None:
            self._done.remove(self._done.lowest, height - 1)
