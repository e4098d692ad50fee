"""What replicas spend of one account, told to each other: on every kind of database."""

from __future__ import annotations

import asyncio
import random

import pytest

from app.core.lasting import StoreUnavailable
from app.core.purpose import Errand
from app.core.spending import Account
from app.store.database import Database
from app.store.spendings import SqlSpendings
from app.upstream import leasing
from app.upstream.purse import Accounts
from app.upstream.settling import Settling

URL = "https://eth.example.org/v2/abcdefgh12345678"
NOON = 1_000 * 86_400.0 + 43_200.0
ASKED = Errand(anonymous=False)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no slow database."""
    monkeypatch.setattr(leasing, "ANSWER_S", 10.0)


class Replica:
    """One process with an account of a hundred units a day and ten a second."""

    def __init__(self, database: Database, name: str) -> None:
        self.accounts = Accounts()
        self.account: Account = self.accounts.of(URL, {}, 10.0, 100.0)
        self.wall_s = NOON
        self.at = 0.0
        self.settling = Settling(
            self.accounts, SqlSpendings(database, name), clock=lambda: self.at, wall_clock=lambda: self.wall_s
        )

    def spend(self, units: float) -> bool:
        return self.account.charge(units, ASKED, self.wall_s)

    async def spend_if_granted(self, units: float) -> bool:
        """As a call does: what it is not granted yet it asks for."""
        if not self.spend(units):
            self.account.want(units)
            await self.settling.settle()
            self.account.want(-units)
            return self.spend(units)
        return True


async def settled(replicas: list[Replica]) -> None:
    """Some seconds in which each tells and hears."""
    for _ in range(5):
        for replica in replicas:
            replica.at += 1.0
            await replica.settling.settle()


async def test_what_one_spent_another_cannot(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    assert first.spend(60)
    await first.settling.settle()
    await second.settling.settle()
    assert second.account.spent(NOON) == 60
    assert not second.spend(11), "its part of half of what is left"
    assert second.spend(10)
    await second.settling.settle()
    await first.settling.settle()
    assert first.account.spent(NOON) == 70


async def test_however_they_spend_they_never_spend_more_than_there_is(database: Database) -> None:
    chance = random.Random(7)
    replicas = [Replica(database, f"replica-{number}") for number in range(3)]
    for replica in (*replicas, *replicas):
        await replica.settling.settle()
    spent = 0.0
    for _ in range(150):
        replica = chance.choice(replicas)
        if chance.random() < 0.2:
            await replica.settling.settle()
        units = chance.choice((0.25, 1.0, 3.0))
        spent += units * replica.spend(units)
        assert spent <= 100
    for _ in range(40):
        for replica in replicas:
            await replica.settling.settle()
            spent += 0.25 * replica.spend(0.25)
    assert 95 < spent <= 100, "and nearly all of it"


@pytest.mark.parametrize("database", ["memory", "postgresql"], indirect=True)
async def test_a_busy_replica_beside_idle_ones_may_spend_half_of_what_is_left_at_once(database: Database) -> None:
    replicas = [Replica(database, f"replica-{number}") for number in range(5)]
    await settled(replicas)
    spent = 0
    for _ in range(4):
        left, before = 100 - spent, spent
        while await replicas[3].spend_if_granted(2.0):
            spent += 2
        assert spent - before >= left // 4 * 2 - 2, "the other half others may be spending"
        await settled(replicas)
    assert 88 <= spent <= 100
    assert max(replica.account.spent(NOON) for replica in replicas) <= 100


@pytest.mark.parametrize("database", ["memory", "postgresql"], indirect=True)
async def test_whoever_draws_and_whenever_they_never_spend_more_than_there_is(database: Database) -> None:
    chance = random.Random(11)
    replicas = [Replica(database, f"replica-{number}") for number in range(3)]
    await settled(replicas)
    spent, drawn = 0.0, 0
    for _ in range(80):
        replica = chance.choice(replicas)
        if chance.random() < 0.3:  # those who are there are heard every second
            for each in replicas:
                each.at += 1.0
                await each.settling.settle()
        units = chance.choice((1.0, 4.0, 9.0))
        at_once = replica.account.granted(units, NOON)
        spent_one = await replica.spend_if_granted(units)
        drawn += spent_one and not at_once
        spent += units * spent_one
        assert spent <= 100
    assert drawn > 5
    assert spent > 90, "and nearly all of it"


async def test_who_tells_often_is_not_granted_what_others_were(database: Database) -> None:
    first, second = replicas = [Replica(database, name) for name in "ab"]
    await settled(replicas)
    spent = 0
    for _ in range(12):
        while second.spend(1.0):
            spent += 1
        await second.settling.settle()
    assert spent >= 70
    while first.spend(1.0):
        spent += 1
    assert spent <= 100


@pytest.mark.parametrize("database", ["memory", "postgresql"], indirect=True)
async def test_what_was_drawn_and_not_spent_is_still_there(database: Database) -> None:
    first, second = replicas = [Replica(database, name) for name in "ab"]
    await settled(replicas)
    first.account.want(40.0)
    await first.settling.settle()
    first.account.want(-40.0)
    await settled(replicas)
    assert second.account.spent(NOON) == 40
    assert first.account.spent(NOON) == 0
    assert first.spend(40.0)
    await settled(replicas)
    assert second.account.spent(NOON) == 40


async def test_settling_twice_counts_once(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    first.spend(30)
    for _ in range(5):
        await first.settling.settle()
        await second.settling.settle()
    assert (first.account.spent(NOON), second.account.spent(NOON)) == (30, 30)


async def test_a_restart_gives_nothing_back(database: Database) -> None:
    first = Replica(database, "a")
    first.spend(90)
    await first.settling.settle()
    again = Replica(database, "a2")
    await again.settling.settle()
    assert again.account.spent(NOON) == 90
    assert not again.spend(11)


async def test_a_new_day_is_new_for_all(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    first.spend(100)
    await first.settling.settle()
    await second.settling.settle()
    for replica in (first, second):
        replica.wall_s += 86_400
        await replica.settling.settle()
    assert second.spend(25)
    await second.settling.settle()
    await first.settling.settle()
    assert first.account.spent(first.wall_s) == 25


async def test_many_settle_at_once(database: Database) -> None:
    replicas = [Replica(database, f"replica-{number}") for number in range(8)]
    for replica in replicas:
        replica.spend(10)
    await asyncio.gather(*(replica.settling.settle() for replica in replicas))
    await asyncio.gather(*(replica.settling.settle() for replica in replicas))
    assert {replica.account.spent(NOON) for replica in replicas} == {80}


async def test_a_database_that_goes_leaves_what_was_known(database: Database) -> None:
    first, second = Replica(database, "a"), Replica(database, "b")
    first.spend(60)
    await first.settling.settle()
    await second.settling.settle()
    database.ready = False
    with pytest.raises(StoreUnavailable):
        await second.settling.settle()
    assert not second.spend(11)
    assert second.spend(10)
    database.ready = True
    await second.settling.settle()
    await first.settling.settle()
    assert first.account.spent(NOON) == 70


def test_the_name_of_an_account_tells_nothing_of_its_key() -> None:
    accounts = Accounts()
    accounts.of(URL, {}, 10.0, 100.0)
    ((name, _),) = accounts.named()
    assert len(name) == 32
    assert "abcdefgh12345678" not in name
