"""Tokens of one consumer taken by ten processes at once, through a real PostgreSQL: exact, and how long each take is waited for.

The floor is a bare round trip, `SELECT 1` on the same connections, made in turn with the takes. For who asks five times as
often leases are taken from the first second on; what is told of him begins after it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from app.store.database import open_database
from app.store.migrating import make_ready
from bench.timing import ms, percentile
from tests.postgres import PostgresServer

PROCESSES = 10
BURST, AT_ONCE = 50, 200
PACED_PER_S, PACED_S = 20, 12.0
OFTEN_PER_S, OFTEN_S = 100, 5.0


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    with ExitStack() as held:
        url = held.enter_context(_database())
        takers = [held.enter_context(_taker(url)) for _ in range(PROCESSES)]
        _answers(takers)
        exact = _all(takers, "at_once", takes=AT_ONCE // PROCESSES, burst=BURST)
        paced = _all(takers, "paced", per_second=PACED_PER_S, seconds=PACED_S, beside=True)
        often = _all(takers, "paced", per_second=OFTEN_PER_S, seconds=OFTEN_S, beside=False)
    bare = _samples(paced, "bare")
    return [
        (f"allowed of {AT_ONCE} takes at once, of {BURST} there are", str(sum(each["allowed"] for each in exact)), ""),
        ("floor: p50 of a bare round trip", ms(percentile(bare, 0.5)), "1"),
        ("floor: p99 of a bare round trip", ms(percentile(bare, 0.99)), "1"),
        *_waited(paced, PACED_PER_S, bare),
        *_waited(often, OFTEN_PER_S, bare, after=OFTEN_PER_S),
    ]


def _waited(
    answers: list[dict[str, Any]], per_second: int, bare: list[float], after: int = 0
) -> Iterator[tuple[str, str, str]]:
    takes = [sample for answer in answers for sample in answer["takes"][after:]]
    who = f"{PROCESSES * per_second}/s of one consumer"
    for share in (0.5, 0.99):
        figure = percentile(takes, share)
        yield f"p{share * 100:.0f} of a take, {who}", ms(figure), f"{figure / percentile(bare, share):.2f}"
    layers = sum((Counter(answer["layers"]) for answer in answers), Counter[str]())
    yield f"decided by, {who}", ", ".join(f"{layer} {count}" for layer, count in sorted(layers.items())), ""


@contextmanager
def _database() -> Iterator[str]:
    """The URL of an empty database with our tables, on a server that keeps what it is told as one of yours does."""
    server = PostgresServer()
    asyncio.run(server.run("CREATE DATABASE takes"))
    url = server.url("takes")

    async def made() -> None:
        async with open_database(url) as database:
            await make_ready(database)

    asyncio.run(made())
    yield url
    asyncio.run(server.drop("takes"))


@contextmanager
def _taker(url: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "bench.taker", url, str(PROCESSES)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def _all(takers: list[subprocess.Popen[str]], word: str, **given: object) -> list[dict[str, Any]]:
    for taker in takers:
        assert taker.stdin is not None
        taker.stdin.write(json.dumps({"word": word, **given}) + "\n")
        taker.stdin.flush()
    return _answers(takers)


def _answers(takers: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    lines = [taker.stdout.readline() for taker in takers if taker.stdout is not None]
    return [json.loads(line) for line in lines]


def _samples(answers: list[dict[str, Any]], name: str) -> list[float]:
    return [sample for answer in answers for sample in answer[name]]
