"""What calls to upstreams cost, and whether they may still be afforded.

Upstreams sell units, so many a day, and throughput, so many units a second. A call has a price in the provider's own units, known
from its method before it is made; it is paid for before it starts, and stays paid for if it is cancelled. Upstreams that are paid
from one account share what is left:

    80 % of the day's units    backfill stops
    90 %                       requests of those who showed no key get nothing that would cost a call
    100 %                      nobody does, until the next day (UTC)

What is known already costs nothing, and is never refused. Synchronous: `now` is monotonic, `wall_s` Unix time, both in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .purpose import Errand, Purpose
from .throughput import Throughput
from .tokens import nobody

DAY_S = 86_400.0

BACKFILL_SHARE = 0.8
ANONYMOUS_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one POST. `throughput` is what it takes of the units of a second, which some providers count in other figures."""

    units: float
    throughput: float


@dataclass(frozen=True, slots=True)
class Prices:
    """What one call of each method costs; `other` for a method that is not listed."""

    units: Mapping[str, float] = field(default_factory=dict)
    other: float = 1.0
    throughput: Mapping[str, float] = field(default_factory=dict)
    """Where it differs from the units."""

    def of(self, methods: Iterable[str]) -> Cost:
        """The cost of one POST with these calls: a batch costs what its calls cost one by one."""
        units = throughput = 0.0
        for method in methods:
            price = self.units.get(method, self.other)
            units += price
            throughput += self.throughput.get(method, price)
        return Cost(units, throughput)


PRESETS: Mapping[str, Prices] = MappingProxyType(
    {
        # "Compute Unit Costs", https://www.alchemy.com/docs/reference/compute-unit-costs, read in 2026.
        "alchemy": Prices(
            {
                "eth_chainId": 0.0,
                "eth_blockNumber": 10.0,
                "eth_getBlockByNumber": 20.0,
                "eth_getBlockByHash": 20.0,
                "eth_getBlockReceipts": 20.0,
                "eth_getTransactionByHash": 20.0,
                "eth_getTransactionReceipt": 20.0,
                "eth_subscribe": 10.0,
                "eth_unsubscribe": 10.0,
                "eth_subscription": 70.0,  # 0.04 for each byte of what is announced; a header has about 1,750
            },
            other=26.0,  # eth_call
            throughput={"eth_getBlockReceipts": 500.0},
        ),
        # "Credit costs", https://docs.metamask.io/services/get-started/pricing/credit-cost, read in 2026.
        "infura": Prices(
            {
                "eth_chainId": 5.0,
                "eth_getBlockReceipts": 1000.0,
                "eth_subscribe": 5.0,
                "eth_unsubscribe": 10.0,
                "eth_subscription": 50.0,  # an event of newHeads
            },
            other=80.0,
        ),
        "flat": Prices(),
    }
)
"""Published price lists. They change, and plans differ: whoever has other prices states them, method by method."""


def prices_of(chosen: str | Mapping[str, float]) -> Prices:
    """A preset by name, or prices by method; a method that is not among those costs one unit."""
    return PRESETS[chosen] if isinstance(chosen, str) else Prices(dict(chosen))


