"""One fill per cold block for all replicas, whoever of them, of the database and of the store fails meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
from sqlalchemy import text

from app.chain.sharing import LAST_WORDS_S, PATIENCE_S, RENEW_S, WRITTEN_S, Sharing
from app.core.blocks import BlockRef
from app.core.budget import Priority
from app.core.errors import RpcUnavailable
from app.core.provable_block import ProvableBlock
from app.store.database import Database, open_database
from app.store.leases import SqlLeases
from app.store.migrating import make_ready
from tests.chain.kept import KeptBlocks, KeptLedger
from tests.chain.recorded_chain import BUSY, LAST, RecordedChain, branch, hash_of, sepolia
from tests.fakes import Hold, ManualClock

HASH = hash_of(sepolia(BUSY))
BY_HEIGHT = f"fill:7:{BUSY}"
FORK = branch(BUSY, [sepolia(BUSY - 1), sepolia(BUSY - 2)])


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    async with open_database("sqlite+aiosqlite://") as opened:
        await make_ready(opened)
        yield opened


async def eventually(ask: Callable[[], object], what: str) -> None:
    """Until it is so; the database has threads of its own."""
    give_up_at = time.monotonic() + 20
    while not ask():
        assert time.monotonic() < give_up_at, what
        await asyncio.sleep(0)


class SharedBlocks(KeptBlocks):
    """Can refuse what is written through, or hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False
        self.held: Hold | None = None

    async def put_through(self, block_hash: bytes, height: int, packed: bytes) -> bool:
        if self.held is not None:
            await self.held.stop()
        return not self.refuses and await super().put_through(block_hash, height, packed)


class Replica:
    """One process of a fleet. It looks at another's lease again only while `looks` is set, and renews its own by `renewals`."""

    def __init__(self, fleet: Fleet, name: str, **rules: object) -> None:
        self.leases = SqlLeases(fleet.database, name)
        self.recorded = RecordedChain(
            clock=fleet.clock, ledger=KeptLedger(), store=fleet.store, leases=self.leases, **rules
        )
        self.recorded.chain.head._upstream = self.recorded.upstream  # each sees for itself where the nodes stand
        assert self.recorded.chain.sharing is not None
        self.sharing: Sharing = self.recorded.chain.sharing
        self.sharing._pause = self._pause
        self.looks = asyncio.Event()
        self.renewals = asyncio.Semaphore(0)
        self.pauses: list[float] = []

    async def _pause(self, seconds: float) -> None:
        if seconds == RENEW_S:
            await self.renewals.acquire()
            return
        self.pauses.append(seconds)
        await self.looks.wait()

    def ask(self, height: int = BUSY) -> asyncio.Task[ProvableBlock]:
        return asyncio.create_task(self.recorded.at(height))

    async def waits(self) -> None:
        await eventually(lambda: self.pauses, "nobody waits for another's fill")

    @property
    def fetches(self) -> int:
        return self.recorded.upstream.hits["fetch"]

    async def left(self) -> None:
        """What was filled is left for the others, or could not be."""
        await eventually(lambda: not self.sharing._leaving, "nothing is left")


