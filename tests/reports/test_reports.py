"""Each situation of `inputs` and `ours` has the outcome it wants, by the name of its file.

Situations that ask about nothing but their own chain share a server; the others have one each. All run in threads beside each
other, so that those that wait cost no time; each test waits for its own.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.made_blocks import make_block
from tests.reports.making import file_name, make_all
from tests.reports.node import PlayedNodes, played_nodes
from tests.reports.runner import Played, run_raw, run_start, serving

Json = Any

HERE = Path(__file__).parent
FILES = {
    path.name.split(".json")[0]: path
    for folder in ("inputs", "ours")
    for path in sorted((HERE / folder).iterdir())
    if ".json" in path.name
}
SHARED_AT_MOST = 30
"""Chains of one shared server."""

OPEN = {path.stem: path.read_text().strip() for path in sorted((HERE / "open").glob("*.txt"))}
"""What is not right yet, and what happens instead: a file each. A situation that is right by now fails until its file is gone."""


def _load(name: str) -> Json:
    path = FILES[name]
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


class Runs:
    """The situations of a session, each under way or done."""

    def __init__(
        self, names: Sequence[str], nodes: PlayedNodes, pool: ThreadPoolExecutor, starting: ThreadPoolExecutor
    ) -> None:
        self._nodes = nodes
        self._done: dict[str, Future[None]] = {}
        told = {name: _load(name) for name in names}
        kinds = {name: each.get("kind", "chains") for name, each in told.items()}
        raw = [name for name in names if kinds[name] == "raw_http"]
        starts = [name for name in names if kinds[name] == "start"]
        chains = [Played(name, told[name], nodes) for name in names if kinds[name] == "chains"]
        # Those that let time pass do so beside each other.
        waiting = [each.name for each in chains if each.waits and not each.alone]
        self._submit(pool, waiting, told, len(waiting))
        # A start keeps a processor busy: few at once.
        for name in starts:
            self._done[name] = starting.submit(run_start, told[name], nodes, f"start-{name}")
        for each in sorted(chains, key=lambda played: not played.waits):
            if each.alone:
                self._submit(pool, [each.name], told, 1)
        others = [each.name for each in chains if not (each.alone or each.waits)]
        for at in range(0, len(others), SHARED_AT_MOST):
            self._submit(pool, others[at : at + SHARED_AT_MOST], told, 1)
        self._submit(pool, raw, told, 1)

    def _submit(self, pool: ThreadPoolExecutor, names: Sequence[str], told: dict[str, Json], at_once: int) -> None:
        for name in names:
            self._done[name] = Future()
        if names:
            pool.submit(self._together, names, told, at_once)

    def _on_a_server(self, names: Sequence[str], told: dict[str, Json], at_once: int) -> None:
        """These situations on one server, so many at once."""
        played, key = {}, 1
        for name in names:
            if "upstream" in told[name]:
                played[name] = Played(name, told[name], self._nodes, key)
                key += len(told[name]["chains"])
        made = list(played.values()) or [Played("lone", LONE, self._nodes)]
        wait_ready = all(told[name].get("wait_ready", True) for name in names)
        runs = {name: played[name].run if name in played else partial(run_raw, told[name]) for name in names}
        with serving(made, wait_ready=wait_ready) as copath, ThreadPoolExecutor(at_once, "together") as together:
            for name in names:
                together.submit(self._settle, self._done[name], partial(runs[name], copath))

    def _together(self, names: Sequence[str], told: dict[str, Json], at_once: int) -> None:
        try:
            self._on_a_server(names, told, at_once)
        except BaseException as failure:  # noqa: BLE001 - each test of this server fails with it
            for name in names:
                if not self._done[name].done():
                    self._done[name].set_exception(failure)

    @staticmethod
    def _settle(done: Future[None], run: partial[None]) -> None:
        try:
            run()
        except Exception as failure:  # noqa: BLE001 - it is that of one test
            done.set_exception(failure)
        else:
            done.set_result(None)

    def outcome(self, name: str) -> None:
        """Waits for a situation; raises what was wrong."""
        self._done[name].result()


LONE = {
    "upstream": {"n": {"chainId": 1, "blocks": [make_block(1, bytes(32), [])]}},
    "chains": [{"chain_key": 1, "name": "one", "upstream": "n"}],
    "requests": [],
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """Every situation that this run of pytest asks for."""
    wanted = [
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_report"
    ]
    with played_nodes() as nodes, ThreadPoolExecutor(6) as pool, ThreadPoolExecutor(2) as starting:
        yield Runs(wanted, nodes, pool, starting)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.xfail(raises=AssertionError, reason=OPEN[name])] if name in OPEN else [])
        for name in FILES
    ],
)
def test_report(name: str, runs: Runs) -> None:
    runs.outcome(name)


def test_ours_are_what_is_made() -> None:
    made = {file_name(name, told): told for name, told in make_all().items()}
    assert {path.name for path in (HERE / "ours").iterdir()} >= made.keys()
    for name, told in made.items():
        assert _load(name.split(".json")[0]) == told, f"{name}: write it with python -m tests.reports.making"


def test_nothing_open_is_unknown() -> None:
    assert OPEN.keys() <= FILES.keys()
