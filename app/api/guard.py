"""The one place where an exception becomes an answer, and where oversized requests are turned away.

Whatever is raised behind it, a client sees the one error body: a `ProofError` as what it says, anything else as
`Internal` without a detail, counted before it is logged.
"""

from __future__ import annotations

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import problems
from app.api.lobby import house_of
from app.api.visit import visit_of
from app.core.errors import (
    BlockBeforeOrAtGenesis,
    Internal,
    InvalidChainKey,
    InvalidParameter,
    LogIndexOutOfBounds,
    NotFinalized,
    PayloadTooLarge,
    ProofError,
    TxIndexOutOfBounds,
)

log = logging.getLogger(__name__)

MAX_TARGET_BYTES = 2048
"""Path and query of a request, as sent."""
MAX_BODY_BYTES = 2 * 1024 * 1024


class Guard:
    """ASGI layer: answers whatever the layers behind it raise."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except ProofError as refusal:
            if started:
                raise  # half an answer is out: only a broken connection can still say so
            note_rejected(scope, refusal)
            await problems.answer(scope, refusal)(scope, receive, send)
        except Exception as fault:  # the last net: any fault of ours must be counted and answered
            report(scope, fault)
            if started:
                raise
            await problems.answer(scope, Internal("internal error"))(scope, receive, send)


class Limits:
    """ASGI layer: refuses requests that are larger than this server reads."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refuse_oversized(scope)
            receive = limited(receive)
        await self.app(scope, receive, send)


_REASONS: dict[type[ProofError], str] = {
    InvalidChainKey: "unknown_chain",
    TxIndexOutOfBounds: "index_out_of_bounds",
    LogIndexOutOfBounds: "log_index_out_of_bounds",
    PayloadTooLarge: "too_large",
    NotFinalized: "not_finalized",
    BlockBeforeOrAtGenesis: "before_genesis",
}


def note_rejected(scope: Scope, refusal: ProofError) -> None:
    """Counts and logs, by reason and without a word of the input, that a request was refused for what it asks."""
    reason = f"bad_{refusal.about}" if isinstance(refusal, InvalidParameter) else _REASONS.get(type(refusal))
    house = house_of(scope)
    if reason is None or house is None:
        return
    house.metrics.rejected_inputs_total.labels(reason).inc()
    log.debug("rejected_input", extra={"reason": reason, "route": visit_of(scope).template})


def report(scope: Scope, fault: BaseException) -> None:
    """Counts an unexpected exception, then logs it, once per request: type and place, but neither its text nor any
    value, which may hold secrets."""
    visit = visit_of(scope)
    if visit.fault_reported:
        return
    visit.fault_reported = True
    house = house_of(scope)
    if house is not None:
        house.metrics.unhandled_exceptions_total.labels("asgi").inc()
    log.error(
        "unhandled_exception",
        extra={
            "source": "asgi",
            "type": type(fault).__qualname__,
            "stack_frames": frames_of(fault),
            "request_id": visit.request_id,
            "route": visit.template,
        },
    )


def frames_of(fault: BaseException) -> list[str]:
    """The innermost frames of a traceback as `file:line function`, outermost first."""
    frames = []
    traceback = fault.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return frames[-8:]


def refuse_oversized(scope: Scope) -> None:
    """Raises `PayloadTooLarge` for a target or an announced body that is larger than this server reads."""
    target_bytes = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
    if target_bytes > MAX_TARGET_BYTES:
        raise PayloadTooLarge(f"the request target is larger than {MAX_TARGET_BYTES} bytes")
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > MAX_BODY_BYTES:
            raise PayloadTooLarge(f"the request body is larger than {MAX_BODY_BYTES} bytes")


def limited(receive: Receive) -> Receive:
    """`receive`, raising `PayloadTooLarge` once more than the limit came in, whatever was announced."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > MAX_BODY_BYTES:
                raise PayloadTooLarge(f"the request body is larger than {MAX_BODY_BYTES} bytes")
        return message

    return counted
