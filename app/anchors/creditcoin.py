"""Anchors that Creditcoin attested, read from its ChainInfo precompile.

Each poll is of one finalized block of Creditcoin: how far the source chain is attested, where that began, the newest checkpoint.
So is each bracket, which is asked for when somebody wants it, one call for a height, and remembered for as long as it stands:

    poll     finalized block p -> genesis, newest attestation, newest checkpoint, all as of p
    find     height h -> the anchors around it as of p
    a checkpoint came       attestations below it are none any more
    attestations reverted   nothing that was remembered is believed: the newest height went down, or an anchor that
                            was known to stand does not

A proof that was begun before a revert was seen does not leave after it: `holds` is asked in its last step. What could not be
asked changes nothing: the last good poll stands, and its age is told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from app.core.continuity import (
    ATTESTATION,
    ATTESTATION_THEN_CHECKPOINT,
    CHECKPOINT,
    CHECKPOINT_THEN_ATTESTATION,
    Bracket,
    not_ready,
)
from app.core.errors import AttestationsMissing, Internal, RpcUnavailable

from . import chain_info
from .chain_info import End, NotChainInfo
from .node import CreditcoinNode, NodeFailed
from .spans import Span, Spans

POLL_INTERVAL_S = 5.0
"""A third of Creditcoin's block time."""

STALE_AFTER_S = 180.0
"""A source that was not read for so long is called stale, as the reference server does; what it said still stands."""

LAGS_FOR_S = 60.0
"""For so long a node that is behind what was read last is one that lags, of several at the same address. After that Creditcoin
itself went back: a development chain that was begun anew."""

PRUNED_WITHIN_S = 600.0
"""For so long after a revert nothing is remembered from one block of Creditcoin to the next: what was reverted is pruned over
several of them, and until then it is named to whoever asks for it."""

REMEMBERED_CHECKED = 4
"""Of the anchors that are remembered so many are asked for again each time that Creditcoin finalized a block, in turns."""

REPLACED_TRIES = 3
"""How often a height is asked for again when what is known changed meanwhile."""


