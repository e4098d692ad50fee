"""Reorgs at every moment of a request: between the look-up, the fetch, the build and the answer, one after another.

What is served must be a block that was canonical at one moment between question and answer, whole and of one fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from app.chain.chain import Chain, Found
from app.chain.rules import ChainRules, FinalityRule
from app.core import trie
from app.core.blocks import BlockBodies, BlockName, BlockRef, Position
from app.core.errors import BlockNotOnSourceChain, InconsistentSource, ProofError, RpcUnavailable, TxHashNotFound
from app.core.finality import Level
from app.core.provable_block import ENCODER_VERSION, BuildRequest, ProvableBlock, Verdict
from app.metrics import Metrics
from tests.fakes import FakeUpstream, HoldPoints, ManualClock

DEEPEST = 8
GENESIS, START = 1000, 1060
EMPTY = trie.build_ordered([])


def tx_hash(number: int) -> bytes:
    return b"\xee" * 24 + number.to_bytes(8, "big")


class Building(HoldPoints):
    """Makes of the bodies of these tests the block that they name. Receipts of another block are what they are: a mix."""

    healthy = True
    waiting = 0

    async def build(self, request: BuildRequest) -> ProvableBlock:
        await self.at("build")
        told = json.loads(request.block_json)
        assert json.loads(request.receipts_json or b"") == told["hash"], "receipts of another block than theirs"
        hashes = bytes.fromhex("".join(told["transactions"]))
        await self.at("build.after")
        return ProvableBlock(
            version=ENCODER_VERSION,
            chain_id=1,
            height=told["height"],
            block_hash=bytes.fromhex(told["hash"]),
            parent_hash=bytes.fromhex(told["parent"]),
            timestamp=told["height"],
            header_rlp=b"",
            transaction_hashes=hashes,
            phantom_hashes=b"",
            transactions=EMPTY,
            transactions_verdict=Verdict.PROVEN,
            transactions_detail="",
            receipts=EMPTY,
            receipts_verdict=Verdict.PROVEN,
            receipts_detail="",
            receipt_count=0,
            log_ends=b"",
            leaves=None,
            leaves_verdict=Verdict.UNAVAILABLE,
            leaves_detail="",
        )


@dataclass
class History:
    """Which block stood at which height, and where each transaction was, from when on."""

    moment: int = 0
    blocks: dict[int, list[tuple[int, bytes | None]]] = field(default_factory=dict)
    places: dict[bytes, list[tuple[int, bytes | None]]] = field(default_factory=dict)

    def hashes(self, height: int, since: int) -> set[bytes | None]:
        """The blocks that stood at `height` at some moment from `since` on."""
        return self._during(self.blocks.get(height, [(0, None)]), since)

    def homes(self, tx: bytes, since: int) -> set[bytes | None]:
        """The blocks that held a transaction at some moment from `since` on; None where it was in none."""
        return self._during(self.places.get(tx, [(0, None)]), since)

    @staticmethod
    def _during(changes: list[tuple[int, bytes | None]], since: int) -> set[bytes | None]:
        before = [value for moment, value in changes if moment <= since]
        return {*(value for moment, value in changes if moment > since), before[-1] if before else None}


class Forking(FakeUpstream):
    """A node whose chain is replaced from below at any of its points."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.history = History()
        self.reorgs = 0
        self.likely = 0.0
        self._forks = 0
        self._last_tx = 0
        self.extend(GENESIS, START)

    async def at(self, point: str) -> None:
        await super().at(point)
        if self.chance.random() < self.likely:
            self.reorg(self.chance.randint(1, DEEPEST))
        for _ in range(self.chance.randint(0, 2)):
            await asyncio.sleep(0)

    def reorg(self, depth: int) -> None:
        """The newest blocks are replaced by as many others, and one more; their transactions move, stay or vanish."""
        assert self.head is not None
        top = self.head.height
        first = top - depth + 1
        orphans = [tx for tx, position in self.positions.items() if position.height >= first]
        self.revert_from(first)
        self.reorgs += 1
        self.history.moment += 1
        for tx in orphans:
            self.history.places.setdefault(tx, []).append((self.history.moment, None))
        self.chance.shuffle(orphans)
        self.extend(first, top + 1, orphans[: len(orphans) * 3 // 4])

    def extend(self, first: int, last: int, pending: list[bytes] | None = None) -> None:
        """Blocks from `first` to `last`, with some of the pending transactions and new ones."""
        self._forks += 1
        self.history.moment += 1
        left = list(pending or [])
        for height in range(first, last + 1):
            below = self.canonical.get(height - 1)
            parent = below.block_hash if below else bytes(32)
            block_hash = self._forks.to_bytes(16, "big") + height.to_bytes(16, "big")
            taken, left = left[:2], left[2:]
            self._last_tx += 1
            transactions = [*taken, tx_hash(self._last_tx)]
            told = {"height": height, "hash": block_hash.hex(), "parent": parent.hex()}
            told["transactions"] = [tx.hex() for tx in transactions]
            bodies = BlockBodies("fake", json.dumps(told).encode(), json.dumps(block_hash.hex()).encode())
            self.add_block(BlockName(height, block_hash, parent, height), bodies)
            self.history.blocks.setdefault(height, []).append((self.history.moment, block_hash))
            for index, tx in enumerate(transactions):
                self.add_position(tx, Position(block_hash, height, index))
                self.history.places.setdefault(tx, []).append((self.history.moment, block_hash))


class Scene:
    """A chain over a forking node."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.upstream = Forking(self.chance)
        self.builder = Building()
        self.clock = ManualClock()
        rules = ChainRules(1, "main", 1, "ethereum", finality=FinalityRule("depth", 2 * DEEPEST), cache_bytes=2**22)
        metrics = Metrics(CollectorRegistry())
        metrics.register_chain("main", 1, ["fake"])
        self.chain = Chain(rules, self.upstream, self.builder, None, metrics, self.clock, jitter=lambda: 0.5)
        self.served = 0
        self.refused: list[str] = []

    def pick_height(self) -> int:
        assert self.upstream.head is not None
        return self.upstream.head.height - min(int(self.chance.expovariate(0.2)), 50)

    async def ask(self) -> None:
        """One request of some kind, judged by what the chain was while it ran."""
        history, since = self.upstream.history, self.upstream.history.moment
        kind = self.chance.choice(["height", "height", "transaction", "transaction", "hash"])
        height = self.pick_height()
        tx = self.chance.choice(list(history.places))
        name = self.upstream.canonical[height]
        try:
            if kind == "height":
                found = await self.chain.block(BlockRef(height=height))
                assert found.block.height == height
            elif kind == "hash":
                found = await self.chain.block(BlockRef(block_hash=name.block_hash))
                assert found.block.block_hash == name.block_hash
            else:
                found = await self.chain.transaction(tx)
                assert found.index is not None
                assert found.block.transaction_hash(found.index) == tx
                assert found.block.block_hash in history.homes(tx, since)
        except TxHashNotFound:
            assert None in history.homes(tx, since), "a transaction that never left the chain"
            self.refused.append("TxHashNotFound")
        except (BlockNotOnSourceChain, InconsistentSource, RpcUnavailable) as error:  # each of them retriable
            self.refused.append(error.code)
        else:
            self.judge(found, since)

    def judge(self, found: Found, since: int) -> None:
        history, block = self.upstream.history, found.block
        assert block.block_hash in history.hashes(block.height, since), "a block that was not canonical meanwhile"
        if found.finality.level is Level.FINALIZED:
            assert self.upstream.canonical[block.height].block_hash == block.block_hash
        self.served += 1

    async def watch(self) -> None:
        """The head is polled all the while."""
        while True:
            self.clock.move(0.5)
            with contextlib.suppress(ProofError):
                await self.chain.head.poll()
            for _ in range(self.chance.randint(1, 30)):
                await asyncio.sleep(0)

    async def run(self, reorgs: int) -> None:
        """Requests, a few at a time, until there were so many reorgs."""
        await self.chain.head.poll()
        watching = asyncio.create_task(self.watch())
        self.upstream.likely = 0.12
        while self.upstream.reorgs < reorgs:
            async with asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(self.ask())
        self.upstream.likely = 0.0
        watching.cancel()
        await asyncio.wait([watching])


@pytest.mark.parametrize("seed", range(4))
async def test_row_21_D6_B44_whatever_is_served_was_canonical_at_one_moment_of_the_request(seed: int) -> None:
    scene = Scene(seed)
    await scene.run(250)
    assert scene.served > 150
    # At rest everything that is asked for by height is what stands there now, settled or not.
    await scene.chain.head.poll()
    for height in range(START - 20, scene.upstream.head.height + 1 if scene.upstream.head else START):
        found = await scene.chain.block(BlockRef(height=height))
        assert found.block.block_hash == scene.upstream.canonical[height].block_hash
    await scene.chain.aclose()


async def test_F9_a_fill_that_a_reorg_overtook_is_told_to_retry_and_is_not_kept_as_what_stands_there() -> None:
    scene = Scene(7)
    upstream, chain = scene.upstream, scene.chain
    await chain.head.poll()
    height = START - 2
    old = upstream.canonical[height].block_hash
    hold = upstream.hold("fetch.after")
    asking = asyncio.create_task(chain.block(BlockRef(height=height)))
    await hold.reached()
    upstream.unhold()
    upstream.reorg(4)
    await chain.head.poll()
    hold.release()
    found = await asking  # handed to a new fill, which reads the chain as it is
    assert found.block.block_hash == upstream.canonical[height].block_hash != old
    assert chain.cache.hash_at(height) == found.block.block_hash
    assert chain.filling.flights.overtaken == 1
    await chain.aclose()


async def test_D6_a_question_for_an_orphan_by_its_hash_never_moves_the_pin() -> None:
    scene = Scene(8)
    upstream, chain = scene.upstream, scene.chain
    await chain.head.poll()
    height = START - 2
    orphan = upstream.canonical[height].block_hash
    upstream.reorg(4)
    await chain.head.poll()
    found = await chain.block(BlockRef(height=height))
    with pytest.raises(BlockNotOnSourceChain):
        await chain.block(BlockRef(block_hash=orphan))
    assert chain.cache.hash_at(height) == found.block.block_hash
    assert chain.filling.held(orphan) is None  # nor is it fetched
    await chain.aclose()


async def test_B44_within_one_poll_pins_are_gone_and_a_transaction_that_moved_is_found_where_it_is() -> None:
    scene = Scene(9)
    upstream, chain = scene.upstream, scene.chain
    await chain.head.poll()
    height = START - 1
    moving = bytes.fromhex(
        json.loads(upstream.bodies[upstream.canonical[height].block_hash][0].block_json)["transactions"][0]
    )
    assert (await chain.transaction(moving)).block.height == height
    upstream.reorg(3)
    await chain.head.poll()
    assert chain.cache.hash_at(height) is None
    place = upstream.positions.get(moving)
    if place is None:
        with pytest.raises(TxHashNotFound):
            await chain.transaction(moving)
    else:
        assert (await chain.transaction(moving)).block.block_hash == place.block_hash
    await chain.aclose()
