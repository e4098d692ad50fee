"""Leases on every kind of database: one holder at a time, by the database's clock."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from app.core.lasting import StoreUnavailable
from app.store.database import Database
from app.store.leases import SqlLeases

NOTE = b"\x01" * 32


async def expire(database: Database, name: str) -> None:
    async with database.writing() as link:
        await link.execute(text("UPDATE leases SET expires_at = expires_at - 1000 WHERE name = :name"), {"name": name})


async def test_who_comes_first_holds_it_and_nobody_else(database: Database) -> None:
    first, second = SqlLeases(database, "a"), SqlLeases(database, "b")
    assert (await first.take("x", 10)).mine
    other = await second.take("x", 10)
    assert (other.mine, other.note) == (False, None)
    assert 9 < other.left_s <= 10
    assert (await first.take("x", 20)).left_s > 19, "its holder renews it"
    assert (await second.take("y", 10)).mine, "another thing is another lease"


async def test_of_many_who_ask_at_once_one_gets_it(database: Database) -> None:
    everybody = [SqlLeases(database, f"holder-{number}") for number in range(30)]
    taken = await asyncio.gather(*(leases.take("x", 10) for leases in everybody))
    assert [lease.mine for lease in taken].count(True) == 1


async def test_an_expired_lease_is_taken_over_by_one_of_those_who_wait(database: Database) -> None:
    await SqlLeases(database, "dead").take("x", 10)
    await expire(database, "x")
    everybody = [SqlLeases(database, f"holder-{number}") for number in range(20)]
    taken = await asyncio.gather(*(leases.take("x", 10) for leases in everybody))
    assert [lease.mine for lease in taken].count(True) == 1


@pytest.mark.parametrize("note", [None, NOTE])
@pytest.mark.parametrize("later", ["expires_at + 3600", "1e300"])
async def test_a_lease_from_before_the_clock_was_set_back_is_free(
    database: Database, later: str, note: bytes | None
) -> None:
    dead, living = SqlLeases(database, "dead"), SqlLeases(database, "living")
    await dead.take("x", 10)
    if note is not None:
        await dead.leave("x", note, 30)
    async with database.writing() as link:
        await link.execute(text(f"UPDATE leases SET expires_at = {later}"))
    assert await living.look("x") is None
    assert await living.count("x") == 0
    lease = await living.take("x", 10)
    assert (lease.mine, lease.note) == (True, None)
    assert lease.left_s <= 10
    assert not (await dead.take("x", 10)).mine


async def test_what_was_left_is_found_by_everybody_until_it_expires(database: Database) -> None:
    first, second = SqlLeases(database, "a"), SqlLeases(database, "b")
    await first.take("x", 10)
    await first.leave("x", NOTE, 30)
    for leases in (first, second):
        lease = await leases.take("x", 10)
        assert (lease.mine, lease.note) == (False, NOTE)
        assert lease.left_s > 25
    await expire(database, "x")
    lease = await second.take("x", 10)
    assert (lease.mine, lease.note) == (True, None)


async def test_what_is_posted_stands_whoever_held_it_before(database: Database) -> None:
    first, second = SqlLeases(database, "a"), SqlLeases(database, "b")
    await second.post("new", NOTE, 10)
    assert (await first.take("new", 10)).note == NOTE
    await first.take("x", 10)
    for note in (NOTE, b"\x02"):
        await second.post("x", note, 30)
        lease = await first.take("x", 10)
        assert (lease.mine, lease.note) == (False, note)
        assert lease.left_s > 25
    await first.leave("x", b"\x03", 10)
    assert (await second.take("x", 10)).note == b"\x02", "it is not the first one's any more"
    await expire(database, "x")
    assert (await first.take("x", 10)).mine


async def test_who_lost_a_lease_neither_leaves_nor_releases_anything(database: Database) -> None:
    late, holder = SqlLeases(database, "late"), SqlLeases(database, "holder")
    await late.take("x", 10)
    await expire(database, "x")
    assert (await holder.take("x", 10)).mine
    await late.leave("x", NOTE, 30)
    await late.release("x")
    lease = await holder.look("x")
    assert lease is not None
    assert (lease.mine, lease.note) == (True, None)


async def test_a_released_lease_is_free(database: Database) -> None:
    first, second = SqlLeases(database, "a"), SqlLeases(database, "b")
    await first.take("x", 10)
    await first.release("x")
    assert await second.look("x") is None
    assert (await second.take("x", 10)).mine


async def test_rows_that_expired_long_ago_go(database: Database) -> None:
    leases = SqlLeases(database, "a")
    for number in range(50):
        await leases.take(f"old-{number}", 0.0)
    async with database.writing() as link:
        await link.execute(text("UPDATE leases SET expires_at = expires_at - 1000"))
    for _ in range(64):
        await leases.take("new", 10)
    async with database.reading() as link:
        names = [name for (name,) in await link.execute(text("SELECT name FROM leases"))]
    assert names == ["new"]


async def test_without_a_database_it_says_so(database: Database) -> None:
    leases = SqlLeases(database, "a")
    database.ready = False
    with pytest.raises(StoreUnavailable):
        await leases.take("x", 10)
