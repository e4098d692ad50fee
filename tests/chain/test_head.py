"""The head tracker under nodes that fail, lag, fork and lie."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable

import pytest

from app.chain.head import IN_DOUBT, NEW_CHAIN, HeadTracker
from app.chain.rules import FinalityRule
from app.core.blocks import BlockName
from app.core.deadlines import deadline
from app.core.errors import ProofError, RpcUnavailable
from app.core.finality import Finality, Level
from tests.fakes import FakeUpstream, Hold, ManualClock, settle

DOWN = RpcUnavailable("down")


def block_hash(height: int, fork: int = 0) -> bytes:
    return bytes([fork]) + max(height, 0).to_bytes(31, "big")


def name(height: int, fork: int = 0, parent_fork: int | None = None) -> BlockName:
    parent = block_hash(height - 1, fork if parent_fork is None else parent_fork)
    return BlockName(height, block_hash(height, fork), parent, 1_000 + 12 * height)


class Pauses:
    """Where the loop pauses between two polls: a test lets it go on, turn by turn."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._gate = asyncio.Semaphore(0)

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self._gate.acquire()

    async def turn(self) -> None:
        self._gate.release()
        await settle()


class Tracked:
    """A tracker over a chain 0..110 of which the node says that `latest` is the head."""

    def __init__(self, rule: FinalityRule | None = None, heads: int = 111) -> None:
        self.upstream = FakeUpstream()
        for height in range(heads):
            self.upstream.canonical[height] = name(height)
        self.clock = ManualClock()
        self.pauses = Pauses()
        self.final: dict[int, bytes] = {}
        self.reorgs: list[int] = []
        self.depths: list[int] = []
        self.withdrawn: list[tuple[int, bool]] = []
        self.doubts: list[int | None] = []
        self.suspected = 0
        self.progress = 0
        self.head = HeadTracker(
            self.upstream,
            rule or FinalityRule("depth", 10),
            self.clock,
            on_reorg=self.reorgs.append,
            on_progress=self._on_progress,
            on_traced=lambda reorg: self.depths.append(reorg.depth),
            on_withdrawn=lambda height, too_early: self.withdrawn.append((height, too_early)),
            on_doubt=self.doubts.append,
            on_suspect=self._on_suspect,
            final=lambda: self.final,
            pause=self.pauses,
        )

    def _on_progress(self) -> None:
        self.progress += 1

    def _on_suspect(self) -> None:
        self.suspected += 1

    def say(self, latest: int, safe: int | None = None, finalized: int | None = None) -> None:
        self.upstream.tags = {"latest": latest, "safe": safe, "finalized": finalized}

    def fork_from(self, height: int, fork: int, head: int) -> None:
        """From `height` on the chain is another one, up to `head`."""
        for gone in [at for at in self.upstream.canonical if at >= height]:
            del self.upstream.canonical[gone]
        for at in range(height, head + 1):
            self.upstream.canonical[at] = name(at, fork, 0 if at == height else fork)
        self.say(head)

    async def poll(self, latest: int, safe: int | None = None, finalized: int | None = None) -> None:
        self.say(latest, safe, finalized)
        await self.head.poll()


@contextlib.asynccontextmanager
async def running(tracked: Tracked) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(tracked.head.run())
    await settle()
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


# --- levels ---------------------------------------------------------------------------------------------------------


async def test_nothing_is_known_before_the_first_poll() -> None:
    head = Tracked().head
    assert (head.heads.head, head.heads.finalized, head.age_s, head.stale) == (None, None, None, True)
    assert head.finality_of(0).level is Level.LATEST


async def test_tags_are_published() -> None:
    tracked = Tracked(FinalityRule("tag"))
    await tracked.poll(100, safe=95, finalized=90)
    assert (tracked.head.heads.head, tracked.head.heads.safe, tracked.head.heads.finalized) == (100, 95, 90)
    assert tracked.head.finality_of(93) == Finality(Level.SAFE, "rpc-tag", 1)


async def test_tags_are_asked_for_every_few_rounds_and_the_head_in_each() -> None:
    tracked = Tracked(FinalityRule("tag"))
    asked = []
    for height in range(100, 109):
        await tracked.poll(height, safe=height - 5, finalized=height - 10)
        asked.append(tracked.upstream.hits["tagged"])
        tracked.upstream.hits.clear()
        assert tracked.head.heads.head == height
    assert asked == [3, 1, 1, 1, 3, 1, 1, 1, 3]
    assert (tracked.head.heads.safe, tracked.head.heads.finalized) == (103, 98)


