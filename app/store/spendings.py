"""What all replicas spend of the accounts of upstreams, by the database's clock: units of a day, tokens of those of a second.

Tokens are leased by one statement, which refills the row, debits it and says what it did, where no two can at once: whoever comes
second waits for the row and then sees what the first one left. Only the database's clock counts, and never backwards, as with the
buckets of consumers. Unlike those a row may be in debt: what was promised for later, and what was used before it was told. The
pause that a provider asked for is in the same row: the later end counts. A row that is more than a minute in the future, as
after a server whose clock was wrong, is of now: else nobody had a token until that time.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import text

from app.core.tokens import BURST_S, Ask, Lease
from app.store.database import Database
from app.store.leases import SqlLeases
from app.store.sql_words import WORDS

_SETTLE = """
INSERT INTO spendings AS held (account, day, units) VALUES (:account, :day, :units)
ON CONFLICT (account, day) DO UPDATE SET units = held.units + excluded.units
RETURNING units
"""
_REPLICAS = "replica:"
"""What the names of the leases begin with by which replicas say that they are there."""

_DRAW = """
UPDATE spendings SET units = units + :units WHERE account = :account AND day = :day AND units + :units <= :most
RETURNING units
"""

_FORGET = "DELETE FROM spendings WHERE account = :account AND day < :day - 7"

_LEASE = """
INSERT INTO throughputs AS held (account, tokens, refilled_at, granted, cooling_until)
SELECT CAST(:account AS VARCHAR(32)), {full} - {granted_of_full}, {clock}, {granted_of_full}, {cooling_until}
FROM {setting} WHERE true
ON CONFLICT (account) DO UPDATE SET
    tokens = {refilled} - {granted},
    refilled_at = CASE WHEN held.refilled_at > excluded.refilled_at + {believed} THEN excluded.refilled_at
        ELSE {greatest}(held.refilled_at, excluded.refilled_at) END,
    granted = {granted},
    cooling_until = {greatest}(held.cooling_until, excluded.cooling_until)
RETURNING granted, tokens, cooling_until - {clock}
"""

# What is wanted is given whole where it will be there in time, and of what is spare as much as is there beyond half of a burst.
_GRANTED = """
CASE WHEN {least}({want} + {kept}, {burst}) - {tokens} > {rate} * {patience} THEN 0.0
ELSE {want} + {least}({spare}, {greatest}(0.0, {tokens} - {want} - {burst} / 2)) END
"""

BELIEVED_S = 60.0
"""Clocks of servers that follow each other differ by less."""

_COOLING = "SELECT account, cooling_until - {clock} FROM throughputs WHERE cooling_until > {clock}"


def _spelled(template: str, dialect: str) -> str:
    names = ("rate", "burst", "want", "spare", "kept", "patience", "used", "cool")
    words = {name: f"CAST(:{name} AS double precision)" for name in names}
    words |= WORDS[dialect]  # a lease that a crash undoes allows some units too many
    words["believed"] = str(BELIEVED_S)
    since = "{greatest}(0.0, excluded.refilled_at - held.refilled_at)".format(**words)
    words["full"] = "({burst} - {used})".format(**words)
    words["refilled"] = "({least}({burst}, held.tokens + {since} * {rate}) - {used})".format(since=since, **words)
    words["granted_of_full"] = _GRANTED.format(tokens=words["full"], **words)
    words["granted"] = _GRANTED.format(tokens=words["refilled"], **words)
    words["cooling_until"] = "CASE WHEN {cool} > 0 THEN {clock} + {cool} ELSE 0.0 END".format(**words)
    return template.format(**words)


class SqlSpendings:
    """Fits the upstreams' `Treasury`, for one process."""

    def __init__(self, database: Database, holder: str | None = None) -> None:
        self._database = database
        self._leases = SqlLeases(database, holder)
        self._lease, self._cooling = (text(_spelled(template, database.dialect)) for template in (_LEASE, _COOLING))

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

    async def draw(self, account: str, day: int, units: float, most: float) -> float | None:
        """As the port says."""
        async with self._database.writing() as link:
            drawn = {"account": account, "day": day, "units": units, "most": most}
            everybody = (await link.execute(text(_DRAW), drawn)).scalar_one_or_none()
            return None if everybody is None else float(everybody)

    async def present(self, for_s: float) -> int:
        """As the port says."""
        await self._leases.take(f"{_REPLICAS}{self._leases.holder}", for_s)
        return await self._leases.count(_REPLICAS)

    async def lease(self, account: str, rate: float, ask: Ask, cool_s: float) -> Lease:
        """As the port says."""
        burst = rate * BURST_S
        asked = {"want": ask.want, "spare": ask.spare, "kept": ask.kept, "patience": ask.patience_s, "used": ask.used}
        asked |= {"rate": rate, "burst": burst, "cool": cool_s}
        async with self._database.at_once() as link:
            row = (await link.execute(self._lease, {"account": account, **asked})).one()
        granted, left, cooling_s = map(float, row)
        missing = min(ask.want + ask.kept, burst) - (granted + left)
        return Lease(granted, max(0.0, missing / rate) if rate else 0.0, left, max(0.0, cooling_s))

    async def cooling(self) -> Mapping[str, float]:
        """As the port says."""
        async with self._database.reading() as link:
            return {account: float(left_s) for account, left_s in await link.execute(self._cooling)}
