"""Nodes that fail half of the time, or want to be left alone: what that costs, who notices, and how soon it is over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from app.chain.chain import Chain
from app.chain.rules import ChainRules, FinalityRule
from app.core.blocks import BlockRef
from app.core.breaker import LONGEST_PERIOD_S
from app.core.errors import ProofError, RpcUnavailable
from app.metrics import Metrics
from app.upstream.evm import EvmNode
from app.upstream.failover import Failover
from app.upstream.retries import Patience, RetryBudget
from app.upstream.trip import ATTEMPTS
from tests.chain.recorded_chain import BUSY, SEPOLIA, CorpusBuilder, forged, sepolia
from tests.scripted_behaviours import Behaviour, http
from tests.scripted_node import Connection, ScriptedNode
from tests.upstream.conftest import WALL, HandClock

BLOCKS = 800
EVERY_S = 0.01
"""A hundred misses a second."""

NEED = 2
"""Calls that a block costs: itself and its receipts."""

GENERATIONS = 2
"""A fill that fails is begun once more, where that can be afforded."""

BY_NUMBER, RECEIPTS = "eth_getBlockByNumber", "eth_getBlockReceipts"


@pytest.fixture(scope="module")
def records() -> list[Any]:
    return [forged(sepolia(BUSY), number=hex(BUSY + offset)) for offset in range(BLOCKS)]


def flapping(seed: int) -> Behaviour:
    """Every second call on average meets an error, each time another."""
    chance = random.Random(seed)

    async def act(node: ScriptedNode, connection: Connection, call: Any) -> None:
        if chance.random() < 0.5:
            await connection.respond_json(node.honest(call))
        elif chance.random() < 0.5:
            await connection.respond(503, b"overloaded", {})
        else:
            failure = {"code": -32000, "message": "service unavailable"}
            body = {"jsonrpc": "2.0", "id": call["id"], "error": failure}
            await connection.respond(200, json.dumps(body).encode(), {"content-type": "application/json"})

    return Behaviour("flapping", act=act)


async def briefly(_: float) -> None:
    """Others ask while one pauses: the time that passes is theirs."""
    await asyncio.sleep(0)


class Scene:
    """A chain over scripted nodes that all have the same blocks, every one of them final; time passes by hand."""

    def __init__(self, nodes: list[ScriptedNode]) -> None:
        self.nodes = nodes
        self.clock = HandClock()
        evms = [
            EvmNode(
                name,
                node.url,
                chain_id=SEPOLIA,
                clock=self.clock.now,
                wall_clock=lambda: WALL,
                trust_env=False,
            )
            for name, node in zip("ab", nodes, strict=False)
        ]
        self.upstream = Failover(evms, patience=Patience(briefly, self.clock.now, lambda: 0.5))
        metrics = Metrics(CollectorRegistry())
        metrics.register_chain("sepolia", 7, [evm.name for evm in evms])
        rules = ChainRules(
            key=7, name="sepolia", chain_id=SEPOLIA, family="ethereum", anchor_source="none", finality=FinalityRule()
        )
        self.chain = Chain(rules, self.upstream, CorpusBuilder(), None, metrics, self.clock, jitter=lambda: 0.5)
        self.served: list[int] = []
        self.failed: list[ProofError] = []

    async def ask(self, offset: int) -> None:
        try:
            found = await self.chain.block(BlockRef(height=BUSY + offset))
        except ProofError as error:
            self.failed.append(error)
        else:
            assert found.block.height == BUSY + offset
            self.served.append(offset)
        self.clock.at += EVERY_S

    def calls(self) -> int:
        """For blocks, of all nodes."""
        return sum(node.hits[BY_NUMBER] + node.hits[RECEIPTS] for node in self.nodes)

    def forget_calls(self) -> None:
        for node in self.nodes:
            node.reset_counts()


@contextlib.asynccontextmanager
async def opened(records: list[Any], nodes: int) -> AsyncIterator[Scene]:
    async with contextlib.AsyncExitStack() as stack:
        made = [await stack.enter_async_context(ScriptedNode.of_corpus(*records)) for _ in range(nodes)]
        for node in made:
            node.chain_id = SEPOLIA
        scene = Scene(made)
        stack.push_async_callback(scene.upstream.aclose)
        stack.push_async_callback(scene.chain.aclose)
        await scene.chain.head.poll(all_tags=True)
        scene.forget_calls()
        yield scene


async def test_row_27_with_another_node_everybody_is_served_for_hardly_more_calls(
    records: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(records, 2) as scene:
        failing, good = scene.nodes
        failing.always("*", flapping(1))
        for offset in range(BLOCKS):
            await scene.ask(offset)
        assert (len(scene.served), scene.failed) == (BLOCKS, [])
        assert scene.calls() <= 1.1 * NEED * BLOCKS
        assert failing.posts < 0.05 * good.posts, "once seen to fail it is left alone"
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert 1 <= len(warnings) <= 4, "each kind of failure once, however often"
        scene.forget_calls()
        for offset in range(0, BLOCKS, 7):
            await scene.ask(offset)
        assert scene.calls() == 0, "finished blocks are never fetched again"


async def test_row_27_with_another_node_it_is_back_in_use_within_one_probe_interval(records: list[Any]) -> None:
    async with opened(records, 2) as scene:
        failing, good = scene.nodes
        failing.always("*", flapping(3))
        for offset in range(200):
            await scene.ask(offset)
        for offset in range(200, 500):  # long enough for the longest interval
            await scene.ask(offset)
            scene.clock.at += 1.0
        failing.always("*", None)
        scene.forget_calls()
        recovered_at = scene.clock.at
        for offset in range(500, BLOCKS):
            await scene.ask(offset)
            if failing.hits[RECEIPTS]:
                break
            scene.clock.at += 1.0
        assert scene.clock.at - recovered_at <= LONGEST_PERIOD_S + 2.0
        scene.forget_calls()
        for offset in range(BLOCKS - 50, BLOCKS):
            await scene.ask(offset)
        assert (failing.hits[RECEIPTS], good.posts) == (50, 0)
        assert scene.failed == []


async def test_row_27_alone_it_is_not_asked_ever_more_and_serves_again_at_once(
    records: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(records, 1) as scene:
        (node,) = scene.nodes
        node.always("*", flapping(2))
        for offset in range(BLOCKS - 100):
            await scene.ask(offset)
        assert scene.calls() <= 1.1 * NEED * (BLOCKS - 100)
        assert len(scene.served) > 0.25 * BLOCKS, "as many as without a retry, at least"
        assert {type(error) for error in scene.failed} == {RpcUnavailable}
        assert len(caplog.records) <= 12, "hundreds of calls failed, in a few ways, within seconds"
        served = list(scene.served)
        scene.forget_calls()
        for offset in served:
            await scene.ask(offset)
        assert scene.calls() == 0, "finished blocks are never fetched again"
        node.always("*", None)
        scene.failed.clear()
        for offset in range(BLOCKS - 100, BLOCKS):
            await scene.ask(offset)
        assert scene.failed == []
        assert scene.calls() == NEED * 100


async def test_B30_unavailable_and_then_a_limit_under_a_hundred_misses_a_second(records: list[Any]) -> None:
    async with opened(records, 1) as scene:
        (node,) = scene.nodes
        for offset in range(100):
            await scene.ask(offset)
        node.always("*", http(503))
        scene.forget_calls()
        for offset in range(100, 200):
            before = scene.calls()
            await scene.ask(offset)
            assert scene.calls() - before <= GENERATIONS * ATTEMPTS
        assert scene.calls() <= 1.1 * NEED * 100 + RetryBudget().capacity
        node.always("*", http(429, retry_after="30"))
        scene.forget_calls()
        limited_at = scene.clock.at
        offset = 0
        while scene.clock.at < limited_at + 29.0:
            await scene.ask(200 + offset % 400)
            offset += 1
            scene.clock.at += 0.09
        assert node.posts == 1, "one shared cool-down"
        scene.forget_calls()
        served = len(scene.served)
        for offset in range(100):
            await scene.ask(offset)
        assert (len(scene.served) - served, node.posts) == (100, 0), "finished blocks are never fetched again"
        node.always("*", None)
        scene.clock.at = limited_at + 30.0
        scene.failed.clear()
        await scene.ask(BLOCKS - 1)
        assert scene.failed == [], "over as soon as the limit is"
