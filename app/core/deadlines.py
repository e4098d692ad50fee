"""The deadline of the work in hand, carried from the door to the last upstream call.

Whoever starts the work sets it once; every stage takes what is left and never more. Times are seconds on one monotonic
clock (`time.monotonic`); the clock itself belongs to the callers, who pass `now`.
"""

from __future__ import annotations

from contextvars import ContextVar

deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
"""When the work in hand must have ended, in monotonic seconds; None while nobody set one."""


def remaining_s(now: float) -> float | None:
    """Seconds left, 0 once the deadline passed; None without a deadline."""
    ends_at = deadline.get()
    return None if ends_at is None else max(0.0, ends_at - now)


def capped_s(limit_s: float, now: float) -> float:
    """The smaller of `limit_s` and what is left of the deadline, never below 0."""
    left_s = remaining_s(now)
    return limit_s if left_s is None else min(limit_s, left_s)
