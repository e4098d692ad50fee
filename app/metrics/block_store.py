"""The collectors of the block store, a part of `Metrics`."""

from __future__ import annotations

from collections.abc import Sequence

from app.metrics.labels import (
    BLOCK_STORE_EVICTION_REASONS,
    BLOCK_STORE_READS,
    BLOCK_STORE_SIDES,
    BLOCK_STORE_TIERS,
    BLOCK_STORE_WRITES,
)
from app.metrics.making import Maker, seed

_READ = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class BlockStoreMetrics:
    """Reads, writes, and what is held. A tier is the directory or the object store; what waits to be written is the queue."""

    def _add_block_store(self, make: Maker) -> None:
        self.block_store_reads_total = make.counter(
            "block_store_reads_total", "Look-ups of stored blocks, tier by tier.", "chain", "tier", "result"
        )
        self.block_store_read_duration_seconds = make.histogram(
            "block_store_read_duration_seconds", "Look-ups of stored blocks in one tier.", _READ, "tier"
        )
        self.block_store_disproved_total = make.counter(
            "block_store_disproved_total", "Stored blocks that met their checksum and not their header.", "chain"
        )
        self.block_store_writes_total = make.counter(
            "block_store_writes_total", "Blocks written behind, tier by tier.", "chain", "tier", "result"
        )
        self.block_store_written_bytes_total = make.counter(
            "block_store_written_bytes_total", "Bytes of blocks written, compressed.", "chain", "tier"
        )
        self.block_store_unwritten_total = make.counter(
            "block_store_unwritten_total", "Blocks that no tier was given, because too much waited.", "chain"
        )
        self.block_store_queue_entries = make.gauge("block_store_queue_entries", "Blocks waiting to be written.")
        self.block_store_queue_bytes = make.gauge("block_store_queue_bytes", "Size of the blocks waiting.")
        self.block_store_entries = make.gauge("block_store_entries", "Blocks in the directory.")
        self.block_store_bytes = make.gauge("block_store_bytes", "Size of the blocks in the directory.")
        self.block_store_evictions_total = make.counter(
            "block_store_evictions_total", "Blocks removed from the directory.", "reason"
        )
        self.block_store_up = make.gauge(
            "block_store_up", "1 while a tier can be read, or written; 0 also where there is none.", "tier", "side"
        )
        seed(self.block_store_evictions_total, BLOCK_STORE_EVICTION_REASONS)
        seed(self.block_store_up, BLOCK_STORE_TIERS, BLOCK_STORE_SIDES)

    def _seed_block_store(self, chains: Sequence[str]) -> None:
        seed(self.block_store_reads_total, chains, ("queue",), ("hit",))
        seed(self.block_store_reads_total, chains, BLOCK_STORE_TIERS, BLOCK_STORE_READS)
        seed(self.block_store_writes_total, chains, BLOCK_STORE_TIERS, BLOCK_STORE_WRITES)
        seed(self.block_store_written_bytes_total, chains, BLOCK_STORE_TIERS)
        seed(self.block_store_unwritten_total, chains)
        seed(self.block_store_disproved_total, chains)
