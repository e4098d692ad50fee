"""Which heights to fill next: the newest that is missing, inside a window that ends at the finalized height.

    window   [finalized - retention + 1, finalized], narrowed to as many blocks as fit into the bytes there are
    done     heights filled, or refused for good; kept as intervals, so memory grows with the gaps and not with the heights

What was let go for want of room is not filled again: a window that is a little too wide narrows once, and does not fill and
evict in turn. It widens as the finalized height moves on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass


class Heights:
    """A set of heights, as disjoint closed intervals that do not touch."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in intervals:
            self.add(first, last)

    def __repr__(self) -> str:
        return f"<Heights {', '.join(f'{first}-{last}' for first, last in self)}>"

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The intervals, lowest first, both ends included."""
        return iter(list(zip(self._firsts, self._lasts, strict=True)))

    def __len__(self) -> int:
        """How many intervals there are: what this costs."""
        return len(self._firsts)

    def __contains__(self, height: int) -> bool:
        at = bisect_right(self._firsts, height) - 1
        return at >= 0 and height <= self._lasts[at]

    @property
    def lowest(self) -> int | None:
        """The lowest height; None when there is none."""
        return self._firsts[0] if self._firsts else None

    @property
    def highest(self) -> int | None:
        """The greatest height; None when there is none."""
        return self._lasts[-1] if self._lasts else None

    def add(self, first: int, last: int) -> None:
        """Adds the heights from `first` to `last`; nothing when there are none between them."""
        if first > last:
            return
        start = bisect_left(self._lasts, first - 1)  # the first interval that touches or lies above
        end = bisect_right(self._firsts, last + 1)  # the first that lies above without touching
        if start < end:
            first, last = min(first, self._firsts[start]), max(last, self._lasts[end - 1])
        self._firsts[start:end] = [first]
        self._lasts[start:end] = [last]

    def remove(self, first: int, last: int) -> None:
        """Removes the heights from `first` to `last`; nothing when there are none between them."""
        if first > last:
            return
        start = bisect_left(self._lasts, first)
        end = bisect_right(self._firsts, last)
        if start >= end:
            return
        left, right = self._firsts[start], self._lasts[end - 1]
        kept = [(left, first - 1)] if left < first else []
        kept += [(last + 1, right)] if last < right else []
        self._firsts[start:end] = [each[0] for each in kept]
        self._lasts[start:end] = [each[1] for each in kept]

    def newest_missing(self, low: int, high: int) -> int | None:
        """The greatest height of [low, high] that is not in the set; None when all are."""
        at = bisect_right(self._firsts, high) - 1
        if at >= 0 and high <= self._lasts[at]:
            high = self._firsts[at] - 1
        return high if high >= low else None

    def count(self, low: int, high: int) -> int:
        """How many heights of [low, high] are in the set."""
        if low > high:
            return 0
        start, end = bisect_left(self._lasts, low), bisect_right(self._firsts, high)
        within = zip(self._firsts[start:end], self._lasts[start:end], strict=True)
        return sum(min(last, high) - max(first, low) + 1 for first, last in within)


@dataclass(frozen=True, slots=True)
class Window:
    """The heights from `low` to `high`, both included; none when `low` is above."""

    low: int
    high: int

    @property
    def size(self) -> int:
        """How many heights there are."""
        return max(0, self.high - self.low + 1)


class Backlog:
    """What is missing in the window of one chain. Synchronous; owned by whoever fills it.

    Requires retention >= 1 or None for no limit but room, and fewest >= 1: however little room there is, the window is not
    narrowed below so many heights (the roots between two anchors are asked for together).
    """

    def __init__(self, retention: int | None = None, *, fewest: int = 1) -> None:
        self._retention = retention
        self._fewest = fewest
        self._floor = 0
        self._done = Heights()
        self.window = Window(0, -1)

    def __repr__(self) -> str:
        return f"<Backlog [{self.window.low}, {self.window.high}] {self.remaining} remaining, done {self._done!r}>"

    @property
    def remaining(self) -> int:
        """Heights of the window that are missing."""
        return self.window.size - self._done.count(self.window.low, self.window.high)

    @property
    def cursor(self) -> int | None:
        """The lowest height that is done; None when none is."""
        return self._done.lowest

    def __contains__(self, height: int) -> bool:
        """Whether `height` is done."""
        return height in self._done

    def restore(self, done: Iterable[tuple[int, int]]) -> None:
        """Takes what is remembered from before for what is done."""
        self._done = Heights(done)

    def advance(self, finalized: int, *, room: int | None = None, floor: int = 0) -> Window | None:
        """Moves the window to end at `finalized`, with room for so many blocks (None: no limit) and nothing below `floor`.

        What falls out of it below is forgotten. Returns the heights that are to be let go for want of room: done, and now
        below the window. None when there are none.
        """
        high = max(finalized, self.window.high)
        low = max(floor, self._floor)
        if self._retention is not None:
            low = max(low, high - self._retention + 1)
        kept = low if room is None else max(low, high - max(room, self._fewest) + 1)
        lowest = self._done.lowest
        let_go = None
        if kept > low and lowest is not None and lowest < kept:
            let_go = Window(lowest, kept - 1)
            self._floor = kept
        self.window = Window(kept, high)
        if lowest is not None:
            self._done.remove(lowest, kept - 1)
        return let_go

    def next(self, skipped: Container[int] = ()) -> int | None:
        """The newest missing height of the window that is not skipped; None when there is none. Decides nothing else."""
        height = self._done.newest_missing(self.window.low, self.window.high)
        while height is not None and height in skipped:
            height = self._done.newest_missing(self.window.low, height - 1)
        return height

    def note(self, height: int) -> None:
        """`height` is done. Nothing is remembered of heights outside the window."""
        if self.window.low <= height <= self.window.high:
            self._done.add(height, height)

    def lower(self, height: int) -> None:
        """Heights from `height` on are not final any more: the window ends below."""
        self._floor = min(self._floor, height)
        self.window = Window(min(self.window.low, height), min(self.window.high, height - 1))

    def reopen_from(self, height: int) -> None:
        """A reorg: heights from `height` on are missing again."""
        highest = self._done.highest
        if highest is not None:
            self._done.remove(height, highest)
