"""Databases for the tests of what is kept in SQL: each test that asks for one runs against every kind of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

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


@pytest.fixture
async def skewed(postgres_server: PostgresServer, postgres: str) -> AsyncIterator[list[str]]:
    """URLs of one database with all tables, whose clock is behind, right, and ahead by ten seconds, by who connects."""
    async with open_database(postgres) as opened:
        await make_ready(opened)
        async with opened.writing() as link:
            await link.execute(text("CREATE SCHEMA skewed"))
            await link.execute(
                text(
                    "CREATE FUNCTION skewed.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS "
                    "$$ SELECT pg_catalog.statement_timestamp() + current_setting('copath.skew')::interval $$"
                )
            )
    name = make_url(postgres).database
    assert name is not None
    roles = {f"{name}_{word}": skew for word, skew in (("behind", "-10 s"), ("right", "0 s"), ("ahead", "10 s"))}
    for role, skew in roles.items():
        await postgres_server.run(
            f"CREATE ROLE {role} SUPERUSER LOGIN",
            f"ALTER ROLE {role} SET search_path = skewed, pg_catalog, public",
            f"ALTER ROLE {role} SET copath.skew = '{skew}'",
        )
    yield [postgres_server.url(name, username=role) for role in roles]
    await postgres_server.drop(name)
    await postgres_server.run(*(f"DROP ROLE {role}" for role in roles))
