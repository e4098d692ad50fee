"""The background work of a chain with anchors: what became final is anchored, or those of others are asked for now and then.

Where several processes share the rows of anchors that we make ourselves, one of them holds an office and makes them. The others
take up what it made, and one of them goes on from there when it is gone, or gets nowhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from app.core.anchor_pace import AnchorPace
from app.core.errors import ProofError
from app.core.lasting import AnchorContradiction, StoreUnavailable
from app.metrics import Metrics

from .head import HeadTracker
from .office import Office
from .ports import Anchors, Clock
from .rules import ChainRules

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""After so long without an anchor that is due, whoever fails to make it lets others try, and the others say that nobody does."""

NOBODY = "NobodyAnchors"

_TOO_SOON = 0.1
"""Of the time between two polls: a clock may wake us a little early."""


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
        office: Office | None = None,
    ) -> None:
        """`root_at` yields the usc root of a finalized height, whose block is filled in the class BACKFILL if need be; `turns`
        bounds the claims to permits of that class, which others make too. `caught_up` is set once every height that is final at
        that moment is anchored, by whomever. `office`: whoever holds it makes anchors for all processes; None for one alone, and
        for the anchors of others."""
        self._rules = rules
        self._anchors = anchors
        self._head = head
        self._metrics = metrics
        self._caught_up = caught_up
        self._head_moved = asyncio.Event()
        self._root_at = root_at
        self._turns = turns
        self._clock = clock
        self._office = office
        seen_late_s = 0.0 if office is None else rules.head_interval_s
        self._pace = AnchorPace(seen_late_s=anchors.poll_interval_s or seen_late_s)
        self._newest: int | None = None
        self._moved_at = self._entered_at = clock.now()
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
        try:
            while True:
                self._head_moved.clear()
                finalized = self._head.undoubted_final
                try:
                    await self._advance(finalized)
                except ProofError as error:
                    self._note_stall(error.code, error.message)
                except AnchorContradiction as error:
                    self._note_stall(type(error).__name__, str(error))
                except StoreUnavailable as error:
                    self._note_stall(type(error).__name__, "the database cannot be had")
                if self._office is not None and self.stalled is not None:
                    await self._give_way(finalized, self._office)
                self._pace.note(self._anchors.attested_height, self._anchors.checkpoint_height, self._clock.now())
                self._metrics.chain_attested_head.labels(self._rules.name).set(self._anchors.attested_height or 0)
                await self._until_due()
        finally:
            if self._office is not None:
                await self._office.leave()

    @property
    def _polled(self) -> bool:
        """Whether the anchors are somebody else's, who is asked for them from time to time: what is final here moves nothing."""
        return self._anchors.poll_interval_s is not None

    async def _advance(self, finalized: int | None) -> None:
        if self._office is not None:
            await self._advance_for_all(finalized, self._office)
            return
        await self._anchors.advance(finalized, self._root_in_turn)
        self.stalled = None
        if self._polled or (finalized is not None and finalized == self._head.undoubted_final):
            self._caught_up.set()

    async def _advance_for_all(self, finalized: int | None, office: Office) -> None:
        """What others made is taken up first: whoever comes into the office goes on from there. Whoever does not see where the
        chain stands leaves it to others."""
        if self._head.stale:
            await office.leave()
        elif await office.entered():
            self._entered_at = self._clock.now()
        await self._anchors.advance(None, self._root_in_turn)
        if office.held:
            await office.during(self._anchors.advance(finalized, self._root_in_turn))
        late = self._is_late(finalized)
        if office.held or not late:
            self.stalled = None
        elif self.stalled in (None, StoreUnavailable.__name__):  # who failed and lets others try still says why
            self._note_stall(NOBODY, "what is final is anchored by no process")
        if self._head.undoubted_final is not None and not self._is_due(self._head.undoubted_final):
            self._caught_up.set()

    async def _give_way(self, finalized: int | None, office: Office) -> None:
        """Others may have what this process lacks: a node that answers, or the right chain."""
        tried_s = self._clock.now() - self._entered_at
        in_vain = self._is_late(finalized) and tried_s >= PATIENCE_S
        if office.held and (in_vain or self.stalled == AnchorContradiction.__name__):
            await office.rest()

    def _is_due(self, finalized: int | None) -> bool:
        """Whether there could be one more anchor."""
        if finalized is None:
            return False
        newest = self._anchors.attested_height
        newest = self._anchors.genesis if newest is None else newest
        return newest is None or finalized >= newest + self._rules.anchor_interval

    def _is_late(self, finalized: int | None) -> bool:
        newest, now = self._anchors.attested_height, self._clock.now()
        if newest != self._newest or not self._is_due(finalized):
            self._newest, self._moved_at = newest, now
        return now - self._moved_at >= PATIENCE_S

    async def _until_due(self) -> None:
        if self._anchors.poll_interval_s is not None:
            await asyncio.sleep(self._until_poll_s(self._anchors.poll_interval_s))
            return
        office, blind = self._office, self._office is not None and self._head.stale
        at_ease = self.stalled is None and (office is None or office.held)
        rests_s = [] if at_ease else [self._rules.head_interval_s]
        if office is not None and not blind:
            rests_s.append(max(0.0, office.due_at - self._clock.now()))
        try:
            async with asyncio.timeout(min(rests_s, default=None)):
                await (self._head_moved if at_ease or blind else asyncio.Event()).wait()
        except TimeoutError:
            return

    def _until_poll_s(self, interval_s: float) -> float:
        """Chains of one process ask at the same moments, so that those that ask the same node can share what it says."""
        rest_s = interval_s - self._clock.now() % interval_s
        return rest_s if rest_s > _TOO_SOON * interval_s else rest_s + interval_s

    def _note_stall(self, code: str, reason: str) -> None:
        if self.stalled != code:
            log.warning("anchoring_stalled", extra={"chain": self._rules.name, "code": code, "detail": reason})
        self.stalled = code

    async def _root_in_turn(self, height: int) -> bytes:
        async with self._turns:
            return await self._root_at(height)
