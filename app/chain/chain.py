"""One chain, alive: what is asked of it, answered from checked blocks only.

    block(ref)         settled and canonical? -> at once.  In flight? -> joined.  Neither -> a fill, owned by this chain
    transaction(hash)  position known? -> as above.  Else the upstream is asked, and believed once the block was rebuilt

A finalized height keeps its hash, so a pin on it is final too. Below the finalized height nothing is asked twice; above it, the
canonical hash is asked for again on every request: one light call, shared by all who ask at the same moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from app.core.blocks import BlockRef, Position
from app.core.budget import Priority
from app.core.continuity import ContinuityProof, cut
from app.core.deadlines import deadline, require_useful
from app.core.errors import BlockNotOnSourceChain, InconsistentSource, NotFinalized, TxHashNotFound
from app.core.finality import Finality, Level
from app.core.hexadecimal import to_hex
from app.core.provable_block import ProvableBlock
from app.metrics import Metrics

from .background import Background
from .cache import BlockCache
from .canon import Canon
from .filling import Filling
from .flight import Flights, Stage
from .head import HeadTracker
from .known import Known
from .listing import listing_of
from .load import Load
from .news import News
from .ports import Anchors, Builder, Clock, Ledger, Upstream
from .rules import ChainRules
from .supervision import Loop

REPLACED_TRIES = 3
"""How often a block is looked for again when a reorg replaced it, or moved a transaction out of it, while it was filled."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checked block, how final it is, and whether it was at hand. `index` is set when it was found by transaction hash."""

    block: ProvableBlock
    finality: Finality
    cached: bool
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Continuity:
    """A continuity proof, and the anchor that it ends in."""

    proof: ContinuityProof
    upper_height: int
    upper_digest: bytes


