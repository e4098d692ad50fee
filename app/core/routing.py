"""Which node is asked, in which order: a decision over what was observed, made again for every question.

    candidates   not barred, not cooling, affordable, breaker closed or a probe due
    order        by priority, which is the place in the configuration where none is stated, and among equals by latency; behind
                 all others whoever lags, has pruned the height, gave bad data lately, would be waited for or is not verified
    skipped      who is known to be far below the height: for this height only, nobody is banned
    none left    the breaker that opened first is tried: an answer that may not come is better than none

A node that declares to derive from the primary cannot be ahead of it. Where all others do, a height close to the head is asked of
the primary alone for a while (the exclusive grace), since the others could only say "not yet"; then of all, primary first.
Synchronous; `now` is an argument. `journey` walks what is planned here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from .breaker import Breaker, BreakerState
from .pace import Pace

HEAD_MEMORY_S = 60.0
"""How long the highest head seen speaks against a lower one: nodes behind one address are not all equally far."""

HEAD_TRUST_S = 10.0
"""A head not heard of for longer says nothing against a height."""

NEAR_BLOCKS = 16
"""A node this little behind may have the height by now: it is asked last. Further behind, it is not asked."""

DISTRUST_S = 60.0
"""A node whose data failed a check that another node's passed comes last for so long."""

LATENCY_WEIGHT = 0.2

LATENCY_MEMORY_S = 60.0
"""Among equals, whoever was not asked for so long is asked again: it may have become faster."""


class Work(StrEnum):
    """What is asked for: a word about the chain, or a whole block with its receipts."""

    LIGHT = "light"
    BODIES = "bodies"


class Part(StrEnum):
    """The calls that work is made of: a node may be good at one and not at another, and has a breaker for each."""

    LIGHT = "light"
    BLOCK = "block"
    RECEIPTS = "receipts"


NEEDED: Mapping[Work, tuple[Part, ...]] = {
    Work.LIGHT: (Part.LIGHT,),
    # A node that cannot even say its head is not asked for blocks.
    Work.BODIES: (Part.LIGHT, Part.BLOCK, Part.RECEIPTS),
}


class RouteKind(StrEnum):
    """How a question went through the nodes. The values are metric labels."""

    HEAD_AWARE = "head_aware"
    EXCLUSIVE = "exclusive"
    EXCLUSIVE_EXPIRED = "exclusive_expired"
    EXCLUSIVE_BROKEN = "exclusive_broken"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """What is configured. Times in seconds.

    A height so close to the head costs at most `grace_s` + `primary_retry_cap_s` before another node is asked, however the
    primary stalls: 8 s by default, 8.5 s with the other node's own answer.
    """

    freshness_blocks: int = 256
    grace_s: float = 6.0
    """For how long the primary alone is asked for a fresh height; 0: never."""
    primary_retry_cap_s: float = 2.0
    """What a primary that had its grace, or a node that is being probed, may still take while others are left."""
    min_useful_s: float = 0.2
    """A share of the time that is smaller is not worth a call: whoever is asked then gets all that is left."""
    hedge: bool = False


@dataclass(frozen=True, slots=True)
class LastError:
    """What last went wrong with a node, in words of a closed set: no address, no key, nothing that the node said."""

    what: str
    at: float


