"""Tokens that several processes lease from one row: what is asked for and answered, and what one process has in hand of them.

A lease is good from when it may be used, for LEASE_S; what is left then is lost, and never given back. Synchronous: `now` is
monotonic, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

BURST_S = 1.0
"""So many seconds' worth of throughput may be used at once; over any time it is so much more than the rate and no more."""

LEASE_S = 0.5
"""For how long what is leased may be used."""

ANSWER_S = 0.5
"""An answer that took longer is none: by then it is not known from when on it was good."""

_EXACT = 1e-9  # what sums of floats may be off by


def nobody() -> None:
    """Does nothing: who hears of something where nobody does."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a process asks of the tokens that all share: `want`, whole or not at all, if need be ahead of time, where `kept` more
    are there then and it is no further ahead than `patience_s`; and of `spare` what is there beyond half of a burst. `used` went
    without having been asked for."""

    want: float = 0.0
    spare: float = 0.0
    kept: float = 0.0
    patience_s: float = 0.0
    used: float = 0.0


@dataclass(frozen=True, slots=True)
class Lease:
    """The answer: so many units, to be used `wait_s` from now on; where there are none, what was wanted might be had then. `left`
    in the row: below 0, what is promised. The provider said to all who are paid from the account to wait for `cool_s`."""

    granted: float
    wait_s: float
    left: float
    cool_s: float = 0.0


class Place:
    """Of a call in the line. `came`: its units are taken, it starts. `ring` is called then, and when the line is gone."""

    __slots__ = ("came", "good_until", "patient", "ring", "units")

    def __init__(self, units: float, *, patient: bool, ring: Callable[[], None] = nobody) -> None:
        self.units = units
        self.patient = patient
        self.ring = ring
        self.came = False
        self.good_until = math.inf


class Hand:
    """What one process has leased: the oldest is used first. Owned by its account."""

    __slots__ = ("_parcels", "coming")

    def __init__(self) -> None:
        self._parcels: list[tuple[float, float]] = []  # units, and until when they are good
        self.coming: tuple[float, float] | None = None
        """Units that are promised, and from when on."""

    def __repr__(self) -> str:
        return f"<Hand {self.held:g}, {self.coming} coming>"

    @property
    def held(self) -> float:
        """Units that may be used now, as of the last look."""
        return sum(units for units, _ in self._parcels)

    def look(self, now: float) -> None:
        """What was promised is here when its time has come, and what is no longer good is not."""
        if self.coming is not None and now >= self.coming[1]:
            self.put(self.coming[0], self.coming[1] + LEASE_S)
            self.coming = None
        while self._parcels and self._parcels[0][1] < now:
            del self._parcels[0]

    def put(self, units: float, good_until: float) -> None:
        """So many more."""
        self._parcels.append((units, good_until))
        self._parcels.sort(key=lambda parcel: parcel[1])

    def covers(self, units: float) -> bool:
        """Whether there are so many."""
        return self.held >= units * (1 - _EXACT)

    def take(self, units: float) -> tuple[float, float]:
        """As many of them as there are: how many, and until when all of those would have been good."""
        taken, good_until = 0.0, math.inf
        while self._parcels and not math.isclose(taken, units, rel_tol=_EXACT):
            here, until = self._parcels.pop(0)
            part = min(here, units - taken)
            taken, good_until = taken + part, min(good_until, until)
            if part < here:
                self._parcels.insert(0, (here - part, until))
        return taken, good_until
