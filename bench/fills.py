"""Cold fills of a 301-transaction block, eight at a time: event-loop lag and probe latency meanwhile, and fills a second.

Eight chains read the same block, so each has it cold. The floor of the lag is the same loop idle; the floor of the rate is one
build in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator
from functools import partial

import uvicorn

from app.asgi import create_app
from app.core.block_building import build
from app.core.blocks import BlockRef
from app.core.provable_block import BuildRequest
from app.house import House, open_house
from app.settings import Settings
from tests import corpus_files

from .neighbours import undisturbed
from .running import node, prober
from .timing import median_s, ms, percentile

NAME, HEIGHT = "mainnet_22869878", 22869878
CHAINS = 8
ROUNDS = 12


def settings(port: int, processes: int | str) -> Settings:
    """Eight chains over one node, whose caches hold nothing: every request is cold."""
    return Settings.model_validate(
        {
            "bind_port": 0,
            "build": {"processes": processes},
            "chains": [
                {
                    "chain_key": key,
                    "name": f"chain-{key}",
                    "chain_id": 1,
                    "eth_rpc_url": f"http://127.0.0.1:{port}/{key}",
                    "cache": {"merkle_max_bytes": 1, "merkle_backfill_enabled": False},
                }
                for key in range(1, CHAINS + 1)
            ],
        }
    )


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    record = corpus_files.recorded("full", NAME)
    request = BuildRequest(
        "ethereum",
        1,
        False,
        HEIGHT,
        None,
        json.dumps(record["block"]).encode(),
        json.dumps(record["receipts"]).encode(),
    )
    build_s = median_s(lambda: build(request))
    rows = [("floor of the rate: one build in process", f"{1 / build_s:.0f}/s", "1")]
    for processes in (1, 2, 0):
        rows += undisturbed(partial(_run, processes, build_s))[0]
    return rows


def _run(processes: int, build_s: float) -> list[tuple[str, str, str]]:
    return asyncio.run(measure(processes, build_s))


async def measure(processes: int, build_s: float) -> list[tuple[str, str, str]]:
    """Lag, probe latency and rate with so many builder processes."""
    with node(NAME) as port:
        async with serving(settings(port, processes)) as (house, base):
            await asyncio.gather(*(chain.block(BlockRef(height=HEIGHT)) for chain in house.chains.values()))
            idle = await lag_during(asyncio.sleep(1.0))
            with prober(f"{base}/livez", 60.0) as probe:
                started = time.perf_counter()
                lags = await lag_during(fill_all(house))
                elapsed = time.perf_counter() - started
                latencies = await asyncio.to_thread(stopped, probe)
    fills_per_s = CHAINS * ROUNDS / elapsed
    who = f"{processes} builder processes" if processes else "no builder process"
    idle_p99, p99 = percentile(idle, 0.99), percentile(lags, 0.99)
    rows = [
        (f"fills, {who}", f"{fills_per_s:.0f}/s", f"{fills_per_s * build_s:.2f}"),
        (f"loop lag p99 during fills, {who} (idle {ms(idle_p99)})", ms(p99), f"{p99 / idle_p99:.1f}"),
    ]
    if latencies:
        rows.append((f"/livez p99 during fills, {who}", ms(percentile(latencies, 0.99)), "-"))
    return rows


async def fill_all(house: House) -> None:
    """`ROUNDS` times eight cold fills at once."""
    for _ in range(ROUNDS):
        await asyncio.gather(*(chain.block(BlockRef(height=HEIGHT)) for chain in house.chains.values()))


async def lag_during(work: object) -> list[float]:
    """How late a timer of 2 ms fires while `work` runs."""
    samples: list[float] = []

    async def sample() -> None:
        while True:
            due = time.perf_counter() + 0.002
            await asyncio.sleep(0.002)
            samples.append(max(0.0, time.perf_counter() - due))

    sampler = asyncio.ensure_future(sample())
    try:
        await work  # type: ignore[misc]
    finally:
        sampler.cancel()
    return samples


def stopped(probe: subprocess.Popen[str]) -> list[float]:
    """Ends the prober early and reads what it has, if it has anything."""
    probe.terminate()
    output, _ = probe.communicate()
    with contextlib.suppress(ValueError):
        return list(json.loads(output))
    return []


@contextlib.asynccontextmanager
async def serving(chosen: Settings) -> AsyncIterator[tuple[House, str]]:
    """The whole application behind a socket, in this loop."""
    server = uvicorn.Server(
        uvicorn.Config(create_app(chosen, open_house), host="127.0.0.1", port=0, log_config=None, lifespan="on")
    )
    task = asyncio.ensure_future(server._serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.02)
    try:
        yield server.lifespan.state["house"], f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
