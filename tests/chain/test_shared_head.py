"""One poll for all replicas, and none missed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from app.chain.head import HeadTracker
from app.chain.rules import ChainRules, FinalityRule
from app.chain.shared_head import SharedHead
from app.core.blocks import BlockName, Sighting
from app.core.errors import RpcUnavailable
from app.store.database import Database, open_database
from app.store.leases import SqlLeases
from app.store.migrating import make_ready
from tests.chain.recorded_chain import BUSY, LAST, SEPOLIA, RecordedChain, branch, hash_of, name_of, sepolia
from tests.chain.test_several_heads import Node, Nodes
from tests.fakes import ManualClock

NODES = "these nodes"


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    async with open_database("sqlite+aiosqlite://") as opened:
        await make_ready(opened)
        yield opened


class Replica:
    """One process's way to the nodes."""

    def __init__(self, database: Database, name: str, nodes: str = NODES) -> None:
        self.recorded = RecordedChain()
        self.recorded.upstream.tags = {"latest": LAST, "finalized": LAST - 5}
        self.heard: list[tuple[Sighting, ...]] = []
        self.recorded.upstream.note_heads = self.heard.append  # type: ignore[attr-defined]
        rules = ChainRules(key=7, name="sepolia", chain_id=None, family="ethereum", nodes=nodes)
        self.head = SharedHead(rules, self.recorded.upstream, SqlLeases(database, name), ManualClock(), self.pause)
        self.pauses: list[float] = []

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    @property
    def polls(self) -> int:
        return self.recorded.upstream.hits["tagged"]


async def test_twenty_replicas_poll_as_often_as_one(database: Database) -> None:
    replicas = [Replica(database, f"replica-{number}") for number in range(20)]
    seen = [await replica.head.sightings("latest") for replica in replicas]
    assert {sightings[0].block for sightings in seen} == {name_of(sepolia(LAST))}
    assert sum(replica.polls for replica in replicas) == 1
    assert sum(replica.head.received for replica in replicas) == 19
    assert all(replica.heard == [seen[0]] for replica in replicas[1:]), "their routing hears of it"


