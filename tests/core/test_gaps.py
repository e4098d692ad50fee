"""Which heights are filled next, against a model that is a plain set of heights."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.core.gaps import Backlog, Heights, Window

HEIGHTS = st.integers(0, 40)
SPANS = st.tuples(HEIGHTS, HEIGHTS)


def spelled(heights: set[int]) -> list[tuple[int, int]]:
    """A set of heights as the fewest intervals."""
    intervals: list[tuple[int, int]] = []
    for height in sorted(heights):
        if intervals and intervals[-1][1] == height - 1:
            intervals[-1] = (intervals[-1][0], height)
        else:
            intervals.append((height, height))
    return intervals


@given(st.lists(st.tuples(st.booleans(), SPANS)), SPANS)
def test_intervals_are_a_set_of_heights(changes: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]) -> None:
    heights, model = Heights(), set[int]()
    for adds, (first, last) in changes:
        span = range(first, last + 1)
        if adds:
            heights.add(first, last)
            model |= set(span)
        else:
            heights.remove(first, last)
            model -= set(span)
        assert list(heights) == spelled(model)
    assert len(heights) == len(spelled(model))
    assert [height in heights for height in range(42)] == [height in model for height in range(42)]
    assert (heights.lowest, heights.highest) == (min(model, default=None), max(model, default=None))
    low, high = asked
    within = range(low, high + 1)
    assert heights.count(low, high) == len(model.intersection(within))
    assert heights.newest_missing(low, high) == max((each for each in within if each not in model), default=None)


def test_intervals_that_touch_are_one() -> None:
    heights = Heights([(1, 3), (5, 9), (4, 4)])
    assert list(heights) == [(1, 9)]
    assert repr(heights) == "<Heights 1-9>"


def filled(backlog: Backlog, number: int) -> list[int]:
    """The next heights, each done as soon as it was named."""
    named = []
    for _ in range(number):
        height = backlog.next()
        if height is None:
            break
        backlog.note(height)
        named.append(height)
    return named


def test_newest_first_down_to_the_end_of_the_window() -> None:
    backlog = Backlog(5)
    assert backlog.next() is None
    assert backlog.advance(100) is None
    assert backlog.window == Window(96, 100)
    assert filled(backlog, 9) == [100, 99, 98, 97, 96]
    assert (backlog.remaining, backlog.cursor) == (0, 96)


def test_what_became_final_meanwhile_goes_before_what_is_older() -> None:
    backlog = Backlog(10)
    backlog.advance(100)
    assert filled(backlog, 2) == [100, 99]
    backlog.advance(102)
    assert filled(backlog, 3) == [102, 101, 98]
    assert backlog.window == Window(93, 102)


def test_without_a_retention_the_window_reaches_down_to_the_floor() -> None:
    backlog = Backlog()
    backlog.advance(7)
    assert backlog.window == Window(0, 7)
    backlog.advance(7, floor=5)
    assert filled(backlog, 9) == [7, 6, 5]
    backlog.advance(7)
    assert filled(backlog, 9) == [4, 3, 2, 1, 0], "a floor that is taken away leaves a gap to fill"


def test_skipped_heights_are_passed_over_and_stay_missing() -> None:
    backlog = Backlog(4)
    backlog.advance(10)
    assert backlog.next({10, 9}) == 8
    assert backlog.next({10, 9, 8, 7}) is None
    assert backlog.next() == 10
    assert backlog.remaining == 4


def test_room_narrows_the_window_and_what_is_let_go_is_not_filled_again() -> None:
    backlog = Backlog(100)
    backlog.advance(1000)
    assert filled(backlog, 20)[-1] == 981
    assert backlog.advance(1000, room=15) == Window(981, 985)
    assert backlog.window == Window(986, 1000)
    assert backlog.advance(1000, room=100) is None
    assert (backlog.window, backlog.remaining) == (Window(986, 1000), 0), "filled and evicted in turn"
    assert backlog.advance(1010, room=20) == Window(986, 990)
    assert backlog.advance(1015, room=100) is None
    assert backlog.window == Window(991, 1015), "it widens as the finalized height moves on"


def test_a_narrow_window_that_let_nothing_go_widens_again() -> None:
    backlog = Backlog(100)
    assert backlog.advance(1000, room=5) is None
    filled(backlog, 3)
    assert backlog.advance(1000, room=50) is None
    assert backlog.window == Window(951, 1000)


@pytest.mark.parametrize("room", [0, 1, 9, 10])
def test_however_little_room_there_is_the_roots_between_two_anchors_fit(room: int) -> None:
    backlog = Backlog(100, fewest=10)
    backlog.advance(1000, room=room)
    assert backlog.window == Window(991, 1000)


def test_the_retention_is_a_limit_though_there_is_room_and_less_than_an_interval() -> None:
    backlog = Backlog(3, fewest=10)
    backlog.advance(1000, room=500)
    assert backlog.window == Window(998, 1000)


def test_P7_a_reorg_below_the_cursor_moves_it_back() -> None:
    backlog = Backlog(10)
    backlog.advance(100)
    filled(backlog, 5)
    backlog.reopen_from(98)
    assert (backlog.remaining, backlog.next()) == (8, 100)
    assert filled(backlog, 4) == [100, 99, 98, 95]
    backlog.reopen_from(90)
    assert (backlog.cursor, backlog.remaining) == (None, 10)


def test_a_finalized_height_that_is_told_lower_than_before_changes_nothing() -> None:
    backlog = Backlog(10)
    backlog.advance(100)
    backlog.advance(50)
    assert backlog.window == Window(91, 100)


def test_what_is_remembered_from_before_is_not_filled_again() -> None:
    backlog = Backlog(10)
    backlog.restore([(80, 93), (97, 99), (150, 160)])
    backlog.advance(100)
    assert filled(backlog, 20) == [100, 96, 95, 94]
    backlog.note(80)
    assert backlog.cursor == 91, "nothing is remembered of heights below the window"


def test_repr_is_the_dashboard() -> None:
    backlog = Backlog(4)
    backlog.advance(10)
    filled(backlog, 1)
    assert repr(backlog) == "<Backlog [7, 10] 3 remaining, done <Heights 10-10>>"


class AnyOrder(RuleBasedStateMachine):
    """The model remembers every height it ever saw."""

    def __init__(self) -> None:
        super().__init__()
        self.retention, self.fewest = 12, 3
        self.backlog = Backlog(self.retention, fewest=self.fewest)
        self.finalized = -1
        self.done = set[int]()
        self.gone = set[int]()

    @rule(more=st.integers(0, 5), room=st.none() | st.integers(0, 15), floor=st.integers(0, 6))
    def advance(self, more: int, room: int | None, floor: int) -> None:
        self.finalized += more
        let_go = self.backlog.advance(self.finalized, room=room, floor=floor)
        wanted = range(max(floor, self.finalized - self.retention + 1, 0), self.finalized + 1)
        fitting = self.finalized - (self.retention if room is None else max(room, self.fewest)) + 1
        if let_go is not None:
            dropped = set(range(let_go.low, let_go.high + 1))
            assert self.done & dropped, "nothing is let go that was not there"
            assert let_go.high == fitting - 1
            self.gone = set(range(let_go.high + 1))
        self.allowed = {each for each in wanted if each not in self.gone}
        window = self.backlog.window
        expected = {each for each in self.allowed if each >= fitting}
        assert set(range(window.low, window.high + 1)) == expected
        self.done &= expected

    @precondition(lambda self: self.backlog.next() is not None)
    @rule(data=st.data())
    def fill(self, data: Any) -> None:
        window = self.backlog.window
        missing = sorted(set(range(window.low, window.high + 1)) - self.done, reverse=True)
        skipped = data.draw(st.sets(st.sampled_from(missing), max_size=3))
        left = [height for height in missing if height not in skipped]
        height = self.backlog.next(skipped)
        assert height == (left[0] if left else None)
        if height is not None:
            assert height not in self.gone
            self.backlog.note(height)
            self.done.add(height)

    @rule(height=st.integers(0, 40))
    def reopen(self, height: int) -> None:
        self.backlog.reopen_from(height)
        self.done = {each for each in self.done if each < height}

    @rule(height=st.integers(0, 60))
    def note_anything(self, height: int) -> None:
        self.backlog.note(height)
        if self.backlog.window.low <= height <= self.backlog.window.high:
            self.done.add(height)

    @invariant()
    def agrees(self) -> None:
        window = self.backlog.window
        assert self.backlog.remaining == window.size - len(self.done)
        assert self.backlog.cursor == min(self.done, default=None)
        assert [height in self.backlog for height in range(60)] == [height in self.done for height in range(60)]
        assert window.high == self.finalized, "P7: never ahead of finality"

    @invariant()
    def memory_is_bounded_by_the_window(self) -> None:
        assert len(self.backlog._done) <= (self.retention + 1) // 2 + 1


TestAnyOrderOfEvents = AnyOrder.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
