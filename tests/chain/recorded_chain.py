"""A chain of recorded blocks over a fake upstream, and other blocks made of them: forks whose hashes are honest."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

from prometheus_client import CollectorRegistry

from app.chain.chain import Chain
from app.chain.ports import Anchors, BlockStore, Leases, Ledger
from app.chain.rules import ChainRules, FinalityRule
from app.core.block_building import build
from app.core.blocks import BlockBodies, BlockName, BlockRef, Position
from app.core.errors import ContentInvalid
from app.core.finality import Level
from app.core.keccak import keccak
from app.core.provable_block import BuildRequest, ProvableBlock, unpack
from app.metrics import Metrics
from tests import corpus_files
from tests.acceptance.made_blocks import rehash
from tests.fakes import FakeUpstream, HoldPoints, ManualClock

Record = dict[str, Any]

FIRST, LAST = 175840, 175903
"""The recorded Sepolia blocks in a row."""

BUSY = 175881
"""One of them, with three transactions; the blocks beside it have one each."""

SEPOLIA = 11155111

_CONTENT = ("transactions", "transactionsRoot", "receiptsRoot", "logsBloom", "gasUsed")


@functools.cache
def _sepolia(height: int) -> Record:
    return corpus_files.recorded("contiguous", f"sepolia_{height}")


def sepolia(height: int) -> Record:
    """The recorded block at a height of [FIRST, LAST]; the caller's own copy."""
    return copy.deepcopy(_sepolia(height))


