"""How often one consumer may ask: a token bucket, and what one process knows of a bucket that many share.

A bucket holds up to `burst` tokens and is refilled at `per_second`; a request takes one. The shared bucket is a row in a
database and is asked for with one statement (`app/store/buckets.py`), which does exactly what `Bucket.take` does. A `Tab` is kept
by each process for each consumer, so that most requests need not ask:

    tokens that were taken from the bucket ahead of need (a lease)  -> allowed at once, spent only once
    no whole token was left when the bucket was last asked          -> denied at once, until there can be one
    neither                                                         -> the bucket is asked; one question at a time

A lease that is not used within half a second is lost: what was taken is never given back, so nothing is ever counted twice.
Synchronous; `now` is an argument, in the seconds of whoever's clock it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

LONGEST_WAIT_S = 3600.0
"""Nobody is told to come back later than that, though a bucket that is not refilled never has a token again."""

HOT_PER_SECOND = 300
"""A consumer that asks more often, all processes together, takes leases: one statement for many requests."""

LEASE_S = 0.5
"""How much of the rate a lease takes ahead at most, and for how long it is good."""

CONTENTION_WAIT_S = 1.0
"""When to come back after another process held the row of one's bucket for too long."""


class Layer(StrEnum):
    """Who decided. The values are metric labels."""

    LOCAL = "local"
    SHARED = "shared"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True)
class Rate:
    """Requires `per_second` finite and not below 0, `burst` finite and at least 1: ValueError."""

    per_second: float
    burst: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.per_second) and self.per_second >= 0):
            raise ValueError(f"per_second must be finite and not below 0, it is {self.per_second}")
        if not (math.isfinite(self.burst) and self.burst >= 1):
            raise ValueError(f"burst must be finite and at least 1, it is {self.burst}")

    def wait_s(self, tokens: float) -> float:
        """Until there is a whole token, where there are `tokens`: finite, whatever the rate."""
        missing = max(0.0, 1.0 - tokens)
        if missing == 0.0:
            return 0.0
        return min(LONGEST_WAIT_S, missing / self.per_second) if self.per_second > 0 else LONGEST_WAIT_S

    def share_of(self, replicas: int) -> Rate:
        """What one of so many processes may allow by itself, when it can ask nobody."""
        return Rate(self.per_second / replicas, max(1.0, self.burst / replicas))

    @property
    def window_s(self) -> int:
        """Whole seconds in which an empty bucket is full again; 0 when it never is."""
        return math.ceil(self.burst / self.per_second) if self.per_second > 0 else 0


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of asking a bucket: how many of the tokens asked for, and how many are left in it."""

    granted: int
    tokens: float


class Bucket:
    """A bucket in memory, full at first."""

    __slots__ = ("_rate", "_refilled_at", "tokens")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self.tokens = rate.burst
        self._refilled_at = now

    def take(self, want: int, now: float) -> Taken:
        """As many of `want` tokens as there are. A clock that is behind refills nothing, and what it fails to refill is not
        refilled twice later."""
        refill = max(0.0, now - self._refilled_at) * self._rate.per_second
        tokens = min(self._rate.burst, self.tokens + refill)
        granted = min(want, math.floor(tokens))
        self.tokens = tokens - granted
        self._refilled_at = max(self._refilled_at, now)
        return Taken(granted, self.tokens)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a request may go on. `remaining` more may now, as far as is known; after `wait_s` one more may than that."""

    allowed: bool
    remaining: int
    wait_s: float
    layer: Layer


