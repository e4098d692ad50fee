"""The rules of the house, as functions from source text to complaints. `test_house_rules.py` applies them to everything.

A room is a package or module directly under `app/`. What a room may know is the whole of the architecture: the cellar (`core`)
knows bytes, the checker shares nothing with the prover it checks, a chain knows neither HTTP nor SQL, the doors know one
foreign library each, and only the composition root knows everybody.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

# --- who may know whom ----------------------------------------------------------------------------------------------

EVERY_ROOM = frozenset(
    {
        "core",
        "checker",
        "chain",
        "upstream",
        "anchors",
        "store",
        "api",
        "settings",
        "metrics",
        "log",
        "house",
        "stores",
        "consumers",
        "wiring",
        "asgi",
        "serving",
        "backfilling",
        "checking",
        "migrating",
        "verifying",
        "cli",
    }
)
VERSION = "app"  # the package itself, which holds nothing but its version

ROOMS: Mapping[str, frozenset[str]] = {
    "core": frozenset(),
    "checker": frozenset(),
    "chain": frozenset({"core", "metrics"}),
    "upstream": frozenset({"core", "metrics"}),
    "anchors": frozenset({"core", "metrics"}),
    "store": frozenset({"core", "metrics"}),
    "api": frozenset({"core", "checker", "chain", "metrics", VERSION}),
    "settings": frozenset(),
    "metrics": frozenset(),
    "log": frozenset(),
    "stores": frozenset({"core", "metrics", "settings", "store"}),
    "consumers": frozenset({"core", "metrics", "settings", "store"}),
    "wiring": frozenset({"core", "metrics", "settings", "chain", "upstream", "anchors", "store", "stores"}),
    "house": EVERY_ROOM - {"api", "asgi", "serving", "backfilling", "checking", "migrating", "verifying", "cli"}
    | {VERSION},
    "asgi": frozenset({"api", "house", "settings", "core", "checker", VERSION}),
    "serving": frozenset({"api", "house", "settings", "core", "checker", "asgi", VERSION}),
    "backfilling": frozenset({"house", "settings", "core"}),
    "checking": frozenset({"house", "settings", "core"}),
    "migrating": frozenset({"store", "settings", "core"}),
    "verifying": frozenset({"api", "core"}),
    "cli": frozenset(
        {
            "api",
            "house",
            "consumers",
            "settings",
            "core",
            "checker",
            "asgi",
            "serving",
            "backfilling",
            "checking",
            "migrating",
            "verifying",
            VERSION,
        }
    ),
    VERSION: frozenset(),
}

LIBRARIES: Mapping[str, frozenset[str]] = {
    "core": frozenset({"msgspec", "sha3", "coincurve"}),
    "checker": frozenset({"sha3"}),
    "chain": frozenset({"cachetools", "concurrent"}),
    "upstream": frozenset(
        {"httpx2", "websockets", "msgspec"}
    ),  # msgspec cuts the result out of a JSON-RPC answer without reading it
    "anchors": frozenset({"httpx2"}),
    "store": frozenset({"sqlalchemy", "alembic", "asyncpg", "obstore", "zstandard"}),
    "api": frozenset({"pydantic", "orjson", "fastapi", "starlette"}),
    "settings": frozenset({"pydantic", "pydantic_core", "pydantic_settings", "yaml"}),
    "metrics": frozenset({"prometheus_client"}),
    "log": frozenset({"structlog"}),
    "stores": frozenset(),
    "consumers": frozenset(),
    "wiring": frozenset(),
    "house": frozenset(),
    "asgi": frozenset({"fastapi", "starlette", "uvicorn", "typer", "rich"}),
    "serving": frozenset({"httptools", "starlette", "uvicorn"}),
    "backfilling": frozenset({"rich"}),
    "checking": frozenset({"rich"}),
    "migrating": frozenset(),
    "verifying": frozenset({"rich"}),
    "cli": frozenset({"uvicorn", "typer", "rich"}),
    VERSION: frozenset(),
}

# The cellar has no loop, no clock, no chance, no input and output.
CLOSED_TO_CORE = frozenset(
    {
        "asyncio",
        "time",
        "random",
        "logging",
        "os",
        "socket",
        "threading",
        "selectors",
        "ssl",
        "subprocess",
        "multiprocessing",
    }
)
# Parts of the standard library that are as good as libraries: only rooms that list them may have them.
LISTED_ONLY = frozenset({"concurrent"})


class Complaint(NamedTuple):
    line: int
    text: str


def room_of(path: PurePosixPath) -> str:
    """The room of a file given relative to the project, such as app/core/rlp.py."""
    name = path.parts[1].removesuffix(".py")
    return {"__init__": VERSION, "__main__": "cli"}.get(name, name)


def imported(tree: ast.AST, path: PurePosixPath) -> Iterator[tuple[int, str]]:
    """Every module that is imported, at any depth and for type checking too: (line, dotted name)."""
    package = path.with_suffix("").parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            if module == "app":
                for alias in node.names:
                    yield node.lineno, module if alias.name.startswith("__") else f"{module}.{alias.name}"
            else:
                yield node.lineno, module


def foreign_imports(source: str, path: PurePosixPath) -> Iterator[Complaint]:
    """Imports that the room of the file may not have."""
    room = room_of(path)
    if room not in ROOMS:
        yield Complaint(1, f"{room} is no room of the house")
        return
    for line, module in imported(ast.parse(source), path):
        top, *rest = module.split(".")
        if top == "app":
            other = rest[0] if rest else VERSION
            if other != room and other not in ROOMS[room]:
                yield Complaint(line, f"{room} may not know {other}")
        elif top in sys.stdlib_module_names and top not in LISTED_ONLY:
            if room == "core" and top in CLOSED_TO_CORE:
                yield Complaint(line, f"core may not use {top}")
        elif top not in LIBRARIES[room]:
            yield Complaint(line, f"{room} may not use {top}")


# --- what is never done ---------------------------------------------------------------------------------------------

# Who starts tasks outside a TaskGroup, and therefore awaits, cancels and reports them itself.
TASK_OWNERS: Mapping[str, str] = {
    "app/chain/head.py": "a refresh is shared by all who ask while it runs: the head owns it, and ends it when it is closed",
    "app/upstream/evm.py": "so is the check of a node's chain id: the node owns it",
    "app/upstream/line.py": "a connection outlives the call that wanted it first: the line owns the task that keeps it up",
    "app/chain/builder.py": "a worker process serves every request: the builder owns the task that feeds it, and ends both",
    "app/chain/sharing.py": "what was filled is left for others behind its request: the sharing owns that, and ends it",
    "app/chain/flight.py": "a fill outlives the request that began it: its flight owns the task",
}
_LOOP = re.compile(r"(^|_)loop$")


def forbidden_calls(source: str, path: PurePosixPath) -> Iterator[Complaint]:
    """Middleware that buffers, timeouts that swallow cancellation, tasks that nobody owns."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.Attribute) and _last(node) == "BaseHTTPMiddleware":
            yield Complaint(
                node.lineno, "BaseHTTPMiddleware hides disconnects and frees places before the body is sent"
            )
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in ("BaseHTTPMiddleware", "wait_for") or (
                    alias.name in ("create_task", "ensure_future") and str(path) not in TASK_OWNERS
                ):
                    yield Complaint(node.lineno, f"{alias.name} is not used here")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and _last(decorator.func) == "middleware":
                    yield Complaint(node.lineno, "@...middleware is BaseHTTPMiddleware under another name")
        if isinstance(node, ast.Attribute) and _last(node.value) == "asyncio":
            if node.attr == "wait_for":
                yield Complaint(node.lineno, "asyncio.timeout, not asyncio.wait_for")
            if node.attr in ("create_task", "ensure_future") and str(path) not in TASK_OWNERS:
                yield Complaint(
                    node.lineno, f"asyncio.{node.attr}: every task has an owner, a TaskGroup or one of TASK_OWNERS"
                )
        elif isinstance(node, ast.Attribute) and node.attr == "create_task" and str(path) not in TASK_OWNERS:
            value = node.value.func if isinstance(node.value, ast.Call) else node.value
            if _LOOP.search(_last(value)):
                yield Complaint(node.lineno, "a loop's create_task: every task has an owner")


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# --- names and sizes ------------------------------------------------------------------------------------------------

