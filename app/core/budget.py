"""How many blocks of one chain may be filled at once, and whose turn it is.

A fill needs a permit. Permits are shared by two classes: fills that a request waits for, and the backfill of gaps.
Everything here is synchronous and knows no clock: each method takes `now` (monotonic seconds), decides, and returns
what its caller must do next: whom to wake with a permit, whom to send away. `app/chain/permits.py` is the async face.

    P1  running <= limit, and running backfill <= limit - reserve; once lowered, nothing starts until that holds again
    P2  a request waits only while no permit is free
    P3  no backfill starts while a request waits
    P4  a ticket that is cancelled, waiting or running, leaves nothing behind
    P5  raising the limit starts waiters at once; lowering it revokes nothing

Inside a class consumers take turns (`core.turns`). In a full line nobody waits with more than his share while another is sent
away: who has most gives a place up.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from app.core.turns import Line


class Priority(enum.StrEnum):
    """The class of a fill. The values are metric labels."""

    REQUEST = "request"
    BACKFILL = "backfill"


class Refusal(enum.StrEnum):
    """Why a permit is refused. The values are part of the public contract."""

    QUEUE_FULL = "fill_queue_full"
    WAIT_TIMEOUT = "fill_wait_timeout"


class TicketState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Ticket:
    """One claim to one permit. It has an identity, so that a second release is an error and holders can be told apart.

    Owned by the budget: only its methods change a ticket. `cutoff` is the moment after which starting is pointless, or
    None. `consumers` are those on whose behalf the fill runs, None for whoever was not told apart. `steadfast`: it is not
    sent away to make room, since its work had begun.
    """

    __slots__ = ("consumers", "cutoff", "priority", "state", "steadfast")

    def __init__(self, priority: Priority, cutoff: float | None, consumer: str | None, *, steadfast: bool) -> None:
        self.priority = priority
        self.cutoff = cutoff
        self.consumers: dict[str | None, None] = {consumer: None}
        self.state = TicketState.WAITING
        self.steadfast = steadfast

    def __repr__(self) -> str:
        return f"<Ticket {self.priority} {self.state.value}>"


@dataclass(frozen=True, slots=True)
class Granted:
    """The permit is held from now on."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Queued:
    """The ticket waits; a later `Changes` names it, as granted or as refused, or a later `Queued` as displaced.

    `displaced` waited until now, and is sent away (`QUEUE_FULL`) since its consumer had more places than this one's."""

    ticket: Ticket
    displaced: Ticket | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """No permit, and no place in the line."""

    reason: Refusal


Decision = Granted | Queued | Refused


@dataclass(frozen=True, slots=True)
class Changes:
    """What a call did to waiting tickets: `granted` ones run from now on, `refused` ones waited past their cutoff."""

    granted: tuple[Ticket, ...] = ()
    refused: tuple[Ticket, ...] = ()


