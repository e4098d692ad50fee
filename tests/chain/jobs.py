"""What builder tests let worker processes do. Importable there, and importing next to nothing."""

from __future__ import annotations

import os
import signal
import struct
import sys
from pathlib import Path
from types import FrameType

from app.core.errors import BlockNotReady, ContentInvalid, UnsupportedBlockFormat


def echo(request: str) -> bytes:
    """The process that built it, and what it was asked."""
    return f"{os.getpid()} {request}".encode()


def modules(request: str) -> bytes:
    """Everything imported in the worker."""
    return "\n".join(sys.modules).encode()


def held(request: Path) -> bytes:
    """Tells its process id through the pipe `started`, then waits until something comes through the pipe `go`."""
    (request / "started").write_bytes(f"{os.getpid()}\n".encode())
    return (request / "go").read_bytes()


def fails(request: str) -> bytes:
    """Every way to fail."""
    if request == "content":
        raise ContentInvalid("header_hash", "it does not hash to 0x00")
    if request == "permanent":
        raise UnsupportedBlockFormat("unknown header fields", fields=2)
    if request == "extra":
        raise BlockNotReady("not yet", retry_after_s=2.0, block_number=7, last_attested_block=5)
    if request == "crash":
        raise _UnpicklableError(1, 2)
    if request == "exit":
        sys.exit(3)
    if request == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return echo(request)


def half_a_result(request: str) -> bytes:
    """Dies in the middle of sending its result, as a worker may that is killed from outside."""
    if request == "half":
        frame: FrameType | None = sys._getframe()
        while frame is not None and "result_queue" not in frame.f_locals:
            frame = frame.f_back
        assert frame is not None
        frame.f_locals["result_queue"]._writer._send(struct.pack("!i", 1_000_000) + b"the beginning")
        os.kill(os.getpid(), signal.SIGKILL)
    return echo(request)


def starts_once(marker: Path) -> None:
    """An initializer that works for the first worker only."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        raise RuntimeError("the library is missing") from None


def text(data: bytes) -> str:
    """The inverse of what most jobs here do."""
    return data.decode()


class _UnpicklableError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("two arguments")
