"""The units of a second of one account: which call may use them when, in one process or in several that share them.

Alone, units come by themselves, `rate` a second, and BURST_S seconds' worth may be in hand. Where several processes are paid from
one account the tokens are in a row of a database (`app/store/spendings.py`), and each process leases what it needs:

    a call finds enough in hand    it starts
    it does not                    it takes a place in the line; what the line lacks is asked for at once (`Ask`)
    the tokens are there           they are leased, and more of them to whoever used more lately, while half of a burst is left
    they are not yet               they are promised for when they will be (`Lease.wait_s`); until then nothing more is asked for,
                                   so that those who wait take turns: each waits for one promise to every other, and no longer

So units go to whoever has calls to make, and whoever has none holds nothing. A call that takes more than a burst is promised all
of it for when a burst would be there, and it is made up for afterwards. Backfill is never promised anything: it gets what is
there while half of a burst would be left for whoever comes next.

What is leased is good for LEASE_S from the moment from which it may be used, by the clock of whoever asked; what is left then is
lost, never given back. An answer that took longer than ANSWER_S is none. So over any time of T seconds all processes together
start calls for at most

    rate * T  +  the larger of a burst and the largest call  +  rate * (LEASE_S + ANSWER_S)

units: what one alone would, and one more burst that is in hand. A process that has not heard of the others yet (`alone`) comes on
top with what it uses meanwhile; that is told and made up for with its next question. Where the database cannot be asked each
fills by itself with its last known part of the rate and of the burst.

Synchronous: `now` is monotonic, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .tokens import BURST_S, Ask, Hand, Lease, Place, nobody

QUANTUM_S = 0.1
"""What is promised at a time: the first call in the line, and those behind it while together they are so many seconds' worth."""

PATIENCE_S = 5.0
"""Nothing is promised for later than that."""

LATELY_S = 0.5
AHEAD_S = 0.25
"""For so long ahead is leased what was used lately, on the mean of about LATELY_S: by whoever makes several calls meanwhile."""

SOON_S = 0.001
"""The least that a call is told to wait that has to be asked for."""


