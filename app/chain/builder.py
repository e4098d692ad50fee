"""Where blocks are built: worker processes, so that hashing thousands of leaves never stops the event loop.

Raw bodies go in, one packed `bytes` comes out, errors cross as values. Each worker is a pool of one process of its own: a
worker that is killed takes one job with it and nothing else, and a job is handed over only when a worker is free for it.

A build ends when its work has ended, not when its caller loses patience: `build` returns or raises only then, so that the
permit its caller holds counts what really runs (F7). A job whose worker died is given to a fresh worker once. Three deaths
within a minute make the builder unhealthy for good: liveness then fails on purpose and the process is replaced.

Workers are forked from a clean server process (forkserver), never from this one with its threads and locks; if there is no
place for that server's socket, they are spawned. They outlive nothing: when this process dies, however it dies, they exit.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Generic, Self, TypeVar

from app.chain.worker import Worker
from app.core.errors import ContentInvalid, Draining, Internal, Overloaded, ProofError

Q = TypeVar("Q")
V = TypeVar("V")

_log = logging.getLogger(__name__)

BREAKS_ALLOWED = 2
BREAK_WINDOW_S = 60.0
JOB_LIMIT_S = 60.0
"""A job that runs this long will not end: its worker is killed. Far above the largest block (about a second)."""


class _Job(Generic[Q, V]):
    """One build. `started` is set by the worker's task: from then on its caller waits for the end whatever happens."""

    __slots__ = ("outcome", "request", "started")

    def __init__(self, request: Q) -> None:
        self.request = request
        self.started = False
        self.outcome: asyncio.Future[V] = asyncio.get_running_loop().create_future()

    def withdraw(self) -> bool:
        """Its caller leaves: true when the job had not begun, and now never will."""
        return not self.started and self.outcome.cancel()


