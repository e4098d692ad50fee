"""Bodies of requests, read whole before a request takes a place at the door.

A body that is slow, endless or one of too many costs its sender a refusal, and nobody else a place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive

from app.core.errors import BodyTimeout, Overloaded

WITHIN_S = 30.0
"""From the headers to the last byte of the body: two megabytes over a slow line."""

FREE_BYTES = 64 * 1024
"""Of each body that count for nothing: as much is read ahead of every connection anyway, and most bodies are smaller."""

MOST_BYTES = 64 * 1024 * 1024
"""All others together, until their requests have ended."""


class RequestBodies:
    """Of one process. Belongs to one event loop."""

    def __init__(self, most_bytes: int = MOST_BYTES, free_bytes: int = FREE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._free_bytes = free_bytes
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<RequestBodies {self.held_bytes}/{self._most_bytes} bytes>"

    @asynccontextmanager
    async def whole(self, receive: Receive, within_s: float) -> AsyncIterator[bytes | None]:
        """The body that `receive` gives; None where the client hung up before its end. Held until the block is left.

        Raises `BodyTimeout`, `Overloaded`, and what `receive` raises for a body that is too large.
        """
        held = 0
        try:
            body, ended = bytearray(), False
            try:
                async with asyncio.timeout(within_s):
                    while not ended:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            break
                        body += message.get("body", b"")
                        ended = not message.get("more_body", False)
                        counted = max(0, len(body) - self._free_bytes)
                        if self.held_bytes + counted - held > self._most_bytes:
                            raise Overloaded(
                                "too many large request bodies are being read; retry with back-off", reason="bodies"
                            )
                        self.held_bytes += counted - held
                        held = counted
            except TimeoutError:
                raise BodyTimeout(f"the request body did not come within {within_s:g} seconds") from None
            yield bytes(body) if ended else None
        finally:
            self.held_bytes -= held
