"""How many processors this process may really use: a container's quota counts, not the machine's size."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cpus(
    groups: Path = Path("/sys/fs/cgroup"), own_group: Path = Path("/proc/self/cgroup"), affinity: int | None = None
) -> int:
    """At least 1: the smaller of the affinity and the tightest CPU quota of the control groups this process is in.

    Quotas are those of cgroup v2: https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files. A fraction is
    rounded down, but for the first processor.
    """
    cpus = float(len(os.sched_getaffinity(0)) if affinity is None else affinity)
    for folder in _own_folders(groups, own_group):
        quota = _quota(folder / "cpu.max")
        if quota is not None:
            cpus = min(cpus, quota)
    return max(1, int(cpus))


def _own_folders(groups: Path, own_group: Path) -> list[Path]:
    """The folder of this process's group and all above it: a quota anywhere on the way binds."""
    try:
        lines = own_group.read_text().splitlines()
    except OSError:
        return [groups]
    own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    return [
        groups,
        *(groups.joinpath(*own.split("/")[: depth + 1]) for depth in range(own.count("/") + 1 if own else 0)),
    ]


def _quota(file: Path) -> float | None:
    """`cpu.max` is "quota period" in microseconds, or "max period" where nothing is limited."""
    try:
        quota, period = file.read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
