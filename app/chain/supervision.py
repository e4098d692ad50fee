"""Background loops, each with an owner that sees it die.

A loop that raises is counted, reported as down, and started again after a growing pause; it never takes the house with it and it
never vanishes in silence. Cancellation is the only way out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.metrics import Metrics

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


@dataclass(slots=True)
class Loop:
    """One background loop. `up` is False between a death and the first progress after the restart."""

    name: str
    up: bool = True
    deaths: int = 0


async def supervise(
    loop: Loop,
    body: Callable[[], Awaitable[None]],
    metrics: Metrics,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Runs `body` until cancelled; starts it again, with backoff, whenever it raises or returns."""
    pause_s = _FIRST_PAUSE_S
    clock = asyncio.get_running_loop().time
    while True:
        loop.up = True
        metrics.task_up.labels(loop.name).set(1)
        started = clock()
        try:
            await body()
        except Exception as error:  # noqa: BLE001 - whatever killed the loop, it must be seen, counted and started again
            metrics.unhandled_exceptions_total.labels("task").inc()
            log.error("background loop died", extra={"task": loop.name, "error": type(error).__name__})
        if clock() - started > _LONGEST_PAUSE_S:
            pause_s = _FIRST_PAUSE_S
        loop.up = False
        loop.deaths += 1
        metrics.task_up.labels(loop.name).set(0)
        await pause(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