async def test_in_depth_mode_no_tag_is_asked_for() -> None:
    tracked = Tracked(FinalityRule("depth", 10))
    await tracked.poll(100, safe=99, finalized=99)
    assert tracked.upstream.hits["tagged"] == 1
    assert tracked.head.finality_of(90) == Finality(Level.FINALIZED, "depth", 1)
    assert tracked.head.finality_of(91).level is Level.LATEST


async def test_B38_a_node_that_knows_no_tags_falls_back_to_the_depth() -> None:
    tracked = Tracked(FinalityRule("tag", 64))
    tracked.upstream.tagless = True
    for height in range(100, 106):
        await tracked.poll(height)
    assert tracked.head.heads.head == 105
    assert tracked.head.finality_of(41) == Finality(Level.FINALIZED, "depth", 1)
    assert tracked.head.finality_of(42).level is Level.LATEST


@pytest.mark.parametrize("answer", ["none yet", "error"])
async def test_a_tag_without_a_block_yet_makes_nothing_final_until_it_has_one(answer: str) -> None:
    tracked = Tracked(FinalityRule("tag", 10))
    if answer == "error":
        for tag in ("safe", "finalized"):
            tracked.upstream.fail(f"tagged:{tag}", DOWN, times=None)
    for height in range(100, 106):
        await tracked.poll(height)
    assert tracked.head.heads.finalized is None
    assert tracked.head.finality_of(3) == Finality(Level.LATEST, "depth", 1) if answer == "none yet" else True
    tracked.upstream.heal()
    for _ in range(4):
        await tracked.poll(106, safe=98, finalized=90)
    assert tracked.head.finality_of(90) == Finality(Level.FINALIZED, "rpc-tag", 1)
    assert tracked.head.finality_of(96).level is Level.SAFE


async def test_what_a_depth_called_final_is_taken_back_when_a_tag_is_heard_that_shows_less() -> None:
    tracked = Tracked(FinalityRule("tag", 10))
    tracked.upstream.tagless = True
    for height in range(100, 106):
        await tracked.poll(height)
    assert tracked.head.heads.finalized == 95
    tracked.upstream.tagless = False
    for _ in range(4):
        await tracked.poll(106, safe=60, finalized=50)
    assert (tracked.head.heads.finalized, tracked.head.heads.by) == (50, "rpc-tag")
    assert tracked.withdrawn == [(51, True)]
    tracked.upstream.tagless = True  # the node behind the address changed again: depth is over all the same
    for height in range(106, 111):
        await tracked.poll(height)
    assert (tracked.head.heads.finalized, tracked.head.heads.by) == (50, "rpc-tag")


@pytest.mark.parametrize("answer", ["null", "error"])
async def test_a_tag_that_fails_now_and_then_costs_neither_the_head_nor_the_levels(answer: str) -> None:
    tracked = Tracked(FinalityRule("tag", 10))
    await tracked.poll(100, safe=60, finalized=50)
    if answer == "error":
        tracked.upstream.fail("tagged:safe", DOWN, times=None)
        tracked.upstream.fail("tagged:finalized", DOWN, times=None)
    for height in range(101, 110):
        await tracked.poll(height)
    heads = tracked.head.heads
    assert (heads.head, heads.safe, heads.finalized, heads.by) == (109, 60, 50, "rpc-tag")
    tracked.upstream.heal()
    for _ in range(4):
        await tracked.poll(110, safe=105, finalized=100)
    assert (tracked.head.heads.safe, tracked.head.heads.finalized) == (105, 100)


async def test_a_finalized_tag_above_the_head_is_not_believed_beyond_it() -> None:
    tracked = Tracked(FinalityRule("tag"))
    await tracked.poll(100, safe=108, finalized=105)
    assert (tracked.head.heads.head, tracked.head.heads.finalized) == (100, 100)


async def test_B38_finalized_never_goes_down() -> None:
    tracked = Tracked(FinalityRule("tag"))
    published = []
    for finalized in (90, 95, 40, 94, 96):
        tracked.say(100, safe=98, finalized=finalized)
        await tracked.head.poll(all_tags=True)
        published.append(tracked.head.heads.finalized)
    assert published == [90, 95, 95, 95, 96]


