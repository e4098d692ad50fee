"""The outermost layer of a server on its way out: answers ask for the connection back."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.api.lobby import house_of
from app.core.errors import Draining


class Farewell:
    """ASGI layer: from the shutdown signal on every answer carries `Connection: close`, so that keep-alive clients move on
    before the socket goes; and a request that is cut when the drain runs out is told so."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        house = house_of(scope)
        if scope["type"] != "http" or house is None:
            await self.app(scope, receive, send)
            return
        begun = False

        async def leaving(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                if house.draining:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        try:
            await self.app(scope, receive, leaving)
        except asyncio.CancelledError:
            if begun or not house.closing:
                raise
            # Cancelled by the end of the drain alone: the task has nothing else to do, and ends after this answer.
            refusal = Draining("this server is shutting down and the request took too long; retry")
            await problems.answer(scope, refusal)(scope, receive, leaving)
