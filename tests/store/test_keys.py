"""API keys: shown once, stored as a keyed hash, known again from memory, and gone soon after they are revoked."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from app.core.consumers import Pepper, id_in
from app.core.lasting import StoreUnavailable
from app.metrics import Metrics
from app.store.database import Database
from app.store.keys import LONGEST_NAME, LOOK_AGAIN_S, LOOK_EVERY_S, Keyring, KeyRow, KeyTable
from tests.fakes import ManualClock

PEPPER = Pepper(b"a pepper of a test")


@pytest.fixture
def table(database: Database) -> KeyTable:
    return KeyTable(database, PEPPER)


async def everything_in(database: Database) -> str:
    async with database.reading() as link:
        rows = [*await link.execute(text("SELECT * FROM consumer_keys"))]
        rows += [*await link.execute(text("SELECT * FROM consumer_buckets"))]
    parts = [part for row in rows for part in row]
    return repr([[part.hex(), part.decode("latin-1")] if isinstance(part, bytes) else part for part in parts])


async def test_a_key_is_made_listed_and_revoked(table: KeyTable) -> None:
    first, key = await table.create("a partner")
    second, _ = await table.create("x" * 200)
    rows = await table.rows()
    assert {row.id: (row.name, row.revoked_at) for row in rows} == {
        first: ("a partner", None),
        second: ("x" * LONGEST_NAME, None),
    }
    assert rows[0].created_at > 1.7e9
    assert await table.digests() == {first: PEPPER.digest(key), second: (await table.digests())[second]}
    assert await table.revoke(first)
    assert not await table.revoke(first), "once"
    assert not await table.revoke("ffffffffffff")
    assert [isinstance(row, KeyRow) and row.revoked_at is not None for row in await table.rows()].count(True) == 1
    assert set(await table.digests()) == {second}


async def test_R6_no_row_holds_the_key_or_what_it_can_be_found_by(table: KeyTable, database: Database) -> None:
    key_id, key = await table.create("a partner")
    stored = await everything_in(database)
    assert id_in(key) == key_id
    secret = key.rpartition("_")[2]
    for part in (secret, secret[:32], secret[32:], bytes.fromhex(secret).hex()[:16]):
        assert part not in stored
    assert Pepper(b"").digest(key).hex() not in stored


async def test_every_key_is_another(table: KeyTable) -> None:
    made = [await table.create("alike") for _ in range(20)]
    assert len({key_id for key_id, _ in made}) == len({key for _, key in made}) == 20


async def test_keys_of_another_pepper_are_told_from_those_that_count(table: KeyTable, database: Database) -> None:
    other = KeyTable(database, Pepper(b"another pepper of a test"))
    (ours, _), (theirs, _), (before, _), (revoked, _) = [
        await each.create("a partner") for each in (table, other, other, other)
    ]
    await other.revoke(revoked)
    async with database.writing() as link:  # as it was before peppers had fingerprints
        await link.execute(text("UPDATE consumer_keys SET pepper = NULL WHERE id = :id"), {"id": before})
    assert {row.id: row.of_other_pepper for row in await table.rows()} == {
        ours: False,
        theirs: True,
        before: False,
        revoked: True,
    }
    assert (await table.of_other_peppers(), await other.of_other_peppers()) == (1, 1)
    assert (await other.rows())[0].id in (ours, theirs, before, revoked)


async def test_a_pepper_that_differs_is_said_once(
    table: KeyTable, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await KeyTable(database, Pepper(b"another pepper of a test")).create("a partner")
    ring = Ring(table)

    def said() -> list[object]:
        return [record.__dict__["keys"] for record in caplog.records if record.message == "consumer_pepper_differs"]

    with caplog.at_level(logging.WARNING):
        assert await ring.keys.looked_up("copath_" + "0" * 12 + "_" + "0" * 64) is None
        assert said() == [1]
        await table.create("one of ours")
        ring.clock.move(LOOK_EVERY_S)
        assert await ring.keys.looked_up("copath_" + "0" * 12 + "_" + "0" * 64) is None
        assert said() == [1]


# --- in memory ------------------------------------------------------------------------------------------------------


class CountedTable:
    """A table whose questions are counted, and which can be lost."""

    def __init__(self, table: KeyTable) -> None:
        self._table = table
        self.asked = 0
        self.lost = False
        self.open = asyncio.Event()
        self.open.set()

    async def state(self) -> tuple[int | None, ...]:
        self.asked += 1
        await self.open.wait()
        if self.lost:
            raise StoreUnavailable("lost")
        return await self._table.state()

    async def digests(self) -> dict[str, bytes]:
        return await self._table.digests()

    async def of_other_peppers(self) -> int:
        return await self._table.of_other_peppers()


class Ring:
    def __init__(self, table: KeyTable, look_every_s: float = LOOK_EVERY_S) -> None:
        self.table = CountedTable(table)
        self.clock = ManualClock()
        self.metrics = Metrics(CollectorRegistry())
        self.keys = Keyring(self.table, PEPPER, self.metrics, self.clock.now, look_every_s=look_every_s)

    def errors(self) -> float | None:
        return self.metrics.registry.get_sample_value("copath_ratelimit_backend_errors_total", {"op": "keys"})


@asynccontextmanager
async def kept(keys: Keyring) -> AsyncIterator[None]:
    task = asyncio.create_task(keys.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def test_a_key_counts_once_it_was_read_and_not_before(table: KeyTable) -> None:
    key_id, key = await table.create("a partner")
    ring = Ring(table)
    assert (ring.keys.known, ring.keys.verified(key)) == (False, None)
    async with kept(ring.keys):
        await until(lambda: ring.keys.known)
    assert ring.keys.verified(key) == key_id
    assert ring.keys.verified(key[:-1] + ("0" if key[-1] != "0" else "1")) is None
    assert ring.keys.verified(f"copath_{'0' * 12}_{key[-64:]}") is None
    assert ring.keys.verified("") is None


async def test_a_revoked_key_counts_no_more_at_the_next_look(table: KeyTable) -> None:
    key_id, key = await table.create("a partner")
    ring = Ring(table, look_every_s=0.01)
    async with kept(ring.keys):
        await until(lambda: ring.keys.verified(key) == key_id)
        await table.revoke(key_id)
        await until(lambda: ring.keys.verified(key) is None)


async def test_a_new_key_is_looked_for_and_a_thousand_unknown_ones_once_a_second(table: KeyTable) -> None:
    ring = Ring(table)
    unknown = [f"copath_{number:012x}_{'ab' * 32}" for number in range(1000)]
    assert await asyncio.gather(*(ring.keys.looked_up(each) for each in unknown)) == [None] * 1000
    assert ring.table.asked == 1
    key_id, key = await table.create("a partner")
    assert await ring.keys.looked_up(key) is None, "looked a moment ago"
    ring.clock.move(LOOK_AGAIN_S)
    assert await ring.keys.looked_up("no key at all") is None
    assert ring.table.asked == 1
    assert await ring.keys.looked_up(key) == key_id
    assert ring.table.asked == 2


async def test_who_comes_during_the_first_look_waits_for_it(table: KeyTable) -> None:
    key_id, key = await table.create("a partner")
    ring = Ring(table)
    ring.table.open.clear()
    async with kept(ring.keys):
        await until(lambda: ring.table.asked == 1)
        early = [asyncio.create_task(ring.keys.looked_up(key)) for _ in range(5)]
        await asyncio.sleep(0)
        ring.table.open.set()
        assert await asyncio.gather(*early) == [key_id] * 5
    assert ring.table.asked == 1


async def test_once_the_first_look_has_ended_one_waits_for_the_next_and_nobody_else(table: KeyTable) -> None:
    ring = Ring(table)
    ring.table.lost = True
    key = f"copath_{'0' * 12}_{'ab' * 32}"
    assert await ring.keys.looked_up(key) is None
    ring.table.lost = False
    ring.table.open.clear()  # the database hangs now
    ring.clock.move(LOOK_AGAIN_S)
    one = asyncio.create_task(ring.keys.looked_up(key))
    await until(lambda: ring.table.asked == 2)
    assert await asyncio.gather(*(ring.keys.looked_up(key) for _ in range(5))) == [None] * 5
    assert not one.done()
    assert not ring.keys.known
    ring.table.open.set()
    assert await one is None


async def test_keys_of_a_database_that_was_restored_are_read_anew(table: KeyTable, database: Database) -> None:
    """As many keys as before, and others."""
    _, lost = await table.create("made after the backup")
    ring = Ring(table)
    assert await ring.keys.looked_up(lost) is not None
    async with database.writing() as link:
        await link.execute(text("DELETE FROM consumer_keys"))
    key_id, key = await table.create("made after it was restored")
    async with database.writing() as link:
        await link.execute(text("UPDATE consumer_keys SET created_at = created_at + 60"))
    ring.clock.move(LOOK_AGAIN_S)
    assert await ring.keys.looked_up(key) == key_id
    assert ring.keys.verified(lost) is None


@pytest.mark.parametrize("required", [False, True])
async def test_keys_are_awaited_until_they_were_read_where_nobody_is_served_without(
    table: KeyTable, required: bool
) -> None:
    keys = Keyring(table, PEPPER, Metrics(CollectorRegistry()), ManualClock().now, required=required)
    assert keys.awaited is required
    await keys._look()
    assert not keys.awaited


async def test_without_a_database_the_keys_known_last_count_on(table: KeyTable) -> None:
    key_id, key = await table.create("a partner")
    ring = Ring(table)
    assert await ring.keys.looked_up(key) == key_id
    ring.table.lost = True
    ring.clock.move(3600.0)
    assert await ring.keys.looked_up(f"copath_{'0' * 12}_{'ab' * 32}") is None
    assert ring.keys.verified(key) == key_id
    assert ring.keys.known
    assert ring.errors() == 1


async def test_keys_are_compared_in_constant_time_whether_or_not_their_id_is_known(
    table: KeyTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id, key = await table.create("a partner")
    ring = Ring(table)
    await ring.keys.looked_up(key)
    compared: list[int] = []
    honest = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append(len(other))
        return honest(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    for shown in (key, f"copath_{'0' * 12}_{key[-64:]}", f"copath_{key_id}_{'0' * 64}"):
        ring.keys.verified(shown)
    assert compared == [32, 32, 32]
