"""Several processes on one database, some of which are killed: nothing is lost, contradicted, or done twice."""

from __future__ import annotations

import logging
import os
import random
import signal
from multiprocessing.context import ForkServerContext

import pytest
from sqlalchemy import select, text

from app.core.anchor_rows import CHECKPOINT
from app.core.gaps import Heights
from app.core.lasting import StoreUnavailable
from app.store import schema
from app.store.anchor_rows import SqlAnchorRows
from app.store.database import Database, Limits, open_database
from app.store.ledger import SqlLedger
from app.store.migrating import make_ready

from . import processes
from .processes import KEY, digest_of

REPLICAS = 10
KILLS = int(os.environ.get("COPATH_TESTS_KILLS", "20"))
"""How often a writing process is killed, over all kinds of databases."""

pytestmark = pytest.mark.xdist_group("store-processes")  # one after another: each fills the machine


@pytest.fixture(scope="module")
def forks() -> ForkServerContext:
    return processes.context()


def start_replicas(forks: ForkServerContext, url: str) -> list[tuple[str | None, str]]:
    together, told = forks.Barrier(REPLICAS), forks.SimpleQueue()
    replicas = [forks.Process(target=processes.migrate, args=(url, together, told)) for _ in range(REPLICAS)]
    for replica in replicas:
        replica.start()
    steps = [told.get() for _ in replicas]
    for replica in replicas:
        replica.join()
    assert [replica.exitcode for replica in replicas] == [0] * REPLICAS, steps
    return steps


async def test_B75_ten_replicas_start_on_an_empty_database(forks: ForkServerContext, url: str) -> None:
    steps = start_replicas(forks, url)
    assert len({after for _, after in steps}) == 1
    assert [before for before, after in steps if before != after] == [None], "one of them did it, all of it"


async def test_B75_ten_replicas_start_on_the_previous_version(forks: ForkServerContext, url: str) -> None:
    async with open_database(url) as database:
        await make_ready(database, target="0001")
        await SqlLedger(database, KEY).note_finalized(5)
    steps = start_replicas(forks, url)
    changed = [(before, after) for before, after in steps if before != after]
    assert [before for before, _ in changed] == ["0001"]
    async with open_database(url) as database:
        assert not (await make_ready(database)).changed
        assert await SqlLedger(database, KEY).finalized() == 5


async def test_B75_when_the_one_that_migrates_is_killed_another_finishes(forks: ForkServerContext, url: str) -> None:
    together, told, held = forks.Barrier(3), forks.SimpleQueue(), forks.Event()
    dying = forks.Process(target=processes.die_while_migrating, args=(url, held, together))
    dying.start()
    held.wait()
    others = [forks.Process(target=processes.migrate, args=(url, together, told)) for _ in range(2)]
    for other in others:
        other.start()
    steps = [told.get() for _ in others]
    for process in (dying, *others):
        process.join()
    assert [process.exitcode for process in (dying, *others)] == [-signal.SIGKILL, 0, 0], steps
    assert None in {before for before, _ in steps}, "nothing of the killed one's is left"


async def test_B75_waiting_for_the_one_that_migrates_has_an_end(url: str) -> None:
    async with open_database(url) as holder, holder.exclusive(), open_database(url, Limits(exclusive_s=0.6)) as other:
        with pytest.raises(StoreUnavailable, match=r"lock|in time"):
            await make_ready(other)


# --- kill -9 --------------------------------------------------------------------------------------------------------


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(1 << 30)
    logging.getLogger(__name__).warning("seed %s", seed)  # shown when the test fails
    return random.Random(seed)


@pytest.mark.parametrize("writers", [1, 2])
async def test_a_writer_that_is_killed_loses_and_contradicts_nothing(
    forks: ForkServerContext, url: str, writers: int, chance: random.Random
) -> None:
    async with open_database(url) as database:
        await make_ready(database)
        anchored: set[int] = set()
        finalized = 0
        for _ in range(max(1, KILLS // 6)):
            confirmed = [forks.SimpleQueue() for _ in range(writers)]
            writing = [
                forks.Process(target=processes.write_until_killed, args=(url, chance.randrange(1, 1000), queue))
                for queue in confirmed
            ]
            for process in writing:
                process.start()
            reached = dict.fromkeys(range(writers), 0)
            for number, queue in enumerate(confirmed):
                for _ in range(chance.randrange(1, 60)):
                    what, height = queue.get()
                    reached[number] = max(reached[number], height)
                    anchored |= {height} if what == "anchored" else set()
                    finalized = max(finalized, height) if what == "finalized" else finalized
            for process in writing:
                process.kill()
                process.join()
            # What is forgotten is not final any more, and the slowest writer may have forgotten last.
            await require_whole(database, anchored, min(finalized, *reached.values()) - processes.FORGETS_BACK)
            finalized = await SqlLedger(database, KEY).finalized() or 0


async def require_whole(database: Database, anchored: set[int], finalized: int) -> None:
    """What is there says the same in all its parts, and what was confirmed is there."""
    ledger, rows = SqlLedger(database, KEY), SqlAnchorRows(database, KEY, "self")
    blocks, positions, roots = schema.blocks, schema.positions, schema.roots
    async with database.reading(snapshot=True) as link:
        noted = {row.height: row for row in await link.execute(select(blocks).where(blocks.c.chain_key == KEY))}
        found = (await link.execute(select(positions).where(positions.c.chain_key == KEY))).all()
        kept = {row.height: row.root for row in await link.execute(select(roots).where(roots.c.chain_key == KEY))}
    assert await ledger.done() == tuple(Heights((height, height) for height in sorted(noted)))
    of_block: dict[int, list[bytes]] = {height: [] for height in noted}
    for row in found:
        of_block[row.height].append(row.tx_hash)
        assert row.tx_hash[:16] == noted[row.height].block_hash[16:], "a transaction of another block"
    for height, row in noted.items():
        assert len(of_block[height]) == height % 7, "all transactions of a block or none"
        assert kept[height][16:] == row.block_hash[16:], "the root of another block"
    at = await rows.load()
    assert all(row.digest == digest_of(row.height) for row in at)
    newest = max((row.height for row in at if row.kind == CHECKPOINT), default=-1)
    assert {height for height in anchored if height > newest} <= {row.height for row in at}
    assert newest >= max((height for height in anchored if height % 160 == 0), default=-1)
    assert (await ledger.finalized() or 0) >= finalized


async def test_only_one_genesis_stands_whoever_was_killed_claiming_it(forks: ForkServerContext, url: str) -> None:
    async with open_database(url) as database:
        await make_ready(database)
        queues = [forks.SimpleQueue() for _ in range(3)]
        writing = [
            forks.Process(target=processes.write_until_killed, args=(url, seed + 1, queue))
            for seed, queue in enumerate(queues)
        ]
        for process in writing:
            process.start()
        for process, queue in zip(writing, queues, strict=True):
            queue.get()
            process.kill()
            process.join()
        stands = await SqlAnchorRows(database, KEY, "self").claim_genesis(9)
        assert stands in (1, 2, 3)
        async with database.reading() as link:
            assert (await link.execute(text("SELECT height FROM geneses"))).scalars().all() == [stands]
