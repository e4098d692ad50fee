"""Each part of a chain from its settings: nodes, anchors, what is kept of it, the chain itself. Nothing runs yet."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from app.anchors.creditcoin import Creditcoin
from app.anchors.figures import AnchorFigures
from app.anchors.node import CreditcoinNodes
from app.anchors.self_attested import SelfAttested
from app.anchors.static import AnchorsRefused, Static
from app.chain.chain import Chain
from app.chain.figures import Figures
from app.chain.ports import Anchors, BlockStore, Builder, Clock, Ledger, Upstream
from app.chain.rules import ChainRules, FinalityRule
from app.core.lasting import AnchorContradiction
from app.core.routing import RoutingRules
from app.core.spending import prices_of
from app.metrics import Metrics
from app.settings import ChainSettings, Settings, UpstreamSettings
from app.store.blocks import ChainBlocks
from app.store.ledger import SqlLedger
from app.store.memory import MemoryLedger
from app.store.spendings import SqlSpendings
from app.stores import Stores
from app.upstream.counting import Counting
from app.upstream.demo import demo_heights, demo_transport
from app.upstream.evm import EvmNode
from app.upstream.failover import Failover
from app.upstream.figures import UpstreamFigures
from app.upstream.posting import NodeLimits
from app.upstream.purse import Accounts, Purse
from app.upstream.settling import Treasury

_MIN_USEFUL_S = 0.5
_MIN_USEFUL_SHARE = 0.15


class CannotStart(Exception):
    """Why nothing is served: one clear line, without a secret and without the places of secret files."""

    def __init__(self, line: str, *, misconfigured: bool = False) -> None:
        """`misconfigured`: it is the configuration that has to change, and not what it names."""
        super().__init__(line)
        self.misconfigured = misconfigured


class MonotonicClock:
    """The clock of a running house."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()


def heights_kept(node: UpstreamSettings) -> tuple[int, ...] | None:
    """The heights that a chain shipped with the program has, lowest first; None for a real node."""
    url = str(node.url)
    return demo_heights(url.removeprefix("demo:").strip("/")) if url.startswith("demo:") else None


def min_useful_s(settings: Settings) -> float:
    """With less than this left of its deadline a request is refused rather than begun: building and sending take some time."""
    return min(_MIN_USEFUL_S, _MIN_USEFUL_SHARE * settings.admission.request_timeout_secs)


async def build_chain(
    chosen: ChainSettings,
    settings: Settings,
    upstream: Upstream,
    builder: Builder,
    stores: Stores,
    metrics: Metrics,
    nodes: CreditcoinNodes,
    *,
    anchoring: bool,
) -> Chain:
    """The chain, with its anchors and with what was kept of both. Raises `CannotStart`."""
    rules = ChainRules(
        key=chosen.chain_key,
        name=chosen.name,
        chain_id=chosen.chain_id,
        family=chosen.family,
        nodes=_stand_for(chosen.upstream_list),
        anchor_source=chosen.anchors.source,
        finality=FinalityRule(chosen.finality.mode, chosen.finality.depth),
        max_in_flight=settings.admission.max_in_flight_per_chain,
        max_fills=chosen.cache.max_concurrent_block_fills,
        max_queued_fills=chosen.cache.max_queued_fills,
        cache_bytes=chosen.cache.merkle_max_bytes,
        backfill=chosen.cache.merkle_backfill_enabled,
        retention_blocks=chosen.cache.merkle_retention_blocks,
        anchor_interval=chosen.anchors.interval,
        max_anchor_span=max(
            10_000, settings.max_batch_span + 2 * chosen.anchors.interval * chosen.anchors.checkpoint_every
        ),
        anchoring=anchoring,
        fill_deadline_s=settings.admission.request_timeout_secs,
        min_useful_s=min_useful_s(settings),
        saturation_threshold_s=settings.saturation.threshold_secs,
        saturation_expiry_s=settings.saturation.expiry_secs,
    )
    anchors = await _build_anchors(chosen, upstream, stores, metrics, nodes)
    chain = Chain(
        rules,
        upstream,
        builder,
        anchors,
        metrics,
        MonotonicClock(),
        ledger=stores.ledger_of(chosen.chain_key),
        store=stores.blocks_of(chosen.chain_key, chosen.name),
        leases=stores.leases,
        store_is_shared=stores.blocks_are_shared,
    )
    for loop in chain.loops:
        metrics.register_task(loop.name)
    metrics.before_scrape(Figures(chain, metrics).publish)
    return chain


