"""The directory of the block store: whole entries or none, within its bounds, with several processes in it."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.store.blocks_directory import LEFTOVER_S, TOUCH_EVERY_S, BlockDirectory, Swept, TooLarge
from app.store.blocks_entry import EntryKey, decode_entry, encode_entry

ROOT = Path(__file__).parents[2]
NOW = 1_800_000_000.0


def path(number: int) -> str:
    return EntryKey(1, number.to_bytes(32, "big")).path


class Opened(BlockDirectory):
    """A directory whose sweeps are kept, under a clock that is moved by hand."""

    def __init__(self, root: Path, max_bytes: int = 1000, max_age_s: float | None = None) -> None:
        self.clock = NOW
        self.sweeps: list[Swept] = []
        self.root = root
        super().__init__(root, max_bytes, max_age_s, now=lambda: self.clock, on_sweep=self.sweeps.append)

    def used(self, number: int, ago_s: float) -> None:
        """Makes an entry look as if it had been used so long ago."""
        os.utime(self.root / path(number), (self.clock - ago_s,) * 2)

    def there(self, *numbers: int) -> list[int]:
        return [number for number in numbers if (self.root / path(number)).exists()]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "blocks")


def test_what_is_written_is_read(opened: Opened) -> None:
    assert opened.read(path(1)) is None
    opened.write(path(1), b"one")
    opened.write(path(2), b"two")
    assert (opened.read(path(1)), opened.read(path(2)), opened.read(path(3))) == (b"one", b"two", None)
    assert (opened.held_bytes, opened.entries) == (6, 2)


def test_an_entry_takes_the_place_of_an_earlier_one(opened: Opened) -> None:
    opened.write(path(1), b"one")
    opened.write(path(1), b"longer")
    assert opened.read(path(1)) == b"longer"
    assert (opened.held_bytes, opened.entries) == (6, 1)


def test_an_entry_can_be_removed(opened: Opened) -> None:
    opened.write(path(1), b"one")
    assert opened.remove(path(1))
    assert not opened.remove(path(1))
    assert opened.read(path(1)) is None
    assert (opened.held_bytes, opened.entries) == (0, 0)


def test_another_process_finds_it(opened: Opened) -> None:
    opened.write(path(1), b"one")
    other = Opened(opened.root)
    assert other.read(path(1)) == b"one"
    other.sweep()
    assert (other.held_bytes, other.entries) == (3, 1)


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_makes_room(opened: Opened) -> None:
    for number, ago_s in ((1, 5000), (2, 9000), (3, 1000), (4, 7000)):
        opened.write(path(number), bytes(240))
        opened.used(number, ago_s)
    opened.write(path(5), bytes(240))
    assert opened.there(1, 2, 3, 4, 5) == [1, 3, 5]
    assert opened.held_bytes == 720
    assert opened.sweeps[-1].evicted == {"capacity": 2, "age": 0}


def test_the_order_holds_within_a_minute_too(opened: Opened) -> None:
    for number in range(4):
        opened.write(path(number), bytes(240))
        opened.used(number, 10 - [2, 0, 3, 1].index(number))
    opened.write(path(5), bytes(240))
    assert opened.there(0, 1, 2, 3, 5) == [1, 3, 5]


def test_reading_counts_as_use(opened: Opened) -> None:
    for number in range(4):
        opened.write(path(number), bytes(240))
        opened.used(number, TOUCH_EVERY_S * (10 - number))
    assert opened.read(path(0)) is not None
    opened.write(path(5), bytes(240))
    assert opened.there(0, 1, 2, 3, 5) == [0, 3, 5]


def test_a_read_does_not_write_each_time(opened: Opened) -> None:
    opened.write(path(1), b"one")
    opened.used(1, TOUCH_EVERY_S - 10)
    before = (opened.root / path(1)).stat().st_mtime
    opened.read(path(1))
    assert (opened.root / path(1)).stat().st_mtime == before


def test_what_is_too_old_goes_although_there_is_room(tmp_path: Path) -> None:
    opened = Opened(tmp_path, max_age_s=86400.0)
    for number, ago_s in ((1, 86000), (2, 87000), (3, 90000)):
        opened.write(path(number), bytes(10))
        opened.used(number, ago_s)
    opened.sweep()
    assert opened.there(1, 2, 3) == [1]
    assert opened.sweeps[-1] == Swept(10, 1, {"capacity": 0, "age": 2})


def test_nobody_looks_at_the_directory_while_there_is_room(tmp_path: Path) -> None:
    opened = Opened(tmp_path, max_bytes=100_000)
    for number in range(40):
        opened.write(path(number), bytes(1000))
    assert opened.sweeps == []


def test_a_full_directory_is_not_looked_at_for_every_entry(tmp_path: Path) -> None:
    opened = Opened(tmp_path, max_bytes=100_000)
    for number in range(400):
        opened.write(path(number), bytes(1000))
        assert opened.held_bytes <= 100_000
    assert 30 < len(opened.sweeps) < 120
    held = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert held == opened.held_bytes
    assert held >= 85_000


def test_a_limit_that_was_lowered_holds_at_once(tmp_path: Path) -> None:
    before = Opened(tmp_path, max_bytes=100_000)
    for number in range(50):
        before.write(path(number), bytes(1000))
    after = Opened(tmp_path, max_bytes=10_000)
    after.sweep()
    assert (after.held_bytes, after.entries) == (9000, 9)
    assert len(after.there(*range(50))) == 9


def test_what_would_fill_it_alone_is_refused(opened: Opened) -> None:
    opened.write(path(1), bytes(500))
    with pytest.raises(TooLarge):
        opened.write(path(2), bytes(1001))
    assert opened.there(1, 2) == [1]


def test_what_another_process_writes_is_seen_before_the_bound_is_far_passed(tmp_path: Path) -> None:
    both = [Opened(tmp_path, max_bytes=100_000) for _ in range(2)]
    largest = 0
    for number in range(300):
        both[number % 2].write(path(number), bytes(1000))
        largest = max(largest, len(both[0].there(*range(number + 1))))
    assert largest <= 105


def test_what_is_not_ours_is_left_alone(opened: Opened) -> None:
    opened.write(path(1), bytes(900))
    strangers = [opened.root / "notes.txt", opened.root / "1" / "readme", (opened.root / path(1)).with_name("x")]
    for stranger in strangers:
        stranger.write_bytes(bytes(5000))
        os.utime(stranger, (0, 0))
    opened.write(path(2), bytes(900))
    assert opened.there(1, 2) == [2]
    assert all(stranger.exists() for stranger in strangers)
    assert opened.held_bytes == 900


# --- writes that fail -----------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path) -> None:
    opened = Opened(tmp_path, max_bytes=10**9)
    opened.write(path(1), b"one")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            opened.write(path(2), bytes(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (opened.read(path(1)), opened.read(path(2))) == (b"one", None)
    assert list((tmp_path / "writing").iterdir()) == []
    assert (opened.held_bytes, opened.entries) == (3, 1)


def test_a_place_that_is_no_directory_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    opened = Opened(tmp_path / "file")
    assert opened.read(path(1)) is None
    with pytest.raises(OSError, match=r"directory|exists"):
        opened.write(path(1), b"one")
    opened.sweep()


# --- processes that die, and many of them ---------------------------------------------------------------------------

WRITER = """
import random, sys
from app.store.blocks_directory import BlockDirectory
from app.store.blocks_entry import EntryKey, decode_entry, encode_entry
root, seed, max_bytes, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(seed)
directory = BlockDirectory(root, max_bytes)
for round in range(rounds):
    key = EntryKey(1, chance.randrange(40).to_bytes(32, "big"))
    entry = directory.read(key.path)
    if entry is not None:
        assert decode_entry(key, entry)[:32] == key.block_hash
    directory.write(key.path, encode_entry(key, 1, key.block_hash + chance.randbytes(chance.randrange(400_000))))
    sys.stdout.write(".")
    sys.stdout.flush()