# --- B25: heads that jump about ------------------------------------------------------------------------------------


async def test_B25_a_jittery_head_flushes_nothing_and_never_lowers_finalized() -> None:
    tracked = Tracked(FinalityRule("depth", 64), heads=111)
    heads, finalized, stale = [], [], []
    for latest in (100, 101, 99, 101, 40, 102):
        before = tracked.head.heads.head or 0
        await tracked.poll(latest)
        known = tracked.head.heads
        assert known.head is not None
        assert known.finalized is not None
        assert before - known.head <= 64
        assert known.head - known.finalized >= 0
        heads.append(known.head)
        finalized.append(known.finalized)
        stale.append(tracked.head.stale)
    assert heads == [100, 101, 101, 101, 101, 102]
    assert finalized == [36, 37, 37, 37, 37, 38]
    assert stale == [False] * 6
    assert tracked.reorgs == []
    await tracked.poll(103)
    assert tracked.head.heads.finalized == 39


async def test_B25_below_a_head_that_fell_under_what_is_final_only_what_was_compared_is_final() -> None:
    tracked = Tracked(FinalityRule("tag"))
    for latest in range(38, 42):
        await tracked.poll(latest, safe=latest, finalized=latest)
    await tracked.head.poll(all_tags=True)
    tracked.say(100, safe=95, finalized=90)
    await tracked.head.poll(all_tags=True)
    assert tracked.head.heads.finalized == 90
    tracked.upstream.hits.clear()
    await tracked.poll(41)  # a node that lags, or another chain that begins as this one
    assert tracked.upstream.hits["name_of"] <= 2
    assert (tracked.head.heads.head, tracked.head.heads.finalized) == (100, 90)
    assert (tracked.head.final_to, tracked.head.in_doubt) == (41, True)
    assert [tracked.head.finality_of(height).level for height in (41, 42, 90)] == ["finalized", "latest", "latest"]
    assert tracked.doubts[0] == -1, "nothing is final before it was compared"
    assert IN_DOUBT in tracked.head.reasons
    await tracked.poll(100)
    assert (tracked.head.final_to, tracked.head.reasons) == (90, ())
    assert tracked.doubts[-1] is None
    assert (tracked.reorgs, tracked.withdrawn) == ([], [])


async def test_a_head_that_stays_below_what_is_final_takes_that_back_and_it_is_compared_once_it_is_there_again() -> (
    None
):
    tracked = Tracked(FinalityRule("depth", 10))
    for latest in range(93, 101):
        await tracked.poll(latest)
    for _ in range(2):
        await tracked.poll(50)
        tracked.clock.move(61)
    assert (tracked.head.heads.finalized, tracked.head.in_doubt) == (0, False)
    assert tracked.reorgs == []
    tracked.fork_from(60, fork=1, head=100)
    await tracked.head.poll()
    await tracked.head.poll()
    assert min(tracked.reorgs) <= 60


@pytest.mark.parametrize("head", [3, 50, 89, 90, 100, 101, 110, 400], ids=lambda head: f"head-{head}")
@pytest.mark.parametrize("mode", ["tag", "depth"])
async def test_a_chain_that_begins_again_is_found_out_with_one_poll(head: int, mode: str) -> None:
    tracked = tags_each_round(FinalityRule(mode, 10))
    tracked.final = {5: block_hash(5), 60: block_hash(60)}
    for latest in range(93, 101):
        await tracked.poll(latest, safe=latest - 5, finalized=latest - 10)
    tracked.upstream.canonical = {height: name(height, fork=7) for height in range(head + 1)}
    tracked.upstream.hits.clear()
    await tracked.poll(head, safe=max(0, head - 5), finalized=max(0, head - 10))
    assert min(tracked.reorgs) == 0
    assert tracked.upstream.hits["name_of"] <= 16
    assert tracked.suspected >= 1
    assert NEW_CHAIN in tracked.head.reasons
    final = tracked.head.final_to
    assert final is None or final <= max(0, head - 10)
    tracked.clock.move(61)
    for _ in range(3):
        await tracked.head.poll()
    assert (tracked.head.heads.head, tracked.head.heads.finalized) == (
        head,
        None if mode == "depth" and head < 10 else max(0, head - 10),
    )
    assert NEW_CHAIN not in tracked.head.reasons


