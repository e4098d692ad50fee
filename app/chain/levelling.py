"""When a block will be safe, or final: by the pace at which the chain's own heights moved lately."""

from __future__ import annotations

from app.core.finality import Heads, Level
from app.core.waiting import LONGEST_WAIT_S, Waiting

from .ports import Clock


class Levelling:
    """Watches the heads of one chain. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heads = Heads()
        self._levels = {level: Waiting() for level in Level}

    def __repr__(self) -> str:
        return f"<Levelling {self._levels!r}>"

    def note(self, heads: Heads) -> None:
        """The chain is so far now."""
        now = self._clock.now()
        self._heads = heads
        for level, height in (
            (Level.LATEST, heads.head),
            (Level.SAFE, heads.safe),
            (Level.FINALIZED, heads.finalized),
        ):
            self._levels[level].note(height, now)

    def wait_s(self, height: int, level: Level) -> float | None:
        """Until the block at `height` reaches `level`; None while no pace is known.

        A level that was seen to move too seldom follows the head: it is then as far away as that many blocks take.
        """
        now = self._clock.now()
        wait_s = self._levels[level].wait_s(height, now)
        if wait_s is not None:
            return wait_s
        reached = self._heads.safe if level is Level.SAFE else self._heads.finalized
        head = self._heads.head
        if head is None or reached is None or height <= reached:
            return None
        wait_s = self._levels[Level.LATEST].wait_s(head + height - reached, now)
        return None if wait_s is None else min(wait_s, LONGEST_WAIT_S)
