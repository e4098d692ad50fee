"""A chain's counts as metrics. The parts count in plain integers; a scrape carries over what has grown since the last one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.core.budget import Priority
from app.metrics import Counter, Growing, Metrics

from .backfill import State

if TYPE_CHECKING:
    from .chain import Chain


class Figures:
    """Owned by its chain. `publish` is called by whoever answers a scrape; it asks nobody and waits for nothing."""

    def __init__(self, chain: Chain, metrics: Metrics) -> None:
        self._chain = chain
        self._metrics = metrics
        self._growing = Growing()

    def publish(self) -> None:
        """Brings the metrics up to date."""
        chain, metrics, name = self._chain, self._metrics, self._chain.name
        cache, budget = chain.cache, chain.permits.budget
        metrics.block_cache_bytes.labels(name).set(cache.size_bytes)
        metrics.block_cache_entries.labels(name).set(cache.entries)
        self._carry(metrics.block_cache_requests_total, name, {"hit": cache.hits, "miss": cache.misses})
        self._carry(metrics.block_cache_evictions_total, name, cache.evictions)
        self._carry(metrics.block_cache_admission_rejected_total, name, cache.rejected)
        for priority in Priority:
            metrics.fill_running.labels(name, priority.value).set(budget.running(priority))
            metrics.fill_waiting.labels(name, priority.value).set(budget.waiting(priority))
        flights = chain.filling.flights
        self._growing.tell(metrics.singleflight_joins_total, (name,), flights.joins)
        self._growing.tell(metrics.singleflight_handover_total, (name,), flights.handovers)
        self._growing.tell(metrics.singleflight_memo_hits_total, (name,), flights.memo_hits)
        if chain.backfill is not None:
            elsewhere = chain.backfill.state is State.ELSEWHERE  # what this process has not filled others may have
            metrics.backfill_remaining_blocks.labels(name).set(0 if elsewhere else chain.backfill.remaining)
            if chain.backfill.lowest is not None:
                metrics.backfill_lowest_height.labels(name).set(0 if elsewhere else chain.backfill.lowest)
        self._publish_lasting()
        limit = chain.load.door.limit
        metrics.admission_in_flight.labels("chain", name).set(chain.load.door.taken)
        metrics.admission_limit.labels("chain", name).set(math.inf if limit is None else limit)
        metrics.saturated.labels(name).set(chain.load.saturated)
        metrics.saturation_open_seconds.labels(name).set(chain.load.open_s)

    def _publish_lasting(self) -> None:
        chain, metrics, name = self._chain, self._metrics, self._chain.name
        keeping, sharing, shared_head = chain.keeping, chain.sharing, chain.shared_head
        if keeping is not None:
            metrics.ledger_up.labels(name).set(keeping.ledger_up)
            metrics.ledger_waiting_blocks.labels(name).set(keeping.waiting)
            self._growing.tell(metrics.ledger_dropped_total, (name,), keeping.dropped)
        if sharing is not None:
            self._growing.tell(metrics.shared_fill_waits_total, (name,), sharing.waits)
            self._growing.tell(metrics.shared_fills_received_total, (name,), sharing.received)
        if shared_head is not None:
            counts = {"made": shared_head.polled, "received": shared_head.received}
            self._carry(metrics.shared_head_polls_total, name, counts)

    def _carry(self, counter: Counter, chain: str, counts: Mapping[str, int]) -> None:
        for label, count in counts.items():
            self._growing.tell(counter, (chain, label), count)
