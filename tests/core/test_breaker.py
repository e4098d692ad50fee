"""The circuit breaker: what opens it, what closes it, and that a probe that never ends wedges nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.breaker import Breaker, BreakerState

CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN


def opened(now: float = 100.0) -> Breaker:
    breaker = Breaker()
    for _ in range(5):
        breaker.fail(now)
    assert breaker.state(now) is OPEN
    return breaker


def test_row_01_five_failures_in_a_row_open_it() -> None:
    breaker = Breaker()
    for _ in range(4):
        breaker.fail(0.0)
        assert breaker.admits(0.0)
    breaker.fail(0.0)
    assert (breaker.state(0.0), breaker.admits(0.0)) == (OPEN, False)


def test_half_of_the_outcomes_open_it_once_there_are_ten() -> None:
    breaker = Breaker()
    for number in range(9):
        breaker.fail(0.0) if number % 2 else breaker.succeed(0.0)
        assert breaker.state(0.0) is CLOSED
    breaker.fail(0.0)
    assert breaker.state(0.0) is OPEN


def test_less_than_half_never_opens_it() -> None:
    breaker = Breaker()
    for number in range(200):
        breaker.fail(0.0) if number % 5 in (1, 3) else breaker.succeed(0.0)
    assert breaker.state(0.0) is CLOSED


def test_only_the_last_twenty_outcomes_count() -> None:
    breaker = Breaker()
    for _ in range(100):
        breaker.succeed(0.0)
    for number in range(20):
        assert breaker.state(0.0) is CLOSED
        breaker.fail(0.0) if number % 2 else breaker.succeed(0.0)
    assert breaker.state(0.0) is OPEN


def test_a_probe_is_due_after_five_seconds_and_there_is_one() -> None:
    breaker = opened(100.0)
    assert not breaker.admits(104.9)
    assert breaker.admits(105.0)
    assert breaker.state(105.0) is HALF_OPEN
    breaker.begin(105.0)
    assert not breaker.admits(105.0)
    assert breaker.state(105.0) is HALF_OPEN


def test_a_probe_that_succeeds_closes_it_with_a_clean_slate() -> None:
    breaker = opened(100.0)
    breaker.begin(105.0)
    breaker.succeed(105.0)
    assert breaker.state(105.0) is CLOSED
    for _ in range(4):
        breaker.fail(106.0)
    assert breaker.state(106.0) is CLOSED


def test_a_probe_that_fails_doubles_the_wait_up_to_a_minute() -> None:
    breaker = opened(100.0)
    now, waits = 100.0, []
    for _ in range(6):
        probed_at = now
        while not breaker.admits(probed_at):
            probed_at += 1.0
        waits.append(probed_at - now)
        breaker.begin(probed_at)
        breaker.fail(probed_at)
        now = probed_at
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_U12_the_clock_moves_on_before_the_probe_so_that_one_that_never_ends_delays_and_prevents_nothing() -> None:
    breaker = opened(100.0)
    breaker.begin(105.0)  # cancelled: nobody ever reports
    assert not breaker.admits(109.9)
    assert breaker.admits(110.0)
    breaker.begin(110.0)
    breaker.succeed(110.0)
    assert breaker.state(110.0) is CLOSED


def test_an_answer_to_a_call_from_before_closes_nothing_and_a_failure_of_one_delays_nothing() -> None:
    breaker = opened(100.0)
    breaker.succeed(99.0)
    breaker.fail(103.0)
    assert breaker.state(104.0) is OPEN
    assert breaker.admits(105.0)


def test_an_answer_to_a_call_that_was_made_all_the_same_closes_it() -> None:
    breaker = opened(100.0)
    breaker.begin(101.0)
    breaker.succeed(101.0)
    assert breaker.state(101.0) is CLOSED


@given(
    st.lists(
        st.tuples(st.sampled_from(["begin", "succeed", "fail", "wait"]), st.floats(0.0, 30.0)), min_size=1, max_size=60
    )
)
def test_whatever_happens_a_probe_is_due_within_a_minute(events: list[tuple[str, float]]) -> None:
    breaker, now = Breaker(), 0.0
    for event, number in events:
        if event == "begin":
            breaker.begin(now)
        elif event == "succeed":
            breaker.succeed(now - number)
        elif event == "fail":
            breaker.fail(now)
        else:
            now += number
    assert breaker.admits(now + 60.0)
    assert (breaker.state(now) is CLOSED) == (breaker.opened_at is None)
    assert breaker.state(now) is not OPEN or not breaker.admits(now)
