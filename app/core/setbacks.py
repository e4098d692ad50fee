"""What failed for now, when to try it again, and when to try nothing at all.

One height that fails is left aside for a while, longer each time, and the others go on. Several failures in a row are an outage:
then there are pauses, with one attempt between two of them, until one succeeds; after that nothing is left aside any longer.
Synchronous, `now` is an argument; times are monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

OUTAGE_AFTER = 4
"""So many failures in a row say that it is not the heights."""

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 600.0
LONGEST_PAUSE_S = 10.0

MOST_HEIGHTS = 256
"""When so many heights are left aside no other is tried."""


@dataclass(slots=True)
class _Aside:
    wait_s: float
    due_at: float


class Setbacks:
    """The heights of one chain that failed. Owned by whoever tries them."""

    def __init__(self) -> None:
        self._aside: dict[int, _Aside] = {}
        self._in_a_row = 0
        self._pause_s = 0.0
        self._paused_at = 0.0
        self._paused_until = 0.0

    def __repr__(self) -> str:
        return f"<Setbacks {len(self._aside)} heights aside, {self._in_a_row} failures in a row>"

    def __len__(self) -> int:
        """Heights left aside."""
        return len(self._aside)

    @property
    def outage(self) -> bool:
        """Whether everything that was tried lately has failed."""
        return self._in_a_row >= OUTAGE_AFTER

    def failed(self, height: int, began_at: float, now: float) -> None:
        """An attempt that began at `began_at` came to nothing that lasts."""
        before = self._aside.get(height)
        wait_s = FIRST_WAIT_S if before is None else min(2 * before.wait_s, LONGEST_WAIT_S)
        self._aside[height] = _Aside(wait_s, now + wait_s)
        self._in_a_row += 1
        if self.outage and began_at >= self._paused_at:  # what began before the pause says nothing new
            self._pause_s = min(2 * self._pause_s or FIRST_WAIT_S, LONGEST_PAUSE_S)
            self._paused_at = now
            self._paused_until = now + self._pause_s

    def succeeded(self, height: int, now: float) -> None:
        """An attempt came to a lasting end, be it a refusal: the nodes answer."""
        self._aside.pop(height, None)
        if self.outage:
            for aside in self._aside.values():
                aside.due_at = now
        self._in_a_row = 0
        self._pause_s = 0.0
        self._paused_until = now

    def forget(self, low: int, high: int) -> None:
        """Heights outside [low, high] will not be tried again."""
        for height in [height for height in self._aside if not low <= height <= high]:
            del self._aside[height]

    def at_once(self, width: int, now: float) -> int:
        """How many may be tried at the same time, where `width` may when all is well."""
        if now < self._paused_until:
            return 0
        return 1 if self.outage else width

    def not_due(self, now: float) -> set[int]:
        """The heights that are not to be tried yet."""
        return {height for height, aside in self._aside.items() if now < aside.due_at}

    def may_try(self, height: int) -> bool:
        """Whether there is room to remember that `height` failed."""
        return height in self._aside or len(self._aside) < MOST_HEIGHTS

    def next_at(self, now: float) -> float | None:
        """The next moment at which something that may not be tried now may be; None when there is nothing to wait for."""
        if now < self._paused_until:
            return self._paused_until
        return min((aside.due_at for aside in self._aside.values() if now < aside.due_at), default=None)