class Creditcoin:
    """Implements the chain's `Anchors`. `advance` is called by one task alone, `find` by any number."""

    source = "creditcoin"

    def __init__(
        self,
        chain_key: int,
        node: CreditcoinNode,
        chain_id: Callable[[], int | None],
        *,
        poll_interval_s: float = POLL_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`chain_id` tells that of the source chain; while it is None the one that Creditcoin names is not compared."""
        self._chain_key = chain_key
        self._node = node
        self._chain_id = chain_id
        self._clock = clock
        self.poll_interval_s = poll_interval_s
        self._pin: int | None = None  # the finalized block of Creditcoin that all of this is as of
        self._pinned_at = 0.0
        self._genesis: int | None = None
        self._latest: End | None = None
        self._checkpoint: End | None = None
        self._spans = Spans()
        self._epoch = 0
        self._turn = 0
        self._asking: dict[int, tuple[asyncio.Lock, int]] = {}
        self._began_at = clock()
        self._heard_at: float | None = None
        self._lags_since: float | None = None
        self._fault: str | None = None
        self._refused: str | None = None
        self._reverted_at: float | None = None
        self.polls = {"ok": 0, "failed": 0, "refused": 0}
        self.reverts = 0

    def __repr__(self) -> str:
        return f"<Creditcoin of {self._chain_key} attested={self.attested_height} as of {self._pin}, {self._spans!r}>"

    async def aclose(self) -> None:
        """Closes the connections to the node."""
        await self._node.aclose()

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def genesis(self) -> int | None:
        """The height that attestations begin at; None while it was not read."""
        return self._genesis

    @property
    def attested_height(self) -> int | None:
        """The newest anchor of either kind."""
        return max((end.height for end in (self._latest, self._checkpoint) if end is not None), default=None)

    @property
    def checkpoint_height(self) -> int | None:
        """The newest checkpoint."""
        return None if self._checkpoint is None else self._checkpoint.height

    @property
    def heard(self) -> bool:
        """Whether there was ever an answer: until then nothing is known, not even that there are no anchors."""
        return self._heard_at is not None or self._refused is not None

    @property
    def age_s(self) -> float:
        """Seconds since the last good poll; since the start, while there was none."""
        return self._clock() - (self._began_at if self._heard_at is None else self._heard_at)

    def state(self) -> dict[str, object]:
        """How reading goes: `ok`, `unread` (never read yet), `stale` or `refused`, and why; `asOfHeight`, the finalized block of
        Creditcoin that was read, and how long ago it was seen first. No address."""
        if self._refused is not None:
            return {"state": "refused", "reason": self._refused}
        why = {} if self._fault is None else {"reason": self._fault}
        if self._heard_at is None:
            return {"state": "unread", **why}
        told: dict[str, object] = {"state": "stale" if self.age_s > STALE_AFTER_S else "ok"}
        told |= {"ageSeconds": round(self.age_s, 1), "asOfHeight": self._pin}
        return told | {"asOfAgeSeconds": round(self._clock() - self._pinned_at, 1), **why}

    def bracket(self, lo: int, hi: int) -> Bracket | None:
        """The anchors around [lo, hi] if both are remembered. Raises `AttestationsMissing`, `BlockNotReady`, and
        `RpcUnavailable` while nothing was ever read."""
        newest = self.attested_height
        if newest is None:
            if not self.heard:
                raise RpcUnavailable("Creditcoin could not be asked for anchors yet")
            raise AttestationsMissing(self._refused or f"attestations missing for chain {self._chain_key}")
        if hi > newest:
            raise not_ready(hi, newest)
        below, above = self._spans.at(lo), self._spans.at(hi)
        if below is None or above is None:
            return None
        lower, upper = below.lower, above.upper
        kinds = _KINDS[lower.is_attestation, upper.is_attestation]
        return Bracket(kinds, lower.height, lower.digest, upper.height, upper.digest)

    def holds(self, bracket: Bracket) -> bool:
        """Whether both ends are still known to stand."""
        return self._spans.stands(bracket.lower, bracket.lower_digest) and self._spans.stands(
            bracket.upper, bracket.upper_digest
        )

    def overtake(self, height: int) -> None:
        """Nothing: Creditcoin decides what stands."""

    def contradicted(self, bracket: Bracket) -> None:
        """Nothing, as above."""

    # --- what is asked for when somebody wants it ---------------------------------------------------------------------

    async def find(self, lo: int, hi: int) -> Bracket:
        """The anchors around [lo, hi], asked for if need be. Raises what `bracket` raises, `RpcUnavailable`, and `Internal` where
        Creditcoin has an anchor above and none below."""
        for _ in range(REPLACED_TRIES):
            known = self.bracket(lo, hi)
            if known is not None:
                return known
            for height in {lo, hi}:
                await self._look_up(height)
        raise RpcUnavailable("the anchors of Creditcoin are changing at this moment")

    async def _look_up(self, height: int) -> None:
        """The span around `height`. Whoever wants the same one meanwhile waits for it."""
        lock, wanted = self._asking.get(height, (asyncio.Lock(), 0))
        self._asking[height] = lock, wanted + 1
        try:
            async with lock:
                if self._spans.at(height) is None:
                    await self._ask_span(height)
        finally:
            lock, wanted = self._asking.pop(height)
            if wanted > 1:
                self._asking[height] = lock, wanted - 1

    async def _ask_span(self, height: int) -> None:
        pin, epoch = self._pin, self._epoch
        assert pin is not None, "there is an attested height, so there was a poll"
        try:
            answer = await self._call(chain_info.ask_bounds(self._chain_key, height), pin)
            bounds = chain_info.read_bounds(answer)
        except (NodeFailed, NotChainInfo) as failed:
            raise RpcUnavailable(f"Creditcoin cannot be asked for the anchors of block {height}: {failed}") from None
        if (self._pin, self._epoch) != (pin, epoch):
            return  # what was asked is of the past: once more
        lower, upper = bounds.lower, bounds.upper
        if self._checkpoint is not None and height == self._checkpoint.height:
            upper = (
                self._checkpoint
            )  # the precompile looks above it for the next attestation, of which there may be none
        if upper is None:
            raise RpcUnavailable(f"Creditcoin names no anchor at or above block {height} at the moment")
        newest = self.attested_height
        if newest is None or upper.height > newest:
            raise RpcUnavailable(f"an anchor above block {height} that was reverted is not gone from Creditcoin yet")
        if lower is None:
            raise Internal(
                f"internal error: no anchor below block {height} of chain {self._chain_key}, though block {upper.height} is "
                "anchored: Creditcoin does not know where its attestations began"
            )
        if not lower.height < height <= upper.height:
            raise RpcUnavailable(f"the Creditcoin node contradicts itself about the anchors of block {height}")
        self._spans.put(Span(lower, upper))

    async def _call(self, data: bytes, pin: int) -> bytes:
        return await self._node.call(chain_info.ADDRESS, data, pin)

    # --- what is polled -----------------------------------------------------------------------------------------------

    async def advance(self, finalized: int | None, root_at: Callable[[int], Awaitable[bytes]]) -> None:
        """One poll; what is final on the source chain is no matter. Raises `RpcUnavailable` when Creditcoin cannot be asked,
        `AttestationsMissing` when it attests another chain, or none, under our key."""
        try:
            await self._poll()
        except (NodeFailed, NotChainInfo) as failed:
            self._fault = str(failed)
            self.polls["failed"] += 1
            raise RpcUnavailable(f"Creditcoin cannot be asked for anchors: {failed}") from None
        except AttestationsMissing:
            self.polls["refused"] += 1
            raise
        self._fault = None
        self._heard_at = self._clock()
        self.polls["ok"] += 1

    async def _poll(self) -> None:
        pin = await self._node.finalized_height()
        if self._lags(pin):
            raise NodeFailed("the node is behind the block of Creditcoin that was read last")
        if pin == self._pin and self._refused is None:
            return
        self._require_ours(chain_info.read_chain(await self._call(chain_info.ask_chain(self._chain_key), pin)))
        genesis, latest, checkpoint = await self._told(
            pin,
            chain_info.ask_genesis(self._chain_key),
            chain_info.ask_latest_attestation(self._chain_key),
            chain_info.ask_latest_checkpoint(self._chain_key),
        )
        newest, newest_checkpoint = chain_info.read_newest(latest), chain_info.read_newest(checkpoint)
        read_genesis = chain_info.read_genesis(genesis)
        reverted = await self._reverted(pin, read_genesis, newest, newest_checkpoint)
        # From here on nothing waits: all of it changes at once.
        if reverted:
            self._forget()
            self.reverts += 1
            self._reverted_at = self._clock()
        elif self._reverted_at is not None and self._clock() - self._reverted_at < PRUNED_WITHIN_S:
            self._forget()
        elif newest_checkpoint is not None and newest_checkpoint != self._checkpoint:
            self._spans.retire(newest_checkpoint)
        self._pin, self._pinned_at = pin, self._clock()
        self._genesis, self._refused = read_genesis, None
        self._latest, self._checkpoint = newest, newest_checkpoint

    def _lags(self, pin: int) -> bool:
        if self._pin is None or pin >= self._pin:
            self._lags_since = None
            return False
        if self._lags_since is None:
            self._lags_since = self._clock()
        if self._clock() - self._lags_since < LAGS_FOR_S:
            return True
        self._lags_since = None
        self._forget()
        self._pin = self._latest = self._checkpoint = None
        return False

    def _require_ours(self, listed: chain_info.Listed | None) -> None:
        ours = self._chain_id()
        if listed is None:
            reason = f"Creditcoin supports no chain under key {self._chain_key}"
        elif ours is not None and listed.chain_id != ours:
            reason = f"key {self._chain_key} of Creditcoin is chain {listed.chain_id}, the source chain is {ours}"
        elif listed.encoding != chain_info.ENCODING_V1:
            reason = f"key {self._chain_key} of Creditcoin has encoding {listed.encoding}: only 1 is known"
        else:
            return
        self._refused = reason
        self._genesis = self._latest = self._checkpoint = None
        self._forget()
        raise AttestationsMissing(reason)

    async def _reverted(self, pin: int, genesis: int, newest: End | None, checkpoint: End | None) -> bool:
        """Whether an anchor that was known to stand does not any more, other than by a checkpoint that retired it. The newest
        ones are always asked about: a height that went down is seen by them."""
        if self._pin is None or self._refused is not None:
            return False
        if genesis != self._genesis or self._went_down(newest, checkpoint):
            return True
        retired = -1 if checkpoint is None else checkpoint.height
        told = {(end.height, end.digest) for end in (newest, checkpoint) if end is not None}
        known = [end for end in (self._latest, self._checkpoint) if end is not None] + self._remembered_in_turn()
        asked = [end for end in known if (end.height, end.digest) not in told]
        if any(end.height == other for end in asked for other, _ in told):
            return True  # another digest at the same height
        asked = [end for end in asked if not (end.is_attestation and end.height < retired)]
        answers = await self._told(pin, *(self._ask_about(end) for end in asked))
        return not all(_stands(end, answer) for end, answer in zip(asked, answers, strict=True))

    def _went_down(self, newest: End | None, checkpoint: End | None) -> bool:
        """Whether the newest anchor, or checkpoint, is below the one before. What a revert takes back is pruned over several
        blocks of Creditcoin: until then anchors above may still be asked for, and are none."""
        heights = [end.height for end in (newest, checkpoint) if end is not None]
        before = self.attested_height
        if before is not None and max(heights, default=-1) < before:
            return True
        return self._checkpoint is not None and (checkpoint is None or checkpoint.height < self._checkpoint.height)

    def _remembered_in_turn(self) -> list[End]:
        ends = self._spans.ends()
        self._turn = (self._turn + REMEMBERED_CHECKED) % max(1, len(ends))
        return (ends[self._turn :] + ends[: self._turn])[:REMEMBERED_CHECKED]

    def _ask_about(self, end: End) -> bytes:
        if end.is_attestation:
            return chain_info.ask_attestation(self._chain_key, end.digest)
        return chain_info.ask_checkpoint(self._chain_key, end.height)

    async def _told(self, pin: int, *questions: bytes) -> list[bytes]:
        """The answers to several questions, asked at once."""
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._call(question, pin)) for question in questions]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in asked]

    def _forget(self) -> None:
        self._spans.clear()
        self._epoch += 1


_KINDS = {
    (True, True): ATTESTATION,
    (False, False): CHECKPOINT,
    (False, True): CHECKPOINT_THEN_ATTESTATION,
    (True, False): ATTESTATION_THEN_CHECKPOINT,
}


def _stands(end: End, answer: bytes) -> bool:
    if end.is_attestation:
        return chain_info.read_attestation(answer) == end.height
    return chain_info.read_checkpoint(answer) == end.digest
