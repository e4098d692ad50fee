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

from app.core.blocks import BlockName
from app.core.errors import ProofError, RpcUnavailable, UpstreamBudgetExhausted
from app.core.purpose import Purpose, for_purpose

from .ports import Clock, Ledger

log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""For so long those who read do not ask again after nobody could be asked."""

FOREIGN_AGAIN_S = 60.0
"""How often a ledger that was disowned is looked at again: one node that was wrong is enough to disown it."""

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
    ledger: Ledger, nodes: Nodes, head: int | None, on_shared: Callable[[int], None] = lambda height: None
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
            on_shared(height)
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
        self._shared_to = -1
        self._foreign_until = 0.0
        self.kinship = Kinship.UNSEEN

    def __repr__(self) -> str:
        return f"<Kin {self._chain} {self.kinship.value}>"

    async def found(self) -> Kinship:
        """What is known of it, found out where that is nothing yet. Raises `StoreUnavailable`."""
        if self.kinship is Kinship.FOREIGN:
            await self._look_again()
        if self.kinship in (Kinship.UNSEEN, Kinship.UNKNOWN):
            head = self._head()
            self.kinship = await kinship_of(self._ledger, self._nodes, head, self._note_shared)
            if self.kinship is Kinship.UNSEEN and head is not None:
                self._again_at = self._clock.now() + AGAIN_S
            if self.kinship is Kinship.FOREIGN:
                self._disown()
        return self.kinship

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
        """Whether a block that another process noted is to be believed: one below a block that the nodes have too, one that they
        have themselves, and any for as long as nobody can be asked."""
        if self._is_beyond_doubt(height):
            return True
        try:
            async with asyncio.timeout(within_s), self._finding:
                if self._is_beyond_doubt(height):
                    return True
                with for_purpose(Purpose.HEAD):
                    name = await self._nodes.name_of(height)
        except (TimeoutError, ProofError):
            self._again_at = self._clock.now() + AGAIN_S
            return True
        if name is None:
            return True
        if name.block_hash == block_hash:
            self._note_shared(height)
            return True
        if self.kinship is Kinship.SAME:
            self._disown()
        return False

    def doubt_from(self, height: int) -> None:
        """A reorg: what the nodes had from `height` on they need not have any more."""
        self._shared_to = min(self._shared_to, height - 1)

    def _is_beyond_doubt(self, height: int) -> bool:
        if self.kinship is not Kinship.SAME:  # nobody could be asked
            return True
        return height <= self._shared_to or self._clock.now() < (self._again_at or 0.0)

    def _note_shared(self, height: int) -> None:
        self._shared_to = max(self._shared_to, height)

    async def _look_again(self) -> None:
        now = self._clock.now()
        if now < self._foreign_until:
            return
        self._foreign_until = now + FOREIGN_AGAIN_S
        if await kinship_of(self._ledger, self._nodes, self._head(), self._note_shared) is Kinship.SAME:
            self.kinship = Kinship.SAME
            log.warning("ledger_of_this_chain", extra={"chain": self._chain})

    def _disown(self) -> None:
        self.kinship = Kinship.FOREIGN
        self._foreign_until = self._clock.now() + FOREIGN_AGAIN_S
        log.error("ledger_of_another_chain", extra={"chain": self._chain, "detail": "nothing of it is used"})
        self._on_foreign()
