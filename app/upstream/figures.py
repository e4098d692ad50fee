"""The figures of one chain's nodes as metrics, brought up to date when somebody reads them."""

from __future__ import annotations

from app.core.purpose import Purpose
from app.core.routing import RouteKind
from app.metrics import Growing, Metrics

from .failover import Failover
from .listing import lag_of


class UpstreamFigures:
    """Owned by whoever owns the nodes. `publish` asks nobody and waits for nothing."""

    def __init__(self, chain: str, upstream: Failover, metrics: Metrics) -> None:
        self._chain = chain
        self._upstream = upstream
        self._metrics = metrics
        self._growing = Growing()

    def publish(self) -> None:
        """Brings the metrics up to date."""
        metrics, crew = self._metrics, self._upstream.crew
        now, newest = crew.patience.now(), self._upstream.head
        for node in self._upstream.nodes:
            state, labels = node.observed(now), (self._chain, node.name)
            metrics.upstream_up.labels(*labels).set(node.answers(now))
            if state.head is not None:
                metrics.upstream_head_block.labels(*labels).set(state.head)
                metrics.upstream_head_age_seconds.labels(*labels).set(now - state.moved_at)
                metrics.upstream_lag_blocks.labels(*labels).set(lag_of(state.head, newest) or 0)
            metrics.upstream_breaker_state.labels(*labels).set(state.breaker_state(now).value)
            metrics.upstream_cooldown_seconds.labels(*labels).set(max(0.0, (state.cooling_until or 0.0) - now))
            metrics.upstream_budget_used_ratio.labels(*labels).set(node.purse.spent_share)
            if node.subscription is not None:
                metrics.upstream_subscription_live.labels(*labels).set(node.announces(now))
                self._growing.tell(metrics.upstream_announcements_total, labels, node.subscription.announcements)
                self._growing.tell(metrics.upstream_connections_total, labels, node.subscription.line.connections)
            for purpose in Purpose:
                self._growing.tell(metrics.upstream_units_total, (*labels, purpose.value), node.purse.spent[purpose])
        for kind in RouteKind:
            self._growing.tell(metrics.upstream_route_total, (self._chain, kind.value), crew.routes[kind])
        self._growing.tell(metrics.retry_budget_exhausted_total, (self._chain,), crew.budget.refused)
        for result, count in self._upstream.hedging.outcomes.items():
            self._growing.tell(metrics.hedges_total, (self._chain, result), count)
