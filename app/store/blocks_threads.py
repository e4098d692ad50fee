"""A few threads for what blocks: disks, and compressing.

Daemons, and not the executor of the event loop: a disk that hangs takes these threads with it and nothing else, neither the
resolving of names nor the end of the process. Whoever waits for one gives up in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

MOST_WAITING = 64
"""Jobs that no thread has begun. More means that the threads hang: whoever comes then is refused."""


class Threads:
    """`count` threads, started with the first job and ended by `close`. Used from one event loop."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._started = False

    def __repr__(self) -> str:
        return f"<Threads {self._name} {self._jobs.qsize()} waiting>"

    async def run(self, work: Callable[[], T], limit_s: float) -> T:
        """What `work` returns or raises. TimeoutError after `limit_s`, and at once when too much waits: work that has begun
        then goes on, unheard; what has not is left out."""
        if self._jobs.qsize() >= MOST_WAITING:
            raise TimeoutError
        if not self._started:
            self._started = True
            for number in range(self._count):
                threading.Thread(target=self._serve, name=f"{self._name}-{number}", daemon=True).start()
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((work, outcome))
        async with asyncio.timeout(limit_s):
            return await outcome

    def close(self) -> None:
        """The threads end when they have done what waits."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, outcome = job
            if outcome.cancelled():  # nobody waits any more
                continue
            try:
                value, error = work(), None
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it belongs to whoever waits
                value, error = None, raised
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                outcome.get_loop().call_soon_threadsafe(_deliver, outcome, value, error)
            del job, work, outcome, value, error  # nothing is kept alive by a thread that waits


def _deliver(outcome: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if outcome.done():
        return
    if error is None:
        outcome.set_result(value)
    else:
        outcome.set_exception(error)
