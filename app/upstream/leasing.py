"""Leasing the units of a second of one account, for the calls of this process, from what all replicas share.

`core.throughput` decides what to ask for; here it is asked for, in a task of its own: calls never wait for the database, but for
what it has. The same questions carry the pauses that the provider asked for, from whoever was told to everybody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from app.core.lasting import StoreUnavailable
from app.core.spending import Account
from app.core.tokens import ANSWER_S, Ask, Lease

from .standing import COOLDOWN_MAX_S

BETWEEN_S = 0.05
AFTER_FAILURE_S = 1.0
"""From one question of an account to the next that calls wait for, and after one that was not answered in time."""


class Tokens(Protocol):
    """The units of a second that all replicas share. Raises `StoreUnavailable`."""

    async def lease(self, account: str, rate: float, ask: Ask, cool_s: float) -> Lease:
        """Does what `Ask` says with the tokens of that account, refilled at `rate`; nobody is to call for `cool_s`, if that is
        not 0."""
        ...


class Leasing:
    """Of one account. Owned by `Settling`."""

    def __init__(
        self, name: str, account: Account, tokens: Tokens, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.account = account
        self._name = name
        self._tokens = tokens
        self._clock = clock
        self._needed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._silent_until = float("-inf")
        self._cooling_known = float("-inf")
        """The end of the pause that the others know of, by our clock."""
        account.throughput.on_need = self._needed.set

    def __repr__(self) -> str:
        return f"<Leasing of {self.account!r}>"

    async def run(self) -> None:
        """Asks when somebody waits for it, until cancelled."""
        while True:
            self._needed.clear()
            due_s = self._due_s()
            if due_s == 0:
                try:
                    await self.ask()
                except StoreUnavailable:
                    now = self._clock()
                    self._silent_until = now + AFTER_FAILURE_S
                    self.account.throughput.alone(self.account.throughput.part, now)
                continue
            try:
                async with asyncio.timeout(due_s):
                    await self._needed.wait()
            except TimeoutError:
                continue

    async def ask(self) -> None:
        """Asks for what is needed, and tells what has to be told. Raises `StoreUnavailable`, within a moment."""
        async with self._turn:
            throughput, asked_at = self.account.throughput, self._clock()
            self._silent_until = asked_at + BETWEEN_S
            ask, until = throughput.ask(asked_at), self.account.cooling_until
            cool_s = until - asked_at if until is not None and self.has_to_tell else 0.0
            try:
                async with asyncio.timeout(ANSWER_S):
                    lease = await self._tokens.lease(self._name, throughput.rate or 0.0, ask, cool_s)
            except TimeoutError:
                raise StoreUnavailable("no lease in time") from None
            now = self._clock()
            if now - asked_at > ANSWER_S:
                raise StoreUnavailable("no lease in time")
            if cool_s:
                self._cooling_known = asked_at + cool_s
            throughput.answered(ask, lease, now)
            self.hear(lease.cool_s)

    def hear(self, cool_s: float) -> None:
        """Somebody was told not to call for so long. Longer than anybody may be is the work of a clock that was set back."""
        until = self._clock() + cool_s
        if 0 < cool_s <= COOLDOWN_MAX_S + 1 and until > (self.account.cooling_until or 0.0):
            self._cooling_known = until  # it is not our own: passed on, it would grow by the way of each
            self.account.cool(until)

    @property
    def has_to_tell(self) -> bool:
        """Whether the provider asked for a pause that the others have not heard of."""
        return (self.account.cooling_until or 0.0) > max(self._clock(), self._cooling_known)

    def _due_s(self) -> float | None:
        now = self._clock()
        due_s = 0.0 if self.has_to_tell else self.account.throughput.due_s(now)
        return max(0.0, self._silent_until - now) if due_s == 0 else due_s
