"""Stand-ins for what lies outside a chain. They keep the protocols they stand for and can be held at named points.

Nothing here sleeps: a test holds a point, waits until it is reached, looks around, and releases it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING, TypeVar, cast

from app.core.blocks import Sighting
from app.core.errors import (
    BlockNotOnSourceChain,
    ContentInvalid,
    Doubtful,
    InconsistentSource,
    ProofError,
    TxNotMined,
    Witnesses,
)
from app.core.purpose import Errand, errand_in_hand

if TYPE_CHECKING:
    from app.chain.ports import Herald
    from app.core.blocks import BlockBodies, BlockName, BlockRef, Position

T = TypeVar("T")


async def settle(turns: int = 25) -> None:
    """Lets everything run that can run without time passing."""
    for _ in range(turns):
        await asyncio.sleep(0)


class ManualClock:
    """Monotonic seconds that move by hand."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def move(self, seconds: float) -> None:
        """Time passes; nothing runs."""
        assert seconds >= 0, "time does not go back"
        self._now += seconds

    def drive(self) -> ManualClock:
        """Makes the timers of the running event loop (`call_later`, `asyncio.timeout`, ...) obey this clock."""
        asyncio.get_running_loop().time = self.now  # type: ignore[method-assign]
        return self

    async def advance(self, seconds: float) -> None:
        """Time passes, then whatever became due runs. Needs `drive` to have any effect on timers."""
        await settle()
        self.move(seconds)
        await settle()


