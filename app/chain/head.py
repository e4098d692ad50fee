"""Head, safe and finalized of one chain, as the blocks of its upstreams tell them.

The tracker polls every upstream, at once where one of them announces a block and rarely where they would; requests only read.
What it publishes is the number of a block that was returned, never a bare counter. The head rises no faster than chains do and
falls only with a reorg, the finalized height never goes down, and where several nodes answer it rises only to what they agree on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from app.core.blocks import BlockName
from app.core.errors import ProofError
from app.core.finality import Finality, Heads, observe
from app.core.pace import Pace
from app.core.purpose import Purpose, bare_context, for_purpose
from app.core.quorum import NEAR_BLOCKS, Choice, Steadiness, choose

from .agreement import Agreed, on_claims, on_height
from .ports import Clock, Watched
from .reorgs import Reorg, SeenBlocks
from .rounds import Rounds

STANDING_STILL_S = 60.0
"""A node whose head has not moved for so long, and for three blocks, has no say beside nodes that are ahead of it."""


TAG_EVERY = 4
"""Rounds of which one asks for what is safe and final too."""


@dataclass(frozen=True, slots=True)
class FinalityRule:
    """`mode` is `tag` (the node's own tags, depth where it knows none) or `depth` (so many blocks below the head)."""

    mode: str = "tag"
    depth: int = 64


@dataclass(slots=True)
class _Levels:
    """What one round heard of safe and finalized. `sources` 0: nothing to act on, since the nodes contradict each other or
    could not be asked. `failed`: why not all of it."""

    safe: int | None = None
    finalized: int | None = None
    sources: int = 1
    failed: str | None = None


class HeadTracker:
    """Owned by its chain: `run` is the only writer beside `refresh`, and both write between awaits only."""

    def __init__(
        self,
        upstream: Watched,
        rule: FinalityRule,
        clock: Clock,
        *,
        direct: Watched | None = None,
        on_reorg: Callable[[int], None],
        on_progress: Callable[[], None] = lambda: None,
        on_traced: Callable[[Reorg], None] = lambda _: None,
        on_dispute: Callable[[frozenset[str]], None] = lambda _: None,
        final: Callable[[], Mapping[int, bytes]] = dict,
        interval_s: float = 2.0,
        tag_every: int = TAG_EVERY,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`direct` is asked where `upstream` may answer from what was seen a moment ago, and that will not do.

        `on_reorg` hears from which height on blocks were replaced: at once when one is seen, and again when it is found to reach
        deeper; `on_traced` of the whole of it, once. `on_dispute`: these nodes came to contradict each other about what is final.
        `final`: which blocks are held for final, at which heights.
        """
        self._upstream = upstream
        self._direct = upstream if direct is None else direct
        self._rule = rule
        self._clock = clock
        self._on_reorg = on_reorg
        self._on_progress = on_progress
        self._on_traced = on_traced
        self._on_dispute = on_dispute
        self._final = final
        self._interval_s = interval_s
        self._tag_every = tag_every
        self._pause = pause
        self._seen = SeenBlocks()
        self._untraced: int | None = None
        self._steady = Steadiness()
        self._steady_final = Steadiness()
        self._pace = Pace()
        self._moves: dict[str, tuple[int, float]] = {}
        self._disputed: frozenset[str] = frozenset()
        self._polls = 0
        self._tags_at: float | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self.heads = Heads()
        self.observed_at: float | None = None
        self.last_error: str | None = None

    def __repr__(self) -> str:
        return f"<HeadTracker head={self.heads.head} safe={self.heads.safe} finalized={self.heads.finalized}>"

    @property
    def age_s(self) -> float | None:
        """Seconds since the last successful poll; None before the first."""
        return None if self.observed_at is None else self._clock.now() - self.observed_at

    @property
    def stale(self) -> bool:
        """Whether the heads are too old to be taken for today's: nothing was heard for many intervals."""
        age_s = self.age_s
        return age_s is None or age_s > max(30.0, 5 * self._interval_s)

    @property
    def frozen(self) -> bool:
        """Whether the upstreams answer, and their head has stood still for longer than three of its blocks take."""
        block_time_s = self._pace.block_time_s
        if block_time_s is None:  # a chain that was never seen to move is not expected to
            return False
        return self._clock.now() - self._steady.risen_at > max(30.0, 3 * block_time_s)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is wrong with the heads. Stable words."""
        if self.observed_at is None:
            return ("no head seen yet",)
        found = ["head is stale"] if self.stale else ["head has stopped moving"] if self.frozen else []
        if self._disputed:
            found.append("upstreams contradict each other about what is final")
        return tuple(found)

    def finality_of(self, height: int) -> Finality:
        """How sure the chain is of `height`, and on whose word."""
        if (
            self.observed_at is None
        ):  # restored: the word that it stood on then is the one that it would be asked for now
            by = "rpc-tag" if self._rule.mode == "tag" else "depth"
            return Finality(self.heads.level_of(height), by, 1)
        return self.heads.finality_of(height)

    def restore(self, finalized: int) -> None:
        """This height was final before the first poll: nothing that is final can cease to be. The word for it is not known any
        more, so the first poll that knows a tag decides as if nothing had been."""
        if self.heads.finalized is None:
            self.heads = Heads(safe=finalized, finalized=finalized, by="depth")

    def forget(self) -> None:
        """What was final was so on another chain: everything begins anew with the next poll."""
        self.heads = Heads()
        self._seen = SeenBlocks()
        self._steady, self._steady_final = Steadiness(), Steadiness()

    async def run(self) -> None:
        """Polls until cancelled. A failed poll is remembered and tried again at the next turn; it does not end the loop."""
        rounds = Rounds(self._upstream.herald, self._clock, self._pause, self._interval_s)
        while True:
            before, failed = self.heads.head, False
            try:
                await self.poll()
            except ProofError as error:
                self.last_error, failed = error.message, True
            await rounds.rest(moved=self.heads.head != before, failed=failed)

    async def poll(self, *, all_tags: bool = False, fresh: bool = False) -> None:
        """One round: the head each time, `fresh` from the nodes themselves; safe and finalized every few rounds. Raises
        `ProofError` when nothing was heard."""
        wants_tags = self._rule.mode == "tag" and (all_tags or self._tags_due())
        nodes = self._direct if fresh else self._upstream
        heads = await self._blocks_under("latest", nodes)
        choice = None
        if heads:
            choice = choose(heads, frozen=self._standing_still(heads), floor=self.heads.finalized)
        levels = await self._levels(choice, wants_tags, nodes)
        self._polls += 1
        published, gap = self.heads.head, None
        if choice is None:
            self._publish(None, levels, 0)
        else:
            gap = self._seen.gap_below(choice.followed)
            replaced_at = self._seen.note(choice.followed)
            head = self._steady.observe(choice.heights, self._clock.now(), reorged=replaced_at is not None)
            self._publish(choice, levels, head, replaced_at)
            await self._trace(replaced_at, gap, published or 0, nodes)
        if levels.failed is not None:
            self.last_error = levels.failed

    async def refresh(self) -> None:
        """One round now, shared by all who ask while it runs; one caller's cancellation spares the others. Raises as `poll`."""
        if self._refreshing is None or self._refreshing.done():
            with for_purpose(Purpose.HEAD):
                # A bare context: the deadline of whoever came first is not everybody's.
                context = bare_context()
            self._refreshing = asyncio.get_running_loop().create_task(
                self.poll(fresh=True), name="head-refresh", context=context
            )
            self._refreshing.add_done_callback(_retrieve)
        await asyncio.shield(self._refreshing)

    async def aclose(self) -> None:
        """Ends a refresh still under way."""
        if self._refreshing is not None and not self._refreshing.done():
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])

    def _tags_due(self) -> bool:
        """Every few rounds, or after as much time as those usually take: announced rounds may be rare."""
        now, at = self._clock.now(), self._tags_at
        due = self._polls % self._tag_every == 0 or at is None or now - at >= self._tag_every * self._interval_s
        if due:
            self._tags_at = now
        return due

    # --- what the nodes say -----------------------------------------------------------------------------------------

    async def _blocks_under(self, tag: str, nodes: Watched) -> dict[str, BlockName]:
        """The block under a tag, by node; without the nodes that know no such tag."""
        sightings = await nodes.sightings(tag)
        return {sighting.upstream: sighting.block for sighting in sightings if sighting.block is not None}

    def _standing_still(self, heads: Mapping[str, BlockName]) -> frozenset[str]:
        now = self._clock.now()
        for name, block in heads.items():
            if self._moves.get(name, (-1, now))[0] != block.height:
                self._moves[name] = (block.height, now)
        limit_s = max(STANDING_STILL_S, 3 * (self._pace.block_time_s or 0.0))
        return frozenset(name for name in heads if now - self._moves[name][1] > limit_s)

    async def _levels(self, choice: Choice | None, wants_tags: bool, nodes: Watched) -> _Levels:
        levels = _Levels()
        known, by_tag = self.heads, self._rule.mode == "tag"
        voters = frozenset() if choice is None else choice.voters
        if wants_tags:
            safe, levels.failed = await self._claims("safe")
            finalized, failed = await self._claims("finalized")
            levels.failed = levels.failed or failed
            if failed is not None:  # not to know is not to hear that there is no such tag: the levels stay as they were
                levels.sources = 0
                return levels
            if voters:
                safe = {name: block for name, block in safe.items() if name in voters}
                finalized = {name: block for name, block in finalized.items() if name in voters}
            levels.safe = min((block.height for block in safe.values()), default=None)
            if finalized:
                # One node decides alone what follows from its own word.
                agreed = await on_claims(self._upstream, finalized, voters) if len(voters) > 1 else None
                self._take(levels, agreed, min(block.height for block in finalized.values()))
                return levels
        elif by_tag and known.by == "rpc-tag":
            levels.safe, levels.finalized = known.safe, known.finalized
            if known.finalized is not None:
                return levels
        if (
            choice is not None
            and len(voters) > 1
            and not (by_tag and known.by == "rpc-tag" and known.finalized is not None)
        ):
            counted = choice.lowest - self._rule.depth
            if counted > (-1 if known.finalized is None else known.finalized):
                self._take(levels, await on_height(nodes, counted, voters), None)
        return levels

    async def _claims(self, tag: str) -> tuple[dict[str, BlockName], str | None]:
        """The blocks under a tag, and why none was heard of. A node without the tag, or without an answer, still has a head."""
        try:
            return await self._blocks_under(tag, self._upstream), None
        except ProofError as error:
            return {}, error.message

    def _take(self, levels: _Levels, agreed: Agreed | None, alone: int | None) -> None:
        """What the nodes agree on, or contradict each other about, goes into the levels of the round."""
        if agreed is None:
            levels.finalized = alone
            return
        levels.sources = 0 if agreed.height is None else agreed.sources
        if alone is not None:
            levels.finalized = agreed.height
        if agreed.height is not None:  # without a majority nobody comes back either
            self._upstream.set_aside(agreed.outvoted)
        if agreed.disputed != self._disputed:
            self._disputed = agreed.disputed
            if agreed.disputed:
                self._on_dispute(agreed.disputed)

    # --- what is made of it -----------------------------------------------------------------------------------------

    def _publish(self, choice: Choice | None, levels: _Levels, head: int, replaced_at: int | None = None) -> None:
        known = self.heads
        if choice is not None:
            self._doubt(levels, head)
        self.heads = observe(
            known,
            None if choice is None else head,
            levels.safe,
            levels.finalized,
            mode=self._rule.mode,
            depth=self._rule.depth,
            lowest=None if choice is None else choice.lowest,
            sources=levels.sources,
        )
        if choice is not None:
            self.observed_at = self._clock.now()
            self.last_error = None
            self._pace.note(choice.followed.height, choice.followed.timestamp)
            if replaced_at is not None:
                self._on_reorg(replaced_at)
        if self.heads != known:
            self._on_progress()

    def _doubt(self, levels: _Levels, head: int) -> None:
        """What one node alone calls final: not above the head, and not further above what was final before than time allows
        for, unless it says so again. One lie makes nothing final."""
        if levels.finalized is None or levels.sources != 1 or levels.finalized == self.heads.finalized:
            return
        if levels.finalized > head + NEAR_BLOCKS and self.heads.finalized is not None:
            levels.sources = 0
            return
        believed = self._steady_final.observe([levels.finalized], self._clock.now(), reorged=False)
        if believed < levels.finalized:
            levels.finalized = believed
            levels.safe = None if levels.safe is None else min(levels.safe, max(believed, self.heads.safe or 0))

    async def _trace(self, replaced_at: int | None, gap: int | None, head_before: int, nodes: Watched) -> None:
        """Finds where a reorg began, if there was one; one may hide in blocks that were made between two rounds."""
        began_at, self._untraced = replaced_at or self._untraced, None
        try:
            if began_at is None:
                if gap is None or not await self._seen.contradicted(nodes, gap):
                    return
                began_at = gap
                self._on_reorg(gap)
            deeper = await self._seen.began_at(nodes, began_at, self._final(), self.heads.finalized)
            if deeper < began_at:
                began_at = deeper
                self._on_reorg(deeper)
        except ProofError as error:  # what is known of it has been told; more can be found out in the next round
            self.last_error, self._untraced = error.message, began_at
        if began_at is not None:
            final = self.heads.finalized
            undoes_final = final is not None and began_at <= final
            self._on_traced(Reorg(began_at, max(1, head_before - began_at + 1), undoes_final))


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
