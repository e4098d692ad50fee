"""Money at the door to the nodes: what each call costs, what is refused for its price, and what is never even asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from app.chain.permits import Permits, PermitShift
from app.core.blocks import BlockRef
from app.core.budget import FillBudget
from app.core.deadlines import deadline
from app.core.errors import RpcUnavailable, UpstreamBudgetExhausted
from app.core.purpose import Errand, Purpose, errand, for_purpose
from app.core.resting import shift
from app.core.routing import RoutingRules
from app.core.spending import DAY_S, Account, Prices, prices_of
from app.metrics import Metrics
from app.upstream.evm import EvmNode
from app.upstream.failover import Failover
from app.upstream.faults import CallFailed, Fault
from app.upstream.figures import UpstreamFigures
from app.upstream.hedging import ENOUGH
from app.upstream.posting import NodeLimits
from app.upstream.purse import LONGEST_RETRY_AFTER_S, LONGEST_WAIT_S, Accounts, Purse
from app.upstream.retries import Patience
from tests.corpus_files import recorded
from tests.fakes import ManualClock, settle
from tests.scripted_behaviours import hang, held, http, null
from tests.scripted_node import ScriptedNode
from tests.upstream.conftest import WALL, HandClock, handed

CHAIN, BY_NUMBER, RECEIPTS, EACH = (
    "eth_chainId",
    "eth_getBlockByNumber",
    "eth_getBlockReceipts",
    "eth_getTransactionReceipt",
)
MILLION = BlockRef(height=1_000_000)
BUSY = BlockRef(height=17_034_869)
LIST = Prices({CHAIN: 0.0, BY_NUMBER: 16.0, RECEIPTS: 500.0, EACH: 15.0}, other=10.0)
KNOWN = Errand(anonymous=False)


class Market:
    """Nodes that sell, one clock for all, and a wall clock that is set by hand."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self.clock = HandClock()
        self.wall = WALL
        self._stack = stack

    async def node(self, *blocks: str, **options: Any) -> ScriptedNode:
        node = ScriptedNode.of_corpus(*(recorded("full", name) for name in blocks or ("mainnet_1000000",)), **options)
        return await self._stack.enter_async_context(node)

    def buyer(self, node: ScriptedNode, account: Account | None = None, *, name: str = "a", **options: Any) -> EvmNode:
        prices = options.pop("prices", LIST)
        purse = Purse(prices, account, clock=self.clock.now, wall_clock=lambda: self.wall, pause=self.clock.pause)
        return EvmNode(
            name,
            node.url,
            chain_id=node.chain_id,
            purse=purse,
            clock=self.clock.now,
            wall_clock=lambda: self.wall,
            trust_env=False,
            limits=NodeLimits(**options),
        )

    def chain(self, *nodes: EvmNode, rules: RoutingRules | None = None) -> Failover:
        upstream = Failover(nodes, rules=rules, patience=Patience(self.clock.pause, self.clock.now, lambda: 0.5))
        self._stack.push_async_callback(upstream.aclose)
        return upstream


@pytest.fixture
async def market() -> AsyncIterator[Market]:
    async with contextlib.AsyncExitStack() as stack:
        yield Market(stack)


@contextlib.contextmanager
def on(mine: Errand) -> Any:
    token = errand.set(mine)
    try:
        yield
    finally:
        errand.reset(token)


def spent(node: EvmNode) -> Mapping[str, float]:
    """Units by purpose, what cost nothing left out."""
    return {purpose.value: units for purpose, units in node.purse.spent.items() if units}


# --- what is charged ------------------------------------------------------------------------------------------------


async def test_a_block_costs_its_calls_by_whatever_it_is_fetched_for(market: Market) -> None:
    node = await market.node()
    buyer = market.buyer(node)
    upstream = market.chain(buyer)
    await upstream.fetch(MILLION, handed)
    with for_purpose(Purpose.BACKFILL):
        await upstream.fetch(MILLION, handed)
    with for_purpose(Purpose.HEAD):
        await upstream.tagged("latest")
    assert spent(buyer) == {"request": 516.0, "backfill": 516.0, "head": 16.0}
    assert buyer.purse.account.spent(WALL) == sum(spent(buyer).values())


