"""A chain whose two anchors stand a hundred blocks apart, and of which nothing else is known."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from app.core.block_building import build
from app.core.continuity import Bracket, SortedMapping, choose_bracket, digest
from app.core.provable_block import BuildRequest
from tests.chain.recorded_chain import BUSY, FIRST, LAST, SEPOLIA, Record, RecordedChain, bodies_of, forged, sepolia

GENESIS, UPPER = 1_000_000, 1_000_100
HEIGHTS = range(GENESIS + 1, UPPER + 1)
"""What lies between the anchors, the upper one included."""

_CONTENTS = LAST - FIRST + 1
MIDDLE = GENESIS + BUSY - FIRST
"""A block with three transactions that no other block has."""


@functools.cache
def blocks() -> dict[int, Record]:
    """From the genesis to one above the upper anchor, each the child of the one before, with the contents of recorded blocks."""
    made: dict[int, Record] = {}
    for height in range(GENESIS, UPPER + 2):
        parent = {"parentHash": made[height - 1]["block"]["hash"]} if made else {}
        made[height] = forged(sepolia(FIRST + (height - GENESIS) % _CONTENTS), number=hex(height), **parent)
    return made


@functools.cache
def roots() -> dict[int, bytes]:
    """The usc root of each height."""
    found: dict[int, bytes] = {}
    for height in (GENESIS, *HEIGHTS):
        bodies = bodies_of(blocks()[height])
        request = BuildRequest(
            family="ethereum",
            chain_id=SEPOLIA,
            anchored=True,
            height=height,
            block_hash=None,
            block_json=bodies.block_json,
            receipts_json=bodies.receipts_json,
        )
        found[height] = build(request).usc_root
    return found


class GivenAnchors:
    """Anchors that somebody else made: two checkpoints, without the roots between them."""

    source, poll_interval_s, genesis, checkpoint_height, attested_height = "static", None, GENESIS, UPPER, UPPER

    def __init__(self) -> None:
        digests: dict[int, bytes] = {}
        for height, root in roots().items():
            digests[height] = digest(height, root, digests.get(height - 1))
        self._anchors = SortedMapping({height: digests[height] for height in (GENESIS, UPPER)})

    def bracket(self, lo: int, hi: int) -> Bracket:
        return choose_bracket(SortedMapping(), self._anchors, lo, hi, chain_key=7)

    async def find(self, lo: int, hi: int) -> Bracket:
        return self.bracket(lo, hi)

    def holds(self, bracket: Bracket) -> bool:
        return True

    def overtake(self, height: int) -> None:
        """They are those of others."""

    def contradicted(self, bracket: Bracket) -> None:
        """They are those of others."""

    async def advance(self, finalized: int | None, root_at: Callable[[int], Awaitable[bytes]]) -> None:
        """There is nothing to make."""


async def cold_chain(known: Iterable[int] = (), **rules: Any) -> RecordedChain:
    """Nothing is known of the chain but its anchors, its head, and the roots of the heights that are `known`."""
    recorded = RecordedChain(FIRST, FIRST - 1, anchors=GivenAnchors(), **rules)
    for record in blocks().values():
        recorded.put(record)
    await recorded.see(UPPER + 1, finalized=UPPER + 1)
    for height in known:
        recorded.chain.roots.note(height, roots()[height])
    recorded.calls()
    return recorded


def tx_hash(height: int = MIDDLE, index: int = 0) -> str:
    """The hash of a transaction of one block."""
    found: str = blocks()[height]["block"]["transactions"][index]["hash"]
    return found


def busy(count: int) -> list[int]:
    """Heights of blocks with transactions that no other block of the chain has, `MIDDLE` the first."""
    alone = [h for h in HEIGHTS if h + _CONTENTS > UPPER + 1 and h - _CONTENTS < GENESIS]
    found = [height for height in alone if blocks()[height]["block"]["transactions"] and height != MIDDLE]
    assert len(found) + 1 >= count
    return [MIDDLE, *found][:count]
