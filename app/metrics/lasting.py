"""The collectors of what is filled ahead, kept, and divided among replicas: a part of `Metrics`."""

from __future__ import annotations

from collections.abc import Sequence

from app.metrics.making import Maker, seed

POLLS = ("made", "received")


class LastingMetrics:
    """Backfill, the ledger, and what one replica does for all."""

    def _add_lasting(self, make: Maker) -> None:
        self.backfill_lowest_height = make.gauge(
            "backfill_lowest_height",
            "Lowest height filled ahead of requests; 0 before the first, and where another replica does it.",
            "chain",
        )
        self.backfill_remaining_blocks = make.gauge(
            "backfill_remaining_blocks",
            "Blocks of the retention window that are not filled yet; 0 where another replica does it.",
            "chain",
        )
        self.ledger_up = make.gauge("ledger_up", "1 while the ledger answers, and is that of this chain.", "chain")
        self.ledger_waiting_blocks = make.gauge("ledger_waiting_blocks", "Blocks that wait to be kept.", "chain")
        self.ledger_dropped_total = make.counter(
            "ledger_dropped_total", "Blocks that were not noted, because too much waited.", "chain"
        )
        self.shared_fill_waits_total = make.counter(
            "shared_fill_waits_total", "Fills that waited for the one of another replica.", "chain"
        )
        self.shared_fills_received_total = make.counter(
            "shared_fills_received_total", "Blocks taken from the fill of another replica.", "chain"
        )
        self.shared_head_polls_total = make.counter(
            "shared_head_polls_total",
            "Polls of where the chain stands, made for all replicas or received.",
            "chain",
            "result",
        )

    def _seed_lasting(self, chains: Sequence[str]) -> None:
        for per_chain in (
            self.backfill_lowest_height,
            self.backfill_remaining_blocks,
            self.ledger_up,
            self.ledger_waiting_blocks,
            self.ledger_dropped_total,
            self.shared_fill_waits_total,
            self.shared_fills_received_total,
        ):
            seed(per_chain, chains)
        seed(self.shared_head_polls_total, chains, POLLS)
