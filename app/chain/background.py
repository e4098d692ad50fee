"""Everything that one chain does by itself: following the head, anchoring what is final, filling what nobody asked for yet."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

from app.core.provable_block import ProvableBlock
from app.core.purpose import Errand, Purpose, errand
from app.metrics import Metrics

from .anchoring import Anchoring
from .backfill import Backfill
from .cache import BlockCache
from .head import HeadTracker
from .keeping import Keeping
from .office import Office
from .permits import Permits
from .ports import Anchors, Builder, Clock, Leases
from .rules import ChainRules
from .supervision import Loop, supervise


class Background:
    """Owned by its chain. `run` is the whole of it; `head_moved` and `overtake` tell its loops of what the head saw."""

    def __init__(
        self,
        rules: ChainRules,
        head: HeadTracker,
        cache: BlockCache[ProvableBlock],
        permits: Permits,
        anchors: Anchors | None,
        keeping: Keeping | None,
        builder: Builder,
        block_at: Callable[[int], Awaitable[ProvableBlock]],
        root_at: Callable[[int], Awaitable[bytes]],
        metrics: Metrics,
        clock: Clock,
        leases: Leases | None = None,
    ) -> None:
        """`block_at` yields the checked canonical block of a finalized height, filled in the class BACKFILL; `root_at` its usc
        root, and fills it only where that is not known. `leases`: several processes serve this chain, and one of them backfills
        and one makes anchors for all."""

        def office(work: str) -> Office | None:
            return None if leases is None else Office(f"{work}:{rules.key}", leases, clock)

        self._metrics = metrics
        self._loops: list[tuple[Loop, Purpose, Callable[[], Awaitable[None]]]] = [
            (Loop(f"head:{rules.name}"), Purpose.HEAD, head.run)
        ]
        # As many claims as there are permits: backfill that waits beyond that is turned away.
        turns = asyncio.Semaphore(rules.max_fills)
        self.anchored = asyncio.Event()
        """Set once every height finalized at that moment was anchored, or at once where there are no anchors to make."""
        self._anchoring: Anchoring | None = None
        if anchors is None or not rules.anchoring:
            self.anchored.set()
        else:
            # Those of others each process reads by itself.
            makers = office("anchors") if anchors.poll_interval_s is None else None
            self._anchoring = Anchoring(rules, anchors, head, root_at, turns, metrics, self.anchored, clock, makers)
            self._loops.append((Loop(f"anchors:{rules.name}"), Purpose.BACKFILL, self._anchoring.run))
        self.backfill: Backfill | None = None
        if keeping is not None:
            self._loops.append((Loop(f"keeping:{rules.name}"), Purpose.BACKFILL, keeping.run))
            self.backfill = Backfill(
                rules, head, cache, permits, keeping, anchors, builder, block_at, turns, clock, office("backfill")
            )
            self._loops.append((Loop(f"backfill:{rules.name}"), Purpose.BACKFILL, self.backfill.run))

    def __repr__(self) -> str:
        return f"<Background {', '.join(loop.name for loop in self.loops)}>"

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops, running or down."""
        return tuple(loop for loop, _, _ in self._loops)

    @property
    def anchoring_stalled(self) -> str | None:
        """The code of what keeps anchors from being made; None while nothing does."""
        return None if self._anchoring is None else self._anchoring.stalled

    @property
    def anchors_rest_s(self) -> float:
        """For how long no anchor is to be expected; 0 when that is not known."""
        return 0.0 if self._anchoring is None else self._anchoring.rests_s

    def head_moved(self) -> None:
        """There may be more that is final."""
        for follower in (self._anchoring, self.backfill):
            if follower is not None:
                follower.head_moved()

    def overtake(self, height: int) -> None:
        """A reorg seen at `height`."""
        if self.backfill is not None:
            self.backfill.overtake(height)

    def withdraw(self, height: int) -> None:
        """From `height` on nothing is final any more."""
        if self.backfill is not None:
            self.backfill.withdraw(height)

    async def run(self) -> None:
        """Every loop, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for loop, purpose, body in self._loops:
                context = contextvars.copy_context()
                context.run(errand.set, Errand(purpose))
                group.create_task(supervise(loop, body, self._metrics), name=loop.name, context=context)
