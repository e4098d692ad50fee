"""The buckets that all replicas share: one row a consumer, one statement a take.

The statement does what `core.bucket.Bucket.take` does, where no two can do it at once: whoever comes second waits for the row and
then sees what the first one left. Only the database's clock counts, and never backwards: who is behind refills nothing, so
neither clocks that differ nor a server that takes over with another clock grant anything twice.

A row is forgotten only when its bucket would be full again, which is what no row means.
"""

from __future__ import annotations

import secrets

from sqlalchemy import text

from app.core.bucket import Rate, Taken
from app.store.database import Database
from app.store.sql_words import WORDS

PURGED_AT_ONCE = 1000
"""Rows of one purging statement, so that it locks few rows for a short time."""

_TAKE = """
INSERT INTO consumer_buckets AS held (consumer, tokens, refilled_at, granted)
SELECT CAST(:consumer AS VARCHAR(32)), {burst} - {least}({want}, {whole_burst}), {clock},
    CAST({least}({want}, {whole_burst}) AS INTEGER)
FROM {setting} WHERE true
ON CONFLICT (consumer) DO UPDATE SET
    tokens = {refilled} - {least}({want}, {whole}),
    refilled_at = {greatest}(held.refilled_at, excluded.refilled_at),
    granted = CAST({least}({want}, {whole}) AS INTEGER)
RETURNING granted, tokens
"""

_PURGE = """
DELETE FROM consumer_buckets WHERE {full} AND consumer IN (
    SELECT consumer FROM consumer_buckets WHERE {full} LIMIT :most
)
"""


def _spelled(template: str, dialect: str) -> str:
    sqlite = dialect == "sqlite"
    words = WORDS[dialect]  # a take that a crash undoes allows one request too many
    least, greatest, clock = words["least"], words["greatest"], words["clock"]
    burst, rate, want = (f"CAST(:{name} AS double precision)" for name in ("burst", "rate", "want"))
    since = f"{greatest}(0.0, excluded.refilled_at - held.refilled_at)"
    refilled = f"{least}({burst}, held.tokens + {since} * {rate})"

    def whole(number: str) -> str:
        return f"CAST({number} AS INTEGER)" if sqlite else f"floor({number})"

    return template.format(
        least=least,
        greatest=greatest,
        burst=burst,
        want=want,
        clock=clock,
        setting=words["setting"],
        refilled=refilled,
        whole=whole(refilled),
        whole_burst=whole(burst),
        full=f"tokens + ({clock} - refilled_at) * {rate} >= {burst}",
    )


class SharedBuckets:
    """The buckets of one rate. Every call raises `StoreUnavailable` when the database cannot be had."""

    def __init__(self, database: Database, rate: Rate) -> None:
        self._database = database
        self._rate = rate
        self._probe = f"probe-{secrets.token_hex(12)}"
        self._take, self._purge = (text(_spelled(template, database.dialect)) for template in (_TAKE, _PURGE))

    async def take(self, consumer: str, want: int) -> Taken:
        """As many of `want` tokens as the bucket of `consumer` has: taken when this returns, for whoever asked."""
        asked = {"consumer": consumer, "want": want, "burst": self._rate.burst, "rate": self._rate.per_second}
        async with self._database.at_once() as link:
            granted, tokens = (await link.execute(self._take, asked)).one()
        return Taken(int(granted), float(tokens))

    async def purge(self) -> int:
        """Forgets some of the buckets that are full again; returns how many. A bucket that is never refilled never is."""
        asked = {"burst": self._rate.burst, "rate": self._rate.per_second, "most": PURGED_AT_ONCE}
        async with self._database.at_once() as link:
            return int((await link.execute(self._purge, asked)).rowcount)

    async def ping(self) -> None:
        """Returns when the database has done, on a row that no one else has, what it does for a take: a table that is locked as a
        whole answers this as little as it answers for any consumer."""
        await self.take(self._probe, 0)
