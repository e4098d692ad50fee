"""When the next anchor may come."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from app.core.anchor_pace import AnchorPace


def pace_of(*came: float, seen_late_s: float = 0.0) -> AnchorPace:
    pace = AnchorPace(seen_late_s)
    pace.note(100, None, 0.0)
    for place, now in enumerate(came):
        pace.note(110 + 10 * place, None, now)
    return pace


def test_nothing_is_known_before_a_gap_was_seen() -> None:
    assert AnchorPace().rests_s(0.0) == 0.0
    assert pace_of().rests_s(5.0) == 0.0
    assert pace_of(50.0).rests_s(51.0) == 0.0


def test_the_next_is_due_after_the_shortest_gap() -> None:
    pace = pace_of(100.0, 220.0, 320.0, 440.0)
    assert pace.rests_s(440.0) == 100.0
    assert pace.rests_s(500.0) == 40.0
    assert pace.rests_s(600.0) == 0.0


def test_what_stays_the_same_is_no_anchor() -> None:
    pace = pace_of(100.0, 220.0)
    pace.note(120, None, 230.0)
    assert pace.rests_s(230.0) == 110.0


def test_a_checkpoint_is_an_anchor_too() -> None:
    pace = pace_of(100.0, 220.0)
    pace.note(120, 120, 230.0)
    assert pace.rests_s(230.0) == 10.0


def test_what_is_seen_late_may_be_there_earlier() -> None:
    pace = pace_of(100.0, 220.0, seen_late_s=5.0)
    assert pace.rests_s(220.0) == 110.0
    assert pace.rests_s(331.0) == 0.0


def test_anchors_that_are_taken_back_start_it_again() -> None:
    pace = pace_of(100.0, 220.0)
    pace.note(100, None, 230.0)
    assert pace.rests_s(230.0) == 0.0
    pace.note(110, None, 300.0)
    assert pace.rests_s(300.0) == 0.0


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50), st.integers(0, 10))
def test_no_anchor_that_comes_at_the_old_pace_comes_while_it_rests(gaps: list[int], late_s: int) -> None:
    pace, now = AnchorPace(late_s), 0.0
    pace.note(0, None, now)
    for place, gap in enumerate(gaps):
        now += gap
        pace.note(place + 1, None, now)
        assert now + pace.rests_s(now) <= now + min(gaps[1 : place + 1], default=math.inf)
