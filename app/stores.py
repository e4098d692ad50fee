"""What lasts, opened: the database with the ledgers of all chains, and the blocks beside it.

A database that is not there yet keeps nobody from being served: it is waited for in the background, and what it would have known
is asked of the nodes. One that will never do, because of its URL, its password or its version, is refused at the start.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from app.core.lasting import StoreUnavailable
from app.metrics import Metrics
from app.settings import Settings
from app.store.anchor_rows import SqlAnchorRows
from app.store.blocks import BlockStoreRules, ChainBlocks, PackedBlocks, directory_of, open_block_store
from app.store.brief_leases import BriefLeases
from app.store.database import Database, DatabaseRefused, open_database
from app.store.leases import SqlLeases
from app.store.ledger import SqlLedger
from app.store.migrating import make_ready, ready_at_last
from app.store.spendings import SqlSpendings

log = logging.getLogger(__name__)

START_LIMIT_S = 5.0
"""How long a start waits for the database. Whoever changes its tables may take longer; they are then waited for meanwhile."""


class StoresRefused(Exception):
    """Why nothing can be kept where it should be: one clear line, without a secret."""

    def __init__(self, line: str, *, misconfigured: bool) -> None:
        super().__init__(line)
        self.misconfigured = misconfigured


class Stores:
    """Owned by the house, which runs `run`."""

    def __init__(self, database: Database, blocks: PackedBlocks | None, *, blocks_are_shared: bool = False) -> None:
        """`blocks_are_shared`: other processes read what this one writes."""
        self.database = database
        self._blocks = blocks
        self.blocks_are_shared = blocks_are_shared
        self._leases = None if database.is_sqlite else BriefLeases(SqlLeases(database))
        self._spendings = SqlSpendings(database)

    def __repr__(self) -> str:
        return f"<Stores {self.database!r} {self._blocks!r}>"

    def ledger_of(self, chain_key: int) -> SqlLedger:
        """What is remembered of one chain."""
        return SqlLedger(self.database, chain_key)

    def anchor_rows_of(self, chain_key: int, source: str) -> SqlAnchorRows:
        """The anchors that are kept of one chain and source."""
        return SqlAnchorRows(self.database, chain_key, source)

    @property
    def leases(self) -> BriefLeases | None:
        """By which processes divide work among themselves; None where there is one process, as with SQLite."""
        return self._leases

    @property
    def spendings(self) -> SqlSpendings:
        """What all processes spent of the accounts of upstreams."""
        return self._spendings

    def blocks_of(self, chain_key: int, name: str) -> ChainBlocks | None:
        """The blocks of one chain, where blocks are kept."""
        return None if self._blocks is None else self._blocks.of(chain_key, name)

    async def run(self) -> None:
        """Until cancelled: waits for the database where it was not to be had, and writes blocks behind the requests."""
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())  # there may be nothing to do
            if not self.database.ready:
                group.create_task(ready_at_last(self.database))
            if self._blocks is not None:
                group.create_task(self._blocks.run())


@asynccontextmanager
async def open_stores(settings: Settings, metrics: Metrics) -> AsyncIterator[Stores]:
    """Everything that lasts; blocks that wait to be written are, when the block is left. Raises `StoresRefused`."""
    async with AsyncExitStack() as parts:
        try:
            database = await parts.enter_async_context(open_database(settings.database_url))
            await _ready_soon(database)
            blocks = _open_blocks(settings, metrics)
        except DatabaseRefused as refused:
            raise StoresRefused(str(refused), misconfigured=refused.misconfigured) from refused
        except ValueError as error:
            raise StoresRefused(f"block_store_url: {error}", misconfigured=True) from None
        await asyncio.to_thread(_try_directory, settings.block_store_url)
        if blocks is not None:
            parts.push_async_callback(blocks.aclose)
        yield Stores(database, blocks, blocks_are_shared=_is_shared(settings))


def _try_directory(url: str | None) -> None:
    """Says at the start that the directory for blocks cannot be written, and not only when the first block is lost."""
    if url is None or not url.startswith("file:"):
        return
    place = directory_of(url)
    try:
        os.makedirs(place, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        log.warning(
            "block_store_unwritable",
            extra={
                "setting": "block_store_url",
                "directory": place,
                "reason": os.strerror(
                    errno.ENOTDIR if isinstance(error, FileExistsError) else error.errno or errno.EIO
                ),
                "detail": "blocks are fetched again after every restart: name a directory that can be written, or null",
            },
        )


async def _ready_soon(database: Database) -> None:
    try:
        async with asyncio.timeout(START_LIMIT_S):
            await make_ready(database)
    except (StoreUnavailable, TimeoutError):
        database.note_gone("not ready in time")


def _is_shared(settings: Settings) -> bool:
    """An object store is, and a directory is not, unless somebody knows better."""
    if settings.block_store_url is None:
        return False
    said = settings.block_store.shared
    return not settings.block_store_url.startswith("file:") if said is None else said


def _open_blocks(settings: Settings, metrics: Metrics) -> PackedBlocks | None:
    if settings.block_store_url is None:
        return None
    chosen = settings.block_store
    return open_block_store(
        BlockStoreRules(settings.block_store_url, chosen.local_path, chosen.max_bytes, chosen.max_age_secs), metrics
    )
