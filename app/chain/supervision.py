"""Background loops, each with an owner that sees it die.

A loop that raises is counted, reported as down, and started again after a growing pause; it never takes the house with it and it
never vanishes in silence. Cancelling its owner is the only way out: a loop that raises a cancellation that nobody asked for has
died like any other. One that ends because the ledger cannot be had begins anew as they do, and is not down: it waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.core.lasting import StoreUnavailable
from app.metrics import Metrics

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


@dataclass(slots=True)
class Loop:
    """One background loop. `up` is False between a death and the restart."""

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
        fault = await _fault_of(body)
        if fault is None or not _is_outage(fault):
            loop.up = False
            loop.deaths += 1
            metrics.task_up.labels(loop.name).set(0)
            if fault is not None:
                metrics.unhandled_exceptions_total.labels("task").inc()
        _tell(loop, fault)
        if clock() - started > _LONGEST_PAUSE_S:
            pause_s = _FIRST_PAUSE_S
        await pause(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _fault_of(body: Callable[[], Awaitable[None]]) -> BaseException | None:
    """What ended the body, None when it returned. Raises when it is we who are cancelled."""
    try:
        await body()
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return cancelled  # of something that the body awaited
    except Exception as fault:  # noqa: BLE001 - whatever killed the loop, it must be seen, counted and started again
        return fault
    return None


def _is_outage(fault: BaseException) -> bool:
    """Whether nothing is wrong but that the ledger, or another store, cannot be had."""
    if isinstance(fault, BaseExceptionGroup):
        return all(map(_is_outage, fault.exceptions))
    return isinstance(fault, StoreUnavailable)


def _tell(loop: Loop, fault: BaseException | None) -> None:
    facts = {"task": loop.name, "error": None if fault is None else type(fault).__name__}
    try:
        if fault is None:
            log.error("background_task_returned", extra=facts)
        elif _is_outage(fault):
            log.debug("background_task_without_its_store", extra=facts)  # the database says that it is gone
        else:
            log.error("background_task_died", extra=facts, exc_info=fault)
    except Exception:  # noqa: BLE001 - a log that cannot be written must not end what restarts the loops
        return
