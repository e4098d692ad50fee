"""Canonical hashes: free below finality, one light call above it, and never from memory once they may have changed."""

from __future__ import annotations

import asyncio

import pytest

from app.chain.cache import BlockCache
from app.chain.canon import HEAD_FRESH_S, NEAR_HEAD_BLOCKS, Canon
from app.chain.head import HeadTracker
from app.chain.rules import FinalityRule
from app.core.blocks import BlockName
from app.core.deadlines import deadline
from app.core.errors import BlockNotOnSourceChain, RequestTimeout, RpcUnavailable
from app.core.provable_block import ProvableBlock
from tests.fakes import FakeUpstream, ManualClock, settle

HEIGHT = 50


def block_hash(height: int, fork: int = 0) -> bytes:
    return bytes([fork]) + height.to_bytes(31, "big")


A, B = block_hash(HEIGHT), block_hash(HEIGHT, 1)


class Scene:
    """A chain 1..100, of which nothing is final until a test says so."""

    def __init__(self) -> None:
        self.upstream = FakeUpstream()
        for height in range(1, 101):
            self.put(height)
        self.clock = ManualClock()
        self.head = HeadTracker(
            self.upstream, FinalityRule("tag"), self.clock, on_reorg=lambda height: self.canon.overtake(height)
        )
        self.cache: BlockCache[ProvableBlock] = BlockCache(1 << 20)
        self.canon = Canon(self.upstream, self.head, self.cache, self.clock, jitter=lambda: 0.5)

    def put(self, height: int, fork: int = 0) -> None:
        self.upstream.canonical[height] = BlockName(height, block_hash(height, fork), block_hash(height - 1, fork), 0)

    async def see(self, head: int = 100, finalized: int | None = 1) -> None:
        self.upstream.tags = {"latest": head, "safe": finalized, "finalized": finalized}
        await self.head.poll(all_tags=True)
        self.upstream.hits.clear()

    @property
    def asked(self) -> int:
        return self.upstream.hits["name_of"]


# --- what is asked for ----------------------------------------------------------------------------------------------


async def test_a_final_pin_costs_nothing() -> None:
    scene = Scene()
    await scene.see(finalized=HEIGHT)
    assert await scene.canon.holds(HEIGHT, A)
    assert scene.asked == 1
    for _ in range(5):
        assert await scene.canon.holds(HEIGHT, A)
        assert not await scene.canon.holds(HEIGHT, B)
    assert scene.asked == 1


async def test_above_finality_every_question_is_asked_again() -> None:
    scene = Scene()
    await scene.see(finalized=HEIGHT - 1)
    for count in range(1, 4):
        assert await scene.canon.holds(HEIGHT, A)
        assert scene.asked == count
    assert not scene.cache.pin_is_final(HEIGHT)


async def test_questions_at_the_same_moment_are_one_call() -> None:
    scene = Scene()
    await scene.see()
    hold = scene.upstream.hold("name_of")
    questions = [asyncio.create_task(scene.canon.holds(HEIGHT, wanted)) for wanted in (A, B) * 16]
    await hold.reached()
    hold.release()
    assert await asyncio.gather(*questions) == [True, False] * 16
    assert scene.asked == 1


async def test_two_heights_do_not_wait_for_each_other() -> None:
    scene = Scene()
    await scene.see()
    hold = scene.upstream.hold("name_of")
    waiting = asyncio.create_task(scene.canon.holds(HEIGHT, A))
    await hold.reached()
    scene.upstream.unhold()
    assert await scene.canon.holds(HEIGHT + 1, block_hash(HEIGHT + 1))
    hold.release()
    assert await waiting


async def test_whoever_leaves_takes_nothing_from_the_others() -> None:
    scene = Scene()
    await scene.see()
    hold = scene.upstream.hold("name_of")
    questions = [asyncio.create_task(scene.canon.holds(HEIGHT, A)) for _ in range(4)]
    await hold.reached()
    questions[0].cancel()
    await settle()
    hold.release()
    assert await asyncio.gather(*questions[1:]) == [True] * 3
    assert scene.asked == 1


