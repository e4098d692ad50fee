"""The shared buckets, on every kind of database: exact whoever asks, however many at once, and whatever the clocks say."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import event, func, insert, make_url, select, text

from app.core.bucket import Bucket, Rate, Taken
from app.core.lasting import StoreUnavailable
from app.store.buckets import SharedBuckets
from app.store.consumer_tables import consumer_buckets
from app.store.database import Database, Limits, open_database
from app.store.migrating import make_ready
from tests.pgbouncer import PgBouncer
from tests.postgres import PostgresServer

TEN = Rate(0.0, 10)
ONE_HOT = "00" * 16
MANY = Limits(call_s=30.0, connections=20, overflow=0)


@asynccontextmanager
async def opened(url: str, limits: Limits = MANY) -> AsyncIterator[Database]:
    async with open_database(url, limits) as database:
        await make_ready(database)
        yield database


async def taken_at_once(each: Sequence[SharedBuckets], times: int, key: str = ONE_HOT) -> int:
    """How many tokens so many takes of one each were given, on each of these at the same time."""

    async def all_of(buckets: SharedBuckets) -> int:
        return sum([(await buckets.take(key, 1)).granted for _ in range(times)])

    return sum(await asyncio.gather(*(all_of(buckets) for buckets in each)))


async def row(database: Database, key: str = ONE_HOT) -> tuple[float, float]:
    wanted = select(consumer_buckets.c.tokens, consumer_buckets.c.refilled_at)
    async with database.reading() as link:
        return tuple((await link.execute(wanted.where(consumer_buckets.c.consumer == key))).one())  # type: ignore[return-value]  # two columns


async def rows(database: Database) -> int:
    async with database.reading() as link:
        return int((await link.execute(select(func.count()).select_from(consumer_buckets))).scalar_one())


# --- exactness ------------------------------------------------------------------------------------------------------


async def test_R1_20_connections_50_times_on_one_key_take_exactly_the_capacity(url: str) -> None:
    async with opened(url) as database:
        assert await taken_at_once([SharedBuckets(database, TEN)] * 20, 50) == 10
        assert (await row(database))[0] == 0.0


async def test_R1_what_several_ask_for_at_once_is_given_once(database: Database) -> None:
    buckets = SharedBuckets(database, Rate(0.0, 100))
    taken = await asyncio.gather(*(buckets.take(ONE_HOT, 7) for _ in range(20)))
    assert sum(each.granted for each in taken) == 100
    assert sorted({each.granted for each in taken}) == [0, 2, 7]
    assert all(each.tokens >= 0 for each in taken)


@pytest.mark.parametrize("per_second", [0.0, 1.0])
async def test_R2_connections_whose_clocks_differ_by_ten_seconds_refill_nothing_twice(
    skewed: list[str], per_second: float
) -> None:
    """What was refilled is what passed between the earliest and the latest that any clock said, and not once more."""
    rate, began = Rate(per_second, 10), time.monotonic()
    async with AsyncExitStack() as held:
        each = [SharedBuckets(await held.enter_async_context(opened(url)), rate) for url in skewed]
        granted = await taken_at_once(each * 5, 40)
    legal = 10 + per_second * (20 + time.monotonic() - began)
    assert granted <= legal
    assert per_second or granted == 10


async def test_B78_the_clocks_of_the_processes_do_not_count(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets = SharedBuckets(database, Rate(0.01, 5))
    for skew_s in (3600.0, -3600.0, 0.0) * 4:
        monkeypatch.setattr(time, "time", lambda skew_s=skew_s: 1.8e9 + skew_s)
        await buckets.take(ONE_HOT, 1)
    tokens, _ = await row(database)
    assert 0 <= tokens < 0.2


TAKER = """
import asyncio, sys
from app.core.bucket import Rate
from app.store.buckets import SharedBuckets
from app.store.database import Limits, open_database

async def main(url):
    async with open_database(url, Limits(call_s=30.0, connections=4)) as database:
        database.ready = True
        buckets = SharedBuckets(database, Rate(0.0, 50))
        await database_is_there(database)
        print("ready", flush=True)
        sys.stdin.readline()
        taken = await asyncio.gather(*(buckets.take("ff" * 16, 1) for _ in range(20)))
        print(sum(each.granted for each in taken), min(each.tokens for each in taken) >= 0)

async def database_is_there(database):
    async with database.reading():
        pass

