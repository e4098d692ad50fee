"""Turning bodies into blocks, off the event loop: a pool of processes, or, where there is none, a thread.

Raw bodies go into a worker process and packed bytes come out; what is wrong with a block crosses as a value. Workers are
started by a fork server, never forked from this process, which has threads. A build that was begun is waited for whatever
becomes of the caller, so that whoever holds a permit for it holds it until the work has truly ended (F7).
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from app.core.block_building import build, build_packed
from app.core.errors import ContentInvalid, ProofError, RpcUnavailable
from app.core.provable_block import BuildRequest, ProvableBlock, unpack

T = TypeVar("T")

log = logging.getLogger(__name__)

BREAKS_TOLERATED = 3
"""So many broken pools within `BREAKS_WINDOW_S` and the process is no longer trusted to mend itself."""

BREAKS_WINDOW_S = 60.0

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def work(request: BuildRequest) -> bytes | ContentInvalid | ProofError:
    """What a worker process does. Expected errors are returned, not raised: an exception with required arguments does not
    survive the pickling of a traceback."""
    try:
        return build_packed(request)
    except (ContentInvalid, ProofError) as error:
        return error.with_traceback(None)


def warm_up() -> int:
    """Keeps a worker busy for a moment, so that the pool starts all of them; by then everything is imported."""
    time.sleep(0.02)
    return os.getpid()


class ProcessBuilder:
    """Implements the chain's `Builder` over worker processes."""

    def __init__(
        self,
        processes: int,
        *,
        on_break: Callable[[], None] = lambda: None,
        job: Callable[[BuildRequest], bytes | ContentInvalid | ProofError] = work,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Requires processes >= 1."""
        self.processes = processes
        self._job = job
        self._on_break = on_break
        self._now = now
        self._breaks: deque[float] = deque(maxlen=BREAKS_TOLERATED)
        self._pool = self._new_pool()
        self._running = 0

    def __repr__(self) -> str:
        return f"<ProcessBuilder {self._running} running, {self.processes} processes, {len(self._breaks)} breaks>"

    @property
    def healthy(self) -> bool:
        """False once the workers died too often lately."""
        lately = [at for at in self._breaks if self._now() - at < BREAKS_WINDOW_S]
        return len(lately) < BREAKS_TOLERATED

    async def start(self) -> None:
        """Starts every worker and waits for it. Raises OSError or `BrokenProcessPool` when they cannot run."""
        started = [asyncio.wrap_future(_submit(self._pool, warm_up)) for _ in range(self.processes)]
        await asyncio.gather(*started)

    async def build(self, request: BuildRequest) -> ProvableBlock:
        """As the port says. A worker that dies takes its job with it: a new pool does it once more, then `RpcUnavailable`."""
        self._running += 1
        try:
            for last in (False, True):
                pool = self._pool
                try:
                    outcome = await _to_the_end(_submit(pool, self._job, request))
                except BrokenProcessPool:
                    self._replace(pool)
                    if last:
                        raise RpcUnavailable("the block could not be built: its worker died twice; retry") from None
                    continue
                if isinstance(outcome, bytes):
                    return unpack(outcome)
                raise outcome
            raise AssertionError("the last attempt returns or raises")
        finally:
            self._running -= 1

    async def aclose(self) -> None:
        """Ends the workers, after the jobs they are in."""
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)

    def _new_pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["app.core.block_building"])
        return ProcessPoolExecutor(self.processes, mp_context=context)

    def _replace(self, broken: ProcessPoolExecutor) -> None:
        """Every job of a broken pool fails; the first to see it replaces the pool, the others find the new one."""
        if broken is not self._pool:
            return
        self._breaks.append(self._now())
        self._on_break()
        log.error("a block builder died; its pool is replaced", extra={"processes": self.processes})
        self._pool = self._new_pool()
        broken.shutdown(wait=False, cancel_futures=True)


class ThreadBuilder:
    """Implements the chain's `Builder` in this process, one block at a time: for places where processes cannot be had. The event
    loop shares the interpreter with it: builds cost latency there, which the process pool avoids."""

    processes = 0
    healthy = True

    def __init__(self, job: Callable[[BuildRequest], ProvableBlock] = build) -> None:
        self._job = job
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="builder")

    async def build(self, request: BuildRequest) -> ProvableBlock:
        """As the port says."""
        return await _to_the_end(self._pool.submit(self._job, request))

    async def aclose(self) -> None:
        """Waits for the build under way."""
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, job: Callable[..., T], *arguments: object) -> Future[T]:
    """Hands a job to the pool, which may start a worker for it.

    A new worker imports what `__main__` is, to be able to unpickle what is defined there: for a server that is the whole web
    framework, in every worker. Our jobs are defined elsewhere, so the worker is shown an empty `__main__`.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        return pool.submit(job, *arguments)
    finally:
        sys.modules["__main__"] = main


async def _to_the_end(job: Future[T]) -> T:
    """The job's outcome. A cancelled caller waits until a job that was begun has ended, and only then is cancelled."""
    waiting = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if not job.cancel():
            while not waiting.done():
                try:
                    await asyncio.wait([waiting])
                except asyncio.CancelledError:
                    continue  # cancelled once more: the work still has to end first
            if not waiting.cancelled():
                waiting.exception()
        raise


def processes_for(wanted: int | str) -> int:
    """How many worker processes: as configured, or for `auto` what the CPU quota leaves beside the event loop, at least one."""
    if wanted != "auto":
        return int(wanted)
    return max(1, min(8, int(_cpus())))


def _cpus() -> float:
    """CPUs this process may use: its affinity, and the quota of its control group (v2) where that is less."""
    usable = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = CPU_MAX.read_text().split()
        return usable if quota == "max" else min(usable, int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return usable


@asynccontextmanager
async def open_builder(
    wanted: int | str, on_break: Callable[[], None]
) -> AsyncIterator[ProcessBuilder | ThreadBuilder]:
    """A started builder; its workers have ended when the block is left. `wanted` is `auto` or a number, 0 for none."""
    processes = processes_for(wanted)
    builder = ThreadBuilder() if processes == 0 else ProcessBuilder(processes, on_break=on_break)
    try:
        if isinstance(builder, ProcessBuilder):
            await builder.start()
        yield builder
    finally:
        await builder.aclose()
