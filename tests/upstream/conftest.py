"""A node that can be scripted, the upstream under test over it, and a clock that is moved by hand."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from app.core.blocks import BlockBodies
from app.upstream.evm import EvmNode
from app.upstream.failover import Failover
from app.upstream.posting import NodeLimits
from app.upstream.retries import Patience
from tests.corpus_files import recorded
from tests.scripted_node import ScriptedNode

WALL = 1_700_000_000.0


@dataclass
class HandClock:
    """Monotonic seconds that pass only when somebody pauses, or the test says so."""

    at: float = 1000.0
    pauses: list[float] = field(default_factory=list)

    def now(self) -> float:
        return self.at

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.at += seconds


@dataclass
class Counts:
    """An observer that remembers everything."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    invalid: Counter[str] = field(default_factory=Counter)
    pool_timeouts: int = 0
    batch_limits: list[int] = field(default_factory=list)

    def on_call(self, method: str, result: str, seconds: float) -> None:
        self.calls[method, result] += 1
        self.seconds.append(seconds)

    def on_content_invalid(self, check: str) -> None:
        self.invalid[check] += 1

    def on_pool_timeout(self) -> None:
        self.pool_timeouts += 1

    def on_batch_limit(self, size: int) -> None:
        self.batch_limits.append(size)

    def results(self, method: str) -> dict[str, int]:
        """How the calls of one method ended."""
        return {result: number for (called, result), number in self.calls.items() if called == method}


@dataclass
class Rig:
    """One upstream over one scripted node."""

    node: ScriptedNode
    evm: EvmNode
    upstream: Failover
    clock: HandClock
    counts: Counts

    def limit(self, **limits: Any) -> None:
        """Other limits from now on, for tests in which real time has to pass: `NodeLimits` by name."""
        self.evm._ways.poster.limits = replace(self.evm._ways.poster.limits, **limits)


@contextlib.asynccontextmanager
async def open_rig(node: ScriptedNode, **options: Any) -> AsyncIterator[Rig]:
    """Options: those of `NodeLimits`, and `chain_id`, `headers`, `url` of the node."""
    clock, counts = HandClock(), Counts()
    chain_id = options.pop("chain_id", node.chain_id)
    headers, url = options.pop("headers", None), options.pop("url", None)
    evm = EvmNode(
        "node-a",
        url or node.url,
        chain_id=chain_id,
        headers=headers,
        limits=NodeLimits(**options),
        observer=counts,
        clock=clock.now,
        wall_clock=lambda: WALL,
        trust_env=False,
    )
    upstream = Failover([evm], patience=Patience(clock.pause, clock.now, lambda: 0.5))
    try:
        yield Rig(node, evm, upstream, clock, counts)
    finally:
        await upstream.aclose()
        await node.stop()


@pytest.fixture
def million() -> dict[str, Any]:
    """Mainnet block 1 000 000: two transactions."""
    return recorded("full", "mainnet_1000000")


@pytest.fixture
def busy() -> dict[str, Any]:
    """Mainnet block 17 034 869: 93 transactions."""
    return recorded("full", "mainnet_17034869")


@pytest.fixture
async def rig(million: dict[str, Any]) -> AsyncIterator[Rig]:
    """An upstream over a node that has mainnet block 1 000 000, which is its head."""
    async with ScriptedNode.of_corpus(million) as node, open_rig(node) as opened:
        yield opened


@pytest.fixture
async def busy_rig(busy: dict[str, Any]) -> AsyncIterator[Rig]:
    """An upstream over a node that has mainnet block 17 034 869, which is its head."""
    async with ScriptedNode.of_corpus(busy) as node, open_rig(node) as opened:
        yield opened


async def handed(bodies: BlockBodies) -> BlockBodies:
    """An `accept` that takes everything."""
    return bodies
