"""What is kept of consumers, opened: their keys and their rates, in the database that everything else is in.

With PostgreSQL they have connections of their own: whoever waits 50 ms for a token must not stand behind a ledger that is being
written. Without any database at the start they do as they do without one later: keys known last count, rates are kept alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from app.core.bucket import Rate
from app.core.consumers import Pepper
from app.core.lasting import StoreUnavailable
from app.metrics import Metrics
from app.settings import ConsumerSettings, Settings
from app.store.buckets import SharedBuckets
from app.store.database import Database, DatabaseRefused, Limits, in_memory, open_database
from app.store.keys import LONGEST_NAME, OTHER_PEPPER, Keyring, KeyRow, KeyTable
from app.store.migrating import make_ready, ready_at_last
from app.store.rates import Rates

__all__ = [
    "OTHER_PEPPER",
    "ConsumerParts",
    "KeyRow",
    "KeysRefused",
    "create_key",
    "list_keys",
    "open_consumers",
    "revoke_key",
]

log = logging.getLogger(__name__)

LIMITS = Limits(call_s=1.0, lock_s=0.75, connections=6, overflow=0)
"""Of these connections. All of them stay: one that is made for a take and closed after it costs more than ten takes."""


class KeysRefused(Exception):
    """Why no key can be made, listed or revoked: one clear line, without a secret."""

    def __init__(self, line: str, *, misconfigured: bool = True) -> None:
        """`misconfigured`: it is the configuration or the command line that has to change."""
        super().__init__(line)
        self.misconfigured = misconfigured


@dataclass(frozen=True, slots=True)
class ConsumerParts:
    """Owned by the house, which runs `loops`, by name. `rates` is None where consumers have none, `keys` where nothing could be
    known of them."""

    keys: Keyring | None = None
    rates: Rates | None = None
    loops: Sequence[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = ()


@asynccontextmanager
async def open_consumers(
    settings: Settings, database: Database, metrics: Metrics, clock: Callable[[], float]
) -> AsyncIterator[ConsumerParts]:
    """`database`: the one that everything else is in; of SQLite there is only one. Without a pepper nothing is kept."""
    chosen = settings.consumers
    if chosen.pepper is None:
        yield ConsumerParts()
        return
    if database.is_sqlite:
        yield _parts(chosen, chosen.pepper, database, metrics, clock)
        return
    async with open_database(settings.database_url, LIMITS, database.outage) as ours:
        ours.ready = database.ready
        parts = _parts(chosen, chosen.pepper, ours, metrics, clock)
        awaiting = () if ours.ready else (("consumer-database", lambda: _await_database(ours)),)
        yield ConsumerParts(parts.keys, parts.rates, (*parts.loops, *awaiting))


def _parts(
    chosen: ConsumerSettings, secret: str, database: Database, metrics: Metrics, clock: Callable[[], float]
) -> ConsumerParts:
    pepper = Pepper(secret.encode())
    keys = Keyring(KeyTable(database, pepper), pepper, metrics, clock, required=chosen.api_keys_required)
    if not chosen.rate.enabled:
        return ConsumerParts(keys, None, [("consumer-keys", keys.run)])
    rate = Rate(chosen.rate.per_second, float(chosen.rate.burst))
    rates = Rates(rate, SharedBuckets(database, rate), metrics, clock, replicas=chosen.expected_replicas)
    return ConsumerParts(keys, rates, [("consumer-keys", keys.run), ("consumer-rates", rates.run)])


async def _await_database(database: Database) -> None:
    await ready_at_last(database)
    await asyncio.Event().wait()  # a loop that returned would be begun anew


# --- for the command line -------------------------------------------------------------------------------------------


async def create_key(settings: Settings, name: str) -> tuple[str, str, int]:
    """The id of a new key, the key, which is shown now or never, and how many others were made under another pepper. Raises
    `KeysRefused`, as the others do."""
    fits = bool(name.strip()) and len(name) <= LONGEST_NAME
    if not (fits and name.isprintable()):  # bytes that are no text are not printable either
        raise KeysRefused(f"the name of a key has 1 to {LONGEST_NAME} characters that can be printed")
    async with _table(settings) as table:
        key_id, key = await table.create(name)
        return key_id, key, await table.of_other_peppers()


async def list_keys(settings: Settings) -> tuple[KeyRow, ...]:
    """Every key that was ever made, oldest first."""
    async with _table(settings) as table:
        return await table.rows()


async def revoke_key(settings: Settings, key_id: str) -> bool:
    """Whether a key of this id counted until now."""
    if not key_id.isascii():
        return False
    async with _table(settings) as table:
        return await table.revoke(key_id)


@asynccontextmanager
async def _table(settings: Settings) -> AsyncIterator[KeyTable]:
    secret = settings.consumers.pepper
    if secret is None:
        raise KeysRefused("keys are stored as hashes under consumers.pepper: set consumers.pepper_file first")
    if in_memory(settings.database_url):
        raise KeysRefused(
            "database_url is in memory, where no key lasts: name the configuration of your server with --config"
        )
    try:
        async with open_database(settings.database_url) as database:
            await make_ready(database)
            yield KeyTable(database, Pepper(secret.encode()))
    except DatabaseRefused as refused:
        raise KeysRefused(str(refused), misconfigured=refused.misconfigured) from refused
    except StoreUnavailable as lost:
        raise KeysRefused(f"the database does not answer: {lost}", misconfigured=False) from lost