_EMPTY_STEMS = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "base", "managers", "services"})
_EMPTY_SUFFIX = re.compile(r"(Manager|Service|Helpers?|Utils?)$")


def empty_names(source: str, path: PurePosixPath) -> Iterator[Complaint]:
    """Names that accept everything, and so say nothing."""
    for part in path.with_suffix("").parts:
        if part in _EMPTY_STEMS:
            yield Complaint(1, f"a file named {part} refuses nothing: name it by what it knows")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _EMPTY_SUFFIX.search(node.name):
            yield Complaint(node.lineno, f"{node.name}: a noun of the field, not a verb in a noun's clothing")


_SUPPRESSION = re.compile(r"#\s*(noqa\b(?::\s*[A-Z0-9, ]+)?|type:\s*ignore(?:\[[\w, -]+\])?)(?P<rest>.*)")


def unexplained_suppressions(source: str, _path: PurePosixPath) -> Iterator[Complaint]:
    """A lint or type error that is let pass says why, on the same line."""
    for number, line in enumerate(source.splitlines(), start=1):
        match = _SUPPRESSION.search(line)
        if match and len(re.findall(r"\w+", match["rest"])) < 2:
            yield Complaint(number, f"{match[0].strip()}: for which reason?")


# --- words ----------------------------------------------------------------------------------------------------------

