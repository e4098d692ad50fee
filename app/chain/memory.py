"""How fills failed lately: what callers are told at once instead of making an upstream fail again."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.core.errors import ProofError

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Failure:
    """How the last run of a key failed. `final` is false when nobody was there to see a first failure: then the key is
    tried again, but not twice."""

    error: ProofError
    expires_at: float
    final: bool


class FailureMemory(Generic[K]):
    """Failures by key, each until it expires, the newest `max_failures` of them."""

    def __init__(self, max_failures: int) -> None:
        self._max_failures = max_failures
        self._failures: OrderedDict[K, Failure] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def __contains__(self, key: K) -> bool:
        return key in self._failures

    def recall(self, key: K, now: float) -> Failure | None:
        """The failure of `key`, unless it has expired."""
        failure = self._failures.get(key)
        if failure is not None and failure.expires_at <= now:
            del self._failures[key]
            return None
        return failure

    def keep(self, key: K, error: ProofError, now: float, memo_s: float, *, final: bool = True) -> None:
        """Remembers for `memo_s`; not at all when that is not positive."""
        if memo_s <= 0:
            return
        self._failures[key] = Failure(raised_once(error), now + memo_s, final)
        self._failures.move_to_end(key)
        while len(self._failures) > self._max_failures:
            self._failures.popitem(last=False)

    def forget(self, key: K) -> None:
        self._failures.pop(key, None)

    def forget_all(self, matches: Callable[[K], bool]) -> None:
        """Forgets every key that matches."""
        for key in [key for key in self._failures if matches(key)]:
            del self._failures[key]


def raised_once(error: ProofError, *, wait_s: float = 0.0) -> ProofError:
    """A copy to be raised once. An instance raised by many callers would grow its traceback with each of them.

    A retriable one asks its caller to wait for `wait_s` at least.
    """
    copied = copy.copy(error)
    if copied.retriable and wait_s > 0:
        copied.retry_after_s = max(wait_s, copied.retry_after_s or 0.0)
    return copied
