"""The heads that several nodes name, and which of them to act on.

Whoever decides what exists goes by the highest head that is plausible; whoever decides what is settled goes by the lowest of
those that are alive: a lie in either direction then costs an answer at most, and settles nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .blocks import BlockName

LEAD_BLOCKS = 256
"""A head this far above the one before, and further than time allows for, is not believed the first time."""

FASTEST_BLOCK_S = 0.1
"""No chain is believed to make blocks faster, on average, than one in this time; twice that is allowed for."""

NEAR_BLOCKS = 16

HEAD_MEMORY_S = 60.0
"""A head below the published one that shows no reorg is jitter, unless it stays below for so long."""


@dataclass(slots=True)
class Steadiness:
    """The published head of one chain: it rises at the pace of a chain, and falls when a reorg is shown or a lower head stays.

    Owned by the head tracker; synchronous, with `now` as an argument.
    """

    head: int | None = None
    risen_at: float = 0.0
    doubted: int | None = None
    """A head that was too far above to be believed the first time; believed when it is named again."""
    lower_since: float | None = None

    def observe(self, heights: Sequence[int], now: float, *, reorged: bool) -> int:
        """The head to publish after nodes named these, at least one. `reorged`: blocks below the published head were replaced."""
        top = max(heights)
        if self.head is None or reorged:
            return self._publish(top, now)
        limit = self.head + max(LEAD_BLOCKS, int(2 * (now - self.risen_at) / FASTEST_BLOCK_S))
        if top > limit and (self.doubted is None or top < self.doubted):
            self.doubted = top
            top = max((height for height in heights if height <= limit), default=self.head)
        else:
            self.doubted = None
        if top >= self.head:
            return self._publish(top, now)
        if self.lower_since is None:
            self.lower_since = now
        return self._publish(top, now) if now - self.lower_since > HEAD_MEMORY_S else self.head

    def _publish(self, height: int, now: float) -> int:
        if height != self.head:
            self.risen_at = now
        self.head, self.lower_since = height, None
        return height


@dataclass(frozen=True, slots=True)
class Choice:
    """Of the blocks that nodes named as their heads: the one that reorgs are told from, the heights in descending order, the
    lowest of those nodes that have a say in what is final, and who they are."""

    followed: BlockName
    heights: tuple[int, ...]
    lowest: int
    voters: frozenset[str]


def choose(
    heads: Mapping[str, BlockName],
    *,
    frozen: Collection[str] = (),
    floor: int | None = None,
    astray: Collection[str] = (),
) -> Choice:
    """What to make of the heads. `heads` by node, the primary first, at least one.

    Two nodes beside each other differ at the tip all the time: one is followed, the first that is not far behind the highest.
    One that contradicts the others about what is final (`astray`) is followed only where there is no other.
    A node has a say in what is final unless its head stands still (`frozen`) while another's is above it, or has not come to
    what is final already (`floor`).
    """
    heights = tuple(sorted((block.height for block in heads.values()), reverse=True))
    trusted = {name: block for name, block in heads.items() if name not in astray} or heads
    top = max(block.height for block in trusted.values())
    followed = next(block for block in trusted.values() if top - block.height <= NEAR_BLOCKS)
    voters = {
        name: block.height
        for name, block in heads.items()
        if (name not in frozen or block.height == heights[0]) and (floor is None or block.height >= floor)
    }
    voters = voters or {name: block.height for name, block in heads.items()}
    return Choice(followed, heights, min(voters.values()), frozenset(voters))