async def test_another_chain_with_the_same_genesis_is_in_doubt_until_it_shows_a_known_height() -> None:
    tracked = tags_each_round(FinalityRule("tag"))
    tracked.final = {50: block_hash(50)}
    for latest in range(93, 101):
        await tracked.poll(latest, safe=latest, finalized=latest)
    genesis = tracked.upstream.canonical[0]
    tracked.upstream.canonical = {height: name(height, fork=7) for height in range(1, 60)} | {0: genesis}
    await tracked.poll(3, safe=2, finalized=2)
    assert (tracked.head.final_to, tracked.head.in_doubt) == (0, True)
    await tracked.poll(51, safe=49, finalized=49)
    assert min(tracked.reorgs) == 1
    assert (tracked.head.final_to, tracked.head.in_doubt) == (49, False)


async def test_a_block_zero_and_a_reorg_from_there_end_no_loop() -> None:
    tracked = Tracked(FinalityRule("depth", 0))
    await tracked.poll(0)
    assert (tracked.head.heads.head, tracked.head.heads.finalized) == (0, 0)
    tracked.upstream.canonical = {0: name(0, fork=3)}
    await tracked.poll(0)
    assert (tracked.reorgs, tracked.head.heads.finalized) == ([0], 0)
    assert tracked.withdrawn == [(0, False)]


async def test_an_address_that_leads_to_another_chain_and_back_leaves_nothing_of_it() -> None:
    tracked = tags_each_round(FinalityRule("tag"))
    for latest in range(93, 101):
        await tracked.poll(latest, safe=latest, finalized=latest - 5)
    ours = dict(tracked.upstream.canonical)
    tracked.upstream.canonical = {height: name(height, fork=7) for height in range(5001)}
    for latest in range(4995, 5001):
        tracked.clock.move(2)
        await tracked.poll(latest, safe=latest, finalized=latest - 5)
    assert tracked.head.heads.finalized == 4995
    assert tracked.upstream.hits["doubt_chain"] == 1
    tracked.upstream.canonical = ours
    tracked.clock.move(2)
    await tracked.poll(101, safe=101, finalized=96)
    assert tracked.reorgs.count(0) == 2
    assert (tracked.head.final_to or 0) <= 96
    tracked.clock.move(2)
    await tracked.poll(102, safe=102, finalized=97)
    assert (tracked.head.heads.head, tracked.head.heads.finalized) == (102, 97)


async def test_what_was_final_is_proven_again_once_a_minute_and_no_more_often() -> None:
    tracked = tags_each_round(FinalityRule("tag"))
    for latest in range(20, 24):
        await tracked.poll(latest, safe=latest, finalized=latest - 5)
    tracked.upstream.hits.clear()
    for latest in range(24, 24 + 62):
        tracked.clock.move(2)
        await tracked.poll(latest, safe=latest, finalized=latest - 5)
    assert tracked.upstream.hits["name_of"] == 2


async def test_D4_a_node_that_lies_high_once_makes_nothing_final() -> None:
    tracked = Tracked(FinalityRule("depth", 10))
    tracked.upstream.canonical[10**6] = name(10**6)
    finalized = []
    for latest in (100, 10**6, 101, 102):
        await tracked.poll(latest)
        finalized.append(tracked.head.heads.finalized)
    assert finalized == [90, 90, 91, 92]
    assert tracked.reorgs == []


async def test_B26_a_head_that_comes_as_null_changes_nothing_and_ages() -> None:
    tracked = Tracked()
    await tracked.poll(100)
    tracked.clock.move(20)
    tracked.upstream.tags = {"latest": None}
    await tracked.head.poll()
    assert tracked.head.heads.head == 100
    assert tracked.head.age_s == 20
    tracked.clock.move(10.5)
    assert tracked.head.stale


# --- reorgs --------------------------------------------------------------------------------------------------------


async def test_a_chain_that_only_grows_has_no_reorg() -> None:
    tracked = Tracked()
    for latest in (100, 100, 101, 102, 105, 110, 110):
        await tracked.poll(latest)
    assert tracked.reorgs == []


