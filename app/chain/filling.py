"""Filling blocks: one fetch, one build, one landing, whoever asks and however often.

A fill belongs to the chain, not to the request that asked first. It holds a permit from the fetch to the true end of the build.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable

from cachetools import LRUCache

from app.core.blocks import BlockBodies, BlockRef
from app.core.budget import Priority
from app.core.cold_work import require_cold_place
from app.core.deadlines import deadline, joined_another
from app.core.errors import (
    ChainOverloaded,
    HeaderHashUnsupported,
    InconsistentSource,
    Internal,
    ProofError,
    RequestTimeout,
    UnsupportedBlockFormat,
    UpstreamBudgetExhausted,
    Witnesses,
)
from app.core.provable_block import BuildRequest, ProvableBlock, Verdict
from app.core.purpose import Errand, Purpose, errand, errand_in_hand
from app.core.resting import shift
from app.metrics import Metrics

from .cache import BlockCache
from .flight import Fill, Flights, Stage
from .memory import Unsettled
from .permits import Permits, PermitShift
from .ports import Builder, Clock, Upstream
from .rules import ChainRules
from .sharing import Sharing
from .witnessing import refused, require_whole

log = logging.getLogger(__name__)

BRIEFLY_S = 3.0
"""How long a refusal about a block that is not final is remembered: the next answer of the nodes may be another."""

_RESULT_OF: dict[type[ProofError], str] = {
    ChainOverloaded: "refused",
    RequestTimeout: "timeout",
    InconsistentSource: "invalid",
    UnsupportedBlockFormat: "invalid",
    UpstreamBudgetExhausted: "refused",
}


_TYPE = re.compile(r"\b0x[0-9a-f]{1,2}\b")


def types_in(detail: str) -> list[str]:
    """The transaction types that a verdict names, each once: EIP-2718 leaves room for 128, and a node may send any text."""
    named = {kind for kind in _TYPE.findall(detail) if int(kind, 16) < 0x80}
    return sorted(named) or ["other"]


class Filling:
    """The blocks of one chain, settled or in flight. Owns its flights; lands into the chain's cache."""

    def __init__(
        self,
        rules: ChainRules,
        upstream: Upstream,
        builder: Builder,
        cache: BlockCache[ProvableBlock],
        permits: Permits,
        metrics: Metrics,
        clock: Clock,
        *,
        anchored: bool,
        is_final: Callable[[int], bool],
        on_landed: Callable[[ProvableBlock, BlockRef, bool, bool], None],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`on_landed` is called in the step that ends a fill, before anybody sees its block, with what it was asked for by,
        whether that was a height that was final already when it was asked for, and whether the block is to be kept."""
        self._rules = rules
        self._upstream = upstream
        self._builder = builder
        self._cache = cache
        self._permits = permits
        self._metrics = metrics
        self._clock = clock
        self._anchored = anchored
        self._is_final = is_final
        self._on_landed = on_landed
        self.sharing: Sharing | None = None
        """Set by the chain where several processes share a block store."""
        self.flights: Flights[BlockRef, ProvableBlock] = Flights(
            clock, fill_deadline_s=rules.fill_deadline_s, jitter=jitter
        )
        self._unsettled = Unsettled(clock, jitter)
        self._on_one_word: LRUCache[bytes, bool] = LRUCache(256)
        """Blocks that refuse something on the word of the only node that could be asked, and are not final."""

    def __repr__(self) -> str:
        return f"<Filling {self.flights!r} {self._permits!r}>"

    def held(self, block_hash: bytes) -> ProvableBlock | None:
        """The block, if it is at hand."""
        return self._cache.get(block_hash) or self._unsettled.recall(block_hash)

    async def block(self, ref: BlockRef, priority: Priority = Priority.REQUEST) -> ProvableBlock:
        """The block of the fill in flight for `ref`, or of a new one. Whoever waits here may leave; the fill goes on."""
        if priority is Priority.REQUEST:
            require_cold_place()
        ends_at = deadline.get()
        was_final = ref.height is not None and self._is_final(ref.height)
        if ref in self.flights:
            joined_another()
        try:
            return await self.flights.get(
                ref,
                lambda fill: self._fill_in_turn(ref, fill),
                land=lambda block: self._land(block, ref, was_final),
                priority=priority,
                deadline=ends_at,
                cutoff=None if ends_at is None else ends_at - self._rules.min_useful_s,
            )
        except ChainOverloaded:
            if priority is Priority.REQUEST:  # backfill that is turned away is no sign of anything
                self._permits.note_refusal()
            raise

    def overtake(self, height: int) -> None:
        """A reorg at `height`: no fill asked for by a height from there on may land."""
        self.flights.invalidate(lambda ref: ref.height is not None and ref.height >= height)

    async def aclose(self) -> None:
        """Ends what is in flight; returns when the work under way has ended too."""
        await self.flights.aclose()

    async def _fill_in_turn(self, ref: BlockRef, fill: Fill) -> ProvableBlock:
        """What another process fills, or has just filled, is taken from there. A request holds no permit while it waits for
        another process; backfill, which may wait long for its permit, lets no other process wait for that."""
        sharing = self.sharing
        if sharing is None:
            return await self._fill(fill, lambda: self._fetch(ref, fill))
        if fill.priority is Priority.REQUEST:
            return await self._in_turn(sharing, ref, fill, lambda: self._fill(fill, lambda: self._fetch(ref, fill)))
        return await self._fill(fill, lambda: self._in_turn(sharing, ref, fill, lambda: self._fetch(ref, fill)))

    async def _in_turn(
        self, sharing: Sharing, ref: BlockRef, fill: Fill, work: Callable[[], Awaitable[ProvableBlock]]
    ) -> ProvableBlock:
        async with sharing.turn(ref) as turn:
            if turn.block is not None and await self._stands(turn.block, ref):
                return turn.block
            block = await work()
            if fill.valid and block.block_hash not in self._on_one_word:
                turn.done(block)
            return block

    async def _stands(self, block: ProvableBlock, ref: BlockRef) -> bool:
        """Whether another's block is what was asked for: what stood at a height when it was filled may have been replaced."""
        if ref.height is None:
            return block.block_hash == ref.block_hash
        name = await self._upstream.name_of(ref.height)
        return name is not None and name.block_hash == block.block_hash

    async def _fill(self, fill: Fill, work: Callable[[], Awaitable[ProvableBlock]]) -> ProvableBlock:
        """One permit for the work: held until that has truly ended, but not while it sleeps (P6)."""
        labels = (self._rules.name, fill.priority.value)
        here = errand_in_hand()
        permit = self._permits.hold(fill.priority, consumer=here.consumer)
        mine = Errand(Purpose(fill.priority.value), here.anonymous, here.consumer)
        errand.set(mine)  # of this task alone, as the shift below

        def promoted() -> None:
            mine.purpose = Purpose.REQUEST
            permit.promote()

        def joined(by: Errand) -> None:
            mine.anonymous = mine.anonymous and by.anonymous
            permit.share(by.consumer)

        fill.on_promote(promoted)
        fill.on_join(joined)
        result: str | None = "error"
        try:
            async with permit:
                shift.set(PermitShift(permit))  # of this task alone, which ends with the fill
                block = await work()
            result = None if fill.started_at is None else "ok"  # None: another process filled it
        except ProofError as error:
            result = _RESULT_OF.get(type(error), "unavailable")
            raise
        except asyncio.CancelledError:
            result = "timeout" if fill.timed_out or fill.given_up_late else "cancelled"
            raise
        finally:
            if result is not None:
                self._metrics.fill_total.labels(*labels, result).inc()
        if fill.started_at is not None:
            self._metrics.fill_duration_seconds.labels(*labels).observe(self._clock.now() - fill.started_at)
        return block

    async def _fetch(self, ref: BlockRef, fill: Fill) -> ProvableBlock:
        """One fetch and one build."""
        fill.enter(Stage.FETCHING)
        if ref.height is None or not self._is_final(ref.height):
            fill.remember_s = BRIEFLY_S
        try:
            block = await self._upstream.fetch(ref, lambda bodies: self._build(ref, bodies, fill))
        except UnsupportedBlockFormat as error:
            self._metrics.unknown_header_fields_total.labels(self._rules.name).inc()
            log.error("unknown_header_fields", extra={"chain": self._rules.name, "detail": error.message})
            raise
        if block.transactions_verdict in (Verdict.UNSUPPORTED_TYPE, Verdict.CLAIMED_TYPE):
            for kind in types_in(block.transactions_detail):
                self._metrics.unsupported_transaction_type_total.labels(self._rules.name, kind).inc()
        return block

    async def _build(self, ref: BlockRef, bodies: BlockBodies, fill: Fill) -> ProvableBlock:
        fill.enter(Stage.BUILDING)
        chain_id = self._rules.chain_id
        if chain_id is None:
            chain_id = self._upstream.known_chain_id or await self._upstream.chain_id()
        request = BuildRequest(
            family=self._rules.family,
            chain_id=chain_id,
            anchored=self._anchored,
            height=ref.height,
            block_hash=ref.block_hash,
            block_json=bodies.block_json,
            receipts_json=bodies.receipts_json,
            receipts_error=bodies.receipts_error,
            receipts_pruned=bodies.receipts_pruned,
        )
        started = self._clock.now()
        try:
            block = await self._builder.build(request)
        except Internal as error:  # what crashes on one node's data may be well with another's
            raise refused(error) from None
        except (HeaderHashUnsupported, UnsupportedBlockFormat) as error:
            raise refused(error) from None
        self._metrics.merkle_build_duration_seconds.labels(self._rules.name).observe(self._clock.now() - started)
        for name, verdict in (("transactions", block.transactions_verdict), ("receipts", block.receipts_verdict)):
            if verdict is Verdict.UNMET:
                self._metrics.root_mismatch_total.labels(self._rules.name, bodies.upstream, name).inc()
        require_whole(block, lambda witnesses: self._note_witnesses(block, ref, witnesses))
        return block

    def _note_witnesses(self, block: ProvableBlock, ref: BlockRef, witnesses: Witnesses) -> None:
        """Near the head, what one node alone refuses is not kept: it may give another answer in a moment."""
        final = ref.height is not None and self._is_final(ref.height)
        if witnesses is Witnesses.ONLY and not final:
            self._on_one_word[block.block_hash] = True

    def _land(self, block: ProvableBlock, ref: BlockRef, was_final: bool) -> None:
        """Kept by hash, for good only when its verdicts are lasting."""
        on_one_word = self._on_one_word.pop(block.block_hash, False)
        kept = block.settled and not on_one_word
        self._on_landed(block, ref, was_final, kept)
        if kept:
            self._cache.land(block)
            self._unsettled.forget(block.block_hash)
        elif on_one_word:
            self._unsettled.keep_briefly(block, BRIEFLY_S)
        elif block.receipts_verdict is not Verdict.UNAVAILABLE or block.transactions_verdict is Verdict.UNAVAILABLE:
            self._unsettled.keep(block)
