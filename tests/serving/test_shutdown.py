"""Told to end: probes say no at once, what was asked is answered, nobody is left behind, and the exit code is meant.

The servers are real processes and the signals real signals; only the times are short.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from app.serving import ENDING_S
from app.settings import load_settings
from tests.scripted_behaviours import hang, held
from tests.scripted_node import ScriptedNode
from tests.serving.conftest import Certificate
from tests.serving.process import OTHER_PROOF, PROOF, ROOT, Line, Program, configuration, running, start, until

LONG_LAME_DUCK = {"shutdown": {"lame_duck_secs": 60, "drain_secs": 20}}


async def refuses_connections(program: Program) -> bool:
    try:
        line = await program.line()
    except ConnectionRefusedError:
        return True
    await line.close()
    return False


async def until_closed(program: Program) -> None:
    while not await refuses_connections(program):  # noqa: ASYNC110 - another process tells nobody
        await asyncio.sleep(0.01)


@pytest.fixture(params=["http", "https"])
def scheme(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What to start a server with, and how to speak to it: in plain text, and over TLS."""
    if request.param == "http":
        return {"tls": None, "settings": {}}
    certificate: Certificate = request.getfixturevalue("certificate")
    return {"tls": certificate.client, "settings": {"tls": certificate.settings}}


async def test_Q1_Q6_what_is_in_flight_is_answered_after_the_socket_closed(
    node: ScriptedNode, tmp_path: Path, scheme: dict[str, Any]
) -> None:
    gate = asyncio.Event()
    async with running(tmp_path, configuration(node.url, **scheme["settings"]), tls=scheme["tls"]) as program:
        node.script("eth_getBlockReceipts", held(gate))
        line = await program.line()
        await line.send(PROOF)
        await node.until("eth_getBlockReceipts")
        program.signal(signal.SIGTERM)
        await until_closed(program)
        await asyncio.sleep(0.5)  # nothing tells that it would not have waited
        assert program.process.poll() is None, "it waits for what is in flight"
        gate.set()
        reply = await line.reply()
        assert (reply.status, reply.json["blockNumber"]) == (200, 2)
        assert reply.headers["connection"] == "close"
        await line.closed_by_peer()
        assert await program.ended() == 0
        await program.leaves_nobody_behind()


async def test_Q2_probes_say_no_at_once_while_proofs_are_served(node: ScriptedNode, tmp_path: Path) -> None:
    async with running(tmp_path, configuration(node.url, **LONG_LAME_DUCK)) as program:
        await program.ready()
        kept = await program.line()
        assert "connection" not in (await kept.get(PROOF)).headers
        program.signal(signal.SIGTERM)
        await until(lambda: program.event("shutdown_started"), "the signal was seen")
        for _ in range(2):
            ready, health, alive = [await program.get(path) for path in ("/readyz", "/health", "/livez")]
            assert (ready.status, ready.json["reasons"][0]) == (503, "draining")  # a busy machine may add that it lags
            assert (health.status, health.json) == (503, {"status": "unhealthy", "reason": "draining"})
            assert alive.status == 200
            await asyncio.sleep(0.3)  # as a probe would
        assert b"\ncopath_draining 1.0\n" in (await program.get("/metrics")).body
        for line, path in ((kept, PROOF), (await program.line(), OTHER_PROOF)):
            reply = await line.get(path)
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            await line.closed_by_peer()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_Q3_a_second_signal_ends_at_once_and_leaves_nobody_behind(
    node: ScriptedNode, tmp_path: Path, second: signal.Signals
) -> None:
    took_s = []
    for turn in range(3):  # on a busy machine one try may be slow, three are not
        async with running(tmp_path / str(turn), configuration(node.url, **LONG_LAME_DUCK)) as program:
            node.always("eth_getBlockReceipts", hang())
            line = await program.line()
            await line.send(PROOF)
            await node.until("eth_getBlockReceipts", turn + 1)
            program.signal(signal.SIGTERM)
            await until(lambda: program.event("shutdown_started"), "the first signal was seen")
            assert len(program.family()) > 1, "there are builder processes to leave behind"
            sent = time.monotonic()
            program.signal(second)
            assert await asyncio.to_thread(program.process.wait) == 1
            took_s.append(time.monotonic() - sent)
            await program.leaves_nobody_behind()
            forced = program.event("force_exit")
            assert forced is not None
            assert (forced["reason"], forced["phase"]) == (second.name, "LAME_DUCK")
            assert program.event("shutdown_complete") is None
        if took_s[-1] <= 0.2:
            break
    assert min(took_s) <= 0.2


