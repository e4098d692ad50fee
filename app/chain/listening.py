"""One of several processes is told by the nodes when the head moves, and tells the others: what nodes announce is paid for too.

the office is ours     -> the nodes are listened to; what a poll showed is left for the others, and stands while nothing is said
it is somebody else's  -> nothing is listened to: what was left is read as often as one would poll
nobody can say whose   -> everybody listens for himself
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from .office import Office
from .ports import Clock, Herald


class Listening:
    """The nodes' `Herald`, for the process that holds the office. Fits the chain's port of that name."""

    def __init__(
        self,
        herald: Herald,
        office: Office,
        clock: Clock,
        tell: Callable[[], Awaitable[None]],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`tell` says to the others that what they were told last is still so."""
        self._herald = herald
        self._office = office
        self._clock = clock
        self._tell = tell
        self._pause = pause

    def __repr__(self) -> str:
        return f"<Listening {self._herald!r} {self._office!r}>"

    @property
    def at_work(self) -> bool:
        """Whether silence means, here, that the head stands still."""
        return self._listens and self._herald.at_work

    @property
    def for_all(self) -> bool:
        """Whether the others rely on it."""
        return self._office.held and self._herald.at_work

    async def heard(self) -> None:
        """As the nodes' herald, which is left alone for as long as another process listens."""
        while True:
            await self._office.entered()
            if not self._listens:
                self._herald.rest()
                await self._pause(self._due_s)
                continue
            if self.for_all:
                await self._tell()
            try:
                async with asyncio.timeout(self._due_s):
                    await self._herald.heard()
                return
            except TimeoutError:
                continue

    def rest(self) -> None:
        """As the nodes' herald."""
        self._herald.rest()

    async def aclose(self) -> None:
        """Another process may listen from now on."""
        await self._office.leave()

    @property
    def _listens(self) -> bool:
        return self._office.held or self._office.silent

    @property
    def _due_s(self) -> float:
        return max(0.0, self._office.due_at - self._clock.now())
