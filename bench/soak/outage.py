"""Ten minutes without any node: what three replicas still answer of what they knew, one of them started anew each minute.

They share a PostgreSQL and a block store. Every proof that was served before is asked of every replica again and again.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.acceptance.recorded_node import running_node
from tests.acceptance.server import Copath
from tests.acceptance.test_fleet import WITH_TRANSACTIONS, Fleet, all_at_once
from tests.acceptance.waiting import until
from tests.postgres import PostgresServer

MINUTES = 10
REPLICAS = 3
KNOWN = 12
PAUSE_S = 0.5


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    server = PostgresServer()
    try:
        url = server.url(asyncio.run(server.create()))
        with running_node() as node, tempfile.TemporaryDirectory(prefix="copath-soak-") as folder:
            statuses = _soak(Fleet(node, "outage", Path(folder), url), Path(folder))
    finally:
        server.close()
    asked = sum(statuses.values())
    return [
        (f"known proofs asked for in {MINUTES} minutes without a node", f"{asked:,}", ""),
        ("answered with 200", f"{statuses[200]:,}", f"{statuses[200] / asked:.4f}"),
    ]


def _soak(fleet: Fleet, place: Path) -> Counter[int]:
    paths = [fleet.path(height) for height in WITH_TRANSACTIONS[:KNOWN]]
    statuses: Counter[int] = Counter()
    with ExitStack() as first:
        replicas = first.enter_context(fleet.replicas(REPLICAS))
        all_at_once(replicas, paths)
        until(
            lambda: len([path for path in (place / "blocks").rglob("*") if path.is_file()]) >= len(paths), "every entry"
        )
        time.sleep(2)  # what is noted, is by then
        with fleet.out():
            for _ in range(MINUTES):
                with fleet.replicas(1) as (anew,):
                    _ask_for_a_minute([*replicas[1:], anew], paths, statuses)
    return statuses


def _ask_for_a_minute(replicas: list[Copath], paths: list[str], statuses: Counter[int]) -> None:
    ends_at = time.monotonic() + 60
    while time.monotonic() < ends_at:
        for copath in replicas:
            statuses.update(copath.get(path).status for path in paths)
        time.sleep(PAUSE_S)
