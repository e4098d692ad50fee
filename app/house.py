"""The composition root: builds every part from settings, and owns how long each of them lives."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from app import __version__
from app.anchors.self_attested import SelfAttested
from app.chain.building import open_builder
from app.chain.chain import Chain
from app.chain.figures import Figures
from app.chain.head import FinalityRule
from app.chain.ports import Anchors, Builder, Clock, Ledger, Upstream
from app.chain.rules import ChainRules
from app.chain.supervision import Loop, supervise
from app.core.admission import Door
from app.core.routing import RoutingRules
from app.core.saturation import Gate, SaturationWindow
from app.core.spending import prices_of
from app.log import configure_logging, install_fault_hooks, loop_fault_handler
from app.metrics import NO_CHAIN, Metrics
from app.settings import (
    AnchorSettings,
    ChainSettings,
    LoadedSettings,
    Settings,
    UpstreamSettings,
    redacted,
    secrets_of,
)
from app.store.memory import MemoryLedger
from app.upstream.counting import Counting
from app.upstream.demo import demo_chains, demo_examples, demo_heights, demo_transport
from app.upstream.evm import EvmNode
from app.upstream.failover import Failover
from app.upstream.figures import UpstreamFigures
from app.upstream.posting import NodeLimits
from app.upstream.purse import Accounts, Purse

__all__ = [
    "Builder",
    "CannotStart",
    "House",
    "Upstream",
    "demo_chains",
    "demo_examples",
    "heights_kept",
    "open_house",
    "open_upstreams",
    "prepare_logging",
    "watch_loop",
]

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.25
_MIN_USEFUL_S = 0.5
_MIN_USEFUL_SHARE = 0.15


class CannotStart(Exception):
    """Why nothing is served: one clear line, without a secret and without the places of secret files."""


def prepare_logging(loaded: LoadedSettings, request_id: ContextVar[str | None]) -> None:
    """Routes every log line, then says what was configured: without secrets, and with what it does not do yet.

    Lines that are written while `request_id` is set carry it. From now on a fault that nobody catches is a line too."""
    settings = loaded.settings
    configure_logging(
        settings.logging.level, settings.logging.format, secrets=secrets_of(settings), request_id=request_id
    )
    install_fault_hooks(lambda source: None)  # nothing counts yet
    for warning in loaded.warnings:
        log.warning("configuration", extra={"detail": warning})
    for knob in loaded.not_in_force:
        log.warning("not yet in force", extra={"setting": knob})
    log.info("config_resolved", extra={"settings": redacted(settings)})


def watch_loop(house: House) -> None:
    """Faults that nobody caught, in this loop, other threads and finalizers: counted, then logged."""

    def count(source: str) -> None:
        house.metrics.unhandled_exceptions_total.labels(source).inc()

    install_fault_hooks(count)
    asyncio.get_running_loop().set_exception_handler(loop_fault_handler(count))


class MonotonicClock:
    """The clock of a running house."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()


