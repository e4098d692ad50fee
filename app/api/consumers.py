"""Consumers at the door: who asks is found out, and nobody asks for more than his share.

    a key? -- known from memory, else looked for once ----> verified, or nobody in particular: told apart by network
    keys required and none verified ----------------------> 401
    over the rate, as is known without asking -------------> 429 ConsumerRateLimited
    too many in flight already ----------------------------> 429 ConsumerConcurrency
    admitted by the door, then: a token of the rate taken -> 429 ConsumerRateLimited, or served

The first layer stands in front of admission: what it refuses takes no place and asks nobody. The second stands behind it, so that
whoever is refused for want of a place has not paid for it. Neither is installed where no limit and no key is configured.

The fields `RateLimit-Policy` and `RateLimit` are those of draft-ietf-httpapi-ratelimit-headers-10: `q` requests at once and again
every `w` seconds; `r` requests now, and one more after `t` seconds. Of a refusal `t` is what `Retry-After` says.

Limits on requests in flight are each process's own; the rate is that of all processes together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.lobby import Lobby, open_house_of
from app.api.refusing import Refusals
from app.api.visit import Visit, visit_of
from app.core.bucket import LONGEST_WAIT_S, Decision, Rate
from app.core.consumers import Pepper, Proxies
from app.core.errors import ConsumerConcurrency, ConsumerRateLimited, Overloaded, ProofError, Unauthorized
from app.core.purpose import Errand, errand

POLICY = "default"
_ROUNDING_S = 0.001
"""Clocks tick, and numbers are rounded: whoever comes back after exactly the wait must find his token."""

_LONGEST_CREDENTIAL = 256
_MOST_CREDENTIALS = 2
"""One for each way to show one; what a client says more often is not read."""
_ASKS_FOR_A_KEY = ((b"www-authenticate", b'Bearer realm="copath"'),)


class Consumers:
    """ASGI layer in front of admission: tells consumers apart, and limits those known to ask for too much."""

    def __init__(
        self, app: ASGIApp, *, pepper: Pepper, proxies: Proxies, keys_required: bool, max_in_flight: int | None
    ) -> None:
        """`max_in_flight`: of one consumer in this process."""
        self.app = app
        self._pepper = pepper
        self._proxies = proxies
        self._keys_required = keys_required
        self._max_in_flight = max_in_flight
        self._in_flight: dict[str, int] = {}
        self._refusals = Refusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = visit_of(scope)
        if scope["type"] != "http" or not visit.controlled:
            await self.app(scope, receive, send)
            return
        house = open_house_of(scope)
        if house.closing:  # refused for that, whoever asks
            await self.app(scope, receive, send)
            return
        try:
            visit.key_id = key_id = await self._key_of(house, visit, scope)
            consumer = visit.consumer = self._name(key_id, scope)
            self._require_rate(house, visit, consumer)
            place = self._enter(consumer)
        except ProofError as refusal:
            self._refusals.note(house, visit, refusal)
            raise
        if self._keys_required:
            send = _for_its_holder_alone(send)
        told = errand.set(Errand(anonymous=key_id is None, consumer=consumer))
        try:
            await self.app(scope, receive, send if place is None else place.until_the_last_byte(send))
        finally:
            errand.reset(told)
            if place is not None:
                place.leave()

    async def _key_of(self, house: Lobby, visit: Visit, scope: Scope) -> str | None:
        """The id of the verified key among the credentials. Raises `Unauthorized` where there has to be one."""
        shown = [*islice(_credentials(scope), _MOST_CREDENTIALS)]
        keys = house.keys
        if keys is not None:
            for credential in shown:
                if (key_id := keys.verified(credential)) is not None:
                    return key_id
            for credential in shown:
                if (key_id := await keys.looked_up(credential)) is not None:
                    return key_id
        if not self._keys_required:
            return None
        if shown and (keys is None or not keys.known):
            raise Overloaded("API keys cannot be checked for the moment; retry with back-off", reason="keys")
        visit.fields = _ASKS_FOR_A_KEY
        if shown:
            raise Unauthorized("this API key is not known, or counts no more")
        raise Unauthorized("an API key is needed: send Authorization: Bearer KEY, or X-API-Key: KEY")

    def _name(self, key_id: str | None, scope: Scope) -> str:
        if key_id is not None:
            return self._pepper.name_of_key(key_id)
        forwarded = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        client = scope.get("client")
        return self._pepper.name_of_network(self._proxies.network_of(client[0] if client else None, forwarded))

    def _require_rate(self, house: Lobby, visit: Visit, consumer: str) -> None:
        denial = None if house.rates is None else house.rates.denial(consumer)
        if house.rates is not None and denial is not None:
            visit.fields = fields_of(house.rates.rate, denial)
            raise refusal_of(denial)

    def _enter(self, consumer: str) -> _Stay | None:
        if self._max_in_flight is None:
            return None
        if self._in_flight.get(consumer, 0) >= self._max_in_flight:
            raise ConsumerConcurrency(f"more than {self._max_in_flight} of your requests are in flight")
        return _Stay(consumer, self._in_flight)


class Toll:
    """ASGI layer behind admission: takes a token for a request that has its place, within 50 ms."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = visit_of(scope)
        if scope["type"] == "http" and visit.consumer is not None:
            rates = open_house_of(scope).rates
            if rates is not None:
                decision = await rates.take(visit.consumer)
                visit.fields = fields_of(rates.rate, decision)
                if not decision.allowed:
                    raise refusal_of(decision)
        await self.app(scope, receive, send)


