"""Leases in SQL: one row a thing, one statement a question, the database's clock alone.

Whoever finds a row that has expired takes it over in the statement that found it. A row is deleted some time after it expired,
by whoever takes a lease then. A row that would stand for longer than any is left for is from before the clock was set back, or
from another database's clock: it counts as expired.
"""

from __future__ import annotations

import secrets

from sqlalchemy import TextClause, text

from app.core.leases import Lease
from app.store.database import Database
from app.store.sql_words import WORDS

LONGEST_S = 40.0
"""Longer than any lease or note is asked to stand."""

FORGOTTEN_AFTER_S = 60.0
PURGED_AT_ONCE = 100
PURGE_EVERY = 64
"""Takes between two purges of one process."""

# A note that its holder left is not taken over before it has expired: not by the holder itself either.
_TAKE = """
INSERT INTO leases AS held (name, holder, expires_at, note)
SELECT CAST(:name AS VARCHAR(128)), CAST(:holder AS VARCHAR(32)), {clock} + {seconds}, NULL WHERE true
ON CONFLICT (name) DO UPDATE SET
    holder = CASE WHEN {free} THEN excluded.holder ELSE held.holder END,
    note = CASE WHEN {free} THEN NULL ELSE held.note END,
    expires_at = CASE WHEN {free} THEN excluded.expires_at ELSE held.expires_at END
RETURNING holder, expires_at - {clock}, note
"""
_FREE = "(NOT ({stands}) OR (held.holder = excluded.holder AND held.note IS NULL))"
_STANDS = "{expires_at} > {clock} AND {expires_at} <= {clock} + {longest}"

_LEAVE = """
UPDATE leases SET note = :note, expires_at = {clock} + {seconds} WHERE name = :name AND holder = :holder
"""

_POST = """
INSERT INTO leases AS held (name, holder, expires_at, note)
SELECT CAST(:name AS VARCHAR(128)), CAST(:holder AS VARCHAR(32)), {clock} + {seconds}, CAST(:note AS {bytes}) WHERE true
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, note = excluded.note, expires_at = excluded.expires_at
"""

_RELEASE = "DELETE FROM leases WHERE name = :name AND holder = :holder AND note IS NULL"

_LOOK = "SELECT holder, expires_at - {clock}, note FROM leases AS held WHERE name = :name AND {stands}"

_COUNT = "SELECT count(*) FROM leases AS held WHERE name LIKE :beginning AND {stands}"

_PURGE = """
DELETE FROM leases WHERE name IN (
    SELECT name FROM leases WHERE expires_at < {clock} - :late ORDER BY expires_at LIMIT :most
) AND expires_at < {clock} - :late
"""


class SqlLeases:
    """Fits the chain's `Leases`, for one process: what it holds, it holds as one holder."""

    def __init__(self, database: Database, holder: str | None = None) -> None:
        self._database = database
        self.holder = secrets.token_hex(8) if holder is None else holder
        words = WORDS[database.dialect]
        clock = words["clock_now"]
        spelled = {"clock": clock, "bytes": words["bytes"], "seconds": "CAST(:seconds AS double precision)"}
        spelled["stands"] = _STANDS.format(expires_at="held.expires_at", clock=clock, longest=LONGEST_S)
        spelled["free"] = _FREE.format(**spelled)
        self._take, self._leave, self._post, self._release, self._look, self._count, self._purge = (
            text(template.format(**spelled)) for template in (_TAKE, _LEAVE, _POST, _RELEASE, _LOOK, _COUNT, _PURGE)
        )
        self._takes = 0

    def __repr__(self) -> str:
        return f"<SqlLeases of {self.holder} in {self._database!r}>"

    async def take(self, name: str, for_s: float) -> Lease:
        """As the port says."""
        asked = {"name": name, "holder": self.holder, "seconds": for_s}
        self._takes += 1
        async with self._database.at_once() as link:
            lease = self._lease(*(await link.execute(self._take, asked)).one())
            if self._takes % PURGE_EVERY == 0:
                await link.execute(self._purge, {"late": FORGOTTEN_AFTER_S, "most": PURGED_AT_ONCE})
        return lease

    async def look(self, name: str) -> Lease | None:
        """As the port says."""
        async with self._database.reading() as link:
            row = (await link.execute(self._look, {"name": name})).one_or_none()
        return None if row is None else self._lease(*row)

    async def count(self, beginning: str) -> int:
        """How many leases whose names begin so are held, by whomever."""
        async with self._database.reading() as link:
            return int((await link.execute(self._count, {"beginning": f"{beginning}%"})).scalar_one())

    async def leave(self, name: str, note: bytes, for_s: float) -> None:
        """As the port says."""
        await self._say(self._leave, name, note, for_s)

    async def post(self, name: str, note: bytes, for_s: float) -> None:
        """As the port says."""
        await self._say(self._post, name, note, for_s)

    async def release(self, name: str) -> None:
        """As the port says."""
        async with self._database.at_once() as link:
            await link.execute(self._release, {"name": name, "holder": self.holder})

    async def _say(self, statement: TextClause, name: str, note: bytes, for_s: float) -> None:
        said = {"name": name, "holder": self.holder, "note": note, "seconds": for_s}
        async with self._database.at_once() as link:
            await link.execute(statement, said)

    def _lease(self, holder: str, left_s: float, note: bytes | None) -> Lease:
        return Lease(holder == self.holder and note is None, max(0.0, float(left_s)), note)
