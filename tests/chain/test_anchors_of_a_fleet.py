"""One replica makes the anchors and the others take them up: each block is filled once for all, whoever of them dies or fails."""

from __future__ import annotations

import pytest

from app.anchors.self_attested import SelfAttested
from app.chain.anchoring import NOBODY, PATIENCE_S
from app.chain.office import ASK_EVERY_S, LEASE_S
from app.core.errors import RpcUnavailable
from app.core.leases import Lease
from tests.chain.fleet_of_anchors import GENESIS, INTERVAL, OFFICE, Fleet, running
from tests.chain.leased_rows import RowLeases
from tests.chain.recorded_chain import BUSY, LAST
from tests.fakes import settle

DOWN = RpcUnavailable("down")


@pytest.fixture
async def fleet() -> Fleet:
    return Fleet()


async def test_one_anchors_for_all_and_each_block_is_filled_once(fleet: Fleet) -> None:
    replicas = [await fleet.replica(name) for name in "abc"]
    async with running(*replicas):
        await fleet.pass_by(ASK_EVERY_S)
        assert fleet.attested() == [BUSY] * 3
        assert fleet.fetched() == [BUSY - GENESIS + 1, 0, 0]
        assert all(made.chain.anchored.is_set() for made in replicas)
        fleet.finalize(BUSY + 7)
        await fleet.pass_by(15)
        assert fleet.attested() == [BUSY + 6] * 3
        assert fleet.fetched() == [BUSY + 7 - GENESIS + 1, 0, 0]
        assert set(fleet.rows.added.values()) == {1}
        assert fleet.stalled() == [None] * 3
        heads = [made.metric("chain_attested_head", chain="sepolia") for made in replicas]
        assert heads == [BUSY + 6] * 3


async def test_a_follower_has_the_anchors_that_stand_and_none_that_a_checkpoint_retired(fleet: Fleet) -> None:
    maker, follower = await fleet.replica("a", finalized=BUSY - 3), await fleet.replica("b", finalized=BUSY - 3)
    async with running(maker, follower):
        await fleet.pass_by(ASK_EVERY_S)
        assert fleet.attested() == [BUSY - 3] * 2  # a checkpoint: the attestation below is gone
        for height in range(GENESIS + 1, BUSY - 3 + 1):
            assert await follower.chain.continuity(height, height) == await maker.chain.continuity(height, height)
        fleet.finalize(BUSY)
        await fleet.pass_by(12)
        assert follower.chain.anchors is not None
        mixed = await follower.chain.anchors.find(BUSY - 1, BUSY - 1)
        assert (mixed.lower, mixed.upper) == (BUSY - 3, BUSY)
        fleet.finalize(BUSY + 3)
        await fleet.pass_by(12)
        assert not follower.chain.anchors.holds(mixed)
        served = await follower.chain.continuity(BUSY - 1, BUSY - 1)
        assert served == await maker.chain.continuity(BUSY - 1, BUSY - 1)
        assert served.upper_height == BUSY + 3


async def test_a_follower_promises_no_rest_that_the_next_anchor_ends(fleet: Fleet) -> None:
    maker, follower = await fleet.replica("a"), await fleet.replica("b")
    promised, clock = 0.0, fleet.leases.clock
    async with running(maker, follower):
        for number, steps in enumerate(
            (3, 22, 22)
        ):  # the first one is seen half a second late, the next one three times that
            for _ in range(steps):
                await clock.advance(0.5)
                await settle(50)
                promised = max(promised, clock.now() + follower.chain.anchors_rest_s)
            await maker.see(LAST, finalized=BUSY + INTERVAL * (number + 1))
        assert clock.now() - 10 < promised <= clock.now()


async def test_only_rows_above_those_that_are_held_are_read(fleet: Fleet) -> None:
    maker, follower = await fleet.replica("a"), await fleet.replica("b")
    async with running(maker, follower):
        await fleet.pass_by(ASK_EVERY_S)
        fleet.rows.read_above.clear()
        await fleet.pass_by(12)
        assert set(fleet.rows.read_above) == {BUSY}
        assert 11 <= len(fleet.rows.read_above) <= 16  # whoever holds the office every 3 s, whoever does not oftener


