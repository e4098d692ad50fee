"""The background work of a chain that makes its own anchors: whatever became final is anchored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from app.core.errors import ProofError
from app.metrics import Metrics

from .head import HeadTracker
from .ports import Anchors
from .rules import ChainRules

log = logging.getLogger(__name__)


class Anchoring:
    """Owned by its chain, which runs `run` and calls `head_moved`."""

    def __init__(
        self,
        rules: ChainRules,
        anchors: Anchors,
        head: HeadTracker,
        root_at: Callable[[int], Awaitable[bytes]],
        turns: asyncio.Semaphore,
        metrics: Metrics,
        caught_up: asyncio.Event,
    ) -> None:
        """`root_at` yields the usc root of a finalized height, whose block is filled in the class BACKFILL if need be; `turns`
        bounds the claims to permits of that class, which others make too. `caught_up` is set once every height that is final at
        that moment is anchored."""
        self._rules = rules
        self._anchors = anchors
        self._head = head
        self._metrics = metrics
        self._caught_up = caught_up
        self._head_moved = asyncio.Event()
        self._root_at = root_at
        self._turns = turns
        self.stalled: str | None = None

    def __repr__(self) -> str:
        return f"<Anchoring {self._rules.name} {self._anchors!r} stalled={self.stalled}>"

    def head_moved(self) -> None:
        """There may be more to anchor."""
        self._head_moved.set()

    async def run(self) -> None:
        """Until cancelled. What keeps an anchor from being made is said once a change, and tried again."""
        while True:
            self._head_moved.clear()
            finalized = self._head.heads.finalized
            if finalized is not None:
                try:
                    await self._anchors.advance(finalized, self._root_in_turn)
                    self.stalled = None
                    if finalized == self._head.heads.finalized:
                        self._caught_up.set()
                except ProofError as error:
                    if self.stalled != error.code:
                        log.warning("anchoring stalls", extra={"chain": self._rules.name, "code": error.code})
                    self.stalled = error.code
                if self._anchors.attested_height is not None:
                    self._metrics.chain_attested_head.labels(self._rules.name).set(self._anchors.attested_height)
                if self.stalled is not None:
                    await asyncio.sleep(self._rules.head_interval_s)
                    continue
            await self._head_moved.wait()

    async def _root_in_turn(self, height: int) -> bytes:
        async with self._turns:
            return await self._root_at(height)
