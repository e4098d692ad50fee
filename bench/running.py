"""Processes that a benchmark needs beside itself; each is ended by whoever started it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def node(name: str, *, blocks: int = 1, latency_ms: float = 0) -> Iterator[int]:
    """The port of a node that serves a recorded block and such below it, `blocks` in all."""
    with _started("bench.node", name, f"--blocks={blocks}", f"--latency-ms={latency_ms}") as process:
        yield int(_line(process))


@contextmanager
def prober(url: str, seconds: float, *, every_s: float = 0.005) -> Iterator[subprocess.Popen[str]]:
    """A process that asks `url` again and again, and then prints the latencies as JSON."""
    with _started("bench.prober", url, str(seconds), str(every_s)) as process:
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
