"""Finality levels: how sure a chain is of a height, and on whose word.

A level is what the upstream's tags (or a depth below the head) say; consensus itself is never verified here, so every statement
carries `by` and the number of sources that agreed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Finality levels, weakest first."""

    LATEST = "latest"
    SAFE = "safe"
    FINALIZED = "finalized"

    @property
    def rank(self) -> int:
        """0 for `latest`, 1 for `safe`, 2 for `finalized`."""
        return _RANKS[self]


_RANKS = {Level.LATEST: 0, Level.SAFE: 1, Level.FINALIZED: 2}


@dataclass(frozen=True, slots=True)
class Finality:
    """A level, and on whose word it stands: `by` is `rpc-tag`, `depth` or `quorum`; `sources` is how many agreed."""

    level: Level
    by: str
    sources: int


@dataclass(frozen=True, slots=True)
class Heads:
    """The heights a chain knows of: head (newest seen), safe, finalized; None where unknown.

    Requires head >= safe >= finalized wherever two of them are known. `by` says where the levels come from, `rpc-tag` or
    `depth`; `sources` how many nodes agreed on the finalized one.
    """

    head: int | None = None
    safe: int | None = None
    finalized: int | None = None
    by: str = "rpc-tag"
    sources: int = 1

    def taken_back(self, height: int) -> Heads:
        """The same, with nothing from `height` on called safe or final."""
        below = None if height == 0 else height - 1

        def capped(level: int | None) -> int | None:
            return level if level is None or level < height else below

        return Heads(self.head, capped(self.safe), capped(self.finalized), self.by, self.sources)

    def level_of(self, height: int) -> Level:
        """The strongest level that covers `height`."""
        if self.finalized is not None and height <= self.finalized:
            return Level.FINALIZED
        if self.safe is not None and height <= self.safe:
            return Level.SAFE
        return Level.LATEST

    @property
    def said_by(self) -> str:
        """On whose word the levels stand: `rpc-tag` or `depth` of one node, or a `quorum` of several."""
        return "quorum" if self.sources > 1 else self.by

    def finality_of(self, height: int) -> Finality:
        """`level_of`, with the word it stands on."""
        return Finality(self.level_of(height), self.said_by, self.sources)


_PLAUSIBLE_STEP = 16
"""A head may always be this far above the one before: fast chains make that many blocks between two rounds of polling."""


def observe(
    before: Heads,
    head: int | None,
    safe: int | None,
    finalized: int | None,
    *,
    mode: str,
    depth: int,
    lowest: int | None = None,
    sources: int = 1,
    tagless: bool = True,
) -> Heads:
    """What one round of polling makes of the heads.

    `lowest` is the head that a depth is counted from where several nodes named theirs; `sources` is how many nodes stand
    behind what is final in this round, 0 when they contradict each other: then the levels stay as they were.

    `mode` is `tag` or `depth`. In tag mode nodes of which none knows the finalized tag at all (`tagless`) fall back to `depth`
    blocks below the head. A tag that has no block yet makes nothing final; once one was heard, depth is over, and what depth
    called final above it is not any more. Zero depth means: final at once.
    What a tag called final never goes down by another word; the head may (a reorg), but not below finalized.
    A depth is counted from a head that is far above the one before only once it is seen again: one lie makes nothing final.
    """
    if head is None:
        head = before.head
    if not sources:
        return _held(before, head)
    by = "rpc-tag"
    held = before.finalized
    if mode == "tag" and finalized is None and held is not None and before.by == "rpc-tag":
        finalized = held
        safe = before.safe if safe is None else safe
    elif mode == "tag" and finalized is None and not tagless:
        held, by = None, "depth" if head is not None else before.by
    elif mode == "depth" or finalized is None:
        by = "depth" if head is not None else before.by
        finalized = _counted_down(before.head, head if lowest is None else lowest, depth)
        safe = finalized if mode == "depth" or safe is None else safe
    elif before.by == "depth":
        held = None
    if held is not None and (finalized is None or finalized < held):
        finalized, by = held, before.by
    if finalized == before.finalized:
        sources = before.sources
    if head is not None and finalized is not None:
        # A finalized tag above the head is a node that lags on one of the two: the lower figure is the safe one to act on,
        # unless it was already published.
        floor = held if held is not None else 0
        finalized = max(min(finalized, head), floor)
        head = max(head, finalized)
    if safe is None or (finalized is not None and safe < finalized):
        safe = finalized
    if safe is not None and head is not None:
        safe = min(safe, head)
    return Heads(head, safe, finalized, by, sources)


def _held(before: Heads, head: int | None) -> Heads:
    floor = max((height for height in (before.safe, before.finalized) if height is not None), default=None)
    if head is not None and floor is not None:
        head = max(head, floor)
    return Heads(head, before.safe, before.finalized, before.by, before.sources)


def _counted_down(before: int | None, head: int | None, depth: int) -> int | None:
    if head is None:
        return None
    if before is not None and head - before > max(depth, _PLAUSIBLE_STEP):
        head = before
    return head - depth if head >= depth else None
