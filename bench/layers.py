"""What each layer costs: the same route and body behind ever more of the application, then the proof itself, warm and in process.

The floor is the bare framework route. Each row adds its layer to those above it, in the order from the route outwards. What is
measured is processor time: a machine that is busy with something else gives the same ratios.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from app.api.admission import Admission
from app.api.cors import Cors
from app.api.crossing import ChainCheck, Signpost
from app.api.guard import Guard, Limits
from app.api.observe import Bypass, HttpMetrics, Observe
from app.api.visit import RouteTable, begin
from app.api.visit import Visit as Guest
from app.asgi import create_app
from app.house import demo_chains, demo_examples, open_house
from app.settings import demo_settings
from bench.serving import call, running

TEMPLATE = "/api/v1/proofs/{chain}/receipts/{tx_hash}"
ROUNDS = 10
REQUESTS = 300
INNER = (
    ("HEAD, OPTIONS, unknown paths", Middleware(Signpost)),
    ("admission, warm lane", Middleware(Admission, request_timeout_s=120.0)),
    ("chain check", Middleware(ChainCheck)),
    ("sizes", Middleware(Limits)),
    ("errors", Middleware(Guard)),
)


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    return asyncio.run(measure())


async def measure() -> list[tuple[str, str, str]]:
    """Processor time of one request: the best of a few rounds, in which all take turns."""
    settings = demo_settings(demo_chains(), {}, {"logging.level": "error"}).settings
    path = next(path for _, path in demo_examples() if "/receipts/" in path)
    async with running(create_app(settings, open_house)) as (ask, house):
        status, body = await ask(path)
        assert status == 200, body
        state = {"house": house}
        questions: dict[str, Callable[[], Awaitable[object]]] = {}
        for depth in range(len(INNER) + 1):
            name = "floor: a bare framework route" if depth == 0 else f"+ {INNER[depth - 1][0]}"
            questions[name] = _question(_routes(body, depth), path, state)
        whole = _routes(body, len(INNER))
        counted = Guard(Bypass(HttpMetrics(whole), direct=whole))
        questions["+ HTTP metrics"] = _question(counted, path, state, whole)
        questions["+ CORS"] = _question(Cors(counted, ["*"]), path, state, whole)
        questions["+ request id and log line (all layers)"] = lambda: call(
            Observe(Cors(counted, ["*"]), RouteTable(whole.routes)), path, state
        )
        questions["the proof itself: cut, encoded, verified"] = lambda: ask(path)
        costs_s = dict.fromkeys(questions, math.inf)
        for _ in range(ROUNDS):
            for name, question in questions.items():
                costs_s[name] = min(costs_s[name], await _cost_s(question))
    floor_s = next(iter(costs_s.values()))
    return [(name, f"{1e6 * each_s:.0f} us", f"{each_s / floor_s:.2f}") for name, each_s in costs_s.items()]


async def _cost_s(question: Callable[[], Awaitable[object]]) -> float:
    await question()
    started = time.process_time()
    for _ in range(REQUESTS):
        await question()
    return (time.process_time() - started) / REQUESTS


def _routes(body: bytes, layers: int) -> FastAPI:
    app = FastAPI(openapi_url=None, middleware=[layer for _, layer in reversed(INNER[:layers])])

    @app.get(TEMPLATE)
    async def route(request: Request) -> Response:
        return Response(body, media_type="application/json")

    return app


def _question(
    app: Any, path: str, state: dict[str, Any], routes: FastAPI | None = None
) -> Callable[[], Awaitable[object]]:
    """One request to `app` as the outermost layer hands it on: with its route found."""
    table = RouteTable((routes or app).routes)
    sign, params = table.find(path)
    house = state["house"]
    chain = house.by_name.get(params["chain"]) or house.chains[int(params["chain"])]

    async def known(scope: Any, receive: Any, send: Any) -> None:
        begin(scope, Guest("bench", "GET", sign, params, chain=chain))
        await app(scope, receive, send)

    return lambda: call(known, path, state)
