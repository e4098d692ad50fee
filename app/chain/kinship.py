"""Whether the chain that the ledger remembers is the one that the nodes have.

A key may be given to another chain, and a development chain begins anew under the same number: what was final then is not on the
chain that is now. One block that both know decides; until then the ledger is believed only while no node can be asked. It says
nothing of the blocks above it: one of those that another process noted since is compared before it is believed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from cachetools import LRUCache

from app.core.blocks import BlockName
from app.core.errors import BlockNotOnSourceChain, ProofError, RpcUnavailable, UpstreamBudgetExhausted
from app.core.lasting import StoreUnavailable
from app.core.purpose import Purpose, for_purpose

from .ports import Clock, Ledger

log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""For so long those who read do not ask again after nobody could be asked."""

FOREIGN_AGAIN_S = 30.0
"""How often a ledger that was disowned is looked at again: one node that was wrong is enough to disown it. One that is found to
be of another chain then too is emptied, and filled with what this chain has."""

VOUCHED = 4096
"""Heights of which it is remembered that the nodes have the block that the ledger names."""

LOOKED_AT = 8
"""Heights that are looked at for one whose block was not refused."""


class Kinship(Enum):
    """What is known of it."""

    UNSEEN = "no node could be asked yet"
    UNKNOWN = "no block that both know"
    SAME = "the same chain"
    FOREIGN = "another chain"


class Nodes(Protocol):
    """Of the upstream, what is needed here."""

    async def name_of(self, height: int) -> BlockName | None: ...


async def kinship_of(
    ledger: Ledger,
    nodes: Nodes,
    head: int | None,
    on_shared: Callable[[int, bytes], None] = lambda height, block_hash: None,
) -> Kinship:
    """`head` is the newest height that the nodes have; None before they were heard. `on_shared` hears of the height at which both
    have one block. Raises `StoreUnavailable`."""
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
            with for_purpose(Purpose.HEAD):  # known answers depend on it: not for the units that are left for cold ones
                name = await nodes.name_of(height)
        except (RpcUnavailable, UpstreamBudgetExhausted):
            return Kinship.UNSEEN
        except ProofError:
            return Kinship.UNKNOWN
        if name is not None and name.block_hash == noted:
            on_shared(height, noted)
            return Kinship.SAME
        if name is not None:
            return Kinship.FOREIGN
    return Kinship.SAME if unnamed else Kinship.UNKNOWN  # heights that were refused pin nothing