class Tab:
    """What one process knows of one consumer's shared bucket. Owned by whoever asks the bucket.

    `asked_at` is when the question under way was sent, None while there is none.
    """

    __slots__ = (
        "_asks",
        "_asks_before",
        "_denied_until",
        "_known_at",
        "_local",
        "_rate",
        "_second",
        "_spare",
        "_spare_until",
        "_tokens",
        "asked_at",
        "seen_at",
    )

    def __init__(self, rate: Rate, now: float) -> None:
        self.asked_at: float | None = None
        self.seen_at = now
        self._rate = rate
        self._tokens = rate.burst
        self._known_at = now
        self._denied_until = now
        self._spare = 0
        self._spare_until = now
        self._local: Bucket | None = None
        self._second = math.floor(now)
        self._asks = 0
        self._asks_before = 0

    def decide(self, now: float) -> Decision | None:
        """From memory; None where the bucket has to be asked."""
        self._count(now)
        if self._spare and now < self._spare_until:
            self._spare -= 1
            return self._allowed(now, Layer.LOCAL)
        return self.denial(now)

    def denial(self, now: float) -> Decision | None:
        """The refusal that stands, if one does: there can be no token before its end, and no token of a lease is left."""
        if now >= self._denied_until or (self._spare and now < self._spare_until):
            return None
        return Decision(False, 0, self._denied_until - now, Layer.LOCAL)

    def want(self, waiting: int, now: float, share: int = 1) -> int:
        """How many tokens to ask for on behalf of so many waiting requests; `share`: of how many processes this is one, and the
        others are asked as often. No more is taken ahead than is going to be asked for: what is left over is lost to all."""
        self._count(now, 0)
        asks_per_s = max(self._asks, self._asks_before)
        if asks_per_s * share <= HOT_PER_SECOND:
            return waiting
        return waiting + math.ceil(min(self._rate.per_second / share, asks_per_s) * LEASE_S)

    def answered(self, want: int, taken: Taken, waiting: int, now: float) -> tuple[Decision, ...]:
        """The decisions on the first of those who wait; the others, if any, have to ask again."""
        self._tokens, self._known_at = taken.tokens, now
        given = min(taken.granted, waiting)
        self._spare = taken.granted - given
        self._spare_until = now + LEASE_S
        if taken.tokens < 1:
            self._denied_until = now + self._rate.wait_s(taken.tokens)
        decisions = [self._allowed(now, Layer.SHARED, given - index - 1) for index in range(given)]
        if taken.granted < want:
            wait_s = self._rate.wait_s(taken.tokens)
            decisions += [Decision(False, 0, wait_s, Layer.SHARED)] * (waiting - given)
        return tuple(decisions)

    def alone(self, now: float, replicas: int) -> Decision:
        """The shared bucket cannot be asked: one of this process's own, with its share of the rate, decides."""
        rate = self._rate.share_of(replicas)
        if self._local is None:
            self._local = Bucket(rate, now)
        taken = self._local.take(1, now)
        return Decision(taken.granted > 0, math.floor(taken.tokens), rate.wait_s(taken.tokens % 1), Layer.FALLBACK)

    def contended(self) -> Decision:
        """The database answers, but not on this row: somebody else asks too often under this name."""
        return Decision(False, 0, CONTENTION_WAIT_S, Layer.LOCAL)

    def says_nothing(self, now: float) -> bool:
        """Whether forgetting it changes nothing: a new one would decide alike."""
        idle_s = now - self.seen_at
        return (
            self.asked_at is None
            and now >= self._denied_until
            and not (self._spare and now < self._spare_until)
            and (self._local is None or (self._rate.per_second > 0 and idle_s >= self._rate.window_s))
        )

    def _allowed(self, now: float, layer: Layer, others: int = 0) -> Decision:
        """`others`: tokens of the same answer that are given to those who wait behind."""
        known = min(self._rate.burst, self._tokens + (now - self._known_at) * self._rate.per_second)
        wait_s = 0.0 if known >= self._rate.burst else self._rate.wait_s(known % 1)
        remaining = min(math.floor(known) + self._spare + others, math.floor(self._rate.burst))
        return Decision(True, remaining, wait_s, layer)

    def _count(self, now: float, asks: int = 1) -> None:
        self.seen_at = now
        second = math.floor(now)
        if second != self._second:
            self._asks_before = self._asks if second == self._second + 1 else 0
            self._asks, self._second = 0, second
        self._asks += asks
