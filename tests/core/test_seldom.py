"""Lines that are written once a minute, however often there would be reason to."""

from __future__ import annotations

from app.core.seldom import EVERY_S, MOST, Seldom, Told


def test_the_first_time_is_said_and_then_once_a_minute_with_how_often_it_was_not() -> None:
    seldom = Seldom()
    assert seldom.due("a", 0.0) == 0
    assert [seldom.due("a", at) for at in (1.0, 2.0, EVERY_S - 0.1)] == [None] * 3
    assert seldom.due("a", EVERY_S) == 3
    assert seldom.due("a", EVERY_S + 1.0) is None


def test_different_things_are_said_beside_each_other() -> None:
    seldom = Seldom()
    assert [seldom.due(what, 0.0) for what in ("a", "b", "a")] == [0, 0, None]


def test_what_is_remembered_is_bounded() -> None:
    seldom = Seldom()
    for number in range(3 * MOST):
        assert seldom.due(number, 0.0) == 0
    assert len(seldom._said) == MOST


def test_changes_are_said_when_they_come() -> None:
    told = Told()
    assert [
        told.changed("a", is_so, at) for is_so, at in ((False, 0.0), (True, 1.0), (True, 100.0), (False, 200.0))
    ] == [
        False,
        True,
        False,
        True,
    ]


def test_what_flaps_is_said_once_a_minute_and_is_true_in_the_end() -> None:
    told = Told()
    said = [(at, at % 2 == 0) for at in range(300) if told.changed("a", at % 2 == 0, float(at))]
    assert len(said) <= 300 / EVERY_S + 1
    last = said[-1][1]
    assert told.changed("a", not last, 400.0), "and stays so"
    assert not told.changed("a", not last, 1000.0)
