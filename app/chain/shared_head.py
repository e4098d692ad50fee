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
from .listening import Listening
from .office import Office
from .ports import Clock, Herald, Leases, Upstream
from .rules import ChainRules

FRESH = 0.95
"""The share of the time between two polls for which a note stands."""

TOLD_S = 8.0
"""How long it is relied on that a process which listens to the nodes still does; it says so every few seconds."""

BELOW_S = 20.0
"""How long it stands what was found below blocks that the nodes showed: that does not change while they do."""

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
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._chain_key = rules.key
        self._chain_id = rules.chain_id
        self._nodes = rules.nodes
        self._upstream = upstream
        self._leases = leases
        self._interval_s = rules.head_interval_s
        self._tags_interval_s = TAG_EVERY * rules.head_interval_s
        self._pause = pause
        self._shown: dict[str, tuple[Sighting, ...]] = {}
        self._listening: Listening | None = None
        if upstream.herald is not None:
            office = Office(f"listen:{rules.key}:{rules.nodes}", leases, clock)
            self._listening = Listening(upstream.herald, office, clock, self._say_again, pause)
        self.polled = 0
        self.received = 0

    def __repr__(self) -> str:
        return f"<SharedHead {self._chain_key} {self.polled} polled, {self.received} received>"

    @property
    def herald(self) -> Herald | None:
        """As the upstream's, of which one process makes use."""
        return self._listening

    async def sightings(self, tag: str) -> tuple[Sighting, ...]:
        """As the upstream's, or as another process saw it a moment ago."""
        self._shown.pop(tag, None)
        if self._listening is not None and self._listening.for_all:  # what was left is from before they said something
            seen, received = await self._upstream.sightings(tag), False
        else:
            stands_s = FRESH * (self._interval_s if tag == "latest" else self._tags_interval_s)
            seen, received = await self._shared(tag, lambda: self._upstream.sightings(tag), stands_s)
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

    def doubt_chain(self) -> None:
        """As the upstream's."""
        self._upstream.doubt_chain()

    async def aclose(self) -> None:
        """Another process may listen to the nodes from now on."""
        if self._listening is not None:
            await self._listening.aclose()

    async def _below(self, shown: tuple[Sighting, ...] | None, what: str, ask: Ask) -> tuple[Sighting, ...]:
        if shown is None:
            return await ask()
        under = hashlib.sha256(encode(shown)).hexdigest()[:32]
        return (await self._shared(f"{under}:{what}", ask, BELOW_S))[0]

    async def _shared(self, what: str, ask: Ask, stands_s: float) -> tuple[tuple[Sighting, ...], bool]:
        """What came of asking, and whether it was another process that asked."""
        name = self._name(what)
        if name is None:
            return await ask(), False
        try:
            for look_s in (*LOOKS_S, None):
                lease = await self._leases.take(name, POLL_S)
                if lease.note is not None and lease.left_s <= max(stands_s, TOLD_S):
                    return decode(lease.note), True
                # A note that would stand for longer than it was left for is from before the clock was set back.
                if lease.mine or lease.note is not None or look_s is None:
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

    def _name(self, what: str) -> str | None:
        """Of a lease; None while it is not known of which chain: others may have another one under this key. What other nodes
        said is not ours to hear: that they have a block would be taken for a word of ours."""
        chain_id = self._upstream.known_chain_id if self._chain_id is None else self._chain_id
        return None if chain_id is None else f"head:{self._chain_key}:{chain_id}:{self._nodes}:{what}"

    async def _leave(self, name: str, seen: tuple[Sighting, ...] | None, stands_s: float) -> None:
        try:
            if seen is None:
                await self._leases.release(name)
            else:
                await self._leases.leave(name, encode(seen), stands_s)
        except StoreUnavailable:
            return

    async def _say_again(self) -> None:
        """The nodes have said nothing since: what they showed is so."""
        try:
            for tag, seen in list(self._shown.items()):
                if (name := self._name(tag)) is not None:
                    await self._leases.post(name, encode(seen), TOLD_S)
        except StoreUnavailable:
            return