async def test_which_chain_a_node_serves_is_a_probe_whoever_asks(market: Market) -> None:
    buyer = market.buyer(await market.node(), prices=Prices({CHAIN: 5.0}, other=0.0))
    with for_purpose(Purpose.BACKFILL):
        await market.chain(buyer).fetch(MILLION, handed)
    assert spent(buyer) == {"probe": 5.0}


async def test_a_batch_costs_the_sum_of_its_calls_and_the_fallback_by_transaction_is_paid_for(market: Market) -> None:
    node = await market.node("mainnet_17034869", unsupported={RECEIPTS})
    buyer = market.buyer(node)
    await market.chain(buyer).fetch(BUSY, handed)
    assert node.batch_sizes == [92]
    assert node.hits[EACH] == 93
    assert spent(buyer) == {"request": 16.0 + 500.0 + 93 * 15.0}


async def test_a_call_that_is_made_again_is_paid_for_again(market: Market) -> None:
    node = await market.node()
    node.script(RECEIPTS, null(), null())
    buyer = market.buyer(node)
    await market.chain(buyer).fetch(MILLION, handed)
    assert spent(buyer) == {"request": 16.0 + 3 * 500.0}


async def test_a_call_is_paid_for_before_it_starts_and_stays_so_when_it_is_cancelled(market: Market) -> None:
    node = await market.node()
    node.script(BY_NUMBER, hang())
    buyer = market.buyer(node)
    fetching = asyncio.ensure_future(market.chain(buyer).fetch(MILLION, handed))
    await node.until(BY_NUMBER)
    assert spent(buyer) == {"request": 16.0}
    fetching.cancel()
    await asyncio.wait([fetching])
    assert spent(buyer) == {"request": 16.0}


async def test_a_hedge_is_paid_for_by_whom_it_is_asked_of(market: Market) -> None:
    nodes = [await market.node(), await market.node()]
    buyers = [market.buyer(node, name=name) for node, name in zip(nodes, ("a", "b"), strict=True)]
    upstream = market.chain(*buyers, rules=RoutingRules(hedge=True))
    for buyer in buyers:
        await buyer.verify_chain()
    for _ in range(ENOUGH):
        await upstream.fetch(MILLION, handed)
    gate = asyncio.Event()
    nodes[0].script(BY_NUMBER, held(gate))
    await upstream.fetch(MILLION, handed)
    gate.set()
    assert spent(buyers[1]) == {"request": 516.0}
    assert spent(buyers[0]) == {"request": ENOUGH * 516.0 + 16.0}


async def test_with_80_percent_of_its_units_spent_a_node_is_not_asked_for_a_second_answer(market: Market) -> None:
    nodes = [await market.node(), await market.node()]
    scarce = Account(units_per_day=1000.0)
    buyers = [market.buyer(nodes[0]), market.buyer(nodes[1], scarce, name="b")]
    upstream = market.chain(*buyers, rules=RoutingRules(hedge=True))
    for buyer in buyers:
        await buyer.verify_chain()
    for _ in range(ENOUGH):
        await upstream.fetch(MILLION, handed)
    scarce.charge(801.0, KNOWN, WALL)
    gate = asyncio.Event()
    nodes[0].script(BY_NUMBER, held(gate))
    with on(KNOWN):
        fetching = asyncio.ensure_future(upstream.fetch(MILLION, handed))
    await nodes[0].until(BY_NUMBER, ENOUGH + 1)
    await settle()
    assert upstream.hedging.outcomes["suppressed"] == 1
    gate.set()
    await fetching
    assert nodes[1].hits[BY_NUMBER] == 0


