"""Leaving somebody alone who failed: the longer, the more often in a row. Synchronous: `now` is monotonic, in seconds."""

from __future__ import annotations

from collections.abc import Sequence


class Silence:
    """Of one whom many ask at once: of those who asked at the same time, one failure counts."""

    __slots__ = ("_pauses_s", "failures", "until")

    def __init__(self, pauses_s: Sequence[float]) -> None:
        """`pauses_s`: after the first failure in a row, the second, and so on; the last again and again."""
        self._pauses_s = pauses_s
        self.failures = 0
        """In a row."""
        self.until = 0.0

    def __repr__(self) -> str:
        return f"<Silence after {self.failures} failures, until {self.until:.1f}>"

    def lasts(self, now: float) -> bool:
        """Whether nobody asks at the moment."""
        return now < self.until

    def failed(self, now: float) -> bool:
        """Whether that is the first failure of several in a row."""
        if self.lasts(now):
            return False
        self.until = now + self._pauses_s[min(self.failures, len(self._pauses_s) - 1)]
        self.failures += 1
        return self.failures == 1

    def answered(self) -> None:
        """What fails next is the first in a row."""
        self.failures = 0

    def end(self) -> None:
        """All is well: whoever comes next asks."""
        self.failures, self.until = 0, 0.0
