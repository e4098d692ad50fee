"""Whether somebody else used the machine while something was measured: known where there is a /proc to read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

DISTURBED = 0.1
"""More of the processors than this in the hands of others, and the run is made again."""
TRIES = 3
PATIENCE_S, LOOK_S = 10.0, 0.25
"""How long a run waits for others to end what they do, and how long it looks whether they have."""


def undisturbed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of a run during which others used next to nothing, or, where there is none, of the least disturbed of a few;
    and which share of the processors others used meanwhile."""
    runs: list[tuple[T, float]] = []
    while len(runs) < TRIES and (not runs or runs[-1][1] > DISTURBED):
        _wait_for_quiet()
        runs.append(_beside_others(work))
    return min(runs, key=lambda run: run[1])


def _wait_for_quiet() -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_at and _beside_others(lambda: time.sleep(LOOK_S))[1] > DISTURBED:
        pass


def _beside_others(work: Callable[[], T]) -> tuple[T, float]:
    others, began = _others_s(), time.monotonic()
    result = work()
    share = (_others_s() - others) / (time.monotonic() - began) / (os.cpu_count() or 1)
    return result, max(0.0, share)


def _others_s() -> float:
    """Processor seconds so far of all processes outside of our group; 0 where nobody tells."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, *rest = (int(field) for field in fields)
    ours = sum(_used(Path(entry.path)) for entry in os.scandir("/proc") if entry.name.isdigit())
    return (user + nice + system + sum(rest[:3]) - ours) / os.sysconf("SC_CLK_TCK")


def _used(process: Path) -> int:
    """Ticks of a process of our group, and of its children that have ended."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has just ended: its parent has its ticks
        return 0
    return sum(int(field) for field in fields[11:15]) if int(fields[2]) == os.getpgrp() else 0
