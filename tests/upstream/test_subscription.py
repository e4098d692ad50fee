"""Being told of new heads: when that wakes somebody, when it is not believed, and what becomes of a subscription that fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from app.core.purpose import Purpose
from app.core.spending import Account, Prices, prices_of
from app.core.watch import LATE_S, SILENT_S
from app.upstream.evm import EvmNode
from app.upstream.failover import Failover
from app.upstream.herald import Herald
from app.upstream.posting import NodeLimits
from app.upstream.purse import Purse
from app.upstream.retries import Patience
from app.upstream.subscription import CHECK_EVERY_S, MOST_IN_A_SECOND
from tests.fakes import settle
from tests.scripted_node import ScriptedNode
from tests.scripted_websocket import ScriptedWebSocket, event
from tests.upstream.conftest import WALL, Counts, HandClock

MILLION = 1_000_000
OTHER = "0x" + "ee" * 32


@dataclass
class Waits:
    """Pauses of one subscription, which end when a test says so."""

    asked: list[float] = field(default_factory=list)
    _open: deque[asyncio.Event] = field(default_factory=deque)

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        over = asyncio.Event()
        self._open.append(over)
        await over.wait()

    async def end(self) -> None:
        """The one that is waited for is over."""
        while not self._open:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        self._open.pop().set()


async def briefly(_: float) -> None:
    """Rests between two connections are of no interest here."""
    await asyncio.sleep(0)


@dataclass
class Scene:
    node: ScriptedNode
    side: ScriptedWebSocket
    evm: EvmNode
    upstream: Failover
    herald: Herald
    clock: HandClock
    waits: Waits
    counts: Counts

    async def subscribed(self) -> None:
        """Until the subscription is live, and what that alone told was heard."""
        await self.heard()
        await self.side.until_subscribed()
        assert self.listed == "live"

    async def heard(self) -> None:
        async with asyncio.timeout(10):
            await self.herald.heard()

    async def unheard(self) -> None:
        """Nothing wakes anybody."""
        task = asyncio.create_task(self.herald.heard())
        await self.upstream.chain_id()  # over the same connection: whatever was sent before has arrived
        await self.answered()
        assert not task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def answered(self) -> None:
        """What the side sent before has been taken: pings are answered in their turn."""
        for connection in list(self.side.connections):
            await (await connection.ping())
        await settle()

    @property
    def listed(self) -> object:
        return self.upstream.states()[0]["subscription"]


@contextlib.asynccontextmanager
async def opened(
    record: Any,
    *,
    beside_http: bool = False,
    side_of: ScriptedNode | None = None,
    prices: Prices | None = None,
    account: Account | None = None,
) -> AsyncIterator[Scene]:
    async with ScriptedNode.of_corpus(record) as node, ScriptedWebSocket(side_of or node) as side:
        clock, waits, counts = HandClock(), Waits(), Counts()
        evm = EvmNode(
            "node-a",
            node.url if beside_http else side.url,
            ws_url=side.url if beside_http else None,
            chain_id=1,
            limits=NodeLimits(),
            observer=counts,
            purse=Purse(prices, account, clock=clock.now, wall_clock=lambda: WALL, pause=clock.pause),
            clock=clock.now,
            wall_clock=lambda: WALL,
            trust_env=False,
        )
        assert evm.subscription is not None
        evm.subscription._pause = waits
        evm.subscription.line._pause = briefly
        upstream = Failover([evm], patience=Patience(clock.pause, clock.now, lambda: 0.5))
        assert upstream.herald is not None
        try:
            yield Scene(node, side, evm, upstream, upstream.herald, clock, waits, counts)
        finally:
            await upstream.aclose()


@pytest.fixture(params=[False, True], ids=["over the same", "beside http"])
async def scene(request: pytest.FixtureRequest, million: Any) -> AsyncIterator[Scene]:
    async with opened(million, beside_http=request.param) as found:
        yield found


# --- news -----------------------------------------------------------------------------------------------------------


async def test_nobody_is_subscribed_before_somebody_listens(scene: Scene) -> None:
    assert await scene.upstream.tagged("latest") is not None
    assert (scene.node.hits["eth_subscribe"], scene.listed, scene.herald.at_work) == (0, "off", False)


async def test_a_new_block_is_heard_of_and_nothing_else_follows_from_it(scene: Scene) -> None:
    await scene.subscribed()
    await scene.upstream.tagged("latest")
    await scene.side.announce(5_000_000, OTHER)
    await scene.heard()
    assert scene.upstream.head == MILLION, "what is announced is a reason to ask, and no head"
    assert scene.node.hits["eth_subscribe"] == 1


async def test_what_the_node_named_when_asked_wakes_nobody(scene: Scene) -> None:
    await scene.subscribed()
    await scene.upstream.tagged("latest")
    await scene.side.announce(MILLION)
    await scene.unheard()
    await scene.side.announce(MILLION, OTHER)
    await scene.heard()


async def test_events_of_another_subscription_or_of_none_wake_nobody(scene: Scene) -> None:
    await scene.subscribed()
    await scene.side.tell(event("0x5eed", hex(MILLION + 1), OTHER))
    await scene.side.tell({"jsonrpc": "2.0", "method": "eth_subscription", "params": {"subscription": "0xabc1"}})
    await scene.side.tell({"jsonrpc": "2.0", "method": "something_else", "params": []})
    await scene.unheard()


async def test_a_flood_is_one_reason_to_ask_and_holds_nothing(scene: Scene) -> None:
    await scene.subscribed()
    (name,) = scene.side.subscriptions
    for height in range(3000):
        scene.clock.at += 0.01  # a hundred in a second
        await scene.side.tell(event(name, hex(MILLION + height), OTHER))
        if height % 50 == 0:
            await scene.answered()
    await scene.heard()
    await scene.answered()
    scene.herald._news.clear()
    await scene.unheard()
    assert scene.evm.subscription is not None
    assert scene.evm.subscription.announcements == 3000
    assert await scene.upstream.tagged("latest") is not None, "calls have their turn beside it"


async def test_more_than_there_can_be_is_not_listened_to_and_calls_are_served(scene: Scene, caplog: Any) -> None:
    await scene.subscribed()
    (name,) = scene.side.subscriptions
    with contextlib.suppress(ConnectionClosed):
        for height in range(10 * MOST_IN_A_SECOND):
            await scene.side.tell(event(name, hex(MILLION + height), OTHER))
    while scene.herald.at_work:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)
    await scene.heard()
    assert await scene.upstream.tagged("latest") is not None
    while not scene.waits.asked or scene.waits.asked[-1] < 100:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)
    assert scene.evm.subscription is not None
    assert scene.evm.subscription.announcements == MOST_IN_A_SECOND + 1
    assert (scene.node.hits["eth_subscribe"], scene.waits.asked[-1]) == (1, 600.0)
    assert [r for r in caplog.records if "more blocks than there can be" in r.__dict__.get("detail", "")]
    scene.clock.at += 600.0
    await scene.waits.end()
    await scene.side.until_subscribed()


async def test_who_rests_is_told_nothing_more_until_he_listens_again(scene: Scene) -> None:
    await scene.subscribed()
    scene.herald.rest()
    assert scene.listed == "off"
    await scene.waits.end()
    await scene.side.until_unsubscribed()
    assert (scene.node.hits["eth_unsubscribe"], scene.herald.at_work) == (1, False)
    assert await scene.upstream.tagged("latest") is not None, "calls go on"
    await scene.side.announce(MILLION + 1, OTHER)
    await scene.answered()
    assert scene.node.hits["eth_subscribe"] == 1
    scene.herald._news.clear()
    await scene.subscribed()
    assert (scene.node.hits["eth_subscribe"], scene.herald.at_work) == (2, True)


# --- subscriptions that fail ------------------------------------------------------------------------------------------


async def test_a_connection_that_breaks_off_is_news_and_is_subscribed_again(scene: Scene) -> None:
    await scene.subscribed()
    await scene.side.drop()
    await scene.heard()
    assert not scene.herald.at_work
    assert scene.listed == "down"
    await scene.side.until_subscribed()
    await scene.heard()
    assert scene.herald.at_work
    await scene.side.announce(MILLION + 1, OTHER)
    await scene.heard()


async def test_U15_after_a_lost_connection_the_chain_is_asked_for_again(million: Any) -> None:
    async with opened(million) as scene:
        await scene.upstream.tagged("latest")
        await scene.upstream.tagged("latest")
        assert scene.node.hits["eth_chainId"] == 1
        line = scene.evm._ways.line
        assert line is not None
        await scene.side.drop()
        while line.open:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        await scene.upstream.tagged("latest")
        assert scene.node.hits["eth_chainId"] == 2


async def test_a_block_that_was_not_announced_ends_the_reliance(scene: Scene) -> None:
    await scene.subscribed()
    await scene.upstream.tagged("latest")
    scene.node.add({**scene.node.blocks[scene.node.canonical[MILLION]], "number": hex(MILLION + 1), "hash": OTHER}, [])
    await scene.upstream.tagged("latest")
    scene.clock.at += LATE_S + 0.1
    assert (scene.herald.at_work, scene.listed) == (False, "silent")
    await scene.side.announce(MILLION + 1)
    await scene.answered()
    assert scene.herald.at_work


async def test_silent_for_ninety_seconds_it_is_made_anew_and_then_on_another_connection(scene: Scene) -> None:
    await scene.subscribed()
    block = scene.node.blocks[scene.node.canonical[MILLION]]
    for round_ in (1, 2):
        await scene.upstream.tagged("latest")
        made = {**block, "number": hex(MILLION + round_), "hash": "0x" + f"{round_:02x}" * 32}
        scene.node.add(made, [])
        await scene.upstream.tagged("latest")
        assert scene.node.hits["eth_subscribe"] == round_
        scene.clock.at += SILENT_S
        await scene.waits.end()
        await scene.node.until("eth_subscribe", round_ + 1)
        await scene.heard()
        assert scene.side.handshakes == round_, "the second time on another connection"
    assert scene.node.hits["eth_unsubscribe"] == 1
    assert set(scene.waits.asked) == {CHECK_EVERY_S}
    assert scene.herald.at_work


async def test_a_chain_that_stands_still_is_not_subscribed_anew(scene: Scene) -> None:
    await scene.subscribed()
    for _ in range(5):
        await scene.upstream.tagged("latest")
        scene.clock.at += SILENT_S
        await scene.waits.end()
        await settle()
    assert (scene.node.hits["eth_subscribe"], scene.herald.at_work) == (1, True)


async def test_a_node_that_takes_no_subscription_is_polled_and_asked_again_much_later(
    million: Any, caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    async with opened(million) as scene:
        scene.side.subscribes = False
        listening = asyncio.create_task(scene.herald.heard())
        await scene.node.until("eth_subscribe")
        while not scene.waits.asked:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        assert (scene.waits.asked, scene.listed, scene.herald.at_work) == ([600.0], "down", False)
        assert await scene.upstream.tagged("latest") is not None
        scene.side.subscribes = True
        await scene.waits.end()
        await listening
        assert scene.herald.at_work
        said = [record.getMessage() for record in caplog.records]
        assert said.count("upstream_subscription_failed") == 1
        assert said.count("upstream_subscription_live") == 1


async def test_B35_the_blocks_of_another_chain_are_not_listened_to(million: Any) -> None:
    foreign = ScriptedNode.of_corpus(million)
    foreign.chain_id = 5
    async with opened(million, beside_http=True, side_of=foreign) as scene:
        listening = asyncio.create_task(scene.herald.heard())
        await foreign.until("eth_chainId")
        while not scene.waits.asked:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        assert (foreign.hits["eth_subscribe"], scene.waits.asked) == (0, [600.0])
        assert await scene.upstream.tagged("latest") is not None, "what is asked over HTTP is none the worse"
        assert scene.upstream.states()[0]["state"] == "ok"
        listening.cancel()


async def test_a_side_that_is_down_is_no_fault_of_the_node(million: Any) -> None:
    async with opened(million, beside_http=True) as scene:
        await scene.side.stop()
        listening = asyncio.create_task(scene.herald.heard())
        line = scene.evm._ways.line
        assert line is not None
        while line.failure is None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        assert await scene.upstream.tagged("latest") is not None
        listed = scene.upstream.states()[0]
        assert (listed["state"], listed["breaker"], listed["subscription"]) == ("ok", "closed", "down")
        listening.cancel()


# --- what it costs ----------------------------------------------------------------------------------------------------


async def test_what_is_announced_is_paid_for_and_counted(million: Any) -> None:
    async with opened(million, prices=prices_of("alchemy"), account=Account(units_per_day=10_000)) as scene:
        await scene.subscribed()
        await scene.side.announce(MILLION + 1, OTHER)
        await scene.heard()
        assert scene.evm.purse.spent[Purpose.HEAD] == 10 + 70
        assert scene.counts.results("eth_subscribe") == {"ok": 1}


async def test_when_the_units_of_today_are_spent_nothing_more_is_announced(million: Any) -> None:
    account = Account(units_per_day=200)
    async with opened(million, prices=prices_of("alchemy"), account=account) as scene:
        await scene.subscribed()
        for height in (1, 2):
            await scene.side.announce(MILLION + height, OTHER)
            await scene.heard()
        await scene.side.until_gone()
        assert account.spent(WALL) == 150
        while not scene.waits.asked or scene.waits.asked[-1] < 100:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        assert scene.node.hits["eth_subscribe"] == 1, "until there are units again"


def test_what_a_header_costs_by_the_byte_is_about_what_the_list_says() -> None:
    hashes = ("parentHash", "sha3Uncles", "stateRoot", "transactionsRoot", "receiptsRoot", "mixHash", "hash")
    later = ("withdrawalsRoot", "parentBeaconBlockRoot", "requestsHash")
    numbers = ("number", "gasLimit", "gasUsed", "timestamp", "baseFeePerGas", "blobGasUsed", "excessBlobGas", "nonce")
    header = dict.fromkeys(hashes + later, "0x" + "00" * 32) | dict.fromkeys((*numbers, "difficulty"), "0x1c9c380")
    header |= {"miner": "0x" + "00" * 20, "logsBloom": "0x" + "00" * 256, "extraData": "0x" + "00" * 20}
    params = {"subscription": "0x" + "0" * 32, "result": header}
    told = json.dumps({"jsonrpc": "2.0", "method": "eth_subscription", "params": params}, separators=(",", ":"))
    assert 0.85 < 0.04 * len(told) / prices_of("alchemy").of(("eth_subscription",)).units < 1.15
