"""Threads that block in place of the event loop: whoever waits for one gives up in time, and a disk that hangs keeps nothing."""

from __future__ import annotations

import asyncio
import threading

import pytest

from app.store.blocks_threads import MOST_WAITING, Threads
from tests.fakes import settle


async def test_what_the_work_returns_or_raises_comes_back() -> None:
    threads = Threads("tried", 2)
    assert await threads.run(threading.current_thread, 30.0) is not threading.current_thread()

    def fails() -> None:
        raise KeyError("as it is")

    with pytest.raises(KeyError, match="as it is"):
        await threads.run(fails, 30.0)
    threads.close()


async def test_work_that_hangs_is_given_up_and_what_nobody_waits_for_is_not_begun() -> None:
    threads = Threads("tried", 1)
    go, begun = threading.Event(), []
    with pytest.raises(TimeoutError):
        await threads.run(go.wait, 0.01)
    with pytest.raises(TimeoutError):
        await threads.run(lambda: begun.append("late"), 0.01)
    go.set()
    assert await threads.run(lambda: "next", 30.0) == "next"
    assert begun == []
    threads.close()


async def test_when_too_much_waits_nobody_more_is_let_in() -> None:
    threads = Threads("tried", 1)
    go, running = threading.Event(), threading.Event()

    def hang() -> None:
        running.set()
        go.wait()

    waiting = [asyncio.ensure_future(threads.run(hang, 30.0))]
    await asyncio.to_thread(running.wait)
    waiting += [asyncio.ensure_future(threads.run(lambda: None, 30.0)) for _ in range(MOST_WAITING)]
    await settle()
    with pytest.raises(TimeoutError):
        await threads.run(lambda: None, 30.0)
    go.set()
    await asyncio.gather(*waiting)
    threads.close()


async def test_closing_lets_what_waits_be_done() -> None:
    threads = Threads("tried", 1)
    done = asyncio.ensure_future(threads.run(lambda: "done", 30.0))
    await settle(1)
    threads.close()
    assert await done == "done"


def test_a_hung_thread_does_not_outlive_its_loop() -> None:
    threads, go = Threads("tried", 1), threading.Event()

    async def hang() -> None:
        with pytest.raises(TimeoutError):
            await threads.run(go.wait, 0.01)

    asyncio.run(hang())  # returns, although the thread hangs
    hung = [thread for thread in threading.enumerate() if thread.name == "tried-0"]
    assert all(thread.daemon for thread in hung)
    go.set()
    for thread in hung:
        threads.close()
        thread.join()
