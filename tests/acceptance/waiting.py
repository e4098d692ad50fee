"""Waiting for a server in another process: there is nothing to wait on, so it is asked again and again, for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""Longer than anything here takes on a busy machine: only a test that fails waits so long."""


def until(ask: Callable[[], T | None], what: str, *, patience_s: float = PATIENCE_S) -> T:
    """The first truthy value that `ask` gives."""
    deadline = time.monotonic() + patience_s
    while True:
        value = ask()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience_s} s: {what}")
        time.sleep(0.02)
