"""Settings -> ASGI application: the layers in their order, the routes, and a lifespan that opens the house.

Layers, outermost first: request id and log; CORS; probes and metrics; HTTP metrics; errors and sizes; chain check;
consumers; admission; consumers' rates; methods; compression; the routes.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from app import __version__, house
from app.api import batches, docs, health, native, problems, second_opinion, usc, verify
from app.api.admission import Admission
from app.api.compression import Compression
from app.api.consumers import Consumers, Toll
from app.api.cors import Cors
from app.api.crossing import ChainCheck, Signpost
from app.api.guard import Guard, Limits
from app.api.lobby import Lobby
from app.api.observe import Bypass, HttpMetrics, Observe
from app.api.visit import RouteTable
from app.core.consumers import Pepper, Proxies
from app.settings import ConsumerSettings, Settings

_DESCRIPTION = (
    "Inclusion proofs of EVM transactions, receipts and logs, each checked by an independent verifier before it leaves."
)


def create_app(
    settings: Settings, open_house: Callable[[Settings], AbstractAsyncContextManager[Lobby]] = house.open_house
) -> ASGIApp:
    """The whole application. Nothing is opened before the server starts its lifespan."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Lobby]]:
        async with open_house(settings) as opened:
            opened.metrics.register_routes(
                (method, sign.template) for sign in table.signs for method in sorted(sign.methods)
            )
            yield {"house": opened}

    routes = FastAPI(
        title="Copath",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # it would look for its set-up on every request
        lifespan=lifespan,
        middleware=[
            Middleware(Guard),
            Middleware(Limits),
            Middleware(ChainCheck),
            *_telling_apart(settings.consumers),
            Middleware(Admission, request_timeout_s=settings.admission.request_timeout_secs),
            *([Middleware(Toll)] if settings.consumers.rate.enabled else ()),
            Middleware(Signpost),
            Middleware(Compression),
        ],
        exception_handlers={
            HTTPException: problems.answer_http_exception,
            RequestValidationError: problems.answer_validation_error,
            Exception: problems.answer_fault,
        },
    )
    second_opinion.remember(routes)
    batches.add_routes(routes, settings.max_batch_size, settings.max_batch_span)
    for door in (usc, native, verify, health):
        door.add_routes(routes)
    docs.add_routes(routes, keys_required=settings.consumers.api_keys_required)
    table = RouteTable(routes.routes)
    # The guard among the routes lets the metrics see the status of a fault; the outer one is for the layers before it.
    guarded = Guard(Bypass(HttpMetrics(routes), direct=routes))
    return Observe(Cors(guarded, settings.cors.allow_origins), table)


def _telling_apart(chosen: ConsumerSettings) -> list[Middleware]:
    """The layer that knows who asks; none where that does not matter."""
    if not chosen.told_apart:
        return []
    # Without a configured one, names are good for this process, and nothing is stored under them.
    pepper = secrets.token_bytes(32) if chosen.pepper is None else chosen.pepper.encode()
    return [
        Middleware(
            Consumers,
            pepper=Pepper(pepper),
            proxies=Proxies(chosen.trusted_proxies),
            keys_required=chosen.api_keys_required,
            max_in_flight=chosen.max_in_flight,
        )
    ]