class _Stay:
    """One request of a consumer in flight; left once, with the last byte of its answer at the latest."""

    __slots__ = ("_consumer", "_in_flight", "_left")

    def __init__(self, consumer: str, in_flight: dict[str, int]) -> None:
        self._consumer = consumer
        self._in_flight = in_flight
        self._left = False
        in_flight[consumer] = in_flight.get(consumer, 0) + 1

    def leave(self) -> None:
        if self._left:
            return
        self._left = True
        others = self._in_flight[self._consumer] - 1
        if others:
            self._in_flight[self._consumer] = others
        else:
            del self._in_flight[self._consumer]

    def until_the_last_byte(self, send: Send) -> Send:
        async def watched(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                self.leave()

        return watched


def _for_its_holder_alone(send: Send) -> Send:
    """A cache that others share would serve them without a key: `public` lets it, whatever the request showed (RFC 9111, 3.5)."""

    async def kept_apart(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                (name, value.replace(b"public", b"private", 1) if name == b"cache-control" else value)
                for name, value in message["headers"]
            ]
        await send(message)

    return kept_apart


def refusal_of(decision: Decision) -> ConsumerRateLimited:
    """The error of a request over its rate."""
    return ConsumerRateLimited(
        "your requests are over their rate; retry after the time given", retry_after_s=float(_whole_s(decision.wait_s))
    )


def fields_of(rate: Rate, decision: Decision) -> tuple[tuple[bytes, bytes], ...]:
    """What the answer says of the rate."""
    policy = f'"{POLICY}";q={math.floor(rate.burst)}'
    if rate.window_s:
        policy += f";w={rate.window_s}"
    left = f'"{POLICY}";r={max(0, decision.remaining)}'
    if decision.wait_s > 0:
        left += f";t={_whole_s(decision.wait_s)}"
    return (b"ratelimit-policy", policy.encode()), (b"ratelimit", left.encode())


def _whole_s(wait_s: float) -> int:
    return max(1, math.ceil(min(wait_s + _ROUNDING_S, LONGEST_WAIT_S)))


def _credentials(scope: Scope) -> Iterable[str]:
    """What was shown, in the order of the header, where it may be a key."""
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            shown = value
        elif name == b"authorization" and value[:7].lower() == b"bearer ":
            shown = value[7:]
        else:
            continue
        if 0 < len(shown) <= _LONGEST_CREDENTIAL:
            yield shown.decode("latin-1").strip()
