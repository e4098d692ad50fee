"""Databases for the tests of what is kept in SQL: each test that asks for one runs against every kind of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.store.database import Database, open_database
from app.store.migrating import make_ready
from tests.pgbouncer import pgbouncer
from tests.postgres import PostgresServer, postgres, postgres_server

__all__ = ["pgbouncer", "postgres", "postgres_server"]

KINDS = ("file", "memory", "postgresql", "pgbouncer")


@pytest.fixture(params=["file", "postgresql", "pgbouncer"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """An empty database that several processes can have."""
    if request.param == "file":
        yield f"sqlite+aiosqlite:///{tmp_path}/copath.db"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        name = await server.create()
        yield request.getfixturevalue("pgbouncer").url(name) if request.param == "pgbouncer" else server.url(name)
        await server.drop(name)


@pytest.fixture(scope="session")
def migrated() -> list[str]:
    """The name of a PostgreSQL database with all tables, once there is one: emptying it is faster than making it."""
    return []


@pytest.fixture(params=KINDS)
async def database(request: pytest.FixtureRequest, tmp_path: Path, migrated: list[str]) -> AsyncIterator[Database]:
    """A database with all tables and nothing in them."""
    if request.param in ("file", "memory"):
        place = {"file": f"sqlite+aiosqlite:///{tmp_path}/copath.db", "memory": "sqlite+aiosqlite://"}[request.param]
        async with open_database(place) as opened:
            await make_ready(opened)
            yield opened
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    if not migrated:
        name = await server.create()
        async with open_database(server.url(name)) as opened:
            await make_ready(opened)
        migrated.append(name)
    await server.empty(migrated[0])
    entrance = request.getfixturevalue("pgbouncer") if request.param == "pgbouncer" else server
    async with open_database(entrance.url(migrated[0])) as opened:
        opened.ready = True
        yield opened
