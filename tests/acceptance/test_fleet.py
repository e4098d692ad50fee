"""Three servers on one PostgreSQL and one block store: one fill, one poll and one backfill for all of them."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.sepolia_range import RECORDS, SEPOLIA, WITH_TRANSACTIONS
from tests.acceptance.server import Answer, Client, Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.postgres import PostgresServer, postgres_server
from tests.store.line import Line

__all__ = ["postgres_server"]

REPLICAS = 3
LEASE_S = 4.0
SLOW_S = 5.0
BOUND_S = 10.0
"""Longer than an answer takes on a busy machine whatever the database does, and shorter than one that waits for it."""


class Fleet:
    """A recorded node, and servers that share a database and a block store."""

    def __init__(
        self, node: RecordedNode, name: str, place: Path, database_url: str, *, backfill: bool = False
    ) -> None:
        self.node = node.chains[name] = RecordedChain(SEPOLIA, RECORDS.values())
        self.name = name
        self._settings: dict[str, object] = {
            "database_url": database_url,
            "block_store_url": f"file:{place / 'blocks'}",
            "block_store": {"shared": True},
        }
        cache = {"merkle_backfill_enabled": backfill, "merkle_retention_blocks": len(RECORDS)}
        self._chain = chain(7, name, SEPOLIA, node.url(name), cache=cache)

    @contextmanager
    def replicas(self, count: int = REPLICAS, **settings: object) -> Iterator[list[Copath]]:
        chosen = self._settings | settings
        with ExitStack() as running:
            yield [running.enter_context(running_copath(self._chain, **chosen)) for _ in range(count)]

    def path(self, height: int) -> str:
        return f"/api/v1/proofs/{self.name}/blocks/{height}/receipts/0"

    def fetches(self) -> dict[str, int]:
        return {"blocks": self.node.block_fetches(), "receipts": self.node.hits("eth_getBlockReceipts")}

    @contextmanager
    def out(self) -> Iterator[None]:
        """The node answers nothing but errors."""
        before = dict(self.node.answers)

        def refuse(_: tuple[Any, ...]) -> Any:
            raise ConnectionError

        methods = ("eth_getBlockByNumber", "eth_getBlockByHash", "eth_getBlockReceipts", "eth_getTransactionByHash")
        self.node.answers = dict.fromkeys((*methods, "eth_chainId", "eth_blockNumber"), refuse)
        try:
            yield
        finally:
            self.node.answers = before


@pytest.fixture
def database_url(postgres_server: PostgresServer) -> Iterator[str]:
    name = asyncio.run(postgres_server.create())
    yield postgres_server.url(name)
    asyncio.run(postgres_server.drop(name))


def ask(copath: Copath, path: str) -> Answer:
    client = Client(copath.port)
    try:
        return client.get(path)
    finally:
        client.close()


def all_at_once(replicas: list[Copath], paths: list[str]) -> list[Answer]:
    with ThreadPoolExecutor(len(paths)) as pool:
        asked = [pool.submit(ask, replicas[at % len(replicas)], path) for at, path in enumerate(paths)]
        return [answer.result() for answer in asked]


def require_shared_polls(replicas: list[Copath]) -> None:
    """That they ask where the chain stands hardly more often than one alone, which makes each poll itself."""

    def polls(result: str) -> float:
        return sum(copath.metric("copath_shared_head_polls_total", result=result) for copath in replicas)

    made, seen = polls("made"), polls("made") + polls("received")
    until(lambda: polls("made") + polls("received") >= seen + 6 * len(replicas), "some rounds")
    made, seen = polls("made") - made, polls("made") + polls("received") - seen
    assert made <= 1.2 * seen / len(replicas) + 1


def test_40_identical_cold_requests_to_three_replicas_cost_one_fetch_and_one_poll_is_for_all(
    node: RecordedNode, tmp_path: Path, database_url: str
) -> None:
    fleet = Fleet(node, "fleet-one-fetch", tmp_path, database_url)
    with fleet.replicas() as replicas:
        height = WITH_TRANSACTIONS[0]
        with fleet.node.held("eth_getBlockReceipts") as gate, ThreadPoolExecutor(40) as pool:
            asked = [pool.submit(ask, replicas[at % REPLICAS], fleet.path(height)) for at in range(40)]
            until(lambda: fleet.node.hits("eth_getBlockReceipts") == 1, "the fill")
            until(
                lambda: sum(copath.metric("copath_http_requests_in_flight") for copath in replicas) >= 40, "everybody"
            )
            gate.set()
            answers = [answer.result() for answer in asked]
        assert {answer.status for answer in answers} == {200}, {answer.body[:200] for answer in answers}
        assert len({answer.body for answer in answers}) == 1
        assert fleet.fetches() == {"blocks": 1, "receipts": 1}
        require_shared_polls(replicas)


def test_a_holder_that_is_killed_costs_one_lease_time_and_one_fetch(
    node: RecordedNode, tmp_path: Path, database_url: str
) -> None:
    fleet = Fleet(node, "fleet-killed", tmp_path, database_url)
    with fleet.replicas() as replicas, ThreadPoolExecutor(20) as pool:
        height = WITH_TRANSACTIONS[1]
        with fleet.node.held("eth_getBlockReceipts") as gate:
            pool.submit(ask, replicas[0], fleet.path(height))
            until(lambda: fleet.node.hits("eth_getBlockReceipts") == 1, "the holder's fill")
            asked = [pool.submit(ask, replicas[1 + at % 2], fleet.path(height)) for at in range(10)]
            until(
                lambda: sum(copath.metric("copath_http_requests_in_flight") for copath in replicas[1:]) >= 10,
                "everybody else",
            )
            replicas[0].process.kill()
            until(lambda: fleet.node.hits("eth_getBlockReceipts") == 2, "who takes over", patience_s=3 * LEASE_S)
            gate.set()
        answers = [answer.result() for answer in asked]
        assert {answer.status for answer in answers} == {200}, {answer.body[:200] for answer in answers}
        assert fleet.node.hits("eth_getBlockReceipts") == 2


def test_with_every_node_gone_each_replica_serves_what_any_of_them_knew(
    node: RecordedNode, tmp_path: Path, database_url: str
) -> None:
    fleet = Fleet(node, "fleet-alone", tmp_path, database_url)
    paths = [fleet.path(height) for height in WITH_TRANSACTIONS[2:8]]
    with fleet.replicas() as replicas:
        before = [answer.body for answer in all_at_once(replicas, paths)]
        noted = asyncio.run(_count(database_url, "SELECT count(*) FROM blocks"))
        until(lambda: asyncio.run(_count(database_url, "SELECT count(*) FROM blocks")) >= len(paths), f"notes: {noted}")
        until(lambda: len(list((tmp_path / "blocks").rglob("??" + "?" * 62))) >= len(paths), "entries")
        with fleet.out(), fleet.replicas(1) as restarted:
            for copath in (*replicas, *restarted):
                answers = [copath.get(path) for path in paths]
                assert [answer.status for answer in answers] == [200] * len(paths), answers[0].body[:200]
                assert [answer.body for answer in answers] == before


def test_one_replica_backfills_and_another_takes_over(node: RecordedNode, tmp_path: Path, database_url: str) -> None:
    fleet = Fleet(node, "fleet-backfill", tmp_path, database_url, backfill=True)

    def states(replicas: list[Copath]) -> list[str]:
        return [copath.get(f"/api/v1/chains/{fleet.name}").json["backfill"]["state"] for copath in replicas]

    with fleet.replicas() as replicas:
        until(lambda: "caught up" in states(replicas), "the backfill")
        assert sorted(states(replicas)) == ["caught up", "done by another replica", "done by another replica"]
        assert fleet.fetches() == {"blocks": len(RECORDS), "receipts": len(RECORDS)}
        worker = replicas[states(replicas).index("caught up")]
        worker.process.kill()
        others = [copath for copath in replicas if copath is not worker]
        until(lambda: "caught up" in states(others), "who takes over")
        assert fleet.fetches() == {"blocks": len(RECORDS), "receipts": len(RECORDS)}, "nothing is filled twice"


# --- whatever becomes of the database -------------------------------------------------------------------------------


class Distance:
    """A database at the other end of a line, which stands on an event loop of its own."""

    def __init__(self, server: PostgresServer, name: str, do: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.server = server
        self.name = name
        self._do = do
        self.line = Line(f"{server.socket_folder}/.s.PGSQL.5432")
        do(self.line.restore())

    @property
    def url(self) -> str:
        """By way of the line."""
        return self.server.url(self.name, host="127.0.0.1", port=self.line.port, query={})

    def count(self, table: str) -> int:
        return asyncio.run(_count(self.server.url(self.name), f"SELECT count(*) FROM {table}"))

    @contextmanager
    def down(self) -> Iterator[None]:
        """Nobody is there."""
        self._do(self.line.cut())
        yield
        self._do(self.line.restore())

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It accepts connections, and says nothing."""
        self._do(_called(self.line.freeze))
        yield
        self._do(_called(self.line.thaw))

    @contextmanager
    def slow(self) -> Iterator[None]:
        """Whatever is said takes its time."""
        self.line.slow_by_s = SLOW_S
        yield
        self.line.slow_by_s = 0.0

    @contextmanager
    def full(self) -> Iterator[None]:
        """Others have all connections."""
        taken = self._do(_all_connections(self.server, self.name))
        yield
        self._do(_closed(taken))

    @contextmanager
    def restarted(self) -> Iterator[None]:
        """It is again; all connections have ended."""
        self.server.stop()
        self.server.start()
        yield


