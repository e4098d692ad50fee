"""What all replicas spent of the units of a day, and how many of them there are, by the database's clock."""

from __future__ import annotations

import secrets

from sqlalchemy import text

from app.store.database import Database

_SETTLE = """
INSERT INTO spendings AS held (account, day, units) VALUES (:account, :day, :units)
ON CONFLICT (account, day) DO UPDATE SET units = held.units + excluded.units
RETURNING units
"""
_FORGET = "DELETE FROM spendings WHERE account = :account AND day < :day - 7"

_CLOCK = {
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}
_HERE = """
INSERT INTO leases AS held (name, holder, expires_at) VALUES (:name, :holder, {clock} + :seconds)
ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at
"""
_THERE = "SELECT count(*) FROM leases WHERE name LIKE 'replica:%' AND expires_at > {clock}"


class SqlSpendings:
    """Fits the upstreams' `Treasury`, for one process."""

    def __init__(self, database: Database, holder: str | None = None) -> None:
        self._database = database
        self._holder = secrets.token_hex(8) if holder is None else holder
        clock = _CLOCK["sqlite" if database.is_sqlite else "postgresql"]
        self._here, self._there = text(_HERE.format(clock=clock)), text(_THERE.format(clock=clock))

    def __repr__(self) -> str:
        return f"<SqlSpendings of {self._holder} in {self._database!r}>"

    async def settle(self, account: str, day: int, units: float) -> float:
        """As the port says."""
        async with self._database.writing() as link:
            told = {"account": account, "day": day, "units": units}
            everybody = float((await link.execute(text(_SETTLE), told)).scalar_one())
            if everybody == units:  # the first of the day
                await link.execute(text(_FORGET), {"account": account, "day": day})
            return everybody

    async def present(self, for_s: float) -> int:
        """As the port says."""
        asked = {"name": f"replica:{self._holder}", "holder": self._holder, "seconds": for_s}
        async with self._database.writing() as link:
            await link.execute(self._here, asked)
            return int((await link.execute(self._there)).scalar_one())