class Kin:
    """What is known of a ledger's kinship. Owned by whoever keeps the ledger."""

    def __init__(
        self,
        chain: str,
        ledger: Ledger,
        nodes: Nodes,
        clock: Clock,
        head: Callable[[], int | None],
        on_foreign: Callable[[], None],
    ) -> None:
        """`head` is the newest height that nodes were heard to have; `on_foreign` hears once that this is another chain."""
        self._chain = chain
        self._ledger = ledger
        self._nodes = nodes
        self._clock = clock
        self._head = head
        self._on_foreign = on_foreign
        self._finding = asyncio.Lock()
        self._again_at: float | None = None
        self._vouched: LRUCache[int, bytes] = LRUCache(VOUCHED)
        self._foreign_until = 0.0
        self._disowned_at = 0.0
        self._by_head = False
        self._mixed = False
        self.kinship = Kinship.UNSEEN
        self.returned = False
        """Whether the ledger was disowned for a while: what was told to be final then may have been so on another chain."""
        self.replaced = False
        """Whether what the ledger holds is that of a chain that is no more, and is to be forgotten before anything is noted."""

    def __repr__(self) -> str:
        return f"<Kin {self._chain} {self.kinship.value}>"

    async def found(self) -> Kinship:
        """What is known of it, found out where that is nothing yet. Raises `StoreUnavailable`."""
        if self.kinship is Kinship.FOREIGN:
            await self._look_again()
        if self.kinship in (Kinship.UNSEEN, Kinship.UNKNOWN):
            head = self._head()
            disowned = self._disowned_at
            found = await kinship_of(self._ledger, self._nodes, head, self._note_shared)
            if self._disowned_at != disowned:  # meanwhile the head saw another chain
                return self.kinship
            self.kinship = found
            if self.kinship is Kinship.UNSEEN and head is not None:
                self._again_at = self._clock.now() + AGAIN_S
            if self.kinship is Kinship.FOREIGN:
                self._disown()
        return self.kinship

    def disown(self) -> None:
        """The head saw that the nodes serve another chain than before."""
        self._vouched.clear()
        if self.kinship is not Kinship.FOREIGN:
            self.kinship, self._disowned_at = Kinship.FOREIGN, self._clock.now()
            self._foreign_until = self._disowned_at + FOREIGN_AGAIN_S
        else:
            self._foreign_until = 0.0  # it may be the one of before that
        self._by_head = True

    def reconsider(self) -> None:
        """What was compared may have been compared with another chain."""
        self._vouched.clear()
        self._foreign_until = 0.0 if self.kinship is Kinship.FOREIGN else self._foreign_until

    async def believed(self, within_s: float) -> bool:
        """Whether the ledger is to be believed: that of this chain, and any for as long as nobody can be asked. Found out first
        where somebody can. Raises `StoreUnavailable`."""
        if self.kinship is Kinship.UNSEEN and self._head() is not None and self._clock.now() >= (self._again_at or 0.0):
            try:
                async with asyncio.timeout(within_s), self._finding:
                    await self.found()
            except TimeoutError:  # nobody knows: as it was the last time
                return self._again_at is not None
        return self.kinship in (Kinship.UNSEEN, Kinship.SAME)

    async def vouched(self, height: int, block_hash: bytes, within_s: float) -> bool:
        """Whether a block that another process noted is to be believed: one that the nodes have too, and any for as long as
        none can be asked. Of each height they are asked once: a ledger may hold blocks of two chains."""
        if self._is_beyond_doubt(height, block_hash):
            return True
        try:
            async with asyncio.timeout(within_s), self._finding:
                if self._is_beyond_doubt(height, block_hash):
                    return True
                with for_purpose(Purpose.HEAD):
                    name = await self._nodes.name_of(height)
        except BlockNotOnSourceChain:  # they have not come so far, or not again
            return False
        except (TimeoutError, ProofError):
            self._again_at = self._clock.now() + AGAIN_S
            return True
        if name is None:
            return True
        if name.block_hash == block_hash:
            self._vouched[height] = block_hash
            return True
        await self._contradicted(height)
        return False

    async def _contradicted(self, height: int) -> None:
        """The ledger names a block that the nodes have not: it is of another chain, or holds some of its blocks."""
        if self.kinship is not Kinship.SAME:
            return
        try:
            with for_purpose(Purpose.HEAD):
                found = await kinship_of(self._ledger, self._nodes, self._head(), self._note_shared)
        except StoreUnavailable:
            return
        if found is Kinship.FOREIGN:
            self._disown()
        elif not self._mixed:
            self._mixed = True
            log.error("ledger_of_two_chains", extra={"chain": self._chain, "height": height})

    def doubt_from(self, height: int) -> None:
        """A reorg: what the nodes had from `height` on they need not have any more."""
        for gone in [vouched for vouched in self._vouched if vouched >= height]:
            del self._vouched[gone]

    def _is_beyond_doubt(self, height: int, block_hash: bytes) -> bool:
        if self.kinship is not Kinship.SAME:  # nobody could be asked
            return True
        return self._vouched.get(height) == block_hash or self._clock.now() < (self._again_at or 0.0)

    def _note_shared(self, height: int, block_hash: bytes) -> None:
        self._vouched[height] = block_hash

    async def _look_again(self) -> None:
        now = self._clock.now()
        if now < self._foreign_until:
            return
        self._foreign_until = now + FOREIGN_AGAIN_S
        found = await kinship_of(self._ledger, self._nodes, self._head(), self._note_shared)
        if found is Kinship.SAME:
            self.kinship, self._by_head, self.returned = Kinship.SAME, False, True
            log.warning("ledger_of_this_chain", extra={"chain": self._chain})
        elif now - self._disowned_at >= FOREIGN_AGAIN_S and (
            found is Kinship.FOREIGN or (found is Kinship.UNKNOWN and self._by_head)
        ):
            self.kinship, self._by_head, self.replaced = Kinship.SAME, False, True
            log.warning(
                "ledger_emptied", extra={"chain": self._chain, "detail": "it is that of a chain that is no more"}
            )

    def _disown(self) -> None:
        self.kinship, self._disowned_at = Kinship.FOREIGN, self._clock.now()
        self._foreign_until = self._disowned_at + FOREIGN_AGAIN_S
        log.error("ledger_of_another_chain", extra={"chain": self._chain, "detail": "nothing of it is used"})
        self._on_foreign()