class Throughput:
    """Of one account. Belongs to one event loop; every change happens between awaits. `rate` None: no limit."""

    __slots__ = (
        "_after",
        "_filled_at",
        "_flow",
        "_flow_at",
        "_hand",
        "_in_hand",
        "_largest",
        "_left",
        "_left_at",
        "_lines",
        "_pace",
        "_rate",
        "_used",
        "leased",
        "on_need",
        "part",
    )

    def __init__(self, rate: float | None) -> None:
        self.on_need: Callable[[], None] = nobody
        """Called when there is something to ask for."""
        self.part = 1.0
        """Of the rate, while this process fills by itself: others have the rest."""
        self.leased = False
        """Whether units come from what all share, and not by themselves."""
        self._used = 0.0  # that nobody was told of
        self._filled_at: float | None = None
        self._hand = Hand()
        self._lines: dict[bool, list[Place]] = {False: [], True: []}  # by whether they are patient
        self._after = {False: -math.inf, True: -math.inf}  # nothing is asked for such a line before
        self._left, self._left_at = 0.0, -math.inf
        self._flow, self._flow_at = 0.0, 0.0
        self._largest = 0.0
        self._pace = 0.0  # units a second that this process was promised lately
        self.rate = rate

    def __repr__(self) -> str:
        held = f"{self._hand.held:g} leased" if self.leased else f"{self._in_hand:g} in hand"
        return f"<Throughput {held} of {self._rate} a second, {sum(map(len, self._lines.values()))} in line>"

    @property
    def rate(self) -> float | None:
        """Units a second, of all processes. Setting it begins anew, with a burst in hand."""
        return self._rate

    @rate.setter
    def rate(self, rate: float | None) -> None:
        self._rate = rate
        self._in_hand = self.burst
        self._pace = self._per_second

    @property
    def burst(self) -> float:
        """Units that may be used at once, by all processes together."""
        return self._per_second * BURST_S

    # --- for calls --------------------------------------------------------------------------------------------------

    def turn_s(self, units: float, now: float, *, patient: bool) -> float:
        """How long a call has to wait for its turn, were it to queue now; 0: it may start. Where units are leased it is an
        estimate, and never 0 for who has to wait. Changes nothing."""
        if self._rate is None or not units:
            return 0.0
        kept = self.burst / 2 if patient else 0.0
        if self.leased:
            return self._leased_turn_s(units, kept, now, patient=patient)
        self._fill(now)
        rate = self._rate * self.part
        at_once = rate * BURST_S
        return max(0.0, (min(units + kept * self.part, at_once) - self._in_hand) / rate)

    def queue(self, units: float, now: float) -> None:
        """A call takes its place: it starts when its turn has come, or gives its place back."""
        if self._rate is None:
            return
        self._note(units, now)
        if self.leased:
            self._used += units - self._hand.take(units)[0]
            if self._hand.held < self._target(now) / 2:
                self.on_need()
            return
        self._fill(now)
        self._in_hand -= units
        self._used += units

    def leave(self, units: float, now: float) -> None:
        """A call that took its place will not be made."""
        if self._rate is None:
            return
        self._used = max(0.0, self._used - units)
        if not self.leased:
            self._in_hand += units
            self._fill(now)

    def join(self, place: Place, now: float) -> None:
        """A call that has to wait where units are leased: what it takes is asked for."""
        self._lines[place.patient].append(place)
        self._advance(now)
        if not place.came:
            self.on_need()

    def give_back(self, place: Place, now: float) -> None:
        """It will not be made; where its turn had come, its units are in hand again as long as they would have been."""
        if place in self._lines[place.patient]:
            self._lines[place.patient].remove(place)
        elif place.came and self.leased and place.good_until > now:
            self._hand.put(place.units, place.good_until)
        self._advance(now)

    # --- for whoever asks the database ------------------------------------------------------------------------------

    def alone(self, part: float, now: float) -> None:
        """From now on units come by themselves: this part of them. Whoever waits in the line has to look again."""
        self._fill(now)
        self.part = part
        if not self.leased:
            return
        self._advance(now)
        self._in_hand, self._filled_at = min(self._hand.held, self.burst * part), now
        self._forget_leases()
        self.leased = False
        waiting = [*self._lines[False], *self._lines[True]]
        self._lines = {False: [], True: []}
        for place in waiting:
            place.ring()

    def only(self, now: float) -> None:
        """Nobody else is there, as the database just said: what it has left is in hand."""
        self.alone(1.0, now)
        self._in_hand = max(self._in_hand, min(self._left, self.burst) - self._used)

    def lease(self, part: float, now: float) -> None:
        """From now on units are leased; what came by itself is gone, and what was used of it is told with the next question."""
        if not self.leased:
            self._fill(now)
            self._used = self._untold()
            self._in_hand = 0.0
            self._forget_leases()
            self._left, self._left_at = self.burst, -math.inf
            self.leased = True
        self.part = part

    def empty(self, now: float) -> None:
        """Others may be there, and nobody has asked yet: nothing is in hand."""
        self._in_hand, self._filled_at = min(0.0, self._in_hand), now

    def due_s(self, now: float) -> float | None:
        """When to look again: 0 is to ask now, None not before somebody needs something."""
        if not self.leased:
            return None
        self._advance(now)
        if self._hand.coming is not None:
            return self._hand.coming[1] - now
        for patient in (False, True):
            if self._lines[patient]:
                return max(0.0, self._after[patient] - now)
        return 0.0 if self._hand.held < self._target(now) / 2 else None

    def ask(self, now: float) -> Ask:
        """What to ask for now: where nothing is needed, only what has to be told."""
        if not self.leased:
            self._fill(now)
            self._used = self._untold()
            return Ask(used=self._used)
        self._advance(now)
        if self._hand.coming is not None:
            return Ask(used=self._used)
        line, patient = self._lines[False], self._lines[True]
        waiting = sum(place.units for place in line + patient)
        want = kept = 0.0
        for place in line:
            if want and want + place.units > self._per_second * QUANTUM_S:
                break
            want += place.units
        if not line and patient and self._after[True] <= now:
            want, kept = patient[0].units, self.burst / 2
        spare = max(0.0, waiting - want + self._target(now) - self._hand.held)
        return Ask(want, spare, kept, PATIENCE_S if line else 0.0, self._used)

    def answered(self, ask: Ask, lease: Lease, now: float) -> None:
        """The answer came, no later than ANSWER_S after it was asked for."""
        self._used = max(0.0, self._used - ask.used)
        self._left, self._left_at = lease.left, now
        if not self.leased:
            return
        patient = bool(ask.kept)
        if lease.granted:
            self._hand.coming = (lease.granted, now + lease.wait_s)
            self._pace = min(self._per_second, lease.granted / lease.wait_s) if lease.wait_s else self._per_second
        elif ask.want:
            self._after[patient] = now + lease.wait_s - ask.patience_s
        self._advance(now)

    # --- alone ------------------------------------------------------------------------------------------------------

    def _fill(self, now: float) -> None:
        if self._rate is None or self.leased:
            return
        rate = self._rate * self.part
        if self._filled_at is not None:
            self._in_hand += max(0.0, now - self._filled_at) * rate
        self._in_hand = min(self._in_hand, rate * BURST_S)
        self._filled_at = now if self._filled_at is None else max(now, self._filled_at)

    def _untold(self) -> float:
        """Of what was used alone, no more than would be missing of this process's part of a burst, and what is used ahead."""
        ahead = max(0.0, -self._in_hand)
        return min(max(0.0, self._used - ahead), self.burst * self.part) + min(self._used, ahead)

    # --- leased -----------------------------------------------------------------------------------------------------

    @property
    def _per_second(self) -> float:
        return self._rate or 0.0

    def _leased_turn_s(self, units: float, kept: float, now: float, *, patient: bool) -> float:
        self._advance(now)
        line = self._lines[False] + self._lines[True] if patient else self._lines[False]
        if not line and self._hand.covers(units):
            return 0.0
        ahead = sum(place.units for place in line) - (0.0 if self._hand.coming is None else self._hand.coming[0])
        left = min(self.burst, self._left + (now - self._left_at) * self._per_second)
        missing = max(0.0, ahead) + min(units + kept, self.burst) - self._hand.held - max(0.0, left)
        promised_s = max(0.0, -left) / self._per_second
        return max(SOON_S, promised_s + max(0.0, missing) / self._pace)

    def _advance(self, now: float) -> None:
        """What was promised is in hand when its time has come, what is no longer good is not, and whoever's turn it is starts."""
        self._hand.look(now)
        for line in (self._lines[False], self._lines[True]):
            while line and self._hand.covers(line[0].units):
                place = line.pop(0)
                self._note(place.units, now)
                _, place.good_until = self._hand.take(place.units)
                place.came = True
                place.ring()
            if line:
                break

    def _forget_leases(self) -> None:
        self._hand = Hand()
        self._after = {False: -math.inf, True: -math.inf}
        self._pace = self._per_second

    def _note(self, units: float, now: float) -> None:
        """So many are used."""
        self._flow = self._flow_now(now) + units / LATELY_S
        self._flow_at = now
        self._largest = max(units, self._largest / 2)

    def _flow_now(self, now: float) -> float:
        return self._flow * math.exp(-max(0.0, now - self._flow_at) / LATELY_S)

    def _target(self, now: float) -> float:
        """What to have in hand: nothing where no call that comes meanwhile is likely to find it."""
        ahead = self._flow_now(now) * AHEAD_S
        return ahead if ahead >= self._largest * 1.5 else 0.0
