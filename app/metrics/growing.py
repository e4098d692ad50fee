"""Counts that somebody keeps as plain numbers, carried over to counters when a scrape asks."""

from __future__ import annotations

from prometheus_client import Counter


class Growing:
    """What was carried over so far, by counter and labels."""

    def __init__(self) -> None:
        self._told: dict[tuple[object, ...], float] = {}

    def tell(self, counter: Counter, labels: tuple[str, ...], count: float) -> None:
        """Adds what `count` has grown by since the last time."""
        key = (counter, labels)
        grown = count - self._told.get(key, 0)
        if grown > 0:
            counter.labels(*labels).inc(grown)
            self._told[key] = count
