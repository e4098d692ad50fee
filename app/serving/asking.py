"""The application without a socket: its lifespan, and one request put straight into it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp

from app.asgi import create_app
from app.house import House, open_house
from app.settings import Settings

ANCHORS_WAIT_S = 30.0


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[dict[str, Any]]:
    """Runs the lifespan of an application; yields the state that every request scope gets a copy of.

    What its startup or its background work raises comes out here, within exception groups.
    """
    state: dict[str, Any] = {}
    to_app: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    started = asyncio.Event()

    async def tell(message: Any) -> None:
        if message["type"] == "lifespan.startup.complete":
            started.set()

    async with asyncio.TaskGroup() as group:
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}
        group.create_task(_live(app, scope, to_app, tell), name="lifespan")
        await to_app.put({"type": "lifespan.startup"})
        await started.wait()  # a startup that fails ends this with its group
        yield state
        await to_app.put({"type": "lifespan.shutdown"})


async def _live(app: ASGIApp, scope: dict[str, Any], to_app: asyncio.Queue[dict[str, str]], tell: Any) -> None:
    await app(scope, to_app.get, tell)


async def until_anchored(house: House) -> bool:
    """Anchors of our own making take a moment: whether they were all there in time."""
    try:
        async with asyncio.timeout(ANCHORS_WAIT_S):
            for chain in house.chains.values():
                await chain.anchored.wait()
    except TimeoutError:
        return False
    return True


async def ask_once(settings: Settings, path: str, *, anchored: bool = False) -> tuple[int, bytes]:
    """Status and body of one GET, answered by the whole application without a socket; `anchored` waits for anchors first."""
    app = create_app(settings, open_house)
    async with lifespan(app) as state:
        if anchored:
            await until_anchored(state["house"])
        return await _get(app, path, state)


async def _get(app: ASGIApp, path: str, state: dict[str, Any]) -> tuple[int, bytes]:
    route, _, query = path.partition("?")
    messages: Sequence[dict[str, Any]] = [{"type": "http.request", "body": b"", "more_body": False}]
    incoming = iter(messages)
    status, body = 0, b""

    async def receive() -> Any:
        message = next(incoming, None)
        if message is None:
            await asyncio.Event().wait()
        return message

    async def send(message: Any) -> None:
        nonlocal status, body
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            body += message.get("body", b"")

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": route,
        "raw_path": route.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": None,
        "server": ("localhost", 80),
        "state": dict(state),
    }
    await app(scope, receive, send)
    return status, body