async def test_a_holder_that_died_costs_one_lease_time_and_no_anchor_is_asked_for_again(fleet: Fleet) -> None:
    before = await fleet.replica("before", finalized=BUSY - 2)  # one above the newest anchor
    async with running(before):
        pass
    await RowLeases(fleet.leases, "dead").take(OFFICE, LEASE_S)
    replica = await fleet.replica("a")
    async with running(replica):
        await fleet.pass_by(LEASE_S - 1)
        assert (replica.attested(), replica.upstream.hits["fetch"]) == (BUSY - 3, 0)
        assert replica.chain.anchoring_stalled is None
        assert not replica.chain.anchored.is_set(), "one is due"
        await fleet.pass_by(1)
        assert (replica.attested(), replica.upstream.hits["fetch"]) == (BUSY, 3)
        assert replica.chain.anchored.is_set()


async def test_whoever_takes_over_goes_on_from_the_last_anchor_that_the_other_made(fleet: Fleet) -> None:
    maker, other = await fleet.replica("a"), await fleet.replica("b")
    assert isinstance(maker.chain.anchors, SelfAttested)
    await maker.chain.anchors.advance(BUSY, maker.chain._root_ahead)
    fleet.leases.held[OFFICE] = ("a", fleet.leases.clock.now() + 5.5, None)
    async with running(other):
        await fleet.pass_by(5)
        assert (other.attested(), other.upstream.hits["fetch"]) == (BUSY, 0)
        await maker.chain.anchors.advance(BUSY + 6, maker.chain._root_ahead)  # its last words
        await other.see(LAST, finalized=BUSY + 9)
        await fleet.pass_by(2)
        assert (fleet.holder(), other.attested(), other.upstream.hits["fetch"]) == ("b", BUSY + 9, 3)
    assert set(fleet.rows.added.values()) == {1}


async def test_the_lease_is_renewed_however_long_a_block_takes(fleet: Fleet) -> None:
    maker, follower = await fleet.replica("a"), await fleet.replica("b")
    hold = maker.upstream.hold("fetch")
    async with running(maker, follower):
        await fleet.pass_by(3 * LEASE_S)
        assert (fleet.holder(), follower.upstream.hits["fetch"]) == ("a", 0)
        hold.release()
        await fleet.pass_by(ASK_EVERY_S)
        assert fleet.attested() == [BUSY, BUSY]


async def test_whoever_lost_the_office_in_the_middle_of_its_work_ends_it(fleet: Fleet) -> None:
    stuck, other = await fleet.replica("a"), await fleet.replica("b")
    hold = stuck.upstream.hold("fetch")
    async with running(stuck):
        fleet.leases.held[OFFICE] = ("b", fleet.leases.clock.now() + LEASE_S, None)  # it stood still for a lease time
        async with running(other):
            await fleet.pass_by(2 * ASK_EVERY_S)
            assert (fleet.holder(), fleet.attested(), fleet.stalled()) == ("b", [BUSY, BUSY], [None, None])
            hold.release()
            await fleet.pass_by(2 * ASK_EVERY_S)
            assert stuck.upstream.hits["fetch"] <= 8, "no more than were asked for before"
    assert set(fleet.rows.added.values()) == {1}


async def test_two_that_both_believe_to_hold_it_make_the_same_anchors(fleet: Fleet) -> None:
    replicas = [await fleet.replica(name) for name in "ab"]

    async def mine(name: str, for_s: float) -> Lease:
        return Lease(True, for_s)

    for made in replicas:
        made.chain._background._anchoring._office._leases.take = mine  # type: ignore[union-attr]  # whatever the rows say
    async with running(*replicas):
        for finalized in (BUSY + 2, BUSY + 5, BUSY + 10):
            fleet.finalize(finalized)
            await fleet.pass_by(9)
        assert fleet.attested() == [BUSY + 9] * 2
        assert fleet.stalled() == [None, None]
    assert [row.height for row in await fleet.rows.load()] == [GENESIS, *range(BUSY - 3, BUSY + 10, 2 * INTERVAL)]


# --- when it does not go well ---------------------------------------------------------------------------------------


async def test_that_nobody_anchors_what_is_final_is_seen_by_everybody(fleet: Fleet) -> None:
    fleet.leases.held[OFFICE] = ("ghost", float("inf"), None)
    replica = await fleet.replica("a", finalized=GENESIS + INTERVAL - 1)
    async with running(replica):
        await fleet.pass_by(PATIENCE_S + 10)
        assert replica.chain.anchoring_stalled is None, "none is due"
        assert replica.chain.anchored.is_set()
        fleet.finalize(BUSY)
        await fleet.pass_by(PATIENCE_S - 5)
        assert replica.chain.anchoring_stalled is None
        await fleet.pass_by(20)
        assert replica.chain.anchoring_stalled == NOBODY
        listed = replica.chain.status()["anchors"]
        assert isinstance(listed, dict)
        assert listed["stalled"] == NOBODY
        del fleet.leases.held[OFFICE]
        await fleet.pass_by(ASK_EVERY_S + 1)
        assert (replica.attested(), replica.chain.anchoring_stalled) == (BUSY, None)