@dataclass(slots=True)
class NodeState:
    """What is known of one node. Owned by the node; every change happens between awaits."""

    name: str
    derives_from: str | None = None
    priority: int | None = None
    """Lower ones are asked first; None: its place among the nodes."""
    verified: bool = False
    """Its chain id was asked for and fits."""
    barred_until: float | None = None
    """It serves another chain, or refuses our credentials."""
    cooling_until: float | None = None
    spent_until: float | None = None
    """What its calls cost may not be spent on the errand in hand before then."""
    busy: frozenset[Work] = frozenset()
    """The work that would have to wait for its turn: the throughput that we may use is in use."""
    astray: bool = False
    """Its canonical chain contradicts what the others agree is final."""
    head: int | None = None
    """The highest head it named in the last minute."""
    head_at: float = 0.0
    """When it last named that head."""
    moved_at: float = 0.0
    """When its head last changed."""
    heard_at: float | None = None
    """When it last named any head."""
    pruned_below: int = 0
    """It said that it no longer keeps blocks below."""
    distrusted_until: float | None = None
    last_error: LastError | None = None
    breakers: Mapping[Part, Breaker] = field(default_factory=lambda: {part: Breaker() for part in Part})
    latency_s: dict[Part, float] = field(default_factory=dict)
    answered_at: dict[Part, float] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)

    # --- what happened ----------------------------------------------------------------------------------------------

    def note_block(self, height: int, now: float) -> None:
        """It returned a block at that height."""
        if self.head is None or height >= self.head or now - self.head_at > HEAD_MEMORY_S:
            if height != self.head:
                self.moved_at = now
            self.head, self.head_at = height, now

    def note_head(self, height: int, now: float, timestamp: int | None = None) -> None:
        """It named its head; with the timestamp where that was a block."""
        self.note_block(height, now)
        self.heard_at = now
        if timestamp is not None:
            self.pace.note(height, timestamp)

    def note_answer(self, part: Part, now: float, seconds: float) -> None:
        """It answered a call that took so long."""
        known = self.latency_s.get(part)
        self.answered_at[part] = now
        self.latency_s[part] = seconds if known is None else known + LATENCY_WEIGHT * (seconds - known)
        for each in {Part.LIGHT, part}:  # whoever sends a block is alive
            self.breakers[each].succeed(now - seconds)

    def note_failure(self, part: Part, now: float) -> None:
        """A call failed, and it is to blame."""
        self.breakers[part].fail(now)

    def note_kept(self, height: int) -> None:
        """It gave the block at `height` whole: it keeps more than it seemed to."""
        self.pruned_below = min(self.pruned_below, height)

    def note_pruned(self, height: int) -> None:
        """It no longer keeps the block at `height`."""
        self.pruned_below = max(self.pruned_below, height + 1)

    def distrust(self, part: Part, now: float) -> None:
        """Its data failed a check that another node's passed."""
        self.distrusted_until = now + DISTRUST_S
        self.note_failure(part, now)

    def begin(self, part: Part, now: float) -> None:
        """A call is about to be made."""
        for each in {Part.LIGHT, part}:
            self.breakers[each].begin(now)

    # --- what that means --------------------------------------------------------------------------------------------

    def resting_s(self, now: float) -> float:
        """For how long it must not be asked; 0 when it may be."""
        until = (self.barred_until or 0.0, self.cooling_until or 0.0, self.spent_until or 0.0)
        return max(0.0, max(until) - now)

    def admits(self, work: Work, now: float) -> bool:
        """Whether its breakers let this work through."""
        return all(self.breakers[part].admits(now) for part in NEEDED[work])

    def probed(self, work: Work, now: float) -> bool:
        """Whether asking it now would be a probe."""
        return any(self.breakers[part].state(now) is not BreakerState.CLOSED for part in NEEDED[work])

    def opened_at(self, work: Work) -> float:
        """When its breakers opened; 0 while they are closed."""
        return max(self.breakers[part].opened_at or 0.0 for part in NEEDED[work])

    def breaker_state(self, now: float) -> BreakerState:
        """The worst of its breakers."""
        return max(breaker.state(now) for breaker in self.breakers.values())

    def distrusted(self, now: float) -> bool:
        """Whether it gave bad data lately."""
        return self.distrusted_until is not None and now < self.distrusted_until

    def slowness(self, work: Work, now: float) -> int:
        """How long it takes for such work, in steps of which each is twice the one before: who differs by less is as fast. 0
        where that is not known, or was known too long ago."""
        parts = (Part.LIGHT,) if work is Work.LIGHT else (Part.BLOCK, Part.RECEIPTS)
        known = [part for part in parts if now - self.answered_at.get(part, -LATENCY_MEMORY_S) < LATENCY_MEMORY_S]
        return int(1000 * sum(self.latency_s[part] for part in known)).bit_length()

    def lag(self, height: int | None, now: float) -> int:
        """How far it is known to be below `height`; 0 when it has it, or may have it."""
        if height is None or self.head is None or self.head >= height:
            return 0
        if self.heard_at is None or now - self.heard_at > HEAD_TRUST_S:
            return 0
        return height - self.head


