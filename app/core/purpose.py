"""What the work in hand is for, carried from whoever began it to the calls that are made and paid for on its behalf."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum


class Purpose(StrEnum):
    """The values are metric labels."""

    REQUEST = "request"
    BACKFILL = "backfill"
    HEAD = "head"  # where the chain stands: its head, and what is final
    PROBE = "probe"  # which chain a node serves, and whether a chain can be trusted


@dataclass(slots=True)
class Errand:
    """One piece of work, shared by everything that is called or started for it: a purpose that changes changes for all of it.

    `anonymous`: whoever asked showed no key. `consumer`: who asked, where consumers are told apart: a word that is equal for
    the same one and tells nothing else. Both matter to requests alone.
    """

    purpose: Purpose = Purpose.REQUEST
    anonymous: bool = True
    consumer: str | None = None


errand: ContextVar[Errand | None] = ContextVar("errand", default=None)
"""In hand; None: what nobody gave a purpose is for a request."""


again: ContextVar[bool] = ContextVar("again", default=False)
"""The work in hand failed a moment ago and is begun once more: to the nodes that is a retry like any other."""


def errand_in_hand() -> Errand:
    """The errand of this task, or else a request of nobody in particular."""
    return errand.get() or Errand()


@contextmanager
def for_purpose(purpose: Purpose) -> Iterator[None]:
    """Inside, the work is for `purpose`."""
    token = errand.set(Errand(purpose))
    try:
        yield
    finally:
        errand.reset(token)


def bare_context() -> contextvars.Context:
    """A context for work that outlives whoever began it: nothing is carried over, no deadline either, but what it is for."""
    context = contextvars.Context()
    context.run(errand.set, errand.get())
    return context
