"""What several nodes agree is final: a height counts as final only when no node that could know has another block there.

A node that claims a finalized block is compared with the others at the height of the highest claim where they have come that
far, and at its own height where they, or it, have not. Where two sides have different blocks, the side of the majority counts
and the others are named; without a majority nothing new is final.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from app.core.blocks import BlockName

from .ports import Watched


@dataclass(frozen=True, slots=True)
class Agreed:
    """`height` is final on the word of `sources` nodes; None: nothing new is. `disputed`: these nodes have different blocks
    somewhere up to the highest claim. `outvoted`: those of them that have another block than the majority."""

    height: int | None
    sources: int
    disputed: frozenset[str] = frozenset()
    outvoted: frozenset[str] = frozenset()


async def on_claims(upstream: Watched, claims: Mapping[str, BlockName], voters: Collection[str]) -> Agreed:
    """What follows from the finalized blocks that nodes claim, by their names. `voters` may contradict without a claim.

    The lowest of the claims that are not outvoted counts. Raises nothing: who cannot be asked contradicts nobody.
    """
    disputed: frozenset[str] = frozenset()
    for claimant, top in sorted(claims.items(), key=lambda claim: claim[1].height, reverse=True):
        with_it, against_it = await _sides(upstream, claimant, top, claims, voters)
        if against_it:
            disputed |= with_it | against_it
        if len(with_it) > len(against_it):
            lowest = min(block.height for name, block in claims.items() if name not in against_it)
            return Agreed(lowest, len(with_it & claims.keys()), disputed, against_it)
    return Agreed(None, 0, disputed)


async def on_height(upstream: Watched, height: int, voters: Collection[str]) -> Agreed:
    """Whether the nodes have one block at `height`, counted down from their lowest head."""
    hashes: dict[bytes, set[str]] = {}
    for sighting in await upstream.names_at(height):
        if sighting.block is not None and sighting.upstream in voters:
            hashes.setdefault(sighting.block.block_hash, set()).add(sighting.upstream)
    if not hashes:
        return Agreed(None, 0)
    most, everybody = max(hashes.values(), key=len), frozenset().union(*hashes.values())
    disputed = everybody if len(hashes) > 1 else frozenset()
    if 2 * len(most) > len(everybody):
        return Agreed(height, len(most), disputed, everybody - most)
    return Agreed(None, 0, disputed)


async def _sides(
    upstream: Watched, claimant: str, top: BlockName, claims: Mapping[str, BlockName], voters: Collection[str]
) -> tuple[set[str], frozenset[str]]:
    """Who has the claimed block, or is on the way to it, and who has another."""
    at_top = {sighting.upstream: sighting.block for sighting in await upstream.names_at(top.height)}
    with_it: set[str] = {claimant}
    against_it: set[str] = set()
    for name in sorted({*voters, *claims} - {claimant}):
        block, claimed = at_top.get(name), top
        if block is None and name in claims:
            claimed = claims[name]
            behind = {sighting.upstream: sighting.block for sighting in await upstream.names_at(claimed.height)}
            block = behind.get(claimant)
        if block is not None:
            (with_it if block.block_hash == claimed.block_hash else against_it).add(name)
    return with_it, frozenset(against_it)
