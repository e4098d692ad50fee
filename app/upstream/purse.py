"""Paying for the calls of one upstream: from which account, at which prices, and waiting for the turn of a call.

`core.spending` decides; here its decisions are carried to the calls. Who waits for its turn holds no permit meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlsplit

from app.core.deadlines import remaining_s, turn_left_s
from app.core.purpose import Purpose, errand_in_hand
from app.core.resting import asleep
from app.core.spending import Account, Cost, Prices
from app.core.tokens import Place

from .allowance import MIN_USEFUL_S
from .faults import CallFailed, Fault

LONGEST_WAIT_S = 5.0
"""A call on behalf of a request does not wait longer for its turn: better to say when to come back. Backfill has time."""

BUSY_S = 0.25
"""With a longer wait than that in front of an account, upstreams that are paid from another one are asked first."""

LONGEST_RETRY_AFTER_S = 3600.0

GRANT_LOOK_S, GRANT_LOOKS = 0.02, 25
"""How often, and how many times, a call looks whether it was granted its units of the day."""

GRANTED_S = 1.0
"""After so long others have told what they did with what they were granted."""

_KEY = re.compile(r"(?=.*\d)[\w.~+=-]{16,}", re.ASCII)


class Accounts:
    """The accounts of a whole process: upstreams whose calls are paid for together share one.

    Providers give one key for many networks, each under a host name of its own: the same key under the same site (the last two
    labels of the host name) is one account. A key is what is long and has a digit, in the user part, the path, the query or a
    header value. Without one, only the same URL is the same account.
    """

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, ...], Account] = {}

    def of(
        self,
        url: str,
        headers: Mapping[str, str],
        units_per_second: float | None = None,
        units_per_day: float | None = None,
    ) -> Account:
        """The account of an upstream. Where several upstreams state limits of one account, the lowest hold."""
        account = self._by_key.setdefault(_key_of(url, headers), Account())
        account.narrow(units_per_second, units_per_day)
        return account

    def named(self) -> list[tuple[str, Account]]:
        """Each account, by a name that is the same in every process and tells nothing of its key."""
        return [
            (hashlib.sha256("\n".join(("copath account", *key)).encode()).hexdigest()[:32], account)
            for key, account in self._by_key.items()
        ]


def _key_of(url: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    parts = urlsplit(url)
    words = [parts.username or "", parts.password or "", *parts.path.split("/")]
    words += [value for _, value in parse_qsl(parts.query)]
    words += [word for value in headers.values() for word in value.split()]
    keys = sorted({word for word in words if _KEY.fullmatch(word)})
    return (_site(parts.hostname or ""), *keys) if keys else (url,)


def _site(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return ".".join(host.split(".")[-2:])
    return host


class Purse:
    """What one upstream's calls are paid from. Owned by its node."""

    def __init__(
        self,
        prices: Prices | None = None,
        account: Account | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.prices = prices or Prices()
        self.account = account or Account()
        self.spent = dict.fromkeys(Purpose, 0.0)
        """Units, by what they were spent on, since the start."""
        self.waiting = 0
        """Calls that wait for their turn at this moment."""
        self._clock = clock
        self._wall_clock = wall_clock
        self._pause = pause

    def __repr__(self) -> str:
        return f"<Purse {self.account!r}>"

    @property
    def spent_share(self) -> float:
        """The share of the account's units of today that is spent."""
        return self.account.spent_share(self._wall_clock())

    def most_at_once(self, method: str) -> int | None:
        """How many calls of one method a batch may hold without taking more than a second's throughput; None: any number."""
        limit, one = self.account.units_per_second, self.prices.of((method,)).throughput
        return None if limit is None or not one else max(1, int(limit // one))

    # --- for whoever chooses between upstreams ----------------------------------------------------------------------

    def closed_s(self, methods: Sequence[str]) -> float:
        """For how long these calls may not be made for the errand in hand, since today's units are spent; 0: they may."""
        wall_s = self._wall_clock()
        if self.account.admits(self.prices.of(methods).units, errand_in_hand(), wall_s):
            return 0.0
        return self.account.day_left_s(wall_s)

    def busy(self, methods: Sequence[str]) -> bool:
        """Whether these calls would wait for their turn, and for more than a moment."""
        return self.account.turn_s(self.prices.of(methods).throughput, errand_in_hand(), self._clock()) > BUSY_S

    # --- for a call -------------------------------------------------------------------------------------------------

    async def turn(self, cost: Cost) -> None:
        """Returns when the call's turn has come. Raises `CallFailed` where that would be too late, or in vain."""
        if not self.account.admits(cost.units, errand_in_hand(), self._wall_clock()):
            raise self._spent()
        await self._wait_for_a_second(cost)
        if not self.account.granted(cost.units, self._wall_clock()):
            await self._wait_for_a_grant(cost)

    async def _wait_for_a_second(self, cost: Cost) -> None:
        here, account = errand_in_hand(), self.account
        patient = here.purpose is Purpose.BACKFILL
        while wait_s := account.turn_s(cost.throughput, here, self._clock()):
            within_s = self._require_time(wait_s, patient=patient)
            if account.throughput.leased:
                if await self._wait_for_lease(cost, within_s, patient=patient):
                    return None
            elif not patient:
                return await self._wait_in_line(cost, wait_s)
            else:
                await self._wait(wait_s)  # not in line: whoever comes for a request goes first
        account.queue(cost.throughput, self._clock())
        return None

    def charge(self, cost: Cost) -> None:
        """The call starts. Raises `CallFailed` where today's units do not allow it."""
        here = errand_in_hand()
        if not self.account.charge(cost.units, here, self._wall_clock()):
            raise self._spent(cost=cost)
        self.spent[here.purpose] += cost.units

    def require(self, method: str) -> None:
        """Raises `CallFailed` where today's units do not allow one more of these."""
        if self.closed_s((method,)):
            raise self._spent()

    def owe(self, method: str) -> None:
        """The node sent something that is paid for by itself."""
        units = self.prices.of((method,)).units
        self.account.owe(units, self._wall_clock())
        self.spent[errand_in_hand().purpose] += units

    async def _wait_for_a_grant(self, cost: Cost) -> None:
        """Other replicas may spend the rest of today's units: this one asks for what it needs of them."""
        self.account.want(cost.units)
        try:
            for _ in range(GRANT_LOOKS):
                await self._wait(GRANT_LOOK_S)
                if self.account.granted(cost.units, self._wall_clock()):
                    return
        finally:
            self.account.want(-cost.units)

    async def _wait_in_line(self, cost: Cost, wait_s: float) -> None:
        self.account.queue(cost.throughput, self._clock())
        try:
            await self._wait(wait_s)
        except BaseException:
            self.account.leave(cost.throughput, self._clock())
            raise

    async def _wait_for_lease(self, cost: Cost, within_s: float | None, *, patient: bool) -> bool:
        """True when the turn has come; False where it has to be looked for again: nobody leases any more."""
        throughput, rung = self.account.throughput, asyncio.Event()
        place = Place(cost.throughput, patient=patient, ring=rung.set)
        throughput.join(place, self._clock())
        try:
            with self._counted():
                async with asleep(), asyncio.timeout(within_s):
                    await rung.wait()
        except TimeoutError:
            throughput.give_back(place, self._clock())
            raise self._busy(throughput.turn_s(cost.throughput, self._clock(), patient=patient)) from None
        except BaseException:
            throughput.give_back(place, self._clock())
            raise
        return place.came

    async def _wait(self, wait_s: float) -> None:
        with self._counted():
            async with asleep():
                await self._pause(wait_s)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def _require_time(self, wait_s: float, *, patient: bool) -> float | None:
        """Raises `CallFailed` where so long a wait would be too long; how long it may become, None: any time."""
        now = self._clock()
        limits = [each - MIN_USEFUL_S for each in (remaining_s(now), turn_left_s(now)) if each is not None]
        limits += [] if patient else [LONGEST_WAIT_S]
        within_s = min(limits, default=None)
        if within_s is not None and wait_s > within_s:
            raise self._busy(wait_s)
        return within_s

    def _busy(self, wait_s: float) -> CallFailed:
        return CallFailed(Fault.RATE_LIMITED, "its units of a second are used up for the moment", retry_after_s=wait_s)

    def _spent(self, *, cost: Cost | None = None) -> CallFailed:
        wall_s = self._wall_clock()
        if cost is not None and self.account.admits(cost.units, errand_in_hand(), wall_s):  # others may leave some
            return CallFailed(Fault.SPENT, "its units of today are granted to other replicas", retry_after_s=GRANTED_S)
        left_s = min(self.account.day_left_s(wall_s), LONGEST_RETRY_AFTER_S)
        return CallFailed(Fault.SPENT, "its units of today are spent, as far as they may be", retry_after_s=left_s)
