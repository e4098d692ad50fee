"""How many things to do at once beside others: more while nothing has to wait for it, fewer while something has.

Additive increase, multiplicative decrease.
"""

from __future__ import annotations

STEP = 0.25
CUT = 0.75


class Breadth:
    """Owned by whoever does the things. Begins with one at a time."""

    def __init__(self) -> None:
        self._breadth = 1.0

    def __repr__(self) -> str:
        return f"<Breadth {self._breadth:.2f}>"

    def seen(self, crowded: bool, most: int) -> None:
        """One thing has ended, of at most `most` at once; `crowded` says whether anything waited for what it used."""
        self._breadth = min(max(1.0, self._breadth * CUT if crowded else self._breadth + STEP), float(most))

    def at_once(self, most: int) -> int:
        """How many of `most` to do now."""
        return min(int(self._breadth), most)
