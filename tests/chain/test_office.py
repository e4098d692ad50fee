"""One replica backfills for all: by a lease that its holder renews, and that another takes over when it is gone."""

from __future__ import annotations

import pytest

from app.chain.backfill import State
from app.chain.figures import Figures
from app.chain.office import ASK_EVERY_S, LEASE_S, Office
from app.store.memory import MemoryLedger
from tests.chain.leased_rows import RowLeases, Rows
from tests.chain.recorded_chain import BUSY, FIRST, LAST, branch, sepolia
from tests.chain.test_backfill import TURNS, Scene, running
from tests.fakes import settle


class Fleet:
    def __init__(self) -> None:
        self.rows = Rows()
        self.ledger = MemoryLedger()

    async def replica(self, name: str, *, finalized: int = LAST) -> Scene:
        scene = Scene(ledger=self.ledger, clock=self.rows.clock, leases=RowLeases(self.rows, name))
        scene.chain.head._upstream = scene.upstream  # each sees for itself where the nodes stand
        await scene.see(LAST, finalized=finalized)
        return scene

    async def pass_by(self, seconds: float) -> None:
        """Time passes, a second at a time."""
        for _ in range(round(seconds)):
            await self.rows.clock.advance(1.0)
        await settle(TURNS)


@pytest.fixture
async def fleet() -> Fleet:
    return Fleet()


async def test_one_fills_for_all(fleet: Fleet) -> None:
    first, second = await fleet.replica("a"), await fleet.replica("b")
    async with first.backfilling(), second.backfilling():
        await settle(TURNS)
        assert sorted(first.built()) == list(range(FIRST, LAST + 1))
        assert second.built() == []
        assert (first.backfill.state, second.backfill.state) == (State.CAUGHT_UP, State.ELSEWHERE)
        listed = second.chain.status()["backfill"]
        assert isinstance(listed, dict)
        assert (listed["state"], listed["remaining"]) == ("done by another replica", None)
        for replica, lowest in ((first, FIRST), (second, 0)):
            Figures(replica.chain, replica.metrics).publish()
            assert replica.metric("backfill_remaining_blocks", chain="sepolia") == 0
            assert replica.metric("backfill_lowest_height", chain="sepolia") == lowest


async def test_whoever_takes_over_fills_what_is_missing_and_nothing_else(fleet: Fleet) -> None:
    first, second = await fleet.replica("a", finalized=BUSY), await fleet.replica("b", finalized=BUSY)
    async with second.backfilling():
        async with first.backfilling():
            await settle(TURNS)
        await second.see(LAST, finalized=LAST)
        await fleet.pass_by(ASK_EVERY_S + 1)
        done = first.built() + second.built()
        assert sorted(done) == list(range(FIRST, LAST + 1))
        assert second.backfill.state is State.CAUGHT_UP


async def test_a_holder_that_died_costs_one_lease_time(fleet: Fleet) -> None:
    await RowLeases(fleet.rows, "dead").take("backfill:7", LEASE_S)
    replica = await fleet.replica("a")
    async with replica.backfilling():
        await fleet.pass_by(LEASE_S - 1)
        assert replica.built() == []
        await fleet.pass_by(1)
        assert len(replica.built()) == LAST - FIRST + 1


async def test_whoever_waits_or_has_nothing_to_do_asks_no_oftener_than_it_must(fleet: Fleet) -> None:
    first, second = await fleet.replica("a"), await fleet.replica("b")
    async with first.backfilling(), second.backfilling():
        await settle(TURNS)
        before = fleet.rows.calls["take"]
        await fleet.pass_by(30)
        assert 18 <= fleet.rows.calls["take"] - before <= 22
        assert (first.backfill.state, second.backfill.state) == (State.CAUGHT_UP, State.ELSEWHERE)


async def test_without_the_database_nobody_begins_anything_and_then_one_goes_on(fleet: Fleet) -> None:
    replica = await fleet.replica("a", finalized=BUSY)
    async with replica.backfilling():
        await settle(TURNS)
        fleet.rows.lost = True
        await fleet.pass_by(ASK_EVERY_S + 1)
        await replica.see(LAST, finalized=LAST)
        await settle(TURNS)
        assert replica.backfill.state is State.NOBODY
        assert max(replica.built()) == BUSY
        fleet.rows.lost = False
        await fleet.pass_by(ASK_EVERY_S + 1)
        assert sorted(replica.built()) == list(range(FIRST, LAST + 1))


async def test_P7_a_reorg_seen_by_whoever_does_not_fill_is_told_to_the_ledger_too(fleet: Fleet) -> None:
    first, second = await fleet.replica("a"), await fleet.replica("b")
    await second.see(LAST, finalized=LAST - 2)  # which it knows by its hash from now on
    async with first.backfilling(), second.backfilling():
        await settle(TURNS)
        fork = branch(LAST - 1, [sepolia(LAST - 2), sepolia(LAST - 3)])
        second.reorg(fork)
        await second.see(LAST, finalized=LAST)
        await settle(TURNS)
        assert max(last for _, last in await fleet.ledger.done()) < LAST - 1


async def test_whoever_is_cancelled_gives_it_back(fleet: Fleet) -> None:
    replica = await fleet.replica("a")
    async with running(replica.backfill.run):
        await settle(TURNS)
        assert fleet.rows.held
    assert not fleet.rows.held


async def test_whoever_rests_lets_others_ask_first(fleet: Fleet) -> None:
    first, second = (Office("work", RowLeases(fleet.rows, name), fleet.rows.clock) for name in "ab")
    assert await first.entered()
    assert not await second.entered()
    await first.rest()
    fleet.rows.clock.move(ASK_EVERY_S)
    assert (await first.entered(), first.held) == (False, False)
    assert await second.entered()
