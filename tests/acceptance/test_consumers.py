"""Consumers of a real server: keys from the command line, and a shared rate whose database fails in every way there is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests import launching
from tests.acceptance.server import Answer, Client, Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.postgres import PostgresServer, postgres_server
from tests.store.line import Line

__all__ = ["postgres_server"]

PEPPER = "a pepper of the acceptance tests"
SEPOLIA = chain(7, "sepolia", 11155111, "demo://sepolia")
PATHS = [f"/api/v1/proofs/sepolia/blocks/{height}/transactions/0" for height in (175881, 175882)]


def keys(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return launching.run("keys", *arguments, "--config", str(config))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of a database with keys."""
    file = tmp_path / "keys.yaml"
    settings = {"database_url": f"sqlite+aiosqlite:///{tmp_path}/kept.db", "consumers": {"pepper": PEPPER}}
    file.write_text(yaml.safe_dump({**settings, "chains": [SEPOLIA]}))
    return file


def test_R6_keys_from_the_command_line_and_nothing_of_them_anywhere(config: Path, tmp_path: Path) -> None:
    made = keys(config, "create", "a partner")
    assert made.returncode == 0, made.stderr
    key, key_id = made.stdout.strip(), made.stdout.split("_")[1]
    chosen = {"api_keys_required": True, "pepper": PEPPER, "rate": {"enabled": True, "per_second": 50, "burst": 500}}
    database = f"sqlite+aiosqlite:///{tmp_path}/kept.db"
    with running_copath(SEPOLIA, database_url=database, consumers=chosen, logging={"level": "debug"}) as copath:
        ask = copath.client.send
        assert copath.get(PATHS[0]).code == "Unauthorized"
        for field in ({"Authorization": f"Bearer {key}"}, {"X-API-Key": key}):
            answer = ask("GET", PATHS[0], headers=field)
            assert (answer.status, answer.headers["ratelimit-policy"]) == (200, '"default";q=500;w=10')
        later = keys(config, "create", "another")
        second = later.stdout.strip()
        assert until(lambda: ask("GET", PATHS[0], headers={"X-API-Key": second}).status == 200, "a new key counts")
        assert keys(config, "revoke", key_id).returncode == 0
        assert until(lambda: ask("GET", PATHS[0], headers={"X-API-Key": key}).status == 401, "it counts no more")
        listed = {line.split()[0]: line for line in keys(config, "list").stdout.splitlines()}
        assert ("revoked" in listed[key_id], "counts" in listed[second.split("_")[1]]) == (True, True)
        said = [copath.log.read_bytes(), ask("GET", "/metrics").body, ask("GET", "/api/v1/chains").body]
        said += [file.read_bytes() for file in tmp_path.glob("kept.db*")]
    for text in (*said, made.stderr.encode(), repr(listed).encode()):
        for secret in (key, second):
            assert secret.rpartition("_")[2].encode() not in text
        assert PEPPER.encode() not in text


def test_keys_need_a_pepper_and_a_database(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"database_url": "sqlite+aiosqlite:///no/such/place.db", "chains": [SEPOLIA]}))
    without = keys(file, "list")
    assert (without.returncode, len(without.stderr.splitlines())) == (2, 1)
    assert "consumers.pepper_file" in without.stderr
    file.write_text(file.read_text() + f"consumers: {{pepper: {PEPPER}}}\n")
    nowhere = keys(file, "revoke", "0123456789ab")
    assert (nowhere.returncode, len(nowhere.stderr.splitlines())) == (1, 1)
    assert PEPPER not in nowhere.stderr


# --- (e): the database fails ----------------------------------------------------------------------------------------


class Asking:
    """Whoever asks for known proofs, and keeps count."""

    def __init__(self, copath: Copath) -> None:
        self.copath = copath
        self.client = Client(copath.port)
        self.slowest_s = 0.0

    def answers(self, times: int = 10) -> list[Answer]:
        answers = []
        for number in range(times):
            began = time.monotonic()
            answers.append(self.client.get(PATHS[number % len(PATHS)]))
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        return answers

    def decided(self, layer: str) -> float:
        return self.copath.metric("copath_consumer_ratelimit_decisions_total", layer=layer)

    async def served(self, times: int = 10) -> None:
        """Every one of these requests is."""
        answers = await asyncio.to_thread(self.answers, times)
        assert [each.status for each in answers] == [200] * times, self.copath.tail()

    async def shared_again(self) -> None:
        """The rate comes out of the database again, without a restart."""
        before = self.decided("shared")

        def asked() -> bool:
            self.answers(1)
            return self.decided("shared") > before

        await asyncio.to_thread(until, asked, "the shared rate is asked for again")


