"""The knee of one process, and what it does beyond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from bench.neighbours import undisturbed
from bench.running import prober
from bench.timing import percentile

from .load import Tally
from .site import COLD, LATENCY_MS, Site, latencies_of, receipts_of, serving

ROUNDS = 3
CLIENTS = (1, 4, 8, 12, 16, 20, 24, 32)
TIMES = (0.5, 1.0, 2.0, 5.0, 10.0)
CLOSED_S, OPEN_S = 3.0, 5.0
NEARLY_ALL = 0.95


@dataclass(frozen=True, slots=True)
class Level:
    """One point of the curve: medians over the rounds. `times` of capacity were offered. In seconds, and in a second."""

    times: float
    offered_per_s: float
    goodput_per_s: float
    served_p50_s: float
    served_p99_s: float
    refused_per_s: float
    refused_p50_s: float
    refused_p99_s: float
    livez_p99_s: float
    late_p99_s: float
    server_cpu: float
    lost: int
    """Requests without an answer, or with another than 200 or 503, in all rounds."""


@dataclass(frozen=True, slots=True)
class Closed:
    """So many clients who wait for their answers: medians over the rounds."""

    clients: int
    per_s: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Curve:
    """What one process did."""

    closed: list[Closed]
    levels: list[Level]
    scrape_worst_s: float
    """The slowest of some scrapes of /metrics while ten times of capacity was offered."""
    others: float
    """Which share of the processors others used meanwhile: the median over the runs."""

    @property
    def capacity_per_s(self) -> float:
        """The most that any number of clients got."""
        return max(point.per_s for point in self.closed)

    @property
    def knee(self) -> Closed:
        """The fewest clients who got nearly all of that: none of them waits for another, and nothing is left unused."""
        return next(point for point in self.closed if point.per_s >= NEARLY_ALL * self.capacity_per_s)


def measure(latency_ms: int = LATENCY_MS) -> Curve:
    """Takes some minutes, the more the more others do meanwhile."""
    with serving(cache_bytes=1) as site:
        site.tell_node("bench_latency", latency_ms)
        asked = (*receipts_of(1), *COLD)
        site.run_load(3.0, "--clients=16", *asked)  # connections, processes and code are warm from here on
        waited = {clients: list[Tally]() for clients in CLIENTS}
        others = []
        for _ in range(ROUNDS):
            for clients in CLIENTS:
                tally, share = undisturbed(partial(_closed, site, clients, asked))
                waited[clients].append(tally)
                others.append(share)
        closed = [_point(clients, tallies) for clients, tallies in waited.items()]
        capacity = max(point.per_s for point in closed)
        runs = {times: list[_Run]() for times in TIMES}
        for _ in range(ROUNDS):
            for times in TIMES:
                run, share = undisturbed(partial(_open, site, times * capacity, asked))
                runs[times].append(run)
                others.append(share)
        levels = [_level(times, times * capacity, of_level) for times, of_level in runs.items()]
        scrapes, _ = undisturbed(partial(_scrapes, site, TIMES[-1] * capacity, asked))
    return Curve(closed, levels, max(scrapes), median(others))


@dataclass(frozen=True, slots=True)
class _Run:
    tally: Tally
    livez: list[float]
    cpu: float


def _closed(site: Site, clients: int, asked: Sequence[str]) -> Tally:
    return site.run_load(CLOSED_S, f"--clients={clients}", "--warm-up=0.5", *asked)


def _open(site: Site, rate: float, asked: Sequence[str]) -> _Run:
    with prober(f"{site.copath.url}/livez", OPEN_S + 1, every_s=0.01) as probe:
        used = site.cpu_s
        tally = site.run_load(OPEN_S, f"--rate={rate}", "--warm-up=1", *asked)
        return _Run(tally, latencies_of(probe), (site.cpu_s - used) / (OPEN_S + 1))


def _scrapes(site: Site, rate: float, asked: Sequence[str]) -> list[float]:
    with prober(f"{site.copath.url}/metrics", OPEN_S, every_s=0.25) as probe:
        site.run_load(OPEN_S, f"--rate={rate}", *asked)
        return latencies_of(probe)


def _point(clients: int, tallies: list[Tally]) -> Closed:
    served = [tally.served for tally in tallies]
    per_s = median(tally.served_in_time / tally.seconds for tally in tallies)
    return Closed(clients, per_s, _median_of(served, 0.5), _median_of(served, 0.99))


def _level(times: float, offered_per_s: float, runs: list[_Run]) -> Level:
    tallies = [run.tally for run in runs]
    served, refused = [tally.served for tally in tallies], [tally.refused for tally in tallies]
    return Level(
        times=times,
        offered_per_s=offered_per_s,
        goodput_per_s=median(tally.served_in_time / tally.seconds for tally in tallies),
        served_p50_s=_median_of(served, 0.5),
        served_p99_s=_median_of(served, 0.99),
        refused_per_s=median(len(tally.refused) / tally.seconds for tally in tallies),
        refused_p50_s=_median_of(refused, 0.5),
        refused_p99_s=_median_of(refused, 0.99),
        livez_p99_s=_median_of([run.livez for run in runs], 0.99),
        late_p99_s=_median_of([tally.late for tally in tallies], 0.99),
        server_cpu=median(run.cpu for run in runs),
        lost=sum(sum(tally.others.values()) + tally.unsent for tally in tallies),
    )


def _median_of(rounds: list[list[float]], share: float) -> float:
    """Of the percentiles of the rounds; 0 where no round has a sample."""
    known = [percentile(samples, share) for samples in rounds if samples]
    return median(known) if known else 0.0
