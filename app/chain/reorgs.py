"""Reorganisations, told from the blocks that the head showed: which of them are not the chain's any more, and from where on.

A lower head alone says nothing: of the nodes behind one address some lag. Two blocks at one height do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.blocks import BlockName

from .ports import Watched

REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Reorg:
    """Blocks from `began_at` on were replaced, `depth` of them as the head stood before. `undoes_final`: some were final."""

    began_at: int
    depth: int
    undoes_final: bool


class SeenBlocks:
    """Hashes by height of blocks seen lately. Owned by the head."""

    def __init__(self) -> None:
        self._hashes: dict[int, bytes] = {}
        self._last: int | None = None

    def __repr__(self) -> str:
        return f"<SeenBlocks {len(self._hashes)}, last {self._last}>"

    def note(self, block: BlockName) -> int | None:
        """Remembers a block; the lowest height at which it contradicts what was seen before, None where it contradicts nothing.
        What it contradicts is forgotten."""
        told = {block.height: block.block_hash}
        if block.height:
            told = {block.height - 1: block.parent_hash} | told
        replaced_at = next(
            (height for height, told_hash in told.items() if self._hashes.get(height, told_hash) != told_hash), None
        )
        if replaced_at is not None:
            for height in [height for height in self._hashes if height >= replaced_at]:
                del self._hashes[height]
        for height, told_hash in told.items():
            self._hashes.pop(height, None)
            self._hashes[height] = told_hash
        while len(self._hashes) > REMEMBERED:
            del self._hashes[next(iter(self._hashes))]
        self._last = block.height
        return replaced_at

    def gap_below(self, block: BlockName) -> int | None:
        """The last height seen, when blocks between it and `block` were not: what stood there may have been replaced."""
        last = self._last
        return last if last is not None and last in self._hashes and last < block.height - 1 else None

    def is_lower(self, block: BlockName) -> bool:
        """Whether it is below the last block, where none was seen: it contradicts nothing, and proves nothing either."""
        return self._last is not None and block.height < self._last and block.height not in self._hashes

    @property
    def known(self) -> Mapping[int, bytes]:
        """The hashes of all that is remembered, by height."""
        return self._hashes

    def drop_from(self, height: int) -> None:
        """Blocks from `height` on are not the chain's any more."""
        self._hashes = {at: block_hash for at, block_hash in self._hashes.items() if at < height}

    async def contradicted(self, upstream: Watched, height: int) -> bool:
        """Whether the chain has another block now at a height that was seen. Raises as `Watched.name_of`."""
        seen = self._hashes.get(height)
        name = await upstream.name_of(height)
        return name is not None and name.block_hash != seen

    async def began_at(
        self,
        upstream: Watched,
        shown_at: int,
        seen: Mapping[int, bytes],
        final: Mapping[int, bytes],
        finalized: int | None,
    ) -> int:
        """The lowest height that a reorg shown at `shown_at` may have replaced: one above the highest block that still stands,
        of those `seen` before and those held for `final`. It reaches to `finalized`, or below, only if one of these is gone
        there; and to 0 where one is, and nothing is known to stand.

        Forgets what does not stand. Raises as `Watched.name_of`.
        """
        lost, standing = await compared(upstream, seen, shown_at)
        for height in lost:
            if self._hashes.get(height) == seen[height]:
                del self._hashes[height]
        lowest, highest = min(lost, default=shown_at), -1 if standing is None else standing
        held = {height: block_hash for height, block_hash in final.items() if height > highest}
        lost, standing = await compared(upstream, held, lowest)
        if standing is not None:
            highest = standing
        elif highest < 0:  # nothing is known to stand
            return 0 if lost or (finalized is not None and lowest <= finalized) else lowest
        if finalized is not None and not lost and lowest > finalized:
            highest = max(highest, finalized)
        return highest + 1


async def compared(upstream: Watched, known: Mapping[int, bytes], below: int) -> tuple[list[int], int | None]:
    """The heights `below` that height at which the chain has not what is `known`, and the highest at which it has. Where one
    block stands all below it do, so few of them are asked for."""
    heights = sorted((height for height in known if height < below), reverse=True)
    gone, step, stands = 0, 1, len(heights)
    while gone < stands:
        at = (gone + stands) // 2 if stands < len(heights) else min(gone + step, len(heights)) - 1
        step *= 2
        name = await upstream.name_of(heights[at])
        if name is not None and name.block_hash != known[heights[at]]:
            gone = at + 1
        else:
            stands = at
    return heights[:gone], heights[stands] if stands < len(heights) else None
