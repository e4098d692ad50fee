"""How collectors come to be: registered under their full name, with series that stand at 0 before anything happens."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase


class Maker:
    """Makes the collectors of one registry, from a name without the prefix, a text, and the names of labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"copath_{name}", text, labels, registry=self._registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"copath_{name}", text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"copath_{name}", text, labels, registry=self._registry, buckets=buckets)


def seed(metric: MetricWrapperBase, *values: Sequence[str]) -> None:
    """Create the children of every combination of label values, at 0."""
    combinations: list[tuple[str, ...]] = [()]
    for choices in values:
        combinations = [(*head, choice) for head in combinations for choice in choices]
    for combination in combinations:
        metric.labels(*combination)
