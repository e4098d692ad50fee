"""Filling what nobody has asked for yet: the finalized blocks of the retention window, newest first, with permits to spare.

    head moved, or a fill ended -> core/gaps: the next height -> a turn -> a permit of the class BACKFILL -> the same flights,
    upstream, builder and cache as for a request -> the ledger notes it

The budget sees to it that requests go first (P1-P3), and a request for a block that is being backfilled joins its fill. Fills
share more than permits: beside a request's fill there is one of backfill at a time, and otherwise as many as the builders keep up
with. Nothing above the finalized height is fetched (P7). What fails is tried again until it is done, with pauses in which nothing
is held; what is refused for good is done.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable

from app.core.blocks import Noted
from app.core.breadth import Breadth
from app.core.budget import Priority
from app.core.errors import HistoryUnavailable, NotFinalized, ProofError, UpstreamBudgetExhausted
from app.core.gaps import Backlog, Heights, Window
from app.core.provable_block import ProvableBlock
from app.core.provable_block import Verdict as Proven
from app.core.setbacks import Setbacks

from .cache import BlockCache
from .fill import Verdict, judge
from .head import HeadTracker
from .office import Office
from .permits import Permits
from .ports import Anchors, Builder, Clock, Ledger
from .rules import ChainRules

log = logging.getLogger(__name__)

HISTORY_MEMORY_S = 3600.0
"""For so long nothing is asked for below a height that no node keeps any more."""


RANGE_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Between two attempts at one height of a range that somebody waits for."""


class Outcome(enum.StrEnum):
    """What became of one height of a range."""

    FILLED = "filled"
    KNOWN = "known"  # it was done before
    REFUSED = "refused"  # for good
    FAILED = "failed"


class State(enum.StrEnum):
    """What the backfill of a chain is doing. The values are shown in listings."""

    OFF = "off"
    ELSEWHERE = "done by another replica"
    NOBODY = "waiting for the database"
    WAITING = "waiting for a finalized height"
    FILLING = "filling"
    FAILING = "failing"
    SPENT = "out of budget"
    CAUGHT_UP = "caught up"