async def test_acceptance_e_whatever_becomes_of_the_database_proofs_are_served(
    postgres_server: PostgresServer,
) -> None:
    name = await postgres_server.create()
    socket_path = f"{postgres_server.socket_folder}/.s.PGSQL.5432"
    async with Line(socket_path) as line:
        url = postgres_server.url(name, host="127.0.0.1", port=line.port, query={})
        rate = {"enabled": True, "per_second": 1000, "burst": 10_000}

        def started() -> Iterator[Copath]:
            with running_copath(SEPOLIA, database_url=url, consumers={"pepper": PEPPER, "rate": rate}) as copath:
                yield copath

        site = started()
        copath = await asyncio.to_thread(next, site)
        try:
            asking = Asking(copath)
            await asking.served()
            await asking.shared_again()

            async def kill_connections() -> None:
                await postgres_server.run(
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
                )

            async def refuse_connections() -> None:
                await postgres_server.run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
                await kill_connections()

            async def allow_connections() -> None:
                await postgres_server.run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

            async def slow_down() -> None:
                line.slow_by_s = 5.0

            async def speed_up() -> None:
                line.slow_by_s = 0.0

            async def freeze() -> None:
                line.freeze()

            async def thaw() -> None:
                line.thaw()

            async def nothing() -> None:
                return None

            ways: list[tuple[str, Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]] = [
                ("gone", line.cut, line.restore),
                ("failed over", kill_connections, nothing),
                ("out of connections", refuse_connections, allow_connections),
                ("silent", freeze, thaw),
                ("slow", slow_down, speed_up),
            ]
            for way, breaks, mends in ways:
                await breaks()
                alone = asking.decided("fallback")
                await asking.served(30)
                if way != "failed over":
                    assert asking.decided("fallback") > alone, way
                await mends()
                await asking.shared_again()
            served = copath.metric("copath_http_requests_total", status_class="5xx")
            assert served == 0
            assert copath.metric("copath_ratelimit_backend_errors_total", op="take") >= 1
            assert asking.slowest_s < 1.0, "nobody waits for a database"
        finally:
            await asyncio.to_thread(lambda: [*site])
    await postgres_server.drop(name)


async def test_a_database_that_is_gone_has_one_line_and_one_when_it_is_back(postgres_server: PostgresServer) -> None:
    """Ledgers of two chains, leases, rates, keys and spendings all ask it."""
    name = await postgres_server.create()
    mainnet = chain(2, "mainnet-early", 1, "demo://mainnet-early")
    consumers = {"pepper": PEPPER, "rate": {"enabled": True, "per_second": 1000, "burst": 10_000}}
    async with Line(f"{postgres_server.socket_folder}/.s.PGSQL.5432") as line:
        url = postgres_server.url(name, host="127.0.0.1", port=line.port, query={})

        def started() -> Iterator[Copath]:
            with running_copath(SEPOLIA, mainnet, database_url=url, consumers=consumers) as copath:
                yield copath

        site = started()
        copath = await asyncio.to_thread(next, site)

        def said() -> list[str]:
            lines = [json.loads(each) for each in copath.log.read_text().splitlines() if each.startswith("{")]
            quiet = ("request", "listening", "config_resolved", "database_migrated", "consumer_keys_read")
            return [
                f"{each['event']} {each.get('error', '')} {each['timestamp']}"
                for each in lines
                if each["event"] not in quiet
            ]

        def keys_in_vain() -> float:
            return copath.metric("copath_ratelimit_backend_errors_total", op="keys")

        def ledgers_up() -> list[float]:
            return [copath.metric("copath_ledger_up", chain=each) for each in ("sepolia", "mainnet-early")]

        def everybody_met_it(before: float) -> bool:
            copath.get(PATHS[0])
            return ledgers_up() == [0, 0] and keys_in_vain() >= before + 5

        def is_back(times: int) -> bool:
            return ledgers_up() == [1, 1] and "database_back" in "".join(said()[-1:]) and len(said()) >= times

        try:
            await asyncio.to_thread(until, lambda: copath.get(PATHS[0]).status == 200, "it serves")
            before = len(said())
            for nth in (1, 2):
                failed = await asyncio.to_thread(keys_in_vain)
                await line.cut()
                await asyncio.to_thread(until, partial(everybody_met_it, failed), "everybody met the loss")
                await line.restore()
                await asyncio.to_thread(until, partial(is_back, before + 2 * nth), "it is back")
            told = said()[before:]
            assert [each.split()[0] for each in told] == ["database_unavailable", "database_back"] * 2, "\n".join(told)
        finally:
            await asyncio.to_thread(next, site, None)
    await postgres_server.drop(name)
