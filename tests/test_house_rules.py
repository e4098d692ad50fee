"""The rules of the house hold everywhere; and every rule is seen to complain about what breaks it."""

from __future__ import annotations

import re
import subprocess
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from tests import house_rules
from tests.house_rules import Complaint

ROOT = Path(__file__).parent.parent
RECORDED = ("tests/corpus", "tests/fixtures", "tests/vectors")  # data of others, kept as it was found
SKIPPED_FOLDERS = {".git", ".venv", "node_modules", "__pycache__", "build", "dist"}

Rule = Callable[[str, PurePosixPath], Iterable[Complaint]]


def project_files() -> list[PurePosixPath]:
    """Every file of the project: those that git tracks, or, where there is no git, all but what tools leave behind."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split("\0")
        names = [name for name in listed if name and (ROOT / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        names = [
            path.relative_to(ROOT).as_posix()
            for path in ROOT.rglob("*")
            if path.is_file() and not SKIPPED_FOLDERS & set(path.relative_to(ROOT).parts)
        ]
    return sorted(PurePosixPath(name) for name in names)


FILES = project_files()
PYTHON = [path for path in FILES if path.suffix == ".py" and not path.as_posix().startswith(RECORDED)]
APP = [path for path in PYTHON if path.parts[0] == "app"]
LOCKS = [path for path in FILES if path.suffix == ".lock" or path.name in ("package-lock.json", ".npmrc")]


def texts(paths: Iterable[PurePosixPath]) -> Iterator[tuple[PurePosixPath, str]]:
    for path in paths:
        try:
            yield path, (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not text


def complaints(rule: Rule, paths: Iterable[PurePosixPath]) -> list[str]:
    return [f"{path}:{line}: {text}" for path, source in texts(paths) for line, text in rule(source, path)]


def declared(*groups: str) -> frozenset[str]:
    """The distributions of the run-time dependencies and of some groups."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"])
    for group in groups:
        wanted += [entry for entry in project["dependency-groups"][group] if isinstance(entry, str)]
    return frozenset(re.split(r"[<>=!~;\[ ]", entry)[0].lower().replace("_", "-") for entry in wanted)


def test_no_room_knows_more_than_it_may() -> None:
    assert complaints(house_rules.foreign_imports, APP) == []


def test_what_is_never_done_is_not_done() -> None:
    assert complaints(house_rules.forbidden_calls, APP) == []


def test_owners_of_tasks_exist() -> None:
    assert set(house_rules.TASK_OWNERS) <= {path.as_posix() for path in APP}


def test_names_say_something() -> None:
    assert complaints(house_rules.empty_names, APP) == []


def test_long_files_are_named_in_a_warning() -> None:
    for path in APP:
        length = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        if length > 600:
            warnings.warn(f"{path} has {length} lines: does it have one subject?", stacklevel=1)


def test_suppressed_warnings_have_their_reason_on_the_line() -> None:
    assert complaints(house_rules.unexplained_suppressions, APP) == []


def test_the_project_speaks_of_itself_alone() -> None:
    written = [path for path in FILES if not path.as_posix().startswith(RECORDED)]
    assert complaints(house_rules.foreign_words, written) == []


def test_lock_files_name_no_host() -> None:
    assert {path.name for path in LOCKS} >= {"requirements.lock", "requirements-dev.lock"}
    assert complaints(house_rules.download_hosts, LOCKS) == []


def test_what_is_imported_is_declared() -> None:
    run_time = declared()
    assert complaints(lambda source, path: house_rules.undeclared_imports(source, path, run_time), APP) == []
    test_time = declared("test")
    tests = [path for path in PYTHON if path.parts[0] != "app"]
    assert complaints(lambda source, path: house_rules.undeclared_imports(source, path, test_time), tests) == []


def test_run_time_is_locked_the_same_for_tests() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^[a-z0-9][a-z0-9._-]*==\S+", (ROOT / name).read_text(), re.MULTILINE))

    assert pins("requirements.lock") <= pins("requirements-dev.lock")


# --- every rule, seen to complain -----------------------------------------------------------------------------------

