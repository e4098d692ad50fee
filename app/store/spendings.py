"""What all replicas spent of the units of a day, and how many of them there are, by the database's clock."""

from __future__ import annotations

from sqlalchemy import text

from app.store.database import Database
from app.store.leases import SqlLeases

_SETTLE = """
INSERT INTO spendings AS held (account, day, units) VALUES (:account, :day, :units)
ON CONFLICT (account, day) DO UPDATE SET units = held.units + excluded.units
RETURNING units
"""
_REPLICAS = "replica:"
"""What the names of the leases begin with by which replicas say that they are there."""

_FORGET = "DELETE FROM spendings WHERE account = :account AND day < :day - 7"


class SqlSpendings:
    """Fits the upstreams' `Treasury`, for one process."""

    def __init__(self, database: Database, holder: str | None = None) -> None:
        self._database = database
        self._leases = SqlLeases(database, holder)

    def __repr__(self) -> str:
        return f"<SqlSpendings through {self._leases!r}>"

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
        await self._leases.take(f"{_REPLICAS}{self._leases.holder}", for_s)
        return await self._leases.count(_REPLICAS)
