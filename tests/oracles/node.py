"""The npm side of the oracles: where Node and the locked packages of `tests/node/` are, and what if they are not.

A machine without Node skips the tests that need it, in one line each; with `COPATH_TESTS_REQUIRE_ALL=1` it fails them.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

FOLDER = Path(__file__).parent.parent / "node"
MODULES = FOLDER / "node_modules"


def missing(reason: str) -> NoReturn:
    """Skips the test, or fails it where everything is required to run."""
    if os.environ.get("COPATH_TESTS_REQUIRE_ALL") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@functools.cache
def _install() -> str | None:
    """Installs the locked packages once per machine and lock file; the reason why not, if not."""
    if shutil.which("node") is None:
        return "node is not installed"
    lock_file = (FOLDER / "package-lock.json").read_bytes()
    stamp = MODULES / ".copath-lock"
    wanted = hashlib.sha256(lock_file).hexdigest()
    # Several test processes start at once: one installs, the others wait for it and find the stamp.
    name = hashlib.sha256(str(FOLDER).encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"copath-npm-{name}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return None
        npm = shutil.which("npm")
        if npm is None:
            return "npm is not installed"
        done = subprocess.run(
            [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=FOLDER,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            return f"npm ci failed in tests/node: {last}"
        stamp.write_text(wanted)
        return None


def require_packages() -> Path:
    """`node_modules` with every locked package in it; the calling test is skipped where that cannot be had."""
    reason = _install()
    if reason is not None:
        missing(reason)
    return MODULES
