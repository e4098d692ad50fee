"""The anchors of three replicas on a real PostgreSQL: one makes them, all serve them, and another goes on when it is gone."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import text

from app.anchors.self_attested import SelfAttested
from app.chain import office
from app.core.anchor_rows import ATTESTATION, CHECKPOINT, GENESIS
from app.store.anchor_rows import SqlAnchorRows
from app.store.brief_leases import BriefLeases
from app.store.database import Database, open_database
from app.store.leases import SqlLeases
from app.store.ledger import SqlLedger
from tests.chain.recorded_chain import BUSY, LAST, RecordedChain
from tests.fakes import ManualClock
from tests.postgres import PostgresServer

KEY, FROM, INTERVAL, EVERY = 7, BUSY - 9, 3, 2
"""At BUSY there are a genesis, a checkpoint, and an attestation above it."""


class RealClock(ManualClock):
    """A database does not wait for clocks that are moved by hand."""

    def now(self) -> float:
        return time.monotonic()


async def eventually(ask: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + 20
    while not ask():
        assert time.monotonic() < give_up_at, what
        await asyncio.sleep(0.005)


class Replica:
    """One process: connections of its own, and a view of its own of the nodes."""

    def __init__(self, database: Database, name: str, anchors: SelfAttested) -> None:
        self.database = database
        self.anchors = anchors
        self.made = RecordedChain(
            FROM,
            LAST,
            anchors=anchors,
            clock=RealClock(),
            ledger=SqlLedger(database, KEY),
            leases=BriefLeases(SqlLeases(database, name)),
            anchor_interval=INTERVAL,
            head_interval_s=0.02,
        )
        self.made.chain.head._upstream = self.made.upstream  # each sees for itself where the nodes stand
        self.finalize(BUSY)
        self.running = asyncio.create_task(self.made.chain.run())

    def finalize(self, height: int) -> None:
        self.made.upstream.tags = {"latest": LAST, "safe": height, "finalized": height}

    @property
    def fetches(self) -> int:
        return self.made.upstream.hits["fetch"]

    def cut_off(self) -> None:
        """Its database is gone, from where it stands."""
        self.database.ready = False

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.made.chain.aclose()


class Fleet:
    def __init__(self, replicas: list[Replica], database: Database) -> None:
        self.replicas = replicas
        self.database = database

    async def anchored(self, height: int) -> None:
        """Every replica that has its database knows an anchor there."""
        present = [each for each in self.replicas if each.database.ready and not each.running.done()]
        await eventually(lambda: {each.made.attested() for each in present} == {height}, f"an anchor at {height}")

    async def noted(self, height: int) -> None:
        """The roots up to there are in the ledger."""
        give_up_at = time.monotonic() + 20
        while len(await SqlLedger(self.database, KEY).roots(FROM, height)) < height - FROM + 1:
            assert time.monotonic() < give_up_at, "the roots are not noted"

    def maker(self) -> Replica:
        (found,) = [each for each in self.replicas if each.fetches]
        return found

    async def expire(self) -> None:
        """A lease time passes for whoever makes the anchors."""
        async with self.database.writing() as link:
            await link.execute(text("UPDATE leases SET expires_at = 0 WHERE name LIKE 'anchors:%'"))


@pytest.fixture
async def fleet(
    postgres_server: PostgresServer, migrated: list[str], database: Database, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(office, "ASK_EVERY_S", 0.05)
    async with AsyncExitStack() as parts:
        replicas = []
        for name in "abc":
            own = await parts.enter_async_context(open_database(postgres_server.url(migrated[0])))
            own.ready = True
            rows = SqlAnchorRows(own, KEY, "self")
            replicas.append(Replica(own, name, await SelfAttested.opened(KEY, FROM, INTERVAL, EVERY, rows)))
            parts.push_async_callback(replicas[-1].end)
        yield Fleet(replicas, database)


pytestmark = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@pytest.mark.parametrize("dies", [True, False])
async def test_each_block_is_filled_once_and_another_goes_on_when_the_maker_is_gone(fleet: Fleet, dies: bool) -> None:
    await fleet.anchored(BUSY)
    maker = fleet.maker()
    assert maker.fetches == BUSY - FROM + 1
    maker.cut_off()  # it gives nothing back
    if dies:
        await maker.end()
    others = [each for each in fleet.replicas if each is not maker]
    for each in fleet.replicas:
        each.finalize(BUSY + 7)
    await eventually(lambda: all(each.made.chain.head.heads.finalized == BUSY + 7 for each in others), "their heads")
    assert [each.fetches for each in others] == [0, 0]
    await fleet.expire()
    await fleet.anchored(BUSY + 6)
    assert sorted(each.fetches for each in others) == [0, 7]
    assert maker.fetches == BUSY - FROM + 1
    maker.database.ready = True
    await fleet.anchored(BUSY + 6)
    assert maker.fetches == BUSY - FROM + 1, "it takes up what others made"
    rows = await SqlAnchorRows(fleet.database, KEY, "self").load()
    assert [(row.height, row.kind) for row in rows] == [
        (FROM, GENESIS),
        (BUSY - 3, CHECKPOINT),
        (BUSY + 3, CHECKPOINT),
        (BUSY + 6, ATTESTATION),
    ]


async def test_a_follower_serves_under_anchors_that_another_made_as_long_as_they_stand(fleet: Fleet) -> None:
    await fleet.anchored(BUSY)
    await fleet.noted(BUSY)
    followers = [each for each in fleet.replicas if each is not fleet.maker()]
    retired = [each.anchors.bracket(BUSY, BUSY) for each in followers]
    for height in (FROM + 1, BUSY - 3, BUSY - 2, BUSY):
        served = [await each.made.chain.continuity(height, height) for each in fleet.replicas]
        assert len(set(map(repr, served))) == 1
        assert served[0].upper_height == (BUSY - 3 if height <= BUSY - 3 else BUSY)
    for each in fleet.replicas:
        each.finalize(BUSY + 3)
    await fleet.anchored(BUSY + 3)
    await fleet.noted(BUSY + 3)
    assert not any(each.anchors.holds(bracket) for each, bracket in zip(followers, retired, strict=True))
    served = [await each.made.chain.continuity(BUSY, BUSY) for each in fleet.replicas]
    assert {each.upper_height for each in served} == {BUSY + 3}
    assert Counter(each.fetches for each in followers)[0] == 2, "of the roots that the maker noted"
