"""When the head is asked for: at once where a node announces a block, rarely where it would, and never on its word alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from app.chain.head import HeadTracker
from app.chain.rounds import QUIET_S
from app.chain.rules import FinalityRule
from app.core.blocks import BlockName
from app.core.errors import RpcUnavailable
from tests.fakes import FakeUpstream, ManualClock, settle

INTERVAL_S = 2.0


class FakeHerald:
    """Announces when told to."""

    def __init__(self) -> None:
        self.at_work = True
        self.listening = 0
        self._news = asyncio.Event()

    async def heard(self) -> None:
        self.listening += 1
        try:
            await self._news.wait()
            self._news.clear()
        finally:
            self.listening -= 1

    def announce(self) -> None:
        self._news.set()

    def rest(self) -> None:
        raise AssertionError("nobody else is there who could listen")


class Pauses:
    """Pauses that a test ends by letting time pass."""

    def __init__(self, clock: ManualClock) -> None:
        self.asked: list[float] = []
        self._clock = clock
        self._due: list[tuple[float, asyncio.Event]] = []

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        over = asyncio.Event()
        entry = (self._clock.now() + seconds, over)
        self._due.append(entry)
        try:
            await over.wait()
        finally:
            self._due.remove(entry)

    async def pass_(self, seconds: float) -> None:
        """Time passes, in steps of half a second."""
        for _ in range(round(2 * seconds)):
            self._clock.move(0.5)
            for due, over in list(self._due):
                if due <= self._clock.now():
                    over.set()
            await settle()


def name(height: int) -> BlockName:
    return BlockName(height, height.to_bytes(32, "big"), max(0, height - 1).to_bytes(32, "big"), 12 * height)


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pauses = Pauses(self.clock)
        self.herald = FakeHerald()
        self.upstream = FakeUpstream()
        self.upstream.herald = self.herald
        for height in range(200):
            self.upstream.canonical[height] = name(height)
        self.say(100)
        self.head = HeadTracker(
            self.upstream,
            FinalityRule("tag"),
            self.clock,
            on_reorg=lambda _: None,
            interval_s=INTERVAL_S,
            pause=self.pauses,
        )

    def say(self, latest: int) -> None:
        self.upstream.tags = {"latest": latest, "safe": latest - 5, "finalized": latest - 10}

    @property
    def polls(self) -> int:
        return self.upstream.hits["tagged:latest"]

    async def seen(self, latest: int) -> None:
        """A block is made and announced."""
        self.say(latest)
        self.herald.announce()
        await settle()

    async def pass_(self, seconds: float) -> None:
        await self.pauses.pass_(seconds)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Scene]:
    scene = Scene()
    task = asyncio.create_task(scene.head.run())
    await settle()
    try:
        yield scene
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert scene.herald.listening == 0


async def test_an_announced_block_is_asked_for_at_once() -> None:
    async with running() as scene:
        await scene.pass_(12.0)
        before = scene.polls
        await scene.seen(101)
        assert (scene.polls - before, scene.head.heads.head) == (1, 101)


async def test_a_quiet_chain_is_asked_rarely_and_the_head_is_not_stale() -> None:
    async with running() as scene:
        for _ in range(12):
            await scene.pass_(10.0)
            assert not scene.head.stale
        assert scene.polls == 1 + 120 / QUIET_S


async def test_following_a_chain_costs_a_third_of_the_calls_of_polling() -> None:
    async def calls(*, announced: bool) -> int:
        async with running() as scene:
            scene.herald.at_work = announced
            for block in range(60):
                await scene.pass_(12.0)
                scene.say(101 + block)
                if announced:
                    await scene.seen(101 + block)
            await scene.pass_(INTERVAL_S)
            assert scene.head.heads.head == 160
            return scene.upstream.hits["tagged"]

    polled, told = await calls(announced=False), await calls(announced=True)
    assert polled / told > 2.9
    assert told <= 3 * 61, "the head, safe and finalized, once a block"


async def test_a_flood_of_announcements_costs_no_more_than_polling() -> None:
    async with running() as scene:
        await scene.pass_(INTERVAL_S)
        before = scene.polls
        for _ in range(240):  # two a second
            await scene.seen(100)
            await scene.pass_(0.5)
        assert scene.polls - before <= 1 + 120 / INTERVAL_S


async def test_silence_while_the_head_moves_is_polling_again_and_an_announcement_ends_it() -> None:
    async with running() as scene:
        scene.say(101)
        await scene.pass_(QUIET_S)
        assert scene.head.heads.head == 101, "seen, and nobody had said so"
        before = scene.polls
        await scene.pass_(20.0)
        assert scene.polls - before == 20 / INTERVAL_S
        await scene.seen(102)
        before = scene.polls
        await scene.pass_(QUIET_S - 1)
        assert scene.polls == before


async def test_a_subscription_that_ends_is_polling_at_once() -> None:
    async with running() as scene:
        await scene.pass_(1.0)
        before = scene.polls
        scene.herald.at_work = False
        scene.herald.announce()  # the end is news too
        await settle()
        assert scene.polls - before == 1
        await scene.pass_(10.0)
        assert scene.polls - before == 1 + 10 / INTERVAL_S


async def test_a_round_that_failed_is_made_again_soon() -> None:
    async with running() as scene:
        scene.upstream.fail("tagged:latest", RpcUnavailable("down"))
        await scene.seen(101)
        assert scene.head.heads.head == 100
        await scene.pass_(INTERVAL_S)
        assert scene.head.heads.head == 101


async def test_B38_what_is_final_is_asked_for_with_every_rare_round() -> None:
    async with running() as scene:
        for block in range(3):
            await scene.pass_(12.0)
            await scene.seen(101 + block)
            assert scene.head.heads.finalized == 91 + block


async def test_without_a_herald_it_is_polled() -> None:
    async with running() as scene:
        assert scene.pauses.asked
    plain = Scene()
    plain.upstream.herald = None
    task = asyncio.create_task(plain.head.run())
    await settle()
    await plain.pass_(10.0)
    assert plain.polls == 1 + 10 / INTERVAL_S
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
