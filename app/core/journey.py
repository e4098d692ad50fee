"""One question on its way through the nodes of a chain: whom to ask next, for how long, and when to give up.

    one node       asked with patience: it is all there is
    several        each once and in a hurry, in the order of the route; then, with patience, those who may still deliver
    exclusive      before that the primary alone, again and again, until its grace ends or it is seen to be unable

A node whose data failed a check is not asked again for the same thing, unless it is the only one: then once. Synchronous, with
`now` as an argument: the caller asks `next`, does as told, and reports with `came_back`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .routing import NodeState, RouteKind, RoutingRules, Work, plan

RETRY_PAUSE_S = 0.15
"""Before somebody is asked for the second time; doubled each time after that."""

LONGEST_PAUSE_S = 1.0


class Outcome(Enum):
    """What came of asking one node."""

    FAILED = "failed"  # no answer, or none of use; may be better the next time
    HARD = "hard"  # refused, reset, no TLS, an HTML page: nothing that waiting mends
    UNABLE = "unable"  # it does not serve us, or not this chain, or not this
    LIMITED = "limited"
    LATE = "late"  # our own time is up
    ABSENT = "absent"  # null, although its head is there
    BEHIND = "behind"  # null, and its head is below
    LACKING = "lacking"  # the block without its receipts
    INVALID = "invalid"
    DOUBTFUL = "doubtful"  # a block that others may have better
    PRUNED = "pruned"


_NOT_YET = frozenset({Outcome.FAILED, Outcome.ABSENT, Outcome.BEHIND, Outcome.LACKING})
_MAY_DELIVER = frozenset({Outcome.FAILED, Outcome.HARD, Outcome.LACKING})
_NEVER_AGAIN = frozenset({Outcome.INVALID, Outcome.DOUBTFUL, Outcome.PRUNED})


@dataclass(frozen=True, slots=True)
class Turn:
    """One node's turn: after `pause_s` it has `limit_s` (None: all that is left). A `retry` is to be paid for.

    `patient`: what fails in passing is tried again in place, since nobody else is left to ask.
    """

    node: int
    limit_s: float | None = None
    pause_s: float = 0.0
    patient: bool = False
    retry: bool = False
    exclusive: bool = False


class Journey:
    """Owned by the call that makes it. `kinds` is how it went so far, for whoever counts."""

    def __init__(
        self,
        nodes: Sequence[NodeState],
        height: int | None,
        work: Work,
        rules: RoutingRules,
        now: float,
        ends_at: float | None = None,
    ) -> None:
        self._nodes = nodes
        self._height = height
        self._work = work
        self._rules = rules
        self._ends_at = ends_at
        self.route = plan(nodes, height, work, rules, now, ends_at)
        self.kinds = [self.route.kind]
        self.outcomes: dict[int, Outcome] = {}
        """The last outcome of each node that was asked."""
        self._exclusive_until = self.route.exclusive_until
        self._repeats = 0
        self._wait_s: float | None = None
        self._queue: deque[int] = deque(self.route.order)
        self._alone = len(self.route.order) == 1
        self._last_resort = {index for index in self.route.order if not nodes[index].admits(work, now)}
        self._patient = self._alone
        self._over = False

    def __repr__(self) -> str:
        asked = {self._nodes[index].name: outcome.value for index, outcome in self.outcomes.items()}
        return f"<Journey {'/'.join(self.kinds)} asked {asked}, {len(self._queue)} to go>"

    def next(self, now: float) -> Turn | None:
        """Whose turn it is; None when nobody is left to ask."""
        if self._over:
            return None
        if self._exclusive_until is not None:
            turn = self._exclusive(now, self._exclusive_until)
            if turn is not None:
                return turn
        while True:
            while self._queue:
                index = self._queue.popleft()
                if self._alone or self._may_ask(index, now):
                    return self._turn(index, now)
            if self._patient:
                return None
            self._patient = True
            self._queue.extend(index for index in self.route.order if self._may_deliver(index))

    def came_back(self, turn: Turn, outcome: Outcome, now: float, wait_s: float | None = None) -> None:
        """What came of a turn. `wait_s` is what a limit asks for."""
        again = turn.node in self.outcomes
        self.outcomes[turn.node] = outcome
        if outcome is Outcome.LATE:
            self._over = True
        elif turn.exclusive:
            fits = outcome is Outcome.LIMITED and wait_s is not None and now + wait_s < (self._exclusive_until or now)
            self._wait_s = wait_s if fits else None
            if outcome not in _NOT_YET and not fits:
                self._break_off()
        elif self._alone and outcome is Outcome.INVALID and not again:
            # A balancer may have mixed two nodes: the only address there is gets a second chance.
            self._queue.append(turn.node)

    def stop(self) -> None:
        """There is no time to ask anybody else."""
        self._over = True

    def forgo(self, turn: Turn) -> None:
        """There was no budget for a turn that is a retry."""
        if turn.exclusive:
            self._break_off()

    def backup(self, now: float) -> Turn | None:
        """The next node, to be asked beside one that is slow, if it is in good standing. None: nobody."""
        if self._patient or self._exclusive_until is not None or not self._queue:
            return None
        index = self._queue[0]
        node = self._nodes[index]
        sound = node.verified and not node.probed(self._work, now) and not node.distrusted(now)
        has_it = not node.lag(self._height, now) and not (self._height or 0) < node.pruned_below
        if index in self.outcomes or not (sound and has_it):
            return None
        self._queue.popleft()
        return Turn(index)

    def put_back(self, turn: Turn) -> None:
        """A turn that was not taken, or not heard to its end: it may come again, before all others."""
        self._queue.appendleft(turn.node)

    # --- in order ---------------------------------------------------------------------------------------------------

    def _turn(self, index: int, now: float) -> Turn:
        again = index in self.outcomes
        pause_s = 0.0
        if again and self.outcomes[index] is not Outcome.INVALID and self._patient:
            pause_s = min(RETRY_PAUSE_S * 2**self._repeats, LONGEST_PAUSE_S)
            self._repeats += 1
        # A node in trouble is worth a retry's price even the first time; a sound one is always asked.
        retry = bool(self.outcomes) and (again or self._nodes[index].probed(self._work, now))
        if self._alone:
            retry = False
        return Turn(index, self._limit_s(index, now), pause_s, self._patient, retry)

    def _limit_s(self, index: int, now: float) -> float | None:
        """With others left to ask half of what is left, so that one who stalls cannot use it up; the last one gets it all."""
        if not self._queue:
            return None
        limits = []
        if self._ends_at is not None and (self._ends_at - now) / 2 >= self._rules.min_useful_s:
            limits.append((self._ends_at - now) / 2)
        had_its_grace = self.route.declared and index == 0
        if had_its_grace or self._nodes[index].probed(self._work, now):
            limits.append(self._rules.primary_retry_cap_s)
        return min(limits, default=None)

    def _may_ask(self, index: int, now: float) -> bool:
        if self.outcomes.get(index) in _NEVER_AGAIN:
            return False
        # One whose breaker opened on the way is passed over; one that was chosen in spite of it is not.
        return self._patient or index in self._last_resort or self._nodes[index].admits(self._work, now)

    def _may_deliver(self, index: int) -> bool:
        outcome = self.outcomes.get(index)
        if outcome is None:  # passed over because of its breaker
            return True
        if outcome is Outcome.ABSENT:
            # The word of one node against a block is heard twice; that of two is enough.
            return sum(other is Outcome.ABSENT for other in self.outcomes.values()) == 1
        return outcome in _MAY_DELIVER

    # --- the exclusive grace ----------------------------------------------------------------------------------------

    def _exclusive(self, now: float, until: float) -> Turn | None:
        left_s, repeated = until - now, 0 in self.outcomes
        if left_s <= self._rules.min_useful_s * (2 if repeated else 1):
            self._exclusive_until = None
            self.kinds.append(RouteKind.EXCLUSIVE_EXPIRED)
            return None
        pause_s = 0.0
        if repeated:
            pause_s = min(RETRY_PAUSE_S * 2**self._repeats, LONGEST_PAUSE_S) if self._wait_s is None else self._wait_s
            pause_s = min(pause_s, left_s - self._rules.min_useful_s)
            self._repeats += 1
        return Turn(0, left_s - pause_s, pause_s, retry=repeated, exclusive=True)

    def _break_off(self) -> None:
        """The primary is seen to be unable: the others at once, the primary last if ever."""
        self._exclusive_until = None
        self.kinds.append(RouteKind.EXCLUSIVE_BROKEN)
        self._queue.remove(0)
        self._queue.append(0)
