"""Whoever somebody waits for asks the database for a moment, and not again and again."""

from __future__ import annotations

import asyncio

import pytest

from app.core.lasting import StoreUnavailable
from app.core.leases import Lease
from app.store.brief_leases import ANSWER_S, PAUSES_S, BriefLeases
from app.store.leases import SqlLeases
from tests.fakes import HoldPoints, ManualClock


class Slow(SqlLeases, HoldPoints):
    """Leases of a database that can be held."""

    def __init__(self) -> None:
        HoldPoints.__init__(self)

    async def take(self, name: str, for_s: float) -> Lease:
        await self.at("take")
        return Lease(True, for_s)

    async def release(self, name: str) -> None:
        await self.at("release")


async def test_a_database_that_hangs_costs_one_of_them_a_moment() -> None:
    clock, slow = ManualClock().drive(), Slow()
    leases = BriefLeases(slow, clock.now)
    slow.hold("take")
    asked = [asyncio.create_task(leases.take(name, 4)) for name in "abc"]
    await clock.advance(ANSWER_S)
    for each in asked:
        with pytest.raises(StoreUnavailable):
            await each
    with pytest.raises(StoreUnavailable):
        await leases.release("a")
    assert slow.hits == {"take": 3}, "it is not asked a moment later"
    slow.unhold()
    clock.move(PAUSES_S[0])
    assert (await leases.take("a", 4)).mine, "three who asked at once are one failure"


async def test_a_database_that_fails_again_is_left_alone_for_longer() -> None:
    clock, slow = ManualClock(), Slow()
    leases = BriefLeases(slow, clock.now)
    slow.fail("take", StoreUnavailable("gone"), times=None)
    for pause_s in (*PAUSES_S, PAUSES_S[-1]):
        with pytest.raises(StoreUnavailable):
            await leases.take("a", 4)
        asked = slow.hits["take"]
        clock.move(0.99 * pause_s)
        with pytest.raises(StoreUnavailable):
            await leases.take("a", 4)
        assert slow.hits["take"] == asked
        clock.move(0.02 * pause_s)
    slow.heal()
    assert (await leases.take("a", 4)).mine
    slow.fail("take", StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable):
        await leases.take("a", 4)
    clock.move(PAUSES_S[0])
    assert (await leases.take("a", 4)).mine, "it is as it was in the beginning"
