"""Which node is asked, in which order and for how long: decisions over what was observed, without a node in sight."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from app.core.journey import Journey, Outcome, Turn
from app.core.routing import (
    LATENCY_MEMORY_S,
    NEAR_BLOCKS,
    NodeState,
    Part,
    Route,
    RouteKind,
    RoutingRules,
    Work,
    frontier,
    plan,
)

RULES = RoutingRules()
NOW = 1000.0
HEAD = 20_000


def node(name: str, head: int | None = HEAD, *, derives_from: str | None = None, verified: bool = True) -> NodeState:
    """A node that named its head just now."""
    state = NodeState(name, derives_from, verified=verified)
    if head is not None:
        state.note_head(head, NOW)
    return state


def pair(*, derived: bool = False, head: int | None = HEAD) -> list[NodeState]:
    """A primary and one more."""
    return [node("a", head), node("b", head, derives_from="a" if derived else None)]


def planned(
    nodes: Sequence[NodeState],
    height: int | None = HEAD,
    work: Work = Work.BODIES,
    now: float = NOW,
    ends_at: float | None = None,
) -> Route:
    return plan(nodes, height, work, RULES, now, ends_at)


def broken(state: NodeState, part: Part = Part.BLOCK, now: float = NOW) -> NodeState:
    """Its breaker opens."""
    for _ in range(5):
        state.note_failure(part, now)
    return state


def walked(
    nodes: Sequence[NodeState], outcomes: dict[int, list[Outcome]], height: int = HEAD, ends_at: float | None = None
) -> tuple[list[Turn], Journey]:
    """The turns of a journey on which nodes come back with these outcomes, in order, and then find what is wanted. A turn takes
    no time, a pause its own."""
    journey = Journey(nodes, height, Work.BODIES, RULES, NOW, ends_at)
    now, turns = NOW, []
    while (turn := journey.next(now)) is not None:
        turns.append(turn)
        now += turn.pause_s
        left = outcomes.get(turn.node)
        if not left:
            break
        journey.came_back(turn, left.pop(0), now)
    return turns, journey


# --- who is asked ---------------------------------------------------------------------------------------------------


def test_nodes_are_asked_as_configured() -> None:
    assert planned([node("a"), node("b"), node("c")]) == Route(RouteKind.HEAD_AWARE, (0, 1, 2))
    assert planned([node("a", None), node("b", None)], None).order == (0, 1)


def taking(state: NodeState, seconds: float, now: float = NOW) -> NodeState:
    """It answers every kind of call, in so long each."""
    for part in Part:
        state.note_answer(part, now, seconds)
    return state


def test_priority_goes_before_place_and_latency_decides_nothing_between_priorities() -> None:
    nodes = [taking(node("a"), 0.01), node("b"), taking(node("c"), 2.0)]
    nodes[0].priority, nodes[1].priority, nodes[2].priority = 5, 5, 1
    assert planned(nodes).order == (2, 1, 0), "of the two that are equal nothing is known of b yet"
    slow_first = [taking(node("a"), 2.0), taking(node("b"), 0.01)]
    assert planned(slow_first).order == (0, 1), "as configured, however slow"


def test_among_equals_the_fastest_is_asked_first_and_a_little_faster_is_not_faster() -> None:
    nodes = [taking(node("a"), 0.4), taking(node("b"), 0.05), taking(node("c"), 0.045)]
    for each in nodes:
        each.priority = 0
    assert planned(nodes).order == (1, 2, 0)
    assert planned(nodes, work=Work.LIGHT).order == (1, 2, 0)


def test_among_equals_one_that_was_not_asked_for_a_minute_is_asked_again() -> None:
    nodes = [taking(node("a"), 0.4), taking(node("b"), 0.05)]
    for each in nodes:
        each.priority = 0
    later = NOW + LATENCY_MEMORY_S
    taking(nodes[1], 0.05, later)
    assert planned(nodes, now=later).order == (0, 1)


def test_a_node_that_lags_is_skipped_for_that_height_and_not_banned() -> None:
    nodes = [node("a", HEAD - 100), node("b")]
    assert planned(nodes, HEAD).order == (1,)
    assert planned(nodes, HEAD - 100).order == (0, 1)


def test_a_node_that_may_have_caught_up_by_now_is_asked_last() -> None:
    nodes = [node("a", HEAD - NEAR_BLOCKS), node("b")]
    assert planned(nodes, HEAD).order == (1, 0)


def test_a_head_not_heard_of_lately_says_nothing_against_a_height() -> None:
    nodes = [node("a", HEAD - 100), node("b")]
    assert planned(nodes, HEAD, now=NOW + 10.1).order == (0, 1)


def test_row_13_a_height_far_above_every_head_costs_no_call() -> None:
    route = planned(pair(), HEAD + NEAR_BLOCKS + 1)
    assert (route.order, route.beyond) == ((), True)
    assert not planned(pair(), HEAD + NEAR_BLOCKS).beyond
    assert not planned(pair(head=None), HEAD + 1000).beyond


def test_a_height_that_only_a_resting_node_has_is_not_beyond_the_chain() -> None:
    nodes = pair()
    nodes[0].cooling_until = NOW + 3
    nodes[1].head = HEAD - 100
    route = planned(nodes, HEAD)
    assert (route.order, route.beyond) == ((0,), False)


def test_a_node_that_has_pruned_the_height_is_asked_last() -> None:
    nodes = pair()
    nodes[0].note_pruned(500)
    assert planned(nodes, 500).order == (1, 0)
    assert planned(nodes, 501).order == (0, 1)


def test_D2_a_node_that_gave_bad_data_is_asked_last_for_a_while() -> None:
    nodes = pair()
    nodes[0].distrust(Part.BLOCK, NOW)
    assert planned(nodes).order == (1, 0)
    assert planned(nodes, now=NOW + 60).order == (0, 1)


def test_U16_a_node_that_has_to_be_verified_first_does_not_hold_up_those_who_can_use_another() -> None:
    nodes = [node("a", verified=False), node("b")]
    assert planned(nodes).order == (1, 0)
    assert planned([node("a", verified=False), node("b", verified=False)]).order == (0, 1)


def test_B35_a_node_of_another_chain_or_one_that_refuses_us_is_not_asked() -> None:
    nodes = pair()
    nodes[0].barred_until = NOW + 60
    assert planned(nodes).order == (1,)
    assert planned(nodes, now=NOW + 60).order == (0, 1)


def test_a_node_on_another_chain_than_the_rest_is_not_asked_whatever_happens_to_them() -> None:
    nodes = [node("a"), node("b"), node("c")]
    nodes[0].astray = True
    assert planned(nodes).order == (1, 2)
    nodes[1].cooling_until = nodes[2].cooling_until = NOW + 5
    assert planned(nodes).order == (1, 2)


def test_U14_all_cooling_means_that_nobody_is_really_asked() -> None:
    nodes = pair()
    nodes[0].cooling_until, nodes[1].cooling_until = NOW + 9, NOW + 3
    assert planned(nodes).order == (1, 0)
    assert [each.resting_s(NOW) for each in nodes] == [9.0, 3.0]


def test_an_open_breaker_keeps_a_node_out_for_that_work_alone() -> None:
    nodes = pair()
    broken(nodes[0], Part.RECEIPTS)
    assert planned(nodes, work=Work.BODIES).order == (1,)
    assert planned(nodes, work=Work.LIGHT).order == (0, 1)
    broken(nodes[0], Part.LIGHT)
    assert planned(nodes, work=Work.LIGHT).order == (1,)


def test_a_node_that_cannot_say_its_head_is_not_asked_for_blocks() -> None:
    nodes = pair()
    broken(nodes[0], Part.LIGHT)
    assert planned(nodes, work=Work.BODIES).order == (1,)


def test_a_node_whose_probe_is_due_is_back_in_its_place() -> None:
    nodes = pair()
    broken(nodes[0])
    assert planned(nodes, now=NOW + 5).order == (0, 1)
    nodes[0].begin(Part.BLOCK, NOW + 5)
    assert planned(nodes, now=NOW + 5).order == (1,)


def test_when_all_are_open_the_one_that_opened_first_is_tried() -> None:
    nodes = pair()
    broken(nodes[0], now=NOW + 2)
    broken(nodes[1], now=NOW + 1)
    assert planned(nodes, now=NOW + 3).order == (1,)


def test_an_open_node_that_has_the_height_is_tried_where_the_others_do_not_have_it() -> None:
    nodes = [node("a"), node("b", HEAD - 3)]
    broken(nodes[0])
    assert planned(nodes, HEAD).order == (0, 1)


def test_the_frontier_is_the_highest_head_that_another_node_bears_out() -> None:
    heads = [node("a", HEAD), node("b", HEAD + 3), node("c", 10**9)]
    assert frontier(heads, NOW, RULES) == HEAD + 3
    assert frontier(heads[:1], NOW, RULES) == HEAD
    assert frontier(heads, NOW + 61, RULES) is None
    assert frontier([node("a", None)], NOW, RULES) is None


def test_the_head_of_a_node_is_the_highest_it_named_in_the_last_minute() -> None:
    state = node("a", 100)
    state.note_head(98, NOW + 1)
    assert (state.head, state.lag(101, NOW + 1)) == (100, 1)
    state.note_head(98, NOW + 61)
    assert state.head == 98


# --- the exclusive grace --------------------------------------------------------------------------------------------


def test_U1_a_fresh_height_is_asked_of_the_primary_alone() -> None:
    nodes = pair(derived=True)
    assert planned(nodes, HEAD) == Route(RouteKind.EXCLUSIVE, (0, 1), NOW + 6.0, declared=True)
    turns, _ = walked(nodes, {0: [Outcome.BEHIND, Outcome.ABSENT]})
    assert [turn.node for turn in turns] == [0, 0, 0]
    assert [turn.pause_s for turn in turns] == [0.0, 0.15, 0.3]
    assert all(turn.exclusive and not turn.patient for turn in turns)


@pytest.mark.parametrize("ahead", [0, 1, NEAR_BLOCKS])
def test_a_height_above_the_head_is_as_fresh_as_can_be(ahead: int) -> None:
    assert planned(pair(derived=True), HEAD + ahead).kind is RouteKind.EXCLUSIVE


@pytest.mark.parametrize(
    ("why", "nodes", "height"),
    [
        ("deep", pair(derived=True), HEAD - 257),
        ("unknown head", pair(derived=True, head=None), HEAD),
        ("unknown height", pair(derived=True), None),
        ("nothing declared", pair(), HEAD),
        ("one does not", [*pair(derived=True), node("c")], HEAD),
        ("single", [node("a")], HEAD),
    ],
)
def test_U2_no_grace_without_a_reason_for_it(why: str, nodes: list[NodeState], height: int | None) -> None:
    route = planned(nodes, height)
    assert route.exclusive_until is None
    turns, _ = walked(nodes, {0: [Outcome.ABSENT]}, height or HEAD - 500)
    assert [turn.node for turn in turns][: len(nodes)] == [0, 1, 2][: min(2, len(nodes))]


def test_U2_just_within_what_counts_as_fresh() -> None:
    assert planned(pair(derived=True), HEAD - 256).kind is RouteKind.EXCLUSIVE
    assert planned(pair(derived=True), HEAD - 257).kind is RouteKind.FULL


def test_who_derives_by_way_of_another_derives_too() -> None:
    nodes = [node("a"), node("b", derives_from="a"), node("c", derives_from="b")]
    assert planned(nodes).kind is RouteKind.EXCLUSIVE
    circle = [node("a"), node("b", derives_from="c"), node("c", derives_from="b")]
    assert planned(circle).kind is RouteKind.HEAD_AWARE


def test_U3_a_primary_that_refuses_hands_over_at_once() -> None:
    turns, journey = walked(pair(derived=True), {0: [Outcome.HARD]})
    assert [(turn.node, turn.pause_s) for turn in turns] == [(0, 0.0), (1, 0.0)]
    assert journey.kinds == [RouteKind.EXCLUSIVE, RouteKind.EXCLUSIVE_BROKEN]


@pytest.mark.parametrize("outcome", [Outcome.HARD, Outcome.UNABLE, Outcome.PRUNED, Outcome.INVALID, Outcome.DOUBTFUL])
def test_what_waiting_does_not_mend_ends_the_grace(outcome: Outcome) -> None:
    turns, _ = walked(pair(derived=True), {0: [outcome]})
    assert [turn.node for turn in turns] == [0, 1]


@pytest.mark.parametrize("outcome", [Outcome.INVALID, Outcome.DOUBTFUL, Outcome.PRUNED])
def test_D2_what_made_an_end_of_the_grace_is_not_asked_for_again(outcome: Outcome) -> None:
    turns, _ = walked(pair(derived=True), {0: [outcome] * 9, 1: [Outcome.FAILED] * 9})
    assert [turn.node for turn in turns] == [0, 1, 1]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.ABSENT, Outcome.BEHIND, Outcome.LACKING])
def test_U8_what_waiting_may_mend_is_waited_for_and_then_the_primary_is_first_again(outcome: Outcome) -> None:
    turns, journey = walked(pair(derived=True), {0: [outcome] * 30})
    alone = [turn for turn in turns if turn.exclusive]
    after = turns[len(alone) :]
    assert 6.0 - RULES.min_useful_s - 1.0 <= sum(turn.pause_s for turn in alone) <= 6.0
    assert [turn.pause_s for turn in alone][:6] == [0.0, 0.15, 0.3, 0.6, 1.0, 1.0]
    assert [turn.node for turn in after] == [0, 1]
    assert after[0].limit_s == RULES.primary_retry_cap_s
    assert journey.kinds == [RouteKind.EXCLUSIVE, RouteKind.EXCLUSIVE_EXPIRED]


def test_U4_a_primary_that_hangs_costs_its_grace_and_its_cap_and_no_more() -> None:
    journey = Journey(pair(derived=True), HEAD, Work.BODIES, RULES, NOW, NOW + 120)
    now = NOW
    for _ in range(2):
        turn = journey.next(now)
        assert turn is not None
        assert (turn.node, turn.limit_s is not None) == (0, True)
        now += turn.pause_s + (turn.limit_s or 0.0)
        journey.came_back(turn, Outcome.FAILED, now)
    last = journey.next(now)
    assert last is not None
    assert last.node == 1
    assert now - NOW + last.pause_s <= 8.0  # 8.5 with the answer of the other


def test_U5_a_head_that_lied_high_is_not_fresh_and_one_that_lied_low_blocks_nobody() -> None:
    high = [node("a", HEAD + 10**9), node("b", derives_from="a")]
    assert planned(high, HEAD).kind is RouteKind.FULL
    assert planned(high, HEAD).order == (0, 1)
    low = [node("a", 5), node("b", derives_from="a")]
    assert planned(low, HEAD).order == (1,)


def test_U6_an_anchor_older_than_the_grace_gives_none() -> None:
    nodes = pair(derived=True)
    assert planned(nodes, now=NOW + 6.0).kind is RouteKind.EXCLUSIVE
    assert planned(nodes, now=NOW + 6.1).kind is RouteKind.FULL


def test_U6_a_slow_chain_has_older_heads() -> None:
    nodes = pair(derived=True)
    for height in range(3):
        nodes[0].note_head(HEAD + height, NOW, 1_000_000 + 12 * height)
    assert planned(nodes, HEAD + 2, now=NOW + 23).kind is RouteKind.EXCLUSIVE
    assert planned(nodes, HEAD + 2, now=NOW + 25).kind is RouteKind.FULL


@pytest.mark.parametrize("wait_s", [3.0, 30.0])
def test_U14_a_limit_is_waited_for_in_the_grace_if_it_fits(wait_s: float) -> None:
    journey = Journey(pair(derived=True), HEAD, Work.BODIES, RULES, NOW)
    turn = journey.next(NOW)
    assert turn is not None
    journey.came_back(turn, Outcome.LIMITED, NOW, wait_s)
    turn = journey.next(NOW)
    assert turn is not None
    assert (turn.node, turn.pause_s) == ((0, 3.0) if wait_s == 3.0 else (1, 0.0))


def test_the_grace_takes_no_more_than_half_of_what_is_left() -> None:
    assert planned(pair(derived=True), ends_at=NOW + 4).exclusive_until == NOW + 2


@pytest.mark.parametrize("trouble", ["open", "distrusted", "unverified", "cooling"])
def test_a_primary_in_trouble_has_no_grace(trouble: str) -> None:
    nodes = pair(derived=True)
    if trouble == "open":
        broken(nodes[0])
    elif trouble == "distrusted":
        nodes[0].distrust(Part.BLOCK, NOW)
    elif trouble == "unverified":
        nodes[0].verified = False
    else:
        nodes[0].cooling_until = NOW + 1
    assert planned(nodes).exclusive_until is None


def test_no_grace_where_it_is_switched_off() -> None:
    assert plan(pair(derived=True), HEAD, Work.BODIES, RoutingRules(grace_s=0), NOW).kind is RouteKind.FULL


# --- the walk -------------------------------------------------------------------------------------------------------


def test_one_node_is_asked_with_patience_and_once_more_after_bad_data() -> None:
    turns, _ = walked([node("a")], {0: [Outcome.INVALID, Outcome.INVALID]})
    assert [(turn.node, turn.patient, turn.retry, turn.limit_s) for turn in turns] == [(0, True, False, None)] * 2
    turns, _ = walked([node("a")], {0: [Outcome.FAILED]})
    assert len(turns) == 1


def test_several_are_asked_in_a_hurry_and_then_with_patience() -> None:
    turns, _ = walked(pair(), {0: [Outcome.FAILED] * 9, 1: [Outcome.HARD] * 9})
    assert [(turn.node, turn.patient, turn.retry) for turn in turns] == [
        (0, False, False),
        (1, False, False),
        (0, True, True),
        (1, True, True),
    ]
    assert [turn.pause_s for turn in turns] == [0.0, 0.0, 0.15, 0.3]


@pytest.mark.parametrize(
    "outcome", [Outcome.INVALID, Outcome.DOUBTFUL, Outcome.PRUNED, Outcome.UNABLE, Outcome.LIMITED]
)
def test_whoever_cannot_deliver_is_not_asked_again(outcome: Outcome) -> None:
    turns, _ = walked(pair(), {0: [outcome] * 9, 1: [Outcome.FAILED] * 9})
    assert [turn.node for turn in turns] == [0, 1, 1]


def test_row_12_a_block_that_one_node_lacks_is_asked_for_twice_and_one_that_two_lack_is_not() -> None:
    turns, _ = walked(pair(), {0: [Outcome.ABSENT] * 9, 1: [Outcome.BEHIND] * 9})
    assert [turn.node for turn in turns] == [0, 1, 0]
    turns, _ = walked(pair(), {0: [Outcome.ABSENT] * 9, 1: [Outcome.ABSENT] * 9})
    assert [turn.node for turn in turns] == [0, 1]


def test_when_our_own_time_is_up_nobody_is_asked_any_more() -> None:
    turns, _ = walked(pair(), {0: [Outcome.LATE]})
    assert [turn.node for turn in turns] == [0]


@pytest.mark.parametrize(
    ("left_s", "limits"),
    [
        (None, [None, None, None]),
        (40.0, [20.0, 20.0, None]),
        (0.42, [0.21, 0.21, None]),
        (0.39, [None, None, None]),
    ],
)
def test_U9_a_node_has_half_of_what_is_left_and_the_last_one_all_of_it(
    left_s: float | None, limits: list[float | None]
) -> None:
    nodes = [node("a"), node("b"), node("c")]
    turns, _ = walked(
        nodes,
        {0: [Outcome.FAILED], 1: [Outcome.FAILED]},
        ends_at=None if left_s is None else NOW + left_s,
    )
    assert [turn.limit_s for turn in turns] == [None if limit is None else pytest.approx(limit) for limit in limits]


def test_a_probe_may_take_no_longer_than_the_cap_while_others_are_left() -> None:
    nodes = pair()
    broken(nodes[0], now=NOW - 5)
    turns, _ = walked(nodes, {})
    assert (turns[0].node, turns[0].limit_s) == (0, RULES.primary_retry_cap_s)


def test_a_node_in_trouble_is_paid_for_as_a_retry_and_a_sound_one_never() -> None:
    nodes = pair()
    broken(nodes[1], now=NOW - 5)
    turns, _ = walked(nodes, {0: [Outcome.FAILED]})
    assert [(turn.node, turn.retry) for turn in turns] == [(0, False), (1, True)]


def test_a_grace_that_nobody_pays_for_ends() -> None:
    journey = Journey(pair(derived=True), HEAD, Work.BODIES, RULES, NOW)
    first = journey.next(NOW)
    assert first is not None
    journey.came_back(first, Outcome.ABSENT, NOW)
    again = journey.next(NOW)
    assert again is not None
    assert again.retry
    journey.forgo(again)
    other = journey.next(NOW)
    assert other is not None
    assert other.node == 1


def test_a_backup_is_a_sound_node_that_comes_later_and_may_be_put_back() -> None:
    nodes = [node("a"), node("b"), node("c")]
    journey = Journey(nodes, HEAD, Work.BODIES, RULES, NOW)
    assert journey.next(NOW) == Turn(0)
    backup = journey.backup(NOW)
    assert backup == Turn(1)
    journey.put_back(backup)
    assert journey.next(NOW) == Turn(1)
    assert journey.next(NOW) == Turn(2)
    assert journey.backup(NOW) is None


@pytest.mark.parametrize("trouble", ["lags", "open", "pruned", "distrusted", "unverified"])
def test_a_node_in_trouble_is_no_backup(trouble: str) -> None:
    nodes = pair()
    if trouble == "lags":
        nodes[1].head = HEAD - 1
    elif trouble == "open":
        broken(nodes[1], now=NOW - 5)
    elif trouble == "pruned":
        nodes[1].note_pruned(HEAD)
    elif trouble == "distrusted":
        nodes[1].distrust(Part.BLOCK, NOW)
    else:
        nodes[1].verified = False
    journey = Journey(nodes, HEAD, Work.BODIES, RULES, NOW)
    journey.next(NOW)
    assert journey.backup(NOW) is None


# --- whatever happens -----------------------------------------------------------------------------------------------


class Walks(RuleBasedStateMachine):
    """Nodes that live through anything, and journeys among them at any moment."""

    @initialize(count=st.integers(1, 4), declared=st.booleans())
    def start(self, count: int, declared: bool) -> None:
        self.now = 1000.0
        self.nodes = [NodeState(f"n{at}", "n0" if declared and at else None) for at in range(count)]

    @rule(at=st.integers(0, 3), head=st.integers(0, 400), seconds=st.floats(0, 20))
    def names_a_head(self, at: int, head: int, seconds: float) -> None:
        self.now += seconds
        self.nodes[at % len(self.nodes)].note_head(head, self.now, 12 * head)

    @rule(at=st.integers(0, 3), part=st.sampled_from(Part), times=st.integers(1, 6))
    def fails(self, at: int, part: Part, times: int) -> None:
        for _ in range(times):
            self.nodes[at % len(self.nodes)].note_failure(part, self.now)

    @rule(at=st.integers(0, 3), part=st.sampled_from(Part))
    def answers(self, at: int, part: Part) -> None:
        self.nodes[at % len(self.nodes)].begin(part, self.now)
        self.nodes[at % len(self.nodes)].note_answer(part, self.now, 0.01)

    @rule(
        at=st.integers(0, 3), what=st.sampled_from(["cooling", "barred", "astray", "verified", "pruned", "distrusted"])
    )
    def meets(self, at: int, what: str) -> None:
        state = self.nodes[at % len(self.nodes)]
        if what == "cooling":
            state.cooling_until = self.now + 5
        elif what == "barred":
            state.barred_until = self.now + 60
        elif what == "pruned":
            state.note_pruned(100)
        elif what == "distrusted":
            state.distrust(Part.BLOCK, self.now)
        else:
            setattr(state, what, not getattr(state, what))

    @rule(
        height=st.none() | st.integers(0, 450),
        work=st.sampled_from(Work),
        outcomes=st.lists(st.sampled_from(Outcome), min_size=1, max_size=60),
        left_s=st.none() | st.floats(0, 60),
    )
    def walks(self, height: int | None, work: Work, outcomes: list[Outcome], left_s: float | None) -> None:
        ends_at = None if left_s is None else self.now + left_s
        journey = Journey(self.nodes, height, work, RULES, self.now, ends_at)
        asked: list[tuple[int, Outcome]] = []
        now = self.now
        while (turn := journey.next(now)) is not None:
            assert turn.limit_s is None or turn.limit_s > 0
            assert 0 <= turn.pause_s <= 6
            now += turn.pause_s
            outcome = outcomes[len(asked) % len(outcomes)]
            asked.append((turn.node, outcome))
            assert len(asked) <= 40, "a walk comes to an end"
            journey.came_back(turn, outcome, now, 1.0 if outcome is Outcome.LIMITED else None)
        self._check(journey.route, asked)

    def _check(self, route: Route, asked: list[tuple[int, Outcome]]) -> None:
        assert {at for at, _ in asked} <= set(route.order)
        if route.beyond:
            assert asked == []
        else:
            assert asked, "somebody is asked, or says for how long it cannot be"
        for at in set(route.order):
            invalid = [outcome for which, outcome in asked if which == at and outcome is Outcome.INVALID]
            assert len(invalid) <= (2 if len(route.order) == 1 else 1)
        if asked and asked[-1][1] is not Outcome.LATE:
            assert {at for at, _ in asked} == set(route.order), "nobody who could have had it was left out"
        assert Outcome.LATE not in [outcome for _, outcome in asked[:-1]]

    @invariant()
    def nobody_astray_is_asked_while_another_is_there(self) -> None:
        if not hasattr(self, "nodes"):
            return
        order = planned(self.nodes, 300, now=self.now).order
        if not all(state.astray for state in self.nodes):
            assert not any(self.nodes[at].astray for at in order)


TestWalks = Walks.TestCase
TestWalks.settings = settings(max_examples=60, stateful_step_count=25)


@given(heads=st.lists(st.none() | st.integers(0, 10**9), min_size=1, max_size=5), height=st.integers(0, 10**9))
def test_a_route_never_leaves_out_a_sound_node_that_has_the_height(heads: list[int | None], height: int) -> None:
    nodes = [node(f"n{at}", head) for at, head in enumerate(heads)]
    route = planned(nodes, height)
    has_it = {at for at, head in enumerate(heads) if head is None or head >= height}
    assert has_it <= set(route.order)
    assert route.beyond == all(head is not None and height - head > NEAR_BLOCKS for head in heads)