async def test_an_upstream_that_cannot_say_is_no_answer() -> None:
    scene = Scene()
    await scene.see()
    scene.canon.pin(HEIGHT, A, final=False)
    scene.upstream.fail("name_of", RpcUnavailable("down"), times=2)
    with pytest.raises(RpcUnavailable):
        await scene.canon.holds(HEIGHT, A)
    assert scene.cache.hash_at(HEIGHT) == A
    scene.clock.move(1)
    assert await scene.canon.holds(HEIGHT, A)


# --- what a wrong hash does -----------------------------------------------------------------------------------------


async def test_the_pin_is_afterwards_what_the_chain_has() -> None:
    scene = Scene()
    await scene.see()
    scene.canon.pin(HEIGHT, A, final=False)
    scene.put(HEIGHT, fork=1)
    assert not await scene.canon.holds(HEIGHT, A)
    assert scene.cache.hash_at(HEIGHT) == B


@pytest.mark.parametrize("finalized", [HEIGHT, HEIGHT - 1])
async def test_D6_the_hash_of_an_orphan_never_changes_the_pin(finalized: int) -> None:
    scene = Scene()
    await scene.see(finalized=finalized)
    assert await scene.canon.holds(HEIGHT, A)
    final = scene.cache.pin_is_final(HEIGHT)
    assert final is (finalized == HEIGHT)
    assert not await scene.canon.holds(HEIGHT, B)
    assert scene.cache.hash_at(HEIGHT) == A
    assert scene.cache.pin_is_final(HEIGHT) is final


@pytest.mark.parametrize("answer", ["none", "above-the-head"])
async def test_a_height_that_the_chain_no_longer_has_holds_nothing(answer: str) -> None:
    scene = Scene()
    await scene.see()
    scene.canon.pin(HEIGHT, A, final=False)
    if answer == "none":
        del scene.upstream.canonical[HEIGHT]
    else:
        scene.upstream.fail("name_of", BlockNotOnSourceChain("above the head"))
    assert not await scene.canon.holds(HEIGHT, A)
    assert scene.cache.hash_at(HEIGHT) is None


# --- what becomes final meanwhile -----------------------------------------------------------------------------------


async def test_an_answer_from_before_finality_is_not_final() -> None:
    scene = Scene()
    await scene.see(finalized=HEIGHT - 1)
    hold = scene.upstream.hold("name_of.after")
    question = asyncio.create_task(scene.canon.holds(HEIGHT, A))
    await hold.reached()
    scene.put(HEIGHT, fork=1)
    await scene.see(finalized=HEIGHT)
    hold.release()
    assert not await question
    assert (scene.cache.hash_at(HEIGHT), scene.cache.pin_is_final(HEIGHT)) == (B, True)


async def test_a_pin_from_before_finality_needs_asking_once() -> None:
    scene = Scene()
    await scene.see(finalized=HEIGHT - 1)
    scene.canon.pin(HEIGHT, A, final=False)
    assert not scene.canon.needs_asking(HEIGHT)
    await scene.see(finalized=HEIGHT)
    assert scene.canon.needs_asking(HEIGHT)
    assert await scene.canon.holds(HEIGHT, A)
    assert not scene.canon.needs_asking(HEIGHT)
    assert scene.asked == 1


@pytest.mark.parametrize(("height", "final"), [(HEIGHT, True), (HEIGHT + 1, False)])
async def test_finality_is_that_of_the_head_tracker(height: int, final: bool) -> None:
    scene = Scene()
    assert not scene.canon.is_final(height)
    await scene.see(finalized=HEIGHT)
    assert scene.canon.is_final(height) is final


# --- reorgs ---------------------------------------------------------------------------------------------------------


async def test_D6_a_reorg_drops_the_pins_from_there_on() -> None:
    scene = Scene()
    for height in (48, 49, 50, 51):
        scene.canon.pin(height, block_hash(height), final=False)
    scene.canon.overtake(50)
    assert [scene.cache.hash_at(height) is None for height in (48, 49, 50, 51)] == [False, False, True, True]


