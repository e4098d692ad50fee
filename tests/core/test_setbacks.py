"""What failed is left aside, longer each time; an outage is a pause, not a flood; nothing is forgotten on the way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.setbacks import (
    FIRST_WAIT_S,
    LONGEST_PAUSE_S,
    LONGEST_WAIT_S,
    MOST_HEIGHTS,
    OUTAGE_AFTER,
    Setbacks,
)

WIDTH = 12


def out(began_at: float = 0.0) -> Setbacks:
    """Everything fails."""
    setbacks = Setbacks()
    for height in range(OUTAGE_AFTER):
        setbacks.failed(height, began_at, began_at)
    assert setbacks.outage
    return setbacks


def test_one_height_that_fails_is_left_aside_longer_each_time_and_the_others_go_on() -> None:
    setbacks, now, waits = Setbacks(), 0.0, []
    for other in range(100, 115):
        setbacks.failed(7, now, now)
        assert setbacks.not_due(now) == {7}
        setbacks.succeeded(other, now)
        assert setbacks.at_once(WIDTH, now) == WIDTH
        due_at = setbacks.next_at(now)
        assert due_at is not None
        waits.append(due_at - now)
        now = due_at
        assert setbacks.not_due(now) == set()
        assert setbacks.next_at(now) is None
    assert waits[:4] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S, 8 * FIRST_WAIT_S]
    assert waits[-1] == LONGEST_WAIT_S
    setbacks.succeeded(7, now)
    assert len(setbacks) == 0


def test_a_few_failures_in_a_row_are_an_outage_with_one_attempt_between_pauses() -> None:
    setbacks = out()
    assert setbacks.at_once(WIDTH, 0.0) == 0
    assert setbacks.next_at(0.0) == FIRST_WAIT_S
    assert setbacks.at_once(WIDTH, FIRST_WAIT_S) == 1


def test_pauses_grow_while_the_outage_lasts() -> None:
    setbacks, now, pauses = out(), 0.0, []
    for height in range(10, 20):
        until = setbacks.next_at(now)
        assert until is not None
        pauses.append(until - now)
        now = until
        setbacks.failed(height, now, now)
    assert pauses[:4] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S, 8 * FIRST_WAIT_S]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_attempts_that_began_before_the_pause_do_not_lengthen_it() -> None:
    setbacks = Setbacks()
    for height in range(WIDTH):
        setbacks.failed(height, 5.0, 6.0)
    assert setbacks.next_at(6.0) == 6.0 + FIRST_WAIT_S


def test_the_first_success_ends_the_outage_and_nothing_is_left_aside_any_longer() -> None:
    setbacks = out()
    setbacks.succeeded(99, 3.0)
    assert not setbacks.outage
    assert setbacks.at_once(WIDTH, 3.0) == WIDTH
    assert setbacks.not_due(3.0) == set()
    assert setbacks.next_at(3.0) is None
    assert len(setbacks) == OUTAGE_AFTER, "they are still to be done, and fail longer each time if they do"


def test_what_left_the_window_is_forgotten() -> None:
    setbacks = out()
    setbacks.forget(2, 3)
    assert setbacks.not_due(0.0) == {2, 3}


def test_memory_is_bounded_by_trying_no_other() -> None:
    setbacks = Setbacks()
    for height in range(MOST_HEIGHTS):
        assert setbacks.may_try(height)
        setbacks.failed(height, 0.0, 0.0)
    assert not setbacks.may_try(MOST_HEIGHTS)
    assert setbacks.may_try(0)
    setbacks.succeeded(3, 0.0)
    assert setbacks.may_try(MOST_HEIGHTS)


@given(st.lists(st.tuples(st.sampled_from(["fail", "succeed", "wait"]), st.integers(0, 5))))
def test_there_is_always_something_to_try_or_a_moment_to_wait_for(steps: list[tuple[str, int]]) -> None:
    setbacks, now = Setbacks(), 0.0
    for step, number in steps:
        if step == "wait":
            now += number
        elif step == "fail":
            setbacks.failed(number, now, now)
        else:
            setbacks.succeeded(number, now)
        idle = setbacks.at_once(WIDTH, now) == 0 or bool(setbacks.not_due(now))
        at = setbacks.next_at(now)
        assert (at is not None) == idle
        assert at is None or now < at <= now + LONGEST_WAIT_S


def test_repr_is_the_dashboard() -> None:
    assert repr(out()) == "<Setbacks 4 heights aside, 4 failures in a row>"
