"""Putting one upstream to the test: which chain it serves, how far it is, and whether what it sends can be rebuilt."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum

from app.core.blocks import BlockBodies, BlockName, BlockRef
from app.core.deadlines import deadline
from app.core.errors import HistoryUnavailable, InconsistentSource, ProofError, RequestTimeout, RpcUnavailable
from app.core.finality import Heads, observe
from app.core.provable_block import BuildRequest, ProvableBlock, Verdict
from app.house import Builder, Upstream, heights_kept
from app.settings import ChainSettings, Settings, UpstreamSettings

FIRST_WORD_S = 15.0
"""For a node to say which chain it serves and how far it is."""

SUBSCRIBED_WITHIN_S = 5.0

BLOCKS_AT_ONCE = 4

UNANSWERED = 3
"""After so many blocks in a row without an answer the rest is not asked for."""

TRIES = ("transactions", "receipts", "leaves")


class UnknownName(Exception):
    """No chain has that name; the message lists those there are."""


class Weight(IntEnum):
    """How bad a finding is."""

    NOTE = 0  # less is served; nothing is wrong
    PASSING = 1  # this upstream is of no use now, and may be later
    LASTING = 2  # what is wrong will not mend by itself


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, in a few words and in a sentence; fit for anybody."""

    weight: Weight
    word: str
    text: str


@dataclass(slots=True)
class Trial:
    """One upstream, and what was found out about it."""

    chain: ChainSettings
    node: UpstreamSettings
    chain_id: int | None = None
    head: BlockName | None = None
    finalized: int | None = None
    heights: Sequence[int] = ()
    hashes: dict[int, bytes] = field(default_factory=dict)
    verdicts: dict[str, Counter[Verdict]] = field(default_factory=lambda: {name: Counter() for name in TRIES})
    with_transactions: int = 0
    receipts_given: int = 0
    """Blocks of which the node gave receipts, if only an empty list: a block without transactions is proven without."""
    findings: list[Finding] = field(default_factory=list)
    listing: dict[str, object] = field(default_factory=dict)

    @property
    def weight(self) -> Weight:
        """The worst that was found."""
        return max((finding.weight for finding in self.findings), default=Weight.NOTE)

    @property
    def sound(self) -> bool:
        """Whether this upstream alone would do."""
        return self.weight is Weight.NOTE and bool(self.hashes)

    @property
    def word(self) -> str:
        """The worst that was found, in a few words."""
        worst = [finding.word for finding in self.findings if finding.weight is self.weight]
        return worst[0] if worst and self.weight else "ok"

    def note(self, weight: Weight, word: str, text: str) -> None:
        """Something is not as it should be."""
        # The upstream's name stands before it anyway.
        self.findings.append(Finding(weight, word, text.replace(f"upstream {self.node.name}: ", "")))


async def examine(trial: Trial, upstream: Upstream, builder: Builder, settings: Settings, blocks: int) -> None:
    """Fills in the trial. Never raises `ProofError`: whatever goes wrong is a finding."""
    try:
        with until(FIRST_WORD_S):
            await _first_words(trial, upstream)
    except ProofError as error:
        _note_silence(trial, upstream, error)
    else:
        await _hear(trial, upstream)
        trial.heights = _heights(trial, blocks)
        await _rebuild_all(trial, upstream, builder, settings.admission.request_timeout_secs)
        _judge_tries(trial)
    (trial.listing,) = upstream.states()


@contextmanager
def until(seconds: float) -> Iterator[None]:
    """Inside, the deadline is so many seconds away."""
    token = deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        deadline.reset(token)


async def _first_words(trial: Trial, upstream: Upstream) -> None:
    rule = trial.chain.finality
    trial.chain_id = await upstream.chain_id()
    trial.head = await upstream.tagged("latest")
    if trial.head is None:
        raise RpcUnavailable(f"upstream {trial.node.name} names no newest block")
    tagged = await upstream.tagged("finalized") if rule.mode == "tag" else None
    finalized = None if tagged is None else tagged.height
    trial.finalized = observe(Heads(), trial.head.height, None, finalized, mode=rule.mode, depth=rule.depth).finalized


async def _hear(trial: Trial, upstream: Upstream) -> None:
    """Where the node should announce its blocks: whether it takes a subscription."""
    herald = upstream.herald
    if herald is None:
        return
    try:
        async with asyncio.timeout(SUBSCRIBED_WITHIN_S):
            while not herald.at_work:
                await herald.heard()
    except TimeoutError:
        text = "its blocks are not announced: it takes no subscription, or its WebSocket cannot be used; it is polled"
        trial.note(Weight.NOTE, "no announcements", text)


def _note_silence(trial: Trial, upstream: Upstream, error: ProofError) -> None:
    (listing,) = upstream.states()
    word = str(listing["state"])
    if word == "wrong-chain":
        trial.note(Weight.LASTING, "wrong chain", error.message)
    elif word == "denied":
        trial.note(Weight.LASTING, "denied", error.message)
    elif isinstance(error, InconsistentSource):
        trial.note(Weight.LASTING, "wrong data", error.message)
    else:
        word = "limited" if word == "limited" else "unreachable" if trial.chain_id is None else "no answer"
        trial.note(Weight.PASSING, word, error.message)