CORE = "app/core/x.py"
BROKEN: list[tuple[Rule, str, str]] = [
    (house_rules.foreign_imports, CORE, "import asyncio"),
    (house_rules.foreign_imports, CORE, "def f():\n    import os.path"),
    (house_rules.foreign_imports, CORE, "from time import monotonic"),
    (house_rules.foreign_imports, CORE, "from app.metrics import Metrics"),
    (house_rules.foreign_imports, CORE, "from ..chain import flight"),
    (house_rules.foreign_imports, CORE, "from app import chain"),
    (house_rules.foreign_imports, CORE, "from app import __version__"),
    (house_rules.foreign_imports, CORE, "import orjson"),
    (house_rules.foreign_imports, CORE, "from concurrent.futures import Executor"),
    (house_rules.foreign_imports, CORE, "if TYPE_CHECKING:\n    from app.chain.ports import Upstream"),
    (house_rules.foreign_imports, "app/checker/x.py", "from app.core.rlp import decode"),
    (house_rules.foreign_imports, "app/checker/x.py", "import msgspec"),
    (house_rules.foreign_imports, "app/chain/x.py", "import fastapi"),
    (house_rules.foreign_imports, "app/chain/x.py", "from app.settings import Settings"),
    (house_rules.foreign_imports, "app/upstream/x.py", "from app.chain.ports import Upstream"),
    (house_rules.foreign_imports, "app/store/x.py", "import httpx2"),
    (house_rules.foreign_imports, "app/api/x.py", "from app.house import House"),
    (house_rules.foreign_imports, "app/settings/x.py", "from app.core import errors"),
    (house_rules.foreign_imports, "app/log.py", "import app.metrics"),
    (house_rules.foreign_imports, "app/house.py", "from app.api import usc"),
    (house_rules.foreign_imports, "app/asgi.py", "from app.upstream.demo import demo_chains"),
    (house_rules.foreign_imports, "app/__main__.py", "from app.chain.chain import Chain"),
    (house_rules.foreign_imports, "app/attic/x.py", "import json"),
    (house_rules.forbidden_calls, "app/api/x.py", "from starlette.middleware.base import BaseHTTPMiddleware"),
    (house_rules.forbidden_calls, "app/api/x.py", "class Slow(base.BaseHTTPMiddleware): ..."),
    (house_rules.forbidden_calls, "app/api/x.py", "@app.middleware('http')\nasync def f(): ..."),
    (house_rules.forbidden_calls, "app/chain/x.py", "asyncio.wait_for(x, 1)"),
    (house_rules.forbidden_calls, "app/chain/x.py", "from asyncio import wait_for"),
    (house_rules.forbidden_calls, "app/chain/x.py", "asyncio.create_task(x)"),
    (house_rules.forbidden_calls, "app/chain/x.py", "asyncio.ensure_future(x)"),
    (house_rules.forbidden_calls, "app/chain/x.py", "from asyncio import create_task"),
    (house_rules.forbidden_calls, "app/chain/x.py", "asyncio.get_running_loop().create_task(x)"),
    (house_rules.forbidden_calls, "app/chain/x.py", "self._loop.create_task(x)"),
    (house_rules.empty_names, "app/core/utils.py", ""),
    (house_rules.empty_names, "app/common/x.py", ""),
    (house_rules.empty_names, CORE, "class ProofManager: ..."),
    (house_rules.empty_names, CORE, "class BlockService: ..."),
    (house_rules.unexplained_suppressions, CORE, "x = 1  # noqa"),
    (house_rules.unexplained_suppressions, CORE, "x = 1  # noqa: S101"),
    (house_rules.unexplained_suppressions, CORE, "x = 1  # type: ignore[assignment]"),
    (house_rules.foreign_words, "README.md", "see /wor" + "k/main"),
    (house_rules.foreign_words, "README.md", "in /roo" + "t/.cache"),
    (house_rules.foreign_words, "README.md", "as issu" + "e 12 says"),
    (house_rules.foreign_words, "README.md", "written by a subagen" + "t"),
    (house_rules.foreign_words, "README.md", "after stag" + "e 6"),
    (house_rules.foreign_words, "README.md", "see contrac" + "t.md"),
    (house_rules.foreign_words, "README.md", "from ../share" + "d/vectors"),
    (house_rules.download_hosts, "requirements.lock", "x @ https://files.example/x.whl"),
    (house_rules.download_hosts, "requirements.lock", "--index-ur" + "l x"),
    (house_rules.download_hosts, "package-lock.json", '"resolve' + 'd": "x"'),
]


@pytest.mark.parametrize(
    ("rule", "path", "source"), BROKEN, ids=[f"{rule.__name__}: {text[:50]}" for rule, _, text in BROKEN]
)
def test_a_rule_complains_about_what_breaks_it(rule: Rule, path: str, source: str) -> None:
    assert list(rule(source, PurePosixPath(path)))


def test_an_undeclared_import_is_complained_about() -> None:
    assert list(house_rules.undeclared_imports("import regex", PurePosixPath(CORE), frozenset({"msgspec"})))


SOUND: list[tuple[Rule, str, str]] = [
    (
        house_rules.foreign_imports,
        CORE,
        "import hashlib, msgspec\nfrom app.core import rlp\nfrom . import trie\nfrom .rlp import x",
    ),
    (
        house_rules.foreign_imports,
        "app/chain/x.py",
        "import asyncio\nfrom concurrent.futures import Executor\nimport app.core.rlp",
    ),
    (house_rules.foreign_imports, "app/house.py", "from app import __version__\nfrom app.store.ledger import Ledger"),
    (house_rules.foreign_imports, "app/__main__.py", "from app.cli import main"),
    (
        house_rules.forbidden_calls,
        "app/chain/x.py",
        "async with asyncio.TaskGroup() as group:\n    group.create_task(x)",
    ),
    (house_rules.forbidden_calls, "app/chain/flight.py", "asyncio.create_task(x)"),
    (house_rules.empty_names, CORE, "class Handlers: ...\ndef loop_fault_handler(): ..."),
    (house_rules.unexplained_suppressions, CORE, "x = 1  # noqa: S101 - it cannot be"),
    (house_rules.unexplained_suppressions, CORE, "x = 1  # type: ignore[assignment]  # the library has no types"),
    (house_rules.foreign_words, "README.md", "framework/working, issue a request, a stage, ERC-1155"),
]


@pytest.mark.parametrize(
    ("rule", "path", "source"), SOUND, ids=[f"{rule.__name__}: {text[:50]}" for rule, _, text in SOUND]
)
def test_a_rule_leaves_what_is_sound_alone(rule: Rule, path: str, source: str) -> None:
    assert list(rule(source, PurePosixPath(path))) == []
