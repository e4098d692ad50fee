"""A circuit breaker: whether to ask a node that has failed lately.

    CLOSED --too many failures--> OPEN --its period is over--> HALF_OPEN --the probe succeeds--> CLOSED
                                   ^---- twice the period <-------- the probe fails

Too many is half of the last twenty outcomes, once there are ten, or five in a row: a node that is rarely asked would never get
to ten. Only what the node did counts: a call that we gave up, or that a limit or our own deadline ended, is no outcome.
Synchronous; `now` is an argument.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

RING = 20
ENOUGH = 10
"""Outcomes before a share means anything."""

FAILED_SHARE = 0.5
IN_A_ROW = 5
FIRST_PERIOD_S = 5.0
LONGEST_PERIOD_S = 60.0


class BreakerState(IntEnum):
    """The values are what the metric shows."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Breaker:
    """The breaker of one node for one kind of work. Owned by the node; every change happens between awaits."""

    __slots__ = ("_failures_in_a_row", "_outcomes", "_period_s", "_probe_at", "_probing", "opened_at")

    def __init__(self) -> None:
        self.opened_at: float | None = None
        """When it opened, as long as it has not closed again."""
        self._outcomes: deque[bool] = deque(maxlen=RING)
        self._failures_in_a_row = 0
        self._period_s = FIRST_PERIOD_S
        self._probe_at = 0.0
        self._probing = False

    def __repr__(self) -> str:
        failed = len(self._outcomes) - sum(self._outcomes)
        where = (
            "closed" if self.opened_at is None else f"open since {self.opened_at:.1f}, probe at {self._probe_at:.1f}"
        )
        return f"<Breaker {where}, {failed}/{len(self._outcomes)} failed>"

    def state(self, now: float) -> BreakerState:
        """Half open: a probe is due or under way."""
        if self.opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if self._probing or now >= self._probe_at else BreakerState.OPEN

    def admits(self, now: float) -> bool:
        """Whether a call may be made: the breaker is closed, or a probe is due."""
        return self.opened_at is None or now >= self._probe_at

    def begin(self, now: float) -> None:
        """A call is made. Of an open breaker it is the probe, if one is due."""
        if self.opened_at is not None and now >= self._probe_at:
            # The clock moves on before the probe: one that never comes to an end delays the next, and prevents none.
            self._probe_at = now + self._period_s
            self._probing = True

    def succeed(self, began_at: float) -> None:
        """A call that began at `began_at` was answered."""
        if self.opened_at is None:
            self._outcomes.append(True)
            self._failures_in_a_row = 0
        elif began_at >= self.opened_at:  # what was asked before says nothing about now
            self.opened_at = None
            self._probing = False
            self._outcomes.clear()
            self._failures_in_a_row = 0

    def fail(self, now: float) -> None:
        """A call failed, and the node is to blame."""
        if self.opened_at is not None:
            if self._probing:
                self._probing = False
                self._period_s = min(2 * self._period_s, LONGEST_PERIOD_S)
                self._probe_at = now + self._period_s
            return
        self._outcomes.append(False)
        self._failures_in_a_row += 1
        failed = len(self._outcomes) - sum(self._outcomes)
        too_many = len(self._outcomes) >= ENOUGH and failed >= FAILED_SHARE * len(self._outcomes)
        if too_many or self._failures_in_a_row >= IN_A_ROW:
            self.opened_at = now
            self._period_s = FIRST_PERIOD_S
            self._probe_at = now + FIRST_PERIOD_S
            self._probing = False
