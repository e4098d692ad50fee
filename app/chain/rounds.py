"""When the nodes of a chain are asked for their heads again.

    nobody announces           every interval
    somebody would             when they do, at once; else every `QUIET_S`, in case that they forgot to
    ... and forgot to          every interval, until they announce again

A round that an announcement began is not followed by another such within the interval: however often nodes announce, they are
asked no more often than if they were polled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from .ports import Clock, Herald

QUIET_S = 20.0
"""Below what makes a head stale, so that one round may fail."""


class Rounds:
    """Owned by the head tracker, which rests between two rounds."""

    def __init__(
        self, herald: Herald | None, clock: Clock, pause: Callable[[float], Awaitable[None]], interval_s: float
    ) -> None:
        self._herald = herald
        self._clock = clock
        self._pause = pause
        self._interval_s = interval_s
        self._quiet = False
        self._announced = False
        """Whether the round that was last begun by an announcement is the last one."""
        self._unannounced = False
        """Whether the head was seen to move and nobody had said so."""
        self._announced_at: float | None = None

    def __repr__(self) -> str:
        return f"<Rounds {'quiet' if self._quiet else f'every {self._interval_s} s'}>"

    async def rest(self, *, moved: bool, failed: bool) -> None:
        """Returns when the next round is due. `moved`: the one that has ended saw another head; `failed`: it saw none."""
        if self._herald is None:
            await self._pause(self._interval_s)
            return
        if self._announced:
            self._unannounced = False
        elif moved and self._quiet:
            self._unannounced = True
        self._quiet = self._herald.at_work and not failed and not self._unannounced
        self._announced = await self._sooner(self._herald, QUIET_S if self._quiet else self._interval_s)
        if self._announced:
            now, before = self._clock.now(), self._announced_at
            if before is not None and now - before < self._interval_s:
                await self._pause(self._interval_s - (now - before))
            self._announced_at = self._clock.now()

    async def _sooner(self, herald: Herald, seconds: float) -> bool:
        """Whether there was news before so much time was over."""
        async with asyncio.TaskGroup() as group:
            hearing = group.create_task(herald.heard())
            pausing = group.create_task(self._paused(seconds))
            await asyncio.wait({hearing, pausing}, return_when=asyncio.FIRST_COMPLETED)
            heard = hearing.done()
            hearing.cancel()
            pausing.cancel()
        return heard

    async def _paused(self, seconds: float) -> None:
        await self._pause(seconds)
