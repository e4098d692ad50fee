"""One database per process: SQLite or PostgreSQL, whichever the URL names, behind one way to read and one way to write.

Every use of it is one transaction, bounded in time. Whatever keeps the database from doing it is `StoreUnavailable`, within
about two seconds: no caller waits for a database that is gone, and the next call finds it when it is back, without a restart.
A call that is cancelled gives its connection back or closes it.

PostgreSQL may stand behind PgBouncer in transaction mode: statements are unnamed, and nothing is set that outlives its
transaction. SQLite writes ahead (WAL), one writer at a time; `:memory:` is one database for all connections of the process.
"""

from __future__ import annotations

import asyncio
import getpass
import inspect
import logging
import os
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

import asyncpg  # type: ignore[import-untyped]  # ships no types
from sqlalchemy import URL, Connection, Table, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, DisconnectionError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, Pool

from app.core.lasting import StoreUnavailable

from .outages import is_read_only, one_line, refusal, somebody_was_in_the_way

log = logging.getLogger(__name__)

IDLE_IS_DOUBTFUL_S = 5.0
"""A connection that lay idle for longer is asked whether it still stands before it is used."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take, in seconds, and how many connections there may be."""

    call_s: float = 2.0
    """One transaction, from asking for a connection until it is committed."""
    lock_s: float = 1.5
    """Of that, waiting for a lock that somebody else holds."""
    stalled_s: float = 10.0
    """After so long without a statement a transaction is ended by the server: its process stands still, and others wait."""
    exclusive_s: float = 120.0
    """Waiting for the exclusive lock, and then what is done under it."""
    connections: int = 4
    overflow: int = 4


class DatabaseRefused(Exception):
    """Why this database cannot be used, now or later: one clear line, without the password."""

    def __init__(self, line: str, *, misconfigured: bool = False) -> None:
        """`misconfigured`: its URL is wrong by itself."""
        super().__init__(line)
        self.misconfigured = misconfigured


class _Impatient(asyncpg.Connection):  # type: ignore[misc]  # asyncpg ships no types for it
    """A connection that says goodbye only where somebody listens."""

    async def close(self, *, timeout: float | None = None) -> None:
        await super().close(timeout=0.25 if timeout is None else min(timeout, 0.25))


