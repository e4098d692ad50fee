"""One question taken from node to node until one answers it, or what it means that none does.

`core.journey` says whose turn it is; here the turns are taken, and what came of them is turned into an answer or a `ProofError`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar, cast

from app.core.blocks import BlockBodies
from app.core.breaker import BreakerState
from app.core.deadlines import deadline, turn_ends_at
from app.core.errors import (
    BlockNotOnSourceChain,
    ContentInvalid,
    Doubtful,
    HistoryUnavailable,
    InconsistentSource,
    ProofError,
    RequestTimeout,
    RpcUnavailable,
    UpstreamBudgetExhausted,
    Witnesses,
)
from app.core.journey import Journey, Outcome, Turn
from app.core.purpose import again
from app.core.routing import NodeState, Part, RouteKind, RoutingRules, Work, frontier
from app.core.seldom import Seldom

from .evm import EvmNode
from .faults import HARD, CallFailed, Fault
from .reading import Absent, NodeReader
from .retries import Patience, RetryBudget

ATTEMPTS = 3
"""Attempts at one call of the only node, the first included."""

ATTEMPTS_AGAIN = 2
"""And of one of several nodes, once all were asked."""

_UNABLE = frozenset(
    {
        Fault.DENIED,
        Fault.WRONG_CHAIN,
        Fault.HTTP_4XX,
        Fault.METHOD_NOT_SUPPORTED,
        Fault.INVALID_PARAMS,
        Fault.TOO_BIG,
        Fault.BODY_TOO_LARGE,
        Fault.NOT_SERVED,
    }
)

T = TypeVar("T")

logger = logging.getLogger("copath.upstream")


class Lacking(Exception):
    """A node in a hurry has the block and not its receipts: another may have both."""

    def __init__(self, bodies: BlockBodies) -> None:
        super().__init__(bodies.upstream)
        self.bodies = bodies


Setback = CallFailed | ContentInvalid | Absent | Doubtful | Lacking
"""What a turn may come to instead of an answer."""

SETBACKS = (CallFailed, ContentInvalid, Absent, Doubtful, Lacking)


@dataclass(slots=True)
class Crew:
    """The nodes of one chain and what they share. Owned by the chain's `Failover`."""

    nodes: Sequence[EvmNode]
    rules: RoutingRules
    patience: Patience
    budget: RetryBudget = field(default_factory=RetryBudget)
    routes: Counter[RouteKind] = field(default_factory=Counter)
    seldom: Seldom = field(default_factory=Seldom)

    def reader(self, turn: Turn) -> NodeReader:
        """The node whose turn it is, for the length of the turn."""
        attempts = 1 if not turn.patient else ATTEMPTS if len(self.nodes) == 1 else ATTEMPTS_AGAIN
        return NodeReader(self.nodes[turn.node], self.patience, self.budget, attempts)

    def unify_chain_ids(self, now: float) -> None:
        """Where no chain id is configured, the first node that proved one decides for all."""
        proved = [node.standing.chain_id for node in self.nodes if node.standing.chain_id is not None]
        if not proved:
            return
        for node in self.nodes:
            standing = node.standing
            if standing.chain_id not in (None, proved[0]):
                standing.configured_chain_id = proved[0]
                standing.note_chain_id(standing.chain_id, now)
            elif standing.configured_chain_id is None:
                standing.configured_chain_id = proved[0]


