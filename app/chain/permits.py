"""The asynchronous face of the fill budget: waiting for a permit, holding it, giving it back.

`core.budget` decides; this module only carries its decisions to the tasks that wait. A waiter's cutoff is a timer that
asks the budget, never a cancellation, so a grant and a timeout cannot both happen. A cancelled waiter withdraws its
claim even when the permit was granted in the same turn of the loop: no permit and no wake-up is lost (P4).

    async with permits.hold(Priority.REQUEST, cutoff=deadline - 0.5) as permit:
        shift.set(PermitShift(permit))      # P6: whoever pauses in `fetch` says so, and the permit is given back meanwhile
        bodies = await fetch()
        await build(bodies)                 # returns only when the work has ended, so the permit follows the work (F7)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from app.core.budget import Changes, FillBudget, Granted, Priority, Refusal, Refused, Ticket, TicketState
from app.core.errors import ChainOverloaded
from app.core.saturation import SaturationWindow

if TYPE_CHECKING:
    from app.chain.ports import Clock

_WORDS = {
    Refusal.QUEUE_FULL: "too many fills wait on this chain; retry with back-off",
    Refusal.WAIT_TIMEOUT: "no fill of this chain could start in time; retry with back-off",
}


def refusal(reason: Refusal) -> ChainOverloaded:
    """The error of a fill that may not start."""
    return ChainOverloaded(_WORDS[reason], reason=reason.value, phase="fill_queue")


class Permits:
    """The permits of one chain. Belongs to one event loop; all its fields are changed between awaits only.

    `on_wait(priority, waited_s)`, when given, hears how long each granted permit was waited for, refusals excluded. `window`
    is the saturation window of the budget: `note_refusal` opens it, every permit taken or given back clears it.
    """

    def __init__(
        self,
        budget: FillBudget,
        clock: Clock,
        *,
        on_wait: Callable[[Priority, float], None] | None = None,
        window: SaturationWindow | None = None,
    ) -> None:
        self.budget = budget
        self.clock = clock
        self.window = SaturationWindow() if window is None else window
        self.refused: Counter[Refusal] = Counter(dict.fromkeys(Refusal, 0))
        self._on_wait = on_wait
        self._wakers: dict[Ticket, asyncio.Future[Refusal | None]] = {}

    def __repr__(self) -> str:
        return repr(self.budget).replace("FillBudget", "Permits")

    def hold(
        self, priority: Priority = Priority.REQUEST, *, cutoff: float | None = None, consumer: str | None = None
    ) -> Permit:
        """A permit to be acquired, by `async with` or by `acquire`; not granted at or after `cutoff` (clock's time)."""
        return Permit(self, priority, cutoff, consumer)

    def set_limit(self, limit: int) -> None:
        """Changes the number of permits. Raising it wakes waiters; lowering it takes effect with the releases (P5)."""
        self._carry(self.budget.set_limit(limit, self.clock.now()))

    def note_refusal(self) -> None:
        """Somebody was refused for want of a permit. Opens the window, if a permit is held whose release will clear it."""
        if self.budget.running():
            self.window.refuse(self.clock.now())

    # --- for Permit -------------------------------------------------------------------------------------------------

    async def _acquire(self, permit: Permit, *, again: bool) -> None:
        asked_at = self.clock.now()
        decision = self.budget.request(
            asked_at, permit.priority, cutoff=permit.cutoff, consumer=permit.consumer, again=again
        )
        if isinstance(decision, Refused):
            raise self._refuse(decision.reason)
        ticket = permit.ticket = decision.ticket
        if not isinstance(decision, Granted):
            if decision.displaced is not None:
                self._wake(decision.displaced, Refusal.QUEUE_FULL)
            loop = asyncio.get_running_loop()
            waker = self._wakers[ticket] = loop.create_future()
            timer = None
            if ticket.cutoff is not None:
                timer = loop.call_later(ticket.cutoff - asked_at, self._expire, ticket.cutoff)
            try:
                refused = await waker
            except BaseException:
                permit.ticket = None
                held = ticket.state is TicketState.RUNNING  # granted in the turn of the loop in which it was cancelled
                changes = self.budget.cancel(ticket, self.clock.now())
                if held:
                    self._give_back(changes)
                else:
                    self._carry(changes)  # who only leaves the line makes no progress
                raise
            finally:
                del self._wakers[ticket]
                if timer is not None:
                    timer.cancel()
            if refused is not None:
                permit.ticket = None
                raise self._refuse(refused)
        self.window.progress()
        if self._on_wait is not None:
            self._on_wait(ticket.priority, self.clock.now() - asked_at)

    def _expire(self, cutoff: float) -> None:
        # The loop's timer may ring a moment before the clock says so; the waiter must not be left without one.
        self._carry(self.budget.expire(max(cutoff, self.clock.now())))

    def _refuse(self, reason: Refusal) -> ChainOverloaded:
        self.refused[reason] += 1
        return refusal(reason)

    def _give_back(self, changes: Changes) -> None:
        """The permit is free again and its successor knows; progress comes last, or a refusal between the two would stay."""
        self._carry(changes)
        self.window.progress()

    def _carry(self, changes: Changes) -> None:
        for ticket in changes.granted:
            self._wake(ticket, None)
        for ticket in changes.refused:
            self._wake(ticket, Refusal.WAIT_TIMEOUT)

    def _wake(self, ticket: Ticket, refused: Refusal | None) -> None:
        waker = self._wakers[ticket]
        if not waker.done():  # done: its task is being cancelled and gives the ticket back when it runs
            waker.set_result(refused)


class Permit:
    """One permit, held by whoever acquired it until it is released, whatever becomes of those who wait for its work.

    Owned by one task, except for `promote` and `share`, which anybody may call at any time.
    """

    __slots__ = ("_permits", "consumer", "cutoff", "priority", "ticket")

    def __init__(self, permits: Permits, priority: Priority, cutoff: float | None, consumer: str | None) -> None:
        self._permits = permits
        self.priority = priority
        self.cutoff = cutoff
        self.consumer = consumer
        self.ticket: Ticket | None = None

    @property
    def held(self) -> bool:
        """Whether it is held, and not only waited for."""
        return self.ticket is not None and self.ticket.state is TicketState.RUNNING

    async def acquire(self, *, again: bool = False) -> None:
        """Waits for the permit; `again` after it was given back in the middle of the work, which no full queue refuses.

        Raises `ChainOverloaded` with `reason` `fill_queue_full` or `fill_wait_timeout`.
        """
        if self.ticket is not None:
            raise RuntimeError("this permit is held or waited for already")
        await self._permits._acquire(self, again=again)

    def release(self) -> None:
        """Gives the permit back; RuntimeError when it is not held."""
        ticket, self.ticket = self.ticket, None
        if ticket is None:
            raise RuntimeError("this permit is not held")
        self._permits._give_back(self._permits.budget.release(ticket, self._permits.clock.now()))

    def promote(self) -> None:
        """A request joined a backfill fill: the permit counts as a request's, now or when it will be acquired."""
        self.priority = Priority.REQUEST
        if self.ticket is not None:
            self._permits._carry(self._permits.budget.promote(self.ticket, self._permits.clock.now()))

    def share(self, consumer: str | None) -> None:
        """A request of `consumer` waits for this permit too: it takes the turns of either, now or when it will be acquired."""
        if self.consumer is None:
            self.consumer = consumer
        if self.ticket is not None:
            self._permits.budget.share(self.ticket, consumer)

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ticket is not None:
            self.release()


class PermitShift:
    """Everybody at work on one fill: fits `core.resting.Shift`. Begins with one, who holds the permit.

    When the permit is not to be had again, or who waits for it is cancelled, it stays given back and the error goes on.
    """

    def __init__(self, permit: Permit) -> None:
        self._permit = permit
        self._working = 1
        self._sleeping = 0
        self._returning = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<PermitShift {self._working} at work, {self._sleeping} asleep>"

    @asynccontextmanager
    async def asleep(self) -> AsyncIterator[None]:
        """Inside, whoever entered sleeps. Leaving waits until the permit is held again."""
        self._sleeping += 1
        self._stop()
        try:
            yield
        finally:
            self._sleeping -= 1
            self._working += 1
        await self._return()

    @asynccontextmanager
    async def parted(self, branches: int) -> AsyncIterator[Callable[[], None]]:
        """Inside, `branches` take the place of whoever entered; each calls what is yielded when it has ended."""
        at_work = branches

        def ended() -> None:
            nonlocal at_work
            at_work -= 1
            self._stop()

        self._working += branches - 1
        try:
            yield ended
        finally:
            self._working += 1 - at_work
        await self._return()

    def _stop(self) -> None:
        """One works no longer. Where nobody sleeps it is by the end of the work, which somebody waits for and takes up."""
        self._working -= 1
        if self._working <= 0 and self._sleeping and self._permit.held:
            self._permit.release()

    async def _return(self) -> None:
        async with self._returning:  # of several that wake, one waits for the permit on behalf of all
            if not self._permit.held:
                await self._permit.acquire(again=True)
