"""What one chain knows for sure: checked blocks by hash, the hash now canonical at a height, where transactions are.

Nothing enters before it is true, and values only: what is still being filled lives in `flight`. A block is kept under its
hash, a fact that no reorg can falsify. What a reorg does falsify is the pin, height -> hash; positions of transactions count
only while the pin of their block's height names that block, so dropping pins is all that a reorg asks for.

    blocks     hash -> block        bounded in bytes as measured at insert, least recently used first out
    positions  tx hash -> block     come and go with their block, and are counted in its size
    pins       height -> hash       bounded in number, least recently used first out
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cachetools import LRUCache

from app.core.blocks import Position

ENTRY_OVERHEAD_BYTES = 1024
"""What an entry costs beside the block: keys, entry, list nodes. An estimate on the safe side."""

FIRST_GUESS_BYTES = 64 * 1024
"""What a block costs, before any is held."""

POSITION_BYTES = 160
"""What one known transaction position costs: a 32-byte key, its tuple, its share of the dictionary."""


class Settled(Protocol):
    """What the cache needs to know of a block. `proven_hashes` are those of its transactions, in order, joined, 32 bytes each,
    where they are proven."""

    @property
    def block_hash(self) -> bytes: ...
    @property
    def height(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def proven_hashes(self) -> bytes: ...


B = TypeVar("B", bound=Settled)


@dataclass(frozen=True, slots=True)
class _Entry(Generic[B]):
    block: B
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Pin:
    block_hash: bytes
    final: bool
    at: float


class _Blocks(LRUCache[bytes, _Entry[B]], Generic[B]):
    """The settled blocks; tells the cache what it drops to make room."""

    def __init__(self, max_bytes: int, cache: BlockCache[B]) -> None:
        super().__init__(max_bytes, getsizeof=lambda entry: entry.size_bytes)
        self._cache = cache

    def popitem(self) -> tuple[bytes, _Entry[B]]:
        block_hash, entry = super().popitem()
        self._cache._dropped(entry, "capacity")
        return block_hash, entry


class BlockCache(Generic[B]):
    """Checked blocks within `max_bytes`. Belongs to one event loop; no method awaits.

    A block larger than `max_entry_bytes` (a quarter of the whole by default) is not retained, and counted: otherwise one
    block could empty the cache, and a budget that is too small would look like a low hit rate.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        max_entry_bytes: int | None = None,
        max_pins: int = 32_768,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        self._max_entry_bytes = min(max_bytes, max_bytes // 4 if max_entry_bytes is None else max_entry_bytes)
        self._blocks: _Blocks[B] = _Blocks(max_bytes, self)
        self._pins: LRUCache[int, _Pin] = LRUCache(max_pins)
        self._positions: dict[bytes, tuple[B, int]] = {}
        self._doubted_above: int | None = None
        self._now = now
        self.hits = 0
        self.misses = 0
        self.evictions: Counter[str] = Counter({"capacity": 0, "retention": 0, "dropped": 0})
        self.rejected: Counter[str] = Counter({"too_large": 0})

    def __repr__(self) -> str:
        return f"<BlockCache {self.entries} blocks, {self.size_bytes}/{self.max_bytes} bytes, {len(self._pins)} pins>"

    @property
    def entries(self) -> int:
        return len(self._blocks)

    @property
    def size_bytes(self) -> int:
        """Bytes held, as measured when the blocks came in."""
        return int(self._blocks.currsize)

    @property
    def max_bytes(self) -> int:
        return int(self._blocks.maxsize)

    # --- blocks -----------------------------------------------------------------------------------------------------

    def get(self, block_hash: bytes) -> B | None:
        """The settled block, counted as a hit or a miss."""
        block = self.peek(block_hash)
        if block is None:
            self.misses += 1
        else:
            self.hits += 1
        return block

    def peek(self, block_hash: bytes) -> B | None:
        """The settled block, without counting: for those who only choose a lane."""
        entry = self._blocks.get(block_hash)
        return None if entry is None else entry.block

    def land(self, block: B) -> bool:
        """Keeps a checked block and the positions of its transactions. False when it is too large to be retained."""
        hashes = block.proven_hashes
        size_bytes = block.size_bytes + ENTRY_OVERHEAD_BYTES + POSITION_BYTES * (len(hashes) // 32)
        if size_bytes > self._max_entry_bytes:
            self.rejected["too_large"] += 1
            return False
        self._blocks[block.block_hash] = _Entry(block, size_bytes)
        for start in range(0, len(hashes), 32):
            self._positions[hashes[start : start + 32]] = (block, start // 32)
        return True

    @property
    def room_ahead(self) -> int:
        """How many blocks may be kept that nobody asked for yet: as many as take three quarters of the bytes at the mean size
        of what is held, so that what is asked for does not drive them out at once."""
        mean_bytes = self.size_bytes / self.entries if self.entries else FIRST_GUESS_BYTES
        return int(0.75 * min(self.max_bytes / mean_bytes, self._pins.maxsize))

    def drop(self, block_hash: bytes, reason: str = "dropped") -> bool:
        """Forgets a block. False when it was not there."""
        entry = self._blocks.pop(block_hash, None)
        if entry is None:
            return False
        self._dropped(entry, reason)
        return True

    def retire_below(self, height: int) -> int:
        """Forgets the blocks below `height`: a retention limit. Returns how many went."""
        old = [block_hash for block_hash, entry in self._blocks.items() if entry.block.height < height]
        for block_hash in old:
            self.drop(block_hash, "retention")
        return len(old)

    def retire(self, low: int, high: int) -> int:
        """Forgets the blocks known to be canonical at heights from `low` to `high`. Returns how many went."""
        within = range(low, high + 1)
        heights = within if len(within) < len(self._pins) else [height for height in self._pins if height in within]
        pinned = [self._pins[height].block_hash for height in heights if height in self._pins]
        return sum(self.drop(block_hash, "retention") for block_hash in pinned)

    def _dropped(self, entry: _Entry[B], reason: str) -> None:
        self.evictions[reason] += 1
        hashes = entry.block.proven_hashes
        for start in range(0, len(hashes), 32):
            tx_hash = hashes[start : start + 32]
            known = self._positions.get(tx_hash)
            if known is not None and known[0].block_hash == entry.block.block_hash:  # not one of a fork that came later
                del self._positions[tx_hash]

    # --- what is canonical ------------------------------------------------------------------------------------------

    def pin(self, height: int, block_hash: bytes, *, final: bool = False) -> None:
        """`block_hash` is canonical at `height`; `final` says that this cannot change. A final pin stays final."""
        known = self._pins.get(height)
        at = self._now()
        if known is not None and known.final and known.block_hash == block_hash:
            final, at = True, known.at
        self._pins[height] = _Pin(block_hash, final, at)

    def hash_at(self, height: int) -> bytes | None:
        """The hash known to be canonical at `height`, or None when it is not known."""
        pin = self._pins.get(height)
        return None if pin is None else pin.block_hash

    def pin_is_final(self, height: int) -> bool:
        """Whether what is canonical there cannot change; of no height that is in doubt."""
        if self._doubted_above is not None and height > self._doubted_above:
            return False
        pin = self._pins.get(height)
        return pin is not None and pin.final

    def doubt_above(self, height: int | None) -> None:
        """Above that height no pin is final for now: the chain may be another one. None: all are what they were."""
        self._doubted_above = height

    @property
    def final_pins(self) -> dict[int, bytes]:
        """The hashes known to be canonical for good, by height."""
        return {height: pin.block_hash for height, pin in self._pins.items() if pin.final}

    def unpin_since(self, seconds: float) -> None:
        """What was pinned within so long may have been said of another chain: it is asked for again."""
        since = self._now() - seconds
        for pinned in [height for height, pin in self._pins.items() if pin.at >= since]:
            del self._pins[pinned]

    def unpin(self, height: int) -> None:
        self._pins.pop(height, None)

    def unpin_from(self, height: int) -> int:
        """A reorg: nothing is known to be canonical at or above `height`. Returns how many pins went."""
        gone = [pinned for pinned in self._pins if pinned >= height]
        for pinned in gone:
            del self._pins[pinned]
        return len(gone)

    # --- where transactions are -------------------------------------------------------------------------------------

    def position_of(self, tx_hash: bytes) -> Position | None:
        """Where a transaction is, if its block is settled and pinned as canonical; else None, which says nothing."""
        known = self._positions.get(tx_hash)
        if known is None:
            return None
        block, index = known
        if self.hash_at(block.height) != block.block_hash:
            return None
        return Position(block_hash=block.block_hash, height=block.height, index=index)

    def forget_position(self, tx_hash: bytes) -> None:
        """The next question for it goes to the upstream."""
        self._positions.pop(tx_hash, None)