async def test_an_answer_that_a_reorg_overtook_is_asked_for_again() -> None:
    scene = Scene()
    await scene.see()
    hold = scene.upstream.hold("name_of.after")
    question = asyncio.create_task(scene.canon.holds(HEIGHT, A))
    await hold.reached()
    scene.put(HEIGHT, fork=1)
    scene.canon.overtake(HEIGHT)
    hold.release()
    assert not await question
    assert scene.asked == 2


# --- heights above the head -----------------------------------------------------------------------------------------


async def test_a_height_up_to_the_head_is_asked_for_without_more_ado() -> None:
    scene = Scene()
    await scene.see(head=80)
    scene.clock.move(20)
    await scene.canon.require_reached(80)
    assert not scene.upstream.hits


async def test_B26_just_above_a_fresh_head_is_refused_without_a_call() -> None:
    scene = Scene()
    await scene.see(head=80)
    scene.clock.move(HEAD_FRESH_S)
    with pytest.raises(BlockNotOnSourceChain, match="block 81 is above the head of the source chain, 80") as refused:
        await scene.canon.require_reached(81)
    assert refused.value.retriable
    assert not scene.upstream.hits


async def test_far_above_the_head_is_refused_without_a_call_however_old_it_is() -> None:
    scene = Scene()
    await scene.see(head=80)
    scene.clock.move(29)
    with pytest.raises(BlockNotOnSourceChain):
        await scene.canon.require_reached(80 + NEAR_HEAD_BLOCKS + 1)
    assert not scene.upstream.hits


@pytest.mark.parametrize("distance", [1, NEAR_HEAD_BLOCKS])
async def test_B45_near_the_head_it_is_asked_for_once_more(distance: int) -> None:
    scene = Scene()
    await scene.see(head=80)
    scene.clock.move(HEAD_FRESH_S + 0.01)
    scene.upstream.tags["latest"] = 80 + distance
    await scene.canon.require_reached(80 + distance)
    assert scene.upstream.hits["tagged:latest"] == 1
    assert scene.head.heads.head == 80 + distance


async def test_near_the_head_the_refusal_counts_as_asked() -> None:
    scene = Scene()
    await scene.see(head=80)
    scene.clock.move(1)
    for _ in range(5):
        with pytest.raises(BlockNotOnSourceChain):
            await scene.canon.require_reached(81)
    assert scene.upstream.hits["tagged:latest"] == 1


async def test_near_the_head_all_share_one_question() -> None:
    scene = Scene()
    await scene.see(head=80)
    scene.clock.move(1)
    hold = scene.upstream.hold("tagged")
    asking = [asyncio.create_task(scene.canon.require_reached(81)) for _ in range(8)]
    await hold.reached()
    hold.release()
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {BlockNotOnSourceChain}
    assert scene.upstream.hits["tagged:latest"] == 1


async def test_absence_is_not_claimed_when_the_head_cannot_be_heard() -> None:
    scene = Scene()
    await scene.see(head=80)
    scene.clock.move(1)
    scene.upstream.fail("tagged", RpcUnavailable("down"))
    with pytest.raises(RpcUnavailable):
        await scene.canon.require_reached(81)


@pytest.mark.parametrize("known", ["nothing", "stale"])
async def test_without_a_head_of_today_nothing_is_refused(known: str) -> None:
    scene = Scene()
    if known == "stale":
        await scene.see(head=80)
        scene.clock.move(31)
    await scene.canon.require_reached(10**9)
    assert not scene.upstream.hits


async def test_a_deadline_that_passed_is_said_so() -> None:
    scene = Scene()
    await scene.see()
    deadline.set(scene.clock.now())
    with pytest.raises(RequestTimeout) as late:
        await scene.canon.holds(HEIGHT, A)
    assert late.value.extra["stage"] == "resolve"
    assert scene.asked == 0


async def test_closing_ends_what_is_in_flight() -> None:
    scene = Scene()
    await scene.see()
    hold = scene.upstream.hold("name_of")
    question = asyncio.create_task(scene.canon.holds(HEIGHT, A))
    await hold.reached()
    await scene.canon.aclose()
    assert (await asyncio.gather(question, return_exceptions=True))[0].code == "Draining"  # type: ignore[union-attr]
