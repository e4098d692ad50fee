"""From a height, a hash or a transaction to the checked block that the chain has there now.

Memory is looked into first, then what was kept; then a block is filled.

A pin says which block is canonical at a height. What the ledger kept is final, and pins it without asking anybody; what the
block store kept is any checked block, canonical or not.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from cachetools import TTLCache

from app.core.blocks import BlockRef, Located, Noted, Position
from app.core.budget import Priority
from app.core.cold_work import require_cold_place
from app.core.deadlines import deadline, require_useful
from app.core.errors import (
    BlockNotOnSourceChain,
    InconsistentSource,
    ProofError,
    RpcUnavailable,
    TxHashNotFound,
    UpstreamBudgetExhausted,
)
from app.core.finality import Finality
from app.core.hexadecimal import to_hex
from app.core.provable_block import ProvableBlock

from .asking import patiently
from .cache import BlockCache
from .canon import Canon
from .filling import Filling
from .flight import Flights, Stage
from .head import HeadTracker
from .keeping import Keeping
from .ports import Clock, Upstream
from .rules import ChainRules

T = TypeVar("T")

Decide = Callable[[int], None]
"""Whether a block of this height is of use to whoever asks for it; raises `ProofError` where it is not."""

REPLACED_TRIES = 3
"""How often a block is looked for again when a reorg replaced it, or moved a transaction out of it, while it was filled."""

TOLD_S = 10.0
"""For so long, while its block is filled, a height that a node told for a hash is not asked for again."""

TOLD_AT_ONCE = 1024

MAY_BE_NEW_S = 300.0
"""For so long after it was first asked for, a transaction that no node knows may be one that was just sent."""

UNFOUND_FOR_S, UNFOUND_AT_ONCE = 3600.0, 4096
"""How long, and of how many hashes, it is remembered when they were first asked for."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checked block, how final it is, and whether it was at hand. `index` is set when it was found by transaction hash."""

    block: ProvableBlock
    finality: Finality
    cached: bool
    index: int | None = None


