"""The outermost layers: the request id and the log line of every request, and the HTTP metrics.

Pure ASGI: a layer that wraps the response in a stream of its own would hide the client's hanging up from the routes
behind it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from typing import TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import guard, problems
from app.api.lobby import house_of
from app.api.visit import OTHER, REQUEST_ID, RouteTable, Visit, begin, visit_of
from app.core.errors import Internal
from app.metrics import NO_CHAIN, Counter, Histogram, Metrics
from app.metrics.labels import METHODS

L = TypeVar("L", bound=tuple[str, ...])
M = TypeVar("M", Counter, Histogram)

log = logging.getLogger("copath.access")

PROBES = frozenset({"/livez", "/readyz", "/health", "/metrics"})
"""Asked by machines every few seconds: answered before the metrics layer, and not logged."""

KINDS = {
    "/api/v1/proofs/{chain}/transactions/{tx_hash}": "transaction",
    "/api/v1/proofs/{chain}/receipts/{tx_hash}": "receipt",
    "/api/v1/proofs/{chain}/logs/{tx_hash}/{log_index}": "log",
    "/api/v1/proofs/{chain}/blocks/{block}/transactions/{i}": "transaction",
    "/api/v1/proofs/{chain}/blocks/{block}/receipts/{i}": "receipt",
    "/api/v1/proofs/{chain}/blocks/{block}/logs/{i}": "log",
    "/api/v1/proof/{chain_key}/{header_number}/{tx_index}": "usc",
    "/api/v1/proof-by-tx/{chain_key}/{tx_hash}": "usc",
    "/api/v1/proof-batch/{chain_key}": "usc-batch",
    "/api/v1/proof-batch-by-tx/{chain_key}": "usc-batch",
    "/api/v1/proofs/verify": "verdict",
}
"""What each proof route gives, in one word of the access log."""

_INDEXES = {"transaction": "tx_index", "receipt": "tx_index", "log": "log_index", "usc": "tx_index"}
_CHAIN = re.compile(r"[a-z][a-z0-9-]{0,63}|[0-9]{1,20}")
_HASH = re.compile(r"(?:0[xX])*[0-9a-fA-F]{64}")
_NUMBER = re.compile(r"0[xX]([0-9a-fA-F]{1,16})|[0-9]{1,20}")
_PUBLIC_QUERY = re.compile(rb"(?:^|&)(finality|index)=(latest|safe|finalized|receipt|block)(?=&|$)")

_GOOD_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_SHOWN_PATH_CHARACTERS = 64


class Observe:
    """ASGI layer, outermost: names the request, logs its end, and answers what even the layers behind it let
    through."""

    def __init__(self, app: ASGIApp, table: RouteTable) -> None:
        self.app = app
        self.table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        sign, params = self.table.find(scope["path"])
        visit = Visit(request_id_of(scope), scope["method"], sign, params)
        begin(scope, visit)
        named = REQUEST_ID.set(visit.request_id)
        added = [(b"x-request-id", visit.request_id.encode())]
        house = house_of(scope)

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                if house is not None and house.draining:
                    added.append((b"connection", b"close"))  # the next request should find another server
                message = {**message, "headers": [*message.get("headers", ()), *added, *visit.fields]}
            elif message["type"] == "http.response.body":
                visit.sent_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, stamped)
        except Exception as fault:  # noqa: BLE001 - only the server is outside, and it would log the text of the fault
            guard.report(scope, fault)
            if visit.status is None:
                await problems.answer(scope, Internal("internal error"))(scope, receive, stamped)
        finally:
            if visit.template not in PROBES and not visit.hushed:
                _log_end(scope, visit, time.perf_counter() - started)
            REQUEST_ID.reset(named)


def request_id_of(scope: Scope) -> str:
    """The client's `X-Request-Id` if it is short, printable and without spaces, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return value.decode("ascii") if _GOOD_REQUEST_ID.fullmatch(value) else str(uuid.uuid4())
    return str(uuid.uuid4())


