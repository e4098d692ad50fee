"""What a chain remembers of its backfill, for as long as the process lives."""

from __future__ import annotations

from app.core.gaps import Heights


class MemoryLedger:
    """Fits the chain's `Ledger`. Keeps which heights are done, and no positions: blocks in memory know those themselves."""

    def __init__(self) -> None:
        self._done = Heights()

    def __repr__(self) -> str:
        return f"<MemoryLedger {self._done!r}>"

    async def done(self) -> tuple[tuple[int, int], ...]:
        """As the port says."""
        return tuple(self._done)

    async def note(self, height: int, block_hash: bytes | None, transaction_hashes: bytes) -> None:
        """As the port says."""
        self._done.add(height, height)

    async def forget_from(self, height: int) -> None:
        """As the port says."""
        if self._done.highest is not None:
            self._done.remove(height, self._done.highest)

    async def forget_below(self, height: int) -> None:
        """As the port says."""
        if self._done.lowest is not None:
            self._done.remove(self._done.lowest, height - 1)
