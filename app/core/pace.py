"""How fast a chain makes blocks, learned from the blocks it made."""

from __future__ import annotations

from collections import deque

_REMEMBERED = 32


class Pace:
    """Heights and timestamps of blocks seen lately, in rising order. Owned by whoever sees them."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)

    def __repr__(self) -> str:
        return f"<Pace {self.block_time_s} s>"

    def note(self, height: int, timestamp: int) -> None:
        """A block was seen. One that does not fit behind the last, after a reorg or a lie, starts the learning again."""
        if self._seen:
            last_height, last_timestamp = self._seen[-1]
            if height == last_height:
                return
            if height < last_height or timestamp < last_timestamp:
                self._seen.clear()
        self._seen.append((height, timestamp))

    @property
    def block_time_s(self) -> float | None:
        """Seconds from one block to the next, on average; None before two blocks were seen."""
        if len(self._seen) < 2:
            return None
        (first, began), (last, ended) = self._seen[0], self._seen[-1]
        return (ended - began) / (last - first)
