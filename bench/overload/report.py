"""What was measured, as a table, a page and a picture."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from bench.timing import ms, percentile

from .hung import COLD_PER_S, PLACES, SECONDS, WARM_PER_S, Hung
from .load import Tally
from .measuring import ROUNDS, Curve, Level
from .plot import Chart, Line, picture
from .site import LATENCY_MS, NEAR_MS, TRANSACTIONS

HERE = Path(__file__).parent
GOODPUT_SHARE, TIMES_UNLOADED, REFUSAL_S, PROBE_S = 0.95, 2.0, 0.005, 0.05
"""The goals: of capacity at ten times the load; for admitted requests, of their p99 unloaded; for p99 of refusals and probes."""

_PAGE = """\
# Beyond the knee

Made by `make bench ARGS=overload`. The figures belong to the machine, the shape of the curve does not.

* {machine}. Server, builders, node, load and probes share the cores.
* A node that takes {latency} ms for each of the two calls of a fill. Blocks of {transactions} transactions; none is at hand.
* The limits are the defaults: 64 cold requests in flight, 32 for the one chain, of which 16 fill at once.
* Medians of {rounds} rounds. Latencies are the client's, from the write of a request to the last byte of its answer.

## The knee

Clients who ask again as soon as they are answered; nobody is refused:

{knee_table}

Capacity is {capacity:.0f} cold proofs/s. {knee} clients get nearly all of it: *unloaded* is their p99, {unloaded}.

## Beyond

Requests that come at random and wait for nobody:

{table}

*late*: how much later than planned the load was sent, the error of the instrument. *server CPU*: of one core, the main process
alone.

![goodput and latencies over the offered load](results.svg)

{goals}

## With a node that is near

A node that takes {near} ms: capacity is {near_capacity:.0f} cold proofs/s, the p99 of {near_knee} clients {near_unloaded}. Beyond
that the cores run out, because the load, the node and the builders are on them too:

{near_table}

## Known answers while every cold place is hung

A node that never answers holds all {places} cold places. Meanwhile, for {seconds:.0f} s:

