"""A second node asked beside a first one that takes longer than most: whoever has the block first is believed.

Only where that costs little: one backup, for one fetch in twenty, and never while the nodes are in trouble anyway.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.core.resting import parted

from .retries import RetryBudget

FLOOR_S = 0.3
"""No fetch is called slow before that."""

ENOUGH = 20
"""Fetches after which it is known what most take."""

SHARE = 0.05
RETRY_BUDGET_KEPT = 0.2
"""With less of the retry budget left than this the nodes have enough to do."""

SPENT_SHARE = 0.8
"""With more of a day's units spent than this none go into a second answer."""

T = TypeVar("T")


class Hedging:
    """When a fetch of one chain is hedged. `outcomes` counts hedges won, lost, and suppressed."""

    def __init__(self, retries: RetryBudget) -> None:
        self.outcomes: Counter[str] = Counter({"won": 0, "lost": 0, "suppressed": 0})
        self._retries = retries
        self._share = RetryBudget(per_call=SHARE, per_second=0.0, capacity=10.0, tokens=0.0)
        self._took_s: deque[float] = deque(maxlen=128)

    def __repr__(self) -> str:
        return f"<Hedging after {self.delay_s} s, {dict(self.outcomes)}>"

    @property
    def delay_s(self) -> float | None:
        """What 95 of 100 fetches took at most; None while too few are known."""
        if len(self._took_s) < ENOUGH:
            return None
        return max(FLOOR_S, sorted(self._took_s)[int(0.95 * len(self._took_s))])

    def note(self, seconds: float) -> None:
        """A fetch succeeded without a hedge, or a hedge did."""
        self._took_s.append(seconds)

    def deposit(self) -> None:
        """A fetch begins."""
        self._share.deposit()

    def allowed(self, now: float, spent_share: float = 0.0) -> bool:
        """Whether a fetch that is slow may be hedged now at a node of whose units so much is spent; if so, it is allowed for."""
        enough = self._retries.left < RETRY_BUDGET_KEPT or spent_share > SPENT_SHARE
        if enough or not self._share.take(now):
            self.outcomes["suppressed"] += 1
            return False
        return True


async def race(
    first: Callable[[], Awaitable[T]],
    second: Callable[[], Callable[[], Awaitable[T]] | None],
    pause: Callable[[], Awaitable[None]],
    good: Callable[[T], bool],
) -> tuple[int, list[T | None]]:
    """Which of two wins, 0 or 1, and what each came to; None for one that was given up. `second` is asked for somebody only
    once `pause` is over.

    What `good` says no to never wins over another answer that it says yes to. Both calls' failures are values here: neither may
    raise. The loser is cancelled, and has ended when this returns.
    """
    async with parted(2) as ended, asyncio.TaskGroup() as group:
        leading = group.create_task(_run(first))
        leading.add_done_callback(lambda _: ended())
        waiting = group.create_task(_run(pause))
        await asyncio.wait({leading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        other = None if leading.done() else second()
        waiting.cancel()
        if other is None:
            ended()
            return 0, [await leading]
        trailing = group.create_task(_run(other))
        trailing.add_done_callback(lambda _: ended())
        await asyncio.wait({leading, trailing}, return_when=asyncio.FIRST_COMPLETED)
        for place, task, rival in ((0, leading, trailing), (1, trailing, leading)):
            if task.done() and good(task.result()):
                rival.cancel()
                found: list[T | None] = [None, None]
                found[place] = task.result()
                return place, found
        # The one that came back has nothing; the other may.
        answers = await leading, await trailing
        return (1 if good(answers[1]) and not good(answers[0]) else 0), list(answers)


async def _run(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
