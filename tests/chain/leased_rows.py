"""The leases of a fleet in a dictionary, on a clock that is moved by hand: they can be lost, and count what they are asked."""

from __future__ import annotations

from collections import Counter

from app.core.lasting import StoreUnavailable
from app.core.leases import Lease
from tests.fakes import ManualClock

Row = tuple[str, float, bytes | None]
"""Its holder, until when it stands, and the note."""

NOBODYS: Row = ("", 0.0, None)


class Rows:
    """Those of all processes. While `lost`, every call raises as a database that is gone."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = ManualClock().drive() if clock is None else clock
        self.held: dict[str, Row] = {}
        self.lost = False
        self.calls: Counter[str] = Counter()


class RowLeases:
    """Those of one process. Implements `chain.ports.Leases`."""

    def __init__(self, rows: Rows, holder: str) -> None:
        self._rows = rows
        self._holder = holder

    def _called(self, call: str) -> float:
        self._rows.calls[call] += 1
        if self._rows.lost:
            raise StoreUnavailable("the database is gone")
        return self._rows.clock.now()

    async def take(self, name: str, for_s: float) -> Lease:
        now = self._called("take")
        holder, until, note = self._rows.held.get(name, NOBODYS)
        if until > now and (holder != self._holder or note is not None):
            return Lease(False, until - now, note)
        self._rows.held[name] = (self._holder, now + for_s, None)
        return Lease(True, for_s)

    async def look(self, name: str) -> Lease | None:
        raise NotImplementedError

    async def leave(self, name: str, note: bytes, for_s: float) -> None:
        now = self._called("leave")
        if self._rows.held.get(name, NOBODYS)[0] == self._holder:
            self._rows.held[name] = (self._holder, now + for_s, note)

    async def post(self, name: str, note: bytes, for_s: float) -> None:
        self._rows.held[name] = (self._holder, self._called("post") + for_s, note)

    async def release(self, name: str) -> None:
        self._called("release")
        if self._rows.held.get(name, NOBODYS)[0] == self._holder:
            del self._rows.held[name]
