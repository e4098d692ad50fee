"""Faults that nobody caught, at every way into this process: counted first, then logged, and counted though the log fails."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from app.house import House, watch_loop
from app.metrics import Metrics
from tests.api.fakes import RecordedHouse, anchored_chain, open_door
from tests.api.serving import serving
from tests.chain.recorded_chain import CorpusBuilder
from tests.fakes import ManualClock, settle

SECRET = "S3cr3tC4n4ry"


class Log(logging.Handler):
    """What was logged, and how often each source had been counted by then; a log that cannot be written when `broken`."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        self.metrics = metrics
        self.broken = False
        self.records: list[logging.LogRecord] = []
        self.counted_before: list[tuple[str, float | None]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not hasattr(record, "source"):
            return
        self.records.append(record)
        self.counted_before.append((record.source, counted(self.metrics, record.source)))
        if self.broken:
            raise OSError("the log is full")


def counted(metrics: Metrics, source: str) -> float | None:
    return metrics.registry.get_sample_value("copath_unhandled_exceptions_total", {"source": source})


@dataclass
class Scene:
    house: House
    log: Log

    def check(self, source: str, faults: int = 1) -> None:
        """So many faults of this source, each counted before it was logged, and none of them told in full."""
        assert counted(self.house.metrics, source) == faults
        mine = [record for record in self.log.records if record.source == source]  # type: ignore[attr-defined]
        assert len(mine) == faults
        before = [count for of, count in self.log.counted_before if of == source]  # a broken log is a fault itself
        assert before == list(range(1, faults + 1))
        for record in mine:
            assert record.getMessage() == "unhandled_exception"
            assert record.type == "ValueError"  # type: ignore[attr-defined]
            assert SECRET not in str(vars(record))


@pytest.fixture(params=[False, True], ids=["log", "broken-log"])
async def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:  # type: ignore[misc]  # an async generator
    """A house that watches over this process, which is given back afterwards."""
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    house = House([], CorpusBuilder(), Metrics(CollectorRegistry()), open_door(), ManualClock())
    log = Log(house.metrics)
    log.broken = request.param
    logging.getLogger("app").addHandler(log)
    watch_loop(house)
    yield Scene(house, log)
    logging.getLogger("app").removeHandler(log)
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks


def fail() -> None:
    raise ValueError(SECRET)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_of_a_thread(scene: Scene) -> None:
    for _ in range(2):
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    scene.check("thread", 2)


async def test_of_a_finalizer(scene: Scene) -> None:
    class Unlucky:
        def __del__(self) -> None:
            fail()

    Unlucky()
    gc.collect()
    scene.check("unraisable")


async def test_of_the_main_program(scene: Scene) -> None:
    try:
        fail()
    except ValueError as fault:
        try:
            sys.excepthook(ValueError, fault, fault.__traceback__)  # as the interpreter does, at the very end
        except OSError:
            assert scene.log.broken
    scene.check("main")


async def test_of_a_task_that_nobody_awaits(scene: Scene) -> None:
    async def forgotten() -> None:
        fail()

    task = asyncio.create_task(forgotten())
    await settle()
    assert task.done()
    del task
    gc.collect()
    scene.check("loop")


async def test_of_a_callback_of_a_task(scene: Scene) -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    task = asyncio.create_task(work())
    task.add_done_callback(lambda _: fail())
    await settle()
    scene.check("loop")


async def test_of_a_handler(scene: Scene) -> None:
    logger = logging.getLogger("app.api.guard")
    chain = anchored_chain()
    chain.fails_with = ValueError(SECRET)
    recorded = RecordedHouse([chain], metrics=scene.house.metrics)
    logger.addHandler(scene.log)
    logging.getLogger("app").removeHandler(scene.log)
    try:
        async with serving(recorded) as client:
            reply = await client.get("/api/v1/proofs/2/blocks/1000004/transactions/0")
    finally:
        logger.removeHandler(scene.log)
    assert (reply.status_code, reply.json()["code"]) == (500, "Internal")
    assert SECRET not in reply.text
    scene.check("asgi")
