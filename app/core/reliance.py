"""Whether a shared place is asked at all, or everybody decides alone for the moment.

    ASKED --a failure, or several late answers in a row--> LEFT ALONE --it answers in time--> ASKED

While it is left alone nobody waits for it: only probes, sent beside the requests, find out that it is back. Synchronous.
"""

from __future__ import annotations

LATE_IN_A_ROW = 3


class Reliance:
    """On one shared place. Owned by whoever asks it."""

    __slots__ = ("_late", "broken", "proved_at")

    def __init__(self) -> None:
        self.broken = False
        """Whether it is left alone."""
        self.proved_at = float("-inf")
        """When the last of the questions that were answered in time was sent: from then on it was not the place that was slow."""
        self._late = 0

    def __repr__(self) -> str:
        return f"<Reliance {'left alone' if self.broken else f'{self._late} late'}>"

    def answered(self, sent_at: float) -> None:
        """A question was answered in time."""
        self.proved_at = max(self.proved_at, sent_at)
        self._late = 0
        self.broken = False

    def late(self) -> None:
        """An answer did not come in time, and nobody else is to blame."""
        self._late += 1
        if self._late >= LATE_IN_A_ROW:
            self.broken = True

    def failed(self) -> None:
        """It could not be asked."""
        self.broken = True
