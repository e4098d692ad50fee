"""Cold fills of blocks of 11,000 transactions, 35 MB of JSON each, eight at once: event-loop lag and probes meanwhile.

Eight chains read the same block. The floor of the lag is the same loop idle.
"""

from __future__ import annotations

import asyncio
import time

from app.core.blocks import BlockRef
from app.house import House

from .fills import CHAINS, lag_during, serving, settings, stopped
from .made import HEIGHT
from .neighbours import undisturbed
from .running import node, prober
from .timing import ms, percentile

TRANSACTIONS = 11_000
PROCESSES = 2


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    return undisturbed(lambda: asyncio.run(measure()))[0]


async def measure() -> list[tuple[str, str, str]]:
    """Lag of the loop, latency of a probe, and how long it takes."""
    with node(f"made-{TRANSACTIONS}") as port:
        async with serving(settings(port, PROCESSES)) as (house, base):
            idle = await lag_during(asyncio.sleep(1.0))
            with prober(f"{base}/livez", 600.0) as probe:
                started = time.perf_counter()
                lags = await lag_during(fill_all(house))
                elapsed = time.perf_counter() - started
                latencies = await asyncio.to_thread(stopped, probe)
    idle_p99, p99 = percentile(idle, 0.99), percentile(lags, 0.99)
    return [
        (f"{CHAINS} fills, {PROCESSES} builder processes", f"{elapsed:.1f} s", "-"),
        (f"loop lag p99 during fills (idle {ms(idle_p99)})", ms(p99), f"{p99 / idle_p99:.1f}"),
        ("loop lag, the longest", ms(max(lags)), "-"),
        ("/livez p99 during fills", ms(percentile(latencies, 0.99)), "-"),
        ("/livez, the slowest", ms(max(latencies)), "-"),
    ]


async def fill_all(house: House) -> None:
    """One cold fill of every chain at once."""
    found = await asyncio.gather(*(chain.block(BlockRef(height=HEIGHT)) for chain in house.chains.values()))
    assert all(each.block.transaction_count == TRANSACTIONS for each in found)