class Hold:
    """A point at which callers stop until it is released. One-shot: once released it stays open."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._released = asyncio.Event()
        self.waiting = 0

    async def reached(self) -> None:
        """Returns once somebody has stopped here."""
        await self._reached.wait()

    def release(self) -> None:
        self._released.set()

    async def stop(self) -> None:
        """For the fake: stops here."""
        self._reached.set()
        self.waiting += 1
        try:
            await self._released.wait()
        finally:
            self.waiting -= 1


class HoldPoints:
    """Named points that can be held and made to fail, with hit counters. The base of every fake here.

    For a point `p`: `hold(p)` stops callers at its start, `hold(p + ".after")` once its effect is done;
    `fail(p, error)` raises at its start, `fail(p, error, after=True)` once its effect is done.
    `hits[p]` counts how often it was reached.
    """

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self._holds: dict[str, Hold] = {}
        self._failures: dict[str, deque[BaseException]] = defaultdict(deque)
        self._standing_failures: dict[str, BaseException] = {}

    def hold(self, point: str) -> Hold:
        """The next callers stop at `point` until the returned hold is released."""
        hold = self._holds[point] = Hold()
        return hold

    def unhold(self) -> None:
        """Callers that come from now on stop nowhere; those who stopped stay until their hold is released."""
        self._holds.clear()

    def fail(self, point: str, error: BaseException, *, times: int | None = 1, after: bool = False) -> None:
        """The next `times` callers (None: all, until `heal`) get `error`, before or after the effect."""
        name = f"{point}.after" if after else point
        if times is None:
            self._standing_failures[name] = error
        else:
            self._failures[name].extend([error] * times)

    def heal(self) -> None:
        """No point fails any more."""
        self._failures.clear()
        self._standing_failures.clear()

    async def at(self, point: str) -> None:
        """For the fake: counts, stops and fails as told."""
        if not point.endswith(".after"):
            self.hits[point] += 1
        if hold := self._holds.get(point):
            await hold.stop()
        if self._failures[point]:
            raise self._failures[point].popleft()
        if error := self._standing_failures.get(point):
            raise error


class FakeUpstream(HoldPoints):
    """The nodes of one chain, in memory. Implements `chain.ports.Upstream`.

    Points: `fetch`, `name_of`, `tagged`, `position`, `chain_id`, each with `.after`, `tagged:latest` and so on for one tag
    alone, and `accept` (bodies are about to be handed over; once per node). `content_failures` counts bodies that were
    refused, by check; `errands` holds what each point was reached for. What a test changes in the public mappings is seen by the
    next call.
    """

    def __init__(self, chain_id: int = 1) -> None:
        super().__init__()
        self.known_chain_id: int | None = chain_id
        self.herald: Herald | None = None
        self.proved_chain_id = chain_id
        self.bodies: dict[bytes, list[BlockBodies]] = {}
        self.canonical: dict[int, BlockName] = {}
        self.tags: dict[str, int | None] = {}
        self.tagless = False
        """Whether it knows neither `safe` nor `finalized`: then it says so, and not that there is no such block yet."""
        self.positions: dict[bytes, Position] = {}
        self.pending: set[bytes] = set()
        self.refuted: set[Position] = set()
        self.content_failures: Counter[str] = Counter()
        self.errands: dict[str, list[Errand]] = defaultdict(list)

    async def at(self, point: str) -> None:
        self.errands[point].append(errand_in_hand())
        await super().at(point)

    def add_block(self, name: BlockName, *bodies: BlockBodies, canonical: bool = True) -> None:
        """A block and the bodies that the nodes give for it, one per node, in the order in which they are asked."""
        self.bodies[name.block_hash] = list(bodies)
        if canonical:
            self.canonical[name.height] = name

    def add_position(self, tx_hash: bytes, position: Position) -> None:
        self.positions[tx_hash] = position

    def revert_from(self, height: int) -> None:
        """Forgets the canonical blocks from `height` on, and where their transactions were. By hash they remain."""
        for gone in [at for at in self.canonical if at >= height]:
            del self.canonical[gone]
        for tx_hash in [tx for tx, position in self.positions.items() if position.height >= height]:
            del self.positions[tx_hash]

    @property
    def head(self) -> BlockName | None:
        return self.canonical[max(self.canonical)] if self.canonical else None

    async def fetch(self, ref: BlockRef, accept: Callable[[BlockBodies], Awaitable[T]]) -> T:
        await self.at("fetch")
        block_hash = ref.block_hash
        if block_hash is None:
            assert ref.height is not None
            name = self.canonical.get(ref.height)
            block_hash = name.block_hash if name else b""
        if block_hash not in self.bodies:
            raise BlockNotOnSourceChain("no node knows the block")
        last: ContentInvalid | None = None
        doubtful: list[Doubtful] = []
        for bodies in self.bodies[block_hash]:
            await self.at("accept")
            try:
                value = await accept(bodies)
            except ContentInvalid as refused:
                self.content_failures[refused.check] += 1
                last = refused
                continue
            except Doubtful as doubt:
                doubtful.append(doubt)
                continue
            await self.at("fetch.after")
            return value
        if doubtful:
            await self.at("fetch.after")
            best = max(doubtful, key=lambda each: each.worth)
            others = [each for each in doubtful if each is not best]
            agreed = all(any(claim in each.claims for each in others) for claim in best.claims)
            alone = Witnesses.ONLY if len(self.bodies[block_hash]) == 1 else Witnesses.UNHEARD
            settled = best.settled_by(Witnesses.SEVERAL if agreed else alone)
            if isinstance(settled, ProofError):
                raise settled
            return cast("T", settled)
        raise InconsistentSource(f"every node's data failed a check: {last}")

    async def chain_id(self) -> int:
        await self.at("chain_id")
        self.known_chain_id = self.proved_chain_id
        await self.at("chain_id.after")
        return self.known_chain_id

    def states(self) -> list[dict[str, object]]:
        return [{"name": "fake", "state": "ok"}]

    async def name_of(self, height: int) -> BlockName | None:
        await self.at("name_of")
        name = self.canonical.get(height)
        await self.at("name_of.after")
        return name

    async def height_of(self, block_hash: bytes) -> int | None:
        await self.at("height_of")
        named = {name.block_hash: height for height, name in self.canonical.items()}
        if block_hash in named:
            return named[block_hash]
        if block_hash not in self.bodies:
            return None
        told = json.loads(self.bodies[block_hash][0].block_json)
        return int(told["number"], 16) if "number" in told else int(told["height"])

    async def tagged(self, tag: str) -> BlockName | None:
        await self.at("tagged")
        await self.at(f"tagged:{tag}")
        if tag == "latest" and tag not in self.tags:
            name = self.head
        else:
            height = self.tags.get(tag)
            name = None if height is None else self.canonical.get(height)
        await self.at("tagged.after")
        return name

    async def sightings(self, tag: str) -> tuple[Sighting, ...]:
        block = await self.tagged(tag)
        return (Sighting("fake", block, tagless=block is None and self.tagless and tag != "latest"),)

    async def names_at(self, height: int) -> tuple[Sighting, ...]:
        return (Sighting("fake", self.canonical.get(height)),)

    def set_aside(self, names: Iterable[str]) -> None:
        assert not set(names), "one node cannot contradict itself"

    def doubt_chain(self) -> None:
        self.hits["doubt_chain"] += 1

    async def position(self, tx_hash: bytes, refuted: Collection[Position] = ()) -> Position | None:
        await self.at("position")
        if tx_hash in self.pending:
            raise TxNotMined("the transaction is in no block yet")
        position = self.positions.get(tx_hash)
        self.refuted.update(refuted)
        await self.at("position.after")
        return position
