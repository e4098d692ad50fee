"""Behind PgBouncer in transaction mode: what one transaction leaves behind must not be needed, or met, by the next one."""

from __future__ import annotations

from sqlalchemy import text

from app.store.database import open_database
from app.store.migrating import make_ready
from tests.pgbouncer import SERVER_CONNECTIONS, PgBouncer
from tests.postgres import PostgresServer

from . import processes

REPLICAS = 20
PROCESSES = 4


async def test_B74_twenty_replicas_share_two_connections_of_the_server(
    pgbouncer: PgBouncer, postgres_server: PostgresServer
) -> None:
    name = await postgres_server.create()
    forks = processes.context()
    told = forks.SimpleQueue()
    sharing = [
        forks.Process(target=processes.share, args=(pgbouncer.url(name), list(range(REPLICAS))[each::PROCESSES], told))
        for each in range(PROCESSES)
    ]
    for process in sharing:
        process.start()
    assert [told.get() for _ in sharing] == [None] * PROCESSES
    for process in sharing:
        process.join()
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
    async with open_database(pgbouncer.url(name)) as database:
        await make_ready(database)
        for _ in range(2 * SERVER_CONNECTIONS):
            async with database.writing() as link:
                assert (await link.execute(settings)).one() == ("1500ms", "2s")
            async with database.reading() as link:
                assert (await link.execute(settings)).one() == ("0", "0")
                left = await link.execute(text("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''"))
                assert left.scalar_one() == 0
    await postgres_server.drop(name)
