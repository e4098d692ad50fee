"""How long until a height is reached that moves by itself, judged by how it moved lately.

height
  |               .---   moves of `step` heights, one every `interval_s`: what is asked for is reached with the
  |        .-----'       k-th move from now, k = ceil(missing / step)
  |  -----'
  +--------------------- time
"""

from __future__ import annotations

from collections import deque

REMEMBERED = 32
"""Moves that the pace is taken from: enough to even out one that was late, few enough to follow a change."""

LONGEST_WAIT_S = 3600.0
"""Nobody is told to wait for longer than this: who asks for a height of next year asks in vain, and will be told so again."""


class Waiting:
    """Watches one height. Belongs to one event loop; `now` is monotonic seconds."""

    def __init__(self) -> None:
        self._moves: deque[tuple[int, float]] = deque(maxlen=REMEMBERED + 1)

    def __repr__(self) -> str:
        return f"<Waiting {len(self._moves)} sightings, newest {self._moves[-1][0] if self._moves else None}>"

    def note(self, height: int | None, now: float) -> None:
        """The height stands there now. One that fell was reverted: what was seen before says nothing any more."""
        if height is None or (self._moves and height < self._moves[-1][0]):
            self._moves.clear()
        if height is not None and (not self._moves or height > self._moves[-1][0]):
            self._moves.append((height, now))

    def wait_s(self, height: int, now: float) -> float | None:
        """Until `height` is reached, at the pace of late; None while that is not known, or when it should have been by now."""
        if len(self._moves) < 3:  # the first sighting may stand at any moment between two moves
            return None
        (first, _), (_, began), (newest, moved) = self._moves[0], self._moves[1], self._moves[-1]
        moves = len(self._moves) - 2
        step, interval_s = (newest - first) / (moves + 1), (moved - began) / moves
        wait_s = -(-(height - newest) // step) * interval_s - (now - moved)
        return min(wait_s, LONGEST_WAIT_S) if wait_s > 0 else None
