"""The tables are those that this version expects, whoever made them and from wherever they came."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

import app.store
from app.core.lasting import StoreUnavailable
from app.store import schema
from app.store.database import Database, DatabaseRefused, open_database
from app.store.ledger import SqlLedger
from app.store.migrating import Migrated, make_ready

VERSIONS = sorted((Path(__file__).parents[2] / "migrations" / "versions").glob("*.py"))


@pytest.fixture
async def empty(url: str) -> AsyncIterator[Database]:
    async with open_database(url) as database:
        yield database


def differences(link: Connection) -> list[object]:
    for module in pkgutil.iter_modules(app.store.__path__):  # each room of tables adds its own
        importlib.import_module(f"app.store.{module.name}")
    return compare_metadata(MigrationContext.configure(link), schema.metadata)


async def test_migrations_make_the_tables_that_are_read_and_written(empty: Database) -> None:
    made = await make_ready(empty)
    assert made.before is None
    assert made.changed
    async with empty.reading() as link:
        assert await link.run_sync(differences) == []
    assert not (await make_ready(empty)).changed


@pytest.mark.parametrize("step", [file.name[:4] for file in VERSIONS[:-1]])
async def test_every_version_before_is_brought_to_this_one(tmp_path: Path, postgres: str, step: str) -> None:
    for url in (f"sqlite+aiosqlite:///{tmp_path}/copath.db", postgres):
        async with open_database(url) as database:
            await make_ready(database, target=step)
            assert await make_ready(database) == Migrated(step, VERSIONS[-1].name[:4])
            async with database.reading() as link:
                assert await link.run_sync(differences) == []


async def test_before_that_nothing_is_read_or_written(empty: Database) -> None:
    with pytest.raises(StoreUnavailable):
        await SqlLedger(empty, 1).done()
    await make_ready(empty)
    assert await SqlLedger(empty, 1).done() == ()


async def test_a_database_of_a_newer_version_is_refused_untouched(empty: Database) -> None:
    await make_ready(empty)
    async with empty.writing() as link:
        await link.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(
        DatabaseRefused, match=r"newer version of this program \(its tables are at 9999, .*nothing was changed$"
    ):
        await make_ready(empty)


ADDING = {"create_table", "create_index", "add_column"}
"""What processes of the version before can live with. Whoever contracts says here which release stopped using what goes."""


def test_steps_are_one_line_and_go_forward_only() -> None:
    before = None
    for number, file in enumerate(VERSIONS, start=1):
        source = ast.parse(file.read_text())
        said = {
            target.id: ast.literal_eval(node.value)
            for node in source.body
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name)
        }
        assert (said["revision"], said["down_revision"]) == (f"{number:04}", before), file.name
        assert file.name.startswith(f"{said['revision']}_")
        before = said["revision"]
        assert [node.name for node in source.body if isinstance(node, ast.FunctionDef)] == ["upgrade"], file.name


def test_steps_only_add() -> None:
    for file in VERSIONS:
        done = {
            node.attr
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "op"
        }
        assert done <= ADDING, file.name
