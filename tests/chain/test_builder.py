"""Building in worker processes: errors cross as values, lost workers are replaced, permits follow the work."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from app.chain.builder import BREAK_WINDOW_S, CooperativeBuilder, ProcessBuilder
from app.chain.building import open_builder
from app.chain.cpus import usable_cpus
from app.chain.permits import Permits
from app.core import block_building, errors
from app.core.budget import FillBudget
from app.core.provable_block import BuildRequest
from tests import corpus_files
from tests.chain import jobs
from tests.fakes import ManualClock, settle

Echo = ProcessBuilder[Any, str]
ROOT = Path(__file__).parents[2]


def builder(work: Callable[[Any], bytes], processes: int = 1, **more: Any) -> Echo:
    return ProcessBuilder(processes, work, jobs.text, **more)


class Gate:
    """Holds a job that runs in a worker, by named pipes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("started", "go"):
            os.mkfifo(folder / name)

    async def started(self) -> int:
        """The process id of the worker that has begun the job, once one has."""
        return int(await asyncio.to_thread((self.folder / "started").read_text))

    async def release(self, word: str = "built") -> None:
        await asyncio.to_thread((self.folder / "go").write_text, word)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def gone(pids: list[int]) -> bool:
    """Waits until these processes have ended; a process that does not is a failure, told after half a minute."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([handle], [], [], 30.0)[0]:
                return False
        finally:
            os.close(handle)
    return True


# --- work and errors ------------------------------------------------------------------------------------------------


async def test_blocks_are_built_in_another_process() -> None:
    async with builder(jobs.echo) as made:
        pid, word = (await made.build("a")).split()
        assert (made.pids, word) == ([int(pid)], "a")
        assert int(pid) != os.getpid()


async def test_jobs_are_spread_over_all_workers(tmp_path: Path) -> None:
    gates = []
    async with builder(jobs.held, 2) as made:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            gates.append(Gate(tmp_path / name))
        tasks = [asyncio.create_task(made.build(each.folder)) for each in gates]
        assert {await each.started() for each in gates} == set(made.pids)
        assert repr(made) == "<ProcessBuilder 2/2 busy, 0 waiting, 0 breaks>"
        for each in gates:
            await each.release()
        assert await asyncio.gather(*tasks) == ["built", "built"]


async def test_errors_of_the_block_cross_as_they_are() -> None:
    async with builder(jobs.fails) as made:
        with pytest.raises(errors.ContentInvalid) as invalid:
            await made.build("content")
        assert (invalid.value.check, invalid.value.detail) == ("header_hash", "it does not hash to 0x00")
        with pytest.raises(errors.UnsupportedBlockFormat) as permanent:
            await made.build("permanent")
        assert permanent.value.extra == {"fields": 2}
        with pytest.raises(errors.BlockNotReady) as extra:
            await made.build("extra")
        assert (extra.value.retry_after_s, extra.value.extra["block_number"]) == (2.0, 7)


async def test_a_crash_is_an_internal_error_and_the_worker_serves_on(caplog: pytest.LogCaptureFixture) -> None:
    async with builder(jobs.fails) as made:
        before = made.pids
        for kind, trace in (("crash", "two arguments"), ("exit", "SystemExit: 3")):
            caplog.clear()
            with caplog.at_level(logging.ERROR), pytest.raises(errors.Internal):
                await made.build(kind)
            assert trace in caplog.records[0].__dict__["trace"]
        assert (await made.build("next")).endswith("next")
        assert (made.pids, made.breaks) == (before, 0)


async def test_a_job_that_cannot_be_sent_is_an_internal_error_and_the_worker_serves_on() -> None:
    async with builder(jobs.echo) as made:
        with pytest.raises(errors.Internal):
            await made.build(threading.Lock())
        assert (await made.build("next")).endswith("next")


async def test_workers_import_nothing_of_the_web_nor_the_main_module() -> None:
    async with builder(jobs.modules) as made:
        imported = set((await made.build("")).split("\n"))
    assert "app.chain.worker" in imported
    assert not imported & {"fastapi", "starlette", "uvicorn", "pytest", "_pytest", "app.house", "app.chain.chain"}


async def test_a_worker_that_cannot_start_fails_the_start_and_leaves_no_process(tmp_path: Path) -> None:
    made = builder(jobs.echo, 2, initializer=functools.partial(jobs.starts_once, tmp_path / "marker"))
    with pytest.raises(RuntimeError, match="library is missing"):
        await made.__aenter__()
    assert made.pids == []
    with pytest.raises(errors.Draining):
        await made.build("a")


LONG = "d" * 80


@pytest.mark.parametrize("kind", ["long", "missing", "read-only", "a file"])
def test_builders_start_whatever_the_directory_for_temporary_files_is(tmp_path: Path, kind: str) -> None:
    place = tmp_path / LONG if kind == "long" else tmp_path / "place"
    if kind == "a file":
        place.write_text("")
    elif kind != "missing":
        place.mkdir(mode=0o500 if kind == "read-only" else 0o700)
    assert _built_by_a_program("start_method()", TMPDIR=str(place)) == ["forkserver", "built"]
    assert kind not in ("long", "read-only") or list(place.iterdir()) == [], "what was tried is gone again"


def test_without_a_place_for_a_socket_workers_are_spawned() -> None:
    assert _built_by_a_program('start_method(["/proc", "/nowhere"])') == ["spawn", "built"]


def test_workers_are_spawned_once_the_directory_of_the_socket_is_gone() -> None:
    assert _built_by_a_program("(start_method(), shutil.rmtree(util.get_temp_dir()), start_method())[-1]") == [
        "spawn",
        "built",
    ]


def _built_by_a_program(choice: str, **environ: str) -> list[str]:
    """The start method that `choice` takes, and what a worker that was started so does."""
    program = f"""
