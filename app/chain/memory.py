"""How fills failed lately, or came to less than all: what callers get at once instead of making an upstream fail again."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from cachetools import TTLCache

from app.core.errors import ProofError

if TYPE_CHECKING:
    from app.chain.ports import Clock
    from app.core.provable_block import ProvableBlock

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


SPREAD_S = 2.0
"""Over so many seconds those who failed together come back."""


def raised_once(error: ProofError, *, wait_s: float = 0.0, spread: float = 0.0) -> ProofError:
    """A copy to be raised once. An instance raised by many callers would grow its traceback with each of them.

    A retriable one asks its caller to wait for `wait_s` at least; `spread` in [0, 1) keeps callers from coming back in step.
    """
    copied = copy.copy(error)
    known_s = max(wait_s, copied.retry_after_s or 0.0)
    if copied.retriable and known_s > 0:
        copied.retry_after_s = spread_out(known_s, spread)
    return copied


def spread_out(wait_s: float, spread: float) -> float:
    """A wait that is known, and a share of more."""
    return wait_s + spread * SPREAD_S


FIRST_WAIT_S, LONGEST_WAIT_S = 2.0, 60.0

MAX_BLOCKS = 32

LONGEST_SILENCE_S = 600.0
"""A block that failed no more for so long fails for the first time again."""


@dataclass(slots=True)
class _Kept:
    block: ProvableBlock
    until: float
    wait_s: float


class Unsettled:
    """Blocks that another answer of the nodes may complete, each remembered as long as its callers are asked to wait.

    A block that stays incomplete is asked for ever more rarely: every time twice as long later, up to a minute.
    """

    def __init__(self, clock: Clock, jitter: Callable[[], float]) -> None:
        self._clock = clock
        self._jitter = jitter
        self._kept: TTLCache[bytes, _Kept] = TTLCache(MAX_BLOCKS, LONGEST_SILENCE_S, timer=clock.now)

    def recall(self, block_hash: bytes) -> ProvableBlock | None:
        """The block, unless it is time to ask for it again."""
        kept = self._kept.get(block_hash)
        return None if kept is None or kept.until <= self._clock.now() else kept.block

    def keep(self, block: ProvableBlock) -> None:
        """Remembers a block that is incomplete: after the last time it was, for longer."""
        before = self._kept.get(block.block_hash)
        wait_s = FIRST_WAIT_S if before is None or not before.wait_s else min(2 * before.wait_s, LONGEST_WAIT_S)
        self._keep(block, wait_s, wait_s)

    def keep_briefly(self, block: ProvableBlock, for_s: float) -> None:
        """Remembers a block for so long and no longer."""
        self._keep(block, for_s, 0.0)

    def forget(self, block_hash: bytes) -> None:
        """The block is complete."""
        self._kept.pop(block_hash, None)

    def _keep(self, block: ProvableBlock, for_s: float, wait_s: float) -> None:
        until = self._clock.now() + for_s
        self._kept[block.block_hash] = _Kept(block, until, wait_s)
        block.ask_again(lambda: spread_out(max(0.0, until - self._clock.now()), self._jitter()))
