"""Several processes and their rates on one real PostgreSQL: clocks that differ, rows that are locked, lines that freeze."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import make_url, text

from app.consumers import LIMITS as OF_A_SERVER
from app.core import bucket
from app.core.bucket import LONGEST_WAIT_S, Decision, Layer, Rate
from app.metrics import Metrics
from app.store.buckets import SharedBuckets
from app.store.database import Limits, open_database
from app.store.migrating import make_ready
from app.store.rates import Rates
from tests.postgres import PostgresServer
from tests.store.line import Line

LIMITS = Limits(call_s=2.0, connections=4, overflow=4)
PATIENT_S = 5.0
"""What a busy machine may take for an answer, where a test is not about that."""


@asynccontextmanager
async def process(
    url: str, rate: Rate, *, skew_s: float = 0.0, budget_s: float = PATIENT_S, beat_s: float = 0.05
) -> AsyncIterator[Rates]:
    def clock() -> float:
        return time.monotonic() + skew_s

    async with open_database(url, LIMITS) as database:
        await make_ready(database)
        metrics = Metrics(CollectorRegistry())
        rates = Rates(rate, SharedBuckets(database, rate), metrics, clock, budget_s=budget_s, beat_s=beat_s)
        running = asyncio.create_task(rates.run())
        await asyncio.sleep(0)
        try:
            yield rates
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def taken(rates: Rates, times: int, consumer: str = "hot") -> list[Decision]:
    """So many requests, a few at a time."""
    decisions: list[Decision] = []
    for _ in range(times // 10):
        decisions += await asyncio.gather(*(rates.take(consumer) for _ in range(10)))
    return decisions


async def until(decided: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if decided():
                return
            await asyncio.sleep(0.01)


async def test_R1_R2_processes_whose_clocks_differ_allow_exactly_the_capacity(postgres: str) -> None:
    rate = Rate(0.0, 10)
    async with (
        process(postgres, rate, skew_s=-10.0) as behind,
        process(postgres, rate) as right,
        process(postgres, rate, skew_s=10.0) as ahead,
    ):
        decisions = await asyncio.gather(*(taken(each, 100) for each in (behind, right, ahead)))
    allowed = [decision for each in decisions for decision in each if decision.allowed]
    assert len(allowed) == 10
    assert {each.layer for each in allowed} == {Layer.SHARED}


async def test_R3_R11_hot_consumers_of_three_processes_are_allowed_no_more_than_there_was(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "HOT_PER_SECOND", 5)  # on a busy machine nobody would be
    rate, began = Rate(100.0, 1000), time.monotonic()
    async with process(postgres, rate) as one, process(postgres, rate) as two, process(postgres, rate) as three:
        decisions = await asyncio.gather(*(taken(each, 600) for each in (one, two, three)))
        elapsed_s = time.monotonic() - began
    allowed = [decision for each in decisions for decision in each if decision.allowed]
    assert len(allowed) <= rate.burst + rate.per_second * elapsed_s
    assert Layer.LOCAL in {each.layer for each in allowed}, "nobody took a lease"


async def test_R4_an_empty_bucket_that_is_never_refilled_is_denied_with_a_finite_wait(postgres: str) -> None:
    async with process(postgres, Rate(0.0, 1)) as rates:
        assert (await rates.take("a")).allowed
        assert (await rates.take("a")).wait_s == pytest.approx(LONGEST_WAIT_S, abs=60)


async def test_R12_a_row_that_somebody_else_locks_denies_its_consumer_alone(postgres: str) -> None:
    async with process(postgres, Rate(1.0, 50), budget_s=0.75) as rates, open_database(postgres) as other:
        await rates.take("noisy")
        await rates.take("quiet")
        other.ready = True
        async with other.writing() as link:
            await link.execute(text("SELECT * FROM consumer_buckets WHERE consumer = 'noisy' FOR UPDATE"))
            waiting = asyncio.create_task(rates.take("noisy"))
            await asyncio.sleep(0)
            assert (await rates.take("quiet")).layer is Layer.SHARED
            denied = await waiting
            assert (denied.allowed, denied.layer) == (False, Layer.LOCAL)
            assert not (await rates.take("noisy")).allowed
            assert not rates.reliance.broken
        await until(lambda: not rates._asking)
        assert (await rates.take("noisy")).allowed


@pytest.mark.parametrize("mode", ["SHARE", "EXCLUSIVE", "ACCESS EXCLUSIVE"])
async def test_R7_a_table_that_is_locked_as_a_whole_denies_nobody(postgres: str, mode: str) -> None:
    rate = Rate(1.0, 100)
    async with process(postgres, rate, budget_s=0.3) as rates, open_database(postgres, LIMITS) as other:
        other.ready = True
        for consumer in ("a", "b", "c"):
            assert (await rates.take(consumer)).layer is Layer.SHARED
        async with other.writing() as link:
            await link.execute(text(f"LOCK TABLE consumer_buckets IN {mode} MODE"))
            for _ in range(3):
                decisions = await asyncio.gather(*(rates.take(consumer) for consumer in ("a", "b", "c", "d")))
                assert {(each.allowed, each.layer) for each in decisions} == {(True, Layer.FALLBACK)}
            assert rates.reliance.broken
        await until(lambda: not rates.reliance.broken)
        assert (await rates.take("e")).layer is Layer.SHARED


async def test_R7_a_database_file_that_another_locks_denies_nobody(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/rates.db"
    async with process(url, Rate(1.0, 100), budget_s=0.3) as rates, open_database(url, LIMITS) as other:
        other.ready = True
        assert (await rates.take("a")).layer is Layer.SHARED
        async with other.writing() as link:
            await link.execute(text("UPDATE consumer_buckets SET tokens = tokens"))
            for _ in range(3):
                decisions = await asyncio.gather(*(rates.take(consumer) for consumer in ("a", "b", "c")))
                assert {(each.allowed, each.layer) for each in decisions} == {(True, Layer.FALLBACK)}
        await until(lambda: not rates.reliance.broken)


async def test_R7_a_line_that_freezes_costs_a_request_its_budget_and_the_next_ones_nothing(
    postgres_server: PostgresServer, postgres: str
) -> None:
    name = make_url(postgres).database
    assert name is not None
    async with Line(f"{postgres_server.socket_folder}/.s.PGSQL.5432") as line:
        url = postgres_server.url(name, host="127.0.0.1", port=line.port, query={})
        async with process(url, Rate(1.0, 100), budget_s=0.05) as rates:
            await rates.take("a")
            line.freeze()
            began = time.monotonic()
            decisions = [await rates.take(f"c{number}") for number in range(50)]
            assert {(each.allowed, each.layer) for each in decisions} == {(True, Layer.FALLBACK)}
            assert rates.reliance.broken
            assert time.monotonic() - began < 2.0, "only a few waited for their 50 ms"
            line.thaw()
            await until(lambda: not rates.reliance.broken)
            await until(lambda: not rates._asking)
            assert (await rates.take("a")).allowed


async def test_connections_stay_however_many_consumers_come_at_once(
    postgres_server: PostgresServer, postgres: str
) -> None:
    async with open_database(postgres) as database:
        await make_ready(database)
    async with Line(f"{postgres_server.socket_folder}/.s.PGSQL.5432") as line:
        url = postgres_server.url(str(make_url(postgres).database), host="127.0.0.1", port=line.port, query={})
        async with open_database(url, OF_A_SERVER) as database:
            database.ready = True
            buckets = SharedBuckets(database, Rate(1.0, 10))
            for _ in range(5):
                await asyncio.gather(*(buckets.take(f"{number:032x}", 1) for number in range(12)))
            assert line.connections <= OF_A_SERVER.connections
