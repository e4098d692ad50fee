"""A house whose chains hold recorded blocks: everything behind the doors, without a node and without waiting.

The chains keep the promises that the doors rely on (which refusal, in which order, what counts as a look-up upstream);
the blocks, their proofs and the digest chain are the real ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from prometheus_client import CollectorRegistry

from app.api.lobby import ConsumerRates, Keys
from app.core.admission import Door
from app.core.block_building import build
from app.core.blocks import BlockRef, Located, Position
from app.core.continuity import ContinuityProof, SortedMapping, choose_bracket, cut, digest, not_ready
from app.core.errors import (
    AttestationsMissing,
    BlockBeforeOrAtGenesis,
    BlockNotOnSourceChain,
    NotFinalized,
    TxHashNotFound,
)
from app.core.finality import Finality, Heads, Level
from app.core.hexadecimal import to_hex
from app.core.provable_block import BuildRequest, ProvableBlock
from app.core.saturation import Gate, SaturationWindow
from app.metrics import Metrics
from tests.corpus_files import block_json, family, receipts_json, recorded
from tests.fakes import Hold


@lru_cache(maxsize=64)
def provable(set_name: str, name: str, *, anchored: bool = True) -> ProvableBlock:
    """A recorded block, through the real builder."""
    record = recorded(set_name, name)
    request = BuildRequest(
        family=family(record),
        chain_id=record["chainId"],
        anchored=anchored,
        height=int(record["block"]["number"], 16),
        block_hash=None,
        block_json=block_json(record),
        receipts_json=receipts_json(record) if record["receipts"] is not None else None,
    )
    return build(request)


@dataclass(frozen=True, slots=True)
class Found:
    block: ProvableBlock
    finality: Finality
    cached: bool
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Continuity:
    proof: ContinuityProof
    upper_height: int
    upper_digest: bytes


class RecordedAnchors:
    """A digest chain over consecutive blocks, from the first of them on, with an anchor at every height listed."""

    def __init__(self, chain_key: int, blocks: Sequence[ProvableBlock], heights: Sequence[int]) -> None:
        self.chain_key = chain_key
        self.genesis = blocks[0].height
        self.roots = {block.height: block.usc_root for block in blocks}
        self.attestations = SortedMapping()
        previous = None
        for block in blocks:
            previous = digest(block.height, block.usc_root, previous)
            if block.height in heights or block.height == self.genesis:
                self.attestations.put(block.height, previous)

    @property
    def attested_height(self) -> int | None:
        newest = self.attestations.newest
        return newest if newest != self.genesis else None

    def continuity(self, lo: int, hi: int) -> Continuity:
        bracket = choose_bracket(self.attestations, SortedMapping(), lo, hi, chain_key=self.chain_key)
        roots = [self.roots[height] for height in range(bracket.lower + 1, bracket.upper + 1)]
        return Continuity(cut(bracket, roots, lo), bracket.upper, bracket.upper_digest)


@dataclass
class RecordedChain:
    """One chain. `looked_up` lists what would have gone to a node, in order; `fails_with` is raised instead of
    answering."""

    key: int
    name: str
    blocks: Sequence[ProvableBlock]
    anchors: RecordedAnchors | None = None
    anchor_source: str = "none"
    anchors_rest_s: float = 0.0
    family: str = "ethereum"
    chain_id: int | None = 1
    heads: Heads = field(default_factory=Heads)
    servable: bool = True
    reasons: tuple[str, ...] = ()
    looked_up: list[str] = field(default_factory=list)
    fails_with: BaseException | None = None
    held: Hold | None = None
    """While set, every answer stops there."""
    settled: set[bytes] = field(default_factory=set)
    upstreams: Sequence[Mapping[str, object]] = ()
    """As they are listed."""

    @property
    def full_word(self) -> tuple[str, int]:
        return self.heads.said_by, self.heads.sources

    @property
    def attested_height(self) -> int | None:
        return None if self.anchors is None else self.anchors.attested_height

    def status(self) -> dict[str, object]:
        return {
            "chainKey": self.key,
            "name": self.name,
            "chainId": None if self.chain_id is None else str(self.chain_id),
            "family": self.family,
            "kinds": ["transaction", "receipt", "log"],
            "head": self.heads.head,
            "safe": self.heads.safe,
            "finalized": self.heads.finalized,
            "finalityBy": self.heads.said_by,
            "finalitySources": self.heads.sources,
            "headAgeSeconds": 1.0,
            "anchors": {
                "source": self.anchor_source,
                "genesis": None,
                "attestedHeight": self.attested_height,
                "checkpointHeight": None,
            },
            "backfill": {"state": "off", "window": None, "remaining": 0, "lowest": None},
            "cache": {"blocks": len(self.blocks), "bytes": 0},
            "upstreams": [dict(each) for each in self.upstreams],
            "servable": self.servable,
            "saturated": False,
            "reasons": list(self.reasons),
        }

    async def block(self, ref: BlockRef, level: Level = Level.LATEST) -> Found:
        for block in self.blocks:
            if ref.block_hash == block.block_hash or ref.height == block.height:
                return await self._found(block, level, None)
        self.looked_up.append("block")
        named = f"block {ref.height}" if ref.block_hash is None else f"block {to_hex(ref.block_hash)}"
        raise BlockNotOnSourceChain(f"{named} is not on the source chain")

    async def locate(self, tx_hash: bytes) -> Located:
        for block in self.blocks:
            index = block.index_of(tx_hash)
            if index is not None:
                return Located(Position(block.block_hash, block.height, index), sure=True)
        self.looked_up.append("transaction")
        raise TxHashNotFound(f"tx hash not found: {to_hex(tx_hash)}")

    async def transaction(
        self,
        tx_hash: bytes,
        level: Level = Level.LATEST,
        decide: Callable[[int], None] | None = None,
        told: Position | None = None,
    ) -> Found:
        for block in self.blocks:
            index = block.index_of(tx_hash)
            if index is not None:
                if decide is not None:
                    decide(block.height)
                return await self._found(block, level, index)
        self.looked_up.append("transaction")
        raise TxHashNotFound(f"tx hash not found: {to_hex(tx_hash)}")

    async def _found(self, block: ProvableBlock, level: Level, index: int | None) -> Found:
        if self.held is not None:
            await self.held.stop()
        if self.fails_with is not None:
            raise self.fails_with
        finality = self.heads.finality_of(block.height)
        if finality.level.rank < level.rank:
            raise NotFinalized(f"block {block.height} is not {level.value} yet")
        cached = block.block_hash in self.settled
        if not cached:
            self.looked_up.append("block")
            self.settled.add(block.block_hash)
        return Found(block, finality, cached, index)

    def require_anchored(self, lo: int, hi: int) -> None:
        if self.anchors is None:
            raise AttestationsMissing(f"attestations missing for chain {self.key}")
        if lo <= self.anchors.genesis:
            raise BlockBeforeOrAtGenesis(
                f"Block {lo} is before or at attestation genesis block {self.anchors.genesis}."
            )
        newest = self.anchors.attested_height
        if newest is None:
            raise AttestationsMissing(f"attestations missing for chain {self.key}")
        if hi > newest:
            raise not_ready(hi, newest)

    async def continuity(self, lo: int, hi: int) -> Continuity:
        assert self.anchors is not None
        return self.anchors.continuity(lo, hi)

    def peek_block(self, ref: BlockRef) -> ProvableBlock | None:
        return self._peek(lambda block: ref.block_hash == block.block_hash or ref.height == block.height)

    def peek_transaction(self, tx_hash: bytes) -> ProvableBlock | None:
        return self._peek(lambda block: block.index_of(tx_hash) is not None)

    def _peek(self, is_meant: Callable[[ProvableBlock], bool]) -> ProvableBlock | None:
        for block in self.blocks:
            if block.block_hash in self.settled and is_meant(block):
                return block if self.heads.finality_of(block.height).level is Level.FINALIZED else None
        return None

    def peek_continuity(self, lo: int, hi: int) -> bool:
        return True


def open_door(chains: Iterable[int] = (), process: int | None = None, chain: int | None = None) -> Door:
    """A door for the chains of these keys; with room for everybody unless limits are given."""
    by_key = {key: Gate(chain, SaturationWindow()) for key in chains}
    return Door(Gate(process, SaturationWindow()), by_key, Gate(None, SaturationWindow()))


@dataclass
class RecordedHouse:
    """The house, by its chains."""

    served: Sequence[RecordedChain]
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry()))
    started: bool = True
    draining: bool = False
    builder_healthy: bool = True
    started_at: float = 0.0
    heartbeat_age_s: float = 0.0
    loop_lag_s: float = 0.0
    closing: bool = False
    saturated: bool = False
    door: Door = field(default_factory=open_door)
    keys: Keys | None = None
    rates: ConsumerRates | None = None

    def now(self) -> float:
        return time.monotonic()

    def __post_init__(self) -> None:
        for chain in self.served:
            self.metrics.register_chain(chain.name, chain.key, ("node",))

    @property
    def chains(self) -> Mapping[int, RecordedChain]:
        return MappingProxyType({chain.key: chain for chain in sorted(self.served, key=lambda chain: chain.key)})

    @property
    def by_name(self) -> Mapping[str, RecordedChain]:
        return MappingProxyType({chain.name: chain for chain in self.served})

    def counted(self, name: str, **labels: str) -> float:
        """The value of one series, 0 when it does not exist."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    @contextmanager
    def counting(self, name: str, **labels: str) -> Iterator[list[float]]:
        """Yields a list that holds, afterwards, by how much the series grew."""
        grown: list[float] = []
        before = self.counted(name, **labels)
        yield grown
        grown.append(self.counted(name, **labels) - before)


def consecutive(first: int = 1000001, last: int = 1000030) -> list[ProvableBlock]:
    """Recorded blocks in a row, with and without transactions."""
    return [provable("contiguous", f"mainnet_{height}") for height in range(first, last + 1)]


def anchored_chain(
    key: int = 2, name: str = "mainnet-early", anchors_at: Sequence[int] = (1000010, 1000018)
) -> RecordedChain:
    """Thirty blocks in a row, anchored up to the last height of `anchors_at`; finalized up to the 25th block."""
    blocks = consecutive()
    anchors = RecordedAnchors(key, blocks, anchors_at)
    heads = Heads(head=blocks[-1].height, safe=blocks[-3].height, finalized=blocks[24].height)
    return RecordedChain(key, name, blocks, anchors, "self", heads=heads)


def plain_chain(key: int = 11, name: str = "modern") -> RecordedChain:
    """Single blocks with logs and every type of transaction, without anchors; all but the last one final."""
    names = ("mainnet_19426587", "mainnet_22869878", "mainnet_2463000")
    blocks = [provable("full", each, anchored=False) for each in names]
    heads = Heads(head=22869878, safe=22869878, finalized=22869877)
    return RecordedChain(key, name, blocks, heads=heads)