class Trip:
    """Owned by the call that makes it. `height` None: that of what is asked for is not known."""

    def __init__(self, crew: Crew, height: int | None, work: Work) -> None:
        self._crew = crew
        self._height = height
        self._work = work
        now = crew.patience.now()
        crew.unify_chain_ids(now)
        self._states = [node.observed(now) for node in crew.nodes]
        self.journey = Journey(self._states, height, work, crew.rules, now, deadline.get())
        self._setbacks: dict[int, Setback] = {}
        self.doubtful: dict[int, Doubtful] = {}
        """The last of each node, by its place."""
        self.at = Turn(0)
        """Whose turn it is. A race that the other node won makes it that node's."""

    def __repr__(self) -> str:
        return f"<Trip {self.journey!r}>"

    async def first(self, visit: Callable[[NodeReader, Turn], Awaitable[T]]) -> T:
        """What the first visit that comes to something returns.

        Raises `ProofError`: the last word of all nodes together, or whatever else a visit raises, at once.
        """
        if again.get() and not self._crew.budget.take(self._crew.patience.now()):
            raise RpcUnavailable("too many calls failed lately for this to be asked once more")
        try:
            while (turn := self.journey.next(self._crew.patience.now())) is not None:
                if not await self._may_take(turn):
                    continue
                self.at = turn
                try:
                    value = await visit(self._crew.reader(turn), turn)
                except SETBACKS as setback:
                    self.note(self.at, setback)
                    continue
                except ProofError:
                    raise
                except Exception as fault:  # noqa: BLE001 - whatever one node's answer leads to, the next one is asked
                    self.note(self.at, self._crew.nodes[self.at.node].crashed(fault))
                    continue
                self.blame_others(self.at.node, value)
                return value
        finally:
            self._crew.routes.update(self.journey.kinds)
        raise self.verdict()

    async def first_or_none(self, visit: Callable[[NodeReader, Turn], Awaitable[T]]) -> T | None:
        """As `first`; the best of what is doubtful where nothing is better; None where the last word is that there is nothing of
        the kind."""
        try:
            return await self.first(visit)
        except ProofError:
            if self.doubtful:
                return cast("T", self.settled())
            if self.missing:
                return None
            raise

    @contextmanager
    def limited(self, turn: Turn) -> Iterator[None]:
        """Calls made inside end with the turn, and are then the node's fault."""
        if turn.limit_s is None:
            yield
            return
        token = turn_ends_at.set(self._crew.patience.now() + turn.limit_s)
        try:
            yield
        finally:
            turn_ends_at.reset(token)

    def note(self, turn: Turn, setback: Setback) -> None:
        """A turn that came to nothing."""
        self._setbacks[turn.node] = setback
        wait_s = None
        if isinstance(setback, ContentInvalid):
            self._crew.nodes[turn.node].note_invalid(setback.check)
        elif isinstance(setback, Doubtful):
            self.doubtful[turn.node] = setback
        elif isinstance(setback, CallFailed):
            wait_s = setback.retry_after_s
        self.journey.came_back(turn, _outcome_of(setback), self._crew.patience.now(), wait_s)

    async def _may_take(self, turn: Turn) -> bool:
        crew, now = self._crew, self._crew.patience.now()
        if turn.retry:
            if not crew.budget.take(now):
                self.journey.forgo(turn)
                return False
        elif self.journey.outcomes:
            crew.budget.spend(now)
        if turn.pause_s and not await crew.patience.wait(turn.pause_s):
            self.journey.stop()
            return False
        return True

    def blame_others(self, good: int, value: object) -> None:
        """Another node had what these gave badly: it is their fault, and no gap in what is known here of the chain."""
        for index, setback in self._setbacks.items():
            refuted = isinstance(setback, Doubtful) and setback.refuted_by(value)
            if index == good or not (refuted or isinstance(setback, ContentInvalid)):
                continue
            check = getattr(setback, "check", "")
            if refuted and check:  # what failed a check was counted when it did
                self._crew.nodes[index].note_invalid(check)
            part = Part.BLOCK if self._work is Work.BODIES else Part.LIGHT
            self._states[index].distrust(part, self._crew.patience.now())
            if self.worth_saying("corrected", self._states[index].name, check):
                detail = check if isinstance(setback, Doubtful) else str(setback)
                facts = {**self._crew.nodes[index].facts, "check": check, "detail": detail}
                logger.warning("upstream_corrected_by_another", extra=facts)

    def worth_saying(self, *what: str) -> bool:
        """Whether the log holds no line of this of the last minute."""
        return self._crew.seldom.due(what, self._crew.patience.now()) is not None

    # --- the last word ----------------------------------------------------------------------------------------------

    def is_foremost(self, index: int) -> bool:
        """Whether no other node is known to be further: what such a node does not know, the chain does not have."""
        newest = frontier(self._states, self._crew.patience.now(), self._crew.rules)
        head = self._states[index].head
        return newest is None or (head is not None and head >= newest)

    @property
    def missing(self) -> bool:
        """Whether a node that would have to know answered that there is no such thing: one whose head is above the height, or
        that is as far as any where there is no height to go by."""
        return any(self._height is not None or self.is_foremost(index) for index, _ in self._absences(behind=False))

    @property
    def silent(self) -> bool:
        """Whether a node that is in use, and has not failed for long, did not say that there is no such thing."""
        absent = {index for index, _ in (*self._absences(behind=False), *self._absences(behind=True))}
        now = self._crew.patience.now()
        return any(
            at not in absent
            and state.barred_until is None
            and not state.astray
            and state.breakers[Part.LIGHT].state(now) is BreakerState.CLOSED
            for at, state in enumerate(self._states)
        )

    def verdict(self) -> ProofError:
        """What it means that no node had an answer."""
        setbacks = self._setbacks
        if self.journey.route.beyond:
            head = frontier(self._states, self._crew.patience.now(), self._crew.rules)
            return BlockNotOnSourceChain(f"block {self._height} is above the head {head} of the source chain")
        failures = {index: each for index, each in setbacks.items() if isinstance(each, CallFailed)}
        late = [index for index, each in failures.items() if each.fault is Fault.DEADLINE]
        if late:
            name = self._states[late[0]].name
            return RequestTimeout(f"upstream {name}: {failures[late[0]].message}", stage="fetch")
        invalid = {index: each for index, each in setbacks.items() if isinstance(each, ContentInvalid)}
        if invalid:
            return self._inconsistent(invalid)
        missing, above = self._absences(behind=False), self._absences(behind=True)
        if self.missing and (self._height is None or len(missing) > 1):
            # The word of a single node against a height below its own head is doubted: it may have lost the block.
            return BlockNotOnSourceChain(missing[0][1].message)
        if not missing and any(self.is_foremost(index) for index, _ in above):
            return BlockNotOnSourceChain(above[0][1].message)
        if failures and len(failures) == len(setbacks):
            return self._unavailable(failures)
        said = [absent.message for _, absent in missing or above]
        said += [f"upstream {self._states[index].name}: {each.message}" for index, each in failures.items()]
        return RpcUnavailable("; ".join(said) or "no upstream can be asked")

    def _absences(self, *, behind: bool) -> list[tuple[int, Absent]]:
        return [
            (index, each)
            for index, each in self._setbacks.items()
            if isinstance(each, Absent) and each.behind == behind
        ]

    def _inconsistent(self, invalid: dict[int, ContentInvalid]) -> ProofError:
        index, last = next(reversed(invalid.items()))
        alike = len(invalid) > 1 and len({each.check for each in invalid.values()}) == 1
        if alike and self.worth_saying("alike", last.check):
            # Nodes that do not know each other do not lie alike.
            logger.error("upstreams_fail_the_same_check", extra={"check": last.check, "detail": str(last)})
        message = f"the data of upstream {self._states[index].name} failed a check, {last}"
        return InconsistentSource(message, check=last.check)

    def settled(self) -> object:
        """The best of what is doubtful, as far as other nodes bear it out. Raises the `ProofError` that it is."""
        index, best = max(self.doubtful.items(), key=lambda each: each[1].worth)
        value = best.settled_by(self._witnesses_of(index, best))
        self.blame_others(index, best.value)
        if isinstance(value, ProofError):
            raise value
        return value

    def _witnesses_of(self, index: int, refusal: Doubtful) -> Witnesses:
        """Whether a second node says what one does, or could."""
        others = {at: each for at, each in self.doubtful.items() if at != index}
        if all(any(claim in each.claims for each in others.values()) for claim in refusal.claims):
            return Witnesses.SEVERAL
        height = self._height or 0
        could_say = [
            state
            for at, state in enumerate(self._states)
            if at != index
            and state.barred_until is None
            and not state.astray
            and height >= state.pruned_below
            and not _is_pruned(self._setbacks.get(at))
        ]
        return Witnesses.UNHEARD if could_say else Witnesses.ONLY

    def unheard(self, *asked: int) -> list[NodeState]:
        """Nodes that may have what the asked ones no longer keep: they rest, and did not come to their turn."""
        height = self._height or 0
        return [
            state
            for index, state in enumerate(self._states)
            if index not in self._setbacks
            and index not in asked
            and state.barred_until is None
            and height >= state.pruned_below
        ]

    def _unavailable(self, failures: dict[int, CallFailed]) -> ProofError:
        said = "; ".join(f"upstream {self._states[index].name}: {each.message}" for index, each in failures.items())
        if all(each.fault is Fault.PRUNED for each in failures.values()):
            unheard = self.unheard()
            if not unheard:
                return HistoryUnavailable(said)
            now = self._crew.patience.now()
            return RpcUnavailable(
                f"{said}; not asked: {', '.join(state.name for state in unheard)}",
                retry_after_s=min((state.resting_s(now) for state in unheard), default=None) or None,
            )
        waits = [each.retry_after_s for each in failures.values()]
        known = [wait_s for wait_s in waits if wait_s is not None]
        if all(each.fault is Fault.SPENT for each in failures.values()):
            return UpstreamBudgetExhausted(f"what is known already is still served; {said}", retry_after_s=min(known))
        return RpcUnavailable(said, retry_after_s=min(known) if len(known) == len(waits) else None)


def _is_pruned(setback: Setback | None) -> bool:
    return isinstance(setback, CallFailed) and setback.fault is Fault.PRUNED


def _outcome_of(setback: Setback) -> Outcome:
    if isinstance(setback, ContentInvalid):
        return Outcome.INVALID
    if isinstance(setback, Absent):
        return Outcome.BEHIND if setback.behind else Outcome.ABSENT
    if isinstance(setback, Doubtful):
        return Outcome.DOUBTFUL
    if isinstance(setback, Lacking):
        return Outcome.LACKING
    if setback.fault is Fault.DEADLINE:
        return Outcome.LATE
    if setback.fault in (Fault.RATE_LIMITED, Fault.SPENT):
        return Outcome.LIMITED
    if setback.fault is Fault.PRUNED:
        return Outcome.PRUNED
    if setback.fault in _UNABLE:
        return Outcome.UNABLE
    return Outcome.HARD if setback.fault in HARD else Outcome.FAILED
