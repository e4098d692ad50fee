"""Tests pass on a machine that started a minute ago, in an environment with next to nothing in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import young_machine

ROOT = Path(__file__).parent.parent

CLOCKED = (
    "tests/core/test_throughput.py",
    "tests/core/test_bucket.py",
    "tests/core/test_breaker.py",
    "tests/core/test_saturation.py",
    "tests/core/test_setbacks.py",
    "tests/store/test_throughputs.py",
    "tests/store/test_leases.py",
    "tests/upstream/test_leasing.py",
    "tests/chain/test_shared_head.py",
    "tests/serving/test_listener.py",
)
"""What goes by clocks, with all that it starts: servers, databases."""

FACTS = """
import asyncio, json, os, subprocess, sys, time, uvloop

async def loop_s():
    return asyncio.get_running_loop().time()

def clock():
    return time.monotonic()

mine = [clock(), asyncio.run(loop_s())]
child = float(subprocess.check_output([sys.executable, "-c", "import time; print(time.monotonic())"]))
mask = os.umask(0)
print(json.dumps({"clocks": [*mine, child], "names": sorted(os.environ), "umask": mask, "zone": os.environ.get("TZ")}))
"""


def on_a_young_machine(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.young_machine", *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("namespaces", [True, False])
def test_the_machine_is_as_young_as_it_should_be(namespaces: bool, tmp_path: Path) -> None:
    path = os.environ["PATH"] if namespaces else str(tmp_path)  # without unshare
    ended = on_a_young_machine("--uptime", "60", "--zone", "Asia/Kathmandu", sys.executable, "-c", FACTS, PATH=path)
    assert ended.returncode == 0, ended.stderr
    facts = json.loads(ended.stdout)
    assert all(60 <= round(clock) < 600 for clock in facts["clocks"]), facts
    assert (facts["umask"], facts["zone"]) == (young_machine.UMASK, "Asia/Kathmandu")
    assert not {"HOME", "USER", "LOGNAME", "TERM", "SHELL"} & set(facts["names"])


@pytest.mark.parametrize("zone", [None, "Asia/Kathmandu"], ids=["no-zone", "Kathmandu"])
def test_tests_pass_on_a_young_machine(zone: str | None, tmp_path: Path) -> None:
    files = CLOCKED if zone is None else CLOCKED[-1:]
    tests = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'young'}", *files]
    locale = "C" if zone is None else "tr_TR.UTF-8"
    ended = on_a_young_machine(*(("--zone", zone) if zone else ()), "--locale", locale, sys.executable, *tests)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-1000:]