"""


@pytest.fixture
def writer(tmp_path: Path) -> Callable[[int, int, int], subprocess.Popen[bytes]]:
    def start(seed: int, max_bytes: int, rounds: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(seed), str(max_bytes), str(rounds)]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return start


def whole_entries(root: Path) -> int:
    """How many entries there are; each of them is whole."""
    directory = BlockDirectory(root, 10**9)
    found = 0
    for number in range(40):
        key = EntryKey(1, number.to_bytes(32, "big"))
        entry = directory.read(key.path)
        if entry is not None:
            assert decode_entry(key, entry)[:32] == key.block_hash
            found += 1
    return found


def test_d_processes_killed_while_they_write_leave_no_half_entry(
    tmp_path: Path, writer: Callable[[int, int, int], subprocess.Popen[bytes]]
) -> None:
    chance = random.Random(3)
    for killing in range(3):
        processes = [writer(10 * killing + number, 10**9, 10**6) for number in range(3)]
        for process in processes:
            assert process.stdout is not None
            process.stdout.read(chance.randrange(1, 30))
            process.kill()
        for process in processes:
            process.communicate()
            assert process.returncode == -9
        assert whole_entries(tmp_path) > 0
    later = BlockDirectory(tmp_path, 10**9)
    leftovers = list((tmp_path / "writing").iterdir())
    later.sweep()
    assert list((tmp_path / "writing").iterdir()) == leftovers  # for all that is known they are being written
    for leftover in leftovers:
        os.utime(leftover, (0, 0))
    later.sweep()
    assert list((tmp_path / "writing").iterdir()) == []
    assert later.entries == whole_entries(tmp_path)


def test_leftovers_go_when_they_are_old_enough(opened: Opened) -> None:
    opened.write(path(1), b"one")
    for name, ago_s in (("young", LEFTOVER_S - 5), ("old", LEFTOVER_S + 5)):
        (opened.root / "writing" / name).write_bytes(b"half an entr")
        os.utime(opened.root / "writing" / name, (opened.clock - ago_s,) * 2)
    opened.sweep()
    assert [file.name for file in (opened.root / "writing").iterdir()] == ["young"]
    assert (opened.held_bytes, opened.entries) == (3, 1)


def test_several_processes_write_read_and_evict_in_one_directory(
    tmp_path: Path, writer: Callable[[int, int, int], subprocess.Popen[bytes]]
) -> None:
    max_bytes = 3_000_000
    processes = [writer(100 + number, max_bytes, 60) for number in range(3)]
    for process in processes:
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, b"")
    assert whole_entries(tmp_path) > 0
    after = BlockDirectory(tmp_path, max_bytes)
    after.sweep()
    assert after.held_bytes <= max_bytes


def test_an_entry_made_here_is_one_there() -> None:
    key = EntryKey(1, bytes(32))
    assert decode_entry(key, encode_entry(key, 1, b"packed")) == b"packed"