class House:
    """Everything that lives while the server runs. The doors read it; only whoever opened it tells it to end."""

    def __init__(self, chains: Sequence[Chain], builder: Builder, metrics: Metrics, door: Door, clock: Clock) -> None:
        self.chains: Mapping[int, Chain] = {chain.key: chain for chain in sorted(chains, key=lambda chain: chain.key)}
        self.by_name: Mapping[str, Chain] = {chain.name: chain for chain in self.chains.values()}
        self.metrics = metrics
        self.started = False
        self.draining = False
        self.closing = False
        self.started_at = time.time()
        self.loop_lag_s = 0.0
        self.door = door
        self._builder = builder
        self._clock = clock
        self._beat_at = clock.now()
        metrics.before_scrape(self._publish_door)

    @property
    def builder_healthy(self) -> bool:
        """False once the block builders died too often to be trusted with another restart."""
        return self._builder.healthy

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the event loop last turned for us."""
        return self.now() - self._beat_at

    @property
    def saturated(self) -> bool:
        """Whether this process has only refused for some time: at its own door, or at those of all its chains. Who still
        serves known answers is worth being asked."""
        now = self.now()
        if self.door.serves_known_answers(now):
            return False
        chains = self.chains.values()
        return self.door.process.window.saturated(now) or (bool(chains) and all(chain.saturated for chain in chains))

    def now(self) -> float:
        """Monotonic seconds, on the clock of the deadlines."""
        return self._clock.now()

    def begin_draining(self) -> None:
        """The shutdown signal came: probes say no from now on, proofs are still served."""
        self.draining = True
        self.metrics.draining.set(1)

    def close_doors(self) -> None:
        """The lame duck is over: nothing new is served, what is in flight may end."""
        self.closing = True

    def _publish_door(self) -> None:
        metrics, door, now = self.metrics, self.door, self.now()
        for scope, gate in (("global", door.process), ("warm", door.warm)):
            metrics.admission_in_flight.labels(scope, NO_CHAIN).set(gate.taken)
            metrics.admission_limit.labels(scope, NO_CHAIN).set(math.inf if gate.limit is None else gate.limit)
        metrics.saturated.labels("http").set(door.process.window.saturated(now))
        metrics.saturation_open_seconds.labels("http").set(door.process.window.open_s(now))

    async def beat(self) -> None:
        """Measures how late the event loop wakes up, until cancelled."""
        while True:
            due = self.now() + HEARTBEAT_S
            await asyncio.sleep(HEARTBEAT_S)
            self._beat_at = self.now()
            self.loop_lag_s = max(0.0, self._beat_at - due)
            self.metrics.event_loop_lag_seconds.observe(self.loop_lag_s)


@asynccontextmanager
async def open_house(settings: Settings) -> AsyncIterator[House]:
    """A running house: everything is started inside and has ended when the block is left, whichever way."""
    metrics = Metrics(
        version=__version__,
        git_sha=os.environ.get("COPATH_GIT_SHA", "unknown"),
        compat_names=settings.metrics.compat_names,
        queue_wait_limit_s=settings.admission.request_timeout_secs - _min_useful_s(settings),
    )
    metrics.start_time_seconds.set_to_current_time()
    async with AsyncExitStack() as parts:
        builder = await _started_builder(settings, metrics, parts)
        accounts = Accounts()
        chains = []
        for chain_settings in settings.chains:
            upstream = _build_upstream(chain_settings, chain_settings.upstream_list, accounts, metrics, parts)
            chain = _build_chain(chain_settings, settings, upstream, builder, metrics)
            parts.push_async_callback(chain.aclose)
            chains.append(chain)
        house = House(chains, builder, metrics, _build_door(settings, chains), MonotonicClock())
        async with asyncio.TaskGroup() as group:
            heart = Loop("heartbeat")
            tasks = [group.create_task(supervise(heart, house.beat, metrics), name=heart.name)]
            tasks += [group.create_task(chain.run(), name=f"chain:{chain.name}") for chain in chains]
            house.started = True
            try:
                yield house
            finally:
                house.started = False
                for task in tasks:
                    task.cancel()


@asynccontextmanager
async def open_upstreams(settings: Settings) -> AsyncIterator[tuple[Builder, dict[tuple[str, str], Upstream]]]:
    """Every upstream alone, by the names of its chain and its own, and who builds blocks: nothing is asked by itself."""
    metrics, accounts = Metrics(), Accounts()
    async with AsyncExitStack() as parts:
        builder = await _started_builder(settings, metrics, parts)
        alone = {
            (chain.name, node.name): _build_upstream(chain, (node,), accounts, metrics, parts)
            for chain in settings.chains
            for node in chain.upstream_list
        }
        yield builder, alone


def heights_kept(node: UpstreamSettings) -> tuple[int, ...] | None:
    """The heights that a chain shipped with the program has, lowest first; None for a real node."""
    url = str(node.url)
    return demo_heights(url.removeprefix("demo:").strip("/")) if url.startswith("demo:") else None


def _build_door(settings: Settings, chains: Sequence[Chain]) -> Door:
    places, patience = settings.admission, settings.saturation

    def gate(limit: int | None) -> Gate:
        return Gate(limit, SaturationWindow(patience.threshold_secs, patience.expiry_secs))

    by_key = {chain.key: chain.load.door for chain in chains}
    return Door(gate(places.max_in_flight_requests), by_key, gate(places.max_warm_in_flight))


def _min_useful_s(settings: Settings) -> float:
    """With less than this left of its deadline a request is refused rather than begun: building and sending take some time."""
    return min(_MIN_USEFUL_S, _MIN_USEFUL_SHARE * settings.admission.request_timeout_secs)


async def _started_builder(settings: Settings, metrics: Metrics, parts: AsyncExitStack) -> Builder:
    opening = open_builder(settings.build.processes, metrics.builder_pool_breaks_total.inc)
    try:
        return await parts.enter_async_context(opening)
    except Exception as error:  # whatever keeps a process from being started is not ours to list
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise CannotStart(f"build.processes: the processes that build blocks cannot be started: {reason}") from error


def _build_chain(
    chosen: ChainSettings, settings: Settings, upstream: Upstream, builder: Builder, metrics: Metrics
) -> Chain:
    rules = ChainRules(
        key=chosen.chain_key,
        name=chosen.name,
        chain_id=chosen.chain_id,
        family=chosen.family,
        anchor_source=chosen.anchors.source,
        finality=FinalityRule(chosen.finality.mode, chosen.finality.depth),
        max_in_flight=settings.admission.max_in_flight_per_chain,
        max_fills=chosen.cache.max_concurrent_block_fills,
        max_queued_fills=chosen.cache.max_queued_fills,
        cache_bytes=chosen.cache.merkle_max_bytes,
        backfill=chosen.cache.merkle_backfill_enabled,
        retention_blocks=chosen.cache.merkle_retention_blocks,
        anchor_interval=chosen.anchors.interval,
        fill_deadline_s=settings.admission.request_timeout_secs,
        min_useful_s=_min_useful_s(settings),
        saturation_threshold_s=settings.saturation.threshold_secs,
        saturation_expiry_s=settings.saturation.expiry_secs,
    )
    anchors = _build_anchors(chosen.chain_key, chosen.anchors)
    chain = Chain(rules, upstream, builder, anchors, metrics, MonotonicClock(), ledger=MemoryLedger())
    for loop in chain.loops:
        metrics.register_task(loop.name)
    metrics.before_scrape(Figures(chain, metrics).publish)
    return chain


def _build_upstream(
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
        raise CannotStart(f"chain {chain.name}: {error}") from None
    limits = NodeLimits(attempt_timeout_s=chain.routing.attempt_timeout_secs)
    if chosen.max_concurrent is not None:
        limits = replace(limits, max_connections=chosen.max_concurrent)
    account = accounts.of(url, chosen.headers, chosen.units_per_second, chosen.units_per_day)
    return EvmNode(
        chosen.name,
        url,
        ws_url=chosen.ws_url,
        chain_id=chain.chain_id,
        derives_from=chosen.derives_from,
        headers=chosen.headers,
        limits=limits,
        transport=transport,
        observer=Counting(metrics, chain.name, chosen.name),
        purse=Purse(prices_of(chosen.price), account),
    )


def _build_anchors(chain_key: int, chosen: AnchorSettings) -> Anchors | None:
    if chosen.source == "self":
        return SelfAttested(chain_key, chosen.genesis, chosen.interval, chosen.checkpoint_every)
    return None


if TYPE_CHECKING:
    _fits: type[Upstream] = Failover
    _anchors_fit: type[Anchors] = SelfAttested
    _ledger_fits: type[Ledger] = MemoryLedger
