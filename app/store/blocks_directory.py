"""Entries in a directory, bounded by bytes and by age. Everything here blocks: it is called in threads.

    ROOT/<chain key>/<version>/<first byte of the hash>/<hash>     an entry
    ROOT/writing/<process>-<random>                                one that is being written

An entry appears whole or not at all: it is written aside and renamed into its place. It is not synced to the disk: after a
killed process nothing is missing, and what a machine that loses power takes with it, or leaves half, is found by its checksum
and costs one fetch. When an entry was last used its modification time tells, which reads move forward, not more often
than needed. So nothing has to be remembered but a sum, any number of processes may share a directory, and only a sweep looks at
all entries: when the sum says that there is no room, or when others may have written much meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from app.store.blocks_entry import LARGEST_ENTRY_BYTES

LOW_WATER = 0.9
"""How full a sweep leaves a directory that was too full: it has to pay for the next ones."""

LEFTOVER_S = 60.0
"""What has been in the making for this long was given up: its process died, or its disk hangs. Removing it early does no harm:
the renaming fails, and the block is not kept."""

TOUCH_EVERY_S = 3600.0
_STEP_S = 60.0
_WRITING = "writing"
_CHAIN, _VERSION, _SHARD, _ENTRY = (
    re.compile(pattern, re.ASCII) for pattern in (r"[0-9]+", r"[0-9]+\.[0-9]+", r"[0-9a-f]{2}", r"[0-9a-f]{64}")
)


class TooLarge(Exception):
    """An entry that would fill the directory alone."""


@dataclass(slots=True)
class Swept:
    """What a sweep found and did."""

    held_bytes: int = 0
    entries: int = 0
    evicted: dict[str, int] = field(default_factory=lambda: {"capacity": 0, "age": 0})


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    size_bytes: int
    used_at: float


class BlockDirectory:
    """The entries of one directory, of which there may be several of these in several processes.

    `max_age_s` is how long an entry may lie unused, None for ever; `now` is Unix time. `on_sweep` is told what each sweep did.
    Errors of the system are raised as they are.
    """

    def __init__(
        self,
        root: str | Path,
        max_bytes: int,
        max_age_s: float | None = None,
        *,
        now: Callable[[], float] = time.time,
        on_sweep: Callable[[Swept], None] = lambda swept: None,
    ) -> None:
        self._root = os.fspath(root)
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._now = now
        self._on_sweep = on_sweep
        self._touch_every_s = TOUCH_EVERY_S if max_age_s is None else min(TOUCH_EVERY_S, max_age_s / 4)
        self._lock = threading.Lock()  # of the sums
        self._sweeping = threading.Lock()
        self.held_bytes = 0
        """What lies there, as far as this process knows: exact after a sweep, and between two without what others write."""
        self.entries = 0
        self._unseen_bytes = 0  # written here since the last sweep
        self._patience_bytes = max_bytes // 2

    def __repr__(self) -> str:
        return f"<BlockDirectory {self.entries} entries, {self.held_bytes}/{self._max_bytes} bytes>"

    def read(self, path: str) -> bytes | None:
        """The entry, which now counts as used; None when there is none."""
        try:
            with open(os.path.join(self._root, path), "rb") as file:
                entry = file.read(LARGEST_ENTRY_BYTES + 1)
                used_at = os.fstat(file.fileno()).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None
        if self._now() - used_at > self._touch_every_s:
            with contextlib.suppress(OSError):  # gone meanwhile, or not ours to change: it is only evicted earlier
                os.utime(os.path.join(self._root, path), (self._now(), self._now()))
        return entry

    def write(self, path: str, entry: bytes) -> None:
        """Puts an entry into its place, in place of any that was there. Raises OSError, or `TooLarge`."""
        if len(entry) > self._max_bytes:
            raise TooLarge
        if self.held_bytes + len(entry) > self._max_bytes or self._unseen_bytes >= self._patience_bytes:
            self.sweep(room_bytes=len(entry))
        target = os.path.join(self._root, path)
        aside = os.path.join(self._root, _WRITING, f"{os.getpid()}-{secrets.token_hex(8)}")
        try:
            with _created(aside) as file:
                file.write(entry)
            before_bytes = _size(target)
            self._put(aside, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise
        with self._lock:
            self.held_bytes += len(entry) - (before_bytes or 0)
            self.entries += before_bytes is None
            self._unseen_bytes += len(entry)

    def remove(self, path: str) -> bool:
        """Whether there was an entry, which is now gone."""
        target = os.path.join(self._root, path)
        size_bytes = _size(target)
        try:
            os.unlink(target)
        except (FileNotFoundError, NotADirectoryError):
            return False
        with self._lock:
            self.held_bytes = max(0, self.held_bytes - (size_bytes or 0))
            self.entries = max(0, self.entries - 1)
        return True

    def sweep(self, room_bytes: int = 0) -> None:
        """Looks at every entry: counts them anew, and removes what is too old, then what was used longest ago until there is
        room. Takes a second for some hundred thousand. Another sweep is waited for, and then made all the same."""
        with self._sweeping:
            steps: dict[int, int] = defaultdict(int)  # bytes by when they were last used
            swept = Swept()
            for found in self._found():
                steps[int(found.used_at // _STEP_S)] += found.size_bytes
                swept.held_bytes += found.size_bytes
                swept.entries += 1
            oldest = min(steps, default=0) * _STEP_S
            expires_at = -1.0 if self._max_age_s is None else self._now() - self._max_age_s
            excess_bytes = 0
            if swept.held_bytes + room_bytes > self._max_bytes:
                excess_bytes = swept.held_bytes - max(0, int(LOW_WATER * self._max_bytes) - room_bytes)
            if excess_bytes or oldest < expires_at:
                self._evict(steps, excess_bytes, expires_at, swept)
            with contextlib.suppress(OSError):  # whatever keeps us from tidying up keeps nobody from reading
                self._clear_leftovers()
            with self._lock:
                self.held_bytes, self.entries = swept.held_bytes, swept.entries
                self._unseen_bytes = 0
                # Half of the room, lest several processes fill all of it before one of them looks.
                self._patience_bytes = max((self._max_bytes - swept.held_bytes) // 2, self._max_bytes // 40)
        self._on_sweep(swept)

    def _evict(self, steps: dict[int, int], excess_bytes: int, expires_at: float, swept: Swept) -> None:
        last_step = -1
        remaining_bytes = excess_bytes
        for step in sorted(steps):  # everything of the steps before `last_step` has to go, and some of that one
            if remaining_bytes <= 0:
                break
            last_step = step
            remaining_bytes -= steps[step]
        edge: list[_Found] = []
        freed_bytes = 0
        for found in self._found():
            step = int(found.used_at // _STEP_S)
            if found.used_at < expires_at:
                freed_bytes += self._evict_one(found, "age", swept)
            elif step < last_step:
                freed_bytes += self._evict_one(found, "capacity", swept)
            elif step == last_step:
                edge.append(found)
        for found in sorted(edge, key=lambda each: each.used_at):
            if freed_bytes >= excess_bytes:
                break
            freed_bytes += self._evict_one(found, "capacity", swept)

    def _evict_one(self, found: _Found, reason: str, swept: Swept) -> int:
        try:
            os.unlink(found.path)
            swept.evicted[reason] += 1
        except FileNotFoundError:  # another process was faster
            pass
        swept.held_bytes = max(0, swept.held_bytes - found.size_bytes)
        swept.entries = max(0, swept.entries - 1)
        return found.size_bytes

    def _clear_leftovers(self) -> None:
        for entry in _listed(os.path.join(self._root, _WRITING)):
            with contextlib.suppress(FileNotFoundError):
                if self._now() - entry.stat(follow_symlinks=False).st_mtime > LEFTOVER_S:
                    os.unlink(entry.path)

    def _found(self) -> Iterator[_Found]:
        """Every entry, of every chain and version. What is named otherwise is not ours, and left alone."""
        for chain in _listed(self._root, _CHAIN):
            for version in _listed(chain.path, _VERSION):
                for shard in _listed(version.path, _SHARD):
                    for entry in _listed(shard.path, _ENTRY):
                        with contextlib.suppress(FileNotFoundError):
                            status = entry.stat(follow_symlinks=False)
                            yield _Found(entry.path, status.st_size, status.st_mtime)

    def _put(self, aside: str, target: str) -> None:
        try:
            os.replace(aside, target)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.replace(aside, target)


def _created(path: str) -> BinaryIO:
    try:
        return open(path, "xb")
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "xb")


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _listed(path: str, name: re.Pattern[str] | None = None) -> list[os.DirEntry[str]]:
    """What lies there and is named so; nothing where there is no such directory."""
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if name is None or name.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
