"""The head of a chain as several nodes tell it: what exists goes by the highest, what is final only by agreement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chain.head import HeadTracker
from app.chain.reorgs import Reorg
from app.chain.rules import FinalityRule
from app.core.blocks import BlockName, Sighting
from app.core.errors import BlockNotOnSourceChain, RpcUnavailable
from app.core.finality import Finality, Level
from tests.fakes import ManualClock


def block_hash(height: int, fork: int = 0) -> bytes:
    return bytes([fork]) + height.to_bytes(31, "big")


class Node:
    """What one node has: a chain up to `head` that forks at `fork_at`, and what it says is safe and final."""

    def __init__(self, head: int, finalized: int | None = None, *, fork: int = 0, fork_at: int = 0) -> None:
        self.head = head
        self.safe: int | None = finalized
        self.finalized = finalized
        self.fork = fork
        self.fork_at = fork_at
        self.up = True

    def block(self, height: int) -> BlockName:
        fork = self.fork if height >= self.fork_at else 0
        parent = self.fork if height - 1 >= self.fork_at else 0
        return BlockName(height, block_hash(height, fork), block_hash(max(height - 1, 0), parent), 12 * height)


class Nodes:
    """Fits what the tracker needs of the `Upstream` port, over several nodes."""

    def __init__(self, **nodes: Node) -> None:
        self.nodes = nodes
        self.aside: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.named_at: list[int] = []

    async def sightings(self, tag: str) -> tuple[Sighting, ...]:
        self.asked[tag] += 1
        found = []
        for name, node in self.nodes.items():
            height = {"latest": node.head, "safe": node.safe, "finalized": node.finalized}[tag]
            if node.up:
                found.append(Sighting(name, None if height is None else node.block(height)))
        if not found:
            raise RpcUnavailable("down")
        return tuple(found)

    async def names_at(self, height: int) -> tuple[Sighting, ...]:
        self.named_at.append(height)
        return tuple(
            Sighting(name, node.block(height)) for name, node in self.nodes.items() if node.up and node.head >= height
        )

    async def name_of(self, height: int) -> BlockName | None:
        for name, node in self.nodes.items():
            if node.up and name not in self.aside and node.head >= height:
                return node.block(height)
        raise BlockNotOnSourceChain("above every head")

    def set_aside(self, names: Iterable[str]) -> None:
        self.aside = set(names)

    def doubt_chain(self) -> None:
        self.asked["doubt_chain"] += 1


class Watched:
    """A tracker over nodes, and what it told."""

    def __init__(self, rule: FinalityRule | None = None, **nodes: Node) -> None:
        self.upstream = Nodes(**nodes)
        self.clock = ManualClock()
        self.reorgs: list[int] = []
        self.traced: list[Reorg] = []
        self.disputes: list[frozenset[str]] = []
        self.head = HeadTracker(
            self.upstream,  # type: ignore[arg-type]  # the tracker needs no more of it
            rule or FinalityRule("tag"),
            self.clock,
            on_reorg=self.reorgs.append,
            on_traced=self.traced.append,
            on_dispute=self.disputes.append,
        )

    async def poll(self, **heads: int) -> tuple[int | None, int | None]:
        """One round after these nodes moved their heads; head and finalized as published."""
        for name, height in heads.items():
            self.upstream.nodes[name].head = height
        self.clock.move(2.0)
        await self.head.poll(all_tags=True)
        return self.head.heads.head, self.head.heads.finalized


# --- agreement on tags ----------------------------------------------------------------------------------------------


async def test_B38_two_that_agree_are_a_quorum_and_the_lower_height_counts() -> None:
    watched = Watched(a=Node(120, 100), b=Node(121, 98))
    assert await watched.poll() == (121, 98)
    assert watched.head.finality_of(98) == Finality(Level.FINALIZED, "quorum", 2)
    assert 100 in watched.upstream.named_at  # b was asked for the block that a claims
    assert watched.disputes == []


async def test_row_26_B38_finalized_blocks_that_differ_stop_everything_until_they_agree() -> None:
    watched = Watched(a=Node(110, 95), b=Node(110, 95))
    assert (await watched.poll())[1] == 95
    b = watched.upstream.nodes["b"]
    b.fork, b.fork_at = 1, 97
    watched.upstream.nodes["a"].finalized = 100
    b.finalized = 98
    for _ in range(3):
        assert (await watched.poll(a=130, b=130)) == (130, 95)
    assert watched.disputes == [frozenset("ab")]  # told once
    assert watched.upstream.aside == set()  # of two, nobody knows which
    assert "upstreams contradict each other about what is final" in watched.head.reasons
    b.fork = 0
    assert (await watched.poll()) == (130, 98)
    assert watched.head.reasons == ()
    b.fork, b.fork_at = 1, 99
    assert (await watched.poll()) == (130, 98)  # up to there they agree
    assert len(watched.disputes) == 2


async def test_row_26_of_three_the_one_that_stands_alone_is_set_aside_and_the_others_go_on() -> None:
    watched = Watched(a=Node(130, 100, fork=1, fork_at=90), b=Node(130, 98), c=Node(130, 99))
    assert (await watched.poll())[1] == 98
    assert watched.upstream.aside == {"a"}
    assert watched.head.finality_of(98).sources == 2
    watched.upstream.nodes["b"].up = False  # one against one: still nobody knows better than before
    await watched.poll()
    assert watched.upstream.aside == {"a"}
    watched.upstream.nodes["b"].up = True
    watched.upstream.nodes["a"].fork = 0
    assert (await watched.poll())[1] == 98
    assert watched.upstream.aside == set()


@pytest.mark.parametrize("claim", [10**6, 5])
async def test_D4_one_node_that_lies_about_what_is_final_makes_nothing_final(claim: int) -> None:
    watched = Watched(a=Node(120, 100), b=Node(max(120, claim), claim))
    assert (await watched.poll())[1] == min(claim, 100)


async def test_D4_a_claim_that_nobody_can_compare_does_not_outvote_a_lower_one() -> None:
    watched = Watched(a=Node(101, 91), b=Node(0, 102))  # it has no block there itself
    assert (await watched.poll())[1] == 91
    assert watched.head.heads.sources == 1


async def test_B38_a_node_without_the_tag_may_still_contradict() -> None:
    watched = Watched(a=Node(120, 100), b=Node(120, None))
    assert (await watched.poll())[1] == 100
    assert watched.head.finality_of(90) == Finality(Level.FINALIZED, "rpc-tag", 1)
    watched = Watched(a=Node(120, 100), b=Node(120, None, fork=1, fork_at=90))
    assert (await watched.poll())[1] is None
    assert watched.disputes == [frozenset("ab")]


async def test_B38_finalized_never_goes_down_whoever_says_so() -> None:
    watched = Watched(a=Node(120, 100), b=Node(120, 100))
    await watched.poll()
    for a, b in ((50, 100), (50, 50), (None, None)):
        watched.upstream.nodes["a"].finalized, watched.upstream.nodes["b"].finalized = a, b
        assert (await watched.poll())[1] == 100


async def test_a_node_that_is_down_takes_its_vote_with_it() -> None:
    watched = Watched(a=Node(120, 100), b=Node(120, 98))
    await watched.poll()
    watched.upstream.nodes["b"].up = False
    assert (await watched.poll(a=121))[1] == 100
    assert watched.head.finality_of(100) == Finality(Level.FINALIZED, "rpc-tag", 1)


async def test_a_node_that_stands_still_does_not_hold_finality_back_for_ever() -> None:
    watched = Watched(a=Node(120, 100), b=Node(118, 98))
    assert (await watched.poll())[1] == 98
    finalized = []
    for number in range(40):
        watched.upstream.nodes["a"].finalized = 101 + number
        finalized.append((await watched.poll(a=121 + number))[1])
    assert finalized[0] == 98
    assert finalized[-1] == 140
    assert watched.head.heads.sources == 1


async def test_a_node_that_is_far_behind_what_is_final_has_no_say() -> None:
    watched = Watched(a=Node(1000, 900), b=Node(1000, 900), c=Node(10, 5))
    await watched.poll()
    assert watched.head.heads.finalized == 5  # at first nobody knows who is right
    watched.upstream.nodes["a"].finalized = watched.upstream.nodes["b"].finalized = 901
    watched.upstream.nodes["c"].head = 4
    assert (await watched.poll(a=1001, b=1001))[1] == 901


@pytest.mark.parametrize("swapped", ["a", "b", "c"])
@pytest.mark.parametrize("mode", ["tag", "depth"])
async def test_one_of_three_that_leads_to_another_chain_for_a_while_is_set_aside_and_nothing_is_taken_back(
    swapped: str, mode: str
) -> None:
    watched = Watched(FinalityRule(mode, 20), **{name: Node(120, 100) for name in "abc"})
    for height in range(120, 124):
        await watched.poll(a=height, b=height, c=height)
    final = watched.head.heads.finalized
    assert final is not None
    node = watched.upstream.nodes[swapped]
    node.fork, node.fork_at = 1, 0
    heads = [
        await watched.poll(**({"a": height, "b": height, "c": height} | {swapped: height + 3}))
        for height in range(124, 130)
    ]
    assert watched.upstream.aside == {swapped}
    assert all(finalized is not None and finalized >= final for _, finalized in heads)
    assert not watched.head.in_doubt
    assert min(watched.reorgs, default=final + 1) > final
    node.fork = 0
    for height in range(130, 134):
        await watched.poll(a=height, b=height, c=height)
    assert watched.upstream.aside == set()
    assert (watched.head.heads.finalized or 0) >= final
    assert min(watched.reorgs, default=final + 1) > final


async def test_two_of_which_one_leads_to_another_chain_hold_what_was_final_until_they_agree() -> None:
    watched = Watched(a=Node(120, 100), b=Node(120, 100))
    await watched.poll()
    watched.upstream.nodes["a"].fork = 1
    for height in range(121, 125):
        assert (await watched.poll(a=height, b=height))[1] == 100
    assert watched.disputes
    watched.upstream.nodes["b"].fork = 1  # it is another chain, then
    for height in range(125, 128):
        await watched.poll(a=height, b=height)
    assert min(watched.reorgs) == 0
    assert watched.head.heads.finalized == 100


# --- depth ----------------------------------------------------------------------------------------------------------


async def test_D4_a_depth_is_counted_from_the_lowest_head_that_is_alive() -> None:
    watched = Watched(FinalityRule("depth", 10), a=Node(120), b=Node(117))
    assert await watched.poll() == (120, 107)
    assert watched.head.finality_of(107) == Finality(Level.FINALIZED, "quorum", 2)


@pytest.mark.parametrize("liar", ["a", "b"])
async def test_row_23_D4_a_head_of_a_million_more_makes_nothing_final_however_often_it_is_named(liar: str) -> None:
    watched = Watched(FinalityRule("depth", 10), a=Node(120), b=Node(120))
    await watched.poll()
    finalized = []
    for number in range(1, 20):
        heads = {"a": 120 + number, "b": 120 + number, liar: 10**6 + number}
        finalized.append((await watched.poll(**heads))[1])
    assert finalized == [110 + number for number in range(1, 20)]


async def test_row_23_the_published_head_does_not_follow_a_lie_that_is_told_once() -> None:
    watched = Watched(FinalityRule("depth", 10), a=Node(120), b=Node(120))
    heads = [(await watched.poll(a=a, b=b))[0] for a, b in ((120, 120), (10**6, 121), (122, 122))]
    assert heads == [120, 121, 122]


async def test_row_26_a_height_counted_down_is_final_only_if_all_have_one_block_there() -> None:
    watched = Watched(FinalityRule("depth", 10), a=Node(120), b=Node(120, fork=1, fork_at=100))
    assert (await watched.poll())[1] is None
    assert watched.disputes == [frozenset("ab")]
    watched.upstream.nodes["b"].fork = 0
    assert (await watched.poll(a=121, b=121))[1] == 111


async def test_agreement_on_a_depth_is_asked_for_only_when_something_would_become_final() -> None:
    watched = Watched(FinalityRule("depth", 10), a=Node(120), b=Node(120))
    await watched.poll()
    for _ in range(5):
        await watched.poll()
    assert watched.upstream.named_at == [110]


# --- heads ----------------------------------------------------------------------------------------------------------


async def test_what_exists_goes_by_the_highest_head_and_reorgs_by_one_node() -> None:
    watched = Watched(a=Node(120), b=Node(120))
    for number in range(1, 30):
        # They take turns at being ahead, and differ at the tip all the time.
        a, b = (120 + number, 119 + number) if number % 2 else (119 + number, 120 + number)
        watched.upstream.nodes["b"].fork, watched.upstream.nodes["b"].fork_at = 1, b
        assert (await watched.poll(a=a, b=b))[0] == 120 + number
    assert watched.reorgs == []


async def test_a_reorg_of_the_node_that_is_followed_is_told_and_one_that_goes_below_final_says_so() -> None:
    watched = Watched(FinalityRule("depth", 5), a=Node(100))
    for height in range(100, 121):
        await watched.poll(a=height)
    a = watched.upstream.nodes["a"]
    a.fork, a.fork_at = 1, 118
    await watched.poll(a=121)
    assert watched.reorgs == [120, 118]
    assert watched.traced == [Reorg(118, 3, undoes_final=False)]
    a.fork, a.fork_at = 2, 112
    await watched.poll(a=122)
    assert watched.traced[-1] == Reorg(112, 10, undoes_final=True)


async def test_row_24_B25_jitter_of_every_node_lowers_nothing() -> None:
    watched = Watched(FinalityRule("depth", 64), a=Node(100), b=Node(100))
    published = []
    for a, b in ((100, 99), (101, 100), (99, 101), (101, 98), (40, 101), (102, 101)):
        published.append(await watched.poll(a=a, b=b))
    assert [head for head, _ in published] == [100, 101, 101, 101, 101, 102]
    finalized = [height for _, height in published if height is not None]
    assert finalized == sorted(finalized)
    assert watched.reorgs == []
    assert not watched.head.stale


async def test_row_25_D7_a_head_that_stops_moving_is_shown_and_stays_servable() -> None:
    watched = Watched(a=Node(100, 90))
    for height in range(100, 110):
        await watched.poll(a=height)
    for _ in range(15):
        await watched.poll()
    assert watched.head.reasons == ()
    for _ in range(5):
        await watched.poll()
    assert watched.head.reasons == ("head has stopped moving",)
    assert not watched.head.stale
    await watched.poll(a=110)
    assert watched.head.reasons == ()


async def test_D7_a_chain_that_was_never_seen_to_move_is_not_expected_to() -> None:
    watched = Watched(a=Node(100, 90))
    for _ in range(100):
        await watched.poll()
    assert watched.head.reasons == ()


# --- whatever is said -----------------------------------------------------------------------------------------------

_claims = st.tuples(st.integers(0, 300), st.none() | st.integers(0, 300))


@given(
    rounds=st.lists(st.tuples(_claims, _claims, st.booleans()), min_size=1, max_size=15),
    mode=st.sampled_from(["tag", "depth"]),
)
async def test_with_one_honest_node_nothing_is_final_beyond_it(
    rounds: list[tuple[tuple[int, int | None], tuple[int, int | None], bool]], mode: str
) -> None:
    """`a` is honest and always up; `b` says anything, and sometimes nothing. Nothing that `a` does not call final becomes so."""
    watched = Watched(FinalityRule(mode, 10), a=Node(100, 90), b=Node(100, 90))
    head, before = 100, None
    for _, (b_head, b_final), forked in rounds:
        head += 1
        a, b = watched.upstream.nodes["a"], watched.upstream.nodes["b"]
        a.head, a.finalized = head, head - 10
        b.head, b.finalized, b.fork, b.fork_at = b_head, b_final, int(forked), 0
        _, finalized = await watched.poll()
        if finalized is not None:
            assert finalized <= head - 10
            assert before is None or finalized >= before
            before = finalized
