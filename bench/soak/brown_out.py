"""A minute in which every second call to one node fails, at a hundred misses a second: what that costs, and when it is over.

Beside a good node, and alone. The need is what the blocks cost that were served: two calls each, a block and its receipts.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from app.chain.building import open_builder
from app.chain.chain import Chain
from app.chain.rules import ChainRules, FinalityRule
from app.core.blocks import BlockRef
from app.core.breaker import LONGEST_PERIOD_S
from app.core.errors import ProofError
from app.metrics import Metrics
from app.upstream.evm import EvmNode
from app.upstream.failover import Failover
from app.wiring import MonotonicClock
from bench.timing import percentile
from tests.acceptance.made_blocks import CHAIN_ID, Outcome, Sent, block_hash, make_block
from tests.oracles import signing
from tests.oracles.signing import Account, Call
from tests.scripted_behaviours import Behaviour
from tests.scripted_node import Connection, ScriptedNode

SECONDS = 60.0
EVERY_S = 0.01
"""A hundred misses a second."""

RECOVERING_EVERY_S = 0.1
NEED = 2
BLOCKS_CALLED = ("eth_getBlockByNumber", "eth_getBlockReceipts")
AGAIN_SHARE = 7
"""Every seventh block that was served is asked for once more at the end."""


@dataclass(slots=True)
class BrownOut:
    """What one run came to."""

    asked: int = 0
    served: int = 0
    failed: int = 0
    calls: int = 0
    refetched: int = 0
    recovered_s: float | None = None
    p99_s: float = 0.0

    @property
    def amplification(self) -> float:
        """Upstream calls for each that was needed."""
        return self.calls / (NEED * max(1, self.asked))


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    rows = []
    records = made(int(SECONDS / EVERY_S) + int(2 * LONGEST_PERIOD_S / RECOVERING_EVERY_S) + 1)
    for nodes, where in ((2, "beside a good node"), (1, "alone")):
        found = asyncio.run(soak(records, nodes, SECONDS))
        recovered = "never" if found.recovered_s is None else f"{found.recovered_s:.1f} s"
        rows += [
            (f"{where}: misses, of which {found.failed:,} were refused", f"{found.asked:,}", ""),
            (f"{where}: calls to nodes", f"{found.calls:,}", f"{found.amplification:.3f}"),
            (f"{where}: 99 of 100 took at most", f"{found.p99_s * 1000:.0f} ms", ""),
            (f"{where}: finished blocks fetched again", f"{found.refetched}", "0 is right"),
            (f"{where}: back in use after", recovered, f"{LONGEST_PERIOD_S:.0f} s at most is right"),
        ]
    return rows


def made(blocks: int) -> list[dict[str, Any]]:
    """Blocks in a row, each with the same one transaction: what is counted are calls."""
    account = Account.numbered(61)
    raw = signing.dynamic_fee(account, Call(b"\x33" * 20, value=1), CHAIN_ID)
    sent = [Sent(raw, account.address, Outcome())]
    records: list[dict[str, Any]] = []
    for height in range(blocks):
        records.append(make_block(height, block_hash(records[-1]) if records else bytes(32), sent))
    return records


async def soak(
    records: list[dict[str, Any]], nodes: int, seconds: float, *, every_s: float = EVERY_S, seed: int = 1
) -> BrownOut:
    """The first of so many nodes fails every second call for so long, and is well again. Every block is asked for once."""
    found = BrownOut()
    async with _opened(records, nodes) as (made_nodes, chain):
        failing, heights = made_nodes[0], iter(range(len(records)))
        served: list[int] = []
        took_s: list[float] = []

        async def ask(height: int) -> None:
            began_at = time.monotonic()
            try:
                await chain.block(BlockRef(height=height))
            except ProofError:
                found.failed += 1
            else:
                found.served += 1
                served.append(height)
            took_s.append(time.monotonic() - began_at)

        failing.always("*", _flapping(seed))
        began_at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while (since_s := time.monotonic() - began_at) < seconds and (height := next(heights, None)) is not None:
                group.create_task(ask(height))
                found.asked += 1
                await asyncio.sleep(max(0.0, found.asked * every_s - since_s))
        found.calls = sum(node.hits[method] for node in made_nodes for method in BLOCKS_CALLED)
        found.p99_s = percentile(took_s, 0.99)

        failing.always("*", None)
        healed_at, before = time.monotonic(), failing.hits["eth_getBlockReceipts"]
        for height in heights:
            await ask(height)
            if failing.hits["eth_getBlockReceipts"] > before:
                found.recovered_s = time.monotonic() - healed_at
                break
            await asyncio.sleep(RECOVERING_EVERY_S)

        calls = sum(node.hits[method] for node in made_nodes for method in BLOCKS_CALLED)
        for height in served[::AGAIN_SHARE]:
            await chain.block(BlockRef(height=height))
        found.refetched = sum(node.hits[method] for node in made_nodes for method in BLOCKS_CALLED) - calls
    return found


@contextlib.asynccontextmanager
async def _opened(records: list[dict[str, Any]], nodes: int) -> AsyncIterator[tuple[list[ScriptedNode], Chain]]:
    """Every block is final: what is found once is known for good."""
    async with contextlib.AsyncExitStack() as stack:
        made_nodes, evms = [], []
        for number in range(nodes):
            node = ScriptedNode(chain_id=CHAIN_ID)
            for record in records:
                node.add(record["block"], record["receipts"])
            made_nodes.append(await stack.enter_async_context(node))
            evms.append(EvmNode("ab"[number], node.url, chain_id=CHAIN_ID, trust_env=False))
        metrics = Metrics(CollectorRegistry())
        metrics.register_chain("soaked", 1, [evm.name for evm in evms])
        upstream = Failover(evms)
        stack.push_async_callback(upstream.aclose)
        builder = await stack.enter_async_context(open_builder(0))
        rules = ChainRules(key=1, name="soaked", chain_id=CHAIN_ID, family="ethereum", finality=FinalityRule())
        chain = Chain(rules, upstream, builder, None, metrics, MonotonicClock())
        stack.push_async_callback(chain.aclose)
        await chain.head.poll(all_tags=True)
        for node in made_nodes:
            node.reset_counts()
        yield made_nodes, chain


def _flapping(seed: int) -> Behaviour:
    chance = random.Random(seed)

    async def act(node: ScriptedNode, connection: Connection, call: Any) -> None:
        if chance.random() < 0.5:
            await connection.respond_json(node.honest(call))
        else:
            await connection.respond(503, b"overloaded", {})

    return Behaviour("flapping", act=act)
