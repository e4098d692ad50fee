"""Head, safe and finalized of one chain, as the blocks of its upstreams tell them.

The tracker polls every upstream, at once where one of them announces a block and rarely where they would; requests only read.
What it publishes is the number of a block that was returned, never a bare counter. The head rises no faster than chains do and
falls only with a reorg. What is final rises only to what several nodes agree on, and is taken back only when it is shown that the
chain has other blocks there: they are compared with the hashes that are known whenever the head falls below the finalized height,
or comes to it again, and meanwhile nothing above what was compared is called final.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from app.core.blocks import BlockName
from app.core.errors import ProofError
from app.core.finality import Finality, Heads, Level, observe
from app.core.pace import Pace
from app.core.purpose import Purpose, bare_context, for_purpose
from app.core.quorum import HEAD_MEMORY_S, NEAR_BLOCKS, Choice, Steadiness, choose

from .agreement import Agreed, on_claims, on_height
from .ports import Clock, Watched
from .reorgs import Reorg, SeenBlocks, compared
from .rounds import Rounds
from .rules import FinalityRule
from .witnesses import Doubt, Witnesses

STANDING_STILL_S = 60.0
"""A node whose head has not moved for so long, and for three blocks, has no say beside nodes that are ahead of it."""


TAG_EVERY = 4
"""Rounds of which one asks for what is safe and final too."""

PROVEN_EVERY_S = 60.0
"""How often, while the finalized height moves on, the chain is asked whether it still has a block that was final before."""

NEW_CHAIN_S = 30.0
"""For so long a chain that took the place of another is called new: an address may lead to another one for some seconds."""

IN_DOUBT = "the head fell below the finalized height: whether it is the same chain is not known yet"
NEW_CHAIN = "another chain took the place of this one: what was kept of it is not used"


@dataclass(slots=True)
class _Levels:
    """What one round heard of safe and finalized. `sources` 0: nothing to act on, since the nodes contradict each other or
    could not be asked. `failed`: why not all of it."""

    safe: int | None = None
    finalized: int | None = None
    sources: int = 1
    failed: str | None = None
    claimed: tuple[BlockName, ...] = ()
    """The blocks under the finalized tag that count."""


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
        on_withdrawn: Callable[[int, bool], None] = lambda _, __: None,
        on_doubt: Callable[[int | None], None] = lambda _: None,
        on_suspect: Callable[[], None] = lambda: None,
        final: Callable[[], Mapping[int, bytes]] = dict,
        interval_s: float = 2.0,
        tag_every: int = TAG_EVERY,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`direct` is asked where `upstream` may answer from what was seen a moment ago, and that will not do.

        `on_reorg` hears from which height on blocks were replaced: at once when one is seen, and again when it is found to reach
        deeper; `on_traced` of the whole of it, once. `on_dispute`: these nodes came to contradict each other about what is final.
        `on_withdrawn`: from this height on nothing is called final any more, though nothing is known to be replaced; and whether
        it was called so too early. `on_doubt`: nothing above this height is known to stand, until `None` says that the doubt is
        over. `on_suspect`: what a node said of late may have been said of another chain. `final`: which blocks are held for
        final, at which heights.
        """
        self._upstream = upstream
        self._direct = upstream if direct is None else direct
        self._rule = rule
        self._clock = clock
        self._on_reorg = on_reorg
        self._on_progress = on_progress
        self._on_traced = on_traced
        self._on_dispute = on_dispute
        self._on_withdrawn = on_withdrawn
        self._on_doubt = on_doubt
        self._on_suspect = on_suspect
        self._final = final
        self._interval_s = interval_s
        self._tag_every = tag_every
        self._pause = pause
        self._seen = SeenBlocks()
        self._untraced: int | None = None
        self._witnesses = Witnesses()
        self._doubt: Doubt | None = None
        self._genesis_asked = False
        self._proven_at: float | None = None
        self._unproven_to: int | None = None
        """What was final up to there was withdrawn, and not compared: it is once the head comes there again."""
        self._new_chain_at: float | None = None
        self._tagless = False
        self._astray: frozenset[str] = frozenset()
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
        self.heard: int | None = None
        """The height that the nodes showed last, which may be below the head that is published."""
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
        if self._doubt is not None:
            found.append(IN_DOUBT)
        if self._new_chain_at is not None and self._clock.now() - self._new_chain_at < NEW_CHAIN_S:
            found.append(NEW_CHAIN)
        return tuple(found)

    @property
    def in_doubt(self) -> bool:
        """Whether it is not known at the moment if the nodes still have the chain that was called final."""
        return self._doubt is not None

    @property
    def final_to(self) -> int | None:
        """The height up to which blocks are final, as far as they are known to stand; None: no block is."""
        finalized = self.heads.finalized
        if self._doubt is None or finalized is None:
            return finalized
        return None if self._doubt.above < 0 else min(finalized, self._doubt.above)

    @property
    def undoubted_final(self) -> int | None:
        """The finalized height for background work; None while it is in doubt whether the chain is still the same."""
        return None if self.in_doubt else self.heads.finalized

    def level_of(self, height: int) -> Level:
        """How final the chain calls `height` now."""
        level = self.heads.level_of(height)
        return level if self._doubt is None or height <= self._doubt.above else Level.LATEST

    def finality_of(self, height: int) -> Finality:
        """How sure the chain is of `height`, and on whose word."""
        if (
            self.observed_at is None
        ):  # restored: the word that it stood on then is the one that it would be asked for now
            by = "rpc-tag" if self._rule.mode == "tag" else "depth"
            return Finality(self.level_of(height), by, 1)
        return Finality(self.level_of(height), self.heads.said_by, self.heads.sources)

    def restore(self, finalized: int) -> None:
        """This height was final before the first poll. The word for it is not known any more, so the first poll that knows a tag
        decides as if nothing had been."""
        if self.heads.finalized is None:
            self.heads = Heads(safe=finalized, finalized=finalized, by="depth")

    def forget(self) -> None:
        """What was final was so on another chain: everything begins anew with the next poll."""
        self.heads, self.heard = Heads(), None
        self._seen, self._witnesses = SeenBlocks(), Witnesses()
        self._genesis_asked = False
        self._steady, self._steady_final = Steadiness(), Steadiness()
        self._end_doubt()

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
            frozen, floor = self._standing_still(heads), self.heads.finalized
            choice = choose(heads, frozen=frozen, floor=floor, astray=self._astray)
        levels = await self._levels(choice, wants_tags, nodes)
        self._polls += 1
        before, gap = self.heads, None
        if choice is None:
            self._publish(None, levels, 0)
        else:
            if self.heads.finalized is not None and choice.heights[0] < self.heads.finalized:
                self._begin_doubt()
            self.heard = choice.heights[0]
            gap = self._seen.gap_below(choice.followed)
            lower, seen = self._seen.is_lower(choice.followed), dict(self._seen.known)
            replaced_at = self._seen.note(choice.followed)
            head = self._steady.observe(choice.heights, self._clock.now(), reorged=replaced_at is not None)
            self._publish(choice, levels, head, replaced_at)
            taken_back = await self._trace(replaced_at, gap, before, choice, nodes, seen, lower=lower)
            if taken_back and (wants_tags or self._counts) and len(choice.voters) == 1:  # else with the next round
                self._publish(choice, levels, head)
            self._note_final(levels)
            await self._learn_genesis(nodes)
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

    @property
    def _counts(self) -> bool:
        """Whether what is final is counted down from the head."""
        return self._rule.mode == "depth" or self._tagless

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
            safe, _, levels.failed = await self._claims("safe")
            finalized, tagless, failed = await self._claims("finalized")
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
                self._tagless = False
                astray = frozenset() if agreed is None else agreed.outvoted
                levels.claimed = tuple(block for name, block in finalized.items() if name not in astray)
                return levels
            # To say that there is no such block yet is to know the tag; and a tag that was heard once is one.
            self._tagless = tagless and known.by != "rpc-tag" if known.finalized is not None else tagless
        elif by_tag and known.by == "rpc-tag":
            levels.safe, levels.finalized = known.safe, known.finalized
            if known.finalized is not None:
                return levels
        if by_tag and not self._tagless:
            return levels
        if choice is not None and len(voters) > 1:
            counted = choice.lowest - self._rule.depth
            if counted > (-1 if known.finalized is None else known.finalized):
                self._take(levels, await on_height(nodes, counted, voters), None)
        return levels

    async def _claims(self, tag: str) -> tuple[dict[str, BlockName], bool, str | None]:
        """The blocks under a tag, whether every node that answered knows no such tag, and why none was heard of. A node without
        the tag, or without an answer, still has a head."""
        try:
            sightings = await self._upstream.sightings(tag)
        except ProofError as error:
            return {}, False, error.message
        claims = {sighting.upstream: sighting.block for sighting in sightings if sighting.block is not None}
        return claims, bool(sightings) and all(sighting.tagless for sighting in sightings), None

    def _take(self, levels: _Levels, agreed: Agreed | None, alone: int | None) -> None:
        """What the nodes agree on, or contradict each other about, goes into the levels of the round."""
        if agreed is None:
            levels.finalized = alone
            return
        levels.sources = 0 if agreed.height is None else agreed.sources
        if alone is not None:
            levels.finalized = agreed.height
        if agreed.height is not None:  # without a majority nobody comes back either
            self._set_aside(agreed.outvoted)
        if agreed.disputed != self._disputed:
            self._disputed = agreed.disputed
            if agreed.disputed:
                self._on_dispute(agreed.disputed)

    def _set_aside(self, names: frozenset[str]) -> None:
        """These nodes contradict the majority: what they said of late may be of another chain."""
        if names - self._astray:
            self._on_suspect()
        self._astray = names
        self._upstream.set_aside(names)

    # --- what is made of it -----------------------------------------------------------------------------------------

    def _publish(self, choice: Choice | None, levels: _Levels, head: int, replaced_at: int | None = None) -> None:
        known = self.heads
        if choice is not None:
            self._mistrust(levels, head)
        self.heads = observe(
            known,
            None if choice is None else head,
            levels.safe,
            levels.finalized,
            mode=self._rule.mode,
            depth=self._rule.depth,
            lowest=None if choice is None else choice.lowest,
            sources=levels.sources,
            tagless=self._tagless,
        )
        if self._doubt is not None:  # nothing new is final before it is known of which chain
            self.heads = Heads(self.heads.head, known.safe, known.finalized, known.by, known.sources)
        elif known.finalized is not None and (self.heads.finalized is None or self.heads.finalized < known.finalized):
            heard = self.observed_at is not None
            self._on_withdrawn(0 if self.heads.finalized is None else self.heads.finalized + 1, heard)
        if choice is not None:
            self.observed_at = self._clock.now()
            self.last_error = None
            self._pace.note(choice.followed.height, choice.followed.timestamp)
            if replaced_at is not None:
                self._on_reorg(self._allowed(replaced_at, choice))
            self._compare_claims(levels, choice)
        if self.heads != known:
            self._on_progress()

    def _mistrust(self, levels: _Levels, head: int) -> None:
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

    def _compare_claims(self, levels: _Levels, choice: Choice) -> None:
        """A block under the finalized tag may contradict one that was there before: that costs no call."""
        for block in levels.claimed:
            if self._witnesses.contradicts(block.height, block.block_hash):
                self._untraced = block.height if self._untraced is None else min(self._untraced, block.height)
                self._on_reorg(self._allowed(block.height, choice))

    def _note_final(self, levels: _Levels) -> None:
        """Of what is final now the hash is known: that of the block under the tag, or of one that was seen at that height."""
        finalized = self.heads.finalized
        if finalized is None or self._doubt is not None or self._untraced is not None:
            return
        for block in levels.claimed:
            if block.height <= finalized and not self._witnesses.contradicts(block.height, block.block_hash):
                self._witnesses.note(block.height, block.block_hash)
        if not levels.claimed and (seen := self._seen.known.get(finalized)) is not None:
            self._witnesses.note(finalized, seen)

    # --- whether it is still the same chain ---------------------------------------------------------------------------

    async def _learn_genesis(self, nodes: Watched) -> None:
        """Asked for once. A node that does not keep it is not asked again."""
        if self._genesis_asked or self._doubt is not None:
            return
        self._genesis_asked = True
        try:
            with for_purpose(Purpose.HEAD):
                genesis = await nodes.name_of(0)
        except ProofError:
            return
        if genesis is not None:
            self._witnesses.note(0, genesis.block_hash)

    def _begin_doubt(self) -> None:
        """The head is below the finalized height: a node that lags, or another chain. Nothing is final before it was compared."""
        if self._doubt is None and self.heads.finalized is not None:
            until = max(self.heads.finalized, self._witnesses.highest or 0, max(self._final(), default=0))
            self._doubt = Doubt(-1, until, self._clock.now(), dict(self._seen.known))
            self._on_doubt(-1)

    def _end_doubt(self) -> None:
        if self._doubt is not None:
            self._doubt = None
            self._on_doubt(None)

    def _held(self, reach: int) -> dict[int, bytes]:
        """What is known of blocks that are, or were, final, as far up as the nodes can be asked."""
        held = {**self._final(), **self._witnesses.known}
        return {height: block_hash for height, block_hash in held.items() if height <= reach}

    async def _trace(
        self,
        replaced_at: int | None,
        gap: int | None,
        before: Heads,
        choice: Choice,
        nodes: Watched,
        seen: Mapping[int, bytes],
        *,
        lower: bool,
    ) -> bool:
        """Finds where a reorg began, if there was one; one may hide in blocks that were made between two rounds, below a head
        that fell, or behind a node that lagged. Whether some of its blocks were final."""
        began_at, self._untraced = self._untraced, None
        if replaced_at is not None:
            began_at = replaced_at if began_at is None else min(began_at, replaced_at)
        final, reach = before.finalized, choice.followed.height
        told, doubt = None if began_at is None else self._allowed(began_at, choice), self._doubt
        try:
            if began_at is None:
                began_at = await self._hidden(gap, choice, nodes, seen if lower else None)
                if began_at is None:
                    return False
                told = self._allowed(began_at, choice)
                self._on_reorg(told)
            assert told is not None
            # What was seen since a doubt began says nothing of what was before.
            known = seen if doubt is None else doubt.seen
            deeper = await self._seen.began_at(nodes, min(began_at, reach + 1), known, self._held(reach), final)
            began_at = min(began_at, deeper)
            if self._allowed(began_at, choice) != began_at and not await self._voted(began_at, choice, nodes):
                return False
            if began_at < told:
                self._on_reorg(began_at)
            told = began_at
        except ProofError as error:  # what is known of it has been told; more can be found out in the next round
            self.last_error, self._untraced = error.message, began_at
        if told is None:
            return False
        undoes_final = final is not None and told <= final
        self._seen.drop_from(told)
        self._seen.note(choice.followed)
        if undoes_final:
            self._take_back(told)
        self._on_traced(Reorg(told, max(1, (before.head or 0) - told + 1), undoes_final))
        return undoes_final

    def _allowed(self, height: int, choice: Choice) -> int:
        """From which height on blocks are taken for replaced on the word of the node that is followed. Of several, one alone does
        not undo what is final."""
        final = self.heads.finalized
        return height if final is None or len(choice.voters) < 2 else max(height, final + 1)

    async def _hidden(
        self, gap: int | None, choice: Choice, nodes: Watched, above: Mapping[int, bytes] | None
    ) -> int | None:
        """The height of a block that was replaced although no two blocks that were shown contradict each other. `above`: what had
        been seen, where the head is at a lower height now that was not."""
        followed = choice.followed
        if self._doubt is not None:
            return await self._settle(self._doubt, followed.height, nodes)
        if gap is not None and await self._seen.contradicted(nodes, gap):
            return gap
        if above is not None:
            known = {**above, **self._held(followed.height)}
            at = max((height for height in known if height <= followed.height), default=None)
            if at is not None and (await compared(nodes, {at: known[at]}, at + 1))[0]:
                return at
        if self._unproven_to is not None and followed.height >= self._unproven_to:
            held = self._held(followed.height)
            lost, _ = await compared(nodes, held, followed.height + 1)
            self._unproven_to = None
            return min(lost) if lost else None
        now, highest = self._clock.now(), self._witnesses.highest
        if self._proven_at is None or highest is None:
            self._proven_at = now
        elif now - self._proven_at >= PROVEN_EVERY_S and highest <= followed.height:
            self._proven_at = now
            lost, _ = await compared(nodes, {highest: self._witnesses.known[highest]}, highest + 1)
            return highest if lost else None
        return None

    async def _settle(self, doubt: Doubt, reach: int, nodes: Watched) -> int | None:
        """Compares what was final with what the nodes have, as far as they have come. The height of a block that was replaced."""
        known = {**doubt.seen, **self._held(reach)}
        known = {height: block_hash for height, block_hash in known.items() if doubt.above < height <= reach}
        lost, standing = await compared(nodes, known, reach + 1)
        if self._doubt is not doubt:
            return None
        if lost:
            return min(lost)
        if standing is not None:
            doubt.above = standing
            self._on_doubt(standing)
        if reach >= doubt.until:
            self._end_doubt()
        elif self._clock.now() - doubt.since > HEAD_MEMORY_S:
            self._unproven_to = doubt.until
            self._withdraw(doubt.above + 1)
        return None

    async def _voted(self, height: int, choice: Choice, nodes: Watched) -> bool:
        """Whether most of the nodes have replaced what was final from `height` on. Where most have not, the others are set aside;
        and without a majority all stays as it was."""
        held = self._held(choice.followed.height)
        at = max((known for known in held if known >= height), default=None)
        self._seen.drop_from(0)
        if at is None:
            return False
        named = {each.upstream: each.block.block_hash for each in await nodes.names_at(at) if each.block is not None}
        against = frozenset(name for name, block_hash in named.items() if block_hash != held[at])
        if 2 * len(against) > len(named):
            return True
        if against and 2 * len(against) < len(named):
            self._set_aside(self._astray | against)
        elif against and self._disputed != frozenset(named):
            self._disputed = frozenset(named)
            self._on_suspect()
            self._on_dispute(self._disputed)
        return False

    def _take_back(self, height: int) -> None:
        """Blocks from `height` on, which were final, were replaced. What is final there is learned again."""
        self._witnesses.drop_from(height)
        self._unproven_to = None
        self._upstream.doubt_chain()
        if height == 0:
            self._new_chain_at = self._clock.now()
            self._genesis_asked = False
            self._pace = Pace()
        self._on_suspect()
        self._withdraw(height)

    def _withdraw(self, height: int) -> None:
        """From `height` on nothing is final any more."""
        self.heads = self.heads.taken_back(height)
        self._steady, self._steady_final = Steadiness(), Steadiness()
        self._tags_at, self._polls = None, 0
        self._on_withdrawn(height, False)
        self._end_doubt()


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