class Finding:
    """Owned by its chain. Every method that finds a block also says whether it was at hand: nothing had to be fetched for it."""

    def __init__(
        self,
        rules: ChainRules,
        upstream: Upstream,
        head: HeadTracker,
        cache: BlockCache[ProvableBlock],
        canon: Canon,
        filling: Filling,
        keeping: Keeping | None,
        note_of: Callable[[ProvableBlock], Noted],
        clock: Clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._rules = rules
        self._upstream = upstream
        self._head = head
        self._cache = cache
        self._canon = canon
        self._filling = filling
        self._keeping = keeping
        self._note_of = note_of
        self._clock = clock
        self._positions: Flights[tuple[bytes, bool, frozenset[Position]], Position | None] = Flights(
            clock, first_stage=Stage.RESOLVING, jitter=jitter
        )
        self._heights: Flights[bytes, int | None] = Flights(clock, first_stage=Stage.RESOLVING, jitter=jitter)
        self._told: TTLCache[bytes, int] = TTLCache(TOLD_AT_ONCE, TOLD_S, timer=clock.now)
        self._unfound: TTLCache[bytes, float] = TTLCache(UNFOUND_AT_ONCE, UNFOUND_FOR_S, timer=clock.now)

    def __repr__(self) -> str:
        return f"<Finding {self._rules.name} {self._positions!r}>"

    async def by_height(self, height: int, priority: Priority = Priority.REQUEST) -> tuple[ProvableBlock, bool]:
        """The canonical block at `height`. Raises `BlockNotOnSourceChain`, and what a fill raises."""
        return await self._or_kept(lambda: self._by_height(height, priority))

    async def by_hash(self, block_hash: bytes, decide: Decide) -> tuple[ProvableBlock, bool]:
        """The block of that hash, if it is canonical; else `BlockNotOnSourceChain`. One that is not at hand is filled as the
        block at its height, with all who ask for that, on whatever replica; `decide` is asked before that."""
        return await self._or_kept(lambda: self._by_hash(block_hash, decide))

    async def by_transaction(
        self, tx_hash: bytes, decide: Decide, told: Position | None = None
    ) -> tuple[ProvableBlock, bool, int]:
        """The canonical block that holds the transaction, and its index there. `told`: where a node was found to put it just now.

        `decide` is given the height before anything is filled, and may raise: what the height alone rules out costs no block.
        Raises `TxHashNotFound`, `TxNotMined`, `NotCommittedByHeader`, and what finding a block raises.
        """
        return await self._or_kept(lambda: self._by_transaction(tx_hash, decide, told))

    async def locate(self, tx_hash: bytes) -> Located:
        """Where the transaction is; no block is filled. Raises `TxHashNotFound` and `TxNotMined`."""
        return await self._or_kept(lambda: self._locate(tx_hash))

    def overtake(self) -> None:
        """A reorg: no position under way is believed."""
        self._positions.invalidate(lambda _: True)

    async def aclose(self) -> None:
        """Ends what is in flight."""
        await self._positions.aclose()
        await self._heights.aclose()

    # --- steps ------------------------------------------------------------------------------------------------------

    async def _or_kept(self, find: Callable[[], Awaitable[T]]) -> T:
        """What is found; where no node can be asked and the ledger was not waited for, with more patience for the ledger."""
        keeping = self._keeping
        unheard = 0 if keeping is None else keeping.unheard
        try:
            return await find()
        except (RpcUnavailable, UpstreamBudgetExhausted):
            if keeping is None or keeping.unheard == unheard or not await keeping.can_be_had():
                raise
        with patiently():
            return await find()

    async def _by_height(self, height: int, priority: Priority = Priority.REQUEST) -> tuple[ProvableBlock, bool]:
        await self._recall(height)
        for _ in range(REPLACED_TRIES):
            pinned = self._cache.hash_at(height)
            held = None if pinned is None else self._filling.held(pinned)
            if held is None or pinned is None:
                break
            if await self._canon.holds(height, pinned):
                return held, True
        await self._canon.require_reached(height)
        for _ in range(REPLACED_TRIES):
            block = await self._filling.block(BlockRef(height=height), priority)
            if not self._canon.needs_asking(height) or await self._canon.holds(height, block.block_hash):
                return block, False
        raise InconsistentSource(f"block {height} was replaced again and again while it was read")

    async def _by_hash(self, block_hash: bytes, decide: Decide) -> tuple[ProvableBlock, bool]:
        block = await self._at_hand(block_hash)
        if block is not None:
            stands, at_hand, height = await self._holds(block), True, block.height
        else:
            height = await self._asked_height(block_hash)
            self._decided(decide, height)
            block, at_hand = await self._by_height(height)
            stands = block.block_hash == block_hash
        if not stands:
            raise BlockNotOnSourceChain(
                f"block {to_hex(block_hash)} is not the canonical block at height {height} (it may have been replaced)"
            )
        return block, at_hand

    async def _locate(self, tx_hash: bytes) -> Located:
        position = self._cache.position_of(tx_hash)
        if position is not None:
            return Located(position, sure=True)
        position = await self._asked_position(tx_hash, frozenset(), kept_will_do=True)
        if position is None:
            raise self._not_found(tx_hash)
        return Located(position, sure=self._is_only_word)

    @property
    def _is_only_word(self) -> bool:
        """Whether one node's word is all that there is to be had."""
        return len(self._upstream.states()) < 2

    def _decided(self, decide: Decide, height: int) -> None:
        """Raises what `decide` raises; but no lasting refusal on the word of one node of several, which may lie about a height.
        The block is filled then, and whoever asks decides by its own height."""
        try:
            decide(height)
        except ProofError as refusal:
            if refusal.retriable or self._is_only_word:
                raise

    async def _by_transaction(
        self, tx_hash: bytes, decide: Decide, told: Position | None
    ) -> tuple[ProvableBlock, bool, int]:
        refuted: frozenset[Position] = frozenset()
        before: Position | None = None
        for attempt in range(REPLACED_TRIES):
            position = self._cache.position_of(tx_hash)
            if position is not None:
                decide(position.height)
            else:
                position, told = told, None
                if position is None:
                    position = await self._asked_position(tx_hash, refuted, kept_will_do=attempt == 0)
                if position is None:
                    raise self._not_found(tx_hash)
                self._decided(decide, position.height)
            found = await self._at(position)
            if found is None:
                self._cache.forget_position(tx_hash)
            else:
                block, at_hand = found
                index = block.index_of(tx_hash)
                if index is not None:
                    return block, at_hand, index
            # A block without such a transaction never had it. One that is not there may have been replaced, unless it is named
            # once more.
            if found is not None or position == before:
                refuted |= {position}
            before = position
        if found is not None:
            raise InconsistentSource(
                f"the upstream puts transaction {to_hex(tx_hash)} into block {block.height}, which does not hold it"
            )
        raise InconsistentSource(f"transaction {to_hex(tx_hash)} moved between blocks while it was looked up")

    async def _at(self, position: Position) -> tuple[ProvableBlock, bool] | None:
        """The block that a position names; None when it is not the canonical one there by now."""
        block = await self._at_hand(position.block_hash)
        if block is not None:
            return (block, True) if await self._holds(block) else None
        try:
            block, at_hand = await self._by_height(position.height)
        except BlockNotOnSourceChain:
            return None
        return (block, at_hand) if block.block_hash == position.block_hash else None

    def _not_found(self, tx_hash: bytes) -> TxHashNotFound:
        """A hash that was asked for a short while ago for the first time may have been sent just then: while blocks come, the
        next one may hold it."""
        now = self._clock.now()
        first_asked = self._unfound.setdefault(tx_hash, now)
        message = (
            f"tx hash not found: {to_hex(tx_hash)} (no node that was asked knows it: it may have been sent a moment ago, or its "
            "block may be older than what the nodes index; a proof by block number and index needs no index)"
        )
        refusal = TxHashNotFound(message)
        no_block_comes = self._head.stale and self._head.age_s is not None
        refusal.retriable = not no_block_comes and now - first_asked < MAY_BE_NEW_S
        return refusal

    def _require_useful(self) -> None:
        require_useful(self._rules.min_useful_s, self._clock.now(), Stage.RESOLVING.value)

    async def _asked_height(self, block_hash: bytes) -> int:
        """Where a node says that the block is: asked once for all who want to know meanwhile. Raises `BlockNotOnSourceChain`."""
        height: int | None = self._told.get(block_hash)
        if height is not None:
            return height
        require_cold_place()
        if block_hash not in self._heights:
            self._require_useful()
        height = await self._heights.get(
            block_hash, lambda _: self._upstream.height_of(block_hash), deadline=deadline.get()
        )
        if height is None:
            raise BlockNotOnSourceChain(f"no node knows block {to_hex(block_hash)}")
        self._told[block_hash] = height
        await self._catch_up(height)
        return height

    async def _asked_position(
        self, tx_hash: bytes, refuted: frozenset[Position], *, kept_will_do: bool
    ) -> Position | None:
        """Where the ledger, or else a node, says that the transaction is: asked once for all who want to know meanwhile."""
        require_cold_place()
        asked = (tx_hash, kept_will_do, refuted)
        if asked not in self._positions:
            self._require_useful()
        return await self._positions.get(
            asked, lambda _: self._position(tx_hash, kept_will_do, refuted), deadline=deadline.get()
        )

    async def _position(self, tx_hash: bytes, kept_will_do: bool, refuted: frozenset[Position]) -> Position | None:
        kept = await self._kept_position(tx_hash) if kept_will_do else None
        if kept is not None:
            return kept
        position = await self._upstream.position(tx_hash, refuted)
        if position is not None:
            await self._catch_up(position.height)
        return position

    async def _catch_up(self, height: int) -> None:
        """A node named this height: the head is there by now."""
        head = self._head.heads.head
        if head is not None and height > head:
            await self._head.refresh()

    async def _holds(self, block: ProvableBlock) -> bool:
        """Whether the block is canonical now. One that is so for good is noted, wherever it came from."""
        if not self._cache.pin_is_final(block.height):
            await self._final_hash(block.height)
        if not await self._canon.holds(block.height, block.block_hash):
            return False
        if self._keeping is not None and self._cache.pin_is_final(block.height) and block.settled:
            self._keeping.noted(self._note_of(block))
        return True

    async def _at_hand(self, block_hash: bytes) -> ProvableBlock | None:
        """The block from memory, or else from what was kept. It may have landed while that was looked into."""
        held = self._filling.held(block_hash)
        if held is not None or self._keeping is None:
            return held
        return await self._keeping.block(block_hash) or self._filling.held(block_hash)

    async def _recall(self, height: int) -> None:
        """Brings into memory what was kept of the block at `height`, if it is not there and something was."""
        block_hash = self._cache.hash_at(height) or await self._final_hash(height)
        if block_hash is not None and self._cache.peek(block_hash) is None:
            await self._at_hand(block_hash)

    async def _final_hash(self, height: int) -> bytes | None:
        """The block noted as final at `height`, which is thereby pinned."""
        if self._keeping is None or not self._canon.is_final(height):
            return None
        block_hash = await self._keeping.hash_at(height)
        return None if block_hash is None else self._pinned(height, block_hash)

    async def _kept_position(self, tx_hash: bytes) -> Position | None:
        """Where a block noted as final holds the transaction; that block is thereby pinned."""
        position = None if self._keeping is None else await self._keeping.position(tx_hash)
        if position is not None and self._canon.is_final(position.height):
            self._pinned(position.height, position.block_hash)
        return position

    def _pinned(self, height: int, block_hash: bytes) -> bytes:
        """What is pinned for good stays."""
        if not self._cache.pin_is_final(height):
            self._canon.pin(height, block_hash, final=True)
        return self._cache.hash_at(height) or block_hash
