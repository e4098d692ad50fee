"""What other processes do to a database in tests. They start from a server that has everything imported already."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
from multiprocessing.context import ForkServerContext
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier, Event

from app.core.anchor_rows import ATTESTATION, CHECKPOINT, AnchorRow
from app.core.blocks import Noted
from app.core.lasting import StoreUnavailable
from app.store.anchor_rows import SqlAnchorRows
from app.store.database import Limits, open_database
from app.store.ledger import SqlLedger
from app.store.migrating import make_ready, until_ready, upgrade

KEY = 7


def context() -> ForkServerContext:
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(["tests.store.processes"])
    return chosen


# --- migrating ------------------------------------------------------------------------------------------------------


def migrate(url: str, together: Barrier, told: SimpleQueue[tuple[str | None, str] | str]) -> None:
    """Waits for all, then starts as a replica does. Tells from which step to which it went by itself, or what went wrong."""

    async def start() -> None:
        async with open_database(url) as database:
            together.wait()
            done = await until_ready(database)
            await SqlLedger(database, KEY).done()
            told.put((done.before, done.after))

    try:
        asyncio.run(start())
    except BaseException as error:
        told.put(f"{type(error).__name__}: {error}")
        raise


def die_while_migrating(url: str, held: Event, together: Barrier) -> None:
    """Is killed with the lock in its hands and half of the tables made."""

    async def start() -> None:
        async with open_database(url) as database, database.exclusive() as link:
            await link.run_sync(upgrade, "0001")
            held.set()
            together.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(start())


# --- sharing a pooler -----------------------------------------------------------------------------------------------

PATIENT = Limits(call_s=30, lock_s=30, connections=2, overflow=0)  # who shares two connections waits for them


def share(url: str, keys: list[int], told: SimpleQueue[str | None]) -> None:
    """Several replicas in one process, each with a chain of its own or of somebody else's. Tells what went wrong, if anything."""

    async def replica(key: int) -> None:
        async with open_database(url, PATIENT) as database:
            await make_ready(database)
            ledger = SqlLedger(database, key % 5)
            for height in range(4):
                mark = bytes([key, height]) * 16
                await ledger.note([Noted(height, mark, mark, mark)])
                await asyncio.gather(ledger.position(mark), ledger.done(), ledger.note_finalized(height))

    async def replicas() -> None:
        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(replica(key))

    try:
        asyncio.run(replicas())
        told.put(None)
    except BaseException as error:
        told.put(repr(error))
        raise


# --- writing until killed -------------------------------------------------------------------------------------------


def digest_of(height: int) -> bytes:
    return height.to_bytes(32)


def block_of(height: int, branch: int) -> Noted:
    """A block whose every part says which block it is of."""
    mark = branch.to_bytes(8) + height.to_bytes(8)
    transactions = b"".join(mark + index.to_bytes(16) for index in range(height % 7))
    return Noted(height, mark.rjust(32, b"b"), transactions, mark.rjust(32, b"r"), asked=height % 13 == 0)


FORGETS_BACK = 70
"""From the last height that a writer told of, at most: a step and what the one before forgot."""


def write_until_killed(url: str, seed: int, confirmed: SimpleQueue[tuple[str, int]]) -> None:
    """Fills, reorgs, retention, anchoring, as a chain does them, as fast as it goes. Tells what was done, once it was."""

    async def write() -> None:
        chance = random.Random(seed)
        async with open_database(url) as database:
            await make_ready(database)
            ledger, rows = SqlLedger(database, KEY), SqlAnchorRows(database, KEY, "self")
            await rows.claim_genesis(seed)
            done = await ledger.done()
            height = done[-1][1] if done else 0
            branch = seed
            while True:
                try:
                    await _step(chance, ledger, rows, height, branch, confirmed)
                except StoreUnavailable:  # another writer was in the way for too long
                    continue
                height += 16
                branch += 1000

    asyncio.run(write())


async def _step(
    chance: random.Random,
    ledger: SqlLedger,
    rows: SqlAnchorRows,
    height: int,
    branch: int,
    confirmed: SimpleQueue[tuple[str, int]],
) -> None:
    heights = range(height, height + chance.randrange(1, 40))
    await ledger.note([block_of(each, branch) for each in heights])
    confirmed.put(("noted", heights[-1]))
    await ledger.note_finalized(heights[-1])
    confirmed.put(("finalized", heights[-1]))
    at = height // 16 * 16
    kind = CHECKPOINT if at % 160 == 0 else ATTESTATION
    await rows.add([AnchorRow(at, digest_of(at), kind)])
    confirmed.put(("anchored", at))
    if chance.random() < 0.3:
        await ledger.forget_from(heights[-1] - chance.randrange(10))
    if chance.random() < 0.3:
        await ledger.forget_below(height - 200)
