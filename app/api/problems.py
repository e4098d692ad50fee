"""Every error this server answers, as one table: code -> status, title.

One body, whoever refuses: a handler, a layer, or the framework.

The compatible routes get the reference server's shape, everything else the same fields as a problem document (RFC
9457).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from urllib.parse import quote

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from app.api.visit import visit_of
from app.core import errors
from app.core.errors import ProofError

PROBLEM_JSON = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Problem:
    """How one code is answered."""

    status: int
    title: str


_PROBLEMS: dict[type[ProofError], Problem] = {
    errors.InvalidChainKey: Problem(400, "Chain not configured"),
    errors.InvalidParameter: Problem(400, "Invalid parameter"),
    errors.MalformedJson: Problem(400, "Malformed JSON"),
    errors.BlockBeforeOrAtGenesis: Problem(400, "Block before or at the attestation genesis"),
    errors.TxIndexOutOfBounds: Problem(400, "Transaction index out of bounds"),
    errors.EmptyProofQueries: Problem(400, "Empty batch"),
    errors.TooManyProofQueries: Problem(400, "Too many batch entries"),
    errors.TooManyTxQueriesInProofQuery: Problem(400, "Too many transaction indexes"),
    errors.EmptyTxHashes: Problem(400, "Empty batch"),
    errors.TooManyTxHashes: Problem(400, "Too many transaction hashes"),
    errors.BatchSpanTooLarge: Problem(400, "Batch spans too many heights"),
    errors.Unauthorized: Problem(401, "Unauthorized"),
    errors.NotFound: Problem(404, "Not found"),
    errors.TxHashNotFound: Problem(404, "Transaction not found"),
    errors.TxNotMined: Problem(404, "Transaction not mined yet"),
    errors.BlockNotOnSourceChain: Problem(404, "Block not on the chain"),
    errors.AttestationsMissing: Problem(404, "No attestations"),
    errors.LogIndexOutOfBounds: Problem(404, "Log index out of bounds"),
    errors.MethodNotAllowed: Problem(405, "Method not allowed"),
    errors.BodyTimeout: Problem(408, "Request body too slow"),
    errors.NotFinalized: Problem(409, "Not finalized yet"),
    errors.PayloadTooLarge: Problem(413, "Payload too large"),
    errors.UnsupportedMediaType: Problem(415, "Unsupported media type"),
    errors.BlockNotReady: Problem(422, "Block not attested yet"),
    errors.EmptyBlockTxProof: Problem(422, "Empty block"),
    errors.UnsupportedBlockFormat: Problem(422, "Unsupported block format"),
    errors.NotCommittedByHeader: Problem(422, "Not committed by the header"),
    errors.UnsupportedTransactionType: Problem(422, "Unsupported transaction type"),
    errors.HeaderHashUnsupported: Problem(422, "Unsupported header hash"),
    errors.HistoryUnavailable: Problem(422, "History unavailable"),
    errors.ConsumerRateLimited: Problem(429, "Rate limited"),
    errors.ConsumerConcurrency: Problem(429, "Too many concurrent requests"),
    errors.InconsistentSource: Problem(503, "Inconsistent source"),
    errors.RpcUnavailable: Problem(503, "Source chain unavailable"),
    errors.UpstreamBudgetExhausted: Problem(503, "Upstream budget exhausted"),
    errors.Overloaded: Problem(503, "Overloaded"),
    errors.ChainOverloaded: Problem(503, "Chain overloaded"),
    errors.Draining: Problem(503, "Shutting down"),
    errors.RequestTimeout: Problem(504, "Deadline exceeded"),
    errors.SelfCheckFailed: Problem(500, "Self-check failed"),
    errors.MerkleError: Problem(500, "Merkle error"),
    errors.Internal: Problem(500, "Internal error"),
}

PROBLEMS: dict[str, Problem] = {kind.code: problem for kind, problem in _PROBLEMS.items()}

_BY_STATUS: dict[int, type[ProofError]] = {
    400: errors.InvalidParameter,
    401: errors.Unauthorized,
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    408: errors.BodyTimeout,
    413: errors.PayloadTooLarge,
    415: errors.UnsupportedMediaType,
    422: errors.InvalidParameter,
}
_OPENINGS = {errors.RpcUnavailable.code: "rpc unavailable: "}
"""How the reference server's messages of a code begin, where ours do not."""
_COMPATIBLE_WORDS = (
    (" (use a continuity-only proof)", ""),
    ("tx proof unavailable", "there is nothing to prove"),
    ("tx_index", "transaction index"),
    ("tx hash not found", "transaction not found"),
    ("invalid tx_hash hex", "the transaction hash is no hex"),
    ("tx_hash must be", "a transaction hash must be"),
    ("chain_key", "chain"),
    ("header_number", "block"),
    (" at height ", " in block "),
)
"""The reference server's words for what the native routes call otherwise. Messages that both families share are written in its
words, since its clients may know them."""