class Account:
    """What is paid from together. Belongs to one event loop; every change happens between awaits. None: no such limit."""

    __slots__ = (
        "_day",
        "_elsewhere",
        "_grant",
        "_granted_at",
        "_spent",
        "cooling_until",
        "on_want",
        "throughput",
        "units_per_day",
        "wanted",
    )

    def __init__(self, units_per_second: float | None = None, units_per_day: float | None = None) -> None:
        self.throughput = Throughput(units_per_second)
        self.units_per_day = units_per_day
        self.cooling_until: float | None = None
        """The provider asked us to slow down: nothing that is paid from here is asked for before, on `now`'s clock."""
        self.wanted = 0.0
        """Units of today that calls wait for, which may be there but are not granted to this process."""
        self.on_want: Callable[[], None] = nobody
        """Called when they become more."""
        self._day = 0
        self._spent = 0.0
        self._elsewhere = 0.0
        self._grant: float | None = None
        self._granted_at = 0.0

    def __repr__(self) -> str:
        return f"<Account spent {self._spent:g} of {self.units_per_day} today, {self.throughput!r}>"

    @property
    def units_per_second(self) -> float | None:
        """Of all processes."""
        return self.throughput.rate

    def narrow(self, units_per_second: float | None, units_per_day: float | None) -> None:
        """One more upstream is paid from here: of its limits and those so far the lower ones hold."""
        if units_per_second is not None and units_per_second < (self.units_per_second or units_per_second + 1):
            self.throughput.rate = units_per_second
        if units_per_day is not None:
            self.units_per_day = min(units_per_day, self.units_per_day or units_per_day)

    @property
    def limited(self) -> bool:
        """Whether there is anything to share out."""
        return self.units_per_second is not None or self.units_per_day is not None

    def cool(self, until: float) -> None:
        """The provider asked us to slow down."""
        if self.cooling_until is None or until > self.cooling_until:
            self.cooling_until = until
            self.throughput.on_need()  # others that are paid from here have to hear of it

    # --- units of a day ---------------------------------------------------------------------------------------------

    def spent(self, wall_s: float) -> float:
        """Units spent today, by all processes as far as is known."""
        self._turn_page(wall_s)
        return self._spent + self._elsewhere

    def spent_here(self, wall_s: float) -> float:
        """Units that this process spent today."""
        self._turn_page(wall_s)
        return self._spent

    def spent_elsewhere(self, units: float, day: int) -> None:
        """Other processes have spent so many units of that day."""
        if day >= self._day:
            self._turn_page(day * DAY_S)
            self._elsewhere = units

    def grant(self, units: float | None, day: int, spent: float) -> None:
        """Of what is left of that day, so much is this process's until it hears of the others again; None: it is alone. The
        others know that it has spent `spent`: what it spent since counts towards the grant."""
        if day == self._day:
            self._grant, self._granted_at = units, spent

    def granted(self, units: float, wall_s: float) -> bool:
        """Whether so many may be spent before the others are heard of again."""
        self._turn_page(wall_s)
        return self._grant is None or self._spent - self._granted_at + units <= self._grant

    def want(self, units: float) -> None:
        """A call waits for so many to be granted; below 0: no longer."""
        self.wanted = max(0.0, self.wanted + units)
        if units > 0:
            self.on_want()

    def spent_share(self, wall_s: float) -> float:
        """The share of today's units that is spent, 0 to 1; 0 where there is no limit."""
        return 0.0 if self.units_per_day is None else self.spent(wall_s) / self.units_per_day

    def day_left_s(self, wall_s: float) -> float:
        """Seconds until the next day's units."""
        self._turn_page(wall_s)
        return (self._day + 1) * DAY_S - wall_s

    def admits(self, units: float, errand: Errand, wall_s: float) -> bool:
        """Whether so many of today's units may be spent on this errand, by whichever process. Spends nothing."""
        spent = self.spent(wall_s)
        return self.units_per_day is None or spent + units <= self.units_per_day * share_of(errand)

    def charge(self, units: float, errand: Errand, wall_s: float) -> bool:
        """A call is about to start: its units are spent, whatever becomes of it. False, and nothing is, where they may not be."""
        if not (self.admits(units, errand, wall_s) and self.granted(units, wall_s)):
            return False
        self._spent += units
        return True

    def owe(self, units: float, wall_s: float) -> None:
        """Something came that nobody could refuse: its units are spent."""
        self._turn_page(wall_s)
        self._spent += units

    def _turn_page(self, wall_s: float) -> None:
        day = int(wall_s // DAY_S)
        if day > self._day:  # a clock that is set back gives nothing back
            self._day = day
            self._spent = self._elsewhere = self._granted_at = 0.0
            self._grant = None

    # --- units of a second ------------------------------------------------------------------------------------------

    def turn_s(self, throughput: float, errand: Errand, now: float) -> float:
        """How long a call has to wait for its turn, were it to queue now; 0: it may start. Changes nothing.

        What takes more than may be used at once waits until all of that is there, and is made up for afterwards. Backfill has its
        turn only while half of it would be left for whoever comes next.
        """
        return self.throughput.turn_s(throughput, now, patient=errand.purpose is Purpose.BACKFILL)

    def queue(self, throughput: float, now: float) -> None:
        """A call takes its place in the line: it starts when its turn has come, or gives its place back."""
        self.throughput.queue(throughput, now)

    def leave(self, throughput: float, now: float) -> None:
        """A call that took its place will not be made."""
        self.throughput.leave(throughput, now)


def share_of(errand: Errand) -> float:
    """How much of a day's units may be gone for this errand still to be run."""
    if errand.purpose is Purpose.BACKFILL:
        return BACKFILL_SHARE
    return ANONYMOUS_SHARE if errand.purpose is Purpose.REQUEST and errand.anonymous else 1.0