import shutil
from multiprocessing import util
from app.chain.worker import Worker, start_method
from tests.chain import jobs

if __name__ == "__main__":
    context = {choice}
    worker = Worker(None, context)
    worker.open()
    print(context.get_start_method())
    print(worker.submit(jobs.echo, "built").result()[1].decode().split()[1])
    worker.close()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_at_least_one_process() -> None:
    with pytest.raises(ValueError, match="at least one"):
        builder(jobs.echo, 0)


# --- lost workers ---------------------------------------------------------------------------------------------------


async def test_B60_a_worker_killed_in_a_build_is_replaced_and_the_build_is_tried_again(gate: Gate) -> None:
    breaks: list[int] = []
    async with builder(jobs.held, on_break=lambda: breaks.append(1)) as made:
        task = asyncio.create_task(made.build(gate.folder))
        killed = await gate.started()
        os.kill(killed, signal.SIGKILL)
        assert await gate.started() != killed
        await gate.release()
        assert await task == "built"
        assert (breaks, made.breaks, made.healthy) == ([1], 1, True)


async def test_B60_a_killed_worker_takes_no_job_of_another_with_it(tmp_path: Path) -> None:
    gates = []
    async with builder(jobs.held, 2) as made:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            gates.append(Gate(tmp_path / name))
        tasks = [asyncio.create_task(made.build(each.folder)) for each in gates]
        pids = [await each.started() for each in gates]
        os.kill(pids[0], signal.SIGKILL)
        await gates[0].started()
        assert pids[1] in made.pids
        for each in gates:
            await each.release()
        assert await asyncio.gather(*tasks) == ["built", "built"]
        assert made.breaks == 1


async def test_B60_an_idle_worker_that_was_killed_costs_its_next_caller_nothing_but_the_restart() -> None:
    async with builder(jobs.echo) as made:
        (killed,) = made.pids
        os.kill(killed, signal.SIGKILL)
        assert await asyncio.to_thread(gone, [killed])
        assert (await made.build("a")).endswith(" a")
        assert made.breaks == 1


async def test_B60_a_build_whose_worker_dies_twice_is_refused_and_the_next_one_is_built() -> None:
    async with builder(jobs.fails) as made:
        with pytest.raises(errors.Overloaded) as lost:
            await made.build("die")
        assert lost.value.retriable
        assert made.breaks == 2
        assert (await made.build("next")).endswith("next")