_RESERVED = frozenset({"code", "message", "retriable", "type", "title", "status", "detail", "instance"})


def retry_after(refusal: ProofError) -> int | None:
    """Whole seconds until a retry makes sense: the computed wait, else 1 to 3 at random so that clients do not march in
    step.

    None exactly for what no retry can help.
    """
    if not refusal.retriable:
        return None
    if refusal.retry_after_s is not None:
        return max(1, math.ceil(refusal.retry_after_s))
    return random.randint(1, 3)  # noqa: S311 - spreads retries, guards no secret


def answer(scope: Scope, refusal: ProofError, headers: dict[str, str] | None = None) -> Response:
    """The one response for `refusal` to the request in `scope`; notes the code on the visit for the log and the
    metrics."""
    visit = visit_of(scope)
    problem = PROBLEMS[refusal.code]
    visit.outcome = refusal.code
    message = refusal.message if visit.compatible else _in_native_words(refusal.message)
    body: dict[str, object] = {"code": refusal.code, "message": message, "retriable": refusal.retriable}
    body.update((name, value) for name, value in refusal.extra.items() if name not in _RESERVED)
    media_type = "application/json"
    if visit.compatible:
        opening = _OPENINGS.get(refusal.code, "")
        if not refusal.message.startswith(opening):
            body["message"] = opening + refusal.message
    else:
        media_type = PROBLEM_JSON
        body |= {
            "type": f"urn:copath:problem:{refusal.code}",
            "title": problem.title,
            "status": problem.status,
            "detail": message,
            "instance": f"urn:copath:request:{quote(visit.request_id, safe='')}",
        }
    all_headers = {"Cache-Control": "no-store", **(headers or {})}
    wait_s = retry_after(refusal)
    if wait_s is not None:
        all_headers["Retry-After"] = str(wait_s)
    return Response(orjson.dumps(body, default=str), problem.status, all_headers, media_type)


def _in_native_words(message: str) -> str:
    for theirs, ours in _COMPATIBLE_WORDS:
        message = message.replace(theirs, ours)
    return message


def of_framework(fault: HTTPException) -> ProofError:
    """What the framework refused, in our words; its own detail never reaches a client."""
    kind = _BY_STATUS.get(fault.status_code, errors.Internal)
    return kind(
        f"invalid parameter: {fault.detail}" if kind is errors.InvalidParameter else PROBLEMS[kind.code].title.lower()
    )


async def answer_http_exception(request: Request, fault: Exception) -> Response:
    """Exception handler for the framework's own refusals."""
    assert isinstance(fault, HTTPException)
    allow = (fault.headers or {}).get("allow") or (fault.headers or {}).get("Allow")
    return answer(request.scope, of_framework(fault), {"Allow": allow} if allow else None)


async def answer_validation_error(request: Request, fault: Exception) -> Response:
    """Exception handler for bodies and parameters that the framework's validation refused: 400 here, never 422."""
    assert isinstance(fault, RequestValidationError)
    first = fault.errors()[0]
    if first["type"] == "json_invalid":
        return answer(request.scope, errors.MalformedJson("the request body is not JSON"))
    where = ".".join(str(step) for step in first["loc"])
    return answer(request.scope, errors.InvalidParameter(f"invalid parameter: {where}: {first['msg']}"))


async def answer_fault(request: Request, fault: Exception) -> Response:
    """Exception handler for what even the guard could not answer; the framework would send plain text."""
    return answer(request.scope, errors.Internal("internal error"))
