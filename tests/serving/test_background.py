"""Background work that dies is seen from outside, comes back, and never takes the house with it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from app.anchors.self_attested import SelfAttested
from app.chain.supervision import Loop, supervise
from app.core.blocks import BlockRef
from app.house import House
from app.metrics import Metrics
from tests.api.fakes import open_door
from tests.api.serving import serving
from tests.chain.recorded_chain import BUSY, CorpusBuilder, RecordedChain
from tests.fakes import ManualClock, settle


class ScriptedAnchors(SelfAttested):
    """Anchors whose making raises while `broken`."""

    broken = False

    async def advance(self, finalized: int, root_at: Callable[[int], Awaitable[bytes]]) -> None:
        if self.broken:
            raise RuntimeError
        await super().advance(finalized, root_at)


@asynccontextmanager
async def living(made: RecordedChain) -> AsyncIterator[RecordedChain]:
    """The background work of a chain, running."""
    task = asyncio.create_task(made.chain.run())
    await settle()
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.chain.aclose()


def up(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value("copath_task_up", {"name": name})


def deaths(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("copath_unhandled_exceptions_total", {"source": "task"})


async def test_B54_a_dead_head_poller_is_seen_and_comes_back() -> None:
    async with living(RecordedChain(BUSY - 1, BUSY)) as made:
        chain, name = made.chain, "head:sepolia"
        assert (up(made.metrics, name), chain.servable, chain.reasons) == (1, True, ())
        made.upstream.fail("tagged", RuntimeError(), times=None)
        await made.clock.advance(2)
        assert (up(made.metrics, name), deaths(made.metrics)) == (0, 1)
        assert chain.reasons == ("background loop head:sepolia is down",)
        assert chain.servable, "what it knows is not stale yet"
        for _ in range(8):  # it is started again, and dies again
            await made.clock.advance(30)
        assert deaths(made.metrics) > 3
        assert not chain.servable, "what it knows is stale, and nothing is at hand"
        assert chain.reasons == ("head is stale", "background loop head:sepolia is down")
        made.upstream.heal()
        await made.clock.advance(30)
        assert (up(made.metrics, name), chain.servable, chain.reasons) == (1, True, ())


async def test_B54_a_dead_maker_of_anchors_is_seen_and_comes_back() -> None:
    anchors = ScriptedAnchors(7, BUSY - 2, 2, 10)
    made = RecordedChain(BUSY - 2, BUSY, anchors=anchors)
    anchors.broken = True
    await made.see(finalized=BUSY)
    async with living(made):
        chain, name = made.chain, "anchors:sepolia"
        assert (up(made.metrics, name), up(made.metrics, "head:sepolia"), deaths(made.metrics)) == (0, 1, 1)
        assert chain.reasons == ("background loop anchors:sepolia is down",)
        assert chain.servable
        assert (await chain.block(BlockRef(height=BUSY))).block.height == BUSY
        anchors.broken = False
        await made.clock.advance(0.6)
        await chain.anchored.wait()
        assert (up(made.metrics, name), chain.reasons, chain.attested_height) == (1, (), BUSY)


async def test_B54_a_dead_heartbeat_is_seen_and_comes_back() -> None:
    clock = ManualClock().drive()
    metrics = Metrics(CollectorRegistry())
    house = House([], CorpusBuilder(), metrics, open_door(), clock)
    heart = Loop("heartbeat")
    lag, metrics.event_loop_lag_seconds = metrics.event_loop_lag_seconds, None  # type: ignore[assignment]
    beating = asyncio.create_task(supervise(heart, house.beat, metrics))
    await clock.advance(0.25)
    assert (up(metrics, "heartbeat"), deaths(metrics)) == (0, 1)
    metrics.event_loop_lag_seconds = lag
    await clock.advance(0.5)
    await clock.advance(0.25)
    assert (up(metrics, "heartbeat"), house.heartbeat_age_s) == (1, 0)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


@pytest.fixture
def broken_log() -> Iterator[None]:
    """A log that cannot be written."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the log is full")

    handler = Broken()
    logging.getLogger("app").addHandler(handler)
    yield
    logging.getLogger("app").removeHandler(handler)


@pytest.mark.usefixtures("broken_log")
async def test_B54_a_log_that_cannot_be_written_does_not_end_the_restarts() -> None:
    starts = 0

    async def body() -> None:
        nonlocal starts
        starts += 1
        raise RuntimeError

    clock, metrics, loop = ManualClock().drive(), Metrics(CollectorRegistry()), Loop("x")
    task = asyncio.create_task(supervise(loop, body, metrics))
    await settle()
    assert (starts, loop.deaths, deaths(metrics)) == (1, 1, 1)
    await clock.advance(0.5)
    assert (starts, loop.deaths, deaths(metrics)) == (2, 2, 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_B54_a_cancellation_that_nobody_asked_for_is_a_death() -> None:
    clock, metrics, loop = ManualClock().drive(), Metrics(CollectorRegistry()), Loop("x")
    awaited: list[asyncio.Future[None]] = []

    async def body() -> None:
        awaited.append(asyncio.get_running_loop().create_future())
        await awaited[-1]

    task = asyncio.create_task(supervise(loop, body, metrics))
    await settle()
    awaited[0].cancel()  # something that it shares with others
    await settle()
    assert (task.done(), loop.up, deaths(metrics)) == (False, False, 1)
    await clock.advance(0.5)
    assert (len(awaited), loop.up) == (2, True)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_B54_collecting_garbage_during_a_fill_loses_nothing() -> None:
    made = RecordedChain(BUSY, BUSY)
    await made.see(finalized=BUSY)
    hold = made.upstream.hold("fetch")
    asking = asyncio.create_task(made.at(BUSY))
    await hold.reached()
    for _ in range(5):
        gc.collect()
        await settle()
    hold.release()
    assert (await asking).height == BUSY


async def test_B59_liveness_fails_only_past_five_seconds_of_a_stuck_loop() -> None:
    clock = ManualClock().drive()
    metrics = Metrics(CollectorRegistry())
    house = House([], CorpusBuilder(), metrics, open_door(), clock)
    house.started = True
    beating = asyncio.create_task(house.beat())
    await settle()
    async with serving(house) as client:
        for stuck_s, status in ((2.0, 200), (4.9, 200), (5.1, 503)):
            clock.move(stuck_s)  # nothing runs meanwhile, the heartbeat neither
            assert house.heartbeat_age_s == pytest.approx(stuck_s)
            answer = client.get("/livez")
            # The probe is served first when the loop turns again: what it sees is the worst of it.
            assert (await answer).status_code == status
            await clock.advance(0)
            assert house.loop_lag_s == pytest.approx(stuck_s - 0.25)
            ready = (await client.get("/readyz")).json()["reasons"]
            assert "event loop lags" in ready
            await clock.advance(0.25)
            assert (await client.get("/livez")).status_code == 200
    samples = {
        sample.labels["le"]: sample.value
        for metric in metrics.event_loop_lag_seconds.collect()
        for sample in metric.samples
        if sample.name.endswith("_bucket")
    }
    assert samples["+Inf"] - samples["1.0"] == 3
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
