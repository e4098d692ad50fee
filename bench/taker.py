"""One process that takes tokens for one consumer, as a server does for its requests: through its rates, from the shared bucket.

python -m bench.taker URL PROCESSES        does what each line on its input says, and answers each with a line of JSON
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from app.consumers import LIMITS
from app.core.bucket import Rate
from app.metrics import Metrics
from app.store.buckets import SharedBuckets
from app.store.database import Database, open_database
from app.store.rates import BUDGET_S, Rates

AMPLE = Rate(5000.0, 10**9)
PATIENT_S = 10.0
"""What is waited for an answer where exactness is asked for, and not what becomes of it when there is no time."""


class Taker:
    """Owns its rates; all of them end with it."""

    def __init__(self, database: Database, processes: int) -> None:
        self._database = database
        self._processes = processes
        self._rates: dict[float, Rates] = {}
        self._running: list[asyncio.Task[None]] = []

    async def told(self, word: str, **given: Any) -> dict[str, Any]:
        """`at_once`: so many takes at once of a bucket that is not refilled. `paced`: so many a second, and in turn with them,
        where `beside` says so, as many bare round trips."""
        return await {"at_once": self._at_once, "paced": self._paced}[word](**given)

    async def _at_once(self, takes: int, burst: float) -> dict[str, Any]:
        rates = await self._of(Rate(0.0, burst), PATIENT_S)
        decisions = await asyncio.gather(*(rates.take("of fifty") for _ in range(takes)))
        return {"allowed": sum(each.allowed for each in decisions), "layers": _layers(decisions)}

    async def _paced(self, per_second: float, seconds: float, *, beside: bool) -> dict[str, Any]:
        rates = await self._of(AMPLE, BUDGET_S)
        takes, bare, decisions = [], [], []
        started = time.monotonic() + random.random() / per_second
        for number in range(int(per_second * seconds)):
            await asyncio.sleep(started + number / per_second - time.monotonic())
            began = time.perf_counter()
            decisions.append(await rates.take("hot"))
            takes.append(time.perf_counter() - began)
            if not beside:
                continue
            await asyncio.sleep(started + (number + 0.5) / per_second - time.monotonic())
            began = time.perf_counter()
            await self._round_trip()
            bare.append(time.perf_counter() - began)
        return {"takes": takes, "bare": bare, "layers": _layers(decisions)}

    async def _round_trip(self) -> None:
        async with self._database.at_once() as link:
            await link.execute(text("SELECT 1"))

    async def _of(self, rate: Rate, budget_s: float) -> Rates:
        known = self._rates.get(budget_s)
        if known is None:
            buckets = SharedBuckets(self._database, rate)
            known = self._rates[budget_s] = Rates(
                rate,
                buckets,
                Metrics(CollectorRegistry()),
                time.monotonic,
                replicas=self._processes,
                budget_s=budget_s,
            )
            self._running.append(asyncio.create_task(known.run()))
            await self._round_trip()
        return known

    async def aclose(self) -> None:
        """Ends every rate."""
        for each in self._running:
            each.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def _layers(decisions: list[Any]) -> dict[str, int]:
    return dict(Counter(each.layer.value for each in decisions))


async def main(url: str, processes: int) -> None:
    """Until the input ends."""
    loop = asyncio.get_running_loop()
    async with open_database(url, LIMITS) as database:
        database.ready = True
        taker = Taker(database, processes)
        _say({})
        try:
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                _say(await taker.told(**json.loads(line)))
        finally:
            await taker.aclose()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as only:
        only.run(main(sys.argv[1], int(sys.argv[2])))
