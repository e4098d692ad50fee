"""One chain, alive: what is asked of it, answered from checked blocks only.

    block(ref)         settled and canonical? -> at once.  In flight? -> joined.  Neither -> a fill, owned by this chain
    transaction(hash)  position known? -> as above.  Else the upstream is asked, and believed once the block was rebuilt

A finalized height keeps its hash, so a pin on it is final too. Below the finalized height nothing is asked twice; above it, the
canonical hash is asked for again on every request: one light call, shared by all who ask at the same moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from app.core.blocks import BlockRef, Located, Noted, Position
from app.core.budget import Priority
from app.core.errors import BlockNotReady, NotFinalized, RpcUnavailable, TxHashNotFound
from app.core.finality import Level
from app.core.provable_block import ProvableBlock
from app.core.waiting import Waiting
from app.metrics import Metrics

from .backfill import noted
from .background import Background
from .cache import BlockCache
from .canon import Canon
from .continuing import Continuing, Continuity
from .filling import Filling
from .finding import Finding, Found
from .head import IN_DOUBT, HeadTracker
from .keeping import Keeping
from .known import Known
from .levelling import Levelling
from .listing import listing_of, reasons_of
from .load import Load
from .news import News
from .ports import Anchors, BlockStore, Builder, Clock, Leases, Ledger, Upstream
from .roots import Roots
from .rules import ChainRules
from .shared_head import SharedHead
from .sharing import Sharing
from .supervision import Loop

SUSPECT_S = 60.0
"""What a node said of final blocks within so long before it was found on another chain is asked for again."""


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
        store: BlockStore | None = None,
        leases: Leases | None = None,
        store_is_shared: bool = False,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`anchors` None: no usc proofs. `ledger` None: no backfill. `store` None: blocks are in memory alone. `leases`: several
        processes serve this chain; `store_is_shared`: and keep their blocks in one store."""
        self._rules = rules
        self._upstream = upstream
        self.anchors = anchors
        self._metrics = metrics
        self._clock = clock
        self.key = rules.key
        self.name = rules.name
        self.family = rules.family
        self.anchor_source = rules.anchor_source
        news = News(rules.name, metrics)
        self.shared_head = None if leases is None else SharedHead(rules, upstream, leases, clock)
        self.head = HeadTracker(
            self.shared_head or upstream,
            rules.finality,
            clock,
            direct=upstream,
            on_reorg=self._on_reorg,
            on_progress=self._on_head,
            on_traced=news.on_traced,
            on_dispute=news.on_dispute,
            on_withdrawn=self._on_withdrawn,
            on_doubt=self._on_doubt,
            on_suspect=self._on_suspect,
            final=lambda: self.cache.final_pins,
            interval_s=rules.head_interval_s,
        )
        self.cache: BlockCache[ProvableBlock] = BlockCache(rules.cache_bytes, now=clock.now)
        self.load = Load(rules, metrics, clock)
        self.permits = self.load.permits
        self.roots = Roots()
        self.keeping = (
            None
            if ledger is None
            else Keeping(
                rules.name,
                upstream,
                ledger,
                store,
                builder,
                self.cache,
                clock,
                jitter,
                head=lambda: self.head.heard,
                chain_id=lambda: self.chain_id,
                anchored=anchors is not None,
                on_restored=self.head.restore,
                on_foreign=self._on_foreign,
            )
        )
        self._attesting = Waiting()
        self._levelling = Levelling(clock)
        self._known = Known(rules.key, rules.name, self.cache, anchors, self.roots, rules.max_anchor_span)
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
        self.sharing: Sharing | None = None
        if leases and self.keeping and store_is_shared:
            self.sharing = self.filling.sharing = Sharing(rules.key, leases, self.keeping)
        self._finding = Finding(
            rules,
            upstream,
            self.head,
            self.cache,
            self.canon,
            self.filling,
            self.keeping,
            self._note_of,
            clock,
            jitter,
        )
        self._continuing: Continuing | None = None
        self._ahead: Continuing | None = None
        if anchors is not None:
            shared = (anchors, self._known, self.roots, self.keeping)
            self._continuing = Continuing(*shared, lambda height: self._finding.by_height(height))
            self._ahead = Continuing(*shared, lambda height: self._finding.by_height(height, Priority.BACKFILL))
        self._background = Background(
            rules,
            self.head,
            self.cache,
            self.permits,
            anchors,
            self.keeping,
            builder,
            self._block_ahead,
            self._root_ahead,
            metrics,
            clock,
            leases,
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
        if (nodes := len(self._upstream.states())) > 1:
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
        return reasons_of(self, self._upstream.states())

    @property
    def saturated(self) -> bool:
        """Whether this chain has refused for some time without getting anything done."""
        return self.load.saturated

    @property
    def anchoring_stalled(self) -> str | None:
        """The code of what keeps anchors from being made; None while nothing does."""
        return self._background.anchoring_stalled

    @property
    def anchors_rest_s(self) -> float:
        """For how long no anchor is to be expected, by the pace of those that came; 0 when that is not known."""
        return self._background.anchors_rest_s

    def status(self) -> dict[str, object]:
        """What a listing says of this chain. No addresses."""
        return listing_of(self, self._upstream.states())

    def require_anchored(self, lo: int, hi: int) -> None:
        """Whether usc proofs of [lo, hi] can be anchored, known without asking an upstream.

        Raises `AttestationsMissing`, `BlockBeforeOrAtGenesis` or `BlockNotReady`, with the wait that the pace of late suggests.
        """
        try:
            self._known.require_anchored(lo, hi)
        except BlockNotReady as refusal:
            refusal.retry_after_s = self._attesting.wait_s(hi, self._clock.now())
            raise

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
            decide = self._decide_by(level)
            return self._at_level(*await self._finding.by_hash(ref.block_hash, decide), level)
        assert ref.height is not None
        if level is not Level.LATEST and self.head.observed_at is not None:
            self._require_level(ref.height, level)
        return self._at_level(*await self._finding.by_height(ref.height), level)

    async def locate(self, tx_hash: bytes) -> Located:
        """Where the transaction is, by the word of a node or of a block at hand; no block is filled.

        Raises `TxHashNotFound` and `TxNotMined`.
        """
        return await self._finding.locate(tx_hash)

    async def transaction(
        self,
        tx_hash: bytes,
        level: Level = Level.LATEST,
        decide: Callable[[int], None] | None = None,
        told: Position | None = None,
    ) -> Found:
        """The checked block that holds the transaction, and its index there.

        `decide` is given the height before the block is filled, and may refuse it; where a node may have named a wrong one it is
        not heeded, so the caller decides again by the block. `told`: what `locate` said.

        Raises `TxHashNotFound`, `TxNotMined`, `NotCommittedByHeader`, and what `block` raises.
        """
        try:
            decided = self._decide_by(level, decide)
            block, cached, index = await self._finding.by_transaction(tx_hash, decided, told)
        except TxHashNotFound:
            if self.head.in_doubt:  # a node that lags says so too
                raise RpcUnavailable(f"{IN_DOUBT}; try again") from None
            raise
        found = self._at_level(block, cached, level)
        return Found(found.block, found.finality, found.cached, index)

    async def continuity(self, lo: int, hi: int) -> Continuity:
        """The roots from `lo` to the anchor at or above `hi`, and the digest below: checked to end in that anchor."""
        self.require_anchored(lo, hi)
        assert self._continuing is not None
        return await self._continuing.prove(lo, hi)

    # --- for the background -----------------------------------------------------------------------------------------

    async def _root_ahead(self, height: int) -> bytes:
        assert self._ahead is not None
        return await self._ahead.root_at(height)

    async def _block_ahead(self, height: int) -> ProvableBlock:
        block, _ = await self._finding.by_height(height, Priority.BACKFILL)
        return block

    # --- levels -----------------------------------------------------------------------------------------------------

    def _decide_by(self, level: Level, decide: Callable[[int], None] | None = None) -> Callable[[int], None]:
        def decided(height: int) -> None:
            if decide is not None:
                decide(height)
            if level is not Level.LATEST and self.head.observed_at is not None:
                self._require_level(height, level)

        return decided

    def _require_level(self, height: int, level: Level) -> None:
        reached = self.head.level_of(height)
        if reached.rank < level.rank:
            raise NotFinalized(
                f"block {height} is {reached}, not {level}", retry_after_s=self._levelling.wait_s(height, level)
            )

    def _at_level(self, block: ProvableBlock, cached: bool, level: Level) -> Found:
        self._require_level(block.height, level)
        return Found(block, self.head.finality_of(block.height), cached)

    # --- background -------------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Takes up what was known when the ledger was last written to. What cannot be had now is done without."""
        if self.keeping:
            await self.keeping.restore()

    async def run(self) -> None:
        """Every loop of this chain, until cancelled."""
        await self._background.run()

    async def aclose(self) -> None:
        """Ends what is in flight."""
        await self.head.aclose()
        await self.filling.aclose()
        await self.canon.aclose()
        await self._finding.aclose()
        for part in (self.shared_head, self.sharing, self.keeping):
            if part is not None:
                await part.aclose()

    def _note_of(self, block: ProvableBlock) -> Noted:
        ahead = self.backfill is not None and self.backfill.is_filling(block.height)
        return noted(block, anchored=self.anchors is not None, asked=not ahead)

    def _on_landed(self, block: ProvableBlock, ref: BlockRef, was_final: bool, kept: bool) -> None:
        if ref.height is not None:
            self.canon.pin(block.height, block.block_hash, final=was_final)
        note = self._note_of(block)
        if note.usc_root is not None and self.cache.hash_at(block.height) == block.block_hash:
            self.roots.note(block.height, note.usc_root)
        if self.keeping is not None and kept:
            self.keeping.landed(block, note if was_final and ref.height is not None else None)

    def _on_foreign(self) -> None:
        """What was taken from the ledger so far is of another chain."""
        self.head.forget()
        self.canon.overtake(0)
        self.roots.forget_from(0)
        self._background.overtake(0)
        if self.anchors is not None:
            self.anchors.overtake(0)

    def _on_head(self) -> None:
        self._attesting.note(self.attested_height, self._clock.now())
        self._levelling.note(self.head.heads)
        self._background.head_moved()
        safe = self.head.heads.safe
        if safe is not None:
            self._metrics.chain_safe_head.labels(self.name).set(safe)
        if self.keeping is not None and (finalized := self.head.undoubted_final) is not None:
            self.keeping.became_final(finalized)

    def _on_reorg(self, height: int) -> None:
        """Pins from `height` up are dropped before any new answer; blocks by hash stay true. How deep the reorg reaches is not
        known: nothing that was in flight for a height that is not final may land."""
        finalized = self.head.heads.finalized
        self.canon.overtake(height)
        self._background.overtake(height)
        if finalized is not None and height <= finalized:
            if self.keeping is not None and height == 0:
                self.keeping.disown()
            elif self.keeping is not None:
                self.keeping.doubt_from(height)
            if self.anchors is not None:
                self.anchors.overtake(height)
        self.filling.overtake(0 if finalized is None else min(height, finalized + 1))
        self._finding.overtake()
        self.roots.forget_from(height)

    def _on_withdrawn(self, height: int, too_early: bool) -> None:
        """What was called final from `height` on is not any more, and may be another block by now. `too_early`: it never was."""
        self.canon.overtake(height)
        self.filling.overtake(height)
        self._finding.overtake()
        self.roots.forget_from(height)
        self._background.withdraw(height)
        if self.keeping is not None:
            self.keeping.withdraw(height, forget=too_early)

    def _on_doubt(self, above: int | None) -> None:
        """Nothing above that height is known to stand."""
        self.cache.doubt_above(above)
        if above is not None:
            self.filling.overtake(above + 1)
        else:
            self._background.head_moved()

    def _on_suspect(self) -> None:
        """A node that was asked of late may serve another chain."""
        self.cache.unpin_since(SUSPECT_S)
        if self.keeping is not None:
            self.keeping.reconsider()
