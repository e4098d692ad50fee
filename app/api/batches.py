"""The compatible batch routes: many usc proofs under one continuity proof, all or nothing.

    body read -> served at all? -> places -> blocks, as many at a time as places -> roots of the range -> checked bytes

A batch by transaction hash finds its blocks first, and is a batch by position from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastapi import FastAPI, Request
from starlette.responses import Response

from app.api import batch_bodies, batch_questions, batch_schemas
from app.api.batch_bodies import Held, Item
from app.api.batch_questions import Queries
from app.api.lanes import take_cold_places
from app.api.lobby import ChainFloor
from app.api.schemas import ChainKeyPath
from app.api.usc import chain_in, require_anchors, require_attested
from app.api.visit import visit_of
from app.core.blocks import BlockRef
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
    wanted = [height for height, indexes in queries.items() if indexes]
    missing = sum(chain.peek_block(BlockRef(height=height)) is None for height in wanted)
    weight = _take_places(request, missing or _roots_to_find(chain, queries))

    held = Held()

    async def cut(height: int) -> list[Item | ProofError]:
        block = (await chain.block(BlockRef(height=height))).block
        return [held.cut(block, index) for index in queries[height]]

    blocks = await _each(wanted, cut, weight)
    return await _answer(request, chain, queries, [item for items in blocks for item in items], size)


async def batch_by_transaction(request: Request, chain_key: ChainKeyPath) -> Response:
    """As by position, of up to 100 transactions by their hashes."""
    size = batch_questions.split(request.query_params.getlist("split"))
    hashes = await batch_questions.tx_hashes(request)
    chain = chain_in(request)
    require_anchors(chain)
    weight = _take_places(request, sum(chain.peek_transaction(tx_hash) is None for tx_hash in hashes))
    held = Held()

    async def cut(tx_hash: bytes) -> tuple[int, int, Item | ProofError]:
        found = await chain.transaction(tx_hash)
        assert found.index is not None, "a block found by transaction hash knows the transaction's index"
        return found.block.height, found.index, held.cut(found.block, found.index)

    places = sorted(await _each(hashes, cut, weight), key=lambda place: place[:2])
    queries = batch_questions.merged((height, index) for height, index, _ in places)
    _require_served(request, chain, queries)
    if not weight:
        _take_places(request, _roots_to_find(chain, queries))
    return await _answer(request, chain, queries, [item for _, _, item in places], size)


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


def _take_places(request: Request, blocks: int) -> int:
    """A cold place for each of so many blocks, up to the most that a batch may have. How many that are: so many may be waited for
    at a time."""
    weight = min(blocks, _limits(request).size)
    take_cold_places(request.scope, weight)
    visit_of(request.scope).cache = "miss" if weight else "hit"
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
    request: Request, chain: ChainFloor, queries: Queries, cut: Sequence[Item | ProofError], size: int | None
) -> Response:
    items = []
    for item in cut:
        if isinstance(item, ProofError):
            raise item
        items.append(item)
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
