"""What busy replicas get of the units of a second of one account beside idle ones, on one PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from app.core.spending import Cost
from app.store.database import Limits, open_database
from app.store.migrating import make_ready
from app.store.spendings import SqlSpendings
from app.upstream.faults import CallFailed
from app.upstream.purse import Accounts, Purse
from app.upstream.settling import Settling
from tests.postgres import PostgresServer

REPLICAS, CALLS_AT_ONCE = 10, 16
RATE, UNITS = 500.0, 20.0
BEFORE_S, MEASURED_S = 2.0, 6.0
URL = "https://eth.example.org/v2/abcdefgh12345678"


class Replica:
    """Without chains and clients: calls that cost, and nothing else."""

    def __init__(self, treasury: SqlSpendings) -> None:
        accounts = Accounts()
        self.purse = Purse(account=accounts.of(URL, {}, RATE))
        self.settling = Settling(accounts, treasury)
        self.started: list[float] = []

    async def busy(self) -> None:
        """Call after call, until cancelled."""
        while True:
            try:
                await self.purse.turn(Cost(0.0, UNITS))
            except CallFailed as refused:
                await asyncio.sleep(min(0.5, refused.retry_after_s or 0.5))
            else:
                self.started.append(time.monotonic())


async def shares(busy: int) -> list[float]:
    """Of the rate, what each of so many busy replicas used in steady state."""
    server = PostgresServer()
    try:
        url = server.url(await server.create())
        async with AsyncExitStack() as held:
            replicas = []
            for _ in range(REPLICAS):
                database = await held.enter_async_context(open_database(url, Limits(connections=2)))
                await make_ready(database)
                replicas.append(Replica(SqlSpendings(database)))
            for replica in (*replicas, *replicas):
                await replica.settling.settle()
            tasks = [asyncio.create_task(replica.settling.run()) for replica in replicas]
            tasks += [asyncio.create_task(replica.busy()) for replica in replicas[:busy] for _ in range(CALLS_AT_ONCE)]
            await asyncio.sleep(BEFORE_S)
            since = time.monotonic()
            await asyncio.sleep(MEASURED_S)
            took_s = time.monotonic() - since
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            return [UNITS * sum(at >= since for at in each.started) / took_s / RATE for each in replicas[:busy]]
    finally:
        server.close()


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    rows = []
    for busy in (1, 2):
        parts = asyncio.run(shares(busy))
        each = " and ".join(f"{RATE * part:,.0f}" for part in parts)
        what = f"units a second of {RATE:,.0f} that {busy} busy of {REPLICAS} replicas use"
        rows.append((what, each, " and ".join(f"{part:.2f}" for part in parts)))
    return rows