class ProcessBuilder(Generic[Q, V]):
    """Builds in worker processes. `work(request)` runs there and returns bytes that `unpack` turns into the value here.

    `work` and `initializer` must be importable functions. Use as `async with`; entering starts every worker and returns
    when each has run `initializer`. Requires processes >= 1.
    """

    def __init__(
        self,
        processes: int,
        work: Callable[[Q], bytes],
        unpack: Callable[[bytes], V],
        *,
        initializer: Callable[[], None] | None = None,
        on_break: Callable[[], object] = lambda: None,
        job_limit_s: float = JOB_LIMIT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if processes < 1:
            raise ValueError(f"at least one process is needed, not {processes}")
        self._work = work
        self._unpack = unpack
        self._on_break = on_break
        self._job_limit_s = job_limit_s
        self._now = now
        self._workers = [Worker(initializer) for _ in range(processes)]
        self._tasks: list[asyncio.Task[None]] = []  # one a worker, its owner
        self._busy: set[Worker] = set()
        self._jobs: asyncio.Queue[_Job[Q, V] | None] = asyncio.Queue()
        self._lately: deque[float] = deque(maxlen=BREAKS_ALLOWED + 1)
        self._closing = False
        self.breaks = 0
        self.healthy = True

    def __repr__(self) -> str:
        return (
            f"<ProcessBuilder {len(self._busy)}/{len(self._workers)} busy, {self._jobs.qsize()} waiting, "
            f"{self.breaks} breaks>"
        )

    @property
    def processes(self) -> int:
        return len(self._workers)

    @property
    def waiting(self) -> int:
        """Builds that no worker has begun yet."""
        return self._jobs.qsize()

    @property
    def pids(self) -> list[int]:
        """The worker processes now alive, as far as is known."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def __aenter__(self) -> Self:
        starts = [asyncio.get_running_loop().run_in_executor(None, worker.open) for worker in self._workers]
        try:
            await _to_end(asyncio.gather(*starts))
        except BaseException:
            await asyncio.gather(*starts, return_exceptions=True)
            await self._close_workers()
            raise
        self._tasks = [
            asyncio.create_task(self._serve(worker), name=f"builder-{number}")
            for number, worker in enumerate(self._workers)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def build(self, request: Q) -> V:
        """Raises `ContentInvalid` or `ProofError` as `work` did, `Overloaded` when its worker was lost twice, `Internal` when
        `work` crashed, `Draining` once closed. A caller that is cancelled gets its cancellation when the work has ended."""
        if self._closing or not self._tasks:
            raise Draining("the block builders are not running")
        job: _Job[Q, V] = _Job(request)
        self._jobs.put_nowait(job)
        return await _to_end(job.outcome, withdraw=job.withdraw)

    async def aclose(self) -> None:
        """Ends the workers, without waiting for the builds they are in: those raise `Draining`."""
        self._closing = True
        while not self._jobs.empty():
            job = self._jobs.get_nowait()
            if job is not None and not job.outcome.done():
                job.outcome.set_exception(Draining("this server is shutting down"))
        for worker in self._busy:
            worker.kill()
        for _ in self._tasks:
            self._jobs.put_nowait(None)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _close_workers(self) -> None:
        loop = asyncio.get_running_loop()
        await _to_end(asyncio.gather(*(loop.run_in_executor(None, worker.close) for worker in self._workers)))

    async def _serve(self, worker: Worker) -> None:
        """One worker's life. Whatever ends it, the job at hand is told and the process is gone."""
        job: _Job[Q, V] | None = None
        try:
            while (job := await self._jobs.get()) is not None:
                if not job.outcome.done():  # done: its caller left while it waited
                    job.started = True
                    self._busy.add(worker)
                    await self._carry_out(worker, job)
                    self._busy.discard(worker)
        finally:
            if worker in self._busy:
                worker.kill()
                self._busy.discard(worker)
            await _to_end(asyncio.get_running_loop().run_in_executor(None, worker.close))
            if job is not None and not job.outcome.done():
                job.outcome.set_exception(Draining("this server is shutting down"))

    async def _carry_out(self, worker: Worker, job: _Job[Q, V]) -> None:
        try:
            try:
                kind, data = await self._run(worker, job.request)
            except BrokenProcessPool:
                self._note_break()
                kind, data = await self._run(worker, job.request)
            job.outcome.set_result(self._value(kind, data))
        except BrokenProcessPool:
            self._note_break()
            job.outcome.set_exception(Overloaded("the block builder was lost; retry", reason="builder_lost"))
        except _HungError:
            self._note_break()
            job.outcome.set_exception(Overloaded("the block took too long to build", reason="builder_hung"))
        except (ContentInvalid, ProofError) as error:
            job.outcome.set_exception(error)
        except Exception:  # noqa: BLE001 - a job must end, whatever went wrong with it, and its worker serve the next
            _log.exception("build_failed")
            job.outcome.set_exception(Internal("the block could not be built"))

    async def _run(self, worker: Worker, request: Q) -> tuple[str, bytes]:
        """One try at a job, on a fresh worker if need be. Raises `BrokenProcessPool` or `_HungError` with the worker closed."""
        loop = asyncio.get_running_loop()
        try:
            if not worker.is_open:
                await _to_end(loop.run_in_executor(None, worker.open))
            return await self._answer(worker, asyncio.wrap_future(worker.submit(self._work, request)))
        except (BrokenProcessPool, _HungError):
            await _to_end(loop.run_in_executor(None, worker.close))
            if self._closing:
                raise Draining("this server is shutting down") from None
            raise

    async def _answer(self, worker: Worker, future: asyncio.Future[tuple[str, bytes]]) -> tuple[str, bytes]:
        future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # retrieved, whoever waits
        if self._closing:  # it came up while the others were told to end
            worker.kill()
        done, _ = await asyncio.wait({future}, timeout=self._job_limit_s)
        if not done:
            worker.kill()
            await asyncio.wait({future})
            raise _HungError
        return future.result()

    def _value(self, kind: str, data: bytes) -> V:
        if kind == "built":
            return self._unpack(data)
        if kind == "error":
            raise pickle.loads(data)  # noqa: S301 - these bytes were made by our own worker
        _log.error("build_crashed", extra={"trace": data.decode(errors="replace")})
        raise Internal("the block could not be built")

    def _note_break(self) -> None:
        self.breaks += 1
        self._lately.append(self._now())
        if len(self._lately) > BREAKS_ALLOWED and self._lately[-1] - self._lately[0] < BREAK_WINDOW_S:
            self.healthy = False
        _log.warning("builder_process_lost", extra={"breaks": self.breaks, "healthy": self.healthy})
        self._on_break()


class CooperativeBuilder(Generic[Q, V]):
    """Builds in one thread of this process: for machines with a single processor, and for tests.

    The interpreter's lock is shared with the event loop, which runs on between the thread's turns. One thread, because more
    would not build faster.
    """

    def __init__(self, work: Callable[[Q], V]) -> None:
        self._work = work
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="builder")
        self._closing = False
        self._accepted = 0
        self.processes = 0
        self.breaks = 0
        self.healthy = True

    def __repr__(self) -> str:
        return f"<CooperativeBuilder {self._accepted} accepted>"

    @property
    def waiting(self) -> int:
        """Builds that the thread has not begun yet."""
        return max(0, self._accepted - 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def build(self, request: Q) -> V:
        """As `ProcessBuilder.build`; there is no worker to lose."""
        if self._closing:
            raise Draining("this server is shutting down")
        running = self._thread.submit(self._work, request)
        self._accepted += 1
        try:
            return await _to_end(asyncio.wrap_future(running), withdraw=running.cancel)
        except (ContentInvalid, ProofError):
            raise
        except Exception as error:
            _log.exception("build_crashed")
            raise Internal("the block could not be built") from error
        finally:
            self._accepted -= 1

    async def aclose(self) -> None:
        """Waits for the builds accepted so far: a thread cannot be stopped."""
        self._closing = True
        await _to_end(asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown))


class _HungError(Exception):
    """A job ran into its limit and its worker was killed."""


async def _to_end(future: asyncio.Future[V], withdraw: Callable[[], bool] = lambda: False) -> V:
    """The future's outcome, and never before it is there: a cancellation waits until then and is raised afterwards.

    `withdraw` is asked first, and says whether the work had not begun and now never will: then there is nothing to await.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            if withdraw():
                raise
            cancelled = error
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # retrieved
        raise cancelled
    return future.result()
