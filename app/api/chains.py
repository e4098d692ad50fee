"""Which chains are served, and how they are."""

from __future__ import annotations

import orjson
from fastapi import FastAPI, Request
from starlette.responses import Response

from app.api.lobby import ChainFloor, open_house_of
from app.api.schemas import ChainList, ChainPath, ChainStatus
from app.api.usc import chain_in


def add_routes(app: FastAPI) -> None:
    """Registers the chain listing."""
    app.get(
        "/api/v1/chains",
        operation_id="listChains",
        summary="Every configured chain",
        tags=["chains"],
        responses={200: {"model": ChainList}},
        response_class=Response,
    )(chains)
    app.get(
        "/api/v1/chains/{chain}",
        operation_id="getChain",
        summary="One chain: heights, kinds of proofs, upstreams by name",
        tags=["chains"],
        responses={200: {"model": ChainStatus}},
        response_class=Response,
    )(chain_by_name)


async def chains(request: Request) -> Response:
    """Every configured chain, by ascending key."""
    listed = open_house_of(request.scope).chains.values()
    return _answer({"chains": [described(chain) for chain in listed]})


async def chain_by_name(request: Request, chain: ChainPath) -> Response:
    """One chain."""
    return _answer(described(chain_in(request)))


def described(chain: ChainFloor) -> dict[str, object]:
    """A chain as clients see it: never an upstream's address."""
    # A key may pass 2^53-1: a string here, as in the native bodies.
    return {**chain.status(), "chainKey": str(chain.key)}


def _answer(body: object) -> Response:
    return Response(orjson.dumps(body), headers={"Cache-Control": "no-store"}, media_type="application/json")
