"""Hashes of blocks that were called final: what a chain is compared with when its nodes may have come to another one.

Nobody's word that a height is final outlives the chain that it was said of. A node may be started on a new chain at the same
address, an address may lead to another chain for a while, and a rollback takes back what was final. A few blocks that are known
by their hashes tell all of these from a node that lags.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

REMEMBERED = 64


class Witnesses:
    """Hashes by height, the genesis among them once it was asked for. Owned by the head."""

    def __init__(self) -> None:
        self._hashes: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return f"<Witnesses {len(self._hashes)}>"

    @property
    def known(self) -> Mapping[int, bytes]:
        """All of them."""
        return self._hashes

    @property
    def highest(self) -> int | None:
        """The highest height; None without any."""
        return max(self._hashes, default=None)

    def contradicts(self, height: int, block_hash: bytes) -> bool:
        """Whether another block was known at that height."""
        return self._hashes.get(height, block_hash) != block_hash

    def note(self, height: int, block_hash: bytes) -> None:
        """This block is final. Of many the genesis is kept, and the newest."""
        self._hashes.pop(height, None)
        self._hashes[height] = block_hash
        while len(self._hashes) > REMEMBERED:
            del self._hashes[next(at for at in self._hashes if at)]

    def drop_from(self, height: int) -> None:
        """Blocks from `height` on were replaced."""
        self._hashes = {at: block_hash for at, block_hash in self._hashes.items() if at < height}


@dataclass(slots=True)
class Doubt:
    """Whether the nodes still have the chain that was called final is not known above `above`, since `since`; -1: nowhere.

    `until` is the height that they must come to again before it can be told, `seen` what was seen before.
    """

    above: int
    until: int
    since: float
    seen: Mapping[int, bytes]