async def test_B60_a_worker_killed_in_the_middle_of_its_result_does_not_leave_its_job_without_an_end() -> None:
    async with builder(jobs.half_a_result) as made:
        with pytest.raises(errors.Overloaded):
            await made.build("half")
        assert (await made.build("next")).endswith("next")


async def test_B60_three_losses_within_a_minute_are_the_end_of_trust() -> None:
    clock = ManualClock()
    async with builder(jobs.fails, now=clock.now) as made:
        for healthy in (True, False):
            assert made.healthy
            with pytest.raises(errors.Overloaded):
                await made.build("die")
            assert made.healthy is healthy
        clock.move(10 * BREAK_WINDOW_S)
        assert (await made.build("next")).endswith("next")
        assert not made.healthy, "once failed, liveness stays failed until the process is replaced"


async def test_B60_losses_far_apart_are_forgiven() -> None:
    clock = ManualClock()
    async with builder(jobs.fails, now=clock.now) as made:
        for _ in range(3):
            with pytest.raises(errors.Overloaded):
                await made.build("die")
            clock.move(BREAK_WINDOW_S)
        assert (made.breaks, made.healthy) == (6, True)


async def test_a_build_that_never_ends_loses_its_worker_and_is_not_tried_again(gate: Gate) -> None:
    clock = ManualClock().drive()
    async with builder(jobs.held, job_limit_s=60.0) as made:
        task = asyncio.create_task(made.build(gate.folder))
        hung = await gate.started()
        await clock.advance(60.0)
        with pytest.raises(errors.Overloaded) as refused:
            await task
        assert refused.value.extra == {"reason": "builder_hung"}
        assert await asyncio.to_thread(gone, [hung])
        task = asyncio.create_task(made.build(gate.folder))
        await gate.started()
        await gate.release()
        assert await task == "built"


# --- permits follow the work ----------------------------------------------------------------------------------------


async def test_F7_a_cancelled_caller_holds_its_permit_until_the_work_has_ended(gate: Gate) -> None:
    permits = Permits(FillBudget(1), ManualClock())

    async def fill() -> None:
        async with permits.hold():
            await made.build(gate.folder)

    async with builder(jobs.held) as made:
        task = asyncio.create_task(fill())
        await gate.started()
        for _ in range(3):
            task.cancel()
            await settle()
        assert (task.done(), permits.budget.running()) == (False, 1)
        await gate.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert permits.budget.running() == 0


async def test_F7_a_timeout_around_a_build_is_a_timeout_after_the_work_has_ended(gate: Gate) -> None:
    clock = ManualClock().drive()

    async def call() -> None:
        async with asyncio.timeout(1.0):
            await made.build(gate.folder)

    async with builder(jobs.held) as made:
        task = asyncio.create_task(call())
        await gate.started()
        await clock.advance(1.0)
        assert not task.done()
        await gate.release()
        with pytest.raises(TimeoutError):
            await task


async def test_a_caller_that_leaves_before_its_job_began_leaves_at_once_and_it_never_runs(
    gate: Gate, tmp_path: Path
) -> None:
    (tmp_path / "never").mkdir()
    async with builder(jobs.held) as made:
        running = asyncio.create_task(made.build(gate.folder))
        await gate.started()
        never = asyncio.create_task(made.build(tmp_path / "never"))
        await settle()
        assert made.waiting == 1
        never.cancel()
        await settle()
        assert never.cancelled()
        again = asyncio.create_task(made.build(gate.folder))
        await gate.release()
        assert await running == "built"
        await gate.started()
        assert made.waiting == 0
        await gate.release()
        assert await again == "built"
    assert not (tmp_path / "never" / "started").exists()


# --- the end --------------------------------------------------------------------------------------------------------