class Outage:
    """What is said of one server to which several pools of connections lead: once that it is gone, and once that it is back."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._without: set[object] = set()

    def begins(self, pool: object, why: str) -> None:
        """A pool finds that the server does not do what is asked of it."""
        if not self._without:
            log.warning("database_unavailable", extra={"database": self._name, "error": why})
        self._without.add(pool)

    def ends(self, pool: object) -> None:
        """A pool is served again."""
        if pool in self._without:
            self._without.remove(pool)
            if not self._without:
                log.info("database_back", extra={"database": self._name})


class Database:
    """Made by `open_database`, which closes it. `ready` is set by whoever made sure that the tables are those of this version;
    until then nothing is read or written."""

    def __init__(self, url: URL, limits: Limits, name: str, outage: Outage | None = None) -> None:
        self._url = url
        self.name = name
        """The URL without its password: fit for a log line."""
        self.limits = limits
        self.dialect = url.get_backend_name()
        """`sqlite` or `postgresql`."""
        self.is_sqlite = self.dialect == "sqlite"
        self.ready = False
        self.up = True
        self.outage = outage or Outage(name)
        self._engine = _engine(url, limits, limits.lock_s)
        self._writer = asyncio.Lock()  # of SQLite: who waits here, in turn, does not poll for the lock of the file

    def __repr__(self) -> str:
        return f"<Database {self.name} {'ready' if self.ready else 'not ready'}, {'up' if self.up else 'down'}>"

    @asynccontextmanager
    async def reading(
        self, within_s: float | None = None, *, snapshot: bool = False, opening: bool = False
    ) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads. `snapshot`: all its statements see the database as it was at the first. `opening`: the
        tables may not be there yet, and what will not change by itself is `DatabaseRefused`."""
        within_s = self.limits.call_s if within_s is None else within_s
        async with self._guarded(within_s, opening=opening), self._engine.connect() as link:
            if snapshot and not self.is_sqlite:
                await link.execution_options(isolation_level="REPEATABLE READ")
            yield link

    @asynccontextmanager
    async def writing(self, within_s: float | None = None, *, durable: bool = False) -> AsyncIterator[AsyncConnection]:
        """A transaction that is committed when the block ends, and rolled back when it raises.

        `durable`: what is committed survives a loss of power too, and not only the end of this process (PostgreSQL: always)."""
        within_s = self.limits.call_s if within_s is None else within_s
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._guarded(within_s))
            if self.is_sqlite:
                await held.enter_async_context(self._writer)
            link = await held.enter_async_context(self._engine.connect())
            await self._begin(link, within_s, durable=durable)
            yield link
            await link.commit()

    @asynccontextmanager
    async def at_once(self) -> AsyncIterator[AsyncConnection]:
        """For statements that are transactions by themselves."""
        if self.is_sqlite:
            async with self.writing() as link:
                yield link
        else:
            async with self.reading() as link:
                yield await link.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[AsyncConnection]:
        """A transaction on a connection of its own that no other process has at the same time: for changing the tables.
        The lock belongs to the transaction and ends with it, whatever ends that."""
        limits = self.limits
        half_s = limits.exclusive_s / 2
        engine = _engine(self._url, limits, half_s, NullPool)
        try:
            async with self._guarded(limits.exclusive_s, opening=True), engine.connect() as link:
                if self.is_sqlite:
                    await link.execution_options(copath_begin="BEGIN EXCLUSIVE")
                    await link.begin()
                else:
                    await _limit(link, lock_s=half_s, statement_s=limits.exclusive_s, stalled_s=limits.exclusive_s)
                    await link.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
                yield link
                await link.commit()
        finally:
            await engine.dispose()

    def insert_into(self, table: Table) -> sqlite.Insert | postgresql.Insert:
        """An insert that can say what is to be done where the row is there already."""
        return sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._engine.dispose()

    async def _begin(self, link: AsyncConnection, within_s: float, *, durable: bool) -> None:
        if self.is_sqlite:
            await link.execution_options(
                copath_begin="BEGIN IMMEDIATE", copath_synchronous="FULL" if durable else "NORMAL"
            )
            await link.begin()
        else:
            await _limit(link, lock_s=self.limits.lock_s, statement_s=within_s, stalled_s=self.limits.stalled_s)

    @asynccontextmanager
    async def _guarded(self, within_s: float, *, opening: bool = False) -> AsyncIterator[None]:
        """What goes wrong with the database inside becomes `StoreUnavailable`, or `DatabaseRefused` while it is not in use."""
        if not (opening or self.ready):
            raise StoreUnavailable("the database has not been had since the start")
        try:
            async with asyncio.timeout(within_s):
                yield
        except IntegrityError:
            raise
        except (DBAPIError, NoConnectionFree, OSError, TimeoutError) as error:
            if not somebody_was_in_the_way(error):
                self.note_gone(one_line(error))
            if is_read_only(error):  # it has a successor, under the same name
                await self._engine.dispose()
            if opening and (why := refusal(error)):
                raise DatabaseRefused(f"the database {self.name} refuses: {why}") from error
            raise StoreUnavailable(one_line(error)) from error
        if not self.up:
            self.up = True
            self.outage.ends(self)

    def note_gone(self, why: str) -> None:
        """It does not do what is asked of it: said once, until it is back."""
        if self.up:
            self.up = False
            self.outage.begins(self, why)


_MIGRATION_LOCK = int.from_bytes(b"copath")
"""Of PostgreSQL's transaction-level advisory locks, the one that whoever changes the tables holds."""


def in_memory(url: str) -> bool:
    """Whether it is the URL of a database that ends with its process."""
    return url.startswith("sqlite") and url.partition("://")[2] in ("", "/", "/:memory:")


@asynccontextmanager
async def open_database(
    url: str, limits: Limits | None = None, outage: Outage | None = None
) -> AsyncIterator[Database]:
    """The database of that URL. Nothing is connected to yet. `outage`: of another pool that leads to the same one.

    Raises `DatabaseRefused` when the URL names none."""
    try:
        parsed = make_url(url)
        in_memory = parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:")
        placed = _in_memory(parsed) if in_memory else parsed
        limits = limits or Limits()
        if in_memory:  # its locks keep readers and the writer from each other, as those of WAL do not: they take turns
            limits = replace(limits, connections=1, overflow=0)
        database = Database(placed, limits, parsed.render_as_string(hide_password=True), outage)
    except _UrlError as error:
        raise DatabaseRefused(f"database_url: {error}", misconfigured=True) from None
    except (SQLAlchemyError, ValueError, ImportError):  # their words quote the URL
        why = "is not the URL of a database: write : / ? # @ % of a user or a password as %3A %2F %3F %23 %40 %25"
        raise DatabaseRefused(f"database_url: {why}", misconfigured=True) from None
    async with AsyncExitStack() as held:
        if in_memory:
            # A database in memory lasts as long as some connection to it: this one.
            held.enter_context(closing(sqlite3.connect(f"{placed.database}?vfs=memdb", uri=True)))
        held.push_async_callback(database.aclose)
        yield database


def _in_memory(url: URL) -> URL:
    """One database for all connections of this process, with locks between them as those of a file."""
    return url.set(database=f"file:/copath-{uuid.uuid4().hex}", query={"vfs": "memdb", "uri": "true"})