{hung_table}
"""


def rows(curve: Curve, hung: Hung) -> list[tuple[str, str, str]]:
    """For the terminal: what, figure, ratio to capacity or to unloaded."""
    most, knee = curve.levels[-1], curve.knee
    goodput, known = most.goodput_per_s, len(hung.warm.served) / SECONDS
    return [
        (f"floor: cold proofs, {knee.clients} clients who wait", f"{curve.capacity_per_s:.0f}/s", "1"),
        ("floor: their p99", ms(knee.p99_s), "1"),
        (f"goodput, {most.times:g}x offered", f"{goodput:.0f}/s", f"{goodput / curve.capacity_per_s:.2f}"),
        ("p99 of the admitted", ms(most.served_p99_s), f"{most.served_p99_s / knee.p99_s:.2f}"),
        (f"p99 of refusals, {most.refused_per_s:.0f}/s", ms(most.refused_p99_s), "-"),
        ("p99 of /livez", ms(most.livez_p99_s), "-"),
        (f"known answers at {known:.0f}/s, every cold place hung", _verdict(hung.all_served), "-"),
    ]


def write(curve: Curve, near: Curve, hung: Hung) -> None:
    """results.md and results.svg, beside this file."""
    page = _PAGE.format(
        machine=_machine(curve),
        latency=LATENCY_MS,
        transactions=TRANSACTIONS,
        rounds=ROUNDS,
        knee_table="\n".join(_knee_table(curve)),
        capacity=curve.capacity_per_s,
        knee=curve.knee.clients,
        unloaded=ms(curve.knee.p99_s),
        table="\n".join(_table(curve)),
        goals="\n".join(_goals(curve, hung)),
        near=NEAR_MS,
        near_capacity=near.capacity_per_s,
        near_knee=near.knee.clients,
        near_unloaded=ms(near.knee.p99_s),
        near_table="\n".join(_table(near)),
        places=PLACES,
        seconds=SECONDS,
        hung_table="\n".join(_hung_table(hung)),
    )
    (HERE / "results.md").write_text(page)
    (HERE / "results.svg").write_text(picture([_answers(curve), _latencies(curve)]))


def _machine(curve: Curve) -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    shared = f"of which others used {curve.others:.0%} meanwhile"
    return f"{cores} cores, {shared}; Python {platform.python_version()}"


def _knee_table(curve: Curve) -> Iterator[str]:
    yield "| clients | cold proofs/s | p50 | p99 |"
    yield "|---|---|---|---|"
    for point in curve.closed:
        mark = ", the knee" if point is curve.knee else ""
        yield f"| {point.clients}{mark} | {point.per_s:.0f} | {ms(point.p50_s)} | {ms(point.p99_s)} |"


def _table(curve: Curve) -> Iterator[str]:
    yield "| offered | goodput | of capacity | p50 | p99 | refused | p50 | p99 | /livez p99 | late p99 | server CPU |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for level in curve.levels:
        refused = ["-", "-", "-"]
        if _refuses(level):
            refused = [f"{level.refused_per_s:.0f}/s", ms(level.refused_p50_s), ms(level.refused_p99_s)]
        cells = [
            f"{level.times:g}x, {level.offered_per_s:.0f}/s",
            f"{level.goodput_per_s:.0f}/s",
            f"{level.goodput_per_s / curve.capacity_per_s:.0%}",
            ms(level.served_p50_s),
            ms(level.served_p99_s),
            *refused,
            ms(level.livez_p99_s),
            ms(level.late_p99_s),
            f"{level.server_cpu:.2f}",
        ]
        yield "| " + " | ".join(cells) + " |"


def _goals(curve: Curve, hung: Hung) -> Iterator[str]:
    most = curve.levels[-1]
    goodput, slower = most.goodput_per_s / curve.capacity_per_s, most.served_p99_s / curve.knee.p99_s
    livez_s = max(level.livez_p99_s for level in curve.levels)
    lost = sum(level.lost for level in curve.levels)
    yield "| goal | measured | |"
    yield "|---|---|---|"
    for goal, measured, met in (
        ("goodput at ten times >= 95 % of capacity", f"{goodput:.0%}", goodput >= GOODPUT_SHARE),
        ("p99 of the admitted there <= twice unloaded", f"{slower:.2f} times", slower <= TIMES_UNLOADED),
        ("p99 of refusals there < 5 ms", ms(most.refused_p99_s), most.refused_p99_s < REFUSAL_S),
        ("p99 of /livez at any load < 50 ms", ms(livez_s), livez_s < PROBE_S),
        ("slowest scrape of /metrics there < 50 ms", ms(curve.scrape_worst_s), curve.scrape_worst_s < PROBE_S),
        ("every request is answered, with 200 or 503", f"{lost} were not", lost == 0),
        (f"{WARM_PER_S} known answers/s, every cold place hung", _verdict(hung.all_served), hung.all_served),
    ):
        yield f"| {goal} | {measured} | {'met' if met else 'missed'} |"


def _hung_table(hung: Hung) -> Iterator[str]:
    yield "| asked | answered | p50 | p99 |"
    yield "|---|---|---|---|"
    for asked, tally, right, wanted in (
        (f"{WARM_PER_S} known proofs/s", hung.warm, hung.warm.served, "200"),
        (f"{COLD_PER_S} cold proofs/s", hung.cold, hung.cold.refused, "503"),
    ):
        yield f"| {asked} | {len(right)} of {_count(tally)} with {wanted} | {_two(right)} |"
    for path, samples in (("/health", hung.health), ("/livez", hung.livez)):
        yield f"| `{path}` | {len(samples)} of {len(samples)} with 200 | {_two(samples)} |"


def _answers(curve: Curve) -> Chart:
    capacity, levels = curve.capacity_per_s, curve.levels
    return Chart(
        "Goodput, of capacity",
        f"offered, times capacity ({capacity:.0f}/s)",
        [f"{level.times:g}" for level in levels],
        [(share / 4, f"{share * 25} %") for share in range(6)],
        [
            Line("goodput", "#1a7f37", [level.goodput_per_s / capacity for level in levels]),
            Line("goal at ten times", "#1a7f37", [GOODPUT_SHARE] * len(levels), dashed=True),
        ],
    )


def _latencies(curve: Curve) -> Chart:
    levels = curve.levels
    refused = [level.refused_p99_s if _refuses(level) else None for level in levels]
    return Chart(
        "Latencies (p99), as the client sees them",
        "offered, times capacity",
        [f"{level.times:g}" for level in levels],
        [(0.001, "1 ms"), (0.01, "10 ms"), (0.1, "100 ms"), (1.0, "1 s")],
        [
            Line("admitted", "#0969da", [level.served_p99_s for level in levels]),
            Line("twice unloaded", "#0969da", [TIMES_UNLOADED * curve.knee.p99_s] * len(levels), dashed=True),
            Line("refused", "#bc4c00", refused),
            Line("goal of refusals", "#bc4c00", [REFUSAL_S] * len(levels), dashed=True),
            Line("/livez", "#8250df", [level.livez_p99_s for level in levels]),
            Line("goal of /livez", "#8250df", [PROBE_S] * len(levels), dashed=True),
        ],
        logarithmic=True,
    )


def _refuses(level: Level) -> bool:
    return level.refused_per_s >= 1


def _verdict(all_served: bool) -> str:
    return "all with 200" if all_served else "not all with 200"


def _count(tally: Tally) -> int:
    return len(tally.served) + len(tally.refused) + sum(tally.others.values()) + tally.unsent


def _two(samples: list[float]) -> str:
    return f"{ms(percentile(samples, 0.5))} | {ms(percentile(samples, 0.99))}" if samples else "- | -"
