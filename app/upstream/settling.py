"""Replicas that are paid from the same accounts settle up: every second each tells what it spent, and hears what all did.

So the limits of a day are those of all of them. Until it hears of the others again, each may spend its part of half of what is
left: what all were granted at any moments of one second is never more than there is. Whoever has calls for more draws that at
once, from the half that nobody was granted: for all others it is spent from then on. The units of a second they lease from what
all share, each as it needs them (`leasing`); one that is alone need not. Without a database each goes on with its part of them,
and with what it was granted last.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from app.core.lasting import StoreUnavailable
from app.core.spending import DAY_S, Account

from .leasing import BETWEEN_S, Leasing, Tokens
from .purse import Accounts

log = logging.getLogger(__name__)

EVERY_S = 1.0
HEARD_S = 2.5
"""Whoever is there was granted no units longer ago than that."""

PRESENT_S = 10.0
"""For so long a replica that was heard of counts as one."""


class Treasury(Tokens, Protocol):
    """What all replicas spent, and what they share. Raises `StoreUnavailable`."""

    async def settle(self, account: str, day: int, units: float) -> float:
        """Adds what was spent of that day's units; what all of them spent of them."""
        ...

    async def draw(self, account: str, day: int, units: float, most: float) -> float | None:
        """Adds so many of that day's units, if all of them are no more than `most` then: what they are; else None."""
        ...

    async def present(self, for_s: float) -> int:
        """Says that this replica is there for so long; how many are."""
        ...

    async def cooling(self) -> Mapping[str, float]:
        """The accounts that nobody is to call for, and for how long."""
        ...


@dataclass(slots=True)
class _Told:
    """Of one account: the day, what was told of it, which may be more than was spent, and what was left of it when."""

    day: int
    units: float = 0.0
    left: list[tuple[float, float]] = field(default_factory=list)

    def left_before(self, left: float, now: float) -> float | None:
        """What was left HEARD_S ago; None while that is not known."""
        self.left.append((now, left))
        while len(self.left) > 1 and self.left[1][0] <= now - HEARD_S:
            del self.left[0]
        return self.left[0][1] if self.left[0][0] <= now - HEARD_S else None


class Settling:
    """Owned by the house, which runs `run`. Knows the accounts that there are when it is made."""

    def __init__(
        self,
        accounts: Accounts,
        treasury: Treasury,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._treasury = treasury
        self._clock = clock
        self._wall_clock = wall_clock
        self._pause = pause
        self._told: dict[str, _Told] = {}
        self._leasing = {name: Leasing(name, account, treasury, clock=clock) for name, account in accounts.named()}
        self._replicas = 1
        self._telling = asyncio.Lock()
        self._wanted = asyncio.Event()
        for each in self._leasing.values():
            each.account.on_want = self._wanted.set
        self._up = True

    def __repr__(self) -> str:
        return f"<Settling {len(self._leasing)} accounts>"

    async def run(self) -> None:
        """Until cancelled."""
        for each in self._leasing.values():
            each.account.throughput.empty(self._clock())
        try:
            async with asyncio.TaskGroup() as group:
                for each in self._leasing.values():
                    group.create_task(each.run(), name="leasing")
                group.create_task(self._draw(), name="drawing")
                while True:
                    await self._settle_if_possible()
                    await self._pause(EVERY_S)
        finally:
            self._alone()

    async def settle(self) -> None:
        """Once for every account. Raises `StoreUnavailable`: then this replica is on its own until the next time."""
        try:
            limited = any(each.account.limited for each in self._leasing.values())
            replicas = self._replicas = await self._treasury.present(PRESENT_S) if limited else 1
            for name, each in self._leasing.items():
                if each.account.limited:
                    await self._share_the_day(name, each.account)
            for each in self._leasing.values():  # last: these have to be answered within a moment
                if each.account.units_per_second is not None or each.has_to_tell:
                    await self._share_a_second(each, replicas)
            if self._leasing:
                await self._hear()
        except StoreUnavailable:
            self._alone()
            raise

    async def _settle_if_possible(self) -> None:
        try:
            await self.settle()
            self._up = True
        except StoreUnavailable:
            if self._up:
                log.debug("spending_of_other_replicas_unknown")  # the database says that it is gone
            self._up = False

    async def _share_a_second(self, each: Leasing, replicas: int) -> None:
        await each.ask()
        if replicas > 1:  # and the database answers in time
            each.account.throughput.lease(1 / replicas, self._clock())
        else:
            each.account.throughput.only(self._clock())

    async def _draw(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for name, each in self._leasing.items():
                if each.account.wanted:
                    with suppress(StoreUnavailable):
                        await self._share_the_day(name, each.account)
            await self._pause(BETWEEN_S)
            if any(each.account.wanted for each in self._leasing.values()):
                self._wanted.set()

    async def _share_the_day(self, name: str, account: Account) -> None:
        async with self._telling:
            wall_s = self._wall_clock()
            day, here = int(wall_s // DAY_S), account.spent_here(wall_s)
            told = self._told.setdefault(name, _Told(day))
            if told.day != day:  # what was spent since the last telling, of the day before, is let go
                told = self._told[name] = _Told(day)
            everybody = await self._treasury.settle(name, day, max(0.0, here - told.units))
            told.units = max(told.units, here)
            granted = None
            if self._replicas > 1 and account.units_per_day is not None:
                everybody, granted = await self._granted(name, account, told, everybody)
            account.spent_elsewhere(max(0.0, everybody - told.units), day)
            account.grant(None if granted is None else granted + told.units - here, day, here)

    async def _granted(self, name: str, account: Account, told: _Told, everybody: float) -> tuple[float, float]:
        """What all have spent or drawn by now, and what this replica may spend beyond what it drew."""
        limit, part = account.units_per_day or 0.0, 1 / self._replicas
        before = told.left_before(limit - everybody, self._clock())
        if before is not None:  # nobody is granted more than its part of half of it, and so all no more than half
            for units in filter(None, (account.wanted, account.wanted / 4)):
                drawn = await self._treasury.draw(name, told.day, units, limit - before / 2)
                if drawn is not None:
                    everybody, told.units = drawn, told.units + units
                    break
        left = max(0.0, limit - everybody)
        others = (1 - part) * (left if before is None else before) / 2
        return everybody, max(0.0, min(left * part / 2, left - others))

    async def _hear(self) -> None:
        cooling = await self._treasury.cooling()
        for name, each in self._leasing.items():
            each.hear(cooling.get(name, 0.0))

    def _alone(self) -> None:
        for each in self._leasing.values():
            each.account.throughput.alone(each.account.throughput.part, self._clock())