@dataclass(frozen=True, slots=True)
class Route:
    """A plan: the nodes to ask by index, in order. `exclusive_until`: the primary alone until then.

    `declared`: the others all derive from the primary. `beyond`: every node is known to be far below the height, so that asking
    would only cost a call; `order` is empty then.
    """

    kind: RouteKind
    order: tuple[int, ...]
    exclusive_until: float | None = None
    declared: bool = False
    beyond: bool = False


def plan(
    nodes: Sequence[NodeState],
    height: int | None,
    work: Work,
    rules: RoutingRules,
    now: float,
    ends_at: float | None = None,
) -> Route:
    """Whom to ask for `height` (None: for something whose height is not known), by `ends_at` at the latest.

    Requires at least one node; the first is the primary.
    """
    in_use = [index for index, node in enumerate(nodes) if not node.astray] or list(range(len(nodes)))
    usable = [index for index in in_use if not nodes[index].resting_s(now)]
    if not usable:
        # Asking costs nothing: each of them is refused before a call is made, and says for how long.
        return Route(RouteKind.HEAD_AWARE, tuple(sorted(in_use, key=lambda at: nodes[at].resting_s(now))))
    reaching = [index for index in usable if nodes[index].lag(height, now) <= NEAR_BLOCKS]
    if not reaching:
        resting = [at for at in in_use if at not in usable and not nodes[at].lag(height, now)]
        return Route(RouteKind.HEAD_AWARE, tuple(resting), beyond=not resting)
    chosen = [index for index in reaching if nodes[index].admits(work, now)]
    if not any(nodes[index].lag(height, now) == 0 for index in chosen):
        opened = [index for index in reaching if index not in chosen and not nodes[index].lag(height, now)]
        if opened or not chosen:
            chosen.append(min(opened or reaching, key=lambda at: (nodes[at].opened_at(work), at)))

    def rank(index: int) -> tuple[bool, bool, bool, bool, bool, int, int, int]:
        node = nodes[index]
        pruned = height is not None and height < node.pruned_below
        last = node.lag(height, now) > 0, pruned, node.distrusted(now), work in node.busy, not node.verified
        priority = index if node.priority is None else node.priority
        return *last, priority, node.slowness(work, now), index

    order = tuple(sorted(chosen, key=rank))
    if not _derived(nodes, order):
        return Route(RouteKind.HEAD_AWARE, order)
    if _fresh(nodes[0], height, work, rules, now):
        window_s = rules.grace_s if ends_at is None else min(rules.grace_s, (ends_at - now) / 2)
        return Route(RouteKind.EXCLUSIVE, (0, *(at for at in order if at)), now + window_s, declared=True)
    return Route(RouteKind.FULL, order, declared=True)


def _derived(nodes: Sequence[NodeState], order: Sequence[int]) -> bool:
    """Whether the primary is among the chosen and all others declare, if by way of another, to derive from it."""
    if 0 not in order or len(order) < 2:
        return False
    source = {node.name: node.derives_from for node in nodes}
    for index in order:
        name: str | None = nodes[index].name
        for _ in nodes:  # a circle of declarations ends nowhere
            if name is None or name == nodes[0].name:
                break
            name = source.get(name)
        if name != nodes[0].name:
            return False
    return True


def _fresh(primary: NodeState, height: int | None, work: Work, rules: RoutingRules, now: float) -> bool:
    """Whether only the primary can be expected to have the height: it is close to a head that was heard of just now."""
    if height is None or primary.head is None or primary.heard_at is None or rules.grace_s <= 0:
        return False
    if not primary.verified or primary.distrusted(now) or primary.probed(work, now) or height < primary.pruned_below:
        return False
    block_time_s = primary.pace.block_time_s or 0.0
    heard_lately = now - primary.heard_at <= max(rules.grace_s, 2 * block_time_s)
    return heard_lately and primary.head - height <= rules.freshness_blocks


def frontier(nodes: Sequence[NodeState], now: float, rules: RoutingRules) -> int | None:
    """The highest head that any node named lately and another one bears out; None while none named any.

    One that is far above all others is a lie, or theirs are: it decides about nobody's absence.
    """
    heads = sorted(
        (node.head for node in nodes if node.head is not None and now - node.head_at <= HEAD_MEMORY_S), reverse=True
    )
    while len(heads) > 1 and heads[0] - heads[1] > rules.freshness_blocks:
        del heads[0]
    return heads[0] if heads else None
