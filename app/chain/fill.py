"""One fill, as the function that performs it sees it, and what its failure means."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

from app.core import errors
from app.core.budget import Priority
from app.core.deadlines import deadline
from app.core.errors import ProofError, RequestTimeout
from app.core.purpose import Errand

if TYPE_CHECKING:
    from app.chain.ports import Clock


class Stage(enum.StrEnum):
    """How far a fill is. The values name the stage in a `RequestTimeout`."""

    QUEUED = "queue"
    RESOLVING = "resolve"
    FETCHING = "fetch"
    VERIFYING = "verify"
    BUILDING = "build"


class Verdict(enum.Enum):
    """What the end of a failed fill means for its key."""

    PERMANENT = "permanent"  # a property of the block: told to everybody, remembered
    ANSWER = "answer"  # a definite answer or a refusal: told to everybody, not remembered
    FAILURE = "failure"  # may work the second time
    STALL = "stall"  # took its whole time: a second one is not bought


_PERMANENT = (
    errors.EmptyBlockTxProof,
    errors.UnsupportedBlockFormat,
    errors.NotCommittedByHeader,
    errors.UnsupportedTransactionType,
    errors.HeaderHashUnsupported,
    errors.HistoryUnavailable,
)
_FAILURES = (
    errors.RpcUnavailable,
    errors.InconsistentSource,
    errors.SelfCheckFailed,
    errors.MerkleError,
    errors.Internal,
)


def judge(error: BaseException) -> Verdict:
    """The default reading of a fill's error."""
    if isinstance(error, _PERMANENT):
        return Verdict.PERMANENT
    if isinstance(error, RequestTimeout | TimeoutError):
        return Verdict.STALL
    if isinstance(error, ProofError) and not isinstance(error, _FAILURES):
        return Verdict.ANSWER
    return Verdict.FAILURE


class Fill:
    """A running fill as the fill function sees it: it tells the stage, and hears of a promotion.

    `priority` is the class of the fill now, `generation` 1 or 2, `deadline` the clock's time at which it is cut, or None
    while it is queued: waiting for a permit is bounded by those who wait, not by the fill. `valid` turns false when the
    key was invalidated: what the fill has read no longer describes the chain, and nothing of it may be published.
    """

    def __init__(self, clock: Clock, priority: Priority, generation: int, limit_s: float) -> None:
        self.priority = priority
        self.generation = generation
        self.stage = Stage.QUEUED
        self.started_at: float | None = None
        self.deadline: float | None = None
        self.valid = True
        self.remember_s: float | None = None
        """For how long a lasting refusal is remembered; None: as long as usual."""
        self.given_up_late = False
        """Whether the last who waited for it left because its time was over, and not of its own accord."""
        self._clock = clock
        self._limit_s = limit_s
        self._limit: asyncio.Timeout | None = None
        self._promote: Callable[[], None] | None = None
        self._hear: Callable[[Errand], None] | None = None
        self._joined: list[Errand] = []

    def enter(self, stage: Stage) -> None:
        """Marks a transition. The first stage after QUEUED starts the fill's own deadline, for the calls made on its behalf
        too: called in the fill's own task."""
        self.stage = stage
        if stage is not Stage.QUEUED and self.started_at is None:
            self.started_at = self._clock.now()
            self.deadline = self.started_at + self._limit_s
            assert self._limit is not None
            deadline.set(self.deadline)
            self._limit.reschedule(asyncio.get_running_loop().time() + self._limit_s)

    @property
    def timed_out(self) -> bool:
        """Whether the fill is being cancelled because its own deadline passed."""
        return self._limit is not None and self._limit.expired()

    def attach(self, limit: asyncio.Timeout, stage: Stage) -> None:
        """For `Flights`: the fill begins."""
        self._limit = limit
        self.enter(stage)

    def promote(self) -> None:
        """For `Flights`: a request joined."""
        self.priority = Priority.REQUEST
        if self._promote is not None:
            self._promote()

    def on_promote(self, callback: Callable[[], None]) -> None:
        """`callback` is called, at most once, when a request joins this fill while it is a backfill's."""
        self._promote = callback

    def join(self, errand: Errand) -> None:
        """For `Flights`: a request on this errand waits for the fill too."""
        if self._hear is not None:
            self._hear(errand)
        elif not self._joined or self._joined[-1] is not errand:
            self._joined.append(errand)

    def on_join(self, callback: Callable[[Errand], None]) -> None:
        """`callback` is called with the errand of every other request that waits for this fill, those before this call
        included."""
        self._hear = callback
        for errand in self._joined:
            callback(errand)
        self._joined.clear()
