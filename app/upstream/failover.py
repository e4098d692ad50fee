"""The nodes of one chain behind the chain's `Upstream` port: none of them is believed, and none of them is needed.

`core.routing` decides who is asked, `core.journey` for how long and who is next; here that is obeyed. This is the one place that
retries and changes nodes. A block and its receipts always come from the same node, the receipts by the block's hash.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from app.core.blocks import BlockBodies, BlockName, BlockRef, Position, Sighting
from app.core.deadlines import turn_ends_at
from app.core.errors import ContentInvalid, Doubtful, ProofError, RequestTimeout, RpcUnavailable, TxNotMined
from app.core.journey import Turn
from app.core.routing import Part, RoutingRules, Work, frontier
from app.core.seldom import Told

from .evm import EvmNode
from .faults import CallFailed
from .hedging import Hedging, race
from .herald import Herald
from .listing import listing_of
from .reading import Absent, NodeReader
from .retries import Patience
from .sightings import note_heads
from .trip import SETBACKS, Crew, Lacking, Setback, Trip

POLL_LIMIT_S = 2.0
"""How long one of several nodes may take to name a block: the others do not wait longer for it."""

TELLERS = 1024
"""Answers that are remembered by node, in case one of them turns out wrong."""

T = TypeVar("T")

logger = logging.getLogger("copath.upstream")


class Failover:
    """Fits the chain's `Upstream` port over one or several nodes, the primary first. `aclose` it."""

    def __init__(
        self, nodes: Sequence[EvmNode], *, rules: RoutingRules | None = None, patience: Patience | None = None
    ) -> None:
        assert nodes, "a chain needs a node"
        self.nodes = tuple(nodes)
        self.crew = Crew(self.nodes, rules or RoutingRules(), patience or Patience())
        self.hedging = Hedging(self.crew.budget)
        self.herald = Herald.over(self.nodes, self.crew.patience.now)
        """Of the nodes that announce their heads."""
        self._silent = Told()
        self._tellers: dict[tuple[bytes, Position], int] = {}
        """Which node said where a transaction is, of the last so many."""

    def __repr__(self) -> str:
        return f"<Failover {list(self.nodes)!r}>"

    async def aclose(self) -> None:
        """Closes the connections of every node."""
        for node in self.nodes:
            await node.aclose()

    # --- what is known without asking -------------------------------------------------------------------------------

    @property
    def known_chain_id(self) -> int | None:
        """The chain id that a node proved to serve, or the configured one; None while neither is known."""
        return next((node.chain_id for node in self.nodes if node.chain_id is not None), None)

    @property
    def head(self) -> int | None:
        """The highest head that a node named lately and that is plausible beside the others; None while there is none."""
        now = self.crew.patience.now()
        return frontier([node.observed(now) for node in self.nodes], now, self.crew.rules)

    def states(self) -> list[dict[str, object]]:
        """Each node by name with what is known of it. Never an address."""
        now = self.crew.patience.now()
        return [listing_of(node, now, self.head) for node in self.nodes]

    def note_heads(self, sightings: Sequence[Sighting]) -> None:
        """As the port says."""
        note_heads(self.nodes, sightings, self.crew.patience.now())

    def set_aside(self, names: Iterable[str]) -> None:
        """These nodes, and no others, contradict what the rest agree is final: they are not asked, except for where they
        stand."""
        astray = set(names)
        for node in self.nodes:
            if node.state.astray != (node.name in astray):
                node.state.astray = node.name in astray
                logger.warning("upstream_set_aside" if node.state.astray else "upstream_in_use_again", extra=node.facts)

    def doubt_chain(self) -> None:
        """As the port says."""
        for node in self.nodes:
            node.standing.forget_chain()
            node.state.head = None  # of the chain before: a height above may be none of this one

    # --- the port ---------------------------------------------------------------------------------------------------

    async def chain_id(self) -> int:
        """The chain id that a node proves to serve. Raises `RpcUnavailable` when none can be asked, or fits."""
        trip = self._trip(None)

        async def visit(reader: NodeReader, turn: Turn) -> int:
            with trip.limited(turn):
                return await reader.retried(reader.node.verify_chain)

        return await trip.first(visit)

    async def fetch(self, ref: BlockRef, accept: Callable[[BlockBodies], Awaitable[T]]) -> T:
        """As the port says. `accept` runs outside every limit of a turn: bytes in hand are not thrown away."""
        trip = self._trip(ref.height, Work.BODIES)
        lacking: list[BlockBodies] = []
        self.hedging.deposit()

        async def visit(reader: NodeReader, turn: Turn) -> T:
            bodies = await self._bodies(trip, reader, turn, ref)
            if bodies.receipts_json is None and not turn.patient:
                lacking.append(bodies)
                raise Lacking(bodies)
            return await accept(bodies)

        try:
            return await trip.first(visit)
        except ProofError as error:
            late = isinstance(error, RequestTimeout)
            if lacking and not trip.doubtful and not late:
                await self._make_do(trip, lacking[0], accept)
            if not trip.doubtful:
                raise
        if not late and (mended := await self._singly(trip, ref, accept)) is not None:
            return mended
        return cast("T", trip.settled())

    async def _make_do(self, trip: Trip, bodies: BlockBodies, accept: Callable[[BlockBodies], Awaitable[T]]) -> None:
        """No node had better than a block without its receipts: what can be made of it is doubtful at best."""
        place = next((at for at, node in enumerate(self.nodes) if node.name == bodies.upstream), 0)
        try:
            trip.doubtful[place] = Doubtful(await accept(bodies), 0)
        except Doubtful as doubtful:
            trip.doubtful[place] = doubtful
        except ContentInvalid as invalid:
            if trip.worth_saying("invalid", bodies.upstream, invalid.check):
                logger.warning("upstream_block_invalid", extra={**self.nodes[place].facts, "detail": str(invalid)})

    async def _singly(self, trip: Trip, ref: BlockRef, accept: Callable[[BlockBodies], Awaitable[T]]) -> T | None:
        """Receipts that were wrong in one list may be right one by one: asked for once, of each node that gave such a list."""
        for place in [at for at, each in trip.doubtful.items() if each.singly]:
            if not self.crew.budget.take(self.crew.patience.now()):
                return None
            turn = Turn(place, patient=True)
            try:
                with trip.limited(turn):
                    bodies = await self.crew.reader(turn).bodies(ref, singly=True)
                value = await accept(bodies)
            except Doubtful as doubtful:
                if doubtful.worth > trip.doubtful[place].worth:
                    trip.doubtful[place] = doubtful
                continue
            except (CallFailed, ContentInvalid, Absent):
                continue
            trip.blame_others(place, value)
            return value
        return None

    async def name_of(self, height: int) -> BlockName | None:
        """As the port says. Raises `BlockNotOnSourceChain` for a height above the head."""
        trip = self._trip(height)

        async def visit(reader: NodeReader, turn: Turn) -> BlockName:
            with trip.limited(turn):
                return await reader.name_of(height)

        return await trip.first_or_none(visit)

    async def height_of(self, block_hash: bytes) -> int | None:
        """The height that the first node with such a block names; None when a node that is as far as any knows none."""
        trip = self._trip(None)

        async def visit(reader: NodeReader, turn: Turn) -> int:
            with trip.limited(turn):
                return await reader.height_of(block_hash)

        return await trip.first_or_none(visit)

    async def tagged(self, tag: str) -> BlockName | None:
        """The block under a tag, of the first node that knows the tag; None when none does."""
        trip = self._trip(None)

        async def visit(reader: NodeReader, turn: Turn) -> BlockName:
            with trip.limited(turn):
                name = await reader.tagged(tag)
            if name is None:
                raise Absent(f"upstream {reader.node.name} knows no {tag} block")
            return name

        return await trip.first_or_none(visit)

    async def position(self, tx_hash: bytes, refuted: Collection[Position] = ()) -> Position | None:
        """Where the first node that has the transaction in a block says it is, `refuted` being known to be wrong.

        None when all nodes that could know of it know of none; raises `TxNotMined` when it is pending.
        """
        for each in refuted:
            self._blame_teller(tx_hash, each)
        trip = self._trip(None)
        pending: list[TxNotMined] = []

        async def visit(reader: NodeReader, turn: Turn) -> Position:
            with trip.limited(turn):
                try:
                    position = await reader.position(tx_hash)
                except TxNotMined as waiting:
                    pending.append(waiting)
                    position = None
            if position is None:
                raise Absent(f"upstream {reader.node.name} knows of no such transaction")
            if position in refuted:
                raise ContentInvalid("position", "the block that it names does not hold the transaction")
            self._note_teller(tx_hash, position, turn.node)
            return position

        try:
            return await trip.first(visit)
        except ProofError as error:
            if isinstance(error, RequestTimeout) and not pending:
                raise
            if pending:
                raise pending[0] from None
            if trip.missing and not trip.silent:
                return None
            if trip.missing:
                raise RpcUnavailable(
                    "one upstream knows of no such transaction, and another could not be asked"
                ) from None
            raise

    def _note_teller(self, tx_hash: bytes, position: Position, place: int) -> None:
        if len(self._tellers) >= TELLERS:
            del self._tellers[next(iter(self._tellers))]
        self._tellers[tx_hash, position] = place

    def _blame_teller(self, tx_hash: bytes, position: Position) -> None:
        """A node named a block that does not hold the transaction: it comes last for a while."""
        place = self._tellers.pop((tx_hash, position), None)
        if place is not None:
            self.nodes[place].note_invalid("position")
            self.nodes[place].state.distrust(Part.LIGHT, self.crew.patience.now())

    async def sightings(self, tag: str) -> tuple[Sighting, ...]:
        """What each node that can be asked has under the tag, None for one without it. `ProofError` when no node answered."""
        if len(self.nodes) == 1:
            return (await self._only(tag),)
        trip = self._trip(None)
        seen = await self._each(trip, self._askable(Work.LIGHT), lambda reader: reader.tagged(tag))
        if not seen:
            raise trip.verdict()
        unknown = {node.name for node in self.nodes if tag in node.unknown_tags}
        return tuple(replace(each, tagless=each.block is None and each.upstream in unknown) for each in seen)

    async def names_at(self, height: int) -> tuple[Sighting, ...]:
        """The block that each node has at `height`, None for one that has none although its head is above. A node that cannot
        be asked, or is not that far, is left out."""
        askable, now = self._askable(Work.LIGHT), self.crew.patience.now()
        reaching = [at for at in askable if not self.nodes[at].state.lag(height, now)]

        async def named(reader: NodeReader) -> BlockName | None:
            try:
                return await reader.name_of(height)
            except Absent as absent:
                if absent.behind:
                    raise
                return None
            except Doubtful as doubtful:
                return cast("BlockName", doubtful.value)

        return await self._each(self._trip(height), reaching, named)

    async def _only(self, tag: str) -> Sighting:
        node = self.nodes[0]
        try:
            block = await self.tagged(tag)
            sighting = Sighting(node.name, block, tagless=block is None and tag in node.unknown_tags)
        except ProofError as error:
            self._note_silence(node, error.message)
            raise
        self._note_silence(node, None)
        return sighting

    def _trip(self, height: int | None, work: Work = Work.LIGHT) -> Trip:
        return Trip(self.crew, height, work)

    # --- several at once --------------------------------------------------------------------------------------------

    def _askable(self, work: Work) -> list[int]:
        """Every node that may be asked now, by place, or the one that is the least bad to ask."""
        now = self.crew.patience.now()
        states = [node.observed(now) for node in self.nodes]
        found = [at for at, state in enumerate(states) if not state.resting_s(now) and state.admits(work, now)]
        return found or [
            min(range(len(states)), key=lambda at: (states[at].resting_s(now), states[at].opened_at(work)))
        ]

    async def _each(
        self, trip: Trip, places: Iterable[int], ask: Callable[[NodeReader], Awaitable[BlockName | None]]
    ) -> tuple[Sighting, ...]:
        """What each of some nodes says; who fails is left out, and noted."""

        async def one(place: int) -> Sighting | None:
            turn_ends_at.set(self.crew.patience.now() + POLL_LIMIT_S)  # of this task alone
            turn = Turn(place)
            try:
                name = await ask(self.crew.reader(turn))
            except (CallFailed, ContentInvalid, Absent) as setback:
                trip.note(turn, setback)
                self._note_silence(self.nodes[place], None if isinstance(setback, Absent) else str(setback))
                return None
            except Exception as fault:  # noqa: BLE001 - whatever one node's answer leads to, the others are asked
                failure = self.nodes[place].crashed(fault)
                trip.note(turn, failure)
                self._note_silence(self.nodes[place], str(failure))
                return None
            self._note_silence(self.nodes[place], None)
            return Sighting(self.nodes[place].name, name)

        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(one(place)) for place in places]
        return tuple(sighting for task in asking if (sighting := task.result()) is not None)

    def _note_silence(self, node: EvmNode, why: str | None) -> None:
        """Said once when a node falls silent, and once when it is heard again, but not every few seconds."""
        if self._silent.changed(node.name, why is not None, self.crew.patience.now()):
            if why is not None:
                logger.warning("upstream_unavailable", extra={**node.facts, "detail": why})
            else:
                logger.info("upstream_answers", extra=node.facts)

    # --- bodies -----------------------------------------------------------------------------------------------------

    async def _bodies(self, trip: Trip, reader: NodeReader, turn: Turn, ref: BlockRef) -> BlockBodies:
        """Of the node whose turn it is; or, where that is slow and hedges are on, of the one after it, whose turn it is then."""

        async def ask(reader: NodeReader, turn: Turn) -> BlockBodies | Setback:
            try:
                with trip.limited(turn):
                    return await reader.bodies(ref)
            except SETBACKS as setback:
                return setback
            except ProofError:
                raise
            except Exception as fault:  # noqa: BLE001 - whatever one node's answer leads to, the next one is asked
                return self.nodes[turn.node].crashed(fault)

        rivals = [turn]

        def backup() -> Callable[[], Awaitable[BlockBodies | Setback]] | None:
            now = self.crew.patience.now()
            second = None if self.nodes[turn.node].state.probed(Work.BODIES, now) else trip.journey.backup(now)
            if second is None:
                return None
            if not self.hedging.allowed(now, self.nodes[second.node].purse.spent_share):
                trip.journey.put_back(second)
                return None
            rivals.append(second)
            return lambda: ask(self.crew.reader(second), second)

        answers: list[BlockBodies | Setback | None]
        began_at = self.crew.patience.now()
        delay_s = self.hedging.delay_s if self.crew.rules.hedge else None
        if delay_s is None or turn.patient or turn.exclusive:
            place, answers = 0, [await ask(reader, turn)]
        else:
            pause = functools.partial(self.crew.patience.pause, delay_s)
            place, answers = await race(lambda: ask(reader, turn), backup, pause, _complete)
        if len(rivals) > 1:
            self._settle(trip, rivals, place, answers)
        answer = answers[place]
        assert answer is not None
        if not isinstance(answer, BlockBodies):
            raise answer
        self.hedging.note(self.crew.patience.now() - began_at)
        return answer

    def _settle(
        self, trip: Trip, rivals: Sequence[Turn], place: int, answers: Sequence[BlockBodies | Setback | None]
    ) -> None:
        """After a race: whose turn it is now, and what became of the other."""
        self.hedging.outcomes["won" if place else "lost"] += 1
        trip.at = rivals[place]
        other = answers[1 - place]
        if other is None:
            trip.journey.put_back(rivals[1 - place])  # given up, not heard: it may still be asked
        elif isinstance(other, BlockBodies):
            trip.note(rivals[1 - place], Lacking(other))
        else:
            trip.note(rivals[1 - place], other)


def _complete(answer: BlockBodies | Setback) -> bool:
    """Whether it may win a race: no failure, no null, and no block without its receipts."""
    return isinstance(answer, BlockBodies) and answer.receipts_json is not None
