"""A tier of the block store in a dictionary, which can be held, lost, and counts what it is asked."""

from __future__ import annotations

import asyncio
from collections import Counter

from app.store.blocks_tiers import TierFailed


class FakeTier:
    """Implements `blocks_tiers.Tier`. While `failing` is set every call raises it; while `gate` is clear calls wait."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.failing: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False
        self.held_bytes = self.held_entries = 0
        self.sweeps = 0

    async def _called(self, name: str) -> None:
        self.calls[name] += 1
        await self.gate.wait()
        if self.failing is not None:
            raise self.failing

    async def read(self, path: str) -> bytes | None:
        await self._called("read")
        return self.entries.get(path)

    async def write(self, path: str, entry: bytes) -> None:
        await self._called("write")
        self.entries[path] = entry

    async def remove(self, path: str) -> None:
        await self._called("remove")
        self.entries.pop(path, None)

    async def sweep(self) -> None:
        self.sweeps += 1

    def close(self) -> None:
        self.closed = True


LOST = TierFailed("EACCES")
