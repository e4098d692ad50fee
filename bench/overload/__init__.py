"""Offered load from half to ten times of what one process can do: goodput, latencies, refusals, probes. Takes eight minutes.

A real server over a node that takes 100 ms for each of the two calls of a fill, and then one that takes half of that; every
request is for a block of its own that is not at hand. The knee is found first, with clients who wait for their answers; then
requests come at random, from a process of its own, and wait for nobody. All of it is measured several times, and medians count.
Last, with every cold place held by a node that never answers, known answers are asked for.
"""

from __future__ import annotations


def run() -> list[tuple[str, str, str]]:
    """Rows of the table; the whole curve goes to results.md and results.svg beside this file."""
    # Here, because the processes of the load import this package as well, and need none of these.
    from bench.neighbours import undisturbed

    from . import report
    from .hung import known_answers_while_hung
    from .measuring import measure
    from .site import NEAR_MS

    curve, near = measure(), measure(NEAR_MS)
    hung, _ = undisturbed(known_answers_while_hung)
    report.write(curve, near, hung)
    return report.rows(curve, hung)