def _engine(url: URL, limits: Limits, lock_s: float, pool: type[Pool] | None = None) -> AsyncEngine:
    sizes: dict[str, Any] = {"poolclass": pool}
    if pool is None:
        sizes = {"pool_size": limits.connections, "max_overflow": limits.overflow, "pool_timeout": limits.call_s}
        sizes["pool_use_lifo"] = True  # what is not needed lies idle, and is closed by the other side in time
    if url.get_backend_name() == "sqlite":
        engine = create_async_engine(url, connect_args={"timeout": lock_s, "factory": _Unburdened}, **sizes)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    url = _options_understood(url)
    ours = {
        "server_settings": {"application_name": "copath"},
        "connection_class": _Impatient,
        "timeout": limits.call_s,
        # Behind PgBouncer the next transaction may run on another connection of the server, which has other statements.
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": str,  # unnamed: gone with the next one, and never left behind on the server
    }
    engine = create_async_engine(url, connect_args=ours, **sizes)
    event.listen(engine.sync_engine, "checkin", _note_checkin)
    event.listen(engine.sync_engine, "checkout", _doubt_idle(engine))
    return engine


# --- SQLite ---------------------------------------------------------------------------------------------------------


class _Unburdened(sqlite3.Connection):
    """A connection that keeps no lock when it is closed: SQLite itself waits with that until the last cursor is gone, and the one
    of a cancelled call lives on in its traceback."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def cursor(self, *given: Any, **named: Any) -> Any:
        cursor = super().cursor(*given, **named)
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        for cursor in list(self._cursors):
            cursor.close()
        if self.in_transaction:
            self.rollback()
        super().close()


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say so, and as we say
    cursor = connection.cursor()
    try:
        # Hashes of transactions lie anywhere in their index: with less of it at hand every insert reads and writes pages.
        cursor.execute("PRAGMA cache_size=-16384")
        cursor.execute("PRAGMA journal_size_limit=67108864")
        # Readers and the writer do not wait for each other. The file remembers it; while others are busy it cannot be changed,
        # and one of the next connections will.
        cursor.execute("PRAGMA journal_mode=WAL")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
    finally:
        cursor.close()


def _begin_sqlite(link: Connection) -> None:
    chosen = link.get_execution_options()
    if synchronous := chosen.get("copath_synchronous"):
        link.exec_driver_sql(f"PRAGMA synchronous={synchronous}")
    link.exec_driver_sql(chosen.get("copath_begin", "BEGIN"))


# --- PostgreSQL -----------------------------------------------------------------------------------------------------


_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


class _UrlError(ValueError):
    """What is wrong with a URL, without any of its values."""


def _options_understood(url: URL) -> URL:
    """Options after the question mark are those of asyncpg; `sslmode` is what everybody else calls its `ssl`."""
    options = dict(url.query)
    if "sslmode" in options:
        options["ssl"] = options.pop("sslmode")
    if unknown := options.keys() - inspect.signature(asyncpg.connect).parameters.keys():
        raise _UrlError(f"unknown option {min(unknown)}")
    if options.get("ssl", "disable") not in _SSL_MODES:
        raise _UrlError(f"sslmode must be one of {', '.join(_SSL_MODES)}")
    if url.port is not None and not 0 < url.port < 2**16:
        raise _UrlError("its port must be 1 to 65535")
    if not url.username and "user" not in options and not _has_a_name():
        raise _UrlError("names no user, and this process has none: postgresql://user:password@host/database")
    return url.set(query=options)


def _has_a_name() -> bool:
    """Whether the driver finds a user by itself, as in a container it may not."""
    try:
        return bool(os.environ.get("PGUSER") or getpass.getuser())
    except (KeyError, OSError):
        return False


_LIMIT = text(
    "SELECT set_config('lock_timeout', :lock, true), set_config('statement_timeout', :statement, true),"
    " set_config('idle_in_transaction_session_timeout', :stalled, true)"
)
_USED_AT = "copath_used_at"


async def _limit(link: AsyncConnection, *, lock_s: float, statement_s: float, stalled_s: float) -> None:
    """Limits that the server keeps, for this transaction alone: for when this process is not there to keep its own."""
    spans = {"lock": lock_s, "statement": statement_s, "stalled": stalled_s}
    await link.execute(_LIMIT, {name: f"{round(1000 * span_s)}ms" for name, span_s in spans.items()})


def _note_checkin(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info[_USED_AT] = time.monotonic()


def _doubt_idle(engine: AsyncEngine) -> Callable[[Any, ConnectionPoolEntry, object], None]:
    """A server that was restarted, or a firewall that forgot, is found out before a transaction is begun and not by it."""

    def ask(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        if connection.driver_connection.is_closed():
            raise DisconnectionError
        used_at = record.info.get(_USED_AT)
        if used_at is None or time.monotonic() - used_at < IDLE_IS_DOUBTFUL_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except (engine.dialect.loaded_dbapi.Error, OSError) as error:
            raise DisconnectionError from error

    return ask