@pytest.mark.parametrize(
    ("fork_at", "head", "told", "depth"),
    [
        pytest.param(100, 100, [100], 1, id="the-head-itself-is-another"),
        pytest.param(100, 101, [100], 1, id="the-next-head-has-another-parent"),
        pytest.param(99, 101, [100, 99], 2, id="deeper-than-the-parent-shows"),
        pytest.param(97, 101, [100, 97], 4, id="much-deeper"),
        pytest.param(98, 105, [100, 98], 3, id="hidden-in-a-gap"),
        pytest.param(99, 99, [99], 2, id="a-shorter-chain"),
        pytest.param(98, 99, [98], 3, id="a-shorter-chain-shown-by-its-parent"),
    ],
)
async def test_D6_row_22_a_reorg_is_told_at_once_and_then_as_deep_as_it_reaches(
    fork_at: int, head: int, told: list[int], depth: int
) -> None:
    tracked = Tracked()
    for latest in range(93, 101):
        await tracked.poll(latest)
    tracked.fork_from(fork_at, fork=1, head=head)
    await tracked.head.poll()
    assert (tracked.reorgs, tracked.depths, tracked.head.heads.head) == (told, [depth], head)
    await tracked.head.poll()
    assert (tracked.reorgs, tracked.depths) == (told, [depth])


@pytest.mark.parametrize("fork_at", [11, 12, 45, 60, 97, 107])
async def test_a_reorg_is_followed_however_deep_with_few_calls(fork_at: int) -> None:
    tracked = Tracked()
    for latest in range(11, 111):
        await tracked.poll(latest)
    tracked.fork_from(fork_at, fork=1, head=110)
    tracked.upstream.hits.clear()
    await tracked.head.poll()
    assert tracked.upstream.hits["name_of"] <= 14
    assert tracked.reorgs == [109, fork_at]
    assert tracked.depths == [111 - fork_at]


@pytest.mark.parametrize(("fork_at", "told"), [(1, 1), (10, 1), (15, 11), (40, 31)])
async def test_a_reorg_below_all_that_was_seen_is_followed_through_what_is_held_for_final(
    fork_at: int, told: int
) -> None:
    tracked = Tracked()
    tracked.final = {height: block_hash(height) for height in (10, 30, 60)}
    await tracked.poll(100)
    tracked.fork_from(fork_at, fork=1, head=100)
    await tracked.head.poll()
    assert tracked.reorgs == [99, told]


async def test_a_reorg_just_after_the_start_is_not_taken_for_one_of_what_is_final() -> None:
    tracked = Tracked()
    tracked.final = {height: block_hash(height) for height in (10, 30, 60)}
    await tracked.poll(100)
    tracked.fork_from(96, fork=1, head=100)
    await tracked.head.poll()
    assert tracked.reorgs == [99, 91]


async def test_blocks_that_were_not_seen_are_not_taken_for_replaced_where_they_are_final() -> None:
    tracked = Tracked(FinalityRule("depth", 20))
    for latest in (60, 108, 110):
        await tracked.poll(latest)
    tracked.fork_from(105, fork=1, head=110)
    await tracked.head.poll()
    assert tracked.reorgs == [109, 91]


async def cut_short() -> Tracked:
    """A reorg whose beginning was looked for until the node could not be asked."""
    tracked = Tracked()
    for latest in range(93, 101):
        await tracked.poll(latest)
    tracked.fork_from(95, fork=1, head=101)
    tracked.upstream.fail("name_of", DOWN)
    await tracked.head.poll()
    return tracked


async def test_a_walk_that_is_cut_short_has_told_what_it_knows() -> None:
    tracked = await cut_short()
    assert (tracked.reorgs, tracked.depths, tracked.head.last_error) == ([100], [1], "down")


async def test_a_walk_that_was_cut_short_is_taken_up_in_the_next_round() -> None:
    tracked = await cut_short()
    await tracked.head.poll()
    await tracked.head.poll()
    assert tracked.reorgs == [100, 95]


async def test_blocks_between_two_polls_cost_one_light_call_and_no_more() -> None:
    tracked = Tracked()
    for latest in (100, 101, 104, 110):
        await tracked.poll(latest)
    assert tracked.upstream.hits["name_of"] == 3  # the genesis once, and one for each gap
    assert tracked.reorgs == []


async def test_D6_the_new_branch_growing_past_the_old_one_is_no_second_reorg() -> None:
    tracked = Tracked()
    for latest in range(97, 104):
        await tracked.poll(latest)
    for head in range(100, 106):
        tracked.fork_from(100, fork=1, head=head)
        await tracked.head.poll()
    assert tracked.reorgs == [100]


