"""Whether the chain that the ledger remembers is the one that the nodes have.

A key may be given to another chain, and a development chain begins anew under the same number: what was final then is not on the
chain that is now. One block that both know decides; until then the ledger is believed only while no node can be asked.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from app.core.blocks import BlockName
from app.core.errors import ProofError

from .ports import Ledger

LOOKED_AT = 8
"""Heights that are looked at for one whose block was not refused."""


class Kinship(Enum):
    """What is known of it."""

    UNSEEN = "no node was heard yet"
    UNKNOWN = "no block that both know"
    SAME = "the same chain"
    FOREIGN = "another chain"


class Nodes(Protocol):
    """Of the upstream, what is needed here."""

    async def name_of(self, height: int) -> BlockName | None: ...


async def kinship_of(ledger: Ledger, nodes: Nodes, head: int | None) -> Kinship:
    """`head` is the newest height that the nodes have; None before they were heard. Raises `StoreUnavailable`."""
    if head is None:
        return Kinship.UNSEEN
    intervals = await ledger.done()
    if not intervals:
        return Kinship.SAME
    common = [(first, min(last, head)) for first, last in intervals if first <= head]
    if not common:
        return Kinship.UNKNOWN
    first, last = common[-1]
    unnamed = True
    for height in range(last, max(first - 1, last - LOOKED_AT), -1):
        noted = await ledger.hash_at(height)
        if noted is None:
            continue
        unnamed = False
        try:
            name = await nodes.name_of(height)
        except ProofError:
            return Kinship.UNKNOWN
        if name is not None:
            return Kinship.SAME if name.block_hash == noted else Kinship.FOREIGN
    return Kinship.SAME if unnamed else Kinship.UNKNOWN  # heights that were refused pin nothing
