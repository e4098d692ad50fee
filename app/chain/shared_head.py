"""One poll of the nodes for all replicas: whoever finds no note of the last one makes it, and leaves what it saw.

A note stands a little shorter than the time between two polls, so that there is always somebody who finds it gone, and heads
are as old as those of a process alone. Without a database everybody polls for himself.
"""

from __future__ import annotations

import asyncio
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
        chain_id = self._upstream.known_chain_id if self._chain_id is None else self._chain_id
        if chain_id is None:
            return await self._upstream.sightings(tag)
        name = f"head:{self._chain_key}:{chain_id}:{tag}"  # others may have another chain under this key
        try:
            for look_s in (*LOOKS_S, None):
                lease = await self._leases.take(name, POLL_S)
                if lease.note is not None:
                    return self._received(tag, lease.note)
                if lease.mine or look_s is None:
                    break
                await self._pause(look_s)
        except (StoreUnavailable, ValueError):
            return await self._upstream.sightings(tag)
        return await self._polled(name, tag)

    async def name_of(self, height: int) -> BlockName | None:
        """As the upstream's."""
        return await self._upstream.name_of(height)

    async def names_at(self, height: int) -> tuple[Sighting, ...]:
        """As the upstream's."""
        return await self._upstream.names_at(height)

    def set_aside(self, names: Iterable[str]) -> None:
        """As the upstream's."""
        self._upstream.set_aside(names)

    def _received(self, tag: str, note: bytes) -> tuple[Sighting, ...]:
        sightings = decode(note)
        self.received += 1
        if tag == "latest":
            self._upstream.note_heads(sightings)
        return sightings

    async def _polled(self, name: str, tag: str) -> tuple[Sighting, ...]:
        self.polled += 1
        seen: tuple[Sighting, ...] | None = None
        try:
            seen = await self._upstream.sightings(tag)
        finally:
            await self._leave(name, tag, seen)
        return seen

    async def _leave(self, name: str, tag: str, seen: tuple[Sighting, ...] | None) -> None:
        try:
            if seen is None:
                await self._leases.release(name)
            else:
                await self._leases.leave(name, encode(seen), self._stands_s(tag))
        except StoreUnavailable:
            return

    def _stands_s(self, tag: str) -> float:
        if tag != "latest":
            return FRESH * self._tags_interval_s
        herald = self._upstream.herald
        return ANNOUNCED_S if herald is not None and herald.at_work else FRESH * self._interval_s
