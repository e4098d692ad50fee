"""Processes that a benchmark needs beside itself; each is ended by whoever started it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def node(name: str) -> Iterator[int]:
    """The port of a node that serves one recorded block."""
    with _started("bench.node", name) as process:
        yield int(_line(process))


@contextmanager
def prober(url: str, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A process that asks `url` every few milliseconds and then prints the latencies as JSON."""
    with _started("bench.prober", url, str(seconds)) as process:
        yield process


@contextmanager
def _started(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()
