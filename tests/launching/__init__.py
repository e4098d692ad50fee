"""The program in a process of its own, forked from one that has imported it already.

A fresh interpreter spends more than a second of CPU on imports, and tests start hundreds of them. What runs is the same: its own
process, arguments, environment and folder, a normal end. How the program itself is started, `tests/serving/test_start.py`,
`tests/deploy/test_image.py` and the servers of `tests.acceptance.server.running_demo` show with `sys.executable -m app`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent.parent


class Launched:
    """One run of `copath`, with what tests use of `subprocess.Popen`."""

    def __init__(
        self,
        arguments: list[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
        stdin: IO[bytes] | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._told, theirs = socket.socketpair()
        with theirs, open(os.devnull, "rb") as nothing:
            streams = [(stdin or nothing).fileno(), stdout.fileno(), stderr.fileno()]
            socket.send_fds(_launcher(), [b"."], [theirs.fileno(), *streams])
        wanted = {"arguments": arguments, "cwd": str(cwd), "environment": dict(env)}
        self._told.sendall(json.dumps(wanted).encode() + b"\n")
        self._lines = self._told.makefile("rb")
        self.pid = int(self._lines.readline())

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                said = self._told.recv(64)
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired("copath", timeout or 0) from None
            self.returncode = int(said)
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """As `kill` does; nothing when it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None, stdin: str = "", timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """One command, and what it said."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        inherited = os.environ if env is None else env
        launched = Launched([*arguments], cwd=cwd, env=inherited, stdin=given, stdout=out, stderr=err)
        try:
            code = launched.wait(timeout_s)
        finally:
            launched.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["copath", *arguments], code, out.read().decode(), err.read().decode())


@cache
def _launcher() -> socket.socket:
    """The way to the one launcher of this test process. It ends when this process does: nobody holds the other end then."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "tests.launching", str(theirs.fileno())]
        subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])
    return ours