class FillBudget:
    """Permits for the fills of one chain.

    Requires limit >= 1, 0 <= reserve < limit, max_queued >= 0. `reserve` permits are never given to backfill; the
    default is a quarter of the limit, at least one, and none when there is a single permit. `max_queued` bounds waiting
    requests; backfill, which is bounded by its own worker, may wait up to the limit.
    """

    def __init__(self, limit: int, *, reserve: int | None = None, max_queued: int = 64) -> None:
        if limit < 1:
            raise ValueError(f"the limit must be at least 1, not {limit}")
        if reserve is not None and not 0 <= reserve < limit:
            raise ValueError(f"the reserve must be in [0, {limit}), not {reserve}")
        if max_queued < 0:
            raise ValueError(f"max_queued must not be negative, it is {max_queued}")
        self._limit = limit
        self._asked_reserve = reserve
        self._max_queued = max_queued
        self._lines: dict[Priority, Line[Ticket]] = {Priority.REQUEST: Line(), Priority.BACKFILL: Line()}
        self._running: dict[Priority, set[Ticket]] = {Priority.REQUEST: set(), Priority.BACKFILL: set()}

    # --- what is ----------------------------------------------------------------------------------------------------

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def reserve(self) -> int:
        """Permits that backfill never takes. Follows the limit when that is changed."""
        if self._asked_reserve is not None:
            return min(self._asked_reserve, self._limit - 1)
        return 0 if self._limit == 1 else max(1, self._limit // 4)

    def running(self, priority: Priority | None = None) -> int:
        """True holders, of one class or of both."""
        if priority is not None:
            return len(self._running[priority])
        return sum(len(holders) for holders in self._running.values())

    def waiting(self, priority: Priority | None = None) -> int:
        if priority is not None:
            return len(self._lines[priority])
        return sum(len(line) for line in self._lines.values())

    def __repr__(self) -> str:
        return (
            f"<FillBudget {self.running()}/{self._limit} running ({self.running(Priority.BACKFILL)} backfill), "
            f"{self.waiting()} waiting>"
        )

    # --- what happens -----------------------------------------------------------------------------------------------

    def request(
        self,
        now: float,
        priority: Priority,
        *,
        cutoff: float | None = None,
        consumer: str | None = None,
        again: bool = False,
    ) -> Decision:
        """Asks for a permit. Whose cutoff has come is refused even when a permit is free: it could not finish.

        `again`: for work that had one and gave it back while it slept. It may wait beyond `max_queued`: it is no new work.
        """
        if cutoff is not None and cutoff <= now:
            return Refused(Refusal.WAIT_TIMEOUT)
        ticket = Ticket(priority, cutoff, consumer, steadfast=again)
        if self._may_start(priority):  # then nobody of this class waits, and no request does: see `_assign`
            self._start(ticket)
            return Granted(ticket)
        line = self._lines[priority]
        displaced = None
        if not again and len(line) >= (self._max_queued if priority is Priority.REQUEST else self._limit):
            displaced = line.yielding_to(consumer)
            if displaced is None:
                return Refused(Refusal.QUEUE_FULL)
            line.leave(displaced)
            displaced.state = TicketState.ENDED
        line.join(ticket)
        return Queued(ticket, displaced)

    def release(self, ticket: Ticket, now: float) -> Changes:
        """Gives a held permit back. Releasing a ticket that holds none is a fault of the caller: RuntimeError."""
        if ticket.state is not TicketState.RUNNING:
            raise RuntimeError(f"{ticket!r} holds no permit to release")
        self._running[ticket.priority].remove(ticket)
        ticket.state = TicketState.ENDED
        return self._assign(now)

    def cancel(self, ticket: Ticket, now: float) -> Changes:
        """The claim is dropped, whether it waits or was granted meanwhile. Dropping an ended one changes nothing."""
        if ticket.state is TicketState.RUNNING:
            return self.release(ticket, now)
        if ticket.state is TicketState.WAITING:
            self._lines[ticket.priority].leave(ticket)
            ticket.state = TicketState.ENDED
            return self._assign(now)
        return Changes()

    def expire(self, now: float) -> Changes:
        """Sends away every waiter whose cutoff has come."""
        refused = [
            ticket
            for line in self._lines.values()
            for ticket in line
            if ticket.cutoff is not None and ticket.cutoff <= now
        ]
        for ticket in refused:
            self._lines[ticket.priority].leave(ticket)
            ticket.state = TicketState.ENDED
        changes = self._assign(now)
        return Changes(granted=changes.granted, refused=(*refused, *changes.refused))

    def promote(self, ticket: Ticket, now: float) -> Changes:
        """A request joined this backfill fill: from now on it counts as a request's, running or waiting.

        A waiter goes to the end of the other line, which may then exceed `max_queued`: it brings no new work.
        """
        if ticket.priority is Priority.REQUEST or ticket.state is TicketState.ENDED:
            return Changes()
        if ticket.state is TicketState.RUNNING:
            self._running[Priority.BACKFILL].remove(ticket)
            self._running[Priority.REQUEST].add(ticket)
        else:
            self._lines[Priority.BACKFILL].leave(ticket)
            self._lines[Priority.REQUEST].join(ticket)
        ticket.priority = Priority.REQUEST
        return self._assign(now)

    def share(self, ticket: Ticket, consumer: str | None) -> None:
        """A request of `consumer` joined this fill: its ticket waits in the turns of everybody who waits for it.

        What was nobody's, as after a promotion, is his. Backfill takes no part in turns."""
        if ticket.priority is Priority.BACKFILL or consumer is None or consumer in ticket.consumers:
            return
        line = self._lines[ticket.priority] if ticket.state is TicketState.WAITING else None
        if None in ticket.consumers:
            if line is not None:
                line.leave(ticket)
            ticket.consumers = {consumer: None}
            if line is not None:
                line.join(ticket)
        else:
            ticket.consumers[consumer] = None
            if line is not None:
                line.share(ticket, consumer)

    def set_limit(self, limit: int, now: float) -> Changes:
        """Changes the number of permits while running. Requires limit >= 1."""
        if limit < 1:
            raise ValueError(f"the limit must be at least 1, not {limit}")
        self._limit = limit
        return self._assign(now)

    # --- how it is decided ------------------------------------------------------------------------------------------

    def _may_start(self, priority: Priority) -> bool:
        if self.running() >= self._limit:
            return False
        if priority is Priority.REQUEST:
            return True
        return self.running(Priority.BACKFILL) < self._limit - self.reserve

    def _start(self, ticket: Ticket) -> None:
        ticket.state = TicketState.RUNNING
        self._running[ticket.priority].add(ticket)

    def _assign(self, now: float) -> Changes:
        """Every change ends here: requests first, then backfill, as far as permits go. Who is late is not started.

        Afterwards nobody waits who could start, so requests wait only while no permit is free: that is P2 and P3.
        """
        granted: list[Ticket] = []
        refused: list[Ticket] = []
        for priority in (Priority.REQUEST, Priority.BACKFILL):
            line = self._lines[priority]
            while (ticket := line.first()) is not None and self._may_start(priority):
                if ticket.cutoff is not None and ticket.cutoff <= now:
                    line.leave(ticket)
                    ticket.state = TicketState.ENDED
                    refused.append(ticket)
                else:
                    line.pass_turn()
                    self._start(ticket)
                    granted.append(ticket)
        return Changes(granted=tuple(granted), refused=tuple(refused))
