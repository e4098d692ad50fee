"""Anchors of our own making, for development: a digest chain from a genesis height over every finalized block.

The chain starts at its genesis with the 40-byte digest (there is no previous one), an attestation is set every `interval` heights
above it, and every `checkpoint_every`-th of them is a checkpoint, which retires the attestations up to it. No chain accepts these
anchors; they serve to develop and test against, and every listing says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from app.core.continuity import Bracket, SortedMapping, choose_bracket, digest
from app.core.errors import ProofError

_AHEAD = 8
"""Roots asked for at once: enough to hide an upstream's latency, few enough to leave the chain's permits to requests."""


class SelfAttested:
    """Implements the chain's `Anchors`. `advance` is called by one task alone; everything else only reads."""

    source = "self"

    def __init__(self, chain_key: int, genesis: int | None, interval: int, checkpoint_every: int) -> None:
        """Requires interval >= 1 and checkpoint_every >= 1. `genesis` None: the first finalized height seen becomes it."""
        self._chain_key = chain_key
        self._genesis = genesis
        self._interval = interval
        self._checkpoint_every = checkpoint_every
        self._attestations = SortedMapping()
        self._checkpoints = SortedMapping()
        self._roots: list[bytes] = []  # of genesis, genesis + 1, ...: 32 bytes a height
        self._newest_digest: bytes | None = None

    def __repr__(self) -> str:
        return f"<SelfAttested genesis={self._genesis} attested={self.attested_height} roots={len(self._roots)}>"

    @property
    def genesis(self) -> int | None:
        """The height the digest chain starts at; None while it is not known."""
        return self._genesis

    @property
    def attested_height(self) -> int | None:
        """The newest anchor of either kind; the genesis itself is one only once a block above it is anchored."""
        newest = [height for height in (self._attestations.newest, self._checkpoints.newest) if height is not None]
        return max(newest, default=None) if newest and max(newest) != self._genesis else None

    @property
    def checkpoint_height(self) -> int | None:
        """The newest checkpoint above the genesis."""
        newest = self._checkpoints.newest
        return None if newest == self._genesis else newest

    def bracket(self, lo: int, hi: int) -> Bracket:
        """The anchors around [lo, hi]; errors as `choose_bracket`."""
        return choose_bracket(self._attestations, self._checkpoints, lo, hi, chain_key=self._chain_key)

    def known_roots(self, first: int, last: int) -> tuple[bytes, ...] | None:
        """The roots of [first, last], or None where the chain of digests has not come that far."""
        if self._genesis is None or first < self._genesis or last >= self._genesis + len(self._roots):
            return None
        return tuple(self._roots[first - self._genesis : last - self._genesis + 1])

    async def advance(self, finalized: int, root_at: Callable[[int], Awaitable[bytes]]) -> None:
        """Extends the digest chain up to `finalized`. What was reached before an error or a cancellation is kept."""
        if self._genesis is None:
            self._genesis = finalized
        while (height := self._genesis + len(self._roots)) <= finalized:
            error = await self._advance_some(range(height, min(finalized, height + _AHEAD - 1) + 1), root_at)
            if error is not None:
                raise error

    async def _advance_some(self, heights: range, root_at: Callable[[int], Awaitable[bytes]]) -> ProofError | None:
        """Extends the chain over `heights`, up to the first whose root is not to be had: that one's error."""
        asked: list[asyncio.Task[bytes | ProofError]] = []
        try:
            async with asyncio.TaskGroup() as group:
                asked += [group.create_task(_root_or_error(root_at, height)) for height in heights]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            for height, task in zip(heights, asked, strict=False):
                outcome = None if task.cancelled() or task.exception() is not None else task.result()
                if not isinstance(outcome, bytes):
                    break
                self._append(height, outcome)
        outcomes = [task.result() for task in asked]
        return next((outcome for outcome in outcomes if isinstance(outcome, ProofError)), None)

    def _append(self, height: int, root: bytes) -> None:
        assert self._genesis is not None
        self._newest_digest = digest(height, root, self._newest_digest)
        self._roots.append(root)
        steps = height - self._genesis
        if steps % self._interval:
            return
        if (steps // self._interval) % self._checkpoint_every == 0:
            self._checkpoints.put(height, self._newest_digest)
            self._attestations.drop_up_to(height)
        else:
            self._attestations.put(height, self._newest_digest)


async def _root_or_error(root_at: Callable[[int], Awaitable[bytes]], height: int) -> bytes | ProofError:
    # As a value: the error of one height does not cancel those below it.
    try:
        return await root_at(height)
    except ProofError as error:
        return error
