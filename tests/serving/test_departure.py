"""Signals in this very process: which of them end it, and which come too late to matter."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from app.core.shutdown import Phase, Shutdown
from app.house import CannotStart
from app.serving import serve
from app.serving.departure import HANDLED, Departure
from app.settings import load_settings


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those of the test run, afterwards as before."""
    before = {each: signal.getsignal(each) for each in HANDLED}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


class Process:
    """What a departure would end."""

    def __init__(self) -> None:
        self.left_with: list[int] = []
        self.left = threading.Event()
        self.shutdown = Shutdown(lame_duck_s=60, drain_s=60, ending_s=60)
        self.departure = Departure(self.shutdown, leave=self._leave)

    def _leave(self, code: int) -> None:
        self.left_with.append(code)
        self.left.set()

    async def come_to_an_end(self) -> None:
        """The first signal, the drain, and everything that is to end."""
        signal.raise_signal(signal.SIGINT)
        assert await self.departure.first_signal() == "SIGINT"
        await self.departure.reach(Phase.ENDING, lambda: False)


@pytest.mark.parametrize("signal_first", [True, False])
async def test_Q4_ended_and_signalled_in_the_same_turn_is_ended(
    signal_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.serving.departure.TURN_S", 0)
    for turn in range(200):
        process = Process()
        with process.departure.owning_signals():
            await process.come_to_an_end()
            if signal_first:
                signal.raise_signal(signal.SIGTERM)
            process.departure.finish()
            if not signal_first:
                signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert (process.shutdown.exit_code, process.left_with) == (0, []), turn


async def test_Q4_a_signal_after_the_end_does_not_change_the_exit_code() -> None:
    process = Process()
    with process.departure.owning_signals():
        await process.come_to_an_end()
        process.departure.finish()
    assert [signal.getsignal(each) for each in HANDLED] == [signal.SIG_IGN, signal.SIG_IGN]


async def test_Q3_a_second_signal_while_it_ends_ends_it_now() -> None:
    process = Process()
    with process.departure.owning_signals():
        await process.come_to_an_end()
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        assert process.left_with == [1]
        for watch in [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]:
            await asyncio.to_thread(watch.join)
    assert process.left_with == [1], "once, though the thread looked as well"


async def test_Q3_a_second_signal_ends_a_process_whose_loop_is_stuck() -> None:
    process = Process()
    with process.departure.owning_signals():
        signal.raise_signal(signal.SIGTERM)
        await process.departure.first_signal()
        signal.raise_signal(signal.SIGTERM)
        assert process.left.wait(30), "this blocks the loop"
    assert process.left_with == [1]


async def test_what_does_not_end_in_time_is_ended() -> None:
    process = Process()
    shutdown = process.shutdown = Shutdown(lame_duck_s=0, drain_s=60, ending_s=0.05)
    departure = Departure(shutdown, leave=process._leave)
    with departure.owning_signals():
        signal.raise_signal(signal.SIGTERM)
        await departure.reach(Phase.ENDING, lambda: False)
        departure.watch_the_end(0.05)
        await asyncio.to_thread(process.left.wait, 30)
    assert process.left_with == [1]


async def test_there_is_a_lame_duck_for_sigterm_once_somebody_was_told() -> None:
    for told, number, patient in (
        (True, signal.SIGTERM, True),
        (True, signal.SIGINT, False),
        (False, signal.SIGTERM, False),
    ):
        process = Process()
        process.departure.somebody_must_be_told = told
        with process.departure.owning_signals():
            signal.raise_signal(number)
        phase = process.shutdown.advance(time.monotonic(), in_flight=True)
        assert phase is (Phase.LAME_DUCK if patient else Phase.DRAINING)


async def test_handlers_are_given_back_when_nothing_ended() -> None:
    before = [signal.getsignal(each) for each in HANDLED]
    with Process().departure.owning_signals():
        assert [signal.getsignal(each) for each in HANDLED] != before
    assert [signal.getsignal(each) for each in HANDLED] == before


def test_Q5_without_handlers_it_does_not_start() -> None:
    flags = {"eth_rpc_url": "http://127.0.0.1:1", "bind_port": "0"}
    settings = load_settings(None, {}, flags).settings
    refusals: list[str] = []

    def start() -> None:  # Python installs handlers in the main thread alone
        try:
            serve(settings, is_demo=False)
        except CannotStart as refusal:
            refusals.append(str(refusal))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert len(refusals) == 1
    assert refusals[0].startswith("SIGTERM and SIGINT cannot be handled: ")
