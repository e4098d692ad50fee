"""Shutdown, as decisions: how far a process has come with it, and with which exit code it will end.

    RUNNING --signal--> LAME_DUCK --lame_duck_s--> DRAINING --nothing in flight, or drain_s--> ENDING --finish--> ENDED: 0
                                    '------------ another signal, or ending_s ran out: 1 ------------'

LAME_DUCK  probes say no, so that whoever sends requests stops doing so; everything is still served
DRAINING   nothing new is accepted, what is in flight may end
ENDING     background work ends, pools close

A signal that comes when all has ended changes nothing: between "ended" and "forced" in the same moment, ended wins.
Synchronous; `now` is an argument, in monotonic seconds.
"""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """Comparable: later phases are greater."""

    RUNNING = 0
    LAME_DUCK = 1
    DRAINING = 2
    ENDING = 3
    ENDED = 4


class Shutdown:
    """One process on its way out."""

    __slots__ = ("_drain_s", "_ending_s", "_forced", "_lame_duck_s", "_phase", "_until", "cut")

    def __init__(self, lame_duck_s: float, drain_s: float, ending_s: float) -> None:
        """Requires lame_duck_s >= 0, drain_s > 0 and ending_s > 0."""
        if lame_duck_s < 0 or drain_s <= 0 or ending_s <= 0:
            raise ValueError("lame_duck_s must not be negative, drain_s and ending_s must be positive")
        self._lame_duck_s = lame_duck_s
        self._drain_s = drain_s
        self._ending_s = ending_s
        self._phase = Phase.RUNNING
        self._until = 0.0  # when the phase is over at the latest
        self._forced = False
        self.cut = False
        """Whether the drain ran out with something still in flight."""

    def __repr__(self) -> str:
        return f"<Shutdown {self._phase.name}{' forced' if self._forced else ''}>"

    @property
    def phase(self) -> Phase:
        """As of the last event."""
        return self._phase

    @property
    def exit_code(self) -> int | None:
        """0 once all has ended, whatever was asked for by then; 1 when the process must end at once; None while it goes on."""
        if self._phase is Phase.ENDED:
            return 0
        return 1 if self._forced else None

    def signal(self, now: float, *, patient: bool) -> None:
        """A signal to end. The first begins the shutdown, with a lame duck if `patient`; any other forces the end."""
        if self._phase is not Phase.RUNNING:
            self._forced = True
            return
        self._phase = Phase.LAME_DUCK
        self._until = now + (self._lame_duck_s if patient else 0.0)

    def advance(self, now: float, *, in_flight: bool) -> Phase:
        """The phase by now. `in_flight`: whether a connection or a request is left."""
        if self._phase is Phase.LAME_DUCK and now >= self._until:
            self._phase = Phase.DRAINING
            self._until = now + self._drain_s
            # Even with nothing in flight the doors are closed before anything behind them is.
            return self._phase
        if self._phase is Phase.DRAINING and (not in_flight or now >= self._until):
            self.cut = in_flight
            self._phase = Phase.ENDING
            self._until = now + self._ending_s
        elif self._phase is Phase.ENDING and now >= self._until:
            self._forced = True
        return self._phase

    def finish(self) -> None:
        """Everything has ended. Requires ENDING."""
        if self._phase is not Phase.ENDING:
            raise RuntimeError(f"not everything can have ended while {self._phase.name}")
        self._phase = Phase.ENDED