async def test_Q7_Q10_the_way_out_is_told_and_ends_with_0(node: ScriptedNode, tmp_path: Path) -> None:
    settings = {"shutdown": {"lame_duck_secs": 0.2, "drain_secs": 20}}
    async with running(tmp_path, configuration(node.url, **settings)) as program:
        assert (await program.get(PROOF)).status == 200
        program.signal(signal.SIGTERM)
        assert await program.ended() == 0
        told = [event for event in program.events if event["event"].startswith(("shutdown", "force"))]
        assert [event["event"] for event in told] == ["shutdown_started", "shutdown_complete"]
        assert (told[0]["signal"], told[1]["cut"]) == ("SIGTERM", False)
        assert program.plain_lines == []
        await program.leaves_nobody_behind()


async def test_Q10_ctrl_c_needs_no_lame_duck(node: ScriptedNode, tmp_path: Path) -> None:
    async with running(tmp_path, configuration(node.url, **LONG_LAME_DUCK)) as program:
        for member in program.family():  # as a terminal does
            os.kill(member, signal.SIGINT)
        assert await program.ended() == 0
        assert [event["event"] for event in program.events[-2:]] == ["shutdown_started", "shutdown_complete"]
        assert program.plain_lines == [], "no child complains of an interrupt"
        await program.leaves_nobody_behind()


async def test_a_signal_while_it_starts_ends_it_as_soon_as_it_can(tmp_path: Path) -> None:
    program = start(tmp_path, configuration("http://127.0.0.1:1", **LONG_LAME_DUCK))
    await until(lambda: program.handles(signal.SIGTERM), "it handles signals")
    program.signal(signal.SIGTERM)
    try:
        assert await program.ended() == 0
        await program.leaves_nobody_behind()
    finally:
        program.kill()


async def test_a_drain_that_runs_out_cuts_what_is_left_and_says_so(node: ScriptedNode, tmp_path: Path) -> None:
    # A drain is never shorter than a request may take, so this one is made so.
    shorter = "import app.serving as s; S = s.Shutdown; s.Shutdown = lambda lame, drain, ending: S(lame, 0.3, ending)"
    async with running(tmp_path, configuration(node.url), prelude=shorter) as program:
        node.script("eth_getBlockReceipts", hang())
        line, idle = await program.line(), await program.line()
        await line.send(PROOF)
        await node.until("eth_getBlockReceipts")
        program.signal(signal.SIGTERM)
        reply = await line.reply()
        assert (reply.status, reply.json["code"], reply.json["retriable"]) == (503, "Draining", True)
        assert reply.headers["connection"] == "close"
        assert int(reply.headers["retry-after"]) > 0
        await idle.closed_by_peer()
        assert await program.ended() == 0
        cut, complete = program.event("drain_cut"), program.event("shutdown_complete")
        assert cut is not None
        assert complete is not None
        assert (cut["requests"], complete["cut"]) == (1, True)
        assert program.plain_lines == []
        await program.leaves_nobody_behind()


async def test_Q6_a_tls_client_that_says_nothing_does_not_hold_up_the_end(
    node: ScriptedNode, tmp_path: Path, certificate: Certificate
) -> None:
    settings = configuration(node.url, tls=certificate.settings)
    async with running(tmp_path, settings, tls=certificate.client) as program:
        with socket.create_connection(("127.0.0.1", program.port)) as plain:
            # It never reads, so that it never sees the goodbye, and never answers it.
            silent = await asyncio.to_thread(certificate.client.wrap_socket, plain, server_hostname="127.0.0.1")
            told_at = time.monotonic()
            program.signal(signal.SIGTERM)
            assert await program.ended() == 0
            assert time.monotonic() - told_at < 15, "the event loop's own limit is 30"
            silent.close()


async def test_what_does_not_end_in_time_is_ended_and_leaves_nobody_behind(node: ScriptedNode, tmp_path: Path) -> None:
    stuck = """
import asyncio
import app.serving
from app.chain.chain import Chain

async def aclose(self):
    await asyncio.Event().wait()

Chain.aclose = aclose
app.serving.ENDING_S = 0.3
"""
    async with running(tmp_path, configuration(node.url), prelude=stuck) as program:
        program.signal(signal.SIGTERM)
        assert await program.ended() == 1
        forced = program.event("force_exit")
        assert forced is not None
        assert (forced["reason"], forced["phase"]) == ("overdue", "ENDING")
        await program.leaves_nobody_behind()


# --- under load -----------------------------------------------------------------------------------------------------

RATE = 50
CLIENTS = 10