def _log_end(scope: Scope, visit: Visit, duration_s: float) -> None:
    line: dict[str, object] = {
        "request_id": visit.request_id,
        "method": visit.method if visit.method in METHODS else OTHER,
        "route": visit.template,
        "status": visit.status,
        "outcome": _outcome(visit),
        "duration_s": round(duration_s, 6),
        "sent_bytes": visit.sent_bytes,
    }
    line |= public_parameters(visit, scope["query_string"])
    if visit.key_id is not None:
        line["key_id"] = visit.key_id
    elif visit.consumer is not None:
        line["consumer"] = visit.consumer
    if visit.cache is not None:
        line["cache"] = visit.cache
    if visit.sign is None:
        line["path"] = ascii(scope["path"][:_SHOWN_PATH_CHARACTERS])
    log.info("request", extra=line)


def public_parameters(visit: Visit, query: bytes) -> dict[str, object]:
    """What a request asks for: chain, kind, height or hash, indexes. Only what has the form of one is shown, never other text."""
    kind = KINDS.get(visit.template, "")
    shown: dict[str, object] = {"kind": kind} if kind else {}
    if visit.chain is not None:
        shown["chain"] = visit.chain.name
    for name, text in visit.params.items():
        if name in ("chain", "chain_key"):
            if visit.chain is None and _CHAIN.fullmatch(text):
                shown["chain"] = text
        elif name in ("tx_hash", "block") and _HASH.fullmatch(text):
            shown["tx_hash" if name == "tx_hash" else "block_hash"] = f"0x{text[-64:].lower()}"
        elif name != "tx_hash" and (number := _NUMBER.fullmatch(text)):
            field = (
                "height"
                if name in ("block", "header_number")
                else name
                if name == "log_index"
                else _INDEXES.get(kind, name)
            )
            shown[field] = int(number[1], 16) if number[1] else int(text)
    if query:
        for found in _PUBLIC_QUERY.finditer(query):
            shown["log_index_in" if found[1] == b"index" else "finality"] = found[2].decode()
    return shown | visit.asked


def _outcome(visit: Visit) -> str:
    if visit.outcome is not None:
        return visit.outcome
    return "cancelled" if visit.status is None else "served"


class Bypass:
    """ASGI layer: probes and metrics go straight to the routes, so that nothing between can hold them up or count
    them."""

    def __init__(self, app: ASGIApp, direct: ASGIApp) -> None:
        self.app = app
        self.direct = direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        straight = scope["type"] != "http" or scope["path"] in PROBES
        await (self.direct if straight else self.app)(scope, receive, send)


class HttpMetrics:
    """ASGI layer: requests by route template and class of status, their duration, those in flight, and what became of
    proofs."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._of: Metrics | None = None
        # Looked up once: the library takes longer to find a series than to count in it. Their labels are closed sets.
        self._requests: dict[tuple[str, str, str], Counter] = {}
        self._durations: dict[tuple[str, str], Histogram] = {}
        self._outcomes: dict[tuple[str, str], Counter] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        house = house_of(scope)
        if scope["type"] != "http" or house is None:
            await self.app(scope, receive, send)
            return
        visit = visit_of(scope)
        in_flight = house.metrics.http_requests_in_flight
        in_flight.inc()
        started = time.perf_counter()
        try:
            await self.app(scope, receive, send)
        except asyncio.CancelledError:
            visit.outcome = "cancelled"
            raise
        finally:
            in_flight.dec()
            self._count(house.metrics, visit, time.perf_counter() - started)

    def _count(self, metrics: Metrics, visit: Visit, duration_s: float) -> None:
        if metrics is not self._of:  # another house was opened
            self._of = metrics
            for known in (self._requests, self._durations, self._outcomes):
                known.clear()
        method = visit.method if visit.method in METHODS else OTHER
        status_class = "error" if visit.status is None else f"{visit.status // 100}xx"
        _series(self._requests, metrics.http_requests_total, (method, visit.template, status_class)).inc()
        _series(self._durations, metrics.http_request_duration_seconds, (method, visit.template)).observe(duration_s)
        if not visit.proof:
            return
        chain = visit.chain.name if visit.chain is not None else NO_CHAIN
        outcome = _outcome(visit)
        _series(self._outcomes, metrics.proof_outcome_total, (outcome, chain)).inc()
        if visit.cache is not None and outcome == "served":
            metrics.proof_duration_seconds.labels(visit.cache).observe(duration_s)
            metrics.last_proof_timestamp_seconds.set(time.time())


def _series(known: dict[L, M], metric: M, labels: L) -> M:
    series = known.get(labels)
    if series is None:
        series = known[labels] = metric.labels(*labels)
    return series
