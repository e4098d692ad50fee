"""A database that is gone, slow, or wrong costs a bounded time, and is found again without a restart."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from app.core.blocks import Noted
from app.core.lasting import StoreUnavailable
from app.store.database import Database, DatabaseRefused, Limits, open_database
from app.store.ledger import SqlLedger
from app.store.migrating import REFUSED_AGAIN_S, make_ready, ready_at_last, until_ready
from tests.fakes import settle
from tests.postgres import PostgresServer

from .line import Line

QUICK = Limits(call_s=0.3, lock_s=0.2)
KEY = 7


@pytest.fixture
async def line(postgres_server: PostgresServer) -> AsyncIterator[Line]:
    async with Line(f"{postgres_server.socket_folder}/.s.PGSQL.5432") as opened:
        yield opened


@pytest.fixture
async def distant(postgres: str, postgres_server: PostgresServer, line: Line) -> AsyncIterator[Database]:
    """A PostgreSQL at the other end of `line`, with all tables."""
    name = postgres.split("?")[0].rsplit("/", 1)[1]
    async with open_database(postgres_server.url(name, host="127.0.0.1", port=line.port, query={}), QUICK) as database:
        await make_ready(database)
        yield database


async def test_B76_a_database_that_is_lost_is_found_again_without_a_restart(distant: Database, line: Line) -> None:
    ledger = SqlLedger(distant, KEY)
    await ledger.note_finalized(1)
    await line.cut()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await ledger.finalized()
        with pytest.raises(StoreUnavailable):
            await ledger.note_finalized(2)
    assert not distant.up
    await line.restore()
    await ledger.note_finalized(3)
    assert await ledger.finalized() == 3
    assert distant.up


async def test_B76_a_server_that_was_restarted_meanwhile_costs_nobody_an_error(distant: Database, line: Line) -> None:
    ledger = SqlLedger(distant, KEY)
    await asyncio.gather(*(ledger.finalized() for _ in range(4)))
    await line.cut()
    await line.restore()
    await settle()
    before = line.connections
    for _ in range(5):
        assert await ledger.finalized() is None
    assert line.connections == before + 1


async def test_a_connection_that_lay_idle_is_asked_first(
    distant: Database, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = SqlLedger(distant, KEY)
    await ledger.note_finalized(1)
    async with distant.reading() as link:
        process = (await link.execute(text("SELECT pg_backend_pid()"))).scalar_one()
    async with distant.writing() as link, asyncio.timeout(5):
        other = (await link.execute(text("SELECT pg_backend_pid()"))).scalar_one()
        assert process == other, "the connection used last is used next"
    monkeypatch.setattr("app.store.database.IDLE_IS_DOUBTFUL_S", 0.0)
    asked = []
    dialect = distant._engine.dialect
    monkeypatch.setattr(dialect, "do_ping", lambda connection: asked.append(connection))
    await ledger.finalized()
    assert len(asked) == 1


async def test_B76_a_database_that_does_not_answer_is_not_waited_for(distant: Database, line: Line) -> None:
    ledger = SqlLedger(distant, KEY)
    await ledger.note_finalized(1)
    line.freeze()
    began = asyncio.get_running_loop().time()
    told = await asyncio.gather(*(ledger.finalized() for _ in range(30)), return_exceptions=True)
    took_s = asyncio.get_running_loop().time() - began
    assert {type(each) for each in told} == {StoreUnavailable}
    assert took_s < 10 * QUICK.call_s, "thirty that ask at once wait together, and not one after another"
    line.thaw()
    assert await ledger.finalized() == 1


async def test_a_commit_that_is_not_confirmed_is_said_to_be_unknown(distant: Database, line: Line) -> None:
    ledger = SqlLedger(distant, KEY)

    async def write() -> None:
        async with distant.writing() as link:
            await link.execute(text("INSERT INTO chains (chain_key) VALUES (1)"))
            line.freeze()

    with pytest.raises(StoreUnavailable):
        await write()
    line.thaw()
    await ledger.note_finalized(5)
    assert await ledger.finalized() == 5


async def test_a_call_that_is_cancelled_gives_its_connection_back(database: Database) -> None:
    ledger = SqlLedger(database, KEY)
    await ledger.note([Noted(height, bytes(32), bytes(32 * 50)) for height in range(100)])
    for delay in range(1, 40):
        asked = [
            asyncio.create_task(ledger.note([Noted(height, bytes([delay]) * 32) for height in range(40)])),
            *(asyncio.create_task(ledger.done()) for _ in range(10)),
            asyncio.create_task(ledger.forget_from(90)),
        ]
        await asyncio.sleep(delay / 2000)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    # As many at once as there are connections: none is missing.
    told = await asyncio.gather(*(ledger.hash_at(95) for _ in range(8)), ledger.note([Noted(200, bytes(32))]))
    assert len(told) == 9
    assert await ledger.done() in (((0, 89), (200, 200)), ((0, 99), (200, 200)))


async def test_a_closed_connection_lets_go_of_the_writers_lock_while_its_cursor_lives(tmp_path: Path) -> None:
    kept = []

    async def write(database: Database) -> None:
        async with database.writing() as link:
            driver = (await link.get_raw_connection()).driver_connection
            kept.append(await driver.execute("SELECT 1 UNION ALL SELECT 2"))  # type: ignore[union-attr]
            await link.invalidate()
            raise KeyError

    async with open_database(f"sqlite+aiosqlite:///{tmp_path}/copath.db", QUICK) as database:
        await make_ready(database)
        with pytest.raises(KeyError):
            await write(database)
        await SqlLedger(database, KEY).note_finalized(1)
    assert kept


async def test_a_closed_connection_lets_go_of_what_it_read_while_its_cursor_lives() -> None:
    kept = []

    async def read(database: Database) -> None:
        async with database.reading() as link:
            await link.execute(text("SELECT 1"))
            driver = (await link.get_raw_connection()).driver_connection
            cursor = await driver.cursor()  # type: ignore[union-attr]
            kept.append(await cursor.execute("SELECT height FROM blocks"))
            await link.invalidate()
            raise KeyError

    async with open_database("sqlite+aiosqlite://", QUICK) as database:
        await make_ready(database)
        ledger = SqlLedger(database, KEY)
        await ledger.note([Noted(height, bytes(32)) for height in range(10)])
        with pytest.raises(KeyError):
            await read(database)
        await ledger.note_finalized(1)
    assert kept


async def test_a_memory_database_survives_a_cancelled_call() -> None:
    async with open_database("sqlite+aiosqlite:///:memory:") as database:
        await make_ready(database)
        ledger = SqlLedger(database, KEY)
        await ledger.note_finalized(4)
        for _ in range(10):
            asked = asyncio.create_task(ledger.finalized())
            await settle(5)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        assert await ledger.finalized() == 4


async def test_memory_databases_are_not_shared() -> None:
    async with open_database("sqlite+aiosqlite://") as one, open_database("sqlite+aiosqlite://") as other:
        await make_ready(one)
        await make_ready(other)
        await SqlLedger(one, KEY).note_finalized(4)
        assert await SqlLedger(other, KEY).finalized() is None


async def test_another_process_that_writes_is_waited_for_but_not_for_long(tmp_path: Path) -> None:
    async with open_database(f"sqlite+aiosqlite:///{tmp_path}/copath.db", QUICK) as database:
        await make_ready(database)
        ledger = SqlLedger(database, KEY)
        other = sqlite3.connect(tmp_path / "copath.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await ledger.note_finalized(1)
        assert await ledger.finalized() is None, "readers do not wait for the writer"
        waiting = asyncio.create_task(ledger.note_finalized(2))
        await settle()
        other.execute("COMMIT")
        other.close()
        await waiting
        assert await ledger.finalized() == 2


async def test_a_row_that_another_replica_holds_is_waited_for_but_not_for_long(
    distant: Database, postgres: str
) -> None:
    ledger = SqlLedger(distant, KEY)
    await ledger.note_finalized(1)
    async with open_database(postgres) as replica:
        replica.ready = True
        async with replica.writing() as link:
            await link.execute(text("SELECT * FROM chains FOR UPDATE"))
            with pytest.raises(StoreUnavailable, match=r"lock|in time"):
                await ledger.note_finalized(2)
            assert distant.up, "it is there, and somebody was in the way"
            assert await ledger.finalized() == 1
    await ledger.note_finalized(2)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite+aiosqlite:////nowhere/at/all.db", "unable to open database file"),
        ("sqlite+aiosqlite:///{tmp_path}/junk.db", "file is not a database"),
        ("sqlite+nothing:///x.db", "database_url"),
        ("no url", "database_url"),
        ("postgresql+asyncpg://someone@127.0.0.1:1/x?sslcert=x", "database_url: unknown option sslcert"),
    ],
)
async def test_B76_what_waiting_will_not_mend_is_refused_in_one_clear_line(url: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "junk.db").write_bytes(b"junk" * 1000)
    with pytest.raises(DatabaseRefused) as refused:
        async with open_database(url.format(tmp_path=tmp_path)) as database:
            await until_ready(database)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_B76_a_wrong_password_is_said_and_never_the_password(
    postgres_server: PostgresServer, postgres: str
) -> None:
    name = postgres.split("?")[0].rsplit("/", 1)[1]
    rules = Path(postgres_server.socket_folder) / "pg_hba.conf"
    before = rules.read_text()
    await postgres_server.run("DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN PASSWORD 'right'")
    rules.write_text(f"local all guest scram-sha-256\n{before}")
    try:
        await postgres_server.run("SELECT pg_reload_conf()")
        url = postgres_server.url(name, username="guest", password="s3cret")
        with pytest.raises(DatabaseRefused) as refused:
            async with open_database(url) as database:
                await until_ready(database)
        missing = postgres_server.url("nowhere")
        with pytest.raises(DatabaseRefused, match="there is no such database"):
            async with open_database(missing) as database:
                await until_ready(database)
    finally:
        rules.write_text(before)
        await postgres_server.run("SELECT pg_reload_conf()")
    assert "password" in str(refused.value)
    assert "s3cret" not in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_B76_a_database_that_is_down_at_the_start_is_waited_for(
    postgres: str, postgres_server: PostgresServer, line: Line
) -> None:
    name = postgres.split("?")[0].rsplit("/", 1)[1]
    await line.cut()
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            await line.restore()

    url = postgres_server.url(name, host="127.0.0.1", port=line.port, query={})
    async with open_database(url, QUICK) as database:
        with pytest.raises(StoreUnavailable):
            await SqlLedger(database, KEY).done()
        await until_ready(database, pause=pause, jitter=lambda: 0.5)
        assert await SqlLedger(database, KEY).done() == ()
    assert pauses == [0.5, 1, 2, 4, 8, 15, 15, 15]


async def test_a_server_that_has_begun_tries_a_database_that_refused_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "not there yet"
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            place.mkdir()

    async with open_database(f"sqlite+aiosqlite:///{place}/copath.db") as database:
        await ready_at_last(database, pause=pause)
        assert database.ready
    assert pauses == [REFUSED_AGAIN_S] * 3
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["database_refused"]


async def test_waiting_has_an_end_where_somebody_set_one() -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async with open_database("postgresql+asyncpg://nobody@127.0.0.1:1/x", QUICK) as database:
        with pytest.raises(StoreUnavailable):
            await until_ready(database, within_s=4, pause=pause, jitter=lambda: 0.5)
    assert pauses == [0.5, 1, 2]
