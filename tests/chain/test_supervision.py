"""Background loops that die are seen, counted and started again; only cancellation ends them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from app.chain.supervision import Loop, supervise
from app.core.lasting import StoreUnavailable
from app.metrics import Metrics
from tests.fakes import ManualClock, settle


class Supervised:
    """A loop that does what a test says, under supervision; its pauses are let go one by one."""

    def __init__(self) -> None:
        self.clock = ManualClock().drive()
        self.metrics = Metrics(CollectorRegistry())
        self.loop = Loop("head:sepolia")
        self.metrics.register_task(self.loop.name)
        self.starts = 0
        self.pauses: list[float] = []
        self.fate: asyncio.Future[None] | None = None
        self._gate = asyncio.Semaphore(0)

    async def body(self) -> None:
        self.starts += 1
        self.fate = asyncio.get_running_loop().create_future()
        await self.fate

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self._gate.acquire()

    async def die(self, error: BaseException | None = None) -> None:
        """The loop raises, or returns where there is no error."""
        assert self.fate is not None
        if error is None:
            self.fate.set_result(None)
        else:
            self.fate.set_exception(error)
        await settle()

    async def restart(self) -> None:
        self._gate.release()
        await settle()

    def up(self) -> tuple[bool, float | None]:
        return self.loop.up, self.metrics.registry.get_sample_value("copath_task_up", {"name": self.loop.name})

    def faults(self) -> float | None:
        return self.metrics.registry.get_sample_value("copath_unhandled_exceptions_total", {"source": "task"})


@contextlib.asynccontextmanager
async def supervised() -> AsyncIterator[Supervised]:
    scene = Supervised()
    task = asyncio.create_task(supervise(scene.loop, scene.body, scene.metrics, scene.pause))
    await settle()
    try:
        yield scene
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_running_loop_is_up() -> None:
    async with supervised() as scene:
        assert scene.up() == (True, 1)
        assert (scene.starts, scene.loop.deaths, scene.pauses) == (1, 0, [])


@pytest.mark.parametrize("error", [ZeroDivisionError(), OSError("x"), ExceptionGroup("of", [ValueError()])], ids=repr)
async def test_B54_a_loop_that_raises_is_down_until_it_is_started_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised() as scene:
        with caplog.at_level(logging.ERROR):
            await scene.die(error)
        assert scene.up() == (False, 0)
        assert scene.loop.deaths == 1
        assert scene.faults() == 1
        assert [record.message for record in caplog.records] == ["background_task_died"]
        assert scene.starts == 1
        await scene.restart()
        assert scene.up() == (True, 1)
        assert scene.starts == 2


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_loop_without_its_database_begins_anew_and_is_no_fault(
    grouped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The database has an alert of its own: nobody is to be called for an exception that nobody foresaw."""
    lost = StoreUnavailable("gone")
    async with supervised() as scene:
        with caplog.at_level(logging.WARNING):
            await scene.die(ExceptionGroup("of", [lost, ExceptionGroup("of", [lost])]) if grouped else lost)
        assert (scene.up(), scene.loop.deaths, scene.faults()) == ((True, 1), 0, 0)
        assert caplog.records == [], "the database says once that it is gone"
        await scene.restart()
        assert scene.starts == 2
        await scene.die(ExceptionGroup("of", [lost, ValueError()]))
        assert scene.faults() == 1


async def test_a_loop_that_returns_is_dead_too_but_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with supervised() as scene:
        with caplog.at_level(logging.ERROR):
            await scene.die()
        assert [record.message for record in caplog.records] == ["background_task_returned"]
        assert scene.up() == (False, 0)
        assert scene.faults() == 0
        await scene.restart()
        assert scene.starts == 2


async def test_pauses_grow_to_a_bound() -> None:
    async with supervised() as scene:
        for _ in range(9):
            await scene.die(ValueError())
            await scene.restart()
        assert scene.pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
        assert scene.loop.deaths == 9
        assert scene.faults() == 9


async def test_a_loop_that_lived_long_is_started_again_soon() -> None:
    async with supervised() as scene:
        for _ in range(4):
            await scene.die(ValueError())
            await scene.restart()
        scene.clock.move(31)
        await scene.die(ValueError())
        await scene.restart()
        scene.clock.move(29)
        await scene.die(ValueError())
        assert scene.pauses == [0.5, 1, 2, 4, 0.5, 1]


async def test_cancellation_is_the_way_out_and_no_death() -> None:
    scene = Supervised()
    task = asyncio.create_task(supervise(scene.loop, scene.body, scene.metrics, scene.pause))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (scene.loop.deaths, scene.starts) == (0, 1)
    assert scene.faults() == 0


async def test_a_cancellation_that_nobody_asked_for_is_a_death() -> None:
    async with supervised() as scene:
        assert scene.fate is not None
        scene.fate.cancel()
        await settle()
        assert (scene.up(), scene.loop.deaths, scene.faults()) == ((False, 0), 1, 1)
        await scene.restart()
        assert scene.starts == 2


async def test_a_log_that_cannot_be_written_does_not_end_what_restarts_the_loops() -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("disk full")

    logger, broken = logging.getLogger("app.chain.supervision"), Broken()
    logger.addHandler(broken)
    try:
        async with supervised() as scene:
            await scene.die(ValueError())
            await scene.restart()
            assert scene.starts == 2
    finally:
        logger.removeHandler(broken)


async def test_cancellation_ends_a_loop_that_pauses() -> None:
    scene = Supervised()
    task = asyncio.create_task(supervise(scene.loop, scene.body, scene.metrics, scene.pause))
    await settle()
    await scene.die(ValueError())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert scene.starts == 1


async def test_B54_a_loop_survives_the_garbage_collector() -> None:
    async with supervised() as scene:
        for _ in range(3):
            gc.collect()
            await scene.die(ValueError())
            gc.collect()
            await scene.restart()
        assert scene.starts == 4


async def test_by_default_it_pauses_by_the_clock_of_the_loop() -> None:
    scene = Supervised()
    task = asyncio.create_task(supervise(scene.loop, scene.body, scene.metrics))
    await settle()
    await scene.die(ValueError())
    await scene.clock.advance(0.49)
    assert scene.starts == 1
    await scene.clock.advance(0.02)
    assert scene.starts == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
