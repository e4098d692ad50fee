"""Who may do cold work for the request in hand: a fill waits for a place in the cold lane, whatever lane the request came in by.

A request is let into the warm lane because all that it needs is at hand. By the time that it is served a block may have been
evicted. Then the request takes a cold place, or is refused, before anything is fetched for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

cold_place: ContextVar[Callable[[], None] | None] = ContextVar("cold_place", default=None)
"""Takes a cold place for the request in hand where it has none; raises `ProofError`. None: the work is for no request."""


def require_cold_place() -> None:
    """To be called before work that a request in the warm lane may not begin. Raises `Overloaded` or `ChainOverloaded`."""
    take = cold_place.get()
    if take is not None:
        take()
