"""What one process does with the shared buckets: it asks as little as it can, waits for nobody long, and is never let in by its
own noise."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from app.core.bucket import HOT_PER_SECOND, Bucket, Decision, Layer, Rate, Taken
from app.core.lasting import StoreUnavailable
from app.core.reliance import LATE_IN_A_ROW
from app.metrics import Metrics
from app.store import rates as rates_module
from app.store.rates import BEAT_S, BUDGET_S, PURGE_EVERY_BEATS, Rates
from tests.fakes import HoldPoints, ManualClock, settle

RATE = Rate(2.0, 4)
LATE_S = BUDGET_S + 0.001
DOWN = StoreUnavailable("down")


class MadeBuckets(HoldPoints):
    """Shared buckets in memory. Points: `take`, also as `take:CONSUMER`, `ping` and `purge`."""

    def __init__(self, rate: Rate, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self._rate = rate
        self._buckets: dict[str, Bucket] = {}
        self.asked: list[tuple[str, int]] = []
        self.under_way: Counter[str] = Counter()
        self.most_under_way: Counter[str] = Counter()

    async def take(self, consumer: str, want: int) -> Taken:
        self.asked.append((consumer, want))
        self.under_way[consumer] += 1
        self.most_under_way[consumer] = max(self.most_under_way[consumer], self.under_way[consumer])
        try:
            await self.at("take")
            await self.at(f"take:{consumer}")
        finally:
            self.under_way[consumer] -= 1
        now = self._clock.now()
        return self._buckets.setdefault(consumer, Bucket(self._rate, now)).take(want, now)

    async def purge(self) -> int:
        await self.at("purge")
        return 0

    async def ping(self) -> None:
        await self.at("ping")


class Site:
    """A process: its rates over buckets in memory, running."""

    def __init__(self, rate: Rate = RATE, replicas: int = 1) -> None:
        self.clock = ManualClock().drive()
        self.buckets = MadeBuckets(rate, self.clock)
        self.metrics = Metrics(CollectorRegistry())
        self.rates = Rates(rate, self.buckets, self.metrics, self.clock.now, replicas=replicas)

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"copath_{name}_total", labels) or 0.0

    def decisions(self) -> dict[tuple[str, str], float]:
        (family,) = self.metrics.consumer_ratelimit_decisions_total.collect()
        return {
            (each.labels["decision"], each.labels["layer"]): each.value
            for each in family.samples
            if each.name.endswith("_total") and each.value
        }

    async def outcomes(self, *consumers: str) -> list[bool]:
        return [each.allowed for each in await asyncio.gather(*(self.rates.take(each) for each in consumers))]


@asynccontextmanager
async def running(rates: Rates) -> AsyncIterator[None]:
    task = asyncio.create_task(rates.run())
    await settle(1)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    async with running(made.rates):
        await settle()
        made.buckets.hits.clear()  # it has connected
        yield made


# --- asking as little as possible -----------------------------------------------------------------------------------


async def test_each_request_takes_a_token_and_the_next_is_denied_from_memory(site: Site) -> None:
    assert await site.outcomes(*["a"] * 4) == [True] * 4
    decision = await site.rates.take("a")
    assert (decision.allowed, decision.wait_s, decision.layer) == (False, 0.5, Layer.LOCAL)
    asked = len(site.buckets.asked)
    assert site.rates.denial("a") == decision
    assert site.rates.denial("b") is None
    assert await site.outcomes(*["a"] * 50) == [False] * 50
    assert len(site.buckets.asked) == asked
    site.clock.move(0.5)
    assert site.rates.denial("a") is None
    assert await site.outcomes("a") == [True]


async def test_R12_one_question_at_a_time_and_its_answer_is_shared(site: Site) -> None:
    hold = site.buckets.hold("take")
    first = asyncio.create_task(site.rates.take("a"))
    await hold.reached()
    crowd = [asyncio.create_task(site.rates.take("a")) for _ in range(19)]
    await settle()
    assert site.buckets.asked == [("a", 1)]
    hold.release()
    decisions = await asyncio.gather(first, *crowd)
    assert [each.allowed for each in decisions] == [True] * 4 + [False] * 16
    assert site.buckets.asked == [("a", 1), ("a", 19)]
    assert site.buckets.most_under_way == {"a": 1}
    assert site.decisions() == {("allowed", "shared"): 4, ("denied", "shared"): 16}


async def test_consumers_do_not_wait_for_each_other(site: Site) -> None:
    hold = site.buckets.hold("take:a")
    waiting = asyncio.create_task(site.rates.take("a"))
    await hold.reached()
    assert await site.outcomes("b", "c") == [True, True]
    hold.release()
    assert (await waiting).allowed


async def test_R11_a_hot_consumer_is_served_from_leases_and_not_once_too_often() -> None:
    site = Site(Rate(1000.0, 2000))
    async with running(site.rates):
        allowed = 0
        for _ in range(20):
            allowed += sum(await site.outcomes(*["a"] * 200))
            site.clock.move(0.01)
        assert len(site.buckets.asked) < 25
        assert max(want for _, want in site.buckets.asked) >= 500
        while (await site.rates.take("a")).allowed:
            allowed += 1
        assert allowed <= 2000 + 1000 * 0.2
        assert site.decisions()["allowed", "local"] > HOT_PER_SECOND


# --- R7: a database that is slow or gone limits nobody --------------------------------------------------------------


async def test_R7_without_a_database_each_process_decides_alone_with_its_share() -> None:
    site = Site(Rate(2.0, 8), replicas=4)
    site.buckets.fail("take", DOWN, times=None)
    async with running(site.rates):
        assert await site.outcomes(*["a"] * 5) == [True, True, False, False, False]
        assert site.decisions() == {("allowed", "fallback"): 2, ("denied", "fallback"): 3}
        assert site.counted("ratelimit_backend_errors", op="take") == 1
        site.clock.move(2.0)
        assert await site.outcomes("a", "b") == [True, True]
        assert len(site.buckets.asked) == 1, "left alone from the first failure on"


async def test_R7_an_answer_that_does_not_come_is_not_waited_for(site: Site) -> None:
    hold = site.buckets.hold("take")
    site.buckets.hold("ping")
    asking = [asyncio.create_task(site.rates.take(consumer)) for consumer in "abc"]
    await hold.reached()
    await site.clock.advance(BUDGET_S - 0.001)
    assert not any(each.done() for each in asking)
    await site.clock.advance(0.002)
    assert [each.result().layer for each in asking] == [Layer.FALLBACK] * 3
    assert site.counted("ratelimit_backend_errors", op="take") == LATE_IN_A_ROW
    assert site.rates.reliance.broken
    at_once = asyncio.create_task(site.rates.take("d"))  # nobody waits any more
    await settle()
    assert at_once.result().layer is Layer.FALLBACK
    assert site.buckets.asked == [("a", 1), ("b", 1), ("c", 1)]
    hold.release()


async def test_R7_whoever_asks_while_his_question_is_late_does_not_wait_for_it(site: Site) -> None:
    hold = site.buckets.hold("take")
    site.buckets.hold("ping")
    first = asyncio.create_task(site.rates.take("a"))
    await hold.reached()
    await site.clock.advance(LATE_S)
    assert first.done()
    second = asyncio.create_task(site.rates.take("a"))
    await settle()
    assert second.result().layer is Layer.FALLBACK
    assert len(site.buckets.asked) == 1
    assert site.counted("ratelimit_backend_errors", op="take") == 1, "one question is late once"
    hold.release()


async def test_R7_what_a_late_answer_brought_is_used_and_nothing_of_it_twice(site: Site) -> None:
    hold = site.buckets.hold("take")
    ping = site.buckets.hold("ping")
    tasks = [asyncio.create_task(site.rates.take("a")) for _ in range(3)]
    await hold.reached()
    await site.clock.advance(LATE_S)
    assert [each.result().layer for each in tasks] == [Layer.FALLBACK] * 3
    hold.release()
    ping.release()
    await settle()
    decisions = [await site.rates.take("a") for _ in range(5)]
    assert [each.allowed for each in decisions] == [True] * 4 + [False]
    assert [each.layer for each in decisions[:4]] == [*[Layer.LOCAL] * 3, Layer.SHARED]


async def test_R7_a_database_that_answers_again_is_asked_again(site: Site) -> None:
    site.buckets.fail("take", DOWN, times=None)
    site.buckets.fail("ping", DOWN, times=None)
    await site.rates.take("a")
    for _ in range(3):
        await site.clock.advance(BEAT_S)
    assert site.buckets.hits["ping"] == 3
    assert site.rates.reliance.broken
    site.buckets.heal()
    await site.clock.advance(BEAT_S)
    assert not site.rates.reliance.broken
    assert (await site.rates.take("a")).layer is Layer.SHARED
    assert site.counted("ratelimit_backend_errors", op="ping") == 3


async def test_R7_a_probe_that_is_answered_late_proves_nothing(site: Site) -> None:
    site.buckets.fail("take", DOWN)
    await site.rates.take("a")
    ping = site.buckets.hold("ping")
    await site.clock.advance(BEAT_S)
    await ping.reached()
    await site.clock.advance(LATE_S)
    ping.release()
    await settle()
    assert site.rates.reliance.broken


async def test_before_it_runs_and_after_it_has_ended_everything_is_decided_alone() -> None:
    site = Site()
    assert (await site.rates.take("a")).layer is Layer.FALLBACK
    async with running(site.rates):
        hold = site.buckets.hold("take")
        waiting = asyncio.create_task(site.rates.take("b"))
        await hold.reached()
    await settle()
    assert waiting.result().layer is Layer.FALLBACK
    assert (await site.rates.take("b")).layer is Layer.FALLBACK
    assert not site.buckets.asked[1:]


# --- R12: who keeps his own row busy is not let in for it -----------------------------------------------------------


async def test_R12_a_row_that_is_busy_while_others_answer_denies(site: Site) -> None:
    hold = site.buckets.hold("take:noisy")
    noisy = asyncio.create_task(site.rates.take("noisy"))
    await hold.reached()
    site.clock.move(0.01)
    assert await site.outcomes("quiet") == [True]
    await site.clock.advance(LATE_S)
    assert noisy.result() == Decision(False, 0, 1.0, Layer.LOCAL)
    assert site.counted("ratelimit_backend_errors", op="take") == 0
    again = asyncio.create_task(site.rates.take("noisy"))
    await settle()
    assert not again.result().allowed
    assert not site.rates.reliance.broken
    hold.release()


async def test_R12_a_row_that_is_never_had_leaves_the_database_trusted(site: Site) -> None:
    hold = site.buckets.hold("take:noisy")
    site.buckets.fail("take:noisy", DOWN)
    noisy = asyncio.create_task(site.rates.take("noisy"))
    await hold.reached()
    site.clock.move(0.01)
    assert await site.outcomes("quiet") == [True]
    hold.release()
    await settle()
    assert not noisy.result().allowed
    assert not site.rates.reliance.broken


async def test_R12_where_nobody_else_asks_a_probe_tells_whose_fault_it_is(site: Site) -> None:
    hold = site.buckets.hold("take:noisy")
    first = asyncio.create_task(site.rates.take("noisy"))
    await hold.reached()
    await site.clock.advance(LATE_S)
    assert first.result().layer is Layer.FALLBACK, "not known yet"
    assert site.buckets.hits["ping"] == 1
    assert not (await site.rates.take("noisy")).allowed
    hold.release()


# --- nothing is left ------------------------------------------------------------------------------------------------


async def test_R7_the_database_is_connected_to_before_anybody_waits_for_it() -> None:
    site = Site()
    site.buckets.fail("ping", DOWN)
    async with running(site.rates):
        await settle()
        assert (site.buckets.hits["ping"], site.rates.reliance.broken) == (1, True)
        assert (await site.rates.take("a")).layer is Layer.FALLBACK
        assert site.buckets.asked == []


async def test_who_hangs_up_leaves_nothing_behind(site: Site) -> None:
    hold = site.buckets.hold("take")
    leaving = [asyncio.create_task(site.rates.take("a")) for _ in range(5)]
    staying = asyncio.create_task(site.rates.take("a"))
    await hold.reached()
    for each in leaving:
        each.cancel()
    await settle()
    hold.release()
    assert (await staying).allowed
    await settle()
    assert repr(site.rates) == "<Rates 1 consumers, 0 questions, <Reliance 0 late>>"


async def test_what_says_nothing_is_forgotten_beat_by_beat(site: Site) -> None:
    for number in range(20):
        await site.rates.take(f"c{number}")
    assert repr(site.rates).startswith("<Rates 20 consumers")
    await site.clock.advance(BEAT_S)
    assert repr(site.rates).startswith("<Rates 0 consumers")


async def test_however_many_come_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    monkeypatch.setattr(rates_module, "MOST_TABS", 5)
    for number in range(20):
        await site.rates.take(f"c{number}")
    assert repr(site.rates).startswith("<Rates 5 consumers")


async def test_however_many_come_only_so_many_questions_are_under_way(
    monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    monkeypatch.setattr(rates_module, "MOST_QUESTIONS", 5)
    hold = site.buckets.hold("take")
    crowd = [asyncio.create_task(site.rates.take(f"c{number}")) for number in range(20)]
    await hold.reached()
    await settle()
    assert len(site.buckets.asked) == 5
    assert sum(each.done() for each in crowd) == 15
    hold.release()
    await asyncio.gather(*crowd)


async def test_R8_old_buckets_are_looked_for_now_and_then(site: Site) -> None:
    for _ in range(PURGE_EVERY_BEATS):
        await site.clock.advance(BEAT_S)
    assert site.buckets.hits["purge"] == 1
    site.buckets.fail("purge", DOWN)
    for _ in range(PURGE_EVERY_BEATS):
        await site.clock.advance(BEAT_S)
    assert site.counted("ratelimit_backend_errors", op="purge") == 1
