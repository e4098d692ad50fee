"""One poll for all replicas, and none missed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.chain.rules import ChainRules
from app.chain.shared_head import SharedHead
from app.core.blocks import Sighting
from app.core.errors import RpcUnavailable
from app.store.database import Database, open_database
from app.store.leases import SqlLeases
from app.store.migrating import make_ready
from tests.chain.recorded_chain import LAST, SEPOLIA, RecordedChain, name_of, sepolia


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    async with open_database("sqlite+aiosqlite://") as opened:
        await make_ready(opened)
        yield opened


class Replica:
    """One process's way to the nodes."""

    def __init__(self, database: Database, name: str) -> None:
        self.recorded = RecordedChain()
        self.recorded.upstream.tags = {"latest": LAST, "finalized": LAST - 5}
        self.heard: list[tuple[Sighting, ...]] = []
        self.recorded.upstream.note_heads = self.heard.append  # type: ignore[attr-defined]
        rules = ChainRules(key=7, name="sepolia", chain_id=None, family="ethereum")
        self.head = SharedHead(rules, self.recorded.upstream, SqlLeases(database, name), self.pause)
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
    await SqlLeases(database, "a").take(f"head:7:{SEPOLIA}:latest", 100)
    assert (await second.head.sightings("latest"))[0].block is not None
    assert len(second.pauses) == 5
    assert (first.polls, second.polls) == (0, 1)


async def test_what_another_chain_under_this_key_shows_is_not_ours(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    first.recorded.upstream.known_chain_id = 5
    await first.head.sightings("latest")
    await second.head.sightings("latest")
    assert (first.polls, second.polls) == (1, 1)


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