class Backfill:
    """Owned by its chain, which runs `run` and calls `head_moved` and `overtake`.

    `block_at` yields the checked canonical block of a finalized height, filled in the class BACKFILL; `turns` bounds the claims
    to permits of that class, which others make too.
    """

    def __init__(
        self,
        rules: ChainRules,
        head: HeadTracker,
        cache: BlockCache[ProvableBlock],
        permits: Permits,
        ledger: Ledger,
        anchors: Anchors | None,
        builder: Builder,
        block_at: Callable[[int], Awaitable[ProvableBlock]],
        turns: asyncio.Semaphore,
        clock: Clock,
        office: Office | None = None,
    ) -> None:
        """`office`: where several processes share the ledger, one of them does this at a time; None for one alone."""
        self._rules = rules
        self._head = head
        self._cache = cache
        self._permits = permits
        self._ledger = ledger
        self._anchors = anchors
        self._block_at = block_at
        self._turns = turns
        self._clock = clock
        self._office = office
        self._builder = builder
        self._breadth = Breadth()
        self._backlog = Backlog(rules.retention_blocks, fewest=rules.anchor_interval)
        self._setbacks = Setbacks()
        self._in_flight: dict[int, bool] = {}  # height -> whether no reorg overtook it
        self._overtaken_from: int | None = None
        self._followed: int | None = None
        # What a reorg makes the ledger forget is not noted afterwards by who was about to.
        self._writing = asyncio.Lock()
        self._history: Window | None = None
        self._history_again_at = 0.0
        self._wake = asyncio.Event()
        self.last_error: str | None = None

    def __repr__(self) -> str:
        return f"<Backfill {self._rules.name} {self._backlog!r} {len(self._in_flight)} in flight, {self._setbacks!r}>"

    # --- what is ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What it is doing."""
        if not self._rules.backfill:
            return State.OFF
        if self._head.undoubted_final is None:
            return State.WAITING
        if self._office is not None and not self._office.held:
            return State.NOBODY if self._office.silent else State.ELSEWHERE
        if self._setbacks.outage:
            return State.SPENT if self.last_error == UpstreamBudgetExhausted.code else State.FAILING
        followed = self._followed == self._head.undoubted_final  # else there is more to fill than it knows yet
        return State.CAUGHT_UP if followed and not self.remaining else State.FILLING

    @property
    def window(self) -> Window:
        """The heights that are to be filled; none before the first finalized height is known."""
        return self._backlog.window

    @property
    def remaining(self) -> int:
        """Heights of the window that are not done; 0 where nothing is to be filled."""
        return self._backlog.remaining if self._rules.backfill else 0

    @property
    def lowest(self) -> int | None:
        """The lowest height that is done; None when none is."""
        return self._backlog.cursor

    # --- what happens -----------------------------------------------------------------------------------------------

    def is_filling(self, height: int) -> bool:
        """Whether a fill of its own is in flight for this height."""
        return height in self._in_flight

    def head_moved(self) -> None:
        """There may be more to fill."""
        self._wake.set()

    def overtake(self, height: int) -> None:
        """A reorg: what was filled from `height` on is filled again once it is final."""
        self._backlog.reopen_from(height)
        for flying in self._in_flight:
            if flying >= height:
                self._in_flight[flying] = False
        if self._overtaken_from is None or height < self._overtaken_from:
            self._overtaken_from = height
        self._wake.set()

    def withdraw(self, height: int) -> None:
        """From `height` on nothing is final any more, though nothing is known to be replaced."""
        self._backlog.lower(height)
        for flying in self._in_flight:
            if flying >= height:
                self._in_flight[flying] = False
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. Whatever it did not expect ends it, with everything in flight; the next run reads the ledger."""
        self._in_flight.clear()
        await self._tell_ledger_of_reorg()
        self._backlog.restore(await self._ledger.done())
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._wake.clear()
                    await self._turn(group)
                    await self._something_changes()
        finally:
            if self._office is not None:
                await self._office.leave()

    async def _turn(self, group: asyncio.TaskGroup) -> None:
        await self._tell_ledger_of_reorg()
        if self._office is not None and await self._office.entered():
            self._backlog.restore(await self._ledger.done())  # what whoever did this before has done
        await self._follow_head()
        if self._office is None or self._office.held:
            self._begin(group)

    async def fill_range(
        self,
        first: int,
        last: int,
        told: Callable[[int, Outcome, str], None],
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Fills [first, last] once, newest first; `told` hears what became of each height, and the code of an error.

        For somebody who waits for it: nothing is given up for longer than a few pauses. Raises `NotFinalized` for heights that
        are not.
        """
        finalized = self._head.undoubted_final
        if finalized is None or last > finalized:
            raise NotFinalized(f"block {last} is not finalized; the newest that is: {finalized}")
        done = Heights(await self._ledger.done())
        heights = iter(range(last, first - 1, -1))

        async def work() -> None:
            for height in heights:
                outcome, code = (Outcome.KNOWN, "") if height in done else await self._attempts_at(height, pause)
                told(height, outcome, code)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._width):
                group.create_task(work())

    async def _attempts_at(self, height: int, pause: Callable[[float], Awaitable[None]]) -> tuple[Outcome, str]:
        for pause_s in (*RANGE_PAUSES_S, None):
            try:
                block = await self._block_at(height)
            except ProofError as error:
                code = error.code
                if not error.retriable:
                    if judge(error) is not Verdict.PERMANENT or isinstance(error, HistoryUnavailable):
                        break
                    await self._ledger.note([Noted(height, None)])
                    return Outcome.REFUSED, code
            else:
                code = "InconsistentSource"
                if block.settled:
                    await self._ledger.note([noted(block, anchored=self._anchors is not None)])
                    return Outcome.FILLED, ""
            if pause_s is not None:
                await pause(pause_s)
        return Outcome.FAILED, code

    @property
    def _width(self) -> int:
        """How many fills may be in flight at once."""
        return self._permits.budget.limit - self._permits.budget.reserve

    async def _tell_ledger_of_reorg(self) -> None:
        while self._overtaken_from is not None:
            async with self._writing:
                height = self._overtaken_from
                await self._ledger.forget_from(height)
                if self._overtaken_from == height:
                    self._overtaken_from = None

    async def _follow_head(self) -> None:
        finalized = self._head.undoubted_final
        if finalized is None:
            return
        before = self.window
        let_go = self._backlog.advance(finalized, room=self._cache.room_ahead, floor=self._floor())
        self._followed = finalized
        if self.window == before:
            return
        if let_go is not None:
            self._cache.retire(let_go.low, let_go.high)
        if self._rules.retention_blocks is not None:
            self._cache.retire_below(finalized - self._rules.retention_blocks + 1)
        self._setbacks.forget(self.window.low, self.window.high)
        await self._ledger.forget_below(self.window.low)

    def _floor(self) -> int:
        """Nothing below is of use, or to be had."""
        genesis = None if self._anchors is None else self._anchors.genesis
        history = 0 if self._history is None or self._clock.now() >= self._history_again_at else self._history.low
        return max(genesis or 0, history)

    def _begin(self, group: asyncio.TaskGroup) -> None:
        """As many fills as may be in flight at once, each with a claim of its own: one beside a request's, and alone as many as
        leave nothing waiting."""
        if not self._rules.backfill:
            return
        now = self._clock.now()
        alone = not self._permits.budget.running(Priority.REQUEST)
        width = self._setbacks.at_once(self._breadth.at_once(self._width) if alone else 1, now)
        skipped = self._setbacks.not_due(now).union(self._in_flight)
        while len(self._in_flight) < width:
            height = self._backlog.next(skipped)
            if height is None or not self._setbacks.may_try(height):
                return
            skipped.add(height)
            self._in_flight[height] = True
            group.create_task(self._fill(height), name=f"backfill:{self._rules.name}:{height}")

    async def _something_changes(self) -> None:
        now = self._clock.now()
        times = [self._setbacks.next_at(now), None if self._office is None else self._office.due_at]
        at = min((each for each in times if each is not None), default=None)
        try:
            async with asyncio.timeout(None if at is None else at - now):
                await self._wake.wait()
        except TimeoutError:
            return

    # --- one height -------------------------------------------------------------------------------------------------

    async def _fill(self, height: int) -> None:
        began_at = self._clock.now()
        try:
            async with self._turns:
                block = await self._block_at(height)
        except HistoryUnavailable:
            self._history = Window(height + 1, self.window.high)
            self._history_again_at = self._clock.now() + HISTORY_MEMORY_S
            self._setbacks.succeeded(height, self._clock.now())
        except ProofError as error:
            if judge(error) is Verdict.PERMANENT:
                await self._done(height, None)
            else:
                self._failed(height, began_at, error.code)
        else:
            if block.settled:
                await self._done(height, block)
            else:
                self._failed(height, began_at, "InconsistentSource")
        finally:
            del self._in_flight[height]
            self._breadth.seen(self._builder.waiting > 0, self._width)
            self._wake.set()

    async def _done(self, height: int, block: ProvableBlock | None) -> None:
        self._setbacks.succeeded(height, self._clock.now())
        async with self._writing:
            if not self._in_flight[height]:
                return  # it may be another block by now
            if block is None:
                await self._ledger.note([Noted(height, None)])
            else:
                await self._ledger.note([noted(block, anchored=self._anchors is not None)])
            if self._in_flight[height]:
                self._backlog.note(height)

    def _failed(self, height: int, began_at: float, code: str) -> None:
        self.last_error = code
        was_out = self._setbacks.outage
        self._setbacks.failed(height, began_at, self._clock.now())
        if self._setbacks.outage and not was_out:
            log.warning("backfill_failing", extra={"chain": self._rules.name, "height": height, "code": code})


def noted(block: ProvableBlock, *, anchored: bool, asked: bool = False) -> Noted:
    """What a ledger is told of a final block; its usc root where the chain has anchors and the block has one."""
    proven = anchored and block.leaves_verdict is Proven.PROVEN
    return Noted(block.height, block.block_hash, block.proven_hashes, block.usc_root if proven else None, asked)
