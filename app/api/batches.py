"""The compatible batch routes: many usc proofs under one continuity proof, all or nothing.

    body read -> served at all? -> what is at hand cut -> places -> other blocks, as many at a time as places -> roots of the
    range -> checked bytes

A batch by transaction hash first finds out where its transactions are, with one place for that, and fills each block once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastapi import FastAPI, Request
from starlette.responses import Response

from app.api import batch_bodies, batch_questions, batch_schemas
from app.api.batch_bodies import Held, Item
from app.api.batch_questions import Queries
from app.api.lanes import hold_cold_places
from app.api.lobby import ChainFloor
from app.api.schemas import ChainKeyPath
from app.api.usc import chain_in, require_anchors, require_attested
from app.api.visit import visit_of
from app.core.blocks import BlockRef, Located
from app.core.errors import BatchSpanTooLarge, ProofError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """`size`: how many blocks one batch may wait for at a time. `span`: how far its lowest and highest block may lie apart."""

    size: int
    span: int


def add_routes(app: FastAPI, max_batch_size: int, max_batch_span: int) -> None:
    """Registers the batch routes. Both limits are at least 1."""
    app.state.batch_limits = BatchLimits(max_batch_size, max_batch_span)
    for path, operation, route, summary, body in (
        (
            "proof-batch",
            "getUscBatch",
            batch_by_position,
            "usc proofs of transactions by height and index",
            batch_schemas.BY_POSITION,
        ),
        (
            "proof-batch-by-tx",
            "getUscBatchByTransaction",
            batch_by_transaction,
            "usc proofs of transactions by their hashes",
            batch_schemas.BY_TRANSACTION,
        ),
    ):
        app.post(
            f"/api/v1/{path}/{{chain_key}}",
            operation_id=operation,
            summary=summary,
            tags=["usc"],
            responses={200: {"model": batch_schemas.UscBatch | batch_schemas.UscSplitBatch}},
            response_class=Response,
            openapi_extra={"parameters": [batch_schemas.SPLIT], "requestBody": body},
        )(route)


async def batch_by_position(request: Request, chain_key: ChainKeyPath) -> Response:
    """Merkle proofs of up to 10 transactions in each of up to 10 blocks, under one continuity proof from the lowest block on.

    An entry without indexes asks for the roots from its height on alone. Entries of the same height are merged. With `split` the
    answer comes as sub-batches that the verifying precompile takes.
    """
    size = batch_questions.split(request.query_params.getlist("split"))
    queries = await batch_questions.proof_queries(request)
    chain = chain_in(request)
    require_anchors(chain)
    _require_served(request, chain, queries)
    held = Held()

    async def cut(height: int) -> list[Cut]:
        block = (await chain.block(BlockRef(height=height))).block
        return [Cut(height, index, held.cut(block, index)) for index in queries[height]]

    wanted = [height for height, indexes in queries.items() if indexes]
    known = [height for height in wanted if chain.peek_block(BlockRef(height=height)) is not None]
    cold = [height for height in wanted if height not in known]
    cuts = _sound(await _each(known, cut, 1))
    weight = _hold_places(request, len(cold) or _roots_to_find(chain, queries))
    cuts += _sound(await _each(cold, cut, weight))
    return await _answer(request, chain, queries, cuts, size)


async def batch_by_transaction(request: Request, chain_key: ChainKeyPath) -> Response:
    """As by position, of up to 100 transactions by their hashes."""
    size = batch_questions.split(request.query_params.getlist("split"))
    hashes = await batch_questions.tx_hashes(request)
    chain = chain_in(request)
    require_anchors(chain)
    if any(chain.peek_transaction(tx_hash) is None for tx_hash in hashes):
        _hold_places(request, 1)  # nodes are asked where the transactions are
    located = dict(zip(hashes, await _each(hashes, chain.locate, _limits(request).size), strict=True))
    held = Held()

    async def cut(group: Sequence[bytes]) -> list[Cut]:
        cuts = []
        for tx_hash in group:
            found = await chain.transaction(tx_hash, told=located[tx_hash].position)
            assert found.index is not None, "a block found by transaction hash knows the transaction's index"
            cuts.append(Cut(found.block.height, found.index, held.cut(found.block, found.index)))
        return cuts

    await _require_located(request, chain, located)
    groups: dict[bytes, list[bytes]] = {}
    for tx_hash, where in located.items():
        groups.setdefault(where.position.block_hash, []).append(tx_hash)
    known = [group for group in groups.values() if all(map(chain.peek_transaction, group))]
    cold = [group for group in groups.values() if group not in known]
    cuts = _sound(await _each(known, cut, 1))
    weight = _hold_places(request, len(cold) or _roots_to_find(chain, _queries_of(cuts)))
    cuts += _sound(await _each(cold, cut, weight))
    queries = _queries_of(cuts)
    _require_served(request, chain, queries)
    return await _answer(request, chain, queries, cuts, size)


@dataclass(frozen=True, slots=True)
class Cut:
    """What became of one transaction of a batch."""

    height: int
    index: int
    item: Item | ProofError


def _queries_of(cuts: Iterable[Cut]) -> Queries:
    return batch_questions.merged((cut.height, cut.index) for cut in cuts)


def _sound(groups: Iterable[Iterable[Cut]]) -> list[Cut]:
    """All of them. Raises the first refusal, by height and index: the others are fetched for nothing then."""
    cuts = sorted((cut for group in groups for cut in group), key=lambda cut: (cut.height, cut.index))
    for cut in cuts:
        if isinstance(cut.item, ProofError):
            raise cut.item
    return cuts


async def _require_located(request: Request, chain: ChainFloor, located: Mapping[bytes, Located]) -> None:
    """`_require_served`, of where the transactions are said to be. No lasting refusal stands on the word of one node of several:
    the lowest and the highest block, which it is about, are filled first."""
    try:
        _require_served(
            request,
            chain,
            batch_questions.merged((where.position.height, where.position.index) for where in located.values()),
        )
    except ProofError as refusal:
        ends = sorted(located, key=lambda tx_hash: located[tx_hash].position.height)
        doubtful = [tx_hash for tx_hash in dict.fromkeys((ends[0], ends[-1])) if not located[tx_hash].sure]
        if refusal.retriable or not doubtful:
            raise
        for tx_hash in doubtful:
            await chain.transaction(tx_hash, told=located[tx_hash].position)
        raise


def _require_served(request: Request, chain: ChainFloor, queries: Queries) -> None:
    """In the reference server's order: genesis, the anchors, the span. Asks nobody."""
    for height in queries:  # ascending: the first that is too high is named, and only the first of all can be too low
        chain.require_anchored(height, height)
    lowest, highest = min(queries), max(queries)
    allowed = _limits(request).span
    if highest - lowest > allowed:
        raise BatchSpanTooLarge(
            f"Batch spans {highest - lowest} blocks, from {lowest} to {highest}; the maximum is {allowed}"
        )


