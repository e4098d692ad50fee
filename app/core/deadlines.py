"""The deadline of the work in hand, carried from the door to the last upstream call.

Whoever starts the work sets it once; every stage takes what is left and never more. Times are seconds on one monotonic
clock (`time.monotonic`); the clock itself belongs to the callers, who pass `now`.

A deadline that passes names the stage that it met. Mostly the stage itself sees it and says so; for a cut from outside the
trail of the request tells how far it had come.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from app.core.errors import RequestTimeout

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


def require_useful(useful_s: float, now: float, stage: str) -> None:
    """Raises `RequestTimeout` when less than `useful_s` is left: the answer to a call begun now could not be used (T1)."""
    left_s = remaining_s(now)
    if left_s is not None and left_s < useful_s:
        raise RequestTimeout("the deadline leaves no time to ask the source chain", stage=stage)


turn_ends_at: ContextVar[float | None] = ContextVar("turn_ends_at", default=None)
"""When whoever is asked now must have answered, since others are left to ask. Unlike the deadline, this end is their fault."""


def turn_left_s(now: float) -> float | None:
    """Seconds left of the turn, 0 once it is over; None where nobody else is left to ask."""
    ends_at = turn_ends_at.get()
    return None if ends_at is None else max(0.0, ends_at - now)


@dataclass(slots=True)
class Trail:
    """How far the work in hand has come: `queue`, `resolve`, `fetch`, `verify` or `build`."""

    stage: str = "queue"
    joined: bool = False
    """Whether it waited for a block that was being filled for somebody else."""


trail: ContextVar[Trail | None] = ContextVar("trail", default=None)
"""Of the request in hand; None where nobody asked for one."""


def reached(stage: str) -> None:
    """The work in hand is, or was last, at this stage."""
    here = trail.get()
    if here is not None:
        here.stage = stage


def joined_another() -> None:
    """The work in hand waits for a fill that somebody else began."""
    here = trail.get()
    if here is not None:
        here.joined = True
