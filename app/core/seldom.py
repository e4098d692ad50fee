"""What is worth a line of the log when it begins, and not once for every time it happens."""

from __future__ import annotations

from collections.abc import Hashable

EVERY_S = 60.0

MOST = 256
"""Different things that are kept apart. More are not expected: what is told apart comes from closed sets."""


class Seldom:
    """Says when something may be said: the first time, and then once a minute. Synchronous; `now` is an argument."""

    __slots__ = ("_every_s", "_said")

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._said: dict[Hashable, tuple[float, int]] = {}

    def __repr__(self) -> str:
        return f"<Seldom {len(self._said)} things every {self._every_s:g} s>"

    def due(self, what: Hashable, now: float) -> int | None:
        """It happened. How often it had since it was said last, if it is to be said now; None while it is not."""
        said_at, untold = self._said.get(what, (now - self._every_s, 0))
        if now - said_at < self._every_s:
            self._said[what] = (said_at, untold + 1)
            return None
        if what not in self._said and len(self._said) >= MOST:
            del self._said[next(iter(self._said))]
        self._said[what] = (now, 0)
        return untold


class Told:
    """Of something that is so or is not: whether a change is to be said now. What changes too often is said late, and what was
    said last is true in the end, provided that it is asked again."""

    __slots__ = ("_seldom", "_was")

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._seldom = Seldom(every_s)
        self._was: dict[Hashable, bool] = {}

    def changed(self, what: Hashable, is_so: bool, now: float) -> bool:
        """Whether to say that `what` is so, or is no more. It is taken not to have been so before."""
        if self._was.get(what, False) == is_so or self._seldom.due(what, now) is None:
            return False
        self._was[what] = is_so
        return True
