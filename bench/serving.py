"""Warm GETs through the whole application, in process: a receipt proof of 10 KB with and without observing, a usc proof, a probe.

The floor is a bare framework route that sends a body of the same size. Requests are counted against processor time: a machine
that is busy with something else gives the same ratios.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import ASGIApp

from app.api.cors import Cors
from app.api.guard import Guard
from app.api.observe import Bypass, HttpMetrics, Observe
from app.api.visit import REQUEST_ID, Visit, begin
from app.asgi import create_app
from app.house import demo_chains, demo_examples, open_house
from app.log import configure_logging
from app.settings import demo_settings

ROUNDS, SECONDS = 3, 1.0

Ask = Callable[[str], Awaitable[tuple[int, bytes]]]


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    return asyncio.run(measure())


async def measure() -> list[tuple[str, str, str]]:
    """Requests in a second of one core, one after the other: the best of a few rounds, in which all take turns."""
    settings = demo_settings(demo_chains(), {}, {"logging.level": "error"}).settings
    paths = dict(zip(("receipt", "log", "blob", "deposit", "usc"), (path for _, path in demo_examples()), strict=False))
    app = create_app(settings, open_house)
    async with running(app) as (ask, house):
        for chain in house.chains.values():
            await chain.anchored.wait()
        bodies = {name: await ask(path) for name, path in paths.items()}
        assert all(status == 200 for status, _ in bodies.values()), bodies
        size, state = len(bodies["receipt"][1]), {"house": house}
        unseen, counted = unobserved(app)
        questions: dict[str, Callable[[], Awaitable[object]]] = {
            "floor: a bare framework route with that body": lambda: call(bare(size), "/", {}),
            f"raw ASGI, {size} bytes": lambda: call(floor(size), "/", {}),
            "warm GET, receipt proof": lambda: ask(paths["receipt"]),
            "the same without request id, metrics, log": lambda: call(unseen, paths["receipt"], state),
            "the same with metrics, without id and log": lambda: call(counted, paths["receipt"], state),
            "the same with everything, its line written": lambda: ask(paths["receipt"]),
            "warm GET, usc proof": lambda: ask(paths["usc"]),
            "warm GET, /livez": lambda: ask("/livez"),
        }
        rates = dict.fromkeys(questions, 0.0)
        for _ in range(ROUNDS):
            for name, question in questions.items():
                with logging_to_nowhere(written=name.endswith("written")):
                    rates[name] = max(rates[name], await rate(question))
    floor_rate = next(iter(rates.values()))
    return [(name, f"{each:.0f}/s", f"{each / floor_rate:.2f}") for name, each in rates.items()]


async def rate(once: Callable[[], Awaitable[object]]) -> float:
    """How often `once` runs in a second of processor time."""
    await once()
    count, ends_at, started = 0, time.perf_counter() + SECONDS, time.process_time()
    while time.perf_counter() < ends_at:
        await once()
        count += 1
    return count / (time.process_time() - started)


def unobserved(app: ASGIApp) -> tuple[ASGIApp, ASGIApp]:
    """The routes of an application, with everything around them but what observes; and with the metrics alone."""
    assert isinstance(app, Observe)
    cors = app.app
    assert isinstance(cors, Cors)
    assert isinstance(cors.app, Guard)
    bypass = cors.app.app
    assert isinstance(bypass, Bypass)
    assert isinstance(bypass.app, HttpMetrics)
    table = app.table

    def around(routes: ASGIApp) -> ASGIApp:
        guarded = Cors(Guard(routes), ["*"])

        async def found(scope: Any, receive: Any, send: Any) -> None:
            begin(scope, Visit("-", scope["method"], *table.find(scope["path"])))
            await guarded(scope, receive, send)

        return found

    return around(bypass.direct), around(bypass.app)


@contextmanager
def logging_to_nowhere(*, written: bool) -> Iterator[None]:
    """Every line of level info is made and written, to where nobody reads it; or none is."""
    with open(os.devnull, "w") as nowhere:
        configure_logging("info" if written else "error", "json", request_id=REQUEST_ID, stream=nowhere)
        try:
            yield
        finally:
            logging.getLogger().handlers.clear()


def floor(size: int) -> ASGIApp:
    """A raw ASGI application."""
    body = b"x" * size

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    return app


_BARE: dict[int, FastAPI] = {}


def bare(size: int) -> ASGIApp:
    """One framework route that returns bytes."""
    if size not in _BARE:
        app = _BARE[size] = FastAPI(openapi_url=None)
        body = b"x" * size

        @app.get("/")
        async def route() -> Response:
            return Response(body, media_type="application/json")

    return _BARE[size]


async def call(app: ASGIApp, path: str, state: dict[str, Any]) -> tuple[int, bytes]:
    """Status and body of one GET, without a socket."""
    status, body = 0, b""
    unread = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return unread.pop() if unread else await asyncio.Future()  # the client stays

    async def send(message: Any) -> None:
        nonlocal status, body
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            body += message.get("body", b"")

    await app(
        {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"localhost")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": dict(state),
        },
        receive,
        send,
    )
    return status, body


@asynccontextmanager
async def running(app: ASGIApp) -> AsyncIterator[tuple[Callable[[str], Awaitable[tuple[int, bytes]]], Any]]:
    """The application after its start-up, and its house."""
    state: dict[str, Any] = {}
    events: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    told: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    lifespan = asyncio.ensure_future(
        app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}, events.get, told.put)  # type: ignore[arg-type]
    )
    await events.put({"type": "lifespan.startup"})
    assert (await told.get())["type"] == "lifespan.startup.complete"
    try:
        yield (lambda path: call(app, path, state)), state["house"]
    finally:
        await events.put({"type": "lifespan.shutdown"})
        await lifespan
