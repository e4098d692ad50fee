"""The door: who comes in is decided at once, and nobody waits in front of it.

    COLD   may need an upstream: one place of the process and one of its chain, both or neither
    WARM   the answer is known: a place of a lane of its own, which no cold load can take away

Only the cold lane is refused for cold load, and only its refusals open saturation windows. A batch comes in by the warm lane,
before anybody can know what it needs, and takes its cold places once that is known: one for each block that is not at hand.

Where consumers are told apart none of them fills a gate: who is inside already gets no more than three times the cold places
that are then left. So one that floods leaves a quarter to everybody else, two leave a sixteenth, and who has nothing finds room.
Synchronous; `now` is an argument.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from app.core.saturation import Gate

TIMES_WHAT_IS_LEFT = 3
"""So many places may one consumer hold for each that is left."""


class Lane(enum.StrEnum):
    """Which way a request takes."""

    COLD = "cold"
    WARM = "warm"


class Shed(enum.StrEnum):
    """Why a request is turned away. The values are metric labels. `CONSUMER`: there is room, but for others."""

    OVERLOADED = "overloaded"
    CHAIN_OVERLOADED = "chain_overloaded"
    CONSUMER = "consumer_concurrency"
    WARM_LANE = "warm_lane"


class Place:
    """What one request holds. Only the door changes it. `cold` counts its places in the cold lane, `warm` those in the warm."""

    __slots__ = ("chain_key", "cold", "consumer", "lane", "left", "warm")

    def __init__(self, lane: Lane, chain_key: int | None, consumer: str | None = None) -> None:
        self.lane = lane
        self.chain_key = chain_key
        self.consumer = consumer
        self.cold = 0
        self.warm = 0
        self.left = False

    def __repr__(self) -> str:
        return f"<Place {self.lane} chain={self.chain_key} cold={self.cold} warm={self.warm}>"


class Door:
    """The gates of one process. Belongs to one event loop; every change happens between awaits.

    The places of a chain are its own gate, by chain key; a request that names no chain needs none of them.
    """

    def __init__(self, process: Gate, chains: Mapping[int, Gate], warm: Gate) -> None:
        self.process = process
        self.chains = chains
        self.warm = warm
        self._held: dict[tuple[Gate, str], int] = {}  # cold places, by consumer
        self._warm_served_at: float | None = None

    def __repr__(self) -> str:
        return f"<Door process={self.process!r} chains={dict(self.chains)!r} warm={self.warm!r}>"

    def enter(self, lane: Lane, chain_key: int | None, now: float, consumer: str | None = None) -> Place | Shed:
        """Lets one request in, or says why not; the refused hold nothing, and never held anything. `consumer`: who asks, where
        consumers are told apart."""
        place = Place(lane, chain_key, consumer)
        if lane is Lane.COLD:
            shed = self.add(place, 1, now)
            return place if shed is None else shed
        if not self.warm.has_room():
            return Shed.WARM_LANE  # known answers pile up: says nothing of work that is stuck, and opens no window
        self.warm.enter()
        place.warm = 1
        return place

    def add(self, place: Place, places: int, now: float) -> Shed | None:
        """So many more cold places for one request, all or none; None when it has them.

        What is larger than a gate counts as the whole gate: on an idle process every batch can run.
        """
        gates = self._gates(place)
        for gate in gates:
            if gate.limit is not None:
                places = min(places, gate.limit - place.cold)
        if places <= 0:
            return None
        for gate, shed in zip(gates, (Shed.OVERLOADED, Shed.CHAIN_OVERLOADED), strict=False):
            if not gate.has_room(places):
                gate.refuse(now)
                return shed
        if any(self._is_for_others(gate, place, places) for gate in gates):
            return Shed.CONSUMER  # he is over his own share: opens no window
        for gate in gates:
            gate.enter(places)
            self._hold(gate, place, places)
        place.cold += places
        return None

    def leave(self, place: Place, now: float, *, served: bool = True) -> None:
        """Gives back whatever the request holds; the second time nothing. `served`: it got an answer, not a refusal."""
        cold, warm = place.cold, place.warm
        place.cold = place.warm = 0
        place.left = True
        if cold:
            gates = self._gates(place)
            for gate in gates:
                gate.give_back(cold)
                self._hold(gate, place, -cold)
            for gate in gates:
                gate.window.progress()
        if warm:
            self.warm.give_back(warm)
            if served and not cold:
                self._warm_served_at = now

    def serves_known_answers(self, now: float) -> bool:
        """Whether the warm lane served somebody within the threshold of saturation."""
        return self._warm_served_at is not None and now - self._warm_served_at < self.process.window.threshold_s

    def _is_for_others(self, gate: Gate, place: Place, places: int) -> bool:
        """Whether the room that is left is not for this consumer. One request alone never has too much."""
        if place.consumer is None or gate.limit is None:
            return False
        held = self._held.get((gate, place.consumer), 0)
        return held > place.cold and held + places > TIMES_WHAT_IS_LEFT * (gate.limit - gate.taken - places)

    def _hold(self, gate: Gate, place: Place, places: int) -> None:
        if place.consumer is None:
            return
        held = self._held.pop((gate, place.consumer), 0) + places
        if held:
            self._held[gate, place.consumer] = held

    def _gates(self, place: Place) -> tuple[Gate, ...]:
        chain = None if place.chain_key is None else self.chains.get(place.chain_key)
        return (self.process,) if chain is None else (self.process, chain)
