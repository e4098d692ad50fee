"""Where entries lie: in a directory, or in an object store; and what keeps either from holding up whoever asks.

A tier blocks nobody: each call has a limit in time, few calls run at once, and one that keeps failing is left alone for a
while. What it is that fails is logged when it begins and when it ends, and counted in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from app.core.breaker import Breaker
from app.metrics import Metrics
from app.store.blocks_directory import BlockDirectory, TooLarge
from app.store.blocks_entry import LARGEST_ENTRY_BYTES, EntryKey, Unusable
from app.store.blocks_threads import Threads

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

log = logging.getLogger(__name__)

DISK_THREADS = 3
"""For reading, and as many for writing: a sweep may hold up writes, and nothing holds up reads."""

SWEEP_LIMIT_S = 600.0
REQUESTS_AT_ONCE = 16
ENOUGH_SUCCESSES = 3
"""In a row, to say that what failed works again."""


class TierFailed(Exception):
    """Why a tier did not do what it was asked for, in words that name no place and no secret."""


class Tier(Protocol):
    """Entries by path. Raises `TierFailed`; TimeoutError after the limits it is given."""

    @property
    def name(self) -> str: ...

    async def read(self, path: str) -> bytes | None: ...

    async def write(self, path: str, entry: bytes) -> None: ...

    async def remove(self, path: str) -> None: ...

    def close(self) -> None: ...


class LocalTier(Tier, Protocol):
    """A tier that bounds itself, when it is told to look."""

    @property
    def held_bytes(self) -> int: ...

    @property
    def held_entries(self) -> int: ...

    async def sweep(self) -> None: ...


class DirectoryTier:
    """The entries of a `BlockDirectory`."""

    name = "directory"
    read_limit_s = 0.5
    write_limit_s = 10.0  # a sweep may be in it

    def __init__(self, directory: BlockDirectory) -> None:
        self._directory = directory
        self._reading = Threads("block-store-read", DISK_THREADS)
        self._writing = Threads("block-store-write", DISK_THREADS)

    def __repr__(self) -> str:
        return f"<DirectoryTier {self._directory!r}>"

    async def read(self, path: str) -> bytes | None:
        return await self._run(self._reading, partial(self._directory.read, path), self.read_limit_s)

    async def write(self, path: str, entry: bytes) -> None:
        await self._run(self._writing, partial(self._directory.write, path, entry), self.write_limit_s)

    async def remove(self, path: str) -> None:
        await self._run(self._reading, partial(self._directory.remove, path), self.read_limit_s)

    @property
    def held_bytes(self) -> int:
        return self._directory.held_bytes

    @property
    def held_entries(self) -> int:
        return self._directory.entries

    async def sweep(self) -> None:
        """Looks at every entry, and removes what is too much or too old."""
        await self._run(self._writing, self._directory.sweep, SWEEP_LIMIT_S)

    def close(self) -> None:
        self._reading.close()
        self._writing.close()

    async def _run(self, threads: Threads, work: Callable[[], T], limit_s: float) -> T:
        try:
            return await threads.run(work, limit_s)
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise TierFailed(errno.errorcode.get(error.errno or 0, type(error).__name__)) from error
        except TooLarge as error:
            raise TierFailed("too large for the directory") from error


class ObjectTier:
    """The entries of a bucket. They are bounded by the rules that the bucket itself has, not from here."""

    name = "objects"
    read_limit_s = 1.4
    write_limit_s = 5.0

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._places = asyncio.Semaphore(REQUESTS_AT_ONCE)

    def __repr__(self) -> str:
        return "<ObjectTier>"  # the store would show its bucket and more

    async def read(self, path: str) -> bytes | None:
        return await self._run(self._read, path, self.read_limit_s)

    async def write(self, path: str, entry: bytes) -> None:
        await self._run(partial(self._write, entry), path, self.write_limit_s)

    async def remove(self, path: str) -> None:
        await self._run(self._remove, path, self.read_limit_s)

    def close(self) -> None:
        """Nothing is held between calls that has to be given back."""

    async def _read(self, path: str) -> bytes | None:
        try:
            result = await obstore.get_async(self._store, path)
        except FileNotFoundError:
            return None
        if result.meta["size"] > LARGEST_ENTRY_BYTES:
            raise Unusable("damaged")
        return bytes(await result.bytes_async())

    async def _write(self, entry: bytes, path: str) -> None:
        # In parts an upload would be many requests, and may leave parts behind that nobody sees and somebody pays for.
        await obstore.put_async(self._store, path, entry, use_multipart=False)

    async def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            await obstore.delete_async(self._store, path)

    async def _run(self, call: Callable[[str], Awaitable[T]], path: str, limit_s: float) -> T:
        try:
            async with asyncio.timeout(limit_s), self._places:
                return await call(path)
        except TimeoutError:
            raise
        except (BaseError, ValueError, OSError) as error:
            # Of the error only its kind is told: its text holds URLs, which may hold tokens.
            raise TierFailed(type(error).__name__) from None


def open_objects(url: str) -> ObjectTier:
    """The bucket of an s3://, gs:// or az:// URL. Where it is and who we are there, the environment says (AWS_*, GOOGLE_*,
    AZURE_*), or the query of the URL (`?region=..&endpoint=..`). Raises ValueError without the URL in it."""
    parts = urlsplit(url)
    config: dict[str, Any] = dict(parse_qsl(parts.query))
    client: dict[str, Any] = {"connect_timeout": timedelta(seconds=1), "timeout": timedelta(seconds=5)}
    if config.get("endpoint", "").startswith("http://"):
        client["allow_http"] = True
    plain = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
    open_store: Callable[..., ObjectStore] = from_url
    try:
        store = open_store(
            plain,
            config=config or None,
            client_options=client,
            # One more try, for a connection that was closed while it was idle; the breaker does the rest.
            retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=2)},
        )
    except (BaseError, ValueError, OSError, TypeError) as error:
        raise ValueError(f"the object store cannot be used ({type(error).__name__})") from None
    return ObjectTier(store)


class _Side:
    """Reading a tier, or writing it: whether that works at the moment."""

    def __init__(self, tier: str, side: str, tell: Callable[[bool], None]) -> None:
        self._tier = tier
        self._side = side
        self._tell = tell
        self.breaker = Breaker()
        self._failing = False
        self._successes = 0
        tell(True)

    def succeed(self, began_at: float) -> None:
        self.breaker.succeed(began_at)
        self._successes += 1
        if self._failing and self._successes >= ENOUGH_SUCCESSES:
            self._failing = False
            self._tell(True)
            log.info("block_store_back", extra={"tier": self._tier, "side": self._side})

    def fail(self, now: float, reason: str) -> None:
        self.breaker.fail(now)
        self._successes = 0
        if not self._failing:
            self._failing = True
            self._tell(False)
            log.warning("block_store_unavailable", extra={"tier": self._tier, "side": self._side, "reason": reason})


class GuardedTier:
    """A tier that never raises and never holds anybody up. `now` is monotonic."""

    def __init__(self, tier: Tier, metrics: Metrics, now: Callable[[], float]) -> None:
        self.name = tier.name
        self._tier = tier
        self._metrics = metrics
        self._now = now
        up = metrics.block_store_up
        self._reading = _Side(tier.name, "read", lambda works: up.labels(tier.name, "read").set(works))
        self._writing = _Side(tier.name, "write", lambda works: up.labels(tier.name, "write").set(works))

    def __repr__(self) -> str:
        return f"<Guarded {self._tier!r}, read {self._reading.breaker!r}, write {self._writing.breaker!r}>"

    async def read(
        self, key: EntryKey, chain: str, decode: Callable[[bytes], Awaitable[bytes]]
    ) -> tuple[bytes, bytes] | None:
        """The entry under `key` and what `decode` made of it; None, counted, when there is none, or none that is any good. An
        entry that `decode` refuses is removed."""
        began_at = self._now()
        found: tuple[bytes, bytes] | None = None
        if not self._reading.breaker.admits(began_at):
            result = "skipped"
        else:
            self._reading.breaker.begin(began_at)
            try:
                entry = await self._tier.read(key.path)
                found = None if entry is None else (entry, await decode(entry))
                result = "miss" if found is None else "hit"
                self._reading.succeed(began_at)
            except Unusable as unusable:
                result = unusable.why
                self._reading.succeed(began_at)
                log.warning("block_store_entry_dropped", extra={"tier": self.name, "why": result})
                await self.remove(key)
            except TimeoutError:
                result = "timeout"
                self._reading.fail(self._now(), "no answer in time")
            except TierFailed as failed:
                result = "failed"
                self._reading.fail(self._now(), str(failed))
        self._metrics.block_store_reads_total.labels(chain, self.name, result).inc()
        if result != "skipped":
            self._metrics.block_store_read_duration_seconds.labels(self.name).observe(self._now() - began_at)
        return found

    async def write(self, key: EntryKey, chain: str, entry: bytes) -> bool:
        """Writes the entry, or counts that it was not. Whether it was."""
        began_at = self._now()
        if not self._writing.breaker.admits(began_at):
            result = "skipped"
        else:
            self._writing.breaker.begin(began_at)
            try:
                await self._tier.write(key.path, entry)
                result = "ok"
                self._writing.succeed(began_at)
                self._metrics.block_store_written_bytes_total.labels(chain, self.name).inc(len(entry))
            except TimeoutError:
                result = "timeout"
                self._writing.fail(self._now(), "no answer in time")
            except TierFailed as failed:
                result = "failed"
                self._writing.fail(self._now(), str(failed))
        self._metrics.block_store_writes_total.labels(chain, self.name, result).inc()
        return result == "ok"

    async def remove(self, key: EntryKey) -> None:
        """Removes the entry, if that can be done now: one that stays is refused again whenever it is read."""
        try:
            await self._tier.remove(key.path)
        except (TimeoutError, TierFailed) as error:
            log.warning("block_store_entry_not_removed", extra={"tier": self.name, "reason": type(error).__name__})
