"""What outlives a chain in tests: a ledger and a block store that can be lost, and count what they are asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from app.core.blocks import Noted, Position
from app.core.gaps import Heights
from app.core.lasting import StoreUnavailable
from tests.fakes import HoldPoints


class KeptLedger(HoldPoints):
    """Implements `chain.ports.Ledger` in a dictionary. While `lost`, every call raises as a database that is gone.
    Each call is a point of its name."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, Noted] = {}
        self.final: int | None = None
        self.lost = False
        self.calls: Counter[str] = Counter()

    async def _called(self, name: str) -> None:
        self.calls[name] += 1
        await self.at(name)
        if self.lost:
            raise StoreUnavailable("the database is gone")

    async def done(self) -> tuple[tuple[int, int], ...]:
        await self._called("done")
        return tuple(Heights((height, height) for height in sorted(self.blocks)))

    async def note(self, blocks: Sequence[Noted]) -> None:
        await self._called("note")
        self.blocks |= {block.height: block for block in blocks}

    async def hash_at(self, height: int) -> bytes | None:
        await self._called("hash_at")
        return None if height not in self.blocks else self.blocks[height].block_hash

    async def position(self, tx_hash: bytes) -> Position | None:
        await self._called("position")
        for block in self.blocks.values():
            at = block.transaction_hashes.find(tx_hash)
            if at >= 0 and block.block_hash is not None:
                return Position(block.block_hash, block.height, at // 32)
        return None

    async def roots(self, first: int, last: int) -> tuple[tuple[int, bytes], ...]:
        await self._called("roots")
        noted = ((height, self.blocks[height].usc_root) for height in sorted(self.blocks) if first <= height <= last)
        return tuple((height, root) for height, root in noted if root is not None)

    async def finalized(self) -> int | None:
        await self._called("finalized")
        return self.final

    async def note_finalized(self, height: int) -> None:
        await self._called("note_finalized")
        self.final = height if self.final is None else max(self.final, height)

    async def forget_from(self, height: int) -> None:
        await self._called("forget_from")
        self.blocks = {at: block for at, block in self.blocks.items() if at < height}
        if self.final is not None and self.final >= height:
            self.final = height - 1 if height else None

    async def forget_below(self, height: int) -> None:
        await self._called("forget_below")
        self.blocks = {at: block for at, block in self.blocks.items() if at >= height or block.asked}


class KeptBlocks:
    """Implements `chain.ports.BlockStore` in a dictionary."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, bytes] = {}
        self.reads = 0

    async def get(self, block_hash: bytes) -> bytes | None:
        self.reads += 1
        return self.blocks.get(block_hash)

    def put(self, block_hash: bytes, height: int, packed: bytes) -> None:
        self.blocks[block_hash] = packed

    async def put_through(self, block_hash: bytes, height: int, packed: bytes) -> bool:
        self.blocks[block_hash] = packed
        return True

    async def drop(self, block_hash: bytes) -> None:
        self.blocks.pop(block_hash, None)
