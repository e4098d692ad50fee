"""Fills of several consumers on one chain: they take turns, whoever filled the queue first, and share what both wait for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from app.chain.permits import Permits
from app.core.blocks import BlockRef
from app.core.budget import FillBudget, Priority, Refusal
from app.core.errors import ChainOverloaded, RpcUnavailable
from app.core.provable_block import ProvableBlock
from app.core.purpose import Errand, Purpose, errand
from tests.chain.recorded_chain import BUSY, FIRST, LAST, RecordedChain
from tests.fakes import ManualClock, settle


@contextlib.contextmanager
def asked_by(consumer: str, *, anonymous: bool = True) -> Iterator[None]:
    token = errand.set(Errand(anonymous=anonymous, consumer=consumer))
    try:
        yield
    finally:
        errand.reset(token)


def asking(made: RecordedChain, consumer: str, height: int, *, anonymous: bool = True) -> asyncio.Task[ProvableBlock]:
    with asked_by(consumer, anonymous=anonymous):
        return asyncio.create_task(made.chain.filling.block(BlockRef(height=height)))


def heights_built(made: RecordedChain) -> list[int | None]:
    return [request.height for request in made.builder.requests]


async def test_a_hundred_cold_blocks_of_one_do_not_precede_the_one_of_another() -> None:
    made = RecordedChain(FIRST, LAST, max_fills=1)
    hold = made.upstream.hold("fetch")
    flood = [asking(made, "many", height) for height in range(FIRST, FIRST + 40)]
    await hold.reached()
    single = asking(made, "one", LAST)
    await settle()
    hold.release()
    await asyncio.gather(single, *flood)
    assert heights_built(made).index(LAST) <= 2


async def test_a_queue_that_one_consumer_has_filled_has_room_for_another() -> None:
    made = RecordedChain(FIRST, LAST, max_fills=1, max_queued_fills=4)
    hold = made.upstream.hold("fetch")
    flood = [asking(made, "many", height) for height in range(FIRST, FIRST + 5)]
    await hold.reached()
    await settle()
    single = asking(made, "one", LAST)
    await settle()
    assert [task.done() for task in flood] == [False] * 4 + [True]
    with pytest.raises(ChainOverloaded) as refused:
        await flood[4]
    assert refused.value.extra == {"reason": "fill_queue_full", "phase": "fill_queue"}
    hold.release()
    await asyncio.gather(single, *flood[:4])
    assert heights_built(made)[:2] == [FIRST, FIRST + 1]
    assert made.chain.permits.budget.running() == made.chain.permits.budget.waiting() == 0
    assert made.chain.permits.refused[Refusal.QUEUE_FULL] == 1


async def test_who_joins_a_fill_that_waits_behind_a_flood_does_not_wait_for_the_flood() -> None:
    made = RecordedChain(FIRST, LAST, max_fills=1)
    hold = made.upstream.hold("fetch")
    flood = [asking(made, "many", height) for height in range(FIRST, FIRST + 20)]
    await hold.reached()
    single = asking(made, "one", FIRST + 19)
    await settle()
    hold.release()
    await asyncio.gather(single, *flood)
    assert heights_built(made).index(FIRST + 19) <= 2
    assert len(heights_built(made)) == 20


async def test_who_shows_a_key_pays_for_a_fill_that_nobody_in_particular_began() -> None:
    made = RecordedChain(BUSY, LAST)
    hold = made.upstream.hold("fetch")
    first = asking(made, "somebody", BUSY)
    await hold.reached()
    (flying,) = made.upstream.errands["fetch"]
    assert (flying.purpose, flying.anonymous) == (Purpose.REQUEST, True)
    second = asking(made, "known", BUSY, anonymous=False)
    await settle()
    assert not flying.anonymous
    hold.release()
    await asyncio.gather(first, second)


async def test_a_fill_that_is_begun_again_is_on_behalf_of_all_who_still_wait() -> None:
    made = RecordedChain(BUSY, LAST)
    made.upstream.fail("fetch", RpcUnavailable("down"), times=1)
    hold = made.upstream.hold("fetch")
    tasks = [asking(made, "somebody", BUSY), asking(made, "known", BUSY, anonymous=False)]
    await hold.reached()
    hold.release()
    await asyncio.gather(*tasks)
    assert [each.anonymous for each in made.upstream.errands["fetch"]] == [False, False]


async def test_a_displaced_waiter_that_is_being_cancelled_leaves_nothing() -> None:
    permits = Permits(FillBudget(1, max_queued=2), ManualClock())
    holder = permits.hold(Priority.REQUEST, consumer="a")
    await holder.acquire()
    waiting = [asyncio.create_task(permits.hold(Priority.REQUEST, consumer="a").acquire()) for _ in range(2)]
    await settle()
    waiting[1].cancel()
    newcomer = asyncio.create_task(permits.hold(Priority.REQUEST, consumer="b").acquire())
    await settle()
    assert waiting[1].cancelled()
    assert (permits.budget.running(), permits.budget.waiting()) == (1, 2)
    holder.release()
    await settle()
    assert waiting[0].done()
    assert not newcomer.done()
    newcomer.cancel()
    await settle()
    assert (permits.budget.running(), permits.budget.waiting()) == (1, 0)