async def test_a_reorg_and_the_way_back_are_two() -> None:
    tracked = Tracked()
    await tracked.poll(100)
    tracked.fork_from(100, fork=1, head=100)
    await tracked.head.poll()
    tracked.fork_from(100, fork=0, head=100)
    await tracked.head.poll()
    assert tracked.reorgs == [100, 100]


async def test_a_reorg_is_told_before_progress_and_with_the_new_heads_in_place() -> None:
    seen: list[tuple[str, int | None]] = []
    upstream = FakeUpstream()
    upstream.canonical[100] = name(100)
    head = HeadTracker(
        upstream,
        FinalityRule("depth", 10),
        ManualClock(),
        on_reorg=lambda height: seen.append(("reorg", head.heads.head)),
        on_progress=lambda: seen.append(("progress", head.heads.head)),
    )
    await head.poll()
    upstream.canonical = {99: name(99, 1, 0), 100: name(100, 1), 101: name(101, 1)}
    await head.poll()
    assert seen == [("progress", 100), ("reorg", 101), ("progress", 101), ("reorg", 101)]  # at 100, then as deep as 99


async def test_two_polls_that_cross_are_no_reorg() -> None:
    tracked = Tracked()
    await tracked.poll(99)
    tracked.say(100)
    late = tracked.upstream.hold("tagged.after")
    slow = asyncio.create_task(tracked.head.poll())
    await late.reached()
    tracked.upstream.unhold()
    await tracked.poll(101)
    late.release()
    await slow
    assert tracked.reorgs == []
    assert tracked.head.heads.finalized == 91


async def test_progress_is_told_when_something_moved_and_only_then() -> None:
    tracked = Tracked()
    await tracked.poll(100)
    await tracked.poll(100)
    assert tracked.progress == 1
    await tracked.poll(101)
    assert tracked.progress == 2


# --- the loop ------------------------------------------------------------------------------------------------------


async def test_the_loop_polls_pauses_and_polls_again() -> None:
    tracked = Tracked()
    tracked.say(100)
    async with running(tracked):
        assert tracked.head.heads.head == 100
        tracked.say(101)
        await settle()
        assert tracked.head.heads.head == 100
        await tracked.pauses.turn()
        assert tracked.head.heads.head == 101
    assert tracked.pauses.asked == [2.0, 2.0]


async def test_failing_polls_do_not_end_the_loop() -> None:
    tracked = Tracked()
    tracked.say(100)
    tracked.upstream.fail("tagged", DOWN, times=3)
    async with running(tracked) as task:
        for _ in range(2):
            await tracked.pauses.turn()
        assert (tracked.head.last_error, tracked.head.heads.head) == ("down", None)
        await tracked.pauses.turn()
        assert (tracked.head.last_error, tracked.head.heads.head) == (None, 100)
        assert not task.done()


async def test_B54_a_fault_of_our_own_ends_the_loop_so_that_its_owner_sees_it() -> None:
    tracked = Tracked()
    tracked.upstream.fail("tagged", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await tracked.head.run()


async def test_D7_the_head_is_stale_by_the_clock_and_fresh_after_one_poll() -> None:
    tracked = Tracked()
    await tracked.poll(100)
    tracked.clock.move(30)
    assert (tracked.head.age_s, tracked.head.stale) == (30, False)
    tracked.clock.move(0.1)
    assert tracked.head.stale
    with contextlib.suppress(ProofError):
        tracked.upstream.fail("tagged", DOWN)
        await tracked.head.poll()
    assert tracked.head.stale
    await tracked.poll(100)
    assert not tracked.head.stale


async def test_D7_a_slow_rhythm_is_not_stale_between_two_polls() -> None:
    head = HeadTracker(FakeUpstream(), FinalityRule(), clock := ManualClock(), on_reorg=lambda _: None, interval_s=60.0)
    head.observed_at = clock.now()
    clock.move(299)
    assert not head.stale
    clock.move(2)
    assert head.stale


# --- refresh -------------------------------------------------------------------------------------------------------


async def _asking(tracked: Tracked, count: int) -> tuple[list[asyncio.Task[None]], Hold]:
    hold = tracked.upstream.hold("tagged")
    tasks = [asyncio.create_task(tracked.head.refresh()) for _ in range(count)]
    await hold.reached()
    await settle()
    return tasks, hold


async def test_a_refresh_is_one_poll_for_all_who_ask_meanwhile() -> None:
    tracked = Tracked()
    tracked.say(100)
    tasks, hold = await _asking(tracked, 20)
    hold.release()
    await asyncio.gather(*tasks)
    assert tracked.upstream.hits["tagged"] == 1
    assert tracked.head.heads.head == 100
    await tracked.head.refresh()
    assert tracked.upstream.hits["tagged"] == 2


async def test_whoever_leaves_a_refresh_takes_nothing_from_the_others() -> None:
    tracked = Tracked()
    tracked.say(100)
    tasks, hold = await _asking(tracked, 5)
    tasks[0].cancel()
    tasks[3].cancel()
    await settle()
    hold.release()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [
        asyncio.CancelledError,
        type(None),
        type(None),
        asyncio.CancelledError,
        type(None),
    ]
    assert tracked.upstream.hits["tagged"] == 1


async def test_a_refresh_that_fails_says_so_to_all_and_the_next_one_asks_again() -> None:
    tracked = Tracked()
    tracked.say(100)
    tracked.upstream.fail("tagged", DOWN)
    tasks, hold = await _asking(tracked, 3)
    hold.release()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, RpcUnavailable) for outcome in outcomes)
    await tracked.head.refresh()
    assert tracked.head.heads.head == 100


