"""The API keys: made, listed and revoked in the database, known again from memory.

A key is shown once, when it is made; what is stored is a keyed hash of it. A running server has the keys that count in memory and
looks for changes every few seconds, so that neither an unknown key nor a database that is gone costs a request anything: a key
that was made counts within a second or two of being used, one that was revoked counts no more after five seconds, and without a
database those known last count on.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import ColumnElement, insert, literal_column, select, update
from sqlalchemy.sql import func

from app.core.consumers import Pepper, id_in, spell_key
from app.core.lasting import StoreUnavailable
from app.metrics import Metrics
from app.store.consumer_tables import consumer_keys
from app.store.database import Database

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
"""How long a revoked key may still count."""

LOOK_AGAIN_S = 1.0
"""However many unknown keys come, the database is not asked more often than that."""

LONGEST_NAME = 64

OTHER_PEPPER = (
    "these keys were made under another consumers.pepper and do not count: "
    "configure that one, or revoke them and make new ones"
)


@dataclass(frozen=True, slots=True)
class KeyRow:
    """What may be shown of a key. Times in seconds since 1970; `revoked_at` None: it was not revoked."""

    id: str
    name: str
    created_at: int
    revoked_at: int | None
    of_other_pepper: bool = False
    """It was made under another pepper, and does not count under this one."""


class KeyTable:
    """The keys in the database. Every call raises `StoreUnavailable` when it cannot be had."""

    def __init__(self, database: Database, pepper: Pepper) -> None:
        self._database = database
        self._pepper = pepper
        seconds = (
            "CAST(strftime('%s', 'now') AS INTEGER)" if database.is_sqlite else "extract(epoch FROM now())::bigint"
        )
        self._now: ColumnElement[int] = literal_column(seconds)

    async def create(self, name: str) -> tuple[str, str]:
        """A new key that counts from now on: its id, and the key itself, which nobody can find out again."""
        key_id = secrets.token_hex(6)
        key = spell_key(key_id, secrets.token_hex(32))
        row = {"id": key_id, "digest": self._pepper.digest(key), "name": name[:LONGEST_NAME], "created_at": self._now}
        row["pepper"] = self._pepper.fingerprint
        async with self._database.writing(durable=True) as link:
            await link.execute(insert(consumer_keys).values(row))
        return key_id, key

    async def revoke(self, key_id: str) -> bool:
        """The key counts no more. False when no key that counts has this id."""
        counts = (consumer_keys.c.id == key_id) & consumer_keys.c.revoked_at.is_(None)
        async with self._database.writing(durable=True) as link:
            done = await link.execute(update(consumer_keys).where(counts).values(revoked_at=self._now))
        return bool(done.rowcount)

    async def rows(self) -> tuple[KeyRow, ...]:
        """Every key that was ever made, oldest first."""
        table = consumer_keys.c
        wanted = select(table.id, table.name, table.created_at, table.revoked_at, self._of_other_pepper())
        async with self._database.reading() as link:
            rows = await link.execute(wanted.order_by(table.created_at, table.id))
            return tuple(KeyRow(*row) for row in rows)

    async def of_other_peppers(self) -> int:
        """How many keys that were not revoked were made under another pepper."""
        wanted = select(func.count()).where(consumer_keys.c.revoked_at.is_(None), self._of_other_pepper())
        async with self._database.reading() as link:
            return int((await link.execute(wanted)).scalar_one())

    def _of_other_pepper(self) -> ColumnElement[bool]:
        made_under = consumer_keys.c.pepper
        return made_under.is_not(None) & (made_under != self._pepper.fingerprint)

    async def state(self) -> tuple[int | None, ...]:
        """Changes with every key that is made or revoked, and with a database that is restored from a backup."""
        table = consumer_keys.c
        counts = (func.count(), func.count(table.revoked_at), func.max(table.created_at), func.max(table.revoked_at))
        async with self._database.reading() as link:
            return tuple((await link.execute(select(*counts))).one())

    async def digests(self) -> dict[str, bytes]:
        """The keys that count: what is stored of each, by id."""
        wanted = select(consumer_keys.c.id, consumer_keys.c.digest).where(consumer_keys.c.revoked_at.is_(None))
        async with self._database.reading() as link:
            return {key_id: bytes(digest) for key_id, digest in await link.execute(wanted)}


class KeptKeys(Protocol):
    """What a keyring reads. Raises `StoreUnavailable`."""

    async def state(self) -> tuple[int | None, ...]: ...
    async def digests(self) -> dict[str, bytes]: ...
    async def of_other_peppers(self) -> int: ...


class Keyring:
    """The keys that count, in memory. `run` keeps them so."""

    def __init__(
        self,
        table: KeptKeys,
        pepper: Pepper,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        look_every_s: float = LOOK_EVERY_S,
        required: bool = False,
    ) -> None:
        """`required`: who shows none that counts is not served."""
        self.known = False
        """Whether the keys were read at least once."""
        self._table = table
        self._pepper = pepper
        self._metrics = metrics
        self._clock = clock
        self._look_every_s = look_every_s
        self._digests: Mapping[str, bytes] = {}
        self._state: tuple[int | None, ...] | None = None
        self._of_other_peppers = 0
        self._looked = False
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._required = required

    def __repr__(self) -> str:
        return f"<Keyring {len(self._digests)} keys{'' if self.known else ', not read yet'}>"

    @property
    def awaited(self) -> bool:
        """Whether nobody is served before the keys were read."""
        return self._required and not self.known

    def verified(self, key: str) -> str | None:
        """The id of a key that counts; None for anything else. Takes as long whether or not an id is known."""
        key_id = id_in(key)
        if key_id is None:
            return None
        stored = self._digests.get(key_id)
        alike = hmac.compare_digest(self._pepper.digest(key), bytes(32) if stored is None else stored)
        return key_id if alike and stored is not None else None

    async def looked_up(self, key: str) -> str | None:
        """The same of a key that is not known from memory: it may have been made a moment ago. Asks the database once for all who
        ask within a second, and waits for it a second at most."""
        if id_in(key) is None:
            return None
        if not self._looked or self._clock() - self._looked_at >= LOOK_AGAIN_S:  # the first look may be under way
            try:
                async with asyncio.timeout(LOOK_AGAIN_S), self._looking:
                    if self._clock() - self._looked_at >= LOOK_AGAIN_S:
                        await self._look()
            except TimeoutError:
                self._metrics.ratelimit_backend_errors_total.labels("keys").inc()
        return self.verified(key)

    async def run(self) -> None:
        """Looks for changes, until cancelled."""
        while True:
            async with self._looking:
                await self._look()
            await asyncio.sleep(self._look_every_s if self.known else LOOK_AGAIN_S)

    def _note_other_peppers(self, keys: int) -> None:
        if keys and keys != self._of_other_peppers:
            log.warning("consumer_pepper_differs", extra={"keys": keys, "detail": OTHER_PEPPER})
        self._of_other_peppers = keys

    async def _look(self) -> None:
        self._looked_at = self._clock()  # before it is done: a database that hangs is not asked by everybody
        try:
            state = await self._table.state()
            if state != self._state:
                self._digests = await self._table.digests()
                others = await self._table.of_other_peppers()
                self._state = state
                log.info("consumer_keys_read", extra={"keys": len(self._digests)})
                self._note_other_peppers(others)
            self.known = True
        except StoreUnavailable:
            self._metrics.ratelimit_backend_errors_total.labels("keys").inc()
        self._looked = True  # whatever came of it: nobody but one a second waits for a database that hangs
