"""Single flight: however many callers miss on one key, one fill runs for all of them.

A fill belongs to the `Flights` that started it, never to the caller that asked first: it runs in its own task, in a bare
context, under its own deadline. Callers hold leases. A caller that is cancelled or late drops its lease and changes
nothing for the others; only when the last lease is dropped while the fill still waits for a permit is the fill cancelled.

    get(key) -- memo? --> raise it
       |---- run? -------> join it (a request promotes a backfill's run)
       `---- start a run: QUEUED -> RESOLVING | FETCHING -> VERIFYING -> BUILDING -> land, wake all, forget the key
                 failed, generation 1 -> one of the leases becomes the creator of generation 2, all others follow
                 failed again, or stalled -> every lease gets the error, remembered for a moment
                 failed for good          -> every lease gets the error at once, remembered for longer

In-flight runs live here and settled values elsewhere: `land` publishes a value in the same step that ends the run.
All state changes happen between awaits, in `_start`, `_board`, `_leave` and `_ended`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from app.chain.fill import Fill, Stage, Verdict, judge
from app.chain.memory import FailureMemory, raised_once
from app.chain.permits import refusal
from app.core.budget import Priority, Refusal
from app.core.deadlines import reached
from app.core.errors import Draining, Internal, ProofError, RequestTimeout, RpcUnavailable
from app.core.purpose import Errand, again, bare_context, errand

if TYPE_CHECKING:
    from app.chain.ports import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

__all__ = ["Fill", "Flights", "Stage", "Verdict", "judge"]


class _Lease(Generic[V]):
    """One caller's stake in a run. Owned by that caller; `run` changes when the lease is handed over to the next one."""

    __slots__ = ("cutoff", "errand", "fill", "land", "outcome", "priority", "run", "still_valid")

    def __init__(
        self,
        fill: Callable[[Fill], Awaitable[V]],
        land: Callable[[V], None] | None,
        still_valid: Callable[[], bool] | None,
        priority: Priority,
        cutoff: float | None,
    ) -> None:
        self.fill = fill
        self.land = land
        self.still_valid = still_valid
        self.priority = priority
        self.cutoff = cutoff
        self.errand: Errand | None = errand.get()
        self.outcome: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self.run: _Run[Any, V] | None = None


@dataclass(eq=False, slots=True)
class _Run(Generic[K, V]):
    """One attempt at one key. One-shot: the second generation is another run."""

    key: K
    handle: Fill
    leases: dict[_Lease[V], None] = field(default_factory=dict)
    task: asyncio.Task[V] | None = None