async def test_units_are_metrics_by_purpose_and_the_share_of_the_day_is_one(market: Market) -> None:
    buyer = market.buyer(await market.node(), Account(units_per_day=5160.0))
    upstream = market.chain(buyer)
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.register_chain("one", 1, ["a"])
    figures = UpstreamFigures("one", upstream, metrics)
    figures.publish()
    labels = {"chain": "one", "upstream": "a"}
    assert registry.get_sample_value("copath_upstream_units_total", {**labels, "purpose": "request"}) == 0
    await upstream.fetch(MILLION, handed)
    with for_purpose(Purpose.BACKFILL):
        await upstream.fetch(MILLION, handed)
    for _ in range(2):
        figures.publish()
    for purpose, units in {"request": 516, "backfill": 516, "head": 0, "probe": 0}.items():
        assert registry.get_sample_value("copath_upstream_units_total", {**labels, "purpose": purpose}) == units
    assert registry.get_sample_value("copath_upstream_budget_used_ratio", labels) == 0.2
    assert upstream.states()[0]["budgetUsed"] == 0.2


# --- units of a day -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "until"),
    [(Errand(Purpose.BACKFILL), 0.8), (Errand(), 0.9), (KNOWN, 1.0), (Errand(Purpose.HEAD), 1.0)],
    ids=["backfill", "anonymous", "known", "head"],
)
async def test_what_may_not_be_paid_for_is_refused_without_a_call(market: Market, mine: Errand, until: float) -> None:
    node = await market.node()
    account = Account(units_per_day=100_000.0)
    upstream = market.chain(market.buyer(node, account))
    account.charge(until * 100_000 - 516, KNOWN, WALL)
    with on(mine):
        await upstream.fetch(MILLION, handed)
        node.reset_counts()
        with pytest.raises(UpstreamBudgetExhausted) as caught:
            await upstream.fetch(MILLION, handed)
    assert caught.value.retriable
    assert caught.value.retry_after_s == LONGEST_RETRY_AFTER_S < account.day_left_s(WALL)
    assert node.posts == 0
    assert market.clock.pauses == []


