"""What one of several processes does for all of them: held by a lease that is renewed for as long as its holder lives."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from app.core.lasting import StoreUnavailable

from .ports import Clock, Leases

LEASE_S = 10.0
"""After so long without a word its holder is taken for dead, and another takes over."""

ASK_EVERY_S = 3.0


class _Lost(Exception):
    """Somebody else holds it now, or nobody can say who does."""


class Office:
    """Belongs to one loop, which calls `entered` again and again."""

    def __init__(self, name: str, leases: Leases, clock: Clock) -> None:
        self._name = name
        self._leases = leases
        self._clock = clock
        self.held = False
        self.silent = False
        """Whether nobody could say, the last time, who holds it."""
        self.due_at = 0.0
        """When the lease is to be asked for, or renewed, the next time."""

    def __repr__(self) -> str:
        return f"<Office {self._name} {'held' if self.held else 'not held'}>"

    async def entered(self) -> bool:
        """Asks for the lease, or renews it, if it is time to. Whether it is ours since just now."""
        now = self._clock.now()
        if now < self.due_at:
            return False
        self.due_at = now + ASK_EVERY_S
        before = self.held
        try:
            lease = await self._leases.take(self._name, LEASE_S)
            self.held, self.silent = lease.mine, False
            if not lease.mine:
                self.due_at = min(self.due_at, now + lease.left_s)
        except StoreUnavailable:
            self.held, self.silent = False, True
        return self.held and not before

    async def during(self, work: Coroutine[None, None, None]) -> None:
        """Does `work`, renewing the lease meanwhile; once that is not ours any more it is cancelled. Raises what it raises."""
        try:
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(self._renew())
                await work
                renewing.cancel()
        except ExceptionGroup as several:
            for error in several.exceptions:
                if not isinstance(error, _Lost):
                    raise error from None

    async def _renew(self) -> None:
        """Raises `_Lost`."""
        while self.held:
            await asyncio.sleep(max(0.0, self.due_at - self._clock.now()))
            await self.entered()
        raise _Lost

    async def rest(self) -> None:
        """Somebody else may do it, and is let try first."""
        await self.leave()
        self.due_at = self._clock.now() + LEASE_S

    async def leave(self) -> None:
        """Somebody else may do it from now on."""
        if self.held:
            self.held = False
            try:
                await self._leases.release(self._name)
            except StoreUnavailable:
                return