async def test_closing_ends_the_workers_and_tells_whoever_waits(gate: Gate) -> None:
    made = await builder(jobs.held).__aenter__()
    pids = made.pids
    running = asyncio.create_task(made.build(gate.folder))
    await gate.started()
    waiting = asyncio.create_task(made.build(gate.folder))
    await settle()
    await made.aclose()
    assert await asyncio.to_thread(gone, pids)
    for task in (running, waiting):
        with pytest.raises(errors.Draining):
            await task
    with pytest.raises(errors.Draining):
        await made.build(gate.folder)
    assert (made.breaks, made.pids) == (0, [])
    await made.aclose()


def test_a_loop_that_ends_in_the_middle_of_a_build_does_not_hang(gate: Gate) -> None:
    pids: list[int] = []

    async def main() -> None:
        made = await builder(jobs.held).__aenter__()
        asyncio.get_running_loop().create_task(made.build(gate.folder)).add_done_callback(lambda _: None)
        pids.append(await gate.started())

    asyncio.run(main())
    assert gone(pids)


def test_signals_for_the_whole_group_do_not_reach_the_workers() -> None:
    async def main() -> None:
        async with builder(jobs.echo) as made:
            for each in (signal.SIGINT, signal.SIGTERM):
                os.kill(made.pids[0], each)
            assert (await made.build("a")).endswith(" a")
            assert made.breaks == 0

    asyncio.run(main())


PARENT = """
import asyncio, sys
from app.chain.builder import ProcessBuilder
from tests.chain import jobs

async def main():
    async with ProcessBuilder(2, jobs.held, jobs.text) as made:
        asyncio.get_running_loop().create_task(made.build(jobs.Path(sys.argv[1])))
        print(*made.pids, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_workers_do_not_outlive_a_parent_that_was_killed(gate: Gate) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(gate.folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        busy = int((gate.folder / "started").read_text())
        assert busy in pids
        parent.kill()
        assert gone(pids)


PROGRAM = """
import sys
with open(sys.argv[1], "a") as runs:
    print(__name__, file=runs)

if __name__ == "__main__":
    import asyncio
    from app.chain.builder import ProcessBuilder
    from tests.chain import jobs

    async def main():
        async with ProcessBuilder(1, jobs.echo, jobs.text) as made:
            print(await made.build("done"))

    asyncio.run(main())
"""


def test_a_worker_does_not_run_the_program_again(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, tmp_path / "program.py", tmp_path / "runs"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.endswith("done\n")
    assert ended.stderr == ""
    assert (tmp_path / "runs").read_text() == "__main__\n"


def test_it_works_under_uvloop() -> None:
    async def main() -> None:
        async with builder(jobs.fails, 2) as made:
            with pytest.raises(errors.Overloaded):
                await made.build("die")
            words = await asyncio.gather(*(made.build(str(number)) for number in range(20)))
            assert [word.split()[1] for word in words] == [str(number) for number in range(20)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


# --- in a thread of this process ------------------------------------------------------------------------------------


class Slow:
    """Work in a thread that a test can hold."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.running = 0
        self.peak = 0

    def __call__(self, request: str) -> str:
        self.running += 1
        self.peak = max(self.peak, self.running)
        self.begun.set()
        self.go.wait()
        self.running -= 1
        if request == "content":
            raise errors.ContentInvalid("decode", "no JSON")
        if request == "crash":
            raise KeyError(request)
        return request


@pytest.fixture
async def slow() -> AsyncIterator[Slow]:
    work = Slow()
    yield work
    work.go.set()


async def test_without_processes_blocks_are_built_in_one_thread(slow: Slow) -> None:
    async with CooperativeBuilder(slow) as made:
        tasks = [asyncio.create_task(made.build(str(number))) for number in range(5)]
        await asyncio.to_thread(slow.begun.wait)
        assert made.waiting == 4
        slow.go.set()
        assert await asyncio.gather(*tasks) == ["0", "1", "2", "3", "4"]
        assert (slow.peak, made.healthy, made.breaks, made.waiting) == (1, True, 0, 0)


