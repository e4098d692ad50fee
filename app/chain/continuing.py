"""Continuity proofs: the roots between two anchors, gathered where they are known and filled where they are not.

A root comes from the chain's memory, else from its ledger, else from the block, which is filled through the chain's one budget
and joined by whoever else wants it. The digest that they lead to must be the upper anchor's. Where it is not, the roots from
memory are not believed a second time; and a proof leaves only if both anchors still stand when it is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from app.core.continuity import Bracket, ContinuityProof, cut
from app.core.errors import BlockNotReady, InconsistentSource, Internal, RpcUnavailable
from app.core.provable_block import ProvableBlock

from .keeping import Keeping
from .known import Known
from .ports import Anchors
from .roots import Roots

GATHERED_AT_ONCE = 16
"""Blocks of one bracket that are asked for at once; the permits of the chain decide how many are filled."""

CUT_HERE = 1000
"""So many roots are hashed on the event loop at most."""

REVERTED_TRIES = 3
"""How often the anchors are looked for again when those that were found do not stand any more."""


@dataclass(frozen=True, slots=True)
class Continuity:
    """A continuity proof, and the anchor that it ends in."""

    proof: ContinuityProof
    upper_height: int
    upper_digest: bytes


class Continuing:
    """Owned by its chain. `by_height` yields the checked canonical block of a height, and whether it was at hand."""

    def __init__(
        self,
        anchors: Anchors,
        known: Known,
        roots: Roots,
        keeping: Keeping | None,
        by_height: Callable[[int], Awaitable[tuple[ProvableBlock, bool]]],
    ) -> None:
        """Of anchors that lie further apart than `known` allows no proof is made."""
        self._anchors = anchors
        self._known = known
        self._roots = roots
        self._keeping = keeping
        self._by_height = by_height

    def __repr__(self) -> str:
        return f"<Continuing {self._anchors!r} {self._roots!r}>"

    async def prove(self, lo: int, hi: int) -> Continuity:
        """The roots from `lo` to the anchor at or above `hi`, and the digest below.

        Raises what finding the anchors and filling the blocks raises, `AttestationsMissing` when the anchors lie too far apart,
        and `InconsistentSource` when the blocks are not the attested ones.
        """
        for _ in range(REVERTED_TRIES):
            self._known.require_anchored(lo, hi)
            bracket = await self._anchors.find(lo, hi)
            self._known.require_near(bracket)
            proof = await self._proof(bracket, lo)
            if self._anchors.holds(bracket):
                return Continuity(proof, bracket.upper, bracket.upper_digest)
        self._known.require_anchored(lo, hi)
        raise BlockNotReady(
            f"The continuity proof cannot be created because the anchors around block {hi} are being replaced. "
            f"Last attested block: {self._anchors.attested_height}",
            block_number=hi,
            last_attested_block=self._anchors.attested_height,
        )

    async def root_at(self, height: int) -> bytes:
        """The usc root at `height`: known, or of the block, which is then filled."""
        known = self._roots.get(height)
        if known is not None:
            return known
        root = (await self._by_height(height))[0].usc_root
        self._roots.note(height, root)
        return root

    async def _proof(self, bracket: Bracket, lo: int) -> ContinuityProof:
        first, last = bracket.lower + 1, bracket.upper
        missing = self._roots.missing(first, last)
        believed = len(missing) <= last - first
        if missing and self._keeping is not None:
            for height, root in await self._keeping.roots(first, last):
                believed = True
                if self._roots.get(height) is None:
                    self._roots.note(height, root)
        try:
            return await _cut(bracket, await self._gathered(first, last), lo)
        except Internal:
            if not believed:
                raise self._unmet(bracket) from None
        self._roots.forget(range(first, last + 1))
        try:
            return await _cut(bracket, await self._gathered(first, last), lo)
        except Internal:
            raise self._unmet(bracket) from None

    def _unmet(self, bracket: Bracket) -> InconsistentSource:
        """Either may be the one that is wrong, or out of date: a reorg, a revert, anchors of another chain."""
        self._roots.forget(range(bracket.lower + 1, bracket.upper + 1))
        self._anchors.contradicted(bracket)
        return InconsistentSource(
            f"blocks {bracket.lower + 1} to {bracket.upper} of the source chain do not lead from the anchor at "
            f"{bracket.lower} to the one at {bracket.upper}: the blocks, or the anchors, were replaced, or are those of "
            "another chain"
        )

    async def _gathered(self, first: int, last: int) -> tuple[bytes, ...]:
        """The roots of [first, last]; those that are missing are filled, some at once."""
        filled: dict[int, bytes] = {}

        async def work(heights: Iterator[int]) -> None:
            for height in heights:
                filled[height] = await self.root_at(height)

        for _ in range(REVERTED_TRIES):  # a reorg, or who does not believe them, forgets others meanwhile
            missing = [height for height in self._roots.missing(first, last) if height not in filled]
            if not missing:
                break
            heights = iter(missing)
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(GATHERED_AT_ONCE, len(missing))):
                        group.create_task(work(heights))
            except ExceptionGroup as failed:
                raise failed.exceptions[0] from None
        roots = (filled.get(height) or self._roots.get(height) for height in range(first, last + 1))
        gathered = tuple([root for root in roots if root is not None])
        if len(gathered) < last - first + 1:
            raise RpcUnavailable(f"blocks {first} to {last} were replaced while their roots were gathered")
        return gathered


async def _cut(bracket: Bracket, roots: tuple[bytes, ...], lo: int) -> ContinuityProof:
    """As `cut`; of many roots beside the event loop."""
    if len(roots) <= CUT_HERE:
        return cut(bracket, roots, lo)
    return await asyncio.to_thread(cut, bracket, roots, lo)
