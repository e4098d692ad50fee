"""Medians of repeated runs, and percentiles of samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median


def median_s(work: Callable[[], object], runs: int = 7) -> float:
    """The median processor time of `work`, after one run that does not count: a busy machine gives the same ratios."""
    work()
    times = []
    for _ in range(runs):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return median(times)


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that `share` of all are not above. Requires a sample and 0 < share <= 1."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


def ms(seconds: float) -> str:
    """Milliseconds, short."""
    return f"{seconds * 1000:.2f} ms"
