"""Anchors of our own making, for development: a digest chain from a genesis height over every finalized block.

The chain starts at its genesis with the 40-byte digest (there is no previous one), an attestation is set every `interval` heights
above it, and every `checkpoint_every`-th of them is a checkpoint, which retires the attestations up to it. No chain accepts these
anchors; they serve to develop and test against, and every listing says so.

What is anchored is kept in rows before it is told of: a process that starts goes on from the last row, and of several processes
that share their rows each takes up what the others made. Should two of them make anchors at a time, they make the same ones: a
digest is decided by the genesis and the blocks above it alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Self

from app.core.anchor_rows import ATTESTATION, CHECKPOINT, GENESIS
from app.core.continuity import Bracket, digest
from app.core.errors import ProofError
from app.core.lasting import AnchorContradiction, StoreUnavailable

from .held import HeldAnchors
from .ports import AnchorRow, AnchorRows

log = logging.getLogger(__name__)

_AHEAD = 8
"""Roots asked for at once: enough to hide an upstream's latency, few enough to leave the chain's permits to requests."""


class SelfAttested(HeldAnchors):
    """Implements the chain's `Anchors`. `advance` is called by one task alone; everything else only reads."""

    source = "self"
    poll_interval_s = None

    def __init__(
        self,
        chain_key: int,
        genesis: int | None,
        interval: int,
        checkpoint_every: int,
        *,
        rows: AnchorRows | None = None,
    ) -> None:
        """Requires interval >= 1 and checkpoint_every >= 1. `genesis` None: the first finalized height that was ever seen.
        `rows` None: anchors are kept for as long as the process lives."""
        super().__init__(chain_key, genesis)
        self._wanted_genesis = genesis
        self._interval = interval
        self._checkpoint_every = checkpoint_every
        self._rows = rows
        self._resumed = rows is None
        self._claimed = rows is None and genesis is not None
        self._newest: tuple[int, bytes] | None = None  # where the digest chain has come to
        self._overtaken = 0
        """How often blocks that were anchored were replaced."""
        self._dead: list[AnchorRow] = []
        self._dead_genesis: int | None = None

    @classmethod
    async def opened(
        cls, chain_key: int, genesis: int | None, interval: int, checkpoint_every: int, rows: AnchorRows
    ) -> Self:
        """With what the rows hold. Raises `AnchorContradiction` for another genesis than the one that is kept. Where the rows
        cannot be read now, they are read before the first anchor is made."""
        anchors = cls(chain_key, genesis, interval, checkpoint_every, rows=rows)
        try:
            await anchors._take_up()
        except StoreUnavailable:
            log.warning("anchors_not_read_yet", extra={"chain_key": chain_key})
        return anchors

    def __repr__(self) -> str:
        newest = None if self._newest is None else self._newest[0]
        return f"<SelfAttested genesis={self._genesis} attested={self.attested_height} digests up to {newest}>"

    @property
    def heard(self) -> bool:
        """Whether it is known what is kept: until then nothing is known, not even that there are no anchors."""
        return self._resumed

    def state(self) -> dict[str, object]:
        """Nothing beyond the heights."""
        return {}

    async def advance(self, finalized: int | None, root_at: Callable[[int], Awaitable[bytes]]) -> None:
        """Extends the digest chain up to `finalized`; None: takes up what other processes made since, and makes nothing. What was
        reached before an error or a cancellation is kept. Raises what `root_at` and the rows raise."""
        await self._drop_dead()
        if finalized is None or not self._resumed:
            await self._take_up()
        if finalized is None:
            return
        genesis = await self._claim(finalized)
        while (height := genesis if self._newest is None else self._newest[0] + 1) <= finalized:
            overtaken = self._overtaken
            error = await self._advance_over(range(height, min(finalized, height + _AHEAD - 1) + 1), root_at)
            if error is not None:
                raise error
            if self._overtaken != overtaken:  # what is final is another height by now
                return

    def overtake(self, height: int) -> None:
        """Blocks from `height` on were replaced: the anchors there are dropped, and made again of what is there now."""
        self._overtaken += 1
        for held, kind in ((self._attestations, ATTESTATION), (self._checkpoints, CHECKPOINT)):
            self._dead += (AnchorRow(at, value, kind) for at, value in held.items() if at >= height)
            held.drop_above(height - 1)
        newest = max(
            (at for at in (self._attestations.newest, self._checkpoints.newest) if at is not None), default=None
        )
        self._newest = None
        if newest is not None:
            self._newest = newest, (self._checkpoints.get(newest) or self._attestations[newest])
        if self._wanted_genesis is None and self._genesis is not None and self._genesis >= height:
            self._dead_genesis, self._genesis, self._claimed = self._genesis, None, False

    def contradicted(self, bracket: Bracket) -> None:
        """The blocks do not lead to the upper anchor: it is made again."""
        self.overtake(bracket.lower + 1)

    async def _drop_dead(self) -> None:
        """What was overtaken goes from the rows too. Rows of the same heights that others made since stay."""
        dead, genesis = self._dead, self._dead_genesis
        if not dead and genesis is None:
            return
        if self._rows is not None:
            await self._rows.drop(dead, genesis)
        self._dead = self._dead[len(dead) :]
        if self._dead_genesis == genesis:
            self._dead_genesis = None

    # --- what is kept -----------------------------------------------------------------------------------------------

    async def _take_up(self) -> None:
        """The rows above those that are held: all of them, the first time."""
        if self._rows is None:
            return
        if self._wanted_genesis is not None:
            await self._claim(self._wanted_genesis)
        newest = (self._attestations.newest, self._checkpoints.newest)
        for row in await self._rows.load(max(height for height in (*newest, -1) if height is not None)):
            self._put(row)
            if self._newest is None or self._newest[0] < row.height:
                self._newest = row.height, row.digest
            if row.kind == GENESIS:
                self._genesis = row.height
        self._resumed = True

    async def _claim(self, height: int) -> int:
        """The genesis that stands; `height` if it is the first that is claimed."""
        if self._genesis is not None and self._claimed:
            return self._genesis
        standing = height if self._rows is None else await self._rows.claim_genesis(height)
        if self._wanted_genesis not in (None, standing):
            raise AnchorContradiction(
                f"anchors.genesis is {self._wanted_genesis}, but the anchors that are kept of chain_key {self._chain_key} "
                f"start at {standing}"
            )
        self._genesis, self._claimed = standing, True
        return standing

    async def _advance_over(self, heights: range, root_at: Callable[[int], Awaitable[bytes]]) -> ProofError | None:
        """Extends the chain over `heights`, up to the first whose root is not to be had: that one's error."""
        failed: ProofError | None = None
        overtaken = self._overtaken
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(_root_or_error(root_at, height)) for height in heights]
                for height, task in zip(heights, asked, strict=True):
                    outcome = await task
                    if self._overtaken != overtaken:
                        break
                    if isinstance(outcome, ProofError):
                        failed = outcome
                        break
                    await self._append(height, outcome)
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        return failed

    async def _append(self, height: int, root: bytes) -> None:
        chained = digest(height, root, None if self._newest is None else self._newest[1])
        kind = self._kind_at(height)
        if kind is not None:
            row = AnchorRow(height, chained, kind)
            overtaken = self._overtaken
            if self._rows is not None:
                await self._rows.add((row,))  # before anybody can be told of it
            if self._overtaken != overtaken:
                self._dead.append(row)
                return
            self._put(row)
        self._newest = height, chained

    def _kind_at(self, height: int) -> str | None:
        assert self._genesis is not None
        steps, between = divmod(height - self._genesis, self._interval)
        if between:
            return None
        if steps == 0:
            return GENESIS
        return ATTESTATION if steps % self._checkpoint_every else CHECKPOINT

    def _put(self, row: AnchorRow) -> None:
        newest = self._checkpoints.newest
        if row.kind == ATTESTATION:
            if newest is None or row.height > newest:
                self._attestations.put(row.height, row.digest)
        else:
            self._checkpoints.put(row.height, row.digest)
            self._attestations.drop_up_to(row.height)


async def _root_or_error(root_at: Callable[[int], Awaitable[bytes]], height: int) -> bytes | ProofError:
    # As a value: the error of one height does not cancel those below it.
    try:
        return await root_at(height)
    except ProofError as error:
        return error
