"""One replica is told of new heads, and the others by it: at twenty replicas hardly more is paid for than by one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from app.chain.head import HeadTracker
from app.chain.office import ASK_EVERY_S, LEASE_S
from app.chain.rounds import QUIET_S
from app.chain.rules import ChainRules, FinalityRule
from app.chain.shared_head import TOLD_S, SharedHead
from app.core.blocks import BlockName
from tests.chain.leased_rows import RowLeases, Rows
from tests.fakes import FakeUpstream, ManualClock, settle

BLOCK_S = 12
TURNS = 400
CHAIN_ID = 1


def name(height: int) -> BlockName:
    return BlockName(height, height.to_bytes(32, "big"), max(0, height - 1).to_bytes(32, "big"), BLOCK_S * height)


class Announcer:
    """A node's announcements to one process. Implements `chain.ports.Herald`."""

    def __init__(self) -> None:
        self.at_work = False
        self.told = 0
        self._news = asyncio.Event()

    async def heard(self) -> None:
        if not self.at_work:
            self.at_work = True
            self._news.set()  # as of a subscription that has just begun
        await self._news.wait()
        self._news.clear()

    def rest(self) -> None:
        self.at_work = False

    def announce(self) -> None:
        if self.at_work:
            self.told += 1
            self._news.set()


class Replica:
    def __init__(self, fleet: Fleet, number: int) -> None:
        self.announcer = Announcer()
        self.upstream = FakeUpstream(CHAIN_ID)
        self.upstream.herald = self.announcer
        self.upstream.canonical, self.upstream.tags = fleet.canonical, fleet.tags
        self.upstream.note_heads = lambda sightings: None  # type: ignore[attr-defined]
        rules = ChainRules(key=7, name="sepolia", chain_id=CHAIN_ID, family="ethereum")
        leases = RowLeases(fleet.rows, f"replica-{number}")
        self.shared = SharedHead(rules, self.upstream, leases, fleet.clock)  # type: ignore[arg-type]
        self.head = HeadTracker(
            self.shared, FinalityRule("tag"), fleet.clock, direct=self.upstream, on_reorg=lambda height: None
        )
        self.running: asyncio.Task[None] | None = None

    @property
    def calls(self) -> int:
        return self.upstream.hits["tagged"] + self.upstream.hits["name_of"]

    async def die(self) -> None:
        """Without a word."""
        assert self.running is not None
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.running
        self.announcer.rest()


class Fleet:
    """Processes over one node, which makes a block every twelve seconds."""

    def __init__(self) -> None:
        self.clock = ManualClock().drive()
        self.rows = Rows(self.clock)
        self.canonical = {height: name(height) for height in range(400)}
        self.tags: dict[str, int | None] = {}
        self.replicas: list[Replica] = []
        self.height = 100
        self.make()

    def make(self) -> None:
        self.height += 1
        self.tags |= {"latest": self.height, "safe": self.height - 5, "finalized": self.height - 10}
        for replica in self.replicas:
            replica.announcer.announce()

    async def start(self, count: int) -> list[Replica]:
        began = [Replica(self, len(self.replicas) + number) for number in range(count)]
        self.replicas += began
        for replica in began:
            replica.running = asyncio.create_task(replica.head.run())
            await settle(TURNS)
        return began

    async def pass_by(self, seconds: int) -> None:
        """Time passes, a second at a time."""
        for second in range(seconds):
            if second % BLOCK_S == BLOCK_S - 1:
                self.make()
            await self.clock.advance(1.0)
            await settle(TURNS)

    @property
    def listeners(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.announcer.at_work]

    @property
    def paid(self) -> int:
        return sum(replica.calls + replica.announcer.told for replica in self.replicas)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    yield made
    for replica in made.replicas:
        await replica.die()


async def cost_of(fleet: Fleet, count: int) -> int:
    began = await fleet.start(count)
    await fleet.pass_by(12)
    before = fleet.paid
    await fleet.pass_by(96)
    assert {replica.head.heads.head for replica in began} == {fleet.height}
    assert {replica.head.heads.finalized for replica in began} <= {fleet.height - 10, fleet.height - 11}
    return fleet.paid - before


async def test_twenty_replicas_pay_hardly_more_than_one() -> None:
    alone = await cost_of(Fleet(), 1)
    fleet = Fleet()
    together = await cost_of(fleet, 20)
    assert len(fleet.listeners) == 1
    assert together <= 1.2 * alone, (alone, together)


async def test_everybody_knows_of_a_block_as_soon_as_a_poll_would_tell(fleet: Fleet) -> None:
    replicas = await fleet.start(3)
    await fleet.pass_by(5)
    before = [replica.calls for replica in replicas]
    fleet.make()
    await fleet.clock.advance(0.0)
    await settle(TURNS)
    (listener,) = fleet.listeners
    assert listener.head.heads.head == fleet.height
    await fleet.pass_by(3)
    assert {replica.head.heads.head for replica in replicas} == {fleet.height}
    assert sum(replica.calls for replica in replicas) - sum(before) <= 3, "one poll, with its tags at most"


async def test_who_listens_and_dies_is_succeeded_and_nobody_falls_behind_meanwhile(fleet: Fleet) -> None:
    replicas = await fleet.start(3)
    await fleet.pass_by(5)
    (listener,) = fleet.listeners
    await listener.die()
    fleet.make()
    others = [replica for replica in replicas if replica is not listener]
    await fleet.pass_by(round(TOLD_S) + 3)
    assert {replica.head.heads.head for replica in others} == {fleet.height}, "they ask for themselves"
    await fleet.pass_by(round(LEASE_S - TOLD_S + ASK_EVERY_S))
    assert len(fleet.listeners) == 1
    assert fleet.listeners[0] in others


async def test_who_ends_hands_over_at_once(fleet: Fleet) -> None:
    first, second = await fleet.start(2)
    await fleet.pass_by(2)
    assert fleet.listeners == [first]
    await first.die()
    await first.shared.aclose()
    await fleet.pass_by(round(ASK_EVERY_S) + 1)
    assert fleet.listeners == [second]


async def test_without_a_database_everybody_listens_and_with_it_one_does_again(fleet: Fleet) -> None:
    replicas = await fleet.start(3)
    await fleet.pass_by(5)
    fleet.rows.lost = True
    await fleet.pass_by(round(ASK_EVERY_S + QUIET_S))
    assert fleet.listeners == replicas
    assert {replica.head.heads.head for replica in replicas} == {fleet.height}
    fleet.rows.lost = False
    await fleet.pass_by(round(ASK_EVERY_S + QUIET_S))
    assert len(fleet.listeners) == 1


async def test_a_node_that_falls_silent_is_polled_by_one_for_all(fleet: Fleet) -> None:
    replicas = await fleet.start(4)
    await fleet.pass_by(5)
    fleet.listeners[0].announcer.announce = lambda: None  # type: ignore[method-assign]
    (listener,) = fleet.listeners
    listener.announcer.at_work = False
    listener.announcer.heard = asyncio.Event().wait  # type: ignore[method-assign,assignment]
    await fleet.pass_by(round(TOLD_S) + 2)
    before = fleet.paid
    await fleet.pass_by(27)
    assert {replica.head.heads.head for replica in replicas} == {fleet.height}
    polls, tags = 27 / 2, 2 * 27 / 8
    assert fleet.paid - before <= 1.2 * (polls + tags), "as one that polls every two seconds"
