"""When the next anchor may come, learned from when others came: until then an answer under the newest ones will stay right."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

_REMEMBERED = 32


class AnchorPace:
    """Notes every change of a chain's newest anchors. Owned by whoever sees them."""

    __slots__ = ("_came", "_newest", "_seen_late_s")

    def __init__(self, seen_late_s: float = 0.0) -> None:
        """`seen_late_s`: a change may be this old before it is noted."""
        self._seen_late_s = seen_late_s
        self._newest: tuple[int | None, int | None] | None = None
        self._came: deque[float] = deque(maxlen=_REMEMBERED)

    def __repr__(self) -> str:
        return f"<AnchorPace shortest gap {self._shortest_gap_s()} s>"

    def note(self, attested: int | None, checkpoint: int | None, now: float) -> None:
        """What is newest at `now`. What was there at the first look came before it, nobody knows when; when anchors were taken
        back, what was learned is forgotten."""
        before, self._newest = self._newest, (attested, checkpoint)
        if before is None or before == self._newest:
            return
        if (attested or 0) < (before[0] or 0) or (checkpoint or 0) < (before[1] or 0):
            self._came.clear()
            return
        self._came.append(now)

    def rests_s(self, now: float) -> float:
        """How long no anchor is due, if none comes sooner after the last one than any did before: 0 when that is not known, or
        one is due."""
        gap_s = self._shortest_gap_s()
        if gap_s is None:
            return 0.0
        # Two ends of the gap may have been seen late, and the next anchor may be there before it is seen.
        return max(0.0, self._came[-1] + gap_s - 2 * self._seen_late_s - now)

    def _shortest_gap_s(self) -> float | None:
        if len(self._came) < 2:
            return None
        return min(later - earlier for earlier, later in pairwise(self._came))
