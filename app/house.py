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

from app import __version__
from app.anchors.node import CreditcoinNodes
from app.chain.building import open_builder
from app.chain.chain import Chain
from app.chain.ports import Builder, Clock, Upstream
from app.chain.supervision import Loop, supervise
from app.consumers import ConsumerParts, open_consumers
from app.core.admission import Door
from app.core.saturation import Gate, SaturationWindow
from app.log import configure_logging, install_fault_hooks, loop_fault_handler
from app.metrics import NO_CHAIN, Metrics
from app.settings import LoadedSettings, Settings, changed, redacted, secrets_of
from app.stores import Stores, StoresRefused, open_stores
from app.upstream.demo import demo_chains, demo_examples
from app.upstream.purse import Accounts
from app.upstream.settling import Settling
from app.wiring import CannotStart, MonotonicClock, build_chain, build_upstream, heights_kept, min_useful_s

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


def prepare_logging(loaded: LoadedSettings, request_id: ContextVar[str | None]) -> None:
    """Routes every log line, then says what was configured: what differs from the defaults, without secrets.

    Lines that are written while `request_id` is set carry it. From now on a fault that nobody catches is a line too."""
    settings = loaded.settings
    configure_logging(
        settings.logging.level, settings.logging.format, secrets=secrets_of(settings), request_id=request_id
    )
    install_fault_hooks(lambda source: None)  # nothing counts yet
    for warning in loaded.warnings:
        log.warning("configuration_warning", extra={"detail": warning})
    log.info("config_resolved", extra={"changed": changed(settings)})
    log.debug("config_in_full", extra={"settings": redacted(settings)})


def watch_loop(house: House) -> None:
    """Faults that nobody caught, in this loop, other threads and finalizers: counted, then logged."""

    def count(source: str) -> None:
        house.metrics.unhandled_exceptions_total.labels(source).inc()

    install_fault_hooks(count)
    asyncio.get_running_loop().set_exception_handler(loop_fault_handler(count))


class House:
    """Everything that lives while the server runs. The doors read it; only whoever opened it tells it to end."""

    def __init__(
        self,
        chains: Sequence[Chain],
        builder: Builder,
        metrics: Metrics,
        door: Door,
        clock: Clock,
        consumers: ConsumerParts | None = None,
    ) -> None:
        self.chains: Mapping[int, Chain] = {chain.key: chain for chain in sorted(chains, key=lambda chain: chain.key)}
        self.by_name: Mapping[str, Chain] = {chain.name: chain for chain in self.chains.values()}
        self.metrics = metrics
        self.started = False
        self.draining = False
        self.closing = False
        self.started_at = time.time()
        self.loop_lag_s = 0.0
        self.door = door
        consumers = consumers or ConsumerParts()
        self.keys = consumers.keys
        self.rates = consumers.rates
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
async def open_house(settings: Settings, *, anchoring: bool = True) -> AsyncIterator[House]:
    """A running house: everything is started inside and has ended when the block is left, whichever way. Without `anchoring`
    no anchors are made or looked for."""
    metrics = Metrics(
        version=__version__,
        git_sha=os.environ.get("COPATH_GIT_SHA", "unknown"),
        compat_names=settings.metrics.compat_names,
        queue_wait_limit_s=settings.admission.request_timeout_secs - min_useful_s(settings),
    )
    metrics.start_time_seconds.set_to_current_time()
    async with AsyncExitStack() as parts:
        builder = await _started_builder(settings, metrics, parts)
        stores = await _opened_stores(settings, metrics, parts)
        accounts, nodes = Accounts(), CreditcoinNodes()
        parts.push_async_callback(nodes.aclose)
        chains = []
        for chosen in settings.chains:
            upstream = build_upstream(chosen, chosen.upstream_list, accounts, metrics, parts)
            chain = await build_chain(chosen, settings, upstream, builder, stores, metrics, nodes, anchoring=anchoring)
            parts.push_async_callback(chain.aclose)
            chains.append(chain)
        await asyncio.gather(*(chain.restore() for chain in chains))
        consumers = await parts.enter_async_context(
            open_consumers(settings, stores.database, metrics, MonotonicClock().now)
        )
        house = House(chains, builder, metrics, _build_door(settings, chains), MonotonicClock(), consumers)
        async with asyncio.TaskGroup() as group:
            settling = Settling(accounts, stores.spendings)
            loops = [(Loop("stores"), stores.run), (Loop("heartbeat"), house.beat), (Loop("settling"), settling.run)]
            loops += [(Loop(name), body) for name, body in consumers.loops]
            for loop, _ in loops:
                metrics.register_task(loop.name)
            writing, *tasks = (
                group.create_task(supervise(loop, body, metrics), name=loop.name) for loop, body in loops
            )
            tasks += [group.create_task(chain.run(), name=f"chain:{chain.name}") for chain in chains]
            house.started = True
            try:
                yield house
            finally:
                house.started = False
                for task in tasks:
                    task.cancel()
                try:
                    await asyncio.wait(tasks)
                    # What they filled last is still written.
                    await asyncio.gather(*(chain.aclose() for chain in chains))
                finally:
                    writing.cancel()


@asynccontextmanager
async def open_upstreams(settings: Settings) -> AsyncIterator[tuple[Builder, dict[tuple[str, str], Upstream]]]:
    """Every upstream alone, by the names of its chain and its own, and who builds blocks: nothing is asked by itself."""
    metrics, accounts = Metrics(), Accounts()
    async with AsyncExitStack() as parts:
        builder = await _started_builder(settings, metrics, parts)
        alone = {
            (chain.name, node.name): build_upstream(chain, (node,), accounts, metrics, parts)
            for chain in settings.chains
            for node in chain.upstream_list
        }
        yield builder, alone


def _build_door(settings: Settings, chains: Sequence[Chain]) -> Door:
    places, patience = settings.admission, settings.saturation

    def gate(limit: int | None) -> Gate:
        return Gate(limit, SaturationWindow(patience.threshold_secs, patience.expiry_secs))

    by_key = {chain.key: chain.load.door for chain in chains}
    return Door(gate(places.max_in_flight_requests), by_key, gate(places.max_warm_in_flight))


async def _started_builder(settings: Settings, metrics: Metrics, parts: AsyncExitStack) -> Builder:
    opening = open_builder(settings.build.processes, metrics.builder_pool_breaks_total.inc)
    try:
        return await parts.enter_async_context(opening)
    except Exception as error:  # whatever keeps a process from being started is not ours to list
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise CannotStart(f"build.processes: the processes that build blocks cannot be started: {reason}") from error


async def _opened_stores(settings: Settings, metrics: Metrics, parts: AsyncExitStack) -> Stores:
    try:
        return await parts.enter_async_context(open_stores(settings, metrics))
    except StoresRefused as refused:
        raise CannotStart(str(refused), misconfigured=refused.misconfigured) from refused