@pytest.fixture
def distance(postgres_server: PostgresServer) -> Iterator[Distance]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def do(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    name = do(postgres_server.create())
    opened = Distance(postgres_server, name, do)
    yield opened
    do(opened.line.cut())
    do(postgres_server.drop(name))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_proofs_are_served_whatever_becomes_of_the_database(
    node: RecordedNode, tmp_path: Path, distance: Distance
) -> None:
    fleet = Fleet(node, "fleet-database", tmp_path, distance.url)
    heights = iter(WITH_TRANSACTIONS)
    warm = fleet.path(next(heights))
    asked = 1
    with fleet.replicas() as replicas:
        assert {answer.status for answer in all_at_once(replicas, [warm] * REPLICAS)} == {200}
        ways: list[Callable[[], AbstractContextManager[None]]] = [
            distance.down,
            distance.frozen,
            distance.slow,
            distance.full,
            distance.restarted,
        ]
        for way in ways:
            cold = [fleet.path(height) for height in islice(heights, 2)]
            with way():
                for paths in ([warm] * REPLICAS, cold * REPLICAS, cold * REPLICAS):
                    began_at = time.monotonic()
                    answers = all_at_once(replicas, paths)
                    took_s = time.monotonic() - began_at
                    assert {answer.status for answer in answers} == {200}, (way.__name__, answers[0].body[:200])
                    assert took_s < BOUND_S, (way.__name__, took_s)
                assert {copath.get("/readyz").status for copath in replicas} == {200}
            asked += len(cold)
            until(lambda: all(copath.metric("copath_ledger_up") == 1 for copath in replicas), f"mended: {way.__name__}")
            until(lambda: distance.count("blocks") == asked, f"noted although {way.__name__}")  # noqa: B023
        for copath in replicas:
            assert copath.metric("copath_unhandled_exceptions_total", source="asgi") == 0
            assert copath.metric("copath_ledger_dropped_total") == 0


@pytest.mark.parametrize("way", ["frozen", "down"])
def test_a_database_that_hangs_keeps_no_process_from_ending(
    way: str, node: RecordedNode, tmp_path: Path, distance: Distance
) -> None:
    fleet = Fleet(node, f"fleet-ending-{way}", tmp_path, distance.url, backfill=True)
    with fleet.replicas(2, shutdown={"lame_duck_secs": 0}) as replicas:
        assert {answer.status for answer in all_at_once(replicas, [fleet.path(WITH_TRANSACTIONS[0])] * 2)} == {200}
        with getattr(distance, way)():
            assert {answer.status for answer in all_at_once(replicas, [fleet.path(WITH_TRANSACTIONS[1])] * 2)} == {200}
            for copath in replicas:
                copath.process.send_signal(signal.SIGTERM)
            assert [copath.process.wait(timeout=30) for copath in replicas] == [0, 0]


async def _called(call: Callable[[], None]) -> None:
    call()


async def _all_connections(server: PostgresServer, name: str) -> list[asyncpg.Connection]:
    """Every connection that the server has; those of others to the database are ended."""
    taken = [await server.connect()]
    for _ in range(4):
        await taken[0].execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                taken.append(await server.connect())
    return taken


async def _closed(connections: list[asyncpg.Connection]) -> None:
    for connection in connections:
        await connection.close()


async def _count(url: str, query: str) -> int:
    link = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        return int(await link.fetchval(query))
    finally:
        await link.close()