asyncio.run(main(sys.argv[1]))
"""


async def test_B77_200_takes_of_10_processes_on_a_bucket_of_50_take_exactly_50(postgres: str) -> None:
    async with opened(postgres):
        pass
    pipe = asyncio.subprocess.PIPE
    takers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", TAKER, postgres, stdin=pipe, stdout=pipe, cwd=Path(__file__).parents[2]
        )
        for _ in range(10)
    ]
    for taker in takers:
        assert taker.stdout is not None
        assert await taker.stdout.readline() == b"ready\n"
    said = await asyncio.gather(*(taker.communicate(b"go\n") for taker in takers))
    assert sum(int(line.split()[0]) for line, _ in said) == 50
    assert {line.split()[1] for line, _ in said} == {b"True"}


async def test_R1_B74_behind_pgbouncer_20_replicas_take_exactly_the_capacity(
    pgbouncer: PgBouncer, postgres: str
) -> None:
    """In transaction mode, over two connections of the server."""
    database = make_url(postgres).database
    assert database is not None
    async with opened(postgres), AsyncExitStack() as held:
        limits = Limits(call_s=30.0, connections=2, overflow=0)
        replicas = [
            SharedBuckets(await held.enter_async_context(opened(pgbouncer.url(database), limits)), TEN)
            for _ in range(20)
        ]
        assert await taken_at_once(replicas, 25) == 10
        assert await SharedBuckets(await held.enter_async_context(opened(postgres)), Rate(1.0, 1)).purge() == 0
    assert "prepared statement" not in pgbouncer.log()


# --- one statement, which does what a bucket in memory does ---------------------------------------------------------


async def test_the_statement_does_what_a_bucket_in_memory_does(postgres_server: PostgresServer, postgres: str) -> None:
    """Step by step, with a clock that is set by hand and may go back."""
    rate = Rate(2.5, 7)
    name = make_url(postgres).database
    async with opened(postgres) as database, database.writing() as link:
        await link.execute(text("CREATE SCHEMA skewed"))
        await link.execute(text("CREATE TABLE skewed.clock (now double precision)"))
        await link.execute(text("INSERT INTO skewed.clock VALUES (1000)"))
        await link.execute(
            text(
                "CREATE FUNCTION skewed.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS"
                " $$ SELECT to_timestamp(now) FROM skewed.clock $$"
            )
        )
    await postgres_server.run(f"ALTER DATABASE {name} SET search_path = skewed, pg_catalog, public")
    async with opened(postgres) as database:
        buckets, model, now = SharedBuckets(database, rate), Bucket(rate, 1000.0), 1000.0
        steps = [
            (0, 3),
            (0, 3),
            (0, 3),
            (0.25, 1),
            (0.25, 2),
            (-3, 1),
            (3.5, 1),
            (2, 9),
            (60, 1),
            (0, 9),
            (1, 1),
            (-0.5, 4),
        ]
        for step_s, want in steps:
            now += step_s
            async with database.writing() as link:
                await link.execute(text("UPDATE skewed.clock SET now = :now"), {"now": now})
            assert await buckets.take(ONE_HOT, want) == model.take(want, now), (now, want)


async def test_a_bucket_is_refilled_as_time_passes(database: Database) -> None:
    buckets = SharedBuckets(database, Rate(50.0, 5))
    assert (await buckets.take(ONE_HOT, 9)).granted == 5
    assert (await buckets.take("11" * 16, 1)) == Taken(1, 4.0)
    taken = await buckets.take(ONE_HOT, 9)
    while not taken.granted:
        taken = await buckets.take(ONE_HOT, 9)
    assert taken.tokens < 1
    assert (await row(database))[0] == taken.tokens


async def test_a_lower_burst_counts_at_once(database: Database) -> None:
    assert (await SharedBuckets(database, Rate(0.0, 50)).take(ONE_HOT, 1)).tokens == 49
    assert await SharedBuckets(database, Rate(0.0, 5)).take(ONE_HOT, 9) == Taken(5, 0.0)


async def test_a_take_is_one_statement(postgres: str) -> None:
    async with opened(postgres) as database:
        buckets = SharedBuckets(database, TEN)
        await buckets.take(ONE_HOT, 1)
        sent: list[str] = []
        event.listen(database._engine.sync_engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
        await buckets.take(ONE_HOT, 1)
        assert len(sent) == 1


# --- what is forgotten ----------------------------------------------------------------------------------------------


async def test_R8_a_row_is_forgotten_when_its_bucket_is_full_again_and_not_before(database: Database) -> None:
    rate = Rate(1.0, 60)
    buckets = SharedBuckets(database, rate)
    await buckets.take("aa" * 16, 1)
    _, now = await row(database, "aa" * 16)
    held = {"tokens": 0.0, "granted": 0}
    async with database.writing() as link:
        for key, idle_s in (("bb", 58.0), ("cc", 61.0), ("dd", 3600.0), ("ee", -5.0)):
            await link.execute(insert(consumer_buckets).values(consumer=key * 16, refilled_at=now - idle_s, **held))
    assert await buckets.purge() == 2
    assert await rows(database) == 3
    assert await buckets.purge() == 0
    assert (await buckets.take("bb" * 16, 60)).granted in (58, 59)
    assert await buckets.take("cc" * 16, 60) == Taken(60, 0.0)


async def test_R8_what_is_never_refilled_is_never_forgotten(database: Database) -> None:
    buckets = SharedBuckets(database, TEN)
    await buckets.take(ONE_HOT, 3)
    async with database.writing() as link:
        await link.execute(text("UPDATE consumer_buckets SET refilled_at = 0"))
    assert await buckets.purge() == 0
    assert (await buckets.take(ONE_HOT, 99)).granted == 7


async def test_R8_a_bucket_that_is_taken_from_while_it_is_found_full_stays(postgres: str) -> None:
    """The purge has chosen the row and waits for it; what it then finds is not full any more."""
    rate = Rate(0.001, 2)
    async with opened(postgres) as database:
        buckets = SharedBuckets(database, rate)
        await buckets.take(ONE_HOT, 1)
        async with database.writing() as link:
            await link.execute(text("UPDATE consumer_buckets SET tokens = 2"))
        async with database.writing() as link:
            await link.execute(text("UPDATE consumer_buckets SET tokens = 0"))
            purging = asyncio.create_task(buckets.purge())
            waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            while not (await link.execute(waiting)).scalar_one():
                continue
        assert await purging == 0
        assert (await buckets.take(ONE_HOT, 1)).granted == 0


# --- when there is no database --------------------------------------------------------------------------------------


async def test_a_database_that_is_not_there_is_said_to_be_unavailable(tmp_path: Path) -> None:
    async with open_database(f"postgresql+asyncpg://nobody@/none?host={tmp_path}", Limits(call_s=1.0)) as database:
        database.ready = True
        buckets = SharedBuckets(database, TEN)
        for call in (buckets.take(ONE_HOT, 1), SharedBuckets(database, Rate(1.0, 1)).purge(), buckets.ping()):
            with pytest.raises(StoreUnavailable):
                await call
