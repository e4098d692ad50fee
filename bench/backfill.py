"""Backfill of 2,000 blocks while cold requests arrive: their latency beside that without backfill, fetches, and memory.

The floor is the same server with the same requests and no backfill. Every block is a recorded one of 19 transactions at another
height; the requests are for blocks below the window of the backfill. Node and server are processes of their own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.acceptance.server import Copath, chain, running_copath

from .overload.load import Load
from .running import node
from .timing import ms, percentile

NAME, HEIGHT, CHAIN_ID = "mainnet_14764013", 14_764_013, 1
BLOCKS = 2000
LATENCY_MS = 10.0
RATE = 20.0
MOST_REQUESTS = 4000
BUDGET_BYTES = 128 * 2**20
"""Three quarters of which are a little more than the blocks take."""


@dataclass(slots=True)
class Run:
    """What one run came to. Seconds and bytes."""

    served: list[float] = field(default_factory=list)
    not_served: int = 0
    idle_bytes: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0
    blocks: int = 0
    fills: int = 0
    fetches: int = 0


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    beside = measure(None)
    without = measure(beside.seconds)
    rows = []
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        floor, with_it = percentile(without.served, share), percentile(beside.served, share)
        rows.append((f"floor: cold GET {name} without backfill", ms(floor), "1"))
        rows.append((f"cold GET {name} beside backfill", ms(with_it), f"{with_it / floor:.2f}"))
    grown = beside.peak_bytes - without.idle_bytes
    rows += [
        (f"requests served and not, at {RATE:g}/s", f"{len(beside.served)}, {beside.not_served}", "-"),
        (f"backfill of {BLOCKS} blocks beside them", f"{BLOCKS / beside.seconds:.0f}/s", "-"),
        ("fills of each block", f"{beside.fills} of {beside.blocks}", f"{beside.fills / beside.blocks:.2f}"),
        ("fetches of each block", f"{beside.fetches} of {beside.blocks}", f"{beside.fetches / beside.blocks:.2f}"),
        ("memory of all processes above idle", f"{grown / 2**20:.0f} MiB", f"{grown / BUDGET_BYTES:.2f} of the budget"),
    ]
    return rows


def measure(seconds: float | None) -> Run:
    """One server, asked for blocks below the window of its backfill: for so long without one, or until the backfill is done."""
    cache = {
        "merkle_backfill_enabled": seconds is None,
        "merkle_retention_blocks": BLOCKS,
        "merkle_max_bytes": BUDGET_BYTES,
    }
    with node(NAME, blocks=BLOCKS + MOST_REQUESTS, latency_ms=LATENCY_MS) as port:
        chosen = chain(1, "bench", CHAIN_ID, f"http://127.0.0.1:{port}", cache=cache)
        with running_copath(chosen, build={"processes": "auto"}) as copath, memory(copath) as sizes:
            done = asyncio.run(load(copath, seconds))
            done.idle_bytes, done.peak_bytes = sizes[0], max(sizes)
            done.fills = int(copath.metric("copath_fill_total", result="ok"))
            done.fetches = int(copath.metric("copath_upstream_requests_total", method="eth_getBlockReceipts"))
            return done


async def load(copath: Copath, seconds: float | None) -> Run:
    """Cold requests, each for another block."""
    heights = range(HEIGHT - BLOCKS, HEIGHT - BLOCKS - MOST_REQUESTS, -1)
    paths = iter([f"/api/v1/proofs/bench/blocks/{height}/transactions/0" for height in heights])
    requests = Load(copath.port, MOST_REQUESTS / RATE if seconds is None else seconds, 0.0, paths)
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(requests.open_loop(RATE))
        if seconds is None:
            await filled(copath)
            asking.cancel()
    took, told = time.monotonic() - began, requests.tally
    not_served = len(told.refused) + sum(told.others.values()) + told.unsent
    return Run(told.served, not_served, seconds=took, blocks=len(told.served) + (BLOCKS if seconds is None else 0))


async def filled(copath: Copath) -> None:
    """Returns once nothing is left to backfill."""
    while True:
        listed = await asyncio.to_thread(copath.get, "/api/v1/chains/bench")
        if listed.json["backfill"]["state"] == "caught up":
            return
        await asyncio.sleep(0.25)


@contextmanager
def memory(copath: Copath) -> Iterator[list[int]]:
    """Resident bytes of the server and its processes, again and again; the first is before anything was asked."""
    sizes = [resident_bytes(copath.process.pid)]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.1):
            sizes.append(resident_bytes(copath.process.pid))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield sizes
    finally:
        ended.set()
        sampler.join()


def resident_bytes(pid: int) -> int:
    """Of a process and all below it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has just ended
        return 0
    own = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))
    return own + sum(resident_bytes(int(child)) for child in children)