class Chain:
    """Owns its flights, its caches, its head and its loops. `run` is the whole of its background work."""

    def __init__(
        self,
        rules: ChainRules,
        upstream: Upstream,
        builder: Builder,
        anchors: Anchors | None,
        metrics: Metrics,
        clock: Clock,
        *,
        ledger: Ledger | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`anchors` None: no usc proofs. `ledger` None: no backfill."""
        self._rules = rules
        self._upstream = upstream
        self._builder = builder
        self.anchors = anchors
        self._metrics = metrics
        self._clock = clock
        self.key = rules.key
        self.name = rules.name
        self.family = rules.family
        self.anchor_source = rules.anchor_source
        news = News(rules.name, metrics)
        self.head = HeadTracker(
            upstream,
            rules.finality,
            clock,
            on_reorg=self._on_reorg,
            on_progress=self._on_head,
            on_traced=news.on_traced,
            on_dispute=news.on_dispute,
            interval_s=rules.head_interval_s,
        )
        self.cache: BlockCache[ProvableBlock] = BlockCache(rules.cache_bytes)
        self.load = Load(rules, metrics, clock)
        self.permits = self.load.permits
        self._known = Known(rules.key, self.cache, anchors)
        self.canon = Canon(upstream, self.head, self.cache, clock, min_useful_s=rules.min_useful_s, jitter=jitter)
        self.filling = Filling(
            rules,
            upstream,
            builder,
            self.cache,
            self.permits,
            metrics,
            clock,
            anchored=anchors is not None,
            is_final=self.canon.is_final,
            on_landed=self._on_landed,
            jitter=jitter,
        )
        self._positions: Flights[bytes, Position | None] = Flights(clock, first_stage=Stage.RESOLVING, jitter=jitter)
        self._background = Background(
            rules, self.head, self.cache, self.permits, anchors, ledger, builder, self._block_ahead, metrics, clock
        )
        self.anchored = self._background.anchored
        self.backfill = self._background.backfill

    def __repr__(self) -> str:
        return f"<Chain {self.name} key={self.key} {self.head!r} {self.permits!r} {self.cache!r}>"

    # --- what is known without asking anybody -----------------------------------------------------------------------

    @property
    def chain_id(self) -> int | None:
        """As configured, or as the upstream proved; None while neither is known."""
        return self._rules.chain_id if self._rules.chain_id is not None else self._upstream.known_chain_id

    @property
    def full_word(self) -> tuple[str, int]:
        """`by` and `sources` of a finality that every configured upstream stands behind: the same on every replica."""
        nodes = len(self._upstream.states())
        if nodes > 1:
            return "quorum", nodes
        return ("rpc-tag" if self._rules.finality.mode == "tag" else "depth"), 1

    @property
    def attested_height(self) -> int | None:
        """The newest anchored height; None without anchors, or before the first."""
        return None if self.anchors is None else self.anchors.attested_height

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The background loops of this chain."""
        return self._background.loops

    @property
    def servable(self) -> bool:
        """Whether this chain can answer anything now: its upstream was heard lately, or blocks are at hand."""
        return (not self.head.stale and self.chain_id is not None) or self.cache.entries > 0

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not, or not fully, servable. Stable words: no figures, no addresses."""
        found = []
        if self.chain_id is None:
            found.append("chain id not known yet")
        found += self.head.reasons
        found += [f"background loop {loop.name} is down" for loop in self.loops if not loop.up]
        return tuple(found)

    @property
    def saturated(self) -> bool:
        """Whether this chain has refused for some time without getting anything done."""
        return self.load.saturated

    @property
    def anchoring_stalled(self) -> str | None:
        """The code of what keeps anchors from being made; None while nothing does."""
        return self._background.anchoring_stalled

    def status(self) -> dict[str, object]:
        """What a listing says of this chain. No addresses."""
        return listing_of(self, self._upstream.states())

    def require_anchored(self, lo: int, hi: int) -> None:
        """Whether usc proofs of [lo, hi] can be anchored, known without asking an upstream.

        Raises `AttestationsMissing`, `BlockBeforeOrAtGenesis` or `BlockNotReady`.
        """
        self._known.require_anchored(lo, hi)

    def peek_block(self, ref: BlockRef) -> ProvableBlock | None:
        """The block, if answering from it asks nobody; nothing is counted. None says nothing."""
        return self._known.block(ref)

    def peek_transaction(self, tx_hash: bytes) -> ProvableBlock | None:
        """The block that holds the transaction, if answering from it asks nobody; nothing is counted. None says nothing."""
        return self._known.transaction(tx_hash)

    def peek_continuity(self, lo: int, hi: int) -> bool:
        """Whether the continuity proof of [lo, hi], or the refusal of one, asks nobody."""
        return self._known.continuity(lo, hi)

    # --- answers ----------------------------------------------------------------------------------------------------

    async def block(self, ref: BlockRef, level: Level = Level.LATEST) -> Found:
        """The checked block, canonical now. Raises `BlockNotOnSourceChain`, `NotFinalized`, and what a fill raises."""
        if ref.block_hash is not None:
            return self._at_level(*await self._by_hash(ref.block_hash), level)
        assert ref.height is not None
        if level is not Level.LATEST and self.head.observed_at is not None:
            self._require_level(ref.height, level)
        return self._at_level(*await self._by_height(ref.height), level)

    async def transaction(self, tx_hash: bytes, level: Level = Level.LATEST) -> Found:
        """The checked block that holds the transaction, and its index there.

        Raises `TxHashNotFound`, `TxNotMined`, `NotCommittedByHeader`, and what `block` raises.
        """
        for _ in range(REPLACED_TRIES):
            position = self.cache.position_of(tx_hash)
            if position is None:
                if tx_hash not in self._positions:
                    require_useful(self._rules.min_useful_s, self._clock.now(), Stage.RESOLVING.value)
                position = await self._positions.get(
                    tx_hash, lambda _: self._position(tx_hash), deadline=deadline.get()
                )
            if position is None:
                raise TxHashNotFound(f"tx hash not found: {to_hex(tx_hash)}")
            held = await self._at(position)
            if held is None:
                self.cache.forget_position(tx_hash)
                continue
            block, cached = held
            index = block.index_of(tx_hash)
            if index is None:
                raise InconsistentSource(
                    f"the upstream puts transaction {to_hex(tx_hash)} into block {block.height}, which does not hold it"
                )
            found = self._at_level(block, cached, level)
            return Found(found.block, found.finality, found.cached, index)
        raise InconsistentSource(f"transaction {to_hex(tx_hash)} moved between blocks while it was looked up")

    async def continuity(self, lo: int, hi: int) -> Continuity:
        """The roots from `lo` to the anchor at or above `hi`, and the digest below: checked to end in that anchor."""
        self.require_anchored(lo, hi)
        assert self.anchors is not None
        bracket = self.anchors.bracket(lo, hi)
        roots = self.anchors.known_roots(bracket.lower + 1, bracket.upper)
        if roots is None:
            roots = tuple([await self._root_at(height) for height in range(bracket.lower + 1, bracket.upper + 1)])
        return Continuity(cut(bracket, roots, lo), bracket.upper, bracket.upper_digest)

    # --- finding blocks ---------------------------------------------------------------------------------------------

    async def _by_height(self, height: int, priority: Priority = Priority.REQUEST) -> tuple[ProvableBlock, bool]:
        """The canonical block at `height`, and whether it was at hand."""
        for _ in range(REPLACED_TRIES):
            pinned = self.cache.hash_at(height)
            held = None if pinned is None else self.filling.held(pinned)
            if held is None or pinned is None:
                break
            if await self.canon.holds(height, pinned):
                return held, True
        await self.canon.require_reached(height)
        for _ in range(REPLACED_TRIES):
            block = await self.filling.block(BlockRef(height=height), priority)
            if not self.canon.needs_asking(height) or await self.canon.holds(height, block.block_hash):
                return block, False
        raise InconsistentSource(f"block {height} was replaced again and again while it was read")

    async def _at(self, position: Position) -> tuple[ProvableBlock, bool] | None:
        """The block that a position names, and whether it was at hand; None when it is not the canonical one there by now."""
        block = self.filling.held(position.block_hash)
        if block is not None:
            return (block, True) if await self.canon.holds(position.height, position.block_hash) else None
        try:
            block, cached = await self._by_height(position.height)
        except BlockNotOnSourceChain:
            return None
        return (block, cached) if block.block_hash == position.block_hash else None

    async def _by_hash(self, block_hash: bytes) -> tuple[ProvableBlock, bool]:
        block = self.filling.held(block_hash)
        cached = block is not None
        if block is None:
            block = await self.filling.block(BlockRef(block_hash=block_hash))
        if not await self.canon.holds(block.height, block_hash):
            raise BlockNotOnSourceChain(
                f"block {to_hex(block_hash)} is not the canonical block at height {block.height} (it may have been replaced)"
            )
        return block, cached

    async def _position(self, tx_hash: bytes) -> Position | None:
        position = await self._upstream.position(tx_hash)
        head = self.head.heads.head
        if position is not None and head is not None and position.height > head:
            await self.head.refresh()
        return position

    async def _root_at(self, height: int) -> bytes:
        block, _ = await self._by_height(height)
        return block.usc_root

    async def _block_ahead(self, height: int) -> ProvableBlock:
        block, _ = await self._by_height(height, Priority.BACKFILL)
        return block

    # --- levels -----------------------------------------------------------------------------------------------------

    def _require_level(self, height: int, level: Level) -> None:
        reached = self.head.heads.level_of(height)
        if reached.rank < level.rank:
            raise NotFinalized(f"block {height} is {reached}, not {level}")

    def _at_level(self, block: ProvableBlock, cached: bool, level: Level) -> Found:
        self._require_level(block.height, level)
        return Found(block, self.head.finality_of(block.height), cached)

    # --- background -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Every loop of this chain, until cancelled."""
        await self._background.run()

    async def aclose(self) -> None:
        """Ends what is in flight."""
        await self.head.aclose()
        await self.filling.aclose()
        await self.canon.aclose()
        await self._positions.aclose()

    def _on_landed(self, block: ProvableBlock, ref: BlockRef, was_final: bool) -> None:
        if ref.height is not None:
            self.canon.pin(block.height, block.block_hash, final=was_final)

    def _on_head(self) -> None:
        self._background.head_moved()
        safe = self.head.heads.safe
        if safe is not None:
            self._metrics.chain_safe_head.labels(self.name).set(safe)

    def _on_reorg(self, height: int) -> None:
        """Pins from `height` up are dropped before any new answer; blocks by hash stay true. How deep the reorg reaches is not
        known: nothing that was in flight for a height that is not final may land."""
        finalized = self.head.heads.finalized
        self.canon.overtake(height)
        self._background.overtake(height)
        self.filling.overtake(0 if finalized is None else min(height, finalized + 1))
        self._positions.invalidate(lambda _: True)
