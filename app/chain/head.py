"""Head, safe and finalized of one chain, as its upstream's blocks tell them.

The tracker polls; requests only read. What it publishes is the number of a block that was returned, never a bare counter, and the
finalized height never goes down.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.core.blocks import BlockName
from app.core.errors import ProofError
from app.core.finality import Finality, Heads, observe

from .ports import Clock, Upstream

_REMEMBERED = 256
"""Blocks seen lately, by height: what a reorg is told from."""


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
        self._seen: dict[int, bytes] = {}
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
        safe = finalized = failed = None
        if wants_tags:
            safe, failed = await self._height_of("safe")
            finalized, failed_too = await self._height_of("finalized")
            failed = failed or failed_too
        elif self._rule.mode == "tag" and self.heads.by == "rpc-tag":
            safe, finalized = self.heads.safe, self.heads.finalized
        self._polls += 1
        self._publish(newest, safe, finalized)
        if failed is not None:
            self.last_error = failed

    async def refresh(self) -> None:
        """One round now, shared by all who ask while it runs; one caller's cancellation spares the others. Raises as `poll`."""
        if self._refreshing is None or self._refreshing.done():
            # The empty context: the deadline of whoever came first is not everybody's.
            self._refreshing = asyncio.get_running_loop().create_task(
                self.poll(), name="head-refresh", context=contextvars.Context()
            )
            self._refreshing.add_done_callback(_retrieve)
        await asyncio.shield(self._refreshing)

    async def aclose(self) -> None:
        """Ends a refresh still under way."""
        if self._refreshing is not None and not self._refreshing.done():
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])

    async def _height_of(self, tag: str) -> tuple[int | None, str | None]:
        """The height under a tag, and why it was not heard. A node without the tag, or without an answer, still has a head."""
        try:
            name = await self._upstream.tagged(tag)
        except ProofError as error:
            return None, error.message
        return (None if name is None else name.height), None

    def _publish(self, newest: BlockName | None, safe: int | None, finalized: int | None) -> None:
        known = self.heads
        head = None if newest is None else newest.height
        self.heads = observe(known, head, safe, finalized, mode=self._rule.mode, depth=self._rule.depth)
        if newest is not None:
            self.observed_at = self._clock.now()
            self.last_error = None
            replaced_at = self._note(newest)
            if replaced_at is not None:
                self._on_reorg(replaced_at)
        if self.heads != known:
            self._on_progress()

    def _note(self, newest: BlockName) -> int | None:
        """Remembers a block; the lowest height at which it contradicts what was seen before, None where it contradicts nothing.

        A lower head alone says nothing: of the nodes behind one address some lag.
        """
        told = {newest.height - 1: newest.parent_hash, newest.height: newest.block_hash}
        seen = self._seen
        replaced_at = next(
            (height for height, told_hash in told.items() if seen.get(height, told_hash) != told_hash), None
        )
        if replaced_at is not None:
            for height in [height for height in seen if height >= replaced_at]:
                del seen[height]
        for height, told_hash in told.items():
            seen.pop(height, None)
            seen[height] = told_hash
        while len(seen) > _REMEMBERED:
            del seen[next(iter(seen))]
        return replaced_at


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
