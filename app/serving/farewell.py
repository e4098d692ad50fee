"""The outermost layer of a server on its way out: whoever is cut is told."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.api.lobby import house_of
from app.core.errors import Draining


class Farewell:
    """ASGI layer: a request that is still unanswered when the drain runs out is told to come back, instead of nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except asyncio.CancelledError:
            house = house_of(scope)
            if begun or house is None or not house.closing:
                raise
            # Cancelled by the end of the drain alone: the task has nothing else to do, and ends after this answer.
            refusal = Draining("this server is shutting down and the request took too long; retry")
            await problems.answer(scope, refusal)(scope, receive, watched)