async def test_a_refresh_nobody_waits_for_any_more_leaves_no_fault_behind() -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    tracked = Tracked()
    tracked.upstream.fail("tagged", DOWN)
    (task,), hold = await _asking(tracked, 1)
    task.cancel()
    await settle()
    hold.release()
    await settle()
    del task
    tracked.say(100)
    await tracked.head.refresh()
    gc.collect()
    assert faults == []


async def test_a_refresh_does_not_run_under_the_deadline_of_whoever_came_first() -> None:
    tracked = Tracked()
    tracked.say(100)
    seen: list[float | None] = []
    tagged: Callable[[str], object] = tracked.upstream.tagged

    async def listening(tag: str) -> object:
        seen.append(deadline.get())
        return await tagged(tag)  # type: ignore[misc]

    tracked.upstream.tagged = listening  # type: ignore[assignment,method-assign]
    deadline.set(tracked.clock.now() + 0.001)
    await tracked.head.refresh()
    assert seen == [None]


async def test_closing_ends_a_refresh_under_way() -> None:
    tracked = Tracked()
    (task,), _ = await _asking(tracked, 1)
    await tracked.head.aclose()
    with pytest.raises(asyncio.CancelledError):
        await task
    await tracked.head.aclose()


def tags_each_round(rule: FinalityRule) -> Tracked:
    tracked = Tracked(rule)
    tracked.head._tag_every = 1
    return tracked


@pytest.mark.parametrize("lie", [10**9, 10**6])
async def test_D4_one_lie_about_what_is_final_makes_nothing_final(lie: int) -> None:
    tracked = tags_each_round(FinalityRule("tag"))
    await tracked.poll(100, safe=95, finalized=90)
    tracked.clock.move(2)
    tracked.upstream.canonical[lie] = name(lie)
    await tracked.poll(lie, safe=lie, finalized=lie)
    assert (tracked.head.heads.head, tracked.head.heads.finalized) == (100, 90)
    tracked.clock.move(2)
    await tracked.poll(102, safe=96, finalized=91)
    assert (tracked.head.heads.head, tracked.head.heads.finalized) == (102, 91)


async def test_D4_a_finalized_tag_above_the_head_is_not_taken_for_the_head() -> None:
    tracked = tags_each_round(FinalityRule("tag"))
    await tracked.poll(100, safe=95, finalized=90)
    tracked.clock.move(2)
    tracked.upstream.canonical[10**9] = name(10**9)
    await tracked.poll(100, safe=10**9, finalized=10**9)
    assert tracked.head.heads.finalized == 90


async def test_B38_not_to_hear_of_the_tag_is_not_to_have_none() -> None:
    tracked = tags_each_round(FinalityRule("tag", depth=10))
    tracked.upstream.fail("tagged:finalized", RpcUnavailable("busy"))
    await tracked.poll(100, safe=95, finalized=90)
    assert tracked.head.heads.finalized is None
    await tracked.poll(100, safe=95, finalized=90)
    assert (tracked.head.heads.finalized, tracked.head.heads.by) == (90, "rpc-tag")
