"""One poll of the nodes for all replicas: whoever finds no note of the last one makes it, and leaves what it saw.

A note stands a little shorter than the time between two polls, so that there is always somebody who finds it gone, and heads
are as old as those of a process alone. What follows from a poll is shared too: which blocks the nodes have further below, for as
long as they show the very blocks that were the reason to ask. Without a database everybody polls for himself.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable

from app.core.blocks import BlockName, Sighting
from app.core.lasting import StoreUnavailable
from app.core.sighting_notes import decode, encode

from .head import TAG_EVERY
from .ports import Herald, Leases, Upstream
from .rules import ChainRules

FRESH = 0.95
"""The share of the time between two polls for which a note stands."""

ANNOUNCED_S = 0.3
"""How long a note stands where nodes announce their heads: it is for those who heard of the same one."""

POLL_S = 3.0
"""How long a poll may take before another makes it."""

LOOKS_S = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Between two looks at a poll under way; after the last of them it is made by whoever waits."""

_ANY_NODE = "any"
"""Who is named where it does not matter which of the nodes said so."""

Ask = Callable[[], Awaitable[tuple[Sighting, ...]]]


class SharedHead:
    """What a head tracker asks of an `Upstream`, with its polls shared."""

    def __init__(
        self,
        rules: ChainRules,
        upstream: Upstream,
        leases: Leases,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._chain_key = rules.key
        self._chain_id = rules.chain_id
        self._upstream = upstream
        self._leases = leases
        self._interval_s = rules.head_interval_s
        self._tags_interval_s = TAG_EVERY * rules.head_interval_s
        self._pause = pause
        self._shown: dict[str, tuple[Sighting, ...]] = {}
        self.polled = 0
        self.received = 0

    def __repr__(self) -> str:
        return f"<SharedHead {self._chain_key} {self.polled} polled, {self.received} received>"

    @property
    def herald(self) -> Herald | None:
        """As the upstream's."""
        return self._upstream.herald

    async def sightings(self, tag: str) -> tuple[Sighting, ...]:
        """As the upstream's, or as another process saw it a moment ago."""
        self._shown.pop(tag, None)
        seen, received = await self._shared(tag, lambda: self._upstream.sightings(tag), lambda: self._stands_s(tag))
        self.received += received
        self.polled += not received
        if received and tag == "latest":
            self._upstream.note_heads(seen)
        self._shown[tag] = seen
        return seen

    async def name_of(self, height: int) -> BlockName | None:
        """As the upstream's, or as another process was told that had seen the same heads: they decide what is below them."""

        async def ask() -> tuple[Sighting, ...]:
            return (Sighting(_ANY_NODE, await self._upstream.name_of(height)),)

        told = await self._below(self._shown.get("latest"), f"{height}", ask)
        return told[0].block

    async def names_at(self, height: int) -> tuple[Sighting, ...]:
        """As the upstream's, or as another process was told that had seen the same claims, or else heads."""
        claims = self._shown.get("finalized")
        if claims is None or all(claim.block is None for claim in claims):
            claims = self._shown.get("latest")
        return await self._below(claims, f"{height}:each", lambda: self._upstream.names_at(height))

    def set_aside(self, names: Iterable[str]) -> None:
        """As the upstream's."""
        self._upstream.set_aside(names)

    async def _below(self, shown: tuple[Sighting, ...] | None, what: str, ask: Ask) -> tuple[Sighting, ...]:
        if shown is None:
            return await ask()
        under = hashlib.sha256(encode(shown)).hexdigest()[:32]
        return (await self._shared(f"{under}:{what}", ask, lambda: FRESH * self._tags_interval_s))[0]

    async def _shared(self, what: str, ask: Ask, stands_s: Callable[[], float]) -> tuple[tuple[Sighting, ...], bool]:
        """What came of asking, and whether it was another process that asked."""
        chain_id = self._upstream.known_chain_id if self._chain_id is None else self._chain_id
        if chain_id is None:
            return await ask(), False
        name = f"head:{self._chain_key}:{chain_id}:{what}"  # others may have another chain under this key
        try:
            for look_s in (*LOOKS_S, None):
                lease = await self._leases.take(name, POLL_S)
                if lease.note is not None:
                    return decode(lease.note), True
                if lease.mine or look_s is None:
                    break
                await self._pause(look_s)
        except (StoreUnavailable, ValueError):
            return await ask(), False
        seen: tuple[Sighting, ...] | None = None
        try:
            seen = await ask()
        finally:
            await self._leave(name, seen, stands_s)
        return seen, False

    async def _leave(self, name: str, seen: tuple[Sighting, ...] | None, stands_s: Callable[[], float]) -> None:
        try:
            if seen is None:
                await self._leases.release(name)
            else:
                await self._leases.leave(name, encode(seen), stands_s())
        except StoreUnavailable:
            return

    def _stands_s(self, tag: str) -> float:
        if tag != "latest":
            return FRESH * self._tags_interval_s
        herald = self._upstream.herald
        return ANNOUNCED_S if herald is not None and herald.at_work else FRESH * self._interval_s
