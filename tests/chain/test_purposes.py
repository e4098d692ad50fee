"""What the calls of a chain are made for, whoever makes them, and what becomes of work that cannot be paid for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from app.chain.backfill import State
from app.core.blocks import BlockRef
from app.core.errors import UpstreamBudgetExhausted
from app.core.purpose import Errand, Purpose, errand
from app.core.setbacks import LONGEST_PAUSE_S
from app.store.memory import MemoryLedger
from tests.chain.recorded_chain import BUSY, LAST, RecordedChain, hash_of, sepolia, tx_hashes
from tests.fakes import settle

AT = BlockRef(height=BUSY)
TURNS = 1500
SPENT = UpstreamBudgetExhausted("spent", retry_after_s=3600.0)


def purposes(made: RecordedChain, point: str) -> set[Purpose]:
    return {each.purpose for each in made.upstream.errands[point]}


@contextlib.contextmanager
def on(mine: Errand) -> Iterator[None]:
    token = errand.set(mine)
    try:
        yield
    finally:
        errand.reset(token)


@contextlib.asynccontextmanager
async def alive(made: RecordedChain) -> AsyncIterator[None]:
    running = asyncio.create_task(made.chain.run())
    try:
        yield
        assert not running.done(), running
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await made.chain.aclose()


async def test_what_a_request_needs_is_asked_for_on_its_behalf() -> None:
    made = RecordedChain(BUSY, LAST)
    await made.see(LAST)
    made.upstream.errands.clear()
    with on(Errand(anonymous=False)):
        for _ in range(2):  # the second time its block is at hand, and asked about
            await made.chain.transaction(tx_hashes(sepolia(BUSY))[0])
    for point in ("position", "fetch", "name_of"):
        asked = made.upstream.errands[point]
        assert asked, point
        assert all((each.purpose, each.anonymous) == (Purpose.REQUEST, False) for each in asked), point


async def test_who_showed_no_key_is_nobody_in_particular() -> None:
    made = RecordedChain(BUSY, LAST)
    await made.at(BUSY)
    assert [each.anonymous for each in made.upstream.errands["fetch"]] == [True]


async def test_the_head_is_followed_and_looked_at_again_for_its_own_sake() -> None:
    made = RecordedChain(BUSY, LAST)
    made.upstream.tags |= {"latest": LAST - 1, "finalized": None, "safe": None}
    async with alive(made):
        await settle()
        polls = len(made.upstream.errands["tagged:latest"])
        made.upstream.tags["latest"] = LAST
        made.clock.move(1.0)
        await made.at(LAST)
    assert len(made.upstream.errands["tagged:latest"]) > polls >= 1
    assert purposes(made, "tagged") == {Purpose.HEAD}


async def test_backfill_asks_for_its_own_sake() -> None:
    made = RecordedChain(BUSY, LAST, ledger=MemoryLedger(), backfill=True, retention_blocks=LAST - BUSY)
    await made.see(LAST)
    await made.at(LAST)  # not final yet: which block is there is asked once more
    await made.see(LAST, finalized=LAST)
    made.upstream.errands.clear()
    async with alive(made):
        await settle(TURNS)
        assert made.chain.backfill is not None
        assert made.chain.backfill.state is State.CAUGHT_UP
    assert purposes(made, "fetch") == {Purpose.BACKFILL}
    assert purposes(made, "name_of") == {Purpose.BACKFILL}


async def test_a_fill_that_a_request_joins_goes_on_for_the_request() -> None:
    made = RecordedChain(BUSY, LAST, ledger=MemoryLedger(), backfill=True, max_fills=2)
    made.upstream.tags |= {"latest": LAST, "finalized": LAST}
    hold = made.upstream.hold("fetch")
    async with alive(made):
        await hold.reached()
        asking = asyncio.create_task(made.at(LAST))
        await settle()
        (flying,) = made.upstream.errands["fetch"]
        assert flying.purpose is Purpose.REQUEST
        hold.release()
        await asking


async def test_what_cannot_be_paid_for_is_refused_and_not_remembered_and_nobody_is_saturated() -> None:
    made = RecordedChain(BUSY, LAST)
    made.upstream.fail("fetch", SPENT)
    with pytest.raises(UpstreamBudgetExhausted) as caught:
        await made.at(BUSY)
    assert caught.value.retry_after_s == 3600 + 1  # and half of the spread
    assert made.calls()["fetch"] == 1, "no second try: it would be refused as well"
    assert not made.chain.saturated
    assert made.metrics.fill_total.labels("sepolia", "request", "refused")._value.get() == 1
    assert (await made.at(BUSY)).height == BUSY


async def test_what_is_known_is_served_whatever_is_spent() -> None:
    made = RecordedChain(BUSY, LAST)
    await made.see(LAST, finalized=LAST)
    await made.at(BUSY)
    for point in ("fetch", "name_of", "position", "tagged"):
        made.upstream.fail(point, SPENT, times=None)
    made.calls()
    assert made.chain.peek_block(AT) is not None
    assert made.chain.peek_transaction(tx_hashes(sepolia(BUSY))[0]) is not None
    assert (await made.at(BUSY)).block_hash == hash_of(sepolia(BUSY))
    assert made.calls() == {}


async def test_backfill_that_cannot_be_paid_for_stops_and_goes_on_the_next_day() -> None:
    made = RecordedChain(LAST - 10, LAST, ledger=MemoryLedger(), backfill=True, retention_blocks=10)
    made.upstream.tags |= {"latest": LAST, "finalized": LAST}
    made.upstream.fail("fetch", SPENT, times=None)
    async with alive(made):
        await settle(TURNS)
        backfill = made.chain.backfill
        assert backfill is not None
        assert (backfill.state, backfill.last_error) == (State.SPENT, "UpstreamBudgetExhausted")
        assert made.chain.permits.budget.running() == 0
        made.upstream.heal()
        made.clock.move(LONGEST_PAUSE_S)
        await settle(TURNS)
        assert backfill.remaining == 0
