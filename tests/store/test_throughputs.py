"""The tokens that all replicas lease from: exact whoever asks, however many at once, and whatever the clocks say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from sqlalchemy import event, make_url, text

from app.core.purpose import Errand
from app.core.spending import Cost
from app.core.throughput import PATIENCE_S
from app.core.tokens import ANSWER_S, BURST_S, LEASE_S, Ask, Lease
from app.store.database import Database, Limits, open_database
from app.store.migrating import make_ready
from app.store.spendings import SqlSpendings
from app.upstream import leasing
from app.upstream.purse import Accounts, Purse
from app.upstream.settling import Settling
from tests.leased_tokens import Row
from tests.postgres import PostgresServer

ACCOUNT = "ab" * 16
URL = "https://eth.example.org/v2/abcdefgh12345678"
MANY = Limits(call_s=30.0, connections=20, overflow=0)
KNOWN = Errand(anonymous=False)

BY_HAND = """
CREATE SCHEMA skewed;
CREATE TABLE skewed.clock (now double precision);
INSERT INTO skewed.clock VALUES (1000);
CREATE FUNCTION skewed.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS
$$ SELECT to_timestamp(now) FROM skewed.clock $$
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no slow database."""
    monkeypatch.setattr(leasing, "ANSWER_S", 10.0)


@asynccontextmanager
async def opened(url: str, limits: Limits = MANY) -> AsyncIterator[Database]:
    async with open_database(url, limits) as database:
        await make_ready(database)
        yield database


async def run(url: str, statements: str) -> None:
    async with opened(url) as database, database.writing() as link:
        for statement in statements.strip().split(";\n"):
            await link.execute(text(statement))


# --- one statement --------------------------------------------------------------------------------------------------


async def test_the_statement_does_what_a_row_in_memory_does(postgres_server: PostgresServer, postgres: str) -> None:
    """Step by step, with a clock that is set by hand and may go back."""
    await run(postgres, BY_HAND)
    await postgres_server.run(
        f"ALTER DATABASE {make_url(postgres).database} SET search_path = skewed, pg_catalog, public"
    )
    steps = [
        (0.0, Ask(want=4.0, spare=2.0), 0.0),
        (0.0, Ask(want=4.0, spare=2.0, patience_s=PATIENCE_S), 0.0),
        (0.25, Ask(want=25.0, patience_s=PATIENCE_S), 3.0),
        (-3.0, Ask(want=1.0, patience_s=PATIENCE_S), 0.0),
        (1.0, Ask(want=30.0, patience_s=PATIENCE_S), 1.0),
        (0.0, Ask(want=30.0, patience_s=PATIENCE_S), 0.0),
        (7.5, Ask(want=1.0, kept=5.0), 0.0),
        (60.0, Ask(want=1.0, kept=5.0, spare=9.0), 0.0),
        (0.0, Ask(want=5.0, kept=5.0), 0.0),
        (0.5, Ask(used=13.0), 0.0),
        (0.5, Ask(spare=3.0), 0.0),
        (60.0, Ask(spare=3.0, used=1.0), 2.0),
        (-0.5, Ask(want=1.0, patience_s=PATIENCE_S), 1.0),
        (-59.0, Ask(want=1.0, patience_s=PATIENCE_S), 0.0),
        (2.0, Ask(want=5.0, patience_s=PATIENCE_S), 0.0),
        (-3600.0, Ask(want=1.0, patience_s=PATIENCE_S), 0.0),
        (0.3, Ask(want=1.0, patience_s=PATIENCE_S), 0.0),
    ]
    async with opened(postgres) as database:
        treasury = SqlSpendings(database, "a")
        for account, first in ((ACCOUNT, 0), ("cd" * 16, 9)):  # whatever a row begins with
            row, now = Row(10.0, 10.0 * BURST_S, 1000.0), 1000.0
            for step_s, ask, cool_s in steps[first:]:
                now += step_s
                async with database.writing() as link:
                    await link.execute(text("UPDATE skewed.clock SET now = :now"), {"now": now})
                lease = await treasury.lease(account, 10.0, ask, cool_s)
                expected = row.lease(ask, now, cool_s)
                assert [lease.granted, lease.wait_s, lease.left, lease.cool_s] == pytest.approx(
                    [expected.granted, expected.wait_s, expected.left, expected.cool_s]
                ), (now, ask)


async def test_a_question_is_one_statement(postgres: str) -> None:
    async with opened(postgres) as database:
        treasury = SqlSpendings(database, "a")
        await treasury.lease(ACCOUNT, 10.0, Ask(want=1.0), 0.0)
        sent: list[str] = []
        event.listen(database._engine.sync_engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
        await treasury.lease(ACCOUNT, 10.0, Ask(want=1.0), 0.0)
        assert len(sent) == 1


async def test_tokens_come_back_as_time_passes_and_what_is_promised_with_them(database: Database) -> None:
    treasury = SqlSpendings(database, "a")
    assert await treasury.lease(ACCOUNT, 100.0, Ask(want=100.0), 0.0) == Lease(100.0, 0.0, 0.0)
    promised = await treasury.lease(ACCOUNT, 100.0, Ask(want=10.0, patience_s=PATIENCE_S), 0.0)
    assert promised.granted == 10.0
    assert 0 < promised.wait_s <= 0.1
    assert promised.left == pytest.approx(-100 * promised.wait_s)
    refused = await treasury.lease(ACCOUNT, 100.0, Ask(want=1.0), 0.0)
    assert refused.granted == 0
    assert 0 < refused.wait_s < promised.wait_s + 0.01
    while not (await treasury.lease(ACCOUNT, 100.0, Ask(want=1.0), 0.0)).granted:
        continue


async def test_an_account_without_a_limit_has_a_row_for_its_pauses_alone(database: Database) -> None:
    treasury = SqlSpendings(database, "a")
    assert await treasury.cooling() == {}
    lease = await treasury.lease(ACCOUNT, 0.0, Ask(), 30.0)
    assert (lease.granted, lease.wait_s, lease.left) == (0, 0, 0)
    assert lease.cool_s == pytest.approx(30, abs=0.001)
    assert await treasury.lease("cd" * 16, 5.0, Ask(), 0.0) == Lease(0.0, 0.0, 5.0)
    assert (await treasury.lease(ACCOUNT, 0.0, Ask(), 10.0)).cool_s > 20, "the later end counts"
    ((account, left_s),) = (await treasury.cooling()).items()
    assert (account, left_s > 20) == (ACCOUNT, True)


# --- many at once ---------------------------------------------------------------------------------------------------


async def granted_at_once(each: list[SqlSpendings], times: int, rate: float, want: float) -> float:
    async def all_of(treasury: SqlSpendings) -> float:
        return sum([(await treasury.lease(ACCOUNT, rate, Ask(want=want), 0.0)).granted for _ in range(times)])

    return sum(await asyncio.gather(*(all_of(treasury) for treasury in each)))


async def test_20_replicas_at_once_are_given_what_there_is(url: str) -> None:
    """Through PgBouncer in transaction mode as well."""
    async with AsyncExitStack() as held:
        limits = Limits(call_s=30.0, lock_s=30.0, connections=2, overflow=0)
        each = [SqlSpendings(await held.enter_async_context(opened(url, limits))) for _ in range(4)] * 5
        began = time.monotonic()
        granted = await granted_at_once(each, 20, 8.0, 0.125)
        assert 8 <= granted <= 8 * (BURST_S + time.monotonic() - began)


async def test_connections_whose_clocks_differ_by_ten_seconds_refill_nothing_twice(skewed: list[str]) -> None:
    """A clock that is ahead of all before fills a burst at most, and each is so once."""
    async with AsyncExitStack() as held:
        each = [SqlSpendings(await held.enter_async_context(opened(url))) for url in skewed]
        began = time.monotonic()
        granted = await granted_at_once(each * 5, 20, 2.0, 0.25)
        assert granted <= 2.0 * (BURST_S * len(skewed) + time.monotonic() - began)


# --- a fleet --------------------------------------------------------------------------------------------------------


class Replica:
    """One process with an account of so many units a second, whose clock is off."""

    def __init__(self, database: Database, name: str, rate: float = 1000.0, skew_s: float = 0.0) -> None:
        accounts = Accounts()
        self.skew_s = skew_s
        self.purse = Purse(account=accounts.of(URL, {}, rate), clock=self.now)
        self.account = self.purse.account
        self.settling = Settling(accounts, SqlSpendings(database, name), clock=self.now)
        self.database = database

    def now(self) -> float:
        return time.monotonic() + self.skew_s


async def test_a_fleet_uses_no_more_than_the_rate_and_two_bursts_and_everybody_has_a_turn(postgres: str) -> None:
    """On connections of their own, by clocks that differ: two are busy, one calls once in a while."""
    rate, units = 1000.0, 25.0
    started: list[tuple[float, float]] = []

    async def call(replica: Replica) -> None:
        await replica.purse.turn(Cost(0.0, units))
        started.append((time.monotonic(), units))

    async def busy(replica: Replica) -> None:
        for _ in range(8):
            await call(replica)

    async with AsyncExitStack() as held:
        replicas = [
            Replica(await held.enter_async_context(opened(postgres)), f"{skew_s}", rate, skew_s)
            for skew_s in (0.0, 3600.0, 7200.0)
        ]
        for replica in (*replicas, *replicas):
            await replica.settling.settle()
        assert all(replica.account.throughput.leased for replica in replicas)
        settling = [asyncio.create_task(replica.settling.run()) for replica in replicas]
        async with asyncio.TaskGroup() as group:
            for replica in (*replicas[:2] * 4, replicas[2]):
                group.create_task(busy(replica))
        for task in settling:
            task.cancel()
        await asyncio.wait(settling)
    assert len(started) == 72
    started.sort()
    for first in range(len(started)):
        for last in range(first, len(started)):
            took_s = started[last][0] - started[first][0]
            assert units * (last - first + 1) <= rate * (took_s + BURST_S + LEASE_S + ANSWER_S)
    assert not replicas[0].account.throughput.leased, "nobody asks for it any more"


async def test_one_alone_decides_by_itself_and_two_lease(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    await first.settling.settle()
    assert not first.account.throughput.leased
    assert first.account.turn_s(900.0, KNOWN, first.now()) == 0
    await second.settling.settle()
    await first.settling.settle()
    assert (first.account.throughput.leased, second.account.throughput.leased) == (True, True)
    assert first.account.throughput.part == 0.5


async def test_without_the_database_each_has_its_part_and_leases_again_when_it_is_back(database: Database) -> None:
    replicas = [Replica(database, name) for name in "abcd"]
    for replica in (*replicas, *replicas):
        await replica.settling.settle()
    database.ready = False
    running = asyncio.create_task(replicas[0].settling.run())
    await replicas[0].purse.turn(Cost(0.0, 10.0))
    running.cancel()
    await asyncio.wait([running])
    assert not replicas[0].account.throughput.leased
    assert replicas[0].account.turn_s(1000.0, KNOWN, replicas[0].now()) <= BURST_S
    replicas[0].account.queue(1000.0, replicas[0].now())
    assert 2 < replicas[0].account.turn_s(1.0, KNOWN, replicas[0].now()) < 4.1, "it has a quarter of the rate"
    database.ready = True
    await replicas[0].settling.settle()
    assert replicas[0].account.throughput.leased


async def test_what_was_used_alone_is_missing_for_the_others(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    await first.settling.settle()
    first.account.queue(1000.0, first.now())
    await first.settling.settle()
    await second.settling.settle()
    await second.settling.settle()
    assert 0 < second.account.turn_s(1000.0, KNOWN, second.now()) <= 1


# --- pauses that the provider asked for ----------------------------------------------------------------------------


async def test_a_pause_is_kept_by_all_by_the_clock_of_the_database(database: Database) -> None:
    """For as long as the provider said, whatever the clocks say, and passing it on does not lengthen it."""
    first, second = Replica(database, "a", skew_s=10_000.0), Replica(database, "b")
    for replica in (first, second):
        await replica.settling.settle()
    began = first.now()
    first.account.cool(began + 30)
    for replica in (first, second) * 5:
        await replica.settling.settle()
    for replica in (first, second):
        assert replica.account.cooling_until is not None
        left_s = replica.account.cooling_until - replica.now()
        assert began + 30 - first.now() <= left_s <= 30
        assert not any(each.has_to_tell for each in replica.settling._leasing.values())


async def test_a_longer_pause_of_ones_own_is_not_shortened(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    second.account.cool(second.now() + 50)
    until = second.account.cooling_until
    first.account.cool(first.now() + 5)
    for replica in (first, second, first):
        await replica.settling.settle()
    assert until is not None
    assert second.account.cooling_until is not None
    assert until <= second.account.cooling_until < until + 5
    assert first.account.cooling_until is not None
    assert first.account.cooling_until > first.now() + 40


async def test_a_pause_of_an_account_without_limits_is_heard_too(database: Database) -> None:
    accounts = [Accounts() for _ in range(2)]
    bought = [each.of(URL, {}) for each in accounts]
    settling = [Settling(each, SqlSpendings(database)) for each in accounts]
    bought[0].cool(time.monotonic() + 20)
    for each in settling:
        await each.settle()
    assert bought[1].cooling_until is not None
    assert 15 < bought[1].cooling_until - time.monotonic() <= 20
    async with database.reading() as link:
        assert (await link.execute(text("SELECT count(*) FROM leases"))).scalar_one() == 0
