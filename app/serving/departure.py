"""The signals that end a process, and the end that comes whatever state the rest is in.

A handler may interrupt anything, so it only notes the signal and wakes the event loop. Where the loop does not turn any more
a thread does what has to be done.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from app.core.shutdown import Phase, Shutdown
from app.house import CannotStart
from app.serving.listener import TURN_S

log = logging.getLogger(__name__)

HANDLED = (signal.SIGTERM, signal.SIGINT)
_LOOP_IS_STUCK_AFTER_S = 0.1
_TELLING_S = 0.05  # a log that nobody reads must not keep us


class Departure:
    """Owns SIGTERM and SIGINT of this process, and obeys `shutdown`."""

    def __init__(
        self,
        shutdown: Shutdown,
        *,
        now: Callable[[], float] = time.monotonic,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        """`leave` ends the process at once."""
        self._shutdown = shutdown
        self._now = now
        self._leave = leave
        self._loop: asyncio.AbstractEventLoop | None = None
        self._came = asyncio.Event()
        self._signal = self._forced_by = ""
        self._leaving = threading.Lock()
        self.somebody_must_be_told = False
        """Whether anybody was told that this process serves: only then there is a lame duck."""

    @contextmanager
    def owning_signals(self) -> Iterator[None]:
        """Raises `CannotStart` where the handlers cannot be installed: a server that cannot be told to end must not start.

        Once all has ended the signals are ignored for good: the exit code is settled.
        """
        before = {}
        try:
            for each in HANDLED:
                before[each] = signal.signal(each, self._note)
        except (ValueError, OSError) as error:
            raise CannotStart(f"SIGTERM and SIGINT cannot be handled: {error}") from None
        try:
            yield
        finally:
            ended = self._shutdown.phase is Phase.ENDED
            for each, handler in before.items():
                signal.signal(each, signal.SIG_IGN if ended else handler)

    async def first_signal(self) -> str:
        """The name of the signal that began the shutdown, once it came."""
        self._loop = asyncio.get_running_loop()
        if not self._signal:
            await self._came.wait()
        return self._signal

    async def reach(self, phase: Phase, in_flight: Callable[[], bool] = lambda: True) -> None:
        """Returns when the shutdown has come so far; `in_flight` is asked at every turn."""
        while self._shutdown.advance(self._now(), in_flight=in_flight()) < phase:  # noqa: ASYNC110 - nobody tells when nothing is in flight
            await asyncio.sleep(TURN_S)

    def watch_the_end(self, within_s: float) -> None:
        """From now on, everything has so long to end, and then is ended."""
        self._look_again(within_s)

    def finish(self) -> None:
        """Everything has ended."""
        self._shutdown.finish()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # Ctrl-C on a terminal means now.
        self._shutdown.signal(self._now(), patient=self.somebody_must_be_told and number == signal.SIGTERM)
        name = signal.Signals(number).name
        self._signal = self._signal or name
        if self._shutdown.exit_code == 1:
            self._forced_by = name
            self._look_again(_LOOP_IS_STUCK_AFTER_S)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                # In turn with whatever else is ready: if the end is, it comes first.
                self._loop.call_soon_threadsafe(self._wake)

    def _look_again(self, after_s: float) -> None:
        watch = threading.Timer(after_s, self._obey)
        watch.daemon = True
        watch.start()

    def _wake(self) -> None:
        self._came.set()
        self._obey()

    def _obey(self) -> None:
        if self._shutdown.phase is Phase.ENDING:
            self._shutdown.advance(self._now(), in_flight=False)
        if self._shutdown.exit_code == 1 and self._leaving.acquire(blocking=False):
            facts = {"reason": self._forced_by or "overdue", "phase": self._shutdown.phase.name}
            teller = threading.Thread(target=log.critical, args=("force_exit",), kwargs={"extra": facts}, daemon=True)
            teller.start()
            teller.join(_TELLING_S)
            self._leave(1)  # builder processes follow
