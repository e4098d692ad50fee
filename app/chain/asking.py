"""How a ledger is asked on behalf of those who wait: briefly, and for a while not at all after that was in vain.

Where a node can be asked instead, that is soon enough. Where none can, one asks with more patience for all who would.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from app.core.lasting import StoreUnavailable
from app.core.silence import Silence

from .kinship import Kin
from .ports import Clock, Ledger

log = logging.getLogger(__name__)

T = TypeVar("T")

READ_LIMIT_S = 0.25
"""How long a request waits for the ledger before a node is asked instead."""

PATIENCE_S = 2.0
"""And how long where there is no node to be asked."""

HOPELESS_S = 5.0
"""For so long nobody does that again after it was in vain."""

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""How long a ledger that failed is not asked again, the longer the more often it failed in a row."""


_patient: ContextVar[bool] = ContextVar("patient", default=False)


@contextmanager
def patiently() -> Iterator[None]:
    """Inside, whatever is asked on behalf of this task is waited for as long as where there is nobody else to ask."""
    before = _patient.set(True)
    try:
        yield
    finally:
        _patient.reset(before)


class Asking:
    """Owned by whoever keeps the ledger."""

    def __init__(self, chain: str, ledger: Ledger, kin: Kin, clock: Clock) -> None:
        self._chain = chain
        self._ledger = ledger
        self._kin = kin
        self._clock = clock
        self._silence = Silence(PAUSES_S)
        self._hoping = asyncio.Lock()
        self._hopeless_until = 0.0
        self.unheard = 0
        """How often it could not be waited for, or was left alone for that."""

    def __repr__(self) -> str:
        return f"<Asking {self._chain} {self._silence!r}>"

    @property
    def well(self) -> bool:
        """Whether the ledger answered when it was asked last."""
        return not self._silence.failures

    @property
    def silent(self) -> bool:
        """Whether it is left alone at the moment."""
        return self._silence.lasts(self._clock.now())

    @property
    def silent_s(self) -> float:
        """For how much longer."""
        return self._silence.until - self._clock.now()

    async def told(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """What it says, if it is to be believed and can be had within a moment; `patiently`, a longer one."""
        if self.silent:
            self.unheard += 1
            return None
        try:
            if not await self._kin.believed(READ_LIMIT_S):
                return None
            async with asyncio.timeout(PATIENCE_S if _patient.get() else READ_LIMIT_S):
                said = await ask()
        except (StoreUnavailable, TimeoutError):
            self.unheard += 1
            self.failed()
            return None
        self.answered()
        return said

    async def can_be_had(self) -> bool:
        """Whether it can be had with more patience, although it is left alone. Found out by one for all."""
        async with self._hoping:
            now = self._clock.now()
            if not self._silence.lasts(now):
                return True
            if now < self._hopeless_until:
                return False
            if await self._answers():
                self._silence.end()
                return True
            self._hopeless_until = self._clock.now() + HOPELESS_S
            return False

    async def look(self) -> None:
        """Finds out whether it can be had, where it is not left alone."""
        if self.silent:
            return
        if await self._answers():
            self.answered()
        else:
            self.failed()

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._ledger.finalized()
        except (StoreUnavailable, TimeoutError):
            return False
        return True

    def answered(self) -> None:
        """It could be had."""
        self._silence.answered()

    def failed(self) -> None:
        """It could not."""
        if self._silence.failed(self._clock.now()):
            log.debug("ledger_unavailable", extra={"chain": self._chain})