# Written so that no pattern matches itself.
_MACHINE = re.compile(
    r"(?<![\w.])/(?:wor[k]|roo[t]|home/\w+|tmp/design|opt/pyp[i])\b(?!\s*=)|\.librar[y]\b|farm-(?:studi[o]|benc[h])"
)
_MAKING = re.compile(
    r"\bsub-?agen[t]s?\b|\bthis sessio[n]\b|\b(?:ticke[t]|issu[e]) #?[0-9]+|\bstag[e] [0-9]+\b|\.\./share[d]\b|\bDESIG[N]\.md\b"
    r"|\b(?:contrac[t]|hous[e]|styl[e]|wir[e]|chain[s]|resilienc[e]|dialect[s]|peer[s]|case[s])\.md\b",
    re.IGNORECASE,
)


def foreign_words(text: str, _path: PurePosixPath) -> Iterator[Complaint]:
    """Places on one machine, and how the project came to be: it speaks of itself alone."""
    for number, line in enumerate(text.splitlines(), start=1):
        for pattern in (_MACHINE, _MAKING):
            if match := pattern.search(line):
                yield Complaint(number, f"{match[0]!r} says nothing to a reader of this project")


_PIP_SOURCE = re.compile(r"://|\bindex-ur[l]\b|\bfind-link[s]\b")
_NPM_SOURCE = re.compile(r"\"resolve[d]\"|^\s*(?:@[\w-]+:)?registr[y]\s*=")


def download_hosts(text: str, path: PurePosixPath) -> Iterator[Complaint]:
    """Lock files pin by name, version and hash; where packages come from is the machine's business."""
    source = _PIP_SOURCE if path.suffix == ".lock" else _NPM_SOURCE
    for number, line in enumerate(text.splitlines(), start=1):
        if match := source.search(line):
            yield Complaint(number, f"{match[0].strip()} in a lock file")


# --- dependencies ---------------------------------------------------------------------------------------------------

# Where the name that is imported is not that of the distribution.
_DISTRIBUTIONS = {"sha3": "safe-pysha3", "yaml": "pyyaml", "pydantic_core": "pydantic"}


def undeclared_imports(source: str, path: PurePosixPath, declared: frozenset[str]) -> Iterator[Complaint]:
    """Imports of distributions that the project does not ask for, and gets by luck."""
    for line, module in imported(ast.parse(source), path):
        top = module.split(".")[0]
        distribution = _DISTRIBUTIONS.get(top, top.replace("_", "-"))
        if top not in sys.stdlib_module_names and top not in ("app", "tests", "bench") and distribution not in declared:
            yield Complaint(line, f"{top} is not among the dependencies")
