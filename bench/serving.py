"""Warm GETs through the whole application, in process: a receipt proof of 10 KB, a usc proof, a probe.

The floor is a raw ASGI function that sends a body of the same size; beside it the same body from a bare framework route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import ASGIApp

from app.asgi import create_app
from app.house import demo_chains, demo_examples, open_house
from app.settings import demo_settings

SECONDS = 2.0


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    return asyncio.run(measure())


async def measure() -> list[tuple[str, str, str]]:
    """Requests a second, one after the other, on one core."""
    settings = demo_settings(demo_chains(), {}, {"logging.level": "error"}).settings
    paths = dict(zip(("receipt", "log", "blob", "deposit", "usc"), (path for _, path in demo_examples()), strict=False))
    async with running(create_app(settings, open_house)) as (ask, house):
        for chain in house.chains.values():
            await chain.anchored.wait()
        bodies = {name: await ask(path) for name, path in paths.items()}
        assert all(status == 200 for status, _ in bodies.values()), bodies
        size = len(bodies["receipt"][1])
        raw = await rate(lambda: call(floor(size), "/", {}))
        framework = await rate(lambda: call(bare(size), "/", {}))
        rows = [
            (f"floor: raw ASGI, {size} bytes", f"{raw:.0f}/s", "1"),
            ("a bare framework route with that body", f"{framework:.0f}/s", f"{framework / raw:.2f}"),
        ]
        for name, path in (("receipt proof", paths["receipt"]), ("usc proof", paths["usc"]), ("/livez", "/livez")):
            measured = await rate(lambda path=path: ask(path))
            rows.append((f"warm GET, {name}", f"{measured:.0f}/s", f"{measured / raw:.2f}"))
    return rows


async def rate(once: Callable[[], Awaitable[object]]) -> float:
    """How often `once` runs in a second."""
    await once()
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        await once()
        count += 1
    return count / elapsed


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
