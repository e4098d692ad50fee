"""The whole ASGI application over a given house, and a client that speaks to it without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from app.api.lobby import Lobby
from app.asgi import create_app
from app.settings import Settings
from app.settings.models import CorsSettings


@asynccontextmanager
async def serving(house: Lobby, origins: Sequence[str] = ("*",), **more: object) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an application whose lifespan runs, as a server would run it; with any other settings."""
    settings = Settings.model_construct(cors=CorsSettings(allow_origins=tuple(origins)), **more)

    @asynccontextmanager
    async def open_house(_: Settings) -> AsyncIterator[Lobby]:
        yield house

    app = create_app(settings, open_house)
    async with lifespan(app) as state:

        async def with_state(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state)}, receive, send)

        transport = httpx2.ASGITransport(app=with_state)
        plain = {"Accept-Encoding": "identity"}  # so that lengths and tags are those of what a test reads
        async with httpx2.AsyncClient(transport=transport, base_url="http://copath", headers=plain) as client:
            yield client


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
    """Runs the lifespan of an application; yields the state that every request scope gets a copy of."""
    state: dict[str, Any] = {}
    to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}
    async with asyncio.TaskGroup() as group:
        group.create_task(app(scope, to_app.get, from_app.put))
        await to_app.put({"type": "lifespan.startup"})
        assert (await from_app.get())["type"] == "lifespan.startup.complete"
        yield state
        await to_app.put({"type": "lifespan.shutdown"})
        assert (await from_app.get())["type"] == "lifespan.shutdown.complete"
