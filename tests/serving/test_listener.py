"""The socket: what holds it up and what does not, and how its connections end."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.serving import listener as listening
from app.serving.farewell import Farewell
from app.serving.listener import Listener
from app.settings import load_settings
from tests.scripted_node import ScriptedNode
from tests.serving.conftest import Certificate
from tests.serving.process import Line, configuration, running


@asynccontextmanager
async def listener(app: Any, tls: Certificate | None = None, **house: bool) -> AsyncIterator[tuple[Listener, int]]:
    flags = {"eth_rpc_url": "http://127.0.0.1:1", "bind_port": "0"}
    if tls is not None:
        flags |= {"tls.certificate": str(tls.certificate), "tls.private_key": str(tls.private_key)}
    opened = Listener(Farewell(app), load_settings(None, {}, flags).settings)
    await opened.bind()
    await opened.accept({"house": SimpleNamespace(**{"draining": False, "closing": False, **house})})
    try:
        yield opened, int(opened.url.rpartition(":")[2])
    finally:
        opened.close()


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_an_answer_has_a_date_and_no_word_of_the_server() -> None:
    async with listener(hello) as (_, port):
        line = await Line.open(port)
        reply = await line.get("/")
        assert reply.body == b"hello"
        assert reply.headers["date"].endswith("GMT")
        assert not {"server", "connection"} & set(reply.headers)


async def test_Q8_a_handshake_that_stops_half_way_ends(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listening._HANDSHAKE_S == 10
    monkeypatch.setattr(listening, "_HANDSHAKE_S", 0.2)
    async with listener(hello, certificate) as (_, port):
        silent = await Line.open(port)
        assert (await (await Line.open(port, certificate.client)).get("/")).status == 200
        async with asyncio.timeout(30):  # the event loop's own limit is 60
            await silent.closed_by_peer()
        assert (await (await Line.open(port, certificate.client)).get("/")).status == 200


async def test_Q8_what_is_no_handshake_disturbs_nobody(
    node: ScriptedNode, certificate: Certificate, tmp_path: Path
) -> None:
    settings = configuration(node.url, tls=certificate.settings)
    async with running(tmp_path, settings, tls=certificate.client) as program:
        rude = await Line.open(program.port)
        rude.writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await rude.closed_by_peer()
        with pytest.raises(ssl.SSLError):
            await Line.open(program.port, ssl.create_default_context())  # one that does not trust it
        metrics = (await program.get("/metrics")).body.decode()
        faults = [line for line in metrics.splitlines() if line.startswith("copath_unhandled_exceptions_total")]
        assert faults
        assert {line.rpartition(" ")[2] for line in faults} == {"0.0"}
        assert program.plain_lines == []


async def test_Q8_failing_to_accept_is_not_the_end(node: ScriptedNode, tmp_path: Path) -> None:
    async with running(tmp_path, configuration(node.url)) as program:
        pid = program.process.pid
        used = program.open_files()
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 3, hard))
        crowd = [await program.line() for _ in range(10)]
        for line in crowd:
            await line.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert (await program.get("/livez")).status == 200


async def test_Q6_busy_connections_end_after_their_answer_and_idle_ones_at_once() -> None:
    gate, entered = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            entered.set()
            await gate.wait()
        await hello(scope, receive, send)

    async with listener(slow) as (opened, port):
        busy, idle, used = [await Line.open(port) for _ in range(3)]
        assert (await used.get("/")).status == 200
        await busy.send("/slow")
        await entered.wait()
        opened.close()
        assert opened.dismiss()
        await idle.closed_by_peer()
        await used.closed_by_peer()
        assert opened.dismiss(), "one is still in flight"
        gate.set()
        reply = await busy.reply()
        assert (reply.body, reply.headers["connection"]) == (b"hello", "close")
        await busy.closed_by_peer()
        await until_gone(opened)


async def test_a_request_that_is_cut_is_told_and_a_client_that_does_not_listen_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "_CUT_S", 0.2)
    entered = {"/endless": asyncio.Event(), "/stream": asyncio.Event()}

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        entered[scope["path"]].set()
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
        await asyncio.Event().wait()

    async with listener(endless, draining=True, closing=True) as (opened, port):
        waiting = await Line.open(port)
        await waiting.send("/endless")
        deaf = socket.create_connection(("127.0.0.1", port))
        deaf.sendall(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
        for event in entered.values():
            await event.wait()
        opened.close()
        opened.dismiss()
        async with asyncio.TaskGroup() as group:
            group.create_task(opened.cut())
            reply = await waiting.reply()
        assert (reply.status, reply.json["code"]) == (503, "Draining")
        assert (reply.json["retriable"], reply.headers["connection"]) == (True, "close")
        await until_gone(opened)
        deaf.close()


async def until_gone(opened: Listener) -> None:
    async with asyncio.timeout(30):
        while opened.dismiss():  # noqa: ASYNC110 - the protocol tells nobody
            await asyncio.sleep(0.005)