async def test_what_is_safe_and_final_is_shared_by_its_tag(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    await first.head.sightings("latest")
    final = await second.head.sightings("finalized")
    assert final[0].block == name_of(sepolia(LAST - 5))
    assert await first.head.sightings("finalized") == final
    assert (first.polls, second.polls) == (1, 1)
    assert first.heard == [], "a final block is no head"


async def test_a_poll_that_fails_is_made_by_the_next(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    first.recorded.upstream.fail("tagged", RpcUnavailable("down"))
    with pytest.raises(RpcUnavailable):
        await first.head.sightings("latest")
    await second.head.sightings("latest")
    assert second.polls == 1


async def test_a_poll_that_takes_long_is_waited_for_and_then_made(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    await SqlLeases(database, "a").take(f"head:7:{SEPOLIA}:{NODES}:latest", 30)
    assert (await second.head.sightings("latest"))[0].block is not None
    assert len(second.pauses) == 5
    assert (first.polls, second.polls) == (0, 1)


async def test_what_another_chain_under_this_key_shows_is_not_ours(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    first.recorded.upstream.known_chain_id = 5
    await first.head.sightings("latest")
    await second.head.sightings("latest")
    assert (first.polls, second.polls) == (1, 1)


async def test_a_head_from_before_the_clock_of_the_database_was_set_back_is_not_todays(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    await first.head.sightings("latest")
    async with database.writing() as link:
        await link.execute(text("UPDATE leases SET expires_at = expires_at + 20"))
    await second.head.sightings("latest")
    await first.head.sightings("latest")
    assert (first.polls, second.polls) == (2, 1)
    await second.head.sightings("latest")
    assert second.head.received == 1, "of what was left anew"


async def test_what_other_nodes_of_the_same_names_show_is_not_ours(database: Database) -> None:
    """That they have a block says nothing of the node here: it may lag, and its ignorance is no absence."""
    first, second = Replica(database, "a"), Replica(database, "b", "others")
    await first.head.sightings("latest")
    await second.head.sightings("latest")
    assert (first.polls, second.polls) == (1, 1)
    assert second.heard == []


async def test_until_it_is_known_which_chain_it_is_nothing_is_shared(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    for replica in (first, second):
        replica.recorded.upstream.known_chain_id = None
        await replica.head.sightings("latest")
    assert (first.polls, second.polls) == (1, 1)


async def test_without_a_database_everybody_polls(database: Database) -> None:
    replicas = [Replica(database, name) for name in ("a", "b")]
    database.ready = False
    for replica in replicas:
        await replica.head.sightings("latest")
    assert [replica.polls for replica in replicas] == [1, 1]


# --- what follows from a poll ---------------------------------------------------------------------------------------


async def test_what_stands_below_the_same_heads_is_asked_for_once(database: Database) -> None:
    replicas = [Replica(database, f"replica-{number}") for number in range(20)]
    for replica in replicas:
        await replica.head.sightings("latest")
    names = [await replica.head.name_of(BUSY) for replica in replicas]
    assert set(names) == {name_of(sepolia(BUSY))}
    assert sum(replica.recorded.upstream.hits["name_of"] for replica in replicas) == 1
    assert sum(replica.head.received for replica in replicas) == 19, "of polls alone"


async def test_that_there_is_no_such_block_is_shared_too(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    for replica in (first, second):
        await replica.head.sightings("latest")
        assert await replica.head.name_of(LAST + 5) is None
    assert second.recorded.upstream.hits["name_of"] == 0


async def test_below_other_heads_it_is_asked_for_again(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    fork = branch(BUSY, [sepolia(BUSY - 1), sepolia(BUSY - 2)])
    await first.head.sightings("latest")
    await first.head.name_of(BUSY)
    await first.recorded.upstream.tagged("latest")
    second.recorded.reorg(fork)
    second.recorded.upstream.tags["latest"] = BUSY + 1
    async with database.writing() as link:
        await link.execute(text("DELETE FROM leases WHERE name LIKE '%latest'"))
    await second.head.sightings("latest")
    name = await second.head.name_of(BUSY)
    assert name is not None
    assert name.block_hash == hash_of(fork[0])


async def test_before_a_head_was_shown_and_after_a_poll_that_failed_it_is_not_shared(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    for replica in (first, second):
        await replica.head.name_of(BUSY)
    await first.head.sightings("latest")
    await first.head.name_of(BUSY)
    first.recorded.upstream.fail("tagged", RpcUnavailable("down"))
    async with database.writing() as link:
        await link.execute(text("DELETE FROM leases WHERE name LIKE '%latest'"))
    with pytest.raises(RpcUnavailable):
        await first.head.sightings("latest")
    await first.head.name_of(BUSY)
    assert (first.recorded.upstream.hits["name_of"], second.recorded.upstream.hits["name_of"]) == (3, 1)


class Fleet:
    """Head trackers of so many processes, over the same nodes, which count what they are asked."""

    def __init__(self, database: Database, replicas: int, rule: FinalityRule, **nodes: Node) -> None:
        self.nodes = SharedNodes(**nodes)
        self.reorgs: list[int] = []
        rules = ChainRules(key=7, name="sepolia", chain_id=SEPOLIA, family="ethereum")
        self.trackers = [
            HeadTracker(
                SharedHead(rules, self.nodes, SqlLeases(database, f"replica-{number}"), ManualClock()),  # type: ignore[arg-type]
                rule,
                ManualClock(),
                direct=self.nodes,
                on_reorg=self.reorgs.append,
            )
            for number in range(replicas)
        ]

    async def round(self) -> int:
        """Every tracker polls; the calls that this cost."""
        before = self.nodes.calls
        for tracker in self.trackers:
            await tracker.poll(all_tags=True)
        return self.nodes.calls - before


class SharedNodes(Nodes):
    herald = None
    known_chain_id = SEPOLIA
    calls = 0

    def note_heads(self, sightings: tuple[Sighting, ...]) -> None:
        """Of no interest here."""

    async def sightings(self, tag: str) -> tuple[Sighting, ...]:
        self.calls += len(self.nodes)
        return await super().sightings(tag)

    async def names_at(self, height: int) -> tuple[Sighting, ...]:
        self.calls += len(self.nodes)
        return await super().names_at(height)

    async def name_of(self, height: int) -> BlockName | None:
        self.calls += 1
        return await super().name_of(height)


@pytest.mark.parametrize("rule", [FinalityRule("tag"), FinalityRule("depth", 64)], ids=["tag", "depth"])
async def test_twenty_replicas_of_several_nodes_cost_hardly_more_than_one(
    database: Database, rule: FinalityRule
) -> None:
    costs = []
    for replicas in (1, 20):
        nodes = {"a": Node(1000, 936), "b": Node(1000, 930), "c": Node(999, 936)}
        fleet = Fleet(database, replicas, rule, **nodes)
        cost = 0
        for _ in range(5):
            cost += await fleet.round()
            for node in nodes.values():  # several blocks a round: what stood at the last head is looked at again
                node.head += 7
                node.safe = node.finalized = (node.finalized or 0) + 7
            async with database.writing() as link:
                await link.execute(text("DELETE FROM leases"))  # as after the time between two polls
        costs.append(cost)
        finalized = {tracker.heads.finalized for tracker in fleet.trackers}
        assert len(finalized) == 1
        assert None not in finalized
    alone, together = costs
    assert together <= 1.2 * alone, costs


async def test_who_asks_the_nodes_themselves_is_told_nothing_from_before(database: Database) -> None:
    node = Node(1000, 900)
    fleet = Fleet(database, 2, FinalityRule("tag"), a=node)
    await fleet.round()
    for tracker in fleet.trackers:
        assert await tracker._upstream.name_of(1000) == node.block(1000)
    node.head, node.fork, node.fork_at = 1003, 1, 998
    await fleet.trackers[0].poll(fresh=True)
    assert fleet.reorgs
    assert min(fleet.reorgs) <= 1000
