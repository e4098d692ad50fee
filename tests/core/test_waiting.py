"""The wait for a height that moves by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.waiting import LONGEST_WAIT_S, REMEMBERED, Waiting


def steady(moves: int = 6, step: int = 10, interval_s: float = 120.0) -> Waiting:
    """Sighted at 100 in the middle of an interval, and then at each move: the last at `100 + moves * step`."""
    pace = Waiting()
    pace.note(100, -interval_s / 2)
    for move in range(1, moves + 1):
        pace.note(100 + move * step, (move - 1) * interval_s)
    return pace


@pytest.mark.parametrize(
    ("height", "wait_s"), [(161, 120.0), (170, 120.0), (171, 240.0), (180, 240.0), (261, 11 * 120.0)]
)
def test_a_height_is_reached_with_the_move_that_covers_it(height: int, wait_s: float) -> None:
    assert steady().wait_s(height, now=600.0) == pytest.approx(wait_s)


def test_what_has_passed_since_the_last_move_is_waited_for_no_more() -> None:
    assert steady().wait_s(161, now=690.0) == pytest.approx(30.0)
    assert steady().wait_s(171, now=690.0) == pytest.approx(150.0)


def test_what_is_late_has_no_time() -> None:
    assert steady().wait_s(161, now=720.0) is None
    assert steady().wait_s(161, now=5000.0) is None


def test_a_far_height_is_not_waited_for_longer_than_makes_sense() -> None:
    assert steady().wait_s(2**64 - 1, now=600.0) == LONGEST_WAIT_S


def test_a_pace_is_known_from_two_whole_moves_on() -> None:
    pace = Waiting()
    assert pace.wait_s(5, 0.0) is None
    for height, now in ((10, 0.0), (20, 50.0)):
        pace.note(height, now)
        assert pace.wait_s(25, now) is None
    pace.note(20, 90.0)
    assert pace.wait_s(25, 90.0) is None, "standing still is no move"
    pace.note(30, 150.0)
    assert pace.wait_s(31, 150.0) == pytest.approx(100.0)


@pytest.mark.parametrize("now_at", [None, 120])
def test_after_a_revert_the_pace_is_taken_anew(now_at: int | None) -> None:
    pace = steady()
    pace.note(now_at, 610.0)
    assert pace.wait_s(171, 610.0) is None
    for height, now in ((130, 700.0), (140, 800.0), (150, 900.0)):
        pace.note(height, now)
    assert pace.wait_s(151, 900.0) == pytest.approx(100.0)


def test_an_older_pace_is_forgotten() -> None:
    pace = steady(interval_s=1000.0)
    for move in range(REMEMBERED + 2):
        pace.note(200 + 10 * move, 10_000.0 + 5.0 * move)
    newest = 200 + 10 * (REMEMBERED + 1)
    assert pace.wait_s(newest + 1, 10_000.0 + 5.0 * (REMEMBERED + 1)) == pytest.approx(5.0)


@given(
    st.lists(st.tuples(st.integers(0, 2**63), st.floats(0, 1e6)), max_size=50),
    st.integers(0, 2**64),
    st.floats(0, 1e6),
)
def test_no_sightings_make_it_fail(sightings: list[tuple[int, float]], height: int, later_s: float) -> None:
    pace, now = Waiting(), 0.0
    for seen, passed in sightings:
        now += passed
        pace.note(seen, now)
    wait_s = pace.wait_s(height, now + later_s)
    assert wait_s is None or 0 < wait_s <= LONGEST_WAIT_S
