"""The background work of a chain with anchors: what became final is anchored, or those of others are asked for now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from app.core.anchor_pace import AnchorPace
from app.core.errors import ProofError
from app.core.lasting import AnchorContradiction, StoreUnavailable
from app.metrics import Metrics

from .head import HeadTracker
from .ports import Anchors, Clock
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
        clock: Clock,
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
        self._clock = clock
        self._pace = AnchorPace(seen_late_s=anchors.poll_interval_s or 0.0)
        self.stalled: str | None = None

    def __repr__(self) -> str:
        return f"<Anchoring {self._rules.name} {self._anchors!r} stalled={self.stalled}>"

    def head_moved(self) -> None:
        """There may be more to anchor."""
        self._head_moved.set()

    @property
    def rests_s(self) -> float:
        """For how long no anchor is to be expected, by the pace of those that came; 0 when that is not known."""
        return self._pace.rests_s(self._clock.now())

    async def run(self) -> None:
        """Until cancelled. What keeps an anchor from being made, or heard of, is said once a change, and tried again."""
        while True:
            self._head_moved.clear()
            finalized = self._head.heads.finalized
            try:
                await self._anchors.advance(finalized, self._root_in_turn)
                self.stalled = None
                if self._polled or (finalized is not None and finalized == self._head.heads.finalized):
                    self._caught_up.set()
            except ProofError as error:
                self._note_stall(error.code, error.message)
            except AnchorContradiction as error:
                self._note_stall(type(error).__name__, str(error))
            except StoreUnavailable as error:
                self._note_stall(type(error).__name__, "the database cannot be had")
            self._pace.note(self._anchors.attested_height, self._anchors.checkpoint_height, self._clock.now())
            self._metrics.chain_attested_head.labels(self._rules.name).set(self._anchors.attested_height or 0)
            await self._until_due()

    @property
    def _polled(self) -> bool:
        """Whether the anchors are somebody else's, who is asked for them from time to time: what is final here moves nothing."""
        return self._anchors.poll_interval_s is not None

    async def _until_due(self) -> None:
        if self._anchors.poll_interval_s is not None:
            await asyncio.sleep(self._anchors.poll_interval_s)
        elif self.stalled is not None:
            await asyncio.sleep(self._rules.head_interval_s)
        else:
            await self._head_moved.wait()

    def _note_stall(self, code: str, reason: str) -> None:
        if self.stalled != code:
            log.warning("anchoring stalls", extra={"chain": self._rules.name, "code": code, "detail": reason})
        self.stalled = code

    async def _root_in_turn(self, height: int) -> bytes:
        async with self._turns:
            return await self._root_at(height)
