"""Saturation windows: how long a gate has been refusing without getting anything done.

    CLEAR --refuse--> OPEN        opened_at = the first refusal; further ones only move last_refused_at
    OPEN  --progress-> CLEAR      any place taken or given back
    OPEN  --no refusal for expiry_s--> CLEAR

A gate is saturated when its window has been open for `threshold_s`. Any progress clears it: a gate that refuses nine of ten but
finishes the tenth is busy, not stuck. Every rejection that opens a window must be one that some holder will clear, or the
window would outlive its cause: a consumer over its own rate, a bad request or a draining process never opens one, and a
refusal that is told when nobody holds a place any more opens nothing. So an open window always has a holder, whose leaving
clears it: a process that nobody asks any more recovers by itself.
Synchronous; `now` is an argument.
"""

from __future__ import annotations


class SaturationWindow:
    """The window of one gate. Belongs to one event loop; every change happens between awaits."""

    __slots__ = ("_expiry_s", "_last_refused_at", "_opened_at", "threshold_s")

    def __init__(self, threshold_s: float = 10.0, expiry_s: float = 60.0) -> None:
        """Requires threshold_s >= 0 and expiry_s > 0."""
        if threshold_s < 0 or expiry_s <= 0:
            raise ValueError("threshold_s must not be negative, expiry_s must be positive")
        self.threshold_s = threshold_s
        self._expiry_s = expiry_s
        self._opened_at: float | None = None
        self._last_refused_at = 0.0

    def __repr__(self) -> str:
        return (
            "<SaturationWindow clear>"
            if self._opened_at is None
            else f"<SaturationWindow open since {self._opened_at:.1f}>"
        )

    def refuse(self, now: float) -> None:
        """The gate refused somebody because it is full."""
        if not self.is_open(now):
            self._opened_at = now
        self._last_refused_at = now

    def progress(self) -> None:
        """The gate let somebody in, or somebody left it."""
        self._opened_at = None

    def is_open(self, now: float) -> bool:
        """Whether the gate refused lately and nothing has moved since."""
        if self._opened_at is not None and now - self._last_refused_at >= self._expiry_s:
            self._opened_at = None
        return self._opened_at is not None

    def open_s(self, now: float) -> float:
        """For how long the window has been open; 0 while it is clear."""
        return max(0.0, now - self._opened_at) if self.is_open(now) and self._opened_at is not None else 0.0

    def saturated(self, now: float) -> bool:
        """Whether the window has been open for the threshold or longer."""
        return self.is_open(now) and self.open_s(now) >= self.threshold_s


class Gate:
    """A bounded number of places, taken and given back at once, never waited for; with its saturation window.

    `limit` None: unbounded. Requires limit >= 1 otherwise.
    """

    __slots__ = ("_taken", "limit", "window")

    def __init__(self, limit: int | None, window: SaturationWindow) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"the limit must be at least 1, not {limit}")
        self.limit = limit
        self.window = window
        self._taken = 0

    def __repr__(self) -> str:
        return f"<Gate {self._taken}/{'-' if self.limit is None else self.limit} {self.window!r}>"

    @property
    def taken(self) -> int:
        """Places taken now."""
        return self._taken

    def has_room(self, places: int = 1) -> bool:
        """Whether `places` more could be taken."""
        return self.limit is None or self._taken + places <= self.limit

    def enter(self, places: int = 1) -> None:
        """Takes places that `has_room` just said are there. Progress: somebody got in."""
        if not self.has_room(places):
            raise RuntimeError("no room: ask has_room first")
        self._taken += places
        self.window.progress()

    def refuse(self, now: float) -> None:
        """Somebody found no room. Opens the window, if anybody is inside to clear it."""
        if self._taken:
            self.window.refuse(now)

    def leave(self, places: int = 1) -> None:
        """Gives places back. The places come first and the progress last: a refusal between the two would otherwise leave a
        window open that nobody is left to clear."""
        self.give_back(places)
        self.window.progress()

    def give_back(self, places: int) -> None:
        """The first half of `leave`, for who leaves several gates: all places first, then all progress."""
        if places > self._taken:
            raise RuntimeError("more places given back than were taken")
        self._taken -= places
