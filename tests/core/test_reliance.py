"""A shared place is left alone when it fails, and asked again when it answers."""

from __future__ import annotations

from app.core.reliance import LATE_IN_A_ROW, Reliance


def test_one_failure_is_enough() -> None:
    reliance = Reliance()
    reliance.failed()
    assert reliance.broken
    reliance.answered(1.0)
    assert not reliance.broken


def test_one_late_answer_is_not() -> None:
    reliance = Reliance()
    for _ in range(LATE_IN_A_ROW - 1):
        reliance.late()
    assert not reliance.broken
    reliance.answered(1.0)
    for _ in range(LATE_IN_A_ROW - 1):
        reliance.late()
    assert not reliance.broken
    reliance.late()
    assert reliance.broken
    assert repr(reliance) == "<Reliance left alone>"


def test_what_was_asked_first_and_answered_last_proves_nothing_new() -> None:
    reliance = Reliance()
    reliance.answered(5.0)
    reliance.answered(2.0)
    assert reliance.proved_at == 5.0
