"""Bringing the tables of a database to what this version of the program expects: at a start, and by `copath migrate`.

Any number of processes may try at once: each first looks whether there is anything to do, and what there is, is done by one of
them in one transaction that holds the database's exclusive lock. Whoever dies in the middle has done nothing, and the next one
finishes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from app.core.lasting import StoreUnavailable

from .database import Database, DatabaseRefused

log = logging.getLogger(__name__)

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""How long to wait before a database that could not be had is tried again."""

REFUSED_AGAIN_S = 60.0
"""And before one that refused is, where a server goes on without it."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """The steps before and after, by their revisions; None: there were no tables."""

    before: str | None
    after: str

    @property
    def changed(self) -> bool:
        """Whether there was anything to do."""
        return self.before != self.after


async def make_ready(database: Database, *, target: str = "head") -> Migrated:
    """One attempt at bringing `database` to this version's tables; from then on it is ready to be used.

    Raises `StoreUnavailable` when another attempt may do, and `DatabaseRefused` when none will."""
    script = await asyncio.to_thread(_script)
    revision = script.get_revisions(target)[0].revision
    async with database.reading(opening=True) as link:
        before = await link.run_sync(_current)
    _require_known(script, database, before)
    if before != revision:
        async with database.exclusive() as link:
            before = await link.run_sync(_current)
            _require_known(script, database, before)
            await link.run_sync(upgrade, revision)
        log.info("database_migrated", extra={"database": database.name, "before": before, "after": revision})
    database.ready = True
    return Migrated(before, revision)


async def until_ready(
    database: Database,
    *,
    within_s: float = math.inf,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    jitter: Callable[[], float] = random.random,
) -> Migrated:
    """Attempt after attempt, for as long as it takes. Raises `DatabaseRefused`, and `StoreUnavailable` once the next one would
    begin more than `within_s` after the first."""
    waited_s = 0.0
    for attempt in count():
        try:
            return await make_ready(database)
        except StoreUnavailable as error:
            pause_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)] * (0.75 + 0.5 * jitter())
            waited_s += pause_s
            if waited_s > within_s:
                raise
            waiting = {"database": database.name, "error": str(error), "next_s": round(pause_s, 1)}
            log.debug("database_awaited", extra=waiting)  # that it is gone has its line
        await pause(pause_s)
    raise AssertionError("attempts do not run out")


async def ready_at_last(database: Database, *, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Returns when the database is ready, for a server that has begun without it: one that refuses is tried again as well, since
    somebody may put that right meanwhile."""
    said = ""
    while True:
        try:
            await until_ready(database, pause=pause)
        except DatabaseRefused as refused:
            if str(refused) != said:
                said = str(refused)
                log.error("database_refused", extra={"detail": said})
            await pause(REFUSED_AGAIN_S)
        else:
            return


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    inside = Path(__file__).parents[1]
    # In a checkout they lie beside the package; a wheel carries them in it.
    found = next(place for place in (inside / "migrations", inside.parent / "migrations") if place.is_dir())
    config = Config()
    config.set_main_option("script_location", str(found).replace("%", "%%"))
    return config


def _current(link: Connection) -> str | None:
    return MigrationContext.configure(link).get_current_revision()


def upgrade(link: Connection, revision: str) -> None:
    """Takes the steps up to `revision`, in the transaction of `link`, which must be exclusive."""
    config = _config()
    config.attributes["connection"] = link
    command.upgrade(config, revision)


def _require_known(script: ScriptDirectory, database: Database, revision: str | None) -> None:
    known = {each.revision for each in script.walk_revisions()}
    if revision is not None and revision not in known:
        raise DatabaseRefused(
            f"the database {database.name} is that of a newer version of this program (its tables are at {revision}, this version"
            f" knows {max(known)}): run that version; nothing was changed"
        )
