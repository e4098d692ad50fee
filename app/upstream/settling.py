"""Replicas that are paid from the same accounts settle up: every second each tells what it spent, and hears what all did.

So the limits of a day are those of all of them. Until it hears of the others again, each may spend its part of half of what is
left: what all were granted at any moments of one second is never more than there is. Of the units of a second each takes its
part. Without a database each goes on with what it was granted last.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from app.core.lasting import StoreUnavailable
from app.core.spending import DAY_S

from .purse import Accounts

log = logging.getLogger(__name__)

EVERY_S = 1.0
PRESENT_S = 10.0
"""For so long a replica that was heard of counts as one."""


class Treasury(Protocol):
    """What all replicas spent. Raises `StoreUnavailable`."""

    async def settle(self, account: str, day: int, units: float) -> float:
        """Adds what was spent of that day's units; what all of them spent of them."""
        ...

    async def present(self, for_s: float) -> int:
        """Says that this replica is there for so long; how many are."""
        ...


@dataclass(slots=True)
class _Told:
    day: int = 0
    units: float = 0.0


class Settling:
    """Owned by the house, which runs `run`."""

    def __init__(
        self,
        accounts: Accounts,
        treasury: Treasury,
        *,
        wall_clock: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._accounts = accounts
        self._treasury = treasury
        self._wall_clock = wall_clock
        self._pause = pause
        self._told: dict[str, _Told] = {}
        self._up = True

    def __repr__(self) -> str:
        return f"<Settling {len(self._told)} accounts>"

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.settle()
                self._up = True
            except StoreUnavailable:
                if self._up:
                    log.warning("what other replicas spend is not known for now")
                self._up = False
            await self._pause(EVERY_S)

    async def settle(self) -> None:
        """Once for every account with a limit. Raises `StoreUnavailable`."""
        limited = [(name, account) for name, account in self._accounts.named() if account.limited]
        if not limited:
            return
        replicas = await self._treasury.present(PRESENT_S)
        for name, account in limited:
            account.part = 1 / max(1, replicas)
            wall_s = self._wall_clock()
            day, here = int(wall_s // DAY_S), account.spent_here(wall_s)
            told = self._told.setdefault(name, _Told(day))
            if told.day != day:  # what was spent since the last telling, of the day before, is let go
                told.day, told.units = day, 0.0
            everybody = await self._treasury.settle(name, day, here - told.units)
            told.units = here
            account.spent_elsewhere(max(0.0, everybody - here), day)
            alone = replicas <= 1 or account.units_per_day is None
            left = max(0.0, (account.units_per_day or 0.0) - everybody)
            account.grant(None if alone else left * account.part / 2, day)
