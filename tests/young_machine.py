"""Runs a command as in a container on a machine that started a minute ago.

    python -m tests.young_machine [--uptime 60] [--zone Asia/Kathmandu] [--locale C] COMMAND ...

The monotonic clock of the command, and of all that it starts, begins at the uptime: in a time namespace of Linux, or, if none can
be made, by `tests/young/sitecustomize.py` in Python processes alone. The environment has a PATH and switches of the tests, and
nothing else: no HOME, no user, no terminal, a time zone only if one is named. What is made is readable by its owner alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
UMASK = 0o077
_KEPT = ("COPATH_TESTS_", "PYTEST_XDIST_AUTO_", "npm_config_registry", "PIP_INDEX_URL")


def main(arguments: Sequence[str]) -> int:
    """The exit code of the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--uptime", type=float, default=60.0, help="seconds that the machine has run")
    parser.add_argument("--zone", help="time zone; by default none is named")
    parser.add_argument("--locale", default="C", help="LANG and LC_ALL, installed or not")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    shift_s = chosen.uptime - time.monotonic()
    environment = surroundings(os.environ, chosen.zone, chosen.locale)
    prefix = _time_namespace(shift_s)
    if prefix is None:
        environment["COPATH_TESTS_CLOCK_OFFSET"] = str(shift_s)
        environment["PYTHONPATH"] = str(ROOT / "tests" / "young")
    command = [*(prefix or ()), *chosen.command]
    return subprocess.run(command, cwd=ROOT, env=environment, umask=UMASK, check=False).returncode


def surroundings(environ: Mapping[str, str], zone: str | None, locale: str) -> dict[str, str]:
    """The environment of such a container."""
    kept = {name: value for name, value in environ.items() if name == "PATH" or name.startswith(_KEPT)}
    return {**kept, "LANG": locale, "LC_ALL": locale, **({"TZ": zone} if zone else {})}


def _time_namespace(shift_s: float) -> list[str] | None:
    """What puts a command into a namespace with these clocks; None if that is not possible here."""
    unshare = shutil.which("unshare")
    if unshare is None or not sys.platform.startswith("linux"):
        return None
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    offset = round(shift_s + _offset_s())
    clocks = ["--time", f"--monotonic={offset}", f"--boottime={offset}"]
    prefix = [unshare, *user, *clocks]
    tried = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    return prefix if tried.returncode == 0 else None


def _offset_s() -> float:
    """Of the namespace that this process is in: a new one has its offset to the machine, and not to it."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except OSError:
        return 0.0
    offsets = {clock: int(seconds) + int(nanoseconds) / 1e9 for clock, seconds, nanoseconds in map(str.split, lines)}
    return offsets.get("monotonic", 0.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