async def test_F7_a_build_in_a_thread_holds_its_permit_until_the_thread_ends(slow: Slow) -> None:
    permits = Permits(FillBudget(2, max_queued=0), ManualClock())

    async def fill(name: str) -> None:
        async with permits.hold():
            await made.build(name)

    async with CooperativeBuilder(slow) as made:
        tasks = [asyncio.create_task(fill(name)) for name in ("running", "queued")]
        await asyncio.to_thread(slow.begun.wait)
        for task in tasks:
            task.cancel()
        await settle()
        assert [task.done() for task in tasks] == [False, True]
        assert permits.budget.running() == 1
        slow.go.set()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert (permits.budget.running(), slow.peak) == (0, 1)


async def test_errors_in_the_thread_are_those_of_a_process(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    slow.go.set()
    async with CooperativeBuilder(slow) as made:
        with pytest.raises(errors.ContentInvalid):
            await made.build("content")
        with pytest.raises(errors.Internal):
            await made.build("crash")
    assert "build_crashed" in caplog.text
    with pytest.raises(errors.Draining):
        await made.build("late")


# --- real blocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [0, 1])
async def test_a_recorded_block_comes_back_as_if_built_here(processes: int) -> None:
    record = corpus_files.load(corpus_files.files("full")[0])
    request = BuildRequest(
        family=corpus_files.family(record),
        chain_id=int(record["chainId"]),
        anchored=True,
        height=int(record["block"]["number"], 16),
        block_hash=None,
        block_json=corpus_files.block_json(record),
        receipts_json=corpus_files.receipts_json(record),
    )
    async with open_builder(processes) as made:
        assert (await made.build(request)).pack() == block_building.build(request).pack()
        assert made.processes == processes


@pytest.mark.parametrize("processes", [0, 1])
async def test_packed_blocks_are_checked_where_blocks_are_built(processes: int) -> None:
    record = corpus_files.recorded("full", "mainnet_1000000")
    request = BuildRequest(
        "ethereum", 1, True, 1_000_000, None, corpus_files.block_json(record), corpus_files.receipts_json(record)
    )
    block = block_building.build(request)
    packed = block.pack()
    async with open_builder(processes) as made:
        assert await made.reopen(packed, block.block_hash) == block
        with pytest.raises(errors.ContentInvalid):
            await made.reopen(packed, bytes(32))
        with pytest.raises(errors.ContentInvalid):
            await made.reopen(packed[:-1], block.block_hash)
        assert await made.build(request) == block


async def test_no_block_at_all_is_invalid_content() -> None:
    nonsense = BuildRequest("ethereum", 1, False, 1, None, b"<html>", None)
    async with open_builder(1) as made:
        with pytest.raises(errors.ContentInvalid):
            await made.build(nonsense)


# --- processors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("affinity", "quotas", "own", "cpus"),
    [
        (8, {}, "0::/\n", 8),
        (8, {"": "max 100000"}, "0::/\n", 8),
        (8, {"": "250000 100000"}, "0::/\n", 2),
        (8, {"": "50000 100000"}, "0::/\n", 1),
        (2, {"": "800000 100000"}, "0::/\n", 2),
        (8, {"pods": "400000 100000", "pods/one": "max 100000"}, "0::/pods/one\n", 4),
        (8, {"pods": "400000 100000", "pods/one": "300000 100000"}, "12:cpu:/x\n0::/pods/one\n", 3),
        (8, {"pods/two": "100000 100000"}, "0::/pods/one\n", 8),
        (8, {"": "nonsense"}, None, 8),
        (8, {"": "100000 0"}, None, 8),
    ],
)
def test_a_quota_counts_and_not_the_machines_size(
    tmp_path: Path, affinity: int, quotas: dict[str, str], own: str | None, cpus: int
) -> None:
    for group, quota in quotas.items():
        (tmp_path / "groups" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / group / "cpu.max").write_text(quota + "\n")
    if own is not None:
        (tmp_path / "own").write_text(own)
    assert usable_cpus(tmp_path / "groups", tmp_path / "own", affinity) == cpus


def test_auto_follows_this_machine() -> None:
    made = open_builder("auto")
    assert made.processes == min(16, usable_cpus())