def from_hex(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def hash_of(record: Record) -> bytes:
    return from_hex(record["block"]["hash"])


def height_of(record: Record) -> int:
    return int(record["block"]["number"], 16)


def tx_hashes(record: Record) -> list[bytes]:
    return [from_hex(transaction["hash"]) for transaction in record["block"]["transactions"]]


def name_of(record: Record) -> BlockName:
    block = record["block"]
    return BlockName(height_of(record), hash_of(record), from_hex(block["parentHash"]), int(block["timestamp"], 16))


def bodies_of(record: Record, upstream: str = "fake") -> BlockBodies:
    receipts = None if record["receipts"] is None else json.dumps(record["receipts"]).encode()
    return BlockBodies(upstream, json.dumps(record["block"]).encode(), receipts)


def forged(record: Record, *, content: Record | None = None, **header: str) -> Record:
    """A block like `record` with other header fields, with the transactions and receipts of `content`, and an honest hash."""
    other = copy.deepcopy(record)
    if content is not None:
        other["block"] |= {name: copy.deepcopy(content["block"][name]) for name in _CONTENT}
        other["receipts"] = copy.deepcopy(content["receipts"])
    other["block"] |= header
    for item in [*other["block"]["transactions"], *other["receipts"]]:
        item["blockNumber"] = other["block"]["number"]
    return rehash(other)


def branch(first: int, contents: list[Record], fork: str = "0xf0") -> list[Record]:
    """Blocks from height `first` on, on top of the recorded one below, with the contents of the given blocks."""
    blocks: list[Record] = []
    parent = sepolia(first - 1)["block"]["hash"]
    for height, content in enumerate(contents, first):
        template = sepolia(height)
        blocks.append(forged(template, content=content, parentHash=parent, extraData=fork))
        parent = blocks[-1]["block"]["hash"]
    return blocks


def with_unmet_receipts(record: Record) -> Record:
    """The receipts of one transaction tell of more gas than the root commits to."""
    other = copy.deepcopy(record)
    receipt = other["receipts"][-1]
    receipt["cumulativeGasUsed"] = hex(int(receipt["cumulativeGasUsed"], 16) + 1)
    return other


class CorpusBuilder(HoldPoints):
    """Implements `chain.ports.Builder` with the real checks, in this process. Point: `build`, with `.after`."""

    healthy = True
    waiting = 0

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[BuildRequest] = []

    async def build(self, request: BuildRequest) -> ProvableBlock:
        self.requests.append(request)
        await self.at("build")
        block = build(request)
        await self.at("build.after")
        return block

    async def reopen(self, packed: bytes, block_hash: bytes) -> ProvableBlock:
        try:
            block = unpack(packed)
        except ValueError as error:
            raise ContentInvalid("packed", str(error)) from None
        if keccak(block.header_rlp) != block_hash:
            raise ContentInvalid("header_hash", "another block")
        return block


class RecordedChain:
    """The parts of one chain, wired as the house wires them; the recorded blocks [first, last] are canonical."""

    def __init__(
        self,
        first: int = FIRST,
        last: int = LAST,
        *,
        anchors: Anchors | None = None,
        family: str = "ethereum",
        chain_id: int | None = SEPOLIA,
        finality: FinalityRule | None = None,
        key: int = 7,
        name: str = "sepolia",
        clock: ManualClock | None = None,
        metrics: Metrics | None = None,
        ledger: Ledger | None = None,
        store: BlockStore | None = None,
        leases: Leases | None = None,
        **rules: Any,
    ) -> None:
        """`clock` and `metrics` are given where several chains share them, `leases` where those are processes that share
        `store` too; `rules` are any others of `ChainRules`."""
        self.clock = ManualClock().drive() if clock is None else clock
        self.upstream = FakeUpstream(SEPOLIA)
        self.builder = CorpusBuilder()
        self.metrics = Metrics(CollectorRegistry()) if metrics is None else metrics
        self.metrics.register_chain(name, key, ["fake"])
        chain_rules = ChainRules(
            key=key,
            name=name,
            chain_id=chain_id,
            family=family,
            anchor_source="none" if anchors is None else "self",
            finality=finality or FinalityRule("tag"),
            **rules,
        )
        self.chain = Chain(
            chain_rules,
            self.upstream,
            self.builder,
            anchors,
            self.metrics,
            self.clock,
            ledger=ledger,
            store=store,
            leases=leases,
            store_is_shared=leases is not None,
            jitter=lambda: 0.5,
        )
        for height in range(first, last + 1):
            self.put(sepolia(height))

    # --- what the nodes have ----------------------------------------------------------------------------------------

    def put(self, record: Record, *more_bodies: BlockBodies, canonical: bool = True) -> None:
        """A block that the nodes have, with the positions of its transactions where it is canonical."""
        name = name_of(record)
        self.upstream.add_block(name, bodies_of(record), *more_bodies, canonical=canonical)
        if canonical:
            for index, tx_hash in enumerate(tx_hashes(record)):
                self.upstream.add_position(tx_hash, Position(name.block_hash, name.height, index))

    def reorg(self, blocks: list[Record]) -> None:
        """The chain from the first of these blocks on is replaced by them."""
        self.upstream.revert_from(height_of(blocks[0]))
        for record in blocks:
            self.put(record)

    async def see(self, head: int | None = None, *, safe: int | None = None, finalized: int | None = None) -> None:
        """The nodes name these heights, and the chain hears of it."""
        if head is not None:
            self.upstream.tags["latest"] = head
        else:
            self.upstream.tags.pop("latest", None)
        self.upstream.tags |= {"safe": safe if safe is not None else finalized, "finalized": finalized}
        await self.chain.head.poll(all_tags=True)

    # --- what is asked ----------------------------------------------------------------------------------------------

    async def at(self, height: int, level: Level = Level.LATEST) -> ProvableBlock:
        return (await self.chain.block(BlockRef(height=height), level)).block

    async def by_hash(self, block_hash: bytes, level: Level = Level.LATEST) -> ProvableBlock:
        return (await self.chain.block(BlockRef(block_hash=block_hash), level)).block

    # --- what it cost -----------------------------------------------------------------------------------------------

    def calls(self) -> dict[str, int]:
        """Calls to the upstream and builds since the last time this was asked; nothing where there was none."""
        counted = ("fetch", "name_of", "height_of", "position", "tagged", "chain_id")
        cost = {point: self.upstream.hits[point] for point in counted if self.upstream.hits[point]}
        if self.builder.hits["build"]:
            cost["build"] = self.builder.hits["build"]
        self.upstream.hits.clear()
        self.builder.hits.clear()
        return cost

    def at_rest(self) -> bool:
        """Whether nothing is in flight, nobody waits, and every permit is back."""
        budget, flights = self.chain.permits.budget, self.chain.filling.flights
        return (budget.running(), budget.waiting(), len(flights), flights.waiting) == (0, 0, 0, 0)

    def attested(self) -> int | None:
        return self.chain.attested_height

    def reasons(self) -> tuple[str, ...]:
        return self.chain.reasons

    def metric(self, name: str, /, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"copath_{name}", labels)