async def test_the_wait_that_a_refusal_names_ends_with_the_day_and_then_everything_is_served(market: Market) -> None:
    node = await market.node()
    account = Account(units_per_day=1000.0)
    upstream = market.chain(market.buyer(node, account))
    midnight = (WALL // DAY_S + 1) * DAY_S
    market.wall = midnight - 90
    account.charge(1000.0, KNOWN, market.wall)
    with pytest.raises(UpstreamBudgetExhausted) as caught:
        await upstream.fetch(MILLION, handed)
    assert caught.value.retry_after_s == 90
    market.wall = midnight
    await upstream.fetch(MILLION, handed)


async def test_a_block_of_which_only_half_can_be_paid_for_is_refused_and_the_half_stays_paid(market: Market) -> None:
    node = await market.node()
    buyer = market.buyer(node, Account(units_per_day=500.0))
    with pytest.raises(UpstreamBudgetExhausted):
        await market.chain(buyer).fetch(MILLION, handed)
    assert node.hits == {CHAIN: 1, BY_NUMBER: 1}
    assert spent(buyer) == {"request": 16.0}


async def test_a_batch_that_cannot_be_paid_for_as_a_whole_is_not_begun(market: Market) -> None:
    node = await market.node("mainnet_17034869", unsupported={RECEIPTS})
    buyer = market.buyer(node, Account(units_per_day=1000.0))
    with on(KNOWN), pytest.raises(UpstreamBudgetExhausted):
        await market.chain(buyer).fetch(BUSY, handed)
    assert node.hits[EACH] == 1, "the first alone, as always"
    assert spent(buyer) == {"request": 16.0 + 500.0 + 15.0}


async def test_receipts_one_by_one_end_where_the_units_do(market: Market) -> None:
    node = await market.node("mainnet_17034869", unsupported={RECEIPTS})
    account = Account(units_per_day=1000.0)
    buyer = market.buyer(node, account)
    buyer.capabilities.batch_limit = 1
    with on(KNOWN), pytest.raises(UpstreamBudgetExhausted):
        await market.chain(buyer).fetch(BUSY, handed)
    assert node.hits[EACH] == (1000 - 516) // 15
    assert account.spent(WALL) == 516 + node.hits[EACH] * 15


async def test_a_node_that_is_paid_from_another_account_takes_over(market: Market) -> None:
    nodes = [await market.node(), await market.node()]
    scarce = Account(units_per_day=1000.0)
    buyers = [market.buyer(nodes[0], scarce), market.buyer(nodes[1], name="b")]
    upstream = market.chain(*buyers)
    await buyers[0].verify_chain()
    nodes[0].reset_counts()
    scarce.charge(1000.0, KNOWN, WALL)
    bodies = await upstream.fetch(MILLION, handed)
    assert bodies.upstream == "b"
    assert nodes[0].posts == 0
    assert upstream.crew.budget.left == 1.0, "no second try: who cannot be paid was none"
    market.wall += DAY_S
    assert (await upstream.fetch(MILLION, handed)).upstream == "a"


async def test_a_node_out_of_units_beside_one_that_is_down_is_no_lack_of_units(market: Market) -> None:
    nodes = [await market.node(), await market.node()]
    scarce = Account(units_per_day=1000.0)
    upstream = market.chain(market.buyer(nodes[0], scarce), market.buyer(nodes[1], name="b"))
    scarce.charge(1000.0, KNOWN, WALL)
    await nodes[1].stop()
    with pytest.raises(RpcUnavailable):
        await upstream.fetch(MILLION, handed)


async def test_a_node_whose_units_end_midway_beside_one_that_is_down_is_no_lack_of_units_either(
    market: Market,
) -> None:
    nodes = [await market.node(), await market.node()]
    upstream = market.chain(market.buyer(nodes[0], Account(units_per_day=500.0)), market.buyer(nodes[1], name="b"))
    await nodes[1].stop()
    with pytest.raises(RpcUnavailable):
        await upstream.fetch(MILLION, handed)
    assert nodes[0].hits[BY_NUMBER] == 1


async def test_what_one_chain_spends_is_gone_for_the_other(market: Market) -> None:
    nodes = [await market.node(), await market.node()]
    account = Account(units_per_day=2 * 516 / 0.9)
    one, other = (market.chain(market.buyer(node, account)) for node in nodes)
    await one.fetch(MILLION, handed)
    await one.fetch(MILLION, handed)
    with pytest.raises(UpstreamBudgetExhausted):
        await other.fetch(MILLION, handed)
    assert nodes[1].hits[BY_NUMBER] == 0


# --- units of a second ----------------------------------------------------------------------------------------------


async def test_calls_wait_for_their_turn_first_come_first_served(market: Market) -> None:
    node = await market.node()
    buyer = market.buyer(node, Account(units_per_second=10.0), prices=Prices({CHAIN: 0.0}, other=5.0))
    upstream = market.chain(buyer)
    for _ in range(4):
        await upstream.name_of(1_000_000)
    assert market.clock.pauses == [0.5, 0.5]
    assert node.hits[BY_NUMBER] == 4


async def test_calls_that_come_together_are_given_one_turn_after_the_other(market: Market) -> None:
    node = await market.node()
    account = Account(units_per_second=10.0)
    buyer = market.buyer(node, account, prices=Prices({CHAIN: 0.0}, other=5.0))
    gate, waits = asyncio.Event(), []

    async def pause(seconds: float) -> None:
        waits.append(seconds)
        await gate.wait()

    await buyer.verify_chain()
    buyer.purse._pause = pause
    calling = [asyncio.ensure_future(buyer.call("eth_blockNumber")) for _ in range(5)]
    await settle()
    assert waits == [0.5, 1.0, 1.5]
    gate.set()
    await asyncio.gather(*calling)


async def test_nobody_waits_for_a_turn_at_a_node_that_must_not_be_asked(market: Market) -> None:
    account = Account(units_per_second=10.0)
    buyer = market.buyer(await market.node(), account, prices=Prices({CHAIN: 0.0}, other=5.0))
    await buyer.verify_chain()
    account.queue(20.0, market.clock.at)
    account.cool(market.clock.at + 30)
    with pytest.raises(CallFailed) as caught:
        await buyer.call("eth_blockNumber")
    assert caught.value.retry_after_s == 30
    assert market.clock.pauses == []


async def test_who_waits_for_a_turn_holds_no_permit(market: Market) -> None:
    buyer = market.buyer(await market.node(), Account(units_per_second=600.0))
    upstream = market.chain(buyer)
    permits, held_at_pauses = Permits(FillBudget(1), ManualClock()), []

    async def pause(seconds: float) -> None:
        held_at_pauses.append(permits.budget.running())
        await market.clock.pause(seconds)

    buyer.purse._pause = pause
    async with permits.hold() as permit:
        token = shift.set(PermitShift(permit))
        for _ in range(2):
            await upstream.fetch(MILLION, handed)
        assert permit.held
        shift.reset(token)
    assert held_at_pauses == [0]


async def test_a_turn_that_would_come_too_late_is_refused_at_once_with_the_wait(market: Market) -> None:
    node = await market.node()
    account = Account(units_per_second=10.0)
    upstream = market.chain(market.buyer(node, account, prices=Prices({CHAIN: 0.0}, other=10.0)))
    account.queue(100.0, market.clock.at)
    with pytest.raises(RpcUnavailable) as caught:
        await upstream.name_of(1_000_000)
    assert caught.value.retry_after_s == 10.0 > LONGEST_WAIT_S
    assert market.clock.pauses == []
    assert node.hits[BY_NUMBER] == 0


async def test_a_turn_after_the_deadline_is_not_waited_for(market: Market) -> None:
    account = Account(units_per_second=10.0)
    buyer = market.buyer(await market.node(), account, prices=Prices({CHAIN: 0.0}, other=10.0))
    await buyer.verify_chain()
    account.queue(20.0, market.clock.at)
    token = deadline.set(market.clock.at + 1.5)
    with pytest.raises(CallFailed) as caught:
        await buyer.call("eth_blockNumber")
    deadline.reset(token)
    assert caught.value.fault is Fault.RATE_LIMITED
    assert buyer.standing.cooling_until is None, "the node has said nothing"


async def test_backfill_waits_as_long_as_it_takes_and_never_before_a_request(market: Market) -> None:
    node = await market.node()
    account = Account(units_per_second=10.0)
    buyer = market.buyer(node, account, prices=Prices({CHAIN: 0.0}, other=5.0))
    gate, waits = asyncio.Event(), []

    async def pause(seconds: float) -> None:
        waits.append(seconds)
        await gate.wait()
        market.clock.at += seconds

    await buyer.verify_chain()
    buyer.purse._pause = pause
    account.queue(10.0 + 10 * LONGEST_WAIT_S, market.clock.at)
    with for_purpose(Purpose.BACKFILL):
        backfilling = asyncio.ensure_future(buyer.call("eth_blockNumber"))
    await settle()
    assert waits == [LONGEST_WAIT_S + 1.0]
    account.leave(10 * LONGEST_WAIT_S + 5.0, market.clock.at)
    await buyer.call("eth_blockNumber")  # came later, waits for nobody
    assert node.hits["eth_blockNumber"] == 1
    gate.set()
    await backfilling


async def test_who_is_cancelled_while_waiting_gives_the_turn_back_and_has_spent_nothing(market: Market) -> None:
    node = await market.node()
    account = Account(units_per_second=10.0, units_per_day=1000.0)
    buyer = market.buyer(node, account, prices=Prices({CHAIN: 0.0}, other=10.0))
    await buyer.verify_chain()
    account.queue(10.0, market.clock.at)

    async def forever(_: float) -> None:
        await asyncio.Event().wait()

    buyer.purse._pause = forever
    calling = asyncio.ensure_future(buyer.call("eth_blockNumber"))
    await settle()
    assert buyer.purse.waiting == 1
    calling.cancel()
    await asyncio.wait([calling])
    assert buyer.purse.waiting == 0
    assert account.turn_s(10.0, KNOWN, market.clock.at) == 1.0
    assert (account.spent(WALL), node.hits["eth_blockNumber"]) == (0, 0)


async def test_a_node_that_would_be_waited_for_comes_after_one_that_need_not_be(market: Market) -> None:
    nodes = [await market.node(), await market.node()]
    account = Account(units_per_second=516.0)
    buyers = [market.buyer(nodes[0], account), market.buyer(nodes[1], name="b")]
    upstream = market.chain(*buyers)
    await buyers[0].verify_chain()
    served = [(await upstream.fetch(MILLION, handed)).upstream for _ in range(3)]
    assert served == ["a", "b", "b"]
    market.clock.at += 10
    await nodes[1].stop()
    account.queue(1032.0, market.clock.at)
    assert (await upstream.fetch(MILLION, handed)).upstream == "a", "waited for where nobody else has it"


async def test_a_batch_is_no_larger_than_what_may_be_used_within_a_second(market: Market) -> None:
    node = await market.node("mainnet_17034869", unsupported={RECEIPTS})
    buyer = market.buyer(node, Account(units_per_second=500.0))
    await market.chain(buyer).fetch(BUSY, handed)
    assert max(node.batch_sizes) == 33
    assert sum(node.batch_sizes) == 92
    assert sum(market.clock.pauses) == pytest.approx((16 + 500 + 93 * 15 - 500) / 500, abs=0.01)


# --- one account, one limit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("retry_after", ["30", "Tue, 14 Nov 2023 22:13:50 GMT"], ids=["seconds", "date"])
async def test_B30_a_limit_of_the_account_is_respected_by_every_chain_that_is_paid_from_it(
    market: Market, retry_after: str
) -> None:
    nodes = [await market.node(), await market.node(), await market.node()]
    shared = Account()
    one, other = (market.chain(market.buyer(node, shared)) for node in nodes[:2])
    stranger = market.chain(market.buyer(nodes[2]))
    await other.fetch(MILLION, handed)
    nodes[1].reset_counts()
    nodes[0].always("*", http(429, retry_after=retry_after))
    for _ in range(5):
        with pytest.raises(RpcUnavailable) as caught:
            await one.fetch(MILLION, handed)
    assert nodes[0].posts == 1
    assert caught.value.retry_after_s == 30
    assert other.states()[0]["state"] == "limited"
    with pytest.raises(RpcUnavailable):
        await other.fetch(MILLION, handed)
    assert nodes[1].posts == 0
    await stranger.fetch(MILLION, handed)
    market.clock.at += 30
    nodes[0].always("*", None)
    await other.fetch(MILLION, handed)
    await one.fetch(MILLION, handed)


KEY = "v3ryL0ngAndS3cretKey"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (f"https://eth-mainnet.example.com/v2/{KEY}", f"https://opt-mainnet.example.com/v2/{KEY}", True),
        (f"https://rpc.example.com/eth/{KEY}", f"https://rpc.example.com/polygon/{KEY}", True),
        (f"https://lb.example.com/?network=eth&dkey={KEY}", f"https://lb.example.com/?network=op&dkey={KEY}", True),
        (f"https://me:{KEY}@a.example.com/", f"https://me:{KEY}@b.example.com/", True),
        (f"https://eth.example.com/v2/{KEY}", f"https://eth.example.org/v2/{KEY}", False),
        (f"https://eth.example.com/v2/{KEY}", f"https://eth.example.com/v2/{KEY}x", False),
        ("https://eth.example.com/archive-mainnet-full", "https://op.example.com/archive-mainnet-full", False),
        ("http://127.0.0.1:8545/", "http://127.0.0.1:8546/", False),
        (f"http://10.0.0.1/{KEY}", f"http://10.1.0.1/{KEY}", False),
        ("http://node.internal:8545/", "http://node.internal:8545/", True),
    ],
)
def test_an_account_is_told_by_its_key_and_site(one: str, other: str, same: bool) -> None:
    accounts = Accounts()
    assert (accounts.of(one, {}) is accounts.of(other, {})) == same


def test_a_key_in_a_header_tells_an_account_too() -> None:
    accounts = Accounts()
    one = accounts.of("https://eth.example.com/", {"Authorization": f"Bearer {KEY}"}, units_per_day=100)
    assert accounts.of("https://op.example.com/", {"X-Api-Key": KEY}, units_per_day=50) is one
    assert accounts.of("https://op.example.com/", {}) is not one
    assert one.units_per_day == 50


def test_the_purse_of_a_real_price_list_says_how_many_receipts_fit_into_a_second() -> None:
    purse = Purse(prices_of("alchemy"), Account(units_per_second=330.0))
    assert (purse.most_at_once(EACH), purse.most_at_once(RECEIPTS), purse.most_at_once(CHAIN)) == (16, 1, None)
