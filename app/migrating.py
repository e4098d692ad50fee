"""Bringing the tables of a database to this version from outside of a server: before a roll-out, or by hand."""

from __future__ import annotations

from app.core.lasting import StoreUnavailable
from app.settings import Settings
from app.store.database import DatabaseRefused, in_memory, open_database
from app.store.migrating import until_ready


class NotMigrated(Exception):
    """Why the tables are as they were: one clear line, without a secret."""

    def __init__(self, line: str, *, misconfigured: bool = False) -> None:
        """`misconfigured`: it is the configuration that has to change."""
        super().__init__(line)
        self.misconfigured = misconfigured


async def migrate(settings: Settings, wait_s: float) -> str:
    """One line about what was done. A database that does not answer is waited for, `wait_s` at most; every attempt is a log line.
    Raises `NotMigrated`."""
    if in_memory(settings.database_url):
        why = "database_url is in memory, where no table lasts: name the configuration of your server with --config"
        raise NotMigrated(why, misconfigured=True)
    try:
        async with open_database(settings.database_url) as database:
            done = await until_ready(database, within_s=wait_s)
    except StoreUnavailable as error:
        raise NotMigrated(f"the database does not answer: {error}") from error
    except DatabaseRefused as refused:
        raise NotMigrated(str(refused), misconfigured=refused.misconfigured) from refused
    if not done.changed:
        return f"{database.name} is at {done.after}: nothing to do"
    return f"{database.name} went from {done.before or 'nothing'} to {done.after}"
