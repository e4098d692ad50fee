"""A second node beside a slow first one: when it is asked, when it may win, and what it may cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.core.blocks import BlockBodies, BlockRef
from app.core.errors import ContentInvalid
from app.core.routing import Part, RoutingRules
from app.upstream.hedging import FLOOR_S, Hedging
from app.upstream.retries import RetryBudget
from tests.scripted_behaviours import null
from tests.scripted_node import ScriptedNode
from tests.upstream.conftest import handed
from tests.upstream.crew import BY_NUMBER, RECEIPTS
from tests.upstream.in_process import NEVER, Timed

MILLION = BlockRef(height=1_000_000)
Record = dict[str, Any]


async def hedged(million: Record, *, on: bool = True) -> Timed:
    """Two nodes of which most fetches took 100 ms, and hedges saved up for."""
    nodes = ScriptedNode.of_corpus(million), ScriptedNode.of_corpus(million)
    timed = Timed(*nodes, rules=RoutingRules(hedge=on))
    await timed.greet()
    for _ in range(100):
        timed.upstream.hedging.note(0.1)
        timed.upstream.hedging.deposit()
    return timed


def slow(seconds: float) -> Any:
    return lambda method, params: seconds if method == BY_NUMBER else 0.0


async def test_a_slow_fetch_is_hedged_after_what_most_take_and_the_backup_wins(million: Record) -> None:
    timed = await hedged(million)
    timed.transports[0].takes = slow(NEVER)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    assert await timed.after(10.0, fetching) == pytest.approx(FLOOR_S, abs=0.06)
    assert (await fetching).upstream == "b"
    assert timed.transports[0].cancelled == {BY_NUMBER: 1}
    assert timed.upstream.hedging.outcomes == {"won": 1, "lost": 0, "suppressed": 0}
    state = timed.evms[0].state
    assert state.breakers[Part.BLOCK]._failures_in_a_row == 0  # U13
    assert timed.evms[0].connections_held == 0


async def test_a_first_answer_that_comes_in_time_wins_and_the_backup_is_given_up(million: Record) -> None:
    timed = await hedged(million)
    timed.transports[0].takes = slow(0.5)
    timed.transports[1].takes = slow(NEVER)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    assert await timed.after(10.0, fetching) == pytest.approx(0.5, abs=0.06)
    assert (await fetching).upstream == "a"
    assert timed.transports[1].cancelled == {BY_NUMBER: 1}
    assert timed.upstream.hedging.outcomes == {"won": 0, "lost": 1, "suppressed": 0}


async def test_a_quick_fetch_is_not_hedged(million: Record) -> None:
    timed = await hedged(million)
    timed.transports[0].takes = slow(0.2)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    await timed.after(10.0, fetching)
    assert timed.hits(BY_NUMBER) == [1, 0]
    assert timed.upstream.hedging.outcomes == {"won": 0, "lost": 0, "suppressed": 0}


async def test_a_failure_is_no_reason_for_a_hedge_and_the_next_node_is_asked_as_ever(million: Record) -> None:
    timed = await hedged(million)
    timed.transports[0].node.always(BY_NUMBER, null())
    assert (await timed.upstream.fetch(MILLION, handed)).upstream == "b"
    assert timed.upstream.hedging.outcomes == {"won": 0, "lost": 0, "suppressed": 0}


@pytest.mark.parametrize("method", [BY_NUMBER, RECEIPTS])
async def test_a_null_never_wins(million: Record, method: str) -> None:
    timed = await hedged(million)
    timed.transports[0].takes = slow(2.0)
    timed.transports[1].node.always(method, null())
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    assert await timed.after(10.0, fetching) == pytest.approx(2.0, abs=0.06)
    bodies = await fetching
    assert bodies.upstream == "a"
    assert bodies.receipts_json is not None
    assert timed.upstream.hedging.outcomes["lost"] == 1


async def test_when_the_first_comes_to_nothing_its_backup_is_waited_for(million: Record) -> None:
    timed = await hedged(million)
    timed.transports[0].takes = slow(0.5)
    timed.transports[0].node.always(BY_NUMBER, null())
    timed.transports[1].takes = slow(1.0)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    assert await timed.after(10.0, fetching) == pytest.approx(1.3, abs=0.06)
    assert (await fetching).upstream == "b"
    assert timed.hits(BY_NUMBER) == [1, 1]


async def test_a_winner_whose_data_is_invalid_is_the_one_to_blame_and_the_other_is_asked_after_all(
    million: Record,
) -> None:
    timed = await hedged(million)
    timed.transports[0].takes = slow(NEVER)
    asked: list[str] = []

    async def accept(bodies: BlockBodies) -> str:
        asked.append(bodies.upstream)
        if bodies.upstream == "b":
            timed.transports[0].takes = slow(0.0)
            raise ContentInvalid("count", "not all of it")
        return bodies.upstream

    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, accept))
    await timed.after(10.0, fetching)
    assert await fetching == "a"
    assert asked == ["b", "a"]
    assert [evm.state.distrusted(timed.clock.now()) for evm in timed.evms] == [False, True]


async def test_hedges_are_off_unless_switched_on(million: Record) -> None:
    timed = await hedged(million, on=False)
    timed.transports[0].takes = slow(3.0)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    assert await timed.after(10.0, fetching) == pytest.approx(3.0, abs=0.06)
    assert timed.hits(BY_NUMBER) == [1, 0]


async def test_no_hedge_while_the_nodes_are_in_trouble(million: Record) -> None:
    timed = await hedged(million)
    timed.transports[0].takes = slow(1.0)
    for _ in range(5):
        timed.evms[1].state.note_failure(Part.BLOCK, timed.clock.now())
    await timed.clock.advance(5.0)  # half open
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    await timed.after(10.0, fetching)
    assert timed.hits(BY_NUMBER) == [1, 0]


async def test_a_cancelled_hedge_leaves_nothing_behind(million: Record) -> None:
    timed = await hedged(million)
    for transport in timed.transports:
        transport.takes = slow(NEVER)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    await timed.let(1.0)
    fetching.cancel()
    await asyncio.wait([fetching])
    assert fetching.cancelled()
    assert [transport.cancelled[BY_NUMBER] for transport in timed.transports] == [1, 1]
    assert [evm.connections_held for evm in timed.evms] == [0, 0]


# --- what it may cost -----------------------------------------------------------------------------------------------


def test_hedges_are_one_in_twenty_whatever_happens() -> None:
    hedging = Hedging(RetryBudget())
    made = 0
    for number in range(1, 2001):
        hedging.deposit()
        made += hedging.allowed(float(number))
        assert made <= 0.05 * number
    assert made >= 99
    assert hedging.outcomes["suppressed"] == 2000 - made


def test_no_hedges_with_four_fifths_of_the_retries_spent() -> None:
    retries = RetryBudget()
    hedging = Hedging(retries)
    for _ in range(100):
        hedging.deposit()
    retries.tokens = 0.19 * retries.capacity
    assert not hedging.allowed(0.0)
    retries.tokens = 0.2 * retries.capacity
    assert hedging.allowed(0.0)


def test_slow_is_what_is_slower_than_most_and_never_less_than_the_floor() -> None:
    hedging = Hedging(RetryBudget())
    for _ in range(19):
        hedging.note(1.0)
    assert hedging.delay_s is None
    for _ in range(100):
        hedging.note(0.05)
    assert hedging.delay_s == 1.0
    for _ in range(128):
        hedging.note(0.05)
    assert hedging.delay_s == FLOOR_S


async def test_stalls_of_one_in_fifty_cost_little_more_than_the_delay(million: Record) -> None:
    """With 2 % of fetches stalling the slowest hundredth is three times as fast, at one call in twenty."""
    timed = await hedged(million)
    number = 0

    def takes(method: str, params: list[Any]) -> float:
        nonlocal number
        number += method == BY_NUMBER
        return 3.0 if method == BY_NUMBER and number % 50 == 0 else 0.0

    timed.transports[0].takes = takes
    took = []
    for _ in range(200):
        fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
        took.append(await timed.after(5.0, fetching))
        await fetching
    assert sorted(took)[-3] <= 1.0
    assert timed.hits(BY_NUMBER)[1] <= 10
