"""Behind PgBouncer in transaction mode: what one transaction leaves behind must not be needed, or met, by the next one."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from sqlalchemy import text

from app.core.blocks import Noted
from app.store.database import Limits, open_database
from app.store.ledger import SqlLedger
from app.store.migrating import make_ready
from tests.pgbouncer import SERVER_CONNECTIONS, PgBouncer
from tests.postgres import PostgresServer

REPLICAS = 20
PATIENT = Limits(call_s=20, lock_s=20, connections=2, overflow=0)  # they queue for two connections


async def test_B74_twenty_replicas_share_two_connections_of_the_server(
    pgbouncer: PgBouncer, postgres_server: PostgresServer
) -> None:
    name = await postgres_server.create()

    async def replica(key: int) -> None:
        async with open_database(pgbouncer.url(name), PATIENT) as database:
            await make_ready(database)
            ledger = SqlLedger(database, key % 5)
            for height in range(4):
                mark = bytes([key, height]) * 16
                await ledger.note([Noted(height, mark, mark, mark)])
                await asyncio.gather(ledger.position(mark), ledger.done(), ledger.note_finalized(height))
                assert await ledger.hash_at(height) is not None

    async with asyncio.TaskGroup() as group:
        for key in range(REPLICAS):
            group.create_task(replica(key))
    assert "prepared statement" not in pgbouncer.log()
    rows = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    connection = await postgres_server.connect(name)
    try:
        assert await connection.fetchval(rows) <= SERVER_CONNECTIONS
    finally:
        await connection.close()
    await postgres_server.drop(name)


async def test_B74_nothing_that_was_set_outlives_its_transaction(
    pgbouncer: PgBouncer, postgres_server: PostgresServer
) -> None:
    name = await postgres_server.create()
    settings = text("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')")
    async with AsyncExitStack() as held:
        database = await held.enter_async_context(open_database(pgbouncer.url(name)))
        await make_ready(database)
        for _ in range(2 * SERVER_CONNECTIONS):
            async with database.writing() as link:
                assert (await link.execute(settings)).one() == ("1500ms", "2s")
            async with database.reading() as link:
                assert (await link.execute(settings)).one() == ("0", "0")
                left = await link.execute(text("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''"))
                assert left.scalar_one() == 0
    await postgres_server.drop(name)
