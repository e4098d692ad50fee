"""Which block stands at which height now.

A finalized height keeps its hash: once asked for when it was finalized, its pin is final and costs nothing more. Above it the
canonical hash is asked for again by every request, one light call shared by all who ask at the same moment, so that a replaced
block is never answered from memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from app.core.blocks import BlockName
from app.core.deadlines import deadline, reached, require_useful
from app.core.errors import BlockNotOnSourceChain
from app.core.provable_block import ProvableBlock

from .cache import BlockCache
from .flight import Flights, Stage
from .head import HeadTracker
from .ports import Clock, Upstream

NEAR_HEAD_BLOCKS = 16
"""A height this little above the head seen last may exist by now: the head is asked for once more before the answer is no."""

HEAD_FRESH_S = 0.25
"""A head seen this lately is not asked for again on behalf of a request."""


class Canon:
    """The canonical hashes of one chain. The pins are in the chain's cache."""

    def __init__(
        self,
        upstream: Upstream,
        head: HeadTracker,
        cache: BlockCache[ProvableBlock],
        clock: Clock,
        *,
        min_useful_s: float = 0.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._upstream = upstream
        self._head = head
        self._cache = cache
        self._clock = clock
        self._min_useful_s = min_useful_s
        self._names: Flights[int, tuple[BlockName | None, bool]] = Flights(
            clock, first_stage=Stage.RESOLVING, jitter=jitter
        )

    def is_final(self, height: int) -> bool:
        """Whether the chain can have no other block at `height` than it has now."""
        final_to = self._head.final_to
        return final_to is not None and height <= final_to

    def pin(self, height: int, block_hash: bytes, *, final: bool) -> None:
        """The upstream returned this block as the one at `height`; `final` when that was final before it was asked."""
        self._cache.pin(height, block_hash, final=final)

    def needs_asking(self, height: int) -> bool:
        """Whether `height` became final while its block was read: what was read then is not known to be what became final."""
        return self.is_final(height) and not self._cache.pin_is_final(height)

    async def holds(self, height: int, block_hash: bytes) -> bool:
        """Whether the chain has this block at this height now. Afterwards the pin is what the chain has there."""
        while not self._cache.pin_is_final(height):
            if height not in self._names:
                self._require_useful()
            name, final = await self._names.get(height, lambda _: self._name_of(height), deadline=deadline.get())
            if name is None:
                self._cache.unpin(height)
                return False
            self.pin(height, name.block_hash, final=final)
            if not self.needs_asking(height):
                return name.block_hash == block_hash
        return self._cache.hash_at(height) == block_hash

    async def require_reached(self, height: int) -> None:
        """Raises `BlockNotOnSourceChain` for a height above the head: asking for the block would only cost a call."""
        head = self._head.heads.head
        if head is None or height <= head or self._head.stale:
            return
        if height - head <= NEAR_HEAD_BLOCKS and (self._head.age_s or 0.0) > HEAD_FRESH_S:
            self._require_useful()
            reached(Stage.RESOLVING.value)
            await self._head.refresh()
            head = self._head.heads.head or 0
            if height <= head:
                return
        raise BlockNotOnSourceChain(f"block {height} is above the head of the source chain, {head}")

    def _require_useful(self) -> None:
        require_useful(self._min_useful_s, self._clock.now(), Stage.RESOLVING.value)

    def overtake(self, height: int) -> None:
        """A reorg seen at `height`, which may reach deeper: what is pinned from there on is dropped before any new answer, and
        no answer under way is believed."""
        self._cache.unpin_from(height)
        self._names.invalidate(lambda _: True)

    async def aclose(self) -> None:
        """Ends what is in flight."""
        await self._names.aclose()

    async def _name_of(self, height: int) -> tuple[BlockName | None, bool]:
        final = self.is_final(height)
        try:
            return await self._upstream.name_of(height), final
        except BlockNotOnSourceChain:  # the chain is shorter than it was
            return None, final