async def test_whoever_gets_nowhere_lets_others_try(fleet: Fleet) -> None:
    cut_off, other = await fleet.replica("a"), await fleet.replica("b")
    cut_off.upstream.fail("fetch", DOWN, times=None)
    async with running(cut_off, other):
        await fleet.pass_by(PATIENCE_S - 5)
        assert (fleet.holder(), fleet.attested()) == ("a", [None, None])
        assert cut_off.chain.anchoring_stalled == "RpcUnavailable"
        await fleet.pass_by(15)
        assert (fleet.holder(), fleet.attested()) == ("b", [BUSY, BUSY])
        assert fleet.stalled() == [None, None]


async def test_whoever_starts_waits_for_its_head_and_no_longer(fleet: Fleet) -> None:
    replica = await fleet.replica("a")
    hold = replica.upstream.hold("tagged")
    async with running(replica):
        assert fleet.holder() is None
        hold.release()
        await settle(400)
        assert (fleet.holder(), replica.attested()) == ("a", BUSY)


async def test_whoever_does_not_see_the_chain_leaves_it_to_others(fleet: Fleet) -> None:
    blind, other = await fleet.replica("a"), await fleet.replica("b")
    async with running(blind, other):
        blind.upstream.fail("tagged", DOWN, times=None)
        fleet.finalize(BUSY + 6)
        await fleet.pass_by(45)
        assert (fleet.holder(), fleet.attested()) == ("b", [BUSY + 6] * 2)
        assert fleet.stalled() == [None, None]
        before = fleet.leases.calls["take"], len(fleet.rows.read_above)
        await fleet.pass_by(9)
        assert fleet.leases.calls["take"] - before[0] <= 4, "of one of them"
        assert len(fleet.rows.read_above) - before[1] <= 10, "and both look at their ease"


async def test_whoever_contradicts_what_is_kept_lets_others_try_at_once(fleet: Fleet) -> None:
    await fleet.rows.claim_genesis(GENESIS)
    fleet.leases.lost = True  # or it would not have started
    wrong = await fleet.replica("a", genesis=GENESIS - 1)
    fleet.leases.lost = False
    right = await fleet.replica("b")
    async with running(wrong, right):
        assert (fleet.holder(), right.attested()) == ("b", BUSY)
        assert fleet.stalled() == ["AnchorContradiction", None]


async def test_with_nobody_else_there_it_is_tried_on_and_said_why(fleet: Fleet) -> None:
    alone = await fleet.replica("a")
    alone.upstream.fail("fetch", DOWN, times=None)
    async with running(alone):
        for _ in range(10):
            await fleet.pass_by(15)
            assert alone.chain.anchoring_stalled == "RpcUnavailable"
        assert 1 <= fleet.leases.calls["release"] <= 3, "it lets others try now and then"
        alone.upstream.heal()
        await fleet.pass_by(LEASE_S + ASK_EVERY_S)
        assert (alone.attested(), alone.chain.anchoring_stalled) == (BUSY, None)


async def test_without_the_database_nobody_anchors_and_what_is_known_is_served(fleet: Fleet) -> None:
    replicas = [await fleet.replica(name) for name in "ab"]
    async with running(*replicas):
        await fleet.pass_by(ASK_EVERY_S)
        before = fleet.fetched()
        fleet.leases.lost = True
        fleet.finalize(BUSY + 6)
        await fleet.pass_by(20)
        assert fleet.attested() == [BUSY, BUSY]
        assert fleet.stalled() == ["StoreUnavailable"] * 2
        for made in replicas:
            assert (await made.chain.continuity(BUSY, BUSY)).upper_height == BUSY
        fetched = [after - earlier for after, earlier in zip(fleet.fetched(), before, strict=True)]
        assert fetched == [0, 3], "the one that follows filled the bracket that was asked for, nobody more"
        fleet.leases.lost = False
        await fleet.pass_by(LEASE_S)
        assert fleet.attested() == [BUSY + 6] * 2
        assert fleet.stalled() == [None, None]


async def test_whoever_ends_gives_the_office_back(fleet: Fleet) -> None:
    first, second = await fleet.replica("a"), await fleet.replica("b")
    async with running(second), running(first):
        assert fleet.holder() == "b"
    assert OFFICE not in fleet.leases.held
