"""The block store: written behind, read tier by tier, in nobody's way when a tier is lost."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.core.breaker import FIRST_PERIOD_S, IN_A_ROW
from app.metrics import Metrics
from app.store.blocks import (
    READ_LIMIT_S,
    BlockStoreRules,
    ChainBlocks,
    PackedBlocks,
    directory_of,
    open_block_store,
)
from app.store.blocks_directory import BlockDirectory
from app.store.blocks_entry import EntryKey, encode_entry
from app.store.blocks_tiers import DISK_THREADS, DirectoryTier
from tests.fakes import ManualClock, settle
from tests.store.tiers import LOST, FakeTier

ONE, TWO, THREE = (bytes([number]) * 32 for number in (1, 2, 3))


def path(block_hash: bytes) -> str:
    return EntryKey(1, block_hash).path


def entry(block_hash: bytes, packed: bytes) -> bytes:
    return encode_entry(EntryKey(1, block_hash), 5, packed)


async def until(true: Callable[[], bool]) -> None:
    """Waits for what other threads have to do first."""
    async with asyncio.timeout(30):
        while not true():
            await settle(1)


class Two:
    """A directory and an object store, both made up, under one store whose clock is moved by hand."""

    def __init__(self, **more: int) -> None:
        self.metrics = Metrics()
        self.clock = ManualClock()
        self.directory = FakeTier("directory")
        self.objects = FakeTier("objects")
        self.store = PackedBlocks(self.metrics, self.directory, self.objects, now=self.clock.now, **more)
        self.chain: ChainBlocks = self.store.of(1, "ethereum")

    def value(self, name: str, **labels: str) -> float:
        self.metrics.exposition(None)
        return self.metrics.registry.get_sample_value(f"copath_block_store_{name}", labels) or 0.0

    def reads(self, tier: str, result: str) -> float:
        return self.value("reads_total", chain="ethereum", tier=tier, result=result)

    def writes(self, tier: str, result: str) -> float:
        return self.value("writes_total", chain="ethereum", tier=tier, result=result)

    @property
    def idle(self) -> bool:
        return self.value("queue_entries") == 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.store.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


@pytest.fixture
async def two() -> Two:
    return Two()


# --- writing and reading --------------------------------------------------------------------------------------------


async def test_what_is_put_is_written_to_both_and_read_back(two: Two) -> None:
    async with two.running():
        two.chain.put(ONE, 5, b"packed")
        await until(lambda: two.idle)
    assert two.directory.entries == two.objects.entries
    assert list(two.objects.entries) == [path(ONE)]
    assert await two.chain.get(ONE) == b"packed"
    assert await two.chain.get(TWO) is None
    assert (two.reads("directory", "hit"), two.reads("directory", "miss"), two.reads("objects", "miss")) == (1, 1, 1)
    assert (two.writes("directory", "ok"), two.writes("objects", "ok")) == (1, 1)
    size = len(two.objects.entries[path(ONE)])
    assert two.value("written_bytes_total", chain="ethereum", tier="objects") == size


async def test_what_still_waits_is_read_from_the_queue(two: Two) -> None:
    two.chain.put(ONE, 5, b"packed")
    assert await two.chain.get(ONE) == b"packed"
    assert two.reads("queue", "hit") == 1
    assert two.directory.calls == two.objects.calls == {}


async def test_chains_do_not_see_each_other(two: Two) -> None:
    two.chain.put(ONE, 5, b"packed")
    assert await two.store.of(2, "other").get(ONE) is None


async def test_what_only_the_object_store_has_is_put_into_the_directory(two: Two) -> None:
    two.objects.entries[path(ONE)] = entry(ONE, b"packed")
    assert await two.chain.get(ONE) == b"packed"
    async with two.running():
        await until(lambda: two.idle)
    assert two.directory.entries == two.objects.entries
    assert (two.objects.calls["write"], two.objects.calls["read"]) == (0, 1)
    assert await two.chain.get(ONE) == b"packed"
    assert two.objects.calls["read"] == 1


async def test_a_block_is_written_once_however_often_it_is_put(two: Two) -> None:
    two.objects.gate.clear()
    async with two.running():
        for _ in range(3):
            two.chain.put(ONE, 5, b"packed")
        await until(lambda: two.objects.calls["write"] == 1)
        two.chain.put(ONE, 5, b"packed")
        two.objects.gate.set()
        await until(lambda: two.idle)
    assert two.objects.calls["write"] == 1


async def test_putting_waits_for_nothing_and_what_finds_no_room_is_counted() -> None:
    two = Two(most_waiting_bytes=250)
    for number in range(5):
        two.chain.put(bytes([number]) * 32, number, bytes(100))
    assert (two.value("queue_entries"), two.value("queue_bytes")) == (2, 200)
    assert two.value("unwritten_total", chain="ethereum") == 3
    async with two.running():
        await until(lambda: two.idle)
        two.chain.put(THREE, 9, bytes(100))
        await until(lambda: two.idle)
    assert two.value("queue_bytes") == 0
    assert two.objects.calls["write"] == 3


async def test_the_directory_is_swept_from_the_start(two: Two) -> None:
    async with two.running():
        await until(lambda: two.directory.sweeps == 1)


# --- what is no good ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (entry(ONE, b"packed")[:-1], "damaged"),
        (entry(ONE, b"packed")[:50] + b"\xff" + entry(ONE, b"packed")[51:], "damaged"),
        (b"", "damaged"),
        (entry(TWO, b"packed"), "foreign"),
    ],
    ids=["cut", "flipped", "empty", "foreign"],
)
async def test_h_what_is_no_good_is_dropped_counted_and_never_served(two: Two, bad: bytes, why: str) -> None:
    two.directory.entries[path(ONE)] = bad
    two.objects.entries[path(ONE)] = bad
    assert await two.chain.get(ONE) is None
    assert two.directory.entries == two.objects.entries == {}
    assert (two.reads("directory", why), two.reads("objects", why)) == (1, 1)
    assert await two.chain.get(ONE) is None
    assert two.reads("directory", "miss") == 1


async def test_h_a_damaged_entry_is_replaced_from_behind(two: Two) -> None:
    two.directory.entries[path(ONE)] = entry(ONE, b"packed")[:-1]
    two.objects.entries[path(ONE)] = entry(ONE, b"packed")
    assert await two.chain.get(ONE) == b"packed"
    async with two.running():
        await until(lambda: two.idle)
    assert two.directory.entries == two.objects.entries


async def test_h_what_the_chain_finds_to_be_forged_is_dropped_everywhere(two: Two) -> None:
    two.objects.entries[path(ONE)] = entry(ONE, b"forged")
    assert await two.chain.get(ONE) == b"forged"  # and waits to be put into the directory
    await two.chain.drop(ONE)
    async with two.running():
        await until(lambda: two.idle)
    assert two.directory.entries == two.objects.entries == {}
    assert two.value("disproved_total", chain="ethereum") == 1
    assert two.value("queue_bytes") == 0


async def test_h_a_block_that_is_dropped_while_it_is_written_does_not_come_back(two: Two) -> None:
    async with two.running():
        two.objects.gate.clear()
        two.chain.put(ONE, 5, b"forged")
        await until(lambda: two.objects.calls["write"] == 1)
        dropping = asyncio.ensure_future(two.chain.drop(ONE))
        await settle()
        two.objects.gate.set()
        await dropping
        await until(lambda: two.idle)
        await until(lambda: two.objects.calls["remove"] == 2)
    assert two.directory.entries == two.objects.entries == {}
    assert await two.chain.get(ONE) is None


# --- tiers that are lost --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [LOST, TimeoutError()], ids=["lost", "slow"])
async def test_a_tier_that_fails_is_as_good_as_empty(two: Two, failing: Exception) -> None:
    two.directory.failing = failing
    two.objects.entries[path(ONE)] = entry(ONE, b"packed")
    assert await two.chain.get(ONE) == b"packed"
    two.objects.failing = failing
    assert await two.chain.get(TWO) is None
    result = "failed" if failing is LOST else "timeout"
    assert (two.reads("directory", result), two.reads("objects", result)) == (2, 1)
    async with two.running():
        two.chain.put(TWO, 5, b"packed")
        await until(lambda: two.idle)
    assert two.writes("directory", result) >= 1
    assert two.writes("objects", result) == 1


async def test_a_tier_that_keeps_failing_is_left_alone_for_a_while(two: Two) -> None:
    two.objects.failing = LOST
    for _ in range(IN_A_ROW + 3):
        assert await two.chain.get(ONE) is None
    assert two.objects.calls["read"] == IN_A_ROW
    assert two.reads("objects", "skipped") == 3
    two.objects.failing = None
    two.objects.entries[path(ONE)] = entry(ONE, b"packed")
    two.clock.move(FIRST_PERIOD_S + 1)
    assert await two.chain.get(ONE) == b"packed"


async def test_writes_that_fail_do_not_keep_from_reading(two: Two) -> None:
    two.objects.entries[path(ONE)] = entry(ONE, b"packed")
    async with two.running():
        two.objects.failing = LOST
        for number in range(10, 10 + IN_A_ROW + 2):
            two.chain.put(bytes([number]) * 32, number, b"packed")
        await until(lambda: two.idle)
        two.objects.failing = None
    assert (two.writes("objects", "failed"), two.writes("objects", "skipped")) == (IN_A_ROW, 2)
    two.directory.entries.clear()
    assert await two.chain.get(ONE) == b"packed"


async def test_a_loss_is_logged_when_it_begins_and_when_it_ends(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    two.objects.failing = LOST
    for _ in range(20):
        await two.chain.get(ONE)
    two.objects.failing = None
    two.clock.move(FIRST_PERIOD_S + 1)
    for _ in range(20):
        await two.chain.get(ONE)
    lines = [(each.levelname, each.message, each.__dict__["tier"], each.__dict__["side"]) for each in caplog.records]
    assert lines == [
        ("WARNING", "block_store_unavailable", "objects", "read"),
        ("INFO", "block_store_back", "objects", "read"),
    ]
    assert caplog.records[0].__dict__["reason"] == "EACCES"


async def test_whether_a_tier_works_can_be_seen(two: Two) -> None:
    assert two.value("up", tier="objects", side="read") == 1
    two.objects.failing = LOST
    await two.chain.get(ONE)
    assert two.value("up", tier="objects", side="read") == 0
    assert two.value("up", tier="objects", side="write") == 1
    assert two.value("up", tier="directory", side="read") == 1


async def test_reading_never_takes_longer_than_its_limit(two: Two) -> None:
    two.clock.drive()
    two.directory.gate.clear()
    reading = asyncio.ensure_future(two.chain.get(ONE))
    await two.clock.advance(READ_LIMIT_S - 0.1)
    assert not reading.done()
    await two.clock.advance(0.2)
    assert await reading is None


# --- the end --------------------------------------------------------------------------------------------------------


async def test_closing_writes_what_waits(two: Two) -> None:
    two.chain.put(ONE, 5, b"packed")
    two.chain.put(TWO, 6, b"packed too")
    await two.store.aclose()
    assert set(two.objects.entries) == {path(ONE), path(TWO)}
    assert (two.directory.closed, two.objects.closed) == (True, True)
    two.chain.put(THREE, 7, b"too late")
    assert two.value("unwritten_total", chain="ethereum") == 1


async def test_what_was_being_written_when_the_store_was_stopped_is_written_by_closing_it(two: Two) -> None:
    two.objects.gate.clear()
    async with two.running():
        two.chain.put(ONE, 5, b"packed")
        await until(lambda: two.objects.calls["write"] == 1)
    two.objects.gate.set()
    await two.store.aclose()
    assert set(two.objects.entries) == {path(ONE)}
    assert two.value("unwritten_total", chain="ethereum") == 0


async def test_closing_does_not_wait_for_ever(two: Two) -> None:
    two.objects.gate.clear()
    two.chain.put(ONE, 5, b"packed")
    await two.store.aclose(limit_s=0.01)
    assert two.value("unwritten_total", chain="ethereum") == 1
    assert (two.value("queue_entries"), two.value("queue_bytes")) == (0, 0)


# --- a real directory -----------------------------------------------------------------------------------------------


def sizes(root: Path) -> list[int]:
    return [file.stat().st_size for file in root.rglob("*") if file.is_file()]


async def closed(store: PackedBlocks, then: Awaitable[bytes | None]) -> bytes | None:
    try:
        return await then
    finally:
        await store.aclose()


async def test_d_a_restart_finds_what_was_put_before(tmp_path: Path) -> None:
    rules = BlockStoreRules(f"file:{tmp_path}/blocks")
    store = open_block_store(rules, Metrics())
    store.of(1, "ethereum").put(ONE, 5, b"packed")
    await store.aclose()
    again = open_block_store(rules, Metrics())
    assert await closed(again, again.of(1, "ethereum").get(ONE)) == b"packed"


async def test_what_is_held_can_be_seen(tmp_path: Path) -> None:
    metrics = Metrics()
    store = open_block_store(BlockStoreRules(f"file:{tmp_path}", max_bytes=300), metrics)
    for number in range(4):
        store.of(1, "ethereum").put(bytes([number]) * 32, number, b"packed")
    await store.aclose()
    metrics.exposition(None)
    entries, size = (metrics.registry.get_sample_value(f"copath_block_store_{name}") for name in ("entries", "bytes"))
    evicted = metrics.registry.get_sample_value("copath_block_store_evictions_total", {"reason": "capacity"})
    files = sizes(tmp_path)
    assert (entries, size) == (len(files), sum(files))
    assert evicted == 4 - len(files)


async def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    directory = DirectoryTier(BlockDirectory(tmp_path, 10**6))
    directory.read_limit_s = 0.05
    metrics = Metrics()
    store = PackedBlocks(metrics, directory)
    (tmp_path / path(ONE)).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / path(ONE))  # opening it takes until somebody writes into it
    try:
        assert await store.of(1, "ethereum").get(ONE) is None
        labels = {"chain": "ethereum", "tier": "directory", "result": "timeout"}
        assert metrics.registry.get_sample_value("copath_block_store_reads_total", labels) == 1
    finally:
        os.close(os.open(tmp_path / path(ONE), os.O_RDWR))
        await store.aclose()


class HeldDirectory(BlockDirectory):
    """A directory in which nothing can be written until `go` is set."""

    go: threading.Event

    def write(self, path: str, entry: bytes) -> None:
        self.go.wait()


async def test_writes_that_hang_do_not_hold_up_reads(tmp_path: Path) -> None:
    BlockDirectory(tmp_path, 10**6).write(path(ONE), entry(ONE, b"packed"))
    directory = HeldDirectory(tmp_path, 10**6)
    directory.go = threading.Event()
    tier = DirectoryTier(directory)
    writing = [asyncio.ensure_future(tier.write(path(TWO), b"")) for _ in range(DISK_THREADS + 1)]
    await settle()
    assert await tier.read(path(ONE)) == entry(ONE, b"packed")
    directory.go.set()
    await asyncio.gather(*writing)
    tier.close()


async def test_a_place_that_cannot_be_written_is_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    metrics = Metrics()
    store = open_block_store(BlockStoreRules(f"file:{tmp_path}/file"), metrics)
    for number in range(4):
        store.of(1, "ethereum").put(bytes([number]) * 32, number, b"packed")
    await store.aclose()
    assert [record.message for record in caplog.records] == ["block_store_unavailable"]
    assert caplog.records[0].__dict__["reason"] in ("EEXIST", "ENOTDIR")
    failed = {"chain": "ethereum", "tier": "directory", "result": "failed"}
    assert metrics.registry.get_sample_value("copath_block_store_writes_total", failed) == 4


@pytest.mark.parametrize(
    ("url", "place"),
    [("file:blocks", "blocks"), ("file:/var/x", "/var/x"), ("file:///var/x", "/var/x"), ("file:a/b", "a/b")],
)
def test_directories_by_url(url: str, place: str) -> None:
    assert directory_of(url) == place


def test_a_host_is_no_directory() -> None:
    with pytest.raises(ValueError, match="names a host"):
        directory_of("file://blocks")
