"""`copath migrate`, as its users run it: from a checkout and installed, with a database and without one."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import launching
from tests.postgres import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]

ROOT = Path(__file__).parent.parent


def migrate(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    return launching.run("migrate", *options, env={**os.environ, "COPATH_DATABASE_URL": url})


def test_it_says_in_one_line_what_it_did_and_does_it_once(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/copath.db"
    first, second = migrate(url), migrate(url)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert first.stdout.startswith(f"{url} went from nothing to 0")
    assert second.stdout.endswith(": nothing to do\n")
    assert first.stdout.count("\n") == second.stdout.count("\n") == 1


async def test_so_it_does_in_postgresql(postgres: str) -> None:
    done = migrate(postgres)
    assert done.returncode == 0, done.stderr
    assert "went from nothing to 0" in done.stdout


def test_an_installed_package_carries_the_migrations(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    url = f"sqlite+aiosqlite:///{tmp_path}/copath.db"
    done = subprocess.run(
        [sys.executable, "-m", "app", "migrate"],
        cwd=tmp_path,
        env={**os.environ, "COPATH_DATABASE_URL": url, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    tables = sqlite3.connect(tmp_path / "copath.db").execute("SELECT name FROM sqlite_master").fetchall()
    assert {("blocks",), ("anchors",), ("alembic_version",)} <= set(tables)


def test_a_downgrade_is_refused_in_one_clear_line(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/copath.db"
    migrate(url)
    with sqlite3.connect(tmp_path / "copath.db") as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9000'")
    done = migrate(url)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"copath: the database {url} is that of a newer version of this program")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+asyncpg://someone:s3cret@127.0.0.1:1/x", "copath: the database does not answer: "),
        ("sqlite+aiosqlite:////nowhere/at/all.db", "unable to open database file"),
    ],
)
def test_B76_no_database_is_an_exit_code_and_one_clear_line(url: str, said: str) -> None:
    done = migrate(url, "--wait", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr.splitlines()[-1]
    assert "s3cret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_in_memory_has_nothing_to_migrate() -> None:
    done = launching.run("migrate")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("copath: database_url is in memory, where no table lasts: ")
