"""More at once while nothing waits, fewer while something does, and always at least one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.breadth import CUT, STEP, Breadth


def test_it_begins_with_one_and_widens_while_nothing_waits() -> None:
    breadth = Breadth()
    assert breadth.at_once(12) == 1
    for _ in range(int(1 / STEP)):
        breadth.seen(False, 12)
    assert breadth.at_once(12) == 2
    for _ in range(1000):
        breadth.seen(False, 12)
    assert breadth.at_once(12) == 12
    assert breadth.at_once(3) == 3, "the most may have become less meanwhile"


def test_it_narrows_faster_than_it_widens() -> None:
    breadth = Breadth()
    for _ in range(1000):
        breadth.seen(False, 12)
    breadth.seen(True, 12)
    assert breadth.at_once(12) == int(12 * CUT)
    for _ in range(1000):
        breadth.seen(True, 12)
    assert breadth.at_once(12) == 1
    breadth.seen(False, 12)
    assert repr(breadth) == f"<Breadth {1 + STEP:.2f}>", "it is not long in coming back"


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20))), st.integers(1, 20))
def test_whatever_is_seen_something_is_done_and_not_more_than_may_be(seen: list[tuple[bool, int]], most: int) -> None:
    breadth = Breadth()
    for crowded, limit in seen:
        breadth.seen(crowded, limit)
    assert 1 <= breadth.at_once(most) <= most
