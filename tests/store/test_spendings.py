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
from app.upstream.purse import Accounts
from app.upstream.settling import Settling

URL = "https://eth.example.org/v2/abcdefgh12345678"
NOON = 1_000 * 86_400.0 + 43_200.0
ASKED = Errand(anonymous=False)


class Replica:
    """One process with an account of a hundred units a day and ten a second."""

    def __init__(self, database: Database, name: str) -> None:
        self.accounts = Accounts()
        self.account: Account = self.accounts.of(URL, {}, 10.0, 100.0)
        self.wall_s = NOON
        self.settling = Settling(self.accounts, SqlSpendings(database, name), wall_clock=lambda: self.wall_s)

    def spend(self, units: float) -> bool:
        return self.account.charge(units, ASKED, self.wall_s)


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
    for _ in range(300):
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