class Flights(Generic[K, V]):
    """The fills in flight, by key. Belongs to one event loop.

    `first_stage` is where fills begin: anything but QUEUED starts their deadline at once. `jitter` yields numbers in
    [0, 1) that spread the memory of failures by half in both directions, so that callers do not return in step.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        first_stage: Stage = Stage.QUEUED,
        fill_deadline_s: float = 20.0,
        failure_memo_s: float = 0.25,
        permanent_memo_s: float = 60.0,
        max_memos: int = 1024,
        verdict_of: Callable[[BaseException], Verdict] = judge,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._first_stage = first_stage
        self._fill_deadline_s = fill_deadline_s
        self._failure_memo_s = failure_memo_s
        self._permanent_memo_s = permanent_memo_s
        self._verdict_of = verdict_of
        self._jitter = jitter
        self._runs: dict[K, _Run[K, V]] = {}
        self._flying: dict[asyncio.Task[V], _Run[K, V]] = {}  # the strong references; includes runs forgotten by key
        self._memos: FailureMemory[K] = FailureMemory(max_memos)
        self._closed = False
        self.fills = 0
        self.joins = 0
        self.handovers = 0
        self.memo_hits = 0
        self.promotions = 0
        self.abandoned = 0
        self.overtaken = 0

    def __contains__(self, key: K) -> bool:
        """Whether a call for `key` would join a run."""
        return key in self._runs

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def waiting(self) -> int:
        """Leases held."""
        return sum(len(run.leases) for run in self._runs.values())

    def __repr__(self) -> str:
        queued = sum(run.handle.stage is Stage.QUEUED for run in self._runs.values())
        return f"<Flights {len(self)} in flight ({queued} queued), {self.waiting} waiting, {len(self._memos)} memos>"

    async def get(
        self,
        key: K,
        fill: Callable[[Fill], Awaitable[V]],
        *,
        land: Callable[[V], None] | None = None,
        still_valid: Callable[[], bool] | None = None,
        priority: Priority = Priority.REQUEST,
        deadline: float | None = None,
        cutoff: float | None = None,
    ) -> V:
        """The value of the run for `key`: the one in flight, or else a new one that calls `fill`.

        `land(value)` publishes the value; it is skipped, and the run repeated, when `still_valid()` says no or the key was
        invalidated meanwhile. `deadline` is the caller's own (the clock's time): then `RequestTimeout` naming the stage.
        At `cutoff` a caller whose fill still has no permit is refused, as it could not finish: `ChainOverloaded`.
        Raises the `ProofError` of the run waited on, `Internal` for any other exception of it, `Draining` after `aclose`.
        """
        now = self._clock.now()
        if self._closed:
            raise Draining("this server is shutting down")
        if deadline is not None and deadline <= now:
            raise RequestTimeout("the deadline has passed", stage=self._first_stage.value)
        memo = self._memos.recall(key, now)
        if memo is not None and memo.final:
            self.memo_hits += 1
            raise raised_once(memo.error, wait_s=memo.expires_at - now, spread=self._jitter())
        run = self._runs.get(key)
        stage = self._first_stage if run is None else run.handle.stage
        if cutoff is not None and cutoff <= now and stage is Stage.QUEUED:
            raise refusal(Refusal.WAIT_TIMEOUT)
        lease = _Lease(fill, land, still_valid, priority, cutoff)
        if run is None:
            run = self._start(key, lease, generation=1 if memo is None else 2)
        else:
            self.joins += 1
        self._board(run, lease)
        call_later = asyncio.get_running_loop().call_later
        timers = []
        if cutoff is not None and cutoff > now:
            timers.append(call_later(cutoff - now, self._cut, lease))
        if deadline is not None:
            timers.append(call_later(deadline - now, self._late, lease))
        try:
            return await lease.outcome
        finally:
            for timer in timers:
                timer.cancel()
            if lease.run is not None:
                reached(lease.run.handle.stage.value)
            self._leave(lease)
            del lease, run  # its outcome may hold the exception whose traceback holds this frame

    def invalidate(self, matches: Callable[[K], bool]) -> int:
        """The runs and memos of matching keys are overtaken: no such run lands, and nobody joins it any more.

        Those who wait for one are handed to a new run. Returns how many runs were overtaken.
        """
        overtaken = [run for key, run in self._runs.items() if matches(key)]
        for run in overtaken:
            run.handle.valid = False
            self._forget(run)
        self._memos.forget_all(matches)
        return len(overtaken)

    async def aclose(self) -> None:
        """Cancels every run and returns when all have ended, with the work they held permits for. Waiters get `Draining`."""
        self._closed = True
        for task, run in self._flying.items():
            task.cancel()
            self._forget(run)
            self._tell(run, Draining("this server is shutting down"))
        while self._flying:
            await asyncio.wait(self._flying)

    # --- state changes, all of them ---------------------------------------------------------------------------------

    def _start(self, key: K, creator: _Lease[V], generation: int) -> _Run[K, V]:
        handle = Fill(self._clock, creator.priority, generation, self._fill_deadline_s)
        run = self._runs[key] = _Run(key, handle)
        self.fills += 1
        # A bare context: a fill must not run under the deadline of the request that happened to come first.
        context = bare_context()
        context.run(errand.set, creator.errand)
        context.run(again.set, generation > 1)
        run.task = asyncio.create_task(self._fly(run, creator), name="fill", context=context)
        self._flying[run.task] = run
        run.task.add_done_callback(lambda task: self._ended(run, task))
        return run

    async def _fly(self, run: _Run[K, V], creator: _Lease[V]) -> V:
        handle = run.handle
        limit = asyncio.timeout(None)
        try:
            async with limit:
                handle.attach(limit, self._first_stage)
                value = await creator.fill(handle)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise RequestTimeout(
                f"the fill took longer than {self._fill_deadline_s:g} s", stage=handle.stage.value
            ) from error
        if creator.still_valid is not None and not creator.still_valid():
            handle.valid = False
        if handle.valid and creator.land is not None:
            creator.land(value)
        return value

    def _board(self, run: _Run[K, V], lease: _Lease[V]) -> None:
        run.leases[lease] = None
        lease.run = run
        if lease.priority is not Priority.REQUEST:
            return
        if run.handle.priority is Priority.BACKFILL:
            self.promotions += 1
            run.handle.promote()
        if lease.errand is not None:
            run.handle.join(lease.errand)

    def _leave(self, lease: _Lease[V]) -> None:
        run = lease.run
        if run is None or lease not in run.leases:  # it was told the outcome
            return
        del run.leases[lease]
        if run.leases:
            return
        if run.handle.stage is Stage.QUEUED and run.task is not None and not run.task.done():
            self.abandoned += 1
            run.handle.given_up_late = lease.outcome.done() and not lease.outcome.cancelled()
            self._forget(run)  # at once: a later caller must not join a run that is being cancelled
            run.task.cancel()

    def _forget(self, run: _Run[K, V]) -> None:
        if self._runs.get(run.key) is run:
            del self._runs[run.key]

    def _cut(self, lease: _Lease[V]) -> None:
        if lease.run is not None and lease.run.handle.stage is Stage.QUEUED and not lease.outcome.done():
            lease.outcome.set_exception(refusal(Refusal.WAIT_TIMEOUT))

    def _late(self, lease: _Lease[V]) -> None:
        if lease.run is not None and not lease.outcome.done():
            lease.outcome.set_exception(
                RequestTimeout("the deadline passed while the block was filled", stage=lease.run.handle.stage.value)
            )

    def _ended(self, run: _Run[K, V], task: asyncio.Task[V]) -> None:
        del self._flying[task]
        self._forget(run)
        handle = run.handle
        error = RpcUnavailable("the fill was cancelled; retry") if task.cancelled() else task.exception()
        if error is None and not handle.valid:
            error = RpcUnavailable("the chain changed while the block was read; retry")
        if error is None:
            value = task.result()
            self._memos.forget(run.key)
            for lease in run.leases:
                if not lease.outcome.done():
                    lease.outcome.set_result(value)
            run.leases.clear()
            return
        verdict = self._verdict_of(error)
        if not isinstance(error, ProofError):
            # A fault of our own: told and counted by whoever watches the loop.
            task.get_loop().call_exception_handler({"message": "a fill crashed", "exception": error, "task": task})
            error = Internal("the block could not be filled")
        now = self._clock.now()
        began_at = now if handle.started_at is None else handle.started_at
        stalled = verdict is Verdict.STALL or now - began_at >= self._fill_deadline_s / 2
        first = handle.generation == 1
        if not handle.valid or task.cancelled():  # says nothing about the key: not remembered
            self.overtaken += 0 if handle.valid else 1
            if first:
                self._hand_over(run, error)
        elif verdict is Verdict.PERMANENT:
            memo_s = self._permanent_memo_s if handle.remember_s is None else handle.remember_s
            self._memos.keep(run.key, error, now, memo_s)
        elif verdict is not Verdict.ANSWER:
            again = first and not stalled
            if not (again and self._hand_over(run, error)):
                memo_s = self._failure_memo_s * (0.5 + self._jitter())
                self._memos.keep(run.key, error, now, memo_s, final=not again)
        self._tell(run, error)

    def _hand_over(self, run: _Run[K, V], error: ProofError) -> bool:
        """Moves the leases of a failed run to a new one, except those that could not finish; false when none was left."""
        now = self._clock.now()
        queue_again = self._first_stage is Stage.QUEUED
        staying = [
            lease
            for lease in run.leases
            if not lease.outcome.done() and not (queue_again and lease.cutoff is not None and lease.cutoff <= now)
        ]
        if not staying:
            return False
        self.handovers += 1
        successor = self._runs.get(run.key)  # there is one when this run was overtaken
        if successor is None:
            successor = self._start(run.key, staying[0], generation=2)
        for lease in staying:
            del run.leases[lease]
            self._board(successor, lease)
        return True

    def _tell(self, run: _Run[K, V], error: ProofError) -> None:
        for lease in run.leases:
            if not lease.outcome.done():
                lease.outcome.set_exception(raised_once(error, spread=self._jitter()))
        run.leases.clear()
