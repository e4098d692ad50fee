"""Databases for the tests of what is kept in SQL: each test that asks for one runs against every kind of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.store.database import Database, open_database
from app.store.migrating import make_ready
from tests.postgres import PostgresServer, postgres, postgres_server

__all__ = ["postgres", "postgres_server"]

KINDS = ("file", "memory", "postgresql")


@pytest.fixture(params=[kind for kind in KINDS if kind != "memory"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """An empty database that several processes can have."""
    if request.param == "file":
        yield f"sqlite+aiosqlite:///{tmp_path}/copath.db"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        name = await server.create()
        yield server.url(name)
        await server.drop(name)


@pytest.fixture(scope="session")
def migrated_template() -> list[str]:
    """The name of a PostgreSQL database with all tables, once there is one: copying it is faster than migrating."""
    return []


@pytest.fixture(params=KINDS)
async def database(
    request: pytest.FixtureRequest, tmp_path: Path, migrated_template: list[str]
) -> AsyncIterator[Database]:
    """A database with all tables and nothing in them."""
    if request.param != "postgresql":
        place = {"file": f"sqlite+aiosqlite:///{tmp_path}/copath.db", "memory": "sqlite+aiosqlite://"}[request.param]
        async with open_database(place) as opened:
            await make_ready(opened)
            yield opened
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    if not migrated_template:
        template = await server.create()
        async with open_database(server.url(template)) as opened:
            await make_ready(opened)
        migrated_template.append(template)
    name = await server.create(migrated_template[0])
    async with open_database(server.url(name)) as opened:
        opened.ready = True
        yield opened
    await server.drop(name)
