"""The block store as one chain sees it: blocks are put there behind the requests, and checked again when they are read."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from cachetools import LRUCache

from app.core.deadlines import deadline
from app.core.errors import ContentInvalid, ProofError
from app.core.provable_block import ProvableBlock, Verdict
from app.core.reopening import reopens

from .cache import BlockCache
from .flight import Flights, Stage
from .ports import BlockStore, Builder, Clock

log = logging.getLogger(__name__)

PACKED_HERE_BYTES = 1 << 20
"""Packing a larger block is left to a thread."""


class KeptBlocks:
    """Owned by whoever keeps what outlives the process. Reads land in the chain's cache."""

    def __init__(
        self,
        chain: str,
        store: BlockStore,
        builder: Builder,
        cache: BlockCache[ProvableBlock],
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        *,
        chain_id: Callable[[], int | None],
        anchored: bool,
    ) -> None:
        """`chain_id` tells which chain the blocks must be of, which no header says; `anchored`: they must have usc leaves."""
        self._chain = chain
        self._store = store
        self._builder = builder
        self._cache = cache
        self._chain_id = chain_id
        self._anchored = anchored
        self._reads: Flights[bytes, ProvableBlock | None] = Flights(clock, first_stage=Stage.RESOLVING, jitter=jitter)
        self._stored: LRUCache[bytes, bool] = LRUCache(4096)  # put, or read, by this process

    def __repr__(self) -> str:
        return f"<KeptBlocks {self._chain} {self._store!r}>"

    async def get(self, block_hash: bytes) -> ProvableBlock | None:
        """The block that is kept under this hash, checked again and now in memory; None when there is none that is worth
        anything. Read once for all who ask meanwhile."""
        return await self._reads.get(
            block_hash, lambda _: self._read(block_hash), land=self._into_memory, deadline=deadline.get()
        )

    async def put(self, block: ProvableBlock) -> None:
        """Takes the block for writing, if it was not put before and can be checked again when it is read."""
        if block.block_hash not in self._stored and reopens(block):
            packed = await _packed(block)
            self._stored[block.block_hash] = True
            self._store.put(block.block_hash, block.height, packed)

    async def put_through(self, block: ProvableBlock) -> bool:
        """Writes the block. Whether others who share the store can read it from now on."""
        if not reopens(block):
            return False
        self._stored[block.block_hash] = True
        return await self._store.put_through(block.block_hash, block.height, await _packed(block))

    async def aclose(self) -> None:
        """Ends the reads under way."""
        await self._reads.aclose()

    def _into_memory(self, block: ProvableBlock | None) -> None:
        if block is not None:
            self._cache.land(block)

    async def _read(self, block_hash: bytes) -> ProvableBlock | None:
        packed = await self._store.get(block_hash)
        if packed is None:
            self._stored.pop(block_hash, None)
            return None
        try:
            block = await self._builder.reopen(packed, block_hash)
        except ContentInvalid as error:
            log.warning("kept_block_dropped", extra={"chain": self._chain, "check": error.check})
            self._stored.pop(block_hash, None)
            await self._store.drop(block_hash)
            return None
        except ProofError:  # no builder to be had: the block is as good as absent
            return None
        if not self._serves(block):
            self._stored.pop(block_hash, None)  # what is fetched instead takes its place
            return None
        self._stored[block_hash] = True
        return block

    def _serves(self, block: ProvableBlock) -> bool:
        """Whether it is what this chain needs. It may have been put under another configuration."""
        wanted = self._chain_id()
        if wanted is not None and block.chain_id != wanted:
            return False
        proven = block.transactions_verdict is block.receipts_verdict is Verdict.PROVEN
        return not (self._anchored and proven and block.leaves_verdict is Verdict.UNAVAILABLE)


async def _packed(block: ProvableBlock) -> bytes:
    return await asyncio.to_thread(block.pack) if block.size_bytes > PACKED_HERE_BYTES else block.pack()
