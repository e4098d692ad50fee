"""What one node does, as metrics."""

from __future__ import annotations

from app.metrics import Metrics


class Counting:
    """The `UpstreamObserver` of one node, by the names of its chain and its own."""

    def __init__(self, metrics: Metrics, chain: str, upstream: str) -> None:
        self._metrics = metrics
        self._labels = (chain, upstream)

    def on_call(self, method: str, result: str, seconds: float) -> None:
        self._metrics.upstream_requests_total.labels(*self._labels, method, result).inc()
        self._metrics.upstream_request_duration_seconds.labels(*self._labels, method).observe(seconds)

    def on_content_invalid(self, check: str) -> None:
        self._metrics.content_invalid_total.labels(*self._labels, check).inc()

    def on_pool_timeout(self) -> None:
        self._metrics.upstream_pool_timeouts_total.labels(*self._labels).inc()

    def on_batch_limit(self, size: int) -> None:
        self._metrics.upstream_batch_limit.labels(*self._labels).set(size)
