"""Chains that name the same Creditcoin node share it: one look at its head for all of them, and a connection each needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx2
import pytest

from app.anchors.creditcoin import POLL_INTERVAL_S, Creditcoin
from app.anchors.node import AS_ONE_S, CreditcoinNode, CreditcoinNodes, NodeFailed
from tests.anchors.fake_creditcoin import CHAIN_ID, KEY, URL, FakeCreditcoin
from tests.chain.recorded_chain import LAST, RecordedChain
from tests.fakes import ManualClock, settle

CHAINS = 3


class Scene:
    """One node and the chains of one process that take their anchors from it."""

    def __init__(self, as_one_s: float) -> None:
        self.clock = ManualClock().drive()
        self.creditcoin = FakeCreditcoin()
        self.creditcoin.next.attest(0, bytes(32))
        self.creditcoin.next.attest(10, b"\1" * 32)
        self.creditcoin.finalize()
        self.node = CreditcoinNode(URL, transport=self.creditcoin, as_one_s=as_one_s, clock=self.clock.now)
        self.sources = [Creditcoin(KEY, self.node, lambda: CHAIN_ID, clock=self.clock.now) for _ in range(CHAINS)]
        self.chains = [RecordedChain(LAST, LAST, anchors=source, clock=self.clock) for source in self.sources]

    @contextlib.asynccontextmanager
    async def running(self, seconds_between: float = 0.0) -> AsyncIterator[None]:
        """Each chain begins so much later than the one before."""
        tasks = []
        for made in self.chains:
            tasks.append(asyncio.create_task(made.chain.run()))
            await self.pass_by(seconds_between)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for made in self.chains:
                await made.chain.aclose()
            await self.node.aclose()

    async def pass_by(self, seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            await self.clock.advance(0.5)
        await settle(200)


@pytest.mark.parametrize(("as_one_s", "looks"), [(AS_ONE_S, 12), (0.0, 12 * CHAINS)])
async def test_one_look_at_the_head_serves_every_chain(as_one_s: float, looks: int) -> None:
    scene = Scene(as_one_s)
    async with scene.running(seconds_between=1.5):  # they begin apart, and soon look at the same moments
        await scene.pass_by(2 * POLL_INTERVAL_S)
        scene.creditcoin.cost()
        await scene.pass_by(12 * POLL_INTERVAL_S)
        assert scene.creditcoin.cost() == {"finalized": looks}
        scene.creditcoin.next.attest(20, b"\2" * 32)
        scene.creditcoin.finalize()
        await scene.pass_by(POLL_INTERVAL_S)
        assert [source.attested_height for source in scene.sources] == [20] * CHAINS
        assert all(source.age_s <= POLL_INTERVAL_S for source in scene.sources)


async def test_a_node_that_cannot_be_asked_is_tried_once_for_all() -> None:
    scene = Scene(AS_ONE_S)
    async with scene.running():
        scene.creditcoin.answer = httpx2.ConnectError("")
        await scene.pass_by(POLL_INTERVAL_S)
        scene.creditcoin.cost()
        await scene.pass_by(POLL_INTERVAL_S)
        assert scene.creditcoin.cost() == {"finalized": 1}
        assert [made.chain.anchoring_stalled for made in scene.chains] == ["RpcUnavailable"] * CHAINS
        scene.creditcoin.answer = None
        await scene.pass_by(POLL_INTERVAL_S)
        assert [made.chain.anchoring_stalled for made in scene.chains] == [None] * CHAINS


async def test_whoever_looks_and_leaves_leaves_nobody_without_an_answer() -> None:
    scene = Scene(AS_ONE_S)
    hold = scene.creditcoin.hold("finalized")
    looking = [asyncio.create_task(scene.node.finalized_height()) for _ in range(5)]
    await hold.reached()
    looking[0].cancel()
    await settle()
    hold.release()
    heights = await asyncio.gather(*looking, return_exceptions=True)
    assert heights[1:] == [0] * 4
    assert scene.creditcoin.cost() == {"finalized": 2}


async def test_what_was_said_serves_for_a_moment_and_no_longer() -> None:
    scene = Scene(AS_ONE_S)
    scene.creditcoin.finalized = None
    for _ in range(2):
        with pytest.raises(NodeFailed, match="which block is finalized"):
            await scene.node.finalized_height()
    scene.creditcoin.finalized = 7
    scene.clock.move(AS_ONE_S)
    assert await scene.node.finalized_height() == 7
    scene.creditcoin.finalized = 8
    assert await scene.node.finalized_height() == 7
    scene.clock.move(AS_ONE_S)
    assert await scene.node.finalized_height() == 8


async def test_a_chain_that_begins_just_before_the_moment_lets_it_pass() -> None:
    scene = Scene(as_one_s=0.0)
    scene.clock.move(0.9 * POLL_INTERVAL_S)
    async with scene.running():
        await scene.pass_by(0.2 * POLL_INTERVAL_S)
        assert scene.creditcoin.cost()["finalized"] == CHAINS
        await scene.pass_by(POLL_INTERVAL_S)
        assert scene.creditcoin.cost()["finalized"] == CHAINS


async def test_a_url_has_one_node() -> None:
    nodes = CreditcoinNodes()
    one, other = nodes.of(URL), nodes.of("ws://creditcoin.example:9944")
    assert nodes.of(URL) is one is not other
    with pytest.raises(ValueError, match="URL of a Creditcoin node"):
        nodes.of("ftp://creditcoin.example")
    await nodes.aclose()
    assert one._client.is_closed
    assert other._client.is_closed
