"""Pauses and the retry budget."""

from __future__ import annotations

from app.core.deadlines import capped_s, deadline, remaining_s
from app.upstream.retries import Patience, RetryBudget
from tests.upstream.conftest import HandClock


def test_the_budget_allows_a_few_retries_a_second_and_a_tenth_of_the_calls() -> None:
    budget = RetryBudget(capacity=30.0, tokens=30.0)
    assert sum(budget.take(0.0) for _ in range(100)) == 30
    assert sum(budget.take(1.0) for _ in range(100)) == 3
    for _ in range(100):
        budget.deposit()
    # Fractions add up to a hair less than ten.
    assert sum(budget.take(1.0) for _ in range(100)) in (9, 10)


def test_the_budget_does_not_grow_beyond_its_capacity_nor_by_a_clock_that_goes_back() -> None:
    budget = RetryBudget()
    assert budget.take(0.0)
    assert sum(budget.take(10_000.0) for _ in range(100)) == 30
    assert not budget.take(0.0)
    assert not budget.take(10_000.0)


async def test_pauses_differ_by_up_to_a_quarter() -> None:
    for chance, paused in ((0.0, 0.75), (0.5, 1.0), (1.0, 1.25)):
        clock = HandClock()
        assert await Patience(clock.pause, clock.now, lambda chance=chance: chance).wait(1.0)  # type: ignore[misc]
        assert clock.pauses == [paused]


async def test_a_pause_leaves_time_to_ask_again_or_is_not_made() -> None:
    clock = HandClock()
    patience = Patience(clock.pause, clock.now, lambda: 0.5)
    token = deadline.set(clock.now() + 1.0)
    try:
        assert await patience.wait(5.0)
        assert clock.pauses == [0.8]
        assert not await patience.wait(5.0)
    finally:
        deadline.reset(token)


async def test_a_whole_pause_is_made_in_full_or_not_at_all() -> None:
    clock = HandClock()
    patience = Patience(clock.pause, clock.now, lambda: 0.0)
    token = deadline.set(clock.now() + 1.0)
    try:
        assert not await patience.wait(0.9, whole=True)
        assert await patience.wait(0.7, whole=True)
    finally:
        deadline.reset(token)
    assert clock.pauses == [0.7]


def test_what_is_left_of_a_deadline() -> None:
    assert remaining_s(5.0) is None
    assert capped_s(3.0, 5.0) == 3.0
    token = deadline.set(7.0)
    try:
        assert remaining_s(5.0) == 2.0
        assert capped_s(3.0, 5.0) == 2.0
        assert remaining_s(9.0) == 0.0
        assert capped_s(3.0, 9.0) == 0.0
    finally:
        deadline.reset(token)
