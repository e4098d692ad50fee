"""How long one attempt may take, and what it means when that is over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from app.core.deadlines import remaining_s, turn_left_s

from .faults import CallFailed, Fault

MIN_USEFUL_S = 0.1
"""With less than this left of the deadline no call is started: its answer could not be used."""

FAIR_S = 1.0
"""A call that is cut because its turn is over says something about the node only when it had at least so long."""

TIMER_SLACK_S = 0.001


@dataclass(frozen=True, slots=True)
class Allowance:
    """Of one attempt that begins now, by the clock of the event loop. `limit_s` is the attempt's own, which runs only from when
    a connection is its; the deadline and the turn in force run in any case."""

    limit_s: float
    began_at: float
    left_s: float | None
    turn_s: float | None

    @classmethod
    def now(cls, limit_s: float, now: float) -> Allowance:
        """`now` on the clock of the deadlines. Raises `CallFailed` when no time is left that could be used."""
        left_s, turn_s = remaining_s(now), turn_left_s(now)
        if left_s is not None and left_s < MIN_USEFUL_S:
            raise CallFailed(Fault.DEADLINE, "the deadline left no time to ask")
        if turn_s is not None and turn_s < MIN_USEFUL_S:
            raise CallFailed(Fault.TURN_OVER, "its turn was over")
        return cls(limit_s, asyncio.get_running_loop().time(), left_s, turn_s)

    @property
    def given_s(self) -> float | None:
        """Until the deadline or the end of the turn; None: neither is in force."""
        return min((each for each in (self.left_s, self.turn_s) if each is not None), default=None)

    def scope(self, waiting_s: float) -> asyncio.Timeout:
        """Of the whole attempt, with up to `waiting_s` of waiting for a connection, which has bounds of its own."""
        whole_s, given_s = self.limit_s + waiting_s, self.given_s
        return asyncio.timeout(whole_s if given_s is None else min(whole_s, given_s))

    def acquired(self, scope: asyncio.Timeout) -> None:
        """A connection is the attempt's: from here on its own time runs."""
        ends_at = asyncio.get_running_loop().time() + self.limit_s
        given_s = self.given_s
        scope.reschedule(ends_at if given_s is None else min(ends_at, self.began_at + given_s))

    def cut(self, *, acquired: bool) -> CallFailed:
        """What it means that the scope expired; whether a connection was the attempt's by then."""
        # Timers may go off a little early: what is this close to the deadline was cut by it.
        now = asyncio.get_running_loop().time()
        if self.left_s is not None and now >= self.began_at + self.left_s - TIMER_SLACK_S:
            return CallFailed(Fault.DEADLINE, "the deadline passed before the node answered")
        if self.turn_s is not None and not acquired:
            return CallFailed(Fault.POOL_BUSY, "no connection came free in time")
        shown_s = self.limit_s if self.turn_s is None else min(self.limit_s, self.turn_s)
        fault = Fault.ATTEMPT_TIMEOUT if shown_s >= min(self.limit_s, FAIR_S) else Fault.TURN_OVER
        return CallFailed(fault, f"no full answer within {shown_s:.3g} s")
