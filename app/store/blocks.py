"""Verified blocks that outlive the process: a directory, an object store that replicas share, or one in front of the other.

    put -> queue -> compressed once -> directory, objects
    get <- queue <- directory <- objects (and from there into the directory, behind the answer)

Nothing here is needed to answer. What cannot be read is made anew, what cannot be written is not kept, and neither takes more
than moments. Entries that were damaged, belong elsewhere or were written by another version are dropped and never returned; what
is returned is what was put, to the byte, as far as a checksum can tell.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from app.metrics import Metrics
from app.store.blocks_directory import BlockDirectory, Swept
from app.store.blocks_entry import EntryKey, decode_entry, encode_entry
from app.store.blocks_threads import Threads
from app.store.blocks_tiers import DirectoryTier, GuardedTier, LocalTier, Tier, TierFailed, open_objects

log = logging.getLogger(__name__)

READ_LIMIT_S = 2.0
CODEC_LIMIT_S = 10.0
FLUSH_LIMIT_S = 5.0
SWEEP_EVERY_S = 600.0
MOST_WAITING_BYTES = 64 * 2**20
WRITERS = 3


@dataclass(frozen=True, slots=True)
class BlockStoreRules:
    """Where blocks are kept: `url` is `file:DIRECTORY` or that of an object store, in front of which `local_path` is a directory,
    None for none. The directory holds at most `max_bytes`, and nothing that was not used for `max_age_s`."""

    url: str
    local_path: str | None = None
    max_bytes: int = 10 * 2**30
    max_age_s: float | None = None


@dataclass(slots=True)
class _Waiting:
    """A block to be written into `tiers`: packed, and, where it was read as one, as an entry already."""

    chain: str
    height: int
    packed: bytes
    entry: bytes | None
    tiers: Sequence[GuardedTier]
    dropped: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    shared: bool = False
    """Once it has ended: whether it lies in the last tier, where others read it."""

    @property
    def held_bytes(self) -> int:
        return len(self.packed) + len(self.entry or b"")


class PackedBlocks:
    """The blocks of all chains. Owned by whoever opened it, who runs `run` and in the end calls `aclose`."""

    def __init__(
        self,
        metrics: Metrics,
        directory: LocalTier | None,
        objects: Tier | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        most_waiting_bytes: int = MOST_WAITING_BYTES,
    ) -> None:
        self._metrics = metrics
        self._directory = directory
        self._opened: list[Tier] = [tier for tier in (directory, objects) if tier is not None]
        self._tiers = [GuardedTier(tier, metrics, now) for tier in self._opened]
        self._codec = Threads("block-store-codec", 2)
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting: dict[EntryKey, _Waiting] = {}  # in the order in which they came
        self._writing: dict[EntryKey, _Waiting] = {}
        self._waiting_bytes = 0  # of both
        self._wake = asyncio.Event()
        self._closed = False
        metrics.before_scrape(self._publish)

    def __repr__(self) -> str:
        return f"<PackedBlocks {len(self._waiting)} waiting, {len(self._writing)} being written, {self._tiers!r}>"

    def of(self, chain_key: int, chain: str) -> ChainBlocks:
        """The blocks of one chain, which metrics call `chain`."""
        return ChainBlocks(self, chain_key, chain)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def read(self, key: EntryKey, chain: str) -> bytes | None:
        """The packed block; None when there is none to be had within `READ_LIMIT_S`."""
        waiting = self._waiting.get(key) or self._writing.get(key)
        if waiting is not None and not waiting.dropped:
            self._metrics.block_store_reads_total.labels(chain, "queue", "hit").inc()
            return waiting.packed
        try:
            async with asyncio.timeout(READ_LIMIT_S):
                return await self._read(key, chain)
        except TimeoutError:
            return None

    async def _read(self, key: EntryKey, chain: str) -> bytes | None:
        decode = partial(self._decode, key)
        for place, tier in enumerate(self._tiers):
            found = await tier.read(key, chain, decode)
            if found is not None:
                entry, packed = found
                if place:
                    self._enqueue(key, _Waiting(chain, 0, packed, entry, self._tiers[:place]))
                return packed
        return None

    async def _decode(self, key: EntryKey, entry: bytes) -> bytes:
        return await self._codec.run(partial(decode_entry, key, entry), CODEC_LIMIT_S)

    # --- writing, behind --------------------------------------------------------------------------------------------

    def write_behind(self, key: EntryKey, chain: str, height: int, packed: bytes) -> None:
        """Takes a block for writing, unless too much waits or this block does already."""
        if key not in self._waiting and key not in self._writing:
            self._enqueue(key, _Waiting(chain, height, packed, None, self._tiers))

    async def write_through(self, key: EntryKey, chain: str, height: int, packed: bytes) -> bool:
        """As `write_behind`, and waits until it is done. Whether the block lies where others who share the store read it."""
        self.write_behind(key, chain, height, packed)
        item = self._waiting.get(key) or self._writing.get(key)
        if item is None:
            return False
        await item.ended.wait()
        return item.shared

    def _enqueue(self, key: EntryKey, item: _Waiting) -> None:
        if key in self._waiting or key in self._writing:
            return
        if self._closed or self._waiting_bytes + item.held_bytes > self._most_waiting_bytes:
            self._metrics.block_store_unwritten_total.labels(item.chain).inc()
            return
        self._waiting[key] = item
        self._waiting_bytes += item.held_bytes
        self._wake.set()

    async def drop(self, key: EntryKey, chain: str) -> None:
        """Forgets the block wherever it lies, also where it is just being written."""
        self._metrics.block_store_disproved_total.labels(chain).inc()
        item = self._waiting.pop(key, None)
        if item is not None:
            self._waiting_bytes -= item.held_bytes
            item.ended.set()
        if key in self._writing:
            self._writing[key].dropped = True
        await self._remove(key, self._tiers)

    async def _remove(self, key: EntryKey, tiers: Sequence[GuardedTier]) -> None:
        for tier in tiers:
            await tier.remove(key)

    async def run(self) -> None:
        """Writes what is put, and keeps the directory within its bounds, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(self._write_for_ever())
            if self._directory is not None:
                group.create_task(self._sweep_for_ever(self._directory))

    async def _write_for_ever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._write_all()

    async def _write_all(self) -> None:
        while self._waiting:
            key = next(iter(self._waiting))
            item = self._waiting.pop(key)
            self._writing[key] = item
            written = False
            try:
                item.shared = await self._write(key, item)
                written = True
            finally:
                del self._writing[key]
                if written or item.dropped:
                    self._waiting_bytes -= item.held_bytes
                    item.ended.set()
                else:  # cut short: whoever closes this store may still write it
                    self._waiting = {key: item} | self._waiting
            if item.dropped:
                await self._remove(key, item.tiers)

    async def _write(self, key: EntryKey, item: _Waiting) -> bool:
        entry = item.entry
        if entry is None:
            try:
                entry = await self._codec.run(partial(encode_entry, key, item.height, item.packed), CODEC_LIMIT_S)
            except (TimeoutError, ValueError):
                self._metrics.block_store_unwritten_total.labels(item.chain).inc()
                return False
        written = False
        for tier in item.tiers:
            written = not item.dropped and await tier.write(key, item.chain, entry)
        return written and item.tiers == self._tiers

    async def _sweep_for_ever(self, directory: LocalTier) -> None:
        while True:
            try:
                await directory.sweep()
            except (TierFailed, TimeoutError) as error:
                log.warning("block_store_not_swept", extra={"reason": str(error) or type(error).__name__})
            await asyncio.sleep(SWEEP_EVERY_S)

    async def aclose(self, limit_s: float = FLUSH_LIMIT_S) -> None:
        """Writes what waits, as much of it as `limit_s` allows; the rest is counted as dropped. Nothing is taken after this."""
        self._closed = True
        try:
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
                for _ in range(WRITERS):
                    group.create_task(self._write_all())
        except TimeoutError:
            pass
        for item in self._waiting.values():
            item.ended.set()
            self._metrics.block_store_unwritten_total.labels(item.chain).inc()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._codec.close()
        for tier in self._opened:
            tier.close()

    def _publish(self) -> None:
        self._metrics.block_store_queue_bytes.set(self._waiting_bytes)
        self._metrics.block_store_queue_entries.set(len(self._waiting) + len(self._writing))
        if self._directory is not None:
            self._metrics.block_store_bytes.set(self._directory.held_bytes)
            self._metrics.block_store_entries.set(self._directory.held_entries)


