"""`copath`, which is `python -m app`: it ends when it is told to, from its first moment on.

The first process of a container is not ended by a signal that it does not handle: one that came while the program was still
loading, or to a command that handles none, would be lost. `copath serve` takes over from here (`app/serving`).
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


def main() -> None:
    """Entry point of the `copath` command."""
    signal.signal(signal.SIGTERM, _end)
    from app import cli  # not before: it takes a second or two to load, and signals come meanwhile too

    cli.main()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    """Leaves as an unhandled signal would, but through every `finally`."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
