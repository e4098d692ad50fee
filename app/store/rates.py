"""The rate of every consumer, as one process keeps to it: it asks the shared buckets where it has to, and never waits long.

    take -- known from memory? --------------------------> decided
      |---- the database is left alone? -----------------> decided alone, with this process's share of the rate
      |---- a question about this consumer under way? ---> its answer is shared, or else the next one's
      `---- ask ------------------------------------------> answered within 50 ms, or decided without it

One question a consumer at a time, whatever it costs: a consumer that asks for its own row so often that nobody gets an answer in
time must not be let in for that. When questions that were sent later are answered and its own is not, it is denied. Otherwise
the database is slow, and slow or gone it limits nobody: each process decides alone until a probe is answered in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from app.core.bucket import Decision, Rate, Tab, Taken
from app.core.lasting import StoreUnavailable
from app.core.reliance import Reliance
from app.metrics import Metrics

log = logging.getLogger(__name__)

BUDGET_S = 0.05
"""What a request waits for an answer at most."""

BEAT_S = 1.0
"""How often a database that is left alone is probed, and old buckets are looked for."""

PURGE_EVERY_BEATS = 30
PURGES_AT_ONCE = 20
SWEPT_AT_ONCE = 500
MOST_TABS = 50_000
MOST_QUESTIONS = 128
"""Questions under way at a time; a database that lets more pile up is slow."""


class Buckets(Protocol):
    """Where the shared buckets are. Raises `StoreUnavailable`, within seconds."""

    async def take(self, consumer: str, want: int) -> Taken: ...
    async def purge(self) -> int: ...
    async def ping(self) -> None: ...


@dataclass(slots=True)
class _Question:
    """About one consumer, and who waits for the answer."""

    asked_at: float
    waiting: deque[asyncio.Future[Decision]] = field(default_factory=deque)
    late: bool = False

    def still_waiting(self) -> int:
        while self.waiting and self.waiting[0].done():
            self.waiting.popleft()
        return sum(not each.done() for each in self.waiting)

    def tell(self, decision: Decision) -> None:
        """The next one who still waits."""
        while self.waiting:
            first = self.waiting.popleft()
            if not first.done():
                first.set_result(decision)
                return


class Rates:
    """Of one process. `run` has to run meanwhile: until it does, everything is decided alone."""

    def __init__(
        self,
        rate: Rate,
        buckets: Buckets,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        replicas: int = 1,
        budget_s: float = BUDGET_S,
        beat_s: float = BEAT_S,
    ) -> None:
        """`clock`: monotonic seconds. `replicas`: how many processes share the rate when each of them decides alone."""
        self.rate = rate
        self.reliance = Reliance()
        self._buckets = buckets
        self._metrics = metrics
        self._clock = clock
        self._replicas = replicas
        self._budget_s = budget_s
        self._beat_s = beat_s
        self._tabs: OrderedDict[str, Tab] = OrderedDict()
        self._asking: dict[str, _Question] = {}
        self._group: asyncio.TaskGroup | None = None
        self._probing = False

    def __repr__(self) -> str:
        return f"<Rates {len(self._tabs)} consumers, {len(self._asking)} questions, {self.reliance!r}>"

    # --- for a request ----------------------------------------------------------------------------------------------

    def denial(self, consumer: str) -> Decision | None:
        """A refusal that is known without asking anybody. Never an allowance: nothing is taken."""
        tab = self._tabs.get(consumer)
        decision = None if tab is None else tab.denial(self._clock())
        if decision is not None:
            self._count(decision)
        return decision

    async def take(self, consumer: str) -> Decision:
        """Decides on one request, within `budget_s`."""
        decision = await self._decide(consumer)
        self._count(decision)
        return decision

    async def _decide(self, consumer: str) -> Decision:
        now = self._clock()
        tab = self._tab(consumer, now)
        known = tab.decide(now)
        if known is not None:
            return known
        question = self._asking.get(consumer)
        if question is None:
            if self.reliance.broken or self._group is None or len(self._asking) >= MOST_QUESTIONS:
                return self._alone(tab)
            question = self._asking[consumer] = _Question(now)
            tab.asked_at = now
            self._group.create_task(self._ask(consumer, tab, question), name="bucket")
        elif now - question.asked_at >= self._budget_s:
            return self._without(tab, question)
        mine: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        question.waiting.append(mine)
        try:
            async with asyncio.timeout(self._budget_s):
                return await mine
        except TimeoutError:
            answered = mine.done() and not mine.cancelled()
            return mine.result() if answered else self._without(tab, question)

    # --- beside the requests ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Asks the questions, probes a database that is left alone, forgets what is full again; until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                # Connects before anybody has to wait for that: who was over his rate is still so after a restart.
                self._group.create_task(self._probe(), name="bucket-probe")
                beats = 0
                while True:
                    await asyncio.sleep(self._beat_s)
                    beats += 1
                    self._sweep()
                    if self.reliance.broken:
                        await self._probe()
                    elif beats % PURGE_EVERY_BEATS == 0:
                        await self._purge()
        finally:
            self._group = None

    async def _ask(self, consumer: str, tab: Tab, question: _Question) -> None:
        try:
            while waiting := question.still_waiting():
                sent_at = question.asked_at = tab.asked_at = self._clock()
                question.late = False
                want = tab.want(waiting, sent_at, self._replicas)
                taken = await self._buckets.take(consumer, want)
                now = self._clock()
                self._metrics.ratelimit_backend_duration_seconds.labels("take").observe(now - sent_at)
                self._answered(sent_at, now)
                for decision in tab.answered(want, taken, question.still_waiting(), now):
                    question.tell(decision)
        except StoreUnavailable:
            if not self._row_is_busy(question):
                self._failed("take")
        finally:
            tab.asked_at = None
            del self._asking[consumer]
            while question.still_waiting():
                question.tell(tab.contended() if self._row_is_busy(question) else self._alone(tab))

    async def _probe(self) -> None:
        if self._probing:
            return
        self._probing = True
        sent_at = self._clock()
        try:
            await self._buckets.ping()
            self._answered(sent_at, self._clock())
        except StoreUnavailable:
            self._failed("ping")
        finally:
            self._probing = False

    async def _purge(self) -> None:
        try:
            for _ in range(PURGES_AT_ONCE):
                if not await self._buckets.purge():
                    return
        except StoreUnavailable:
            self._failed("purge")

    def _sweep(self) -> None:
        """Forgets the tabs that say nothing any more, of those that were not looked at for longest."""
        now = self._clock()
        oldest = [*zip(self._tabs.items(), range(SWEPT_AT_ONCE), strict=False)]
        for (consumer, tab), _ in oldest:
            if tab.says_nothing(now):
                del self._tabs[consumer]

    # --- how it is decided ------------------------------------------------------------------------------------------

    def _tab(self, consumer: str, now: float) -> Tab:
        tab = self._tabs.get(consumer)
        if tab is None:
            tab = self._tabs[consumer] = Tab(self.rate, now)
            if len(self._tabs) > MOST_TABS:
                oldest = next(iter(self._tabs))
                if oldest not in self._asking:
                    del self._tabs[oldest]
        self._tabs.move_to_end(consumer)
        return tab

    def _without(self, tab: Tab, question: _Question) -> Decision:
        """The answer is not there in time: because of this one row, or of the database."""
        if self._row_is_busy(question):
            return tab.contended()
        if not question.late:
            question.late = True
            was_broken = self.reliance.broken
            self.reliance.late()
            self._metrics.ratelimit_backend_errors_total.labels("take").inc()
            self._tell_broken(was_broken)
            if self._group is not None:
                self._group.create_task(self._probe(), name="bucket-probe")
        return self._alone(tab)

    def _row_is_busy(self, question: _Question) -> bool:
        """Whether the database answered in time what was asked after this, and still does: not where it is all of the table that
        nobody gets at."""
        return not self.reliance.broken and self.reliance.proved_at > question.asked_at

    def _alone(self, tab: Tab) -> Decision:
        return tab.alone(self._clock(), self._replicas)

    def _answered(self, sent_at: float, now: float) -> None:
        if now - sent_at >= self._budget_s:
            return  # too late to prove anything
        if self.reliance.broken:
            log.debug("consumer_rates_shared_again")
        self.reliance.answered(sent_at)

    def _failed(self, op: str) -> None:
        was_broken = self.reliance.broken
        self.reliance.failed()
        self._metrics.ratelimit_backend_errors_total.labels(op).inc()
        self._tell_broken(was_broken)

    def _tell_broken(self, was_broken: bool) -> None:
        if self.reliance.broken and not was_broken:
            log.debug("consumer_rates_decided_alone", extra={"replicas": self._replicas})

    def _count(self, decision: Decision) -> None:
        outcome = "allowed" if decision.allowed else "denied"
        self._metrics.consumer_ratelimit_decisions_total.labels(outcome, decision.layer.value).inc()
