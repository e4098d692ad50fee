"""The line in front of a budget: whose turn it is.

Consumers take turns, one ticket each; the tickets of one consumer go first come, first served. So a hundred fills that one
consumer waits for do not precede the one of another. Where nobody is told apart this is a plain line.

A ticket that several consumers wait for has a place among the tickets of each, and leaves them all at once. Synchronous.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What the line needs to know of a ticket: who waits for it, and whether it may be sent away once it is in line."""

    @property
    def consumers(self) -> Collection[str | None]: ...
    @property
    def steadfast(self) -> bool: ...


T = TypeVar("T", bound=Waiting)


class Line(Generic[T]):
    """Waiting tickets of one class; leaving from the middle is cheap."""

    __slots__ = ("_lanes", "_tickets")

    def __init__(self) -> None:
        self._tickets: dict[T, None] = {}
        self._lanes: dict[str | None, dict[T, None]] = {}  # in the order of turns; none is empty

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[T]:
        return iter(self._tickets)

    def join(self, ticket: T) -> None:
        """Behind the other tickets of those who wait for it; who had none comes last in the order of turns."""
        self._tickets[ticket] = None
        for consumer in ticket.consumers:
            self._lanes.setdefault(consumer, {})[ticket] = None

    def share(self, ticket: T, consumer: str | None) -> None:
        """Another consumer waits for a ticket that is in line."""
        self._lanes.setdefault(consumer, {})[ticket] = None

    def leave(self, ticket: T) -> None:
        """It waits no longer, whatever the reason, and nobody's turn has passed."""
        del self._tickets[ticket]
        for consumer in ticket.consumers:
            lane = self._lanes[consumer]
            del lane[ticket]
            if not lane:
                del self._lanes[consumer]

    def first(self) -> T | None:
        """Whose turn it is."""
        return next((next(iter(lane)) for lane in self._lanes.values()), None)

    def pass_turn(self) -> None:
        """The first one is given its turn, and leaves; its consumer comes last from now on."""
        consumer, lane = next(iter(self._lanes.items()))
        self.leave(next(iter(lane)))
        if self._lanes.pop(consumer, None) is not None:
            self._lanes[consumer] = lane

    def yielding_to(self, consumer: str | None) -> T | None:
        """In a full line: the ticket that has to leave for one more of `consumer`, or None when it has its share already.

        It is the last one of whoever has most, by more than the newcomer would have, and only they wait for it.
        """
        had = len(self._lanes.get(consumer, ()))
        longest = max(self._lanes.values(), key=len, default={})
        if len(longest) <= had + 1:
            return None
        leaving = (ticket for ticket in reversed(longest) if len(ticket.consumers) == 1 and not ticket.steadfast)
        return next(leaving, None)