def _stand_for(nodes: Sequence[UpstreamSettings]) -> str:
    """The same in every process that has these nodes under these names, and no way back to their addresses."""
    words = ["copath nodes", *(f"{node.name} {node.url}" for node in nodes)]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]


def build_upstream(
    chosen: ChainSettings,
    nodes: Sequence[UpstreamSettings],
    accounts: Accounts,
    metrics: Metrics,
    parts: AsyncExitStack,
) -> Upstream:
    metrics.register_chain(chosen.name, chosen.chain_key, [each.name for each in nodes])
    routing = chosen.routing
    rules = RoutingRules(
        freshness_blocks=routing.frontier_freshness_blocks,
        grace_s=routing.primary_grace_secs,
        primary_retry_cap_s=routing.primary_retry_cap_secs,
        hedge=routing.hedge == "on",
    )
    upstream = Failover([_build_node(each, chosen, accounts, metrics) for each in nodes], rules=rules)
    parts.push_async_callback(upstream.aclose)
    metrics.before_scrape(UpstreamFigures(chosen.name, upstream, metrics).publish)
    return upstream


def _build_node(chosen: UpstreamSettings, chain: ChainSettings, accounts: Accounts, metrics: Metrics) -> EvmNode:
    url = str(chosen.url)
    try:
        transport = demo_transport(url) if url.startswith("demo:") else None
    except ValueError as error:
        raise CannotStart(f"chain {chain.name}: {error}", misconfigured=True) from None
    limits = NodeLimits(attempt_timeout_s=chain.routing.attempt_timeout_secs)
    if chosen.max_concurrent is not None:
        limits = replace(limits, max_connections=chosen.max_concurrent)
    account = accounts.of(url, chosen.headers, chosen.units_per_second, chosen.units_per_day)
    try:
        return EvmNode(
            chosen.name,
            url,
            ws_url=chosen.ws_url,
            chain_id=chain.chain_id,
            family=chain.family,
            derives_from=chosen.derives_from,
            priority=chosen.priority,
            headers=chosen.headers,
            limits=limits,
            transport=transport,
            observer=Counting(metrics, chain.name, chosen.name),
            purse=Purse(prices_of(chosen.price), account),
            chain=chain.name,
        )
    except ValueError as error:
        raise CannotStart(f"chain {chain.name}: upstream {chosen.name}: {error}", misconfigured=True) from None


async def _build_anchors(
    chain: ChainSettings, upstream: Upstream, stores: Stores, metrics: Metrics, nodes: CreditcoinNodes
) -> Anchors | None:
    key, chosen = chain.chain_key, chain.anchors
    rows = stores.anchor_rows_of(key, chosen.source)
    try:
        match chosen.source:
            case "self":
                return await SelfAttested.opened(key, chosen.genesis, chosen.interval, chosen.checkpoint_every, rows)
            case "static" if chosen.path is not None:
                return await Static.of_file(key, chosen.path, chosen.genesis)
            case "static":
                return await Static.of_rows(key, rows, chosen.genesis)
            case "creditcoin":
                node = nodes.of(str(chosen.url))
                anchors = Creditcoin(key, node, lambda: chain.chain_id or upstream.known_chain_id)
                metrics.before_scrape(AnchorFigures(chain.name, anchors, metrics).publish)
                return anchors
    except (AnchorContradiction, AnchorsRefused) as refused:
        raise CannotStart(f"chain {chain.name}: anchors: {refused}", misconfigured=True) from refused
    return None


if TYPE_CHECKING:
    _fits: type[Upstream] = Failover
    _anchors_fit: tuple[type[Anchors], type[Anchors], type[Anchors]] = (Creditcoin, SelfAttested, Static)
    _ledgers_fit: tuple[type[Ledger], type[Ledger]] = (MemoryLedger, SqlLedger)
    _blocks_fit: type[BlockStore] = ChainBlocks
    _clock_fits: type[Clock] = MonotonicClock
    _treasury_fits: type[Treasury] = SqlSpendings
