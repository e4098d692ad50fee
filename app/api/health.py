"""Probes, health and metrics: what is known in memory, asked of nobody, whatever else is slow.

Liveness judges this process alone: a dependency must never make an orchestrator restart every replica at once.
Readiness says whether this replica can answer anything: one servable chain is enough, and the others are shown as
degraded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import orjson
from fastapi import FastAPI, Request
from starlette.responses import Response

from app.api.lobby import ChainFloor, Lobby, house_of, open_house_of
from app.api.schemas import Alive, ChainList, ChainPath, ChainStatus, CompatHealth, Health, Readiness
from app.api.usc import chain_in

_DEAD_AFTER_S = 5.0
_LAGGING_ABOVE_S = 1.0
_TURN_S = 0.002
"""For so long a scrape may hold the event loop at a time."""


def add_routes(app: FastAPI) -> None:
    """Registers probes, health, metrics and the chain listing."""
    _add_chain_routes(app)
    for path, operation, route, summary, body, codes in (
        ("/livez", "getLiveness", livez, "Liveness of this process", Alive, (200, 503)),
        ("/readyz", "getReadiness", readyz, "Whether this replica can serve", Readiness, (200, 503)),
        ("/health", "getHealth", health, "Whether to send requests here", Health, (200, 503)),
        (
            "/api/v1/health",
            "getCompatHealth",
            compat_health,
            "Health in the reference server's shape; always 200",
            CompatHealth,
            (200,),
        ),
    ):
        app.get(
            path,
            operation_id=operation,
            summary=summary,
            tags=["health"],
            responses={code: {"model": body} for code in codes},
            response_class=Response,
        )(route)
    exposition = {"schema": {"type": "string"}}
    app.get(
        "/metrics",
        operation_id="getMetrics",
        summary="Prometheus or OpenMetrics exposition",
        tags=["health"],
        responses={200: {"content": {"text/plain": exposition, "application/openmetrics-text": exposition}}},
        response_class=Response,
    )(metrics)


async def livez(request: Request) -> Response:
    """200 while the event loop turns and the block builders can be started."""
    house = house_of(request.scope)
    dead = house is not None and (house.heartbeat_age_s > _DEAD_AFTER_S or not house.builder_healthy)
    return _answer({"status": "dead" if dead else "alive"}, 503 if dead else 200)


async def readyz(request: Request) -> Response:
    """200 when this replica can serve at least one chain, with the reasons of every chain that is not whole."""
    house = house_of(request.scope)
    reasons = not_ready(house)
    height, age = _read_of_creditcoin(_readings(house))
    body = {
        "ready": not reasons,
        "reasons": reasons,
        "eth_rpc_connected": _eth_connected(house),
        "cc3_finalized_height": height,
        "cc3_finalized_age_seconds": age,
        "cc3_snapshot_height": None,
        "chains": _by_chain(house),
    }
    return _answer(body, 503 if reasons else 200)


async def health(request: Request) -> Response:
    """For load balancers: 503 while this process only refuses, and from the moment it stops taking new work."""
    house = house_of(request.scope)
    if house is None or not house.started:
        return _answer({"status": "unhealthy", "reason": "starting"}, 503)
    if house.draining:
        return _answer({"status": "unhealthy", "reason": "draining"}, 503)
    if house.saturated:
        return _answer({"status": "unhealthy", "reason": "saturated"}, 503)
    return _answer({"status": "ok"}, 200)


async def compat_health(request: Request) -> Response:
    """Always 200. `eth_rpc_connected`: every chain has an upstream that answers. `cc3_rpc_connected`: Creditcoin answered its
    last reading; null where no chain reads it.

    The other `cc3_` fields speak of the anchors, whatever their source. Fresh means that every chain that has a source of anchors
    has one, and that those of Creditcoin were read of late; ages, and the height, are those of the oldest reading."""
    house = house_of(request.scope)
    reasons = not_ready(house)
    readings = _readings(house)
    anchored = house is not None and all(
        told.get("attestedHeight") is not None and told.get("state", "ok") == "ok" for told in readings
    )
    ages = [age for told in readings if isinstance(age := told.get("ageSeconds"), int | float)]
    height, finalized_age = _read_of_creditcoin(readings)
    finalized = {} if height is None else {"cc3_finalized_height": height, "cc3_finalized_age_seconds": finalized_age}
    connected, creditcoin = _eth_connected(house), _creditcoin_connected(readings)
    body: dict[str, object] = {
        "status": "healthy"
        if _any_servable(house) and anchored and False not in (connected, creditcoin)
        else "degraded",
        "cc3_rpc_connected": creditcoin,
        "eth_rpc_connected": connected,
        "uptime_seconds": 0 if house is None else max(0, int(time.time() - house.started_at)),
        "cc3_cache_fresh": anchored,
        "cc3_cache_age_seconds": int(max(ages)) if ages else None,
        **finalized,
        "cc3_silent_recoveries": 0,
        "ready": not reasons,
        "not_ready_reasons": reasons,
        "chains": _by_chain(house),
    }
    return _answer(body, 200)


def _eth_connected(house: Lobby | None) -> bool | None:
    """Whether every chain has an upstream that answers; None where there is no upstream."""
    listed = [] if house is None else [chain.status().get("upstreams") for chain in house.chains.values()]
    chains = [each for each in listed if isinstance(each, Sequence) and each]
    return all(any(map(_answers, upstreams)) for upstreams in chains) if chains else None


def _answers(upstream: Mapping[str, object]) -> bool:
    """A node that says that it is asked too much is there, and one that was not asked yet is not known to be."""
    return upstream.get("state") in ("ok", "limited") and upstream.get("breaker") == "closed"


def _creditcoin_connected(readings: Sequence[Mapping[str, object]]) -> bool | None:
    """Whether the last readings of Creditcoin were answered; None where no chain has its anchors from there."""
    read = [told for told in readings if told.get("source") == "creditcoin"]
    if not read:
        return None
    # What is refused was answered: it is not what the chain wants. Else a reason is that of a reading that failed.
    return all(told.get("state") == "refused" or (told.get("state") == "ok" and "reason" not in told) for told in read)


def _readings(house: Lobby | None) -> list[Mapping[str, object]]:
    """What is listed of the anchors of each chain that has any."""
    if house is None:
        return []
    listed = (chain.status().get("anchors") for chain in house.chains.values() if chain.anchors is not None)
    return [told if isinstance(told, Mapping) else {} for told in listed]


def _read_of_creditcoin(readings: Sequence[Mapping[str, object]]) -> tuple[int | None, int | None]:
    """The block of Creditcoin that anchors were read as of, and its age in seconds: of several chains, the oldest."""
    told = [(each.get("asOfAgeSeconds"), each.get("asOfHeight")) for each in readings]
    ages = [(age, height) for age, height in told if isinstance(age, int | float) and isinstance(height, int)]
    age, height = max(ages, default=(None, None))
    return height, None if age is None else int(age)


async def metrics(request: Request) -> Response:
    """Every metric of this process, in the format that the scraper prefers."""
    house = house_of(request.scope)
    if house is None:
        return Response(b"", 503, {"Cache-Control": "no-store"}, "text/plain; version=0.0.4; charset=utf-8")
    parts, content_type = house.metrics.exposition_in_parts(request.headers.get("accept"))
    body, turn_ends_at = bytearray(), time.perf_counter() + _TURN_S
    for part in parts:
        body += part
        if time.perf_counter() > turn_ends_at:  # everybody else's turn
            await asyncio.sleep(0)
            turn_ends_at = time.perf_counter() + _TURN_S
    # Set as it is: the framework would append a second charset to a type that it takes for plain text.
    return Response(bytes(body), 200, {"Content-Type": content_type, "Cache-Control": "no-store", "Vary": "Accept"})


def not_ready(house: Lobby | None) -> list[str]:
    """Why this replica cannot serve: empty when it can. The same state gives the same words in the same order
    everywhere."""
    if house is None or not house.started:
        return ["starting"]
    reasons = []
    if house.draining:
        reasons.append("draining")
    if house.heartbeat_age_s > _DEAD_AFTER_S:
        reasons.append("heartbeat has stopped")
    if house.loop_lag_s > _LAGGING_ABOVE_S:
        reasons.append("event loop lags")
    if house.keys is not None and house.keys.awaited:
        reasons.append("API keys cannot be checked yet")
    if not _any_servable(house):
        reasons.append("no chain is servable")
        reasons += [f"{chain.name}: {reason}" for chain in house.chains.values() for reason in sorted(chain.reasons)]
    return reasons


def _any_servable(house: Lobby | None) -> bool:
    return house is not None and any(chain.servable for chain in house.chains.values())


def _by_chain(house: Lobby | None) -> dict[str, object]:
    return {} if house is None else {chain.name: _one(chain) for chain in house.chains.values()}


def _one(chain: ChainFloor) -> dict[str, object]:
    return {"servable": chain.servable, "reasons": sorted(chain.reasons)}


def _answer(body: object, status: int) -> Response:
    return Response(orjson.dumps(body), status, {"Cache-Control": "no-store"}, "application/json")


def _add_chain_routes(app: FastAPI) -> None:
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
    return _answer({"chains": [described(chain) for chain in listed]}, 200)


async def chain_by_name(request: Request, chain: ChainPath) -> Response:
    """One chain."""
    return _answer(described(chain_in(request)), 200)


def described(chain: ChainFloor) -> dict[str, object]:
    """A chain as clients see it: never an upstream's address."""
    # A key may pass 2^53-1: a string here, as in the native bodies.
    return {**chain.status(), "chainKey": str(chain.key)}
