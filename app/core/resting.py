"""Who sleeps between two attempts holds nothing scarce: how those who ask the nodes say so to a holder whom they do not know.

Work that holds a permit puts its `Shift` into the context of its task, where everything that it calls or starts finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from typing import Protocol


class Shift(Protocol):
    """Everybody at work under one permit. It is held while any of them works, and given back while all that are left sleep."""

    def asleep(self) -> AbstractAsyncContextManager[None]:
        """Inside, whoever entered sleeps. Leaving waits until the permit is held again."""
        ...

    def parted(self, branches: int) -> AbstractAsyncContextManager[Callable[[], None]]:
        """Inside, `branches` take the place of whoever entered, who only waits for them; each calls what is yielded when it
        has ended. Leaving waits until the permit is held again, unless it is by an error."""
        ...


shift: ContextVar[Shift | None] = ContextVar("shift", default=None)
"""Of the work in hand; None where it holds nothing."""


def asleep() -> AbstractAsyncContextManager[None]:
    """Around every pause."""
    here = shift.get()
    return nullcontext() if here is None else here.asleep()


def parted(branches: int) -> AbstractAsyncContextManager[Callable[[], None]]:
    """Around tasks that work side by side: `async with parted(2) as ended, asyncio.TaskGroup() as group`."""
    here = shift.get()
    return nullcontext(_nobody_asked) if here is None else here.parted(branches)


def _nobody_asked() -> None:
    return
