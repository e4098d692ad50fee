"""Head, safe and finalized of one chain, as its upstream's blocks tell them.

The tracker polls; requests only read. What it publishes is the number of a block that was returned, never a bare counter, and the
finalized height never goes down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.core.blocks import BlockName
from app.core.errors import ProofError
from app.core.finality import Finality, Heads, observe

from .ports import Clock, Upstream


@dataclass(frozen=True, slots=True)
class FinalityRule:
    """`mode` is `tag` (the node's own tags, depth where it knows none) or `depth` (so many blocks below the head)."""

    mode: str = "tag"
    depth: int = 64


class HeadTracker:
    """Owned by its chain: `run` is the only writer beside `refresh`, and both write between awaits only."""

    def __init__(
        self,
        upstream: Upstream,
        rule: FinalityRule,
        clock: Clock,
        *,
        on_reorg: Callable[[int], None],
        on_progress: Callable[[], None] = lambda: None,
        interval_s: float = 2.0,
        tag_every: int = 4,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._upstream = upstream
        self._rule = rule
        self._clock = clock
        self._on_reorg = on_reorg
        self._on_progress = on_progress
        self._interval_s = interval_s
        self._tag_every = tag_every
        self._pause = pause
        self._newest: BlockName | None = None
        self._polls = 0
        self._refreshing: asyncio.Task[None] | None = None
        self.heads = Heads()
        self.observed_at: float | None = None
        self.last_error: str | None = None

    def __repr__(self) -> str:
        return f"<HeadTracker head={self.heads.head} safe={self.heads.safe} finalized={self.heads.finalized}>"

    @property
    def age_s(self) -> float | None:
        """Seconds since the last successful poll; None before the first."""
        return None if self.observed_at is None else self._clock.now() - self.observed_at

    @property
    def stale(self) -> bool:
        """Whether the heads are too old to be taken for today's: nothing was heard for many intervals."""
        age_s = self.age_s
        return age_s is None or age_s > max(30.0, 5 * self._interval_s)

    def finality_of(self, height: int) -> Finality:
        """How sure the chain is of `height`, and on whose word."""
        return self.heads.finality_of(height)

    async def run(self) -> None:
        """Polls until cancelled. A failed poll is remembered and tried again at the next turn; it does not end the loop."""
        while True:
            try:
                await self.poll()
            except ProofError as error:
                self.last_error = error.message
            await self._pause(self._interval_s)

    async def poll(self, *, all_tags: bool = False) -> None:
        """One round: the head each time, safe and finalized every few rounds. Raises `ProofError` when nothing was heard."""
        wants_tags = self._rule.mode == "tag" and (all_tags or self._polls % self._tag_every == 0)
        newest = await self._upstream.tagged("latest")
        safe = finalized = None
        if wants_tags:
            safe_name = await self._upstream.tagged("safe")
            finalized_name = await self._upstream.tagged("finalized")
            safe = None if safe_name is None else safe_name.height
            finalized = None if finalized_name is None else finalized_name.height
        elif self._rule.mode == "tag" and self.heads.by == "rpc-tag":
            safe, finalized = self.heads.safe, self.heads.finalized
        self._polls += 1
        self._publish(newest, safe, finalized)

    async def refresh(self) -> None:
        """One round now, shared by all who ask while it runs; one caller's cancellation spares the others. Raises as `poll`."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self.poll(), name="head-refresh")
            self._refreshing.add_done_callback(_retrieve)
        await asyncio.shield(self._refreshing)

    async def aclose(self) -> None:
        """Ends a refresh still under way."""
        if self._refreshing is not None and not self._refreshing.done():
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])

    def _publish(self, newest: BlockName | None, safe: int | None, finalized: int | None) -> None:
        before, known = self._newest, self.heads
        head = None if newest is None else newest.height
        self.heads = observe(known, head, safe, finalized, mode=self._rule.mode, depth=self._rule.depth)
        if newest is not None:
            self.observed_at = self._clock.now()
            self.last_error = None
            self._newest = newest
            if before is not None and _replaces(before, newest):
                self._on_reorg(min(before.height, newest.height))
        if self.heads != known:
            self._on_progress()


def _replaces(before: BlockName, newest: BlockName) -> bool:
    """Whether `newest` shows that `before` is no longer canonical, as far as one block can show it."""
    if newest.height <= before.height:
        return newest.block_hash != before.block_hash
    return newest.height == before.height + 1 and newest.parent_hash != before.block_hash


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
