"""Shutdown: which signals lead where, and with which exit code a process ends."""

from __future__ import annotations

import itertools

import pytest

from app.core.shutdown import Phase, Shutdown


def begun(now: float = 0.0, *, patient: bool = True) -> Shutdown:
    shutdown = Shutdown(lame_duck_s=10, drain_s=125, ending_s=5)
    shutdown.signal(now, patient=patient)
    return shutdown


def ending() -> Shutdown:
    shutdown = begun(patient=False)
    shutdown.advance(0, in_flight=False)
    assert shutdown.advance(0, in_flight=False) is Phase.ENDING
    return shutdown


def test_nothing_happens_without_a_signal() -> None:
    shutdown = Shutdown(10, 125, 5)
    assert shutdown.advance(1e9, in_flight=False) is Phase.RUNNING
    assert shutdown.exit_code is None


def test_one_phase_after_the_other() -> None:
    shutdown = begun(now=100)
    assert shutdown.advance(109.9, in_flight=False) is Phase.LAME_DUCK
    assert shutdown.advance(110, in_flight=True) is Phase.DRAINING
    assert shutdown.advance(120, in_flight=True) is Phase.DRAINING
    assert shutdown.advance(121, in_flight=False) is Phase.ENDING
    assert (shutdown.cut, shutdown.exit_code) == (False, None)
    shutdown.finish()
    assert (shutdown.phase, shutdown.exit_code) == (Phase.ENDED, 0)


def test_the_doors_close_before_what_is_behind_them_even_when_nothing_is_in_flight() -> None:
    shutdown = begun(patient=False)
    assert shutdown.advance(0, in_flight=False) is Phase.DRAINING
    assert shutdown.advance(0, in_flight=False) is Phase.ENDING


def test_the_drain_has_its_own_time_from_the_end_of_the_lame_duck() -> None:
    shutdown = begun(now=0)
    shutdown.advance(50, in_flight=True)  # noticed late
    assert shutdown.advance(174.9, in_flight=True) is Phase.DRAINING
    assert shutdown.advance(175, in_flight=True) is Phase.ENDING
    assert shutdown.cut
    shutdown.finish()
    assert shutdown.exit_code == 0


def test_an_impatient_signal_has_no_lame_duck() -> None:
    assert begun(now=7, patient=False).advance(7, in_flight=True) is Phase.DRAINING


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_Q3_a_second_signal_forces_the_end_in_every_phase(turns: int) -> None:
    shutdown = begun(patient=False)
    for _ in range(turns):
        shutdown.advance(0, in_flight=False)
    shutdown.signal(0.1, patient=True)
    assert shutdown.exit_code == 1


def test_ending_that_takes_too_long_is_forced() -> None:
    shutdown = ending()
    shutdown.advance(4.9, in_flight=False)
    assert shutdown.exit_code is None
    shutdown.advance(5, in_flight=False)
    assert shutdown.exit_code == 1


def test_Q4_ended_and_signalled_in_the_same_moment_is_ended_in_every_order() -> None:
    for order in itertools.permutations(["finish", "signal", "signal again", "advance"]):
        shutdown = ending()
        for event in order:
            if event == "finish":
                shutdown.finish()
            elif event == "advance":
                shutdown.advance(5, in_flight=True)
            else:
                shutdown.signal(0, patient=True)
        assert shutdown.exit_code == 0, order


@pytest.mark.parametrize("turns", [0, 1])
def test_nothing_ends_before_it_was_drained(turns: int) -> None:
    shutdown = begun(patient=False)
    for _ in range(turns):
        shutdown.advance(0, in_flight=True)
    with pytest.raises(RuntimeError, match="while"):
        shutdown.finish()


@pytest.mark.parametrize("times", [(-1, 1, 1), (0, 0, 1), (0, 1, 0)])
def test_times_must_make_sense(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Shutdown(*times)