def _heights(trial: Trial, blocks: int) -> Sequence[int]:
    kept = heights_kept(trial.node)
    if kept is not None:
        return kept[-blocks:]
    if trial.finalized is None:
        trial.note(Weight.PASSING, "nothing final", "no block is final yet: there is nothing that could be rebuilt")
        return ()
    return range(max(0, trial.finalized - blocks + 1), trial.finalized + 1)


# --- rebuilding blocks ----------------------------------------------------------------------------------------------


async def _rebuild_all(trial: Trial, upstream: Upstream, builder: Builder, limit_s: float) -> None:
    heights = iter(reversed(trial.heights))
    failures: dict[int, ProofError] = {}
    unanswered = 0

    async def work() -> None:
        nonlocal unanswered
        for height in heights:
            if unanswered >= UNANSWERED:
                return
            try:
                with until(limit_s):
                    block = await _rebuild(trial, upstream, builder, height)
            except ProofError as error:
                failures[height] = error
                unanswered += isinstance(error, RpcUnavailable | RequestTimeout)
            else:
                unanswered = 0
                _note_block(trial, block)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(BLOCKS_AT_ONCE, trial.chain.cache.max_concurrent_block_fills)):
            group.create_task(work())
    _note_failures(trial, failures)


async def _rebuild(trial: Trial, upstream: Upstream, builder: Builder, height: int) -> ProvableBlock:
    chain, chain_id = trial.chain, trial.chain_id
    assert chain_id is not None

    async def accept(bodies: BlockBodies) -> ProvableBlock:
        trial.receipts_given += bodies.receipts_json is not None
        return await builder.build(
            BuildRequest(
                family=chain.family,
                chain_id=chain_id,
                anchored=chain.anchors.source != "none",
                height=height,
                block_hash=None,
                block_json=bodies.block_json,
                receipts_json=bodies.receipts_json,
                receipts_error=bodies.receipts_error,
            )
        )

    return await upstream.fetch(BlockRef(height=height), accept)


def _note_block(trial: Trial, block: ProvableBlock) -> None:
    trial.hashes[block.height] = block.block_hash
    trial.with_transactions += block.transaction_count > 0
    trial.verdicts["transactions"][block.transactions_verdict] += 1
    trial.verdicts["receipts"][block.receipts_verdict] += 1
    trial.verdicts["leaves"][block.leaves_verdict] += 1


def _note_failures(trial: Trial, failures: dict[int, ProofError]) -> None:
    """One finding for each code."""
    by_code: dict[str, list[int]] = {}
    for height, error in failures.items():
        by_code.setdefault(error.code, []).append(height)
    tried = len(failures) + len(trial.hashes)
    for code, heights in by_code.items():
        error = failures[max(heights)]
        if isinstance(error, HistoryUnavailable):
            weight, word = Weight.PASSING, "no history"
        elif isinstance(error, InconsistentSource) or not error.retriable:
            weight, word = Weight.LASTING, "wrong data" if error.retriable else "unprovable"
        else:
            weight, word = Weight.PASSING, "no answer"
        text = f"{len(heights)} of {tried} blocks cannot be rebuilt, such as {max(heights)}: {code}: {error.message}"
        trial.note(weight, word, text)


def _judge_tries(trial: Trial) -> None:
    rebuilt = len(trial.hashes)
    for name in TRIES[:2] if trial.chain.anchors.source == "none" else TRIES:
        counts = trial.verdicts[name]
        for verdict, (weight, word, text) in _MEANINGS.items():
            if count := counts[verdict]:
                # Where not one block could be proven, a note would not be enough; empty ones need nothing of a node.
                lacking = (name, verdict) == ("receipts", Verdict.UNAVAILABLE)
                shown = trial.receipts_given if lacking else counts[Verdict.PROVEN]
                weight = weight if shown else max(weight, Weight.PASSING)
                trial.note(weight, f"{name}: {word}", f"{name} of {count} of {rebuilt} blocks: {text}")
    if rebuilt == len(trial.heights) > 0 and not trial.with_transactions:
        text = f"no block of {rebuilt} holds a transaction: more of them would say more"
        trial.note(Weight.NOTE, "empty blocks", text)


_MEANINGS = {
    Verdict.UNMET: (Weight.LASTING, "root not met", "they do not come to the root in the block's header"),
    Verdict.NOT_COMMITTED: (
        Weight.LASTING,
        "not committed",
        "the header commits to none, or in a form that cannot be proven",
    ),
    Verdict.UNSUPPORTED_TYPE: (Weight.NOTE, "unknown type", "of a type that has no codec here; they will be refused"),
    Verdict.CLAIMED_TYPE: (
        Weight.NOTE,
        "unknown type",
        "of a type that has no codec here, or another meaning on this chain; they will be refused",
    ),
    Verdict.BROKEN: (Weight.LASTING, "wrong data", "they cannot be read, or contradict themselves or the block"),
    Verdict.UNAVAILABLE: (Weight.NOTE, "not given", "the node does not give them; they will be refused"),
}
