"""Leases for those whom somebody waits for: an answer within a moment, or none for a while.

What they divide by leases can be done without dividing it. So a database that is slow or gone costs one of them that moment, and
all others nothing until it is asked again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.core.lasting import StoreUnavailable
from app.core.leases import Lease
from app.core.silence import Silence

from .leases import SqlLeases

T = TypeVar("T")

ANSWER_S = 1.0
"""How long the database may take for one question."""

PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""How long it is not asked after it failed, the longer the more often it did in a row."""


class BriefLeases:
    """Fits the chain's `Leases`. `now` is monotonic."""

    def __init__(self, leases: SqlLeases, now: Callable[[], float] = time.monotonic) -> None:
        self._leases = leases
        self._now = now
        self._silence = Silence(PAUSES_S)

    def __repr__(self) -> str:
        return f"<BriefLeases {self._leases!r}, {self._silence!r}>"

    async def take(self, name: str, for_s: float) -> Lease:
        """As the port says."""
        return await self._asked(lambda: self._leases.take(name, for_s))

    async def look(self, name: str) -> Lease | None:
        """As the port says."""
        return await self._asked(lambda: self._leases.look(name))

    async def leave(self, name: str, note: bytes, for_s: float) -> None:
        """As the port says."""
        await self._asked(lambda: self._leases.leave(name, note, for_s))

    async def post(self, name: str, note: bytes, for_s: float) -> None:
        """As the port says."""
        await self._asked(lambda: self._leases.post(name, note, for_s))

    async def release(self, name: str) -> None:
        """As the port says."""
        await self._asked(lambda: self._leases.release(name))

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        if self._silence.lasts(self._now()):
            raise StoreUnavailable("the database failed a moment ago")
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await ask()
        except (StoreUnavailable, TimeoutError) as error:
            self._silence.failed(self._now())
            raise StoreUnavailable(str(error) or "no answer in time") from error
        self._silence.answered()
        return answer