def _hold_places(request: Request, blocks: int) -> int:
    """A cold place for each of so many blocks, up to the most that a batch may have, with those that it has. How many that are:
    so many may be waited for at a time."""
    weight = min(blocks, _limits(request).size)
    hold_cold_places(request.scope, weight)
    visit = visit_of(request.scope)
    visit.cache = "miss" if weight or visit.cache == "miss" else "hit"
    return weight


def _roots_to_find(chain: ChainFloor, queries: Queries) -> int:
    """1 where roots between the anchors are not at hand: the fills for them are the chain's, one place is the batch's."""
    return 0 if chain.peek_continuity(min(queries), max(queries)) else 1


async def _each(asked: Sequence[T], answer: Callable[[T], Awaitable[R]], at_once: int) -> list[R]:
    """What each is answered with, in their order. The first refusal ends the rest, and is the refusal of all."""
    turns = asyncio.Semaphore(max(1, at_once))

    async def in_turn(one: T) -> R:
        async with turns:
            return await answer(one)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(in_turn(one)) for one in asked]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _answer(
    request: Request, chain: ChainFloor, queries: Queries, cuts: Iterable[Cut], size: int | None
) -> Response:
    ordered = sorted(cuts, key=lambda cut: (cut.height, cut.index))
    items = [cut.item for cut in ordered if isinstance(cut.item, Item)]
    heights = list(queries)
    continuity = await chain.continuity(heights[0], heights[-1])
    for item in items:
        require_attested(item.height, item.leaf.root, continuity.proof.roots[item.height - heights[0]])
    frame: dict[str, object] | None = None
    if size is None:
        batches = [batch_bodies.whole(heights, items, continuity.proof)]
    else:
        batches = batch_bodies.split(heights, items, continuity.proof, size)
        frame = {"chainKey": chain.key, "fromHeader": heights[0], "toHeader": heights[-1], "split": size}
    return await batch_bodies.respond(request.scope, chain, batches, continuity, frame)


def _limits(request: Request) -> BatchLimits:
    limits: BatchLimits = request.app.state.batch_limits
    return limits
