"""The compatible routes: usc proofs in the reference server's shapes, and the newest attested height."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from fastapi import FastAPI, Request
from starlette.responses import Response

from app.api import conditional, inputs, second_opinion, wire
from app.api.lobby import ChainFloor, FoundBlock
from app.api.schemas import ChainKeyPath, HeightPath, NewestAttested, TxHashPath, U64IndexPath, UscProof
from app.api.visit import visit_of
from app.core.blocks import BlockRef
from app.core.errors import AttestationsMissing, InconsistentSource
from app.core.hexadecimal import to_hex


def add_routes(app: FastAPI) -> None:
    """Registers the compatible routes."""
    app.get(
        "/api/v1/proof/{chain_key}/{header_number}/{tx_index}",
        operation_id="getUscProof",
        summary="usc proof of a transaction by height and index",
        tags=["usc"],
        responses={200: {"model": UscProof}},
        response_class=Response,
    )(proof_by_height)
    app.get(
        "/api/v1/proof-by-tx/{chain_key}/{tx_hash}",
        operation_id="getUscProofByTransaction",
        summary="usc proof of a transaction by its hash",
        tags=["usc"],
        responses={200: {"model": UscProof}},
        response_class=Response,
    )(proof_by_transaction)
    app.get(
        "/api/v1/attested-height/{chain_key}",
        operation_id="getAttestedHeight",
        summary="Newest height that an anchor covers",
        tags=["usc"],
        responses={200: {"model": NewestAttested}},
        response_class=Response,
    )(attested_height)


def chain_in(request: Request) -> ChainFloor:
    """The chain that the layers found for this request."""
    chain = visit_of(request.scope).chain
    assert chain is not None, "a keyed route was reached without its chain"
    return chain


async def proof_by_height(
    request: Request,
    chain_key: ChainKeyPath,
    header_number: HeightPath,
    tx_index: U64IndexPath,
) -> Response:
    """Merkle proof of the ABI-encoded transaction and receipt in the block's binary tree, and the digest chain to an
    anchor.

    `cached` is always false on this route.
    """
    height = inputs.u64_height("header_number", header_number)
    index = inputs.u64("tx_index", tx_index)
    chain = chain_in(request)
    require_anchors(chain)
    chain.require_anchored(height, height)
    found = await chain.block(BlockRef(height=height))
    asked = {"chainKey": chain.key, "headerNumber": height, "txIndex": index}
    return await _answer(request, chain, found, index, asked, cached=False)


async def proof_by_transaction(
    request: Request,
    chain_key: ChainKeyPath,
    tx_hash: TxHashPath,
) -> Response:
    """As by height. `cached` is true when no block had to be fetched for this answer."""
    wanted = inputs.tx_hash(tx_hash)
    chain = chain_in(request)
    require_anchors(chain)
    found = await chain.transaction(wanted, decide=lambda height: chain.require_anchored(height, height))
    assert found.index is not None, "a block found by transaction hash knows the transaction's index"
    chain.require_anchored(found.block.height, found.block.height)
    asked = {"chainKey": chain.key, "txHash": to_hex(wanted)}
    return await _answer(request, chain, found, found.index, asked, cached=found.cached)


def require_anchors(chain: ChainFloor) -> None:
    """Raises `AttestationsMissing` for a chain that has no usc proofs at all."""
    if chain.anchors is None:
        raise AttestationsMissing(f"attestations missing for chain {chain.key}")


def require_attested(height: int, root: bytes, attested: bytes) -> None:
    """Raises `InconsistentSource` when the block at hand is not the one that the anchors hold: nodes and anchors are on two
    forks, or one of them has not come along yet."""
    if root != attested:
        raise InconsistentSource(
            f"block {height} of the source chain has the root {to_hex(root)}, the attested one {to_hex(attested)}"
        )


async def _answer(
    request: Request, chain: ChainFloor, found: FoundBlock, index: int, asked: Mapping[str, object], *, cached: bool
) -> Response:
    leaf = found.block.leaf_proof(index)
    at_hand = found.cached and chain.peek_continuity(found.block.height, found.block.height)
    continuity = await chain.continuity(found.block.height, found.block.height)
    require_attested(found.block.height, leaf.root, continuity.proof.roots[0])
    body = wire.usc_body(chain, found, index, leaf, continuity, cached=cached and at_hand)
    second_opinion.require_usc(request.scope, chain, body, asked, continuity)
    visit_of(request.scope).cache = "hit" if at_hand else "miss"
    tag = conditional.weak_tag(
        found.block.block_hash, continuity.upper_height.to_bytes(8, "big"), continuity.upper_digest
    )
    return conditional.answer(request, body, tag, conditional.anchored(chain.anchors_rest_s))


async def attested_height(request: Request, chain_key: ChainKeyPath) -> Response:
    """The newest height for which a proof can be asked, null while there is none. Always 200 for a configured chain."""
    body = orjson.dumps({"attestedHeight": chain_in(request).attested_height})
    return Response(body, headers={"Cache-Control": "no-store"}, media_type="application/json")