class ChainBlocks:
    """The blocks of one chain. Fits the chain's `BlockStore`."""

    def __init__(self, blocks: PackedBlocks, chain_key: int, chain: str) -> None:
        self._blocks = blocks
        self._chain_key = chain_key
        self._chain = chain

    def __repr__(self) -> str:
        return f"<ChainBlocks {self._chain} of {self._blocks!r}>"

    async def get(self, block_hash: bytes) -> bytes | None:
        """As the port says."""
        return await self._blocks.read(EntryKey(self._chain_key, block_hash), self._chain)

    def put(self, block_hash: bytes, height: int, packed: bytes) -> None:
        """As the port says."""
        self._blocks.write_behind(EntryKey(self._chain_key, block_hash), self._chain, height, packed)

    async def put_through(self, block_hash: bytes, height: int, packed: bytes) -> bool:
        """As the port says."""
        return await self._blocks.write_through(EntryKey(self._chain_key, block_hash), self._chain, height, packed)

    async def drop(self, block_hash: bytes) -> None:
        """As the port says."""
        await self._blocks.drop(EntryKey(self._chain_key, block_hash), self._chain)


def open_block_store(rules: BlockStoreRules, metrics: Metrics) -> PackedBlocks:
    """The store that `rules` name; nothing is read or written yet. Raises ValueError for a URL that names no place."""
    if rules.url.startswith("file:"):
        path: str | None = directory_of(rules.url)
        objects = None
    else:
        path, objects = rules.local_path, open_objects(rules.url)
    directory = None
    if path is not None:
        evicted = metrics.block_store_evictions_total

        def count(swept: Swept) -> None:
            for reason, entries in swept.evicted.items():
                evicted.labels(reason).inc(entries)

        directory = DirectoryTier(BlockDirectory(Path(path), rules.max_bytes, rules.max_age_s, on_sweep=count))
    return PackedBlocks(metrics, directory, objects)


def directory_of(url: str) -> str:
    """The directory of a `file:` URL: `file:blocks` is in the working directory, `file:/var/x` and `file:///var/x` are not."""
    path = url.removeprefix("file:")
    if path.startswith("//"):
        path = path[2:]
        if not path.startswith("/"):
            raise ValueError("names a host: use file:DIRECTORY or file:///DIRECTORY")
    return path