class Load:
    """Keep-alive clients behind a balancer that withdraws once two probes in a row said no."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.withdrawn = asyncio.Event()
        self.first_no_at: float | None = None
        self.statuses: list[int] = []
        self.after_the_signal = 0
        self.asked_to_close = 0
        self.livez: set[int] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._balance())
            for number in range(CLIENTS):
                group.create_task(self._client(number))

    async def _balance(self) -> None:
        noes = 0
        while noes < 2:
            status = (await self.program.get("/readyz")).status
            self.livez.add((await self.program.get("/livez")).status)
            noes = noes + 1 if status == 503 else 0
            if noes and self.first_no_at is None:
                self.first_no_at = time.monotonic()
            await asyncio.sleep(0.1)
        self.withdrawn.set()

    async def _client(self, number: int) -> None:
        await asyncio.sleep(number / RATE)
        line: Line | None = None
        while not self.withdrawn.is_set():
            line = line or await self.program.line()
            reply = await line.get(PROOF if number % 2 else OTHER_PROOF)
            self.statuses.append(reply.status)
            self.after_the_signal += self.first_no_at is not None
            if reply.headers.get("connection") == "close":
                self.asked_to_close += 1
                await line.close()
                line = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLIENTS / RATE):
                    await self.withdrawn.wait()
        if line is not None:
            await line.close()


async def test_B57_no_request_fails_while_a_loaded_server_is_told_to_end(
    node: ScriptedNode, tmp_path: Path, scheme: dict[str, Any]
) -> None:
    lame_duck_s, timeout_s, drain_s = 1.5, 3, 4
    settings = {
        "admission": {"request_timeout_secs": timeout_s},
        "shutdown": {"lame_duck_secs": lame_duck_s, "drain_secs": drain_s},
        **scheme["settings"],
    }
    async with running(tmp_path, configuration(node.url, **settings), tls=scheme["tls"]) as program:
        idle = await program.line()
        await idle.get("/livez")
        silent = await program.line()
        await program.ready()  # what is fetched from now on is known to be final, and not asked for again
        for path in (PROOF, OTHER_PROOF):
            assert (await program.get(path)).status == 200
        hanging = await program.line()
        node.always("*", hang())  # from here on the node says nothing, and what is known must be enough
        await hanging.send("/api/v1/proofs/chain/blocks/3/transactions/0")
        await until(lambda: ["0x3", True] in node.params["eth_getBlockByNumber"], "a request waits for the node")
        load = Load(program)
        loading = asyncio.create_task(load.run())
        await until(lambda: len(load.statuses) > RATE // 2 or loading.done(), "the load is on")
        told_at = time.monotonic()
        program.signal(signal.SIGTERM)
        await loading
        assert load.first_no_at is not None
        assert load.first_no_at - told_at < lame_duck_s / 2
        assert set(load.statuses) == {200}
        assert load.after_the_signal > 0
        assert load.asked_to_close >= CLIENTS
        assert load.livez == {200}
        assert (await hanging.reply()).status in (503, 504)
        assert await program.ended() == 0
        assert time.monotonic() - told_at < lame_duck_s + drain_s + 5
        await idle.closed_by_peer()
        await silent.closed_by_peer()
        await program.leaves_nobody_behind()


def test_Q9_the_example_says_how_long_to_wait_for_the_end() -> None:
    path = ROOT / "config.example.yaml"
    shown = load_settings(str(path), {"ETHEREUM_RPC_KEY": "made-up-key"}).settings
    total_s = shown.shutdown.lame_duck_secs + shown.drain_secs + ENDING_S
    (where,) = [text for text in path.read_text().split("\n\n") if "\nshutdown:\n" in text]
    assert f"above {total_s:g} with these defaults" in where.replace("\n# ", " ")
    for supervisor in ("terminationGracePeriodSeconds", "TimeoutStopSec", "stop_grace_period"):
        assert supervisor in where


async def test_a_fault_that_nobody_caught_ends_it_with_1(node: ScriptedNode, tmp_path: Path) -> None:
    broken = """
import asyncio
from app.chain.chain import Chain

async def run(self):
    await asyncio.sleep(0.2)
    raise RuntimeError("S3cr3t")

Chain.run = run
"""
    async with running(tmp_path, configuration(node.url), prelude=broken) as program:
        assert await program.ended() == 1
        fault = program.event("unhandled_exception")
        assert fault is not None
        assert (fault["source"], fault["type"], fault["detail"]) == ("main", "RuntimeError", None)
        assert "S3cr3t" not in program.said
        assert program.plain_lines == []
        await program.leaves_nobody_behind()