class Fleet:
    """What the replicas share."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = ManualClock().drive()
        self.store = SharedBlocks()

    async def pair(self, *, head: int = LAST, finalized: int = LAST, **rules: object) -> tuple[Replica, Replica]:
        replicas = Replica(self, "a", **rules), Replica(self, "b", **rules)
        for replica in replicas:
            await replica.recorded.see(head, finalized=finalized)
        return replicas

    async def expire(self, name: str = BY_HEIGHT) -> None:
        async with self.database.writing() as link:
            await link.execute(
                text("UPDATE leases SET expires_at = expires_at - 1000 WHERE name = :name"), {"name": name}
            )

    async def row(self, name: str = BY_HEIGHT) -> tuple[str, bytes | None] | None:
        async with self.database.reading() as link:
            asked = text("SELECT holder, note FROM leases WHERE name = :name")
            found = (await link.execute(asked, {"name": name})).one_or_none()
        return None if found is None else (found[0], found[1])


@pytest.fixture
async def fleet(database: Database) -> Fleet:
    return Fleet(database)


async def test_one_fills_and_the_others_receive(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    fetching = first.recorded.upstream.hold("fetch")
    filled = first.ask()
    await fetching.reached()
    received = [second.ask() for _ in range(5)]
    await second.waits()
    fetching.release()
    assert (await filled).block_hash == HASH
    await first.left()
    second.looks.set()
    assert {(await each).block_hash for each in received} == {HASH}
    assert (first.fetches, second.fetches) == (1, 0)
    assert (second.sharing.waits, second.sharing.received) == (1, 1)
    assert second.recorded.at_rest()


async def test_who_asks_by_hash_receives_what_was_filled_by_height(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    fetching = first.recorded.upstream.hold("fetch")
    filled = first.ask()
    await fetching.reached()
    received = asyncio.create_task(second.recorded.by_hash(HASH))
    await second.waits()
    assert await second.recorded.chain._finding._asked_height(HASH) == BUSY
    fetching.release()
    await filled
    await first.left()
    second.looks.set()
    assert (await received).block_hash == HASH
    assert (first.fetches, second.fetches) == (1, 0)
    assert second.recorded.upstream.hits["height_of"] == 1


async def test_who_waits_for_another_holds_no_permit(fleet: Fleet) -> None:
    _, second = await fleet.pair()
    await SqlLeases(fleet.database, "busy").take(BY_HEIGHT, 30)
    waiting = second.ask()
    await second.waits()
    assert second.recorded.chain.permits.budget.running() == 0
    waiting.cancel()
    await eventually(second.recorded.at_rest, "the wait goes on for nobody")


async def test_who_comes_late_receives_too(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    await first.ask()
    await first.left()
    assert (await second.ask()).block_hash == HASH
    assert (first.fetches, second.fetches, second.pauses) == (1, 0, [])


async def test_a_holder_that_died_is_succeeded(fleet: Fleet) -> None:
    _, second = await fleet.pair()
    await SqlLeases(fleet.database, "dead").take(BY_HEIGHT, 30)
    asked = second.ask()
    await second.waits()
    await fleet.expire()
    second.looks.set()
    assert (await asked).block_hash == HASH
    assert second.fetches == 1
    await second.left()
    assert await fleet.row() == ("b", HASH)


async def test_a_holder_that_never_comes_to_an_end_is_not_waited_for_for_ever(fleet: Fleet) -> None:
    _, second = await fleet.pair()
    await SqlLeases(fleet.database, "stuck").take(BY_HEIGHT, 30)
    second.looks.set()
    assert (await second.ask()).block_hash == HASH
    assert second.fetches == 1
    assert PATIENCE_S <= sum(second.pauses) < PATIENCE_S + 1
    await second.left()
    assert await fleet.row() == ("stuck", None), "it is still theirs"


async def test_a_fill_that_fails_leaves_the_turn_to_the_next(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    first.recorded.upstream.fail("fetch", RpcUnavailable("down"), times=None)
    with pytest.raises(RpcUnavailable):
        await first.ask()
    await first.left()
    assert await fleet.row() is None
    assert (await second.ask()).block_hash == HASH
    assert second.pauses == []


async def test_what_could_not_be_written_is_filled_by_whoever_waits(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    fleet.store.refuses = True
    fetching = first.recorded.upstream.hold("fetch")
    filled = first.ask()
    await fetching.reached()
    asked = second.ask()
    await second.waits()
    fetching.release()
    await filled
    await first.left()
    second.looks.set()
    assert (await asked).block_hash == HASH
    assert second.fetches == 1


async def test_what_was_left_and_is_gone_is_filled_again_at_once(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    await first.ask()
    await first.left()
    fleet.store.blocks.clear()
    assert (await second.ask()).block_hash == HASH
    assert (second.fetches, second.pauses) == (1, [])


async def test_the_lease_is_renewed_until_the_block_is_written(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    writing = fleet.store.held = Hold()
    await first.ask()
    await writing.reached()
    asked = second.ask()
    await second.waits()
    await fleet.expire()
    first.renewals.release()
    await eventually(lambda: first.renewals._waiters, "the next renewal")
    second.looks.set()
    await eventually(lambda: len(second.pauses) > 3, "further looks")
    assert second.fetches == 0
    writing.release()
    assert (await asked).block_hash == HASH
    assert second.fetches == 0


async def test_a_store_that_hangs_holds_up_neither_the_others_nor_the_end(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    for replica in (first, second):
        fleet.store.held = Hold()
        assert (await replica.ask()).block_hash == HASH
        await fleet.store.held.reached()
        if replica is first:
            await fleet.clock.advance(WRITTEN_S)
            await first.left()
            assert await fleet.row() is None, "others fill it themselves"
    closing = asyncio.create_task(second.sharing.aclose())
    await fleet.clock.advance(LAST_WORDS_S)
    await closing
    assert not second.sharing._leaving


async def test_without_a_database_everybody_fills_for_himself(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    fleet.database.ready = False
    for replica in (first, second):
        assert (await replica.ask()).block_hash == HASH
        assert (replica.fetches, replica.pauses) == (1, [])


async def test_a_database_that_is_lost_in_the_middle_keeps_nobody(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    fetching = first.recorded.upstream.hold("fetch")
    filled = first.ask()
    await fetching.reached()
    asked = second.ask()
    await second.waits()
    fleet.database.ready = False
    first.renewals.release()
    second.looks.set()
    assert (await asked).block_hash == HASH
    fetching.release()
    assert (await filled).block_hash == HASH
    await first.left()
    assert (first.fetches, second.fetches) == (1, 1)


async def test_the_only_waiter_that_leaves_frees_the_lease(fleet: Fleet) -> None:
    first, second = await fleet.pair(max_fills=1)
    fetching = first.recorded.upstream.hold("fetch")
    other = first.ask(BUSY - 1)
    await fetching.reached()
    asked = first.ask()
    await eventually(lambda: first.recorded.chain.permits.budget.waiting(), "a wait for a permit")
    assert await fleet.row() == ("a", None)
    asked.cancel()
    await asyncio.wait({asked})
    await eventually(
        lambda: len(first.recorded.chain.filling.flights) == 1, "the end of the fill that nobody waits for"
    )
    await eventually(lambda: not first.recorded.chain.permits.budget.waiting(), "the end of its claim")
    await first.left()
    assert await fleet.row() is None
    assert (await second.ask()).block_hash == HASH
    fetching.release()
    await other


# --- backfill -------------------------------------------------------------------------------------------------------


def ahead(replica: Replica, height: int = BUSY) -> asyncio.Task[ProvableBlock]:
    """As the backfill of this replica asks for a block."""
    return asyncio.create_task(replica.recorded.chain.filling.block(BlockRef(height=height), Priority.BACKFILL))


Beside = tuple[Replica, Replica, Hold, asyncio.Task[ProvableBlock], asyncio.Task[ProvableBlock]]


async def backfill_beside_a_request(fleet: Fleet) -> Beside:
    """Both replicas, the hold of what the first fetches for a request, that request, and the backfill of the second, which waits
    for it."""
    first, second = await fleet.pair()
    fetching = first.recorded.upstream.hold("fetch")
    filled = first.ask()
    await fetching.reached()
    backfilled = ahead(second)
    await second.waits()
    return first, second, fetching, filled, backfilled


async def test_a_request_beside_anothers_backfill_costs_no_second_fetch(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    fetching = first.recorded.upstream.hold("fetch")
    filled = ahead(first)
    await fetching.reached()
    asked = second.ask()
    await second.waits()
    fetching.release()
    assert (await filled).block_hash == HASH
    second.looks.set()
    assert (await asked).block_hash == HASH
    assert (first.fetches, second.fetches) == (1, 0)


async def test_backfill_beside_anothers_request_costs_no_second_fetch_and_holds_no_permit(fleet: Fleet) -> None:
    first, second, fetching, filled, backfilled = await backfill_beside_a_request(fleet)
    await eventually(lambda: second.recorded.chain.permits.budget.running() == 0, "it sleeps without its permit")
    fetching.release()
    assert (await filled).block_hash == HASH
    await first.left()
    second.looks.set()
    assert (await backfilled).block_hash == HASH
    assert (first.fetches, second.fetches) == (1, 0)
    counted = second.recorded.metric("fill_total", chain="sepolia", **{"class": "backfill", "result": "ok"})
    assert counted == 0, "another filled it"
    assert second.recorded.at_rest()


async def test_backfill_that_waits_for_its_permit_keeps_nobody_from_filling(fleet: Fleet) -> None:
    first, second = await fleet.pair(max_fills=2)
    fetching = first.recorded.upstream.hold("fetch")
    others = [first.ask(height) for height in (BUSY - 1, BUSY - 2)]
    await eventually(lambda: first.fetches == 2, "no permit is left")
    backfilled = ahead(first)
    await eventually(lambda: first.recorded.chain.permits.budget.waiting(), "it waits for a permit")
    assert await fleet.row() is None
    assert (await second.ask()).block_hash == HASH
    await second.left()
    fetching.release()
    assert (await backfilled).block_hash == HASH
    await asyncio.gather(*others)
    assert (first.fetches, second.fetches) == (2, 1)


async def test_a_request_that_joins_backfill_which_waits_for_another_receives_with_it(fleet: Fleet) -> None:
    first, second, fetching, filled, backfilled = await backfill_beside_a_request(fleet)
    asked = second.ask()
    await eventually(lambda: second.recorded.chain.filling.flights.waiting == 2, "the request joins")
    fetching.release()
    await filled
    await first.left()
    second.looks.set()
    assert {(await each).block_hash for each in (asked, backfilled)} == {HASH}
    assert (first.fetches, second.fetches) == (1, 0)


# --- blocks that were replaced --------------------------------------------------------------------------------------


async def test_F9_a_fill_that_a_reorg_overtook_is_left_for_nobody(fleet: Fleet) -> None:
    first, second = await fleet.pair(head=BUSY, finalized=BUSY - 3)
    notes: list[bytes] = []
    leave = first.leases.leave

    async def noting(name: str, note: bytes, for_s: float) -> None:
        notes.append(note)
        await leave(name, note, for_s)

    first.leases.leave = noting  # type: ignore[method-assign]
    fetched = first.recorded.upstream.hold("fetch.after")
    asked = first.ask()
    await fetched.reached()
    waiting = second.ask()
    await second.waits()
    for replica in (first, second):
        replica.recorded.reorg(FORK)
        await replica.recorded.see(BUSY + 1, finalized=BUSY - 3)
    first.recorded.upstream.unhold()
    fetched.release()
    assert (await asked).block_hash == hash_of(FORK[0])
    await first.left()
    second.looks.set()
    assert (await waiting).block_hash == hash_of(FORK[0])
    assert HASH not in notes


@pytest.mark.parametrize("finalized", [BUSY - 3, BUSY])
async def test_a_block_that_was_left_and_then_replaced_is_not_answered(finalized: int, fleet: Fleet) -> None:
    first, second = await fleet.pair(finalized=BUSY - 3)
    assert (await first.ask()).block_hash == HASH
    await first.left()
    assert await fleet.row() == ("a", HASH)
    second.recorded.reorg(FORK)
    await second.recorded.see(BUSY + 1, finalized=finalized)
    for _ in range(2):
        assert (await second.ask()).block_hash == hash_of(FORK[0])
    assert second.recorded.chain.cache.hash_at(BUSY) == hash_of(FORK[0])


async def test_a_block_of_another_height_is_not_answered(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    await first.ask(BUSY - 1)
    await first.left()
    stranger = SqlLeases(fleet.database, "stranger")
    await stranger.take(BY_HEIGHT, 30)
    await stranger.leave(BY_HEIGHT, hash_of(sepolia(BUSY - 1)), 100)
    assert (await second.ask()).block_hash == HASH
    name = f"fill:7:{HASH.hex()}"
    await stranger.take(name, 100)
    await stranger.leave(name, hash_of(sepolia(BUSY - 1)), 100)
    second.recorded.chain.cache.drop(HASH)
    fleet.store.blocks.pop(HASH, None)
    assert (await second.recorded.by_hash(HASH)).block_hash == HASH


async def test_a_block_that_is_received_is_asked_for_by_its_name_alone(fleet: Fleet) -> None:
    first, second = await fleet.pair()
    await first.ask()
    await first.left()
    second.recorded.calls()
    ref = BlockRef(height=BUSY)
    assert (await second.recorded.chain.block(ref)).block.block_hash == HASH
    assert second.recorded.calls() == {"name_of": 1}
    assert second.recorded.chain.cache.pin_is_final(BUSY)
