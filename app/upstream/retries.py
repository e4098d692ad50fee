"""How long to wait before asking again, and when not to: the one place where this package retries."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.core.deadlines import remaining_s
from app.core.resting import asleep

from .allowance import MIN_USEFUL_S


@dataclass(slots=True)
class RetryBudget:
    """Retries are at most a tenth of the calls, and a few a second: a node in trouble is not asked ever more.

    A token bucket, synchronous, with `now` as an argument. Shared by the nodes of one chain.
    """

    per_call: float = 0.1
    per_second: float = 3.0
    capacity: float = 30.0
    tokens: float = 30.0
    refilled_at: float | None = None
    refused: int = 0
    """Retries that were not made."""

    def deposit(self) -> None:
        """A call that is no retry was made."""
        self.tokens = min(self.capacity, self.tokens + self.per_call)

    @property
    def left(self) -> float:
        """The share of the budget that is left, from 0 to 1, as of the last look at it."""
        return self.tokens / self.capacity

    def spend(self, now: float) -> None:
        """What has to be done whether there is budget or not: it leaves less for what has not."""
        self._refill(now)
        self.tokens = max(0.0, self.tokens - 1.0)

    def take(self, now: float) -> bool:
        """Whether one retry may be made now; if so, it is paid for."""
        self._refill(now)
        if self.tokens < 1.0:
            self.refused += 1
            return False
        self.tokens -= 1.0
        return True

    def _refill(self, now: float) -> None:
        if self.refilled_at is None:
            self.refilled_at = now
        passed_s = max(0.0, now - self.refilled_at)
        self.tokens = min(self.capacity, self.tokens + passed_s * self.per_second)
        self.refilled_at += passed_s


class Patience:
    """Pauses that never outlast the deadline in force, with no permit held. Clock, pause and chance are given: tests need no
    time."""

    def __init__(
        self,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._pause = pause
        self._clock = clock
        self._chance = chance

    def now(self) -> float:
        """Monotonic seconds, on the clock of the deadlines."""
        return self._clock()

    async def pause(self, seconds: float) -> None:
        """Exactly so long: for those who measure, and do not retry."""
        await self._pause(seconds)

    async def wait(self, delay_s: float, *, whole: bool = False) -> bool:
        """Pauses for `delay_s`, give or take a quarter; shorter near the deadline.

        False, without a pause, when no time would be left to ask again, or with `whole` when not all of it would fit.
        """
        if not whole:
            # Callers that failed together do not come back together.
            delay_s *= 0.75 + 0.5 * self._chance()
        left_s = remaining_s(self._clock())
        if left_s is not None:
            useful_s = left_s - 2 * MIN_USEFUL_S
            if useful_s < 0.001 or (whole and useful_s < delay_s):
                return False
            delay_s = min(delay_s, useful_s)
        async with asleep():
            await self._pause(delay_s)
        return True
