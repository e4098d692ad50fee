"""JSON-RPC 2.0 over bytes: requests out, results in. No I/O, no clock.

A result is handed on as the JSON text it had on the wire; what it means is not known here. Sources: the JSON-RPC 2.0
specification, EIP-1474 for error codes, and the error texts that clients and providers really send.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from .faults import CallFailed, Fault

EXCERPT_CHARACTERS = 4096
"""More than a log line gets: secrets are taken out before it is cut, so that none is cut in half."""

T = TypeVar("T")

Call = tuple[str, Sequence[object]]
"""A method and its parameters."""


class _Response(msgspec.Struct):
    id: int | float | str | msgspec.UnsetType | None = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_response_decoder = msgspec.json.Decoder(_Response)
_batch_decoder = msgspec.json.Decoder(list[_Response])


def encode_request(call_id: int, method: str, params: Sequence[object]) -> bytes:
    """The body of one call."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": call_id, "method": method, "params": list(params)})


def encode_batch(first_id: int, calls: Sequence[Call]) -> bytes:
    """The body of a batch; ids count up from `first_id`."""
    return msgspec.json.encode(
        [
            {"jsonrpc": "2.0", "id": first_id + offset, "method": method, "params": list(params)}
            for offset, (method, params) in enumerate(calls)
        ]
    )


def decode_response(body: bytes, call_id: int) -> bytes:
    """The JSON text of `result`.

    Raises `CallFailed`: what the error means, or `MALFORMED` for what is no response to `call_id`.
    """
    response = _parse(body, _response_decoder)
    answer = _answer(response, call_id, body)
    if isinstance(answer, CallFailed):
        raise answer
    return answer


def decode_batch(body: bytes, first_id: int, count: int) -> list[bytes | CallFailed]:
    """One outcome per call of the batch, in the order of the calls, whatever order the answers came in.

    An answer that is missing is a failure of that call. Raises `CallFailed` when the batch was answered as a whole.
    """
    if body.lstrip()[:1] == b"{":
        # One error object for all of it: the batch was refused.
        response = _parse(body, _response_decoder)
        failure = _error(response)
        raise failure or _malformed("an object where the answers of a batch were due", body)
    by_id: dict[object, _Response] = {}
    for response in _parse(body, _batch_decoder):
        by_id.setdefault(response.id, response)
    outcomes: list[bytes | CallFailed] = []
    for call_id in range(first_id, first_id + count):
        found = by_id.get(call_id)
        if found is None:
            outcomes.append(CallFailed(Fault.MALFORMED, "no answer to one call of a batch"))
        else:
            outcomes.append(_answer(found, call_id, b""))
    return outcomes


def decode_error(body: bytes) -> CallFailed | None:
    """The JSON-RPC error that came with an HTTP error status; None when the body is none."""
    try:
        return _error(_parse(body, _response_decoder))
    except CallFailed:
        return None


def excerpt(text: bytes | str) -> str:
    """The beginning of what a node said as printable ASCII on one line. For logs only, and only after `Poster.scrub`."""
    if isinstance(text, bytes):
        text = text[:EXCERPT_CHARACTERS].decode("ascii", "replace")
    flat = re.sub(r"\s+", " ", text[:EXCERPT_CHARACTERS]).strip()
    return re.sub(r"[^\x20-\x7e]", "?", flat)


def classify(code: int | None, message: str) -> Fault:
    """What a JSON-RPC error means: codes of one meaning first, then the words, then codes of several meanings."""
    if code in _PLAIN_CODES:
        return _PLAIN_CODES[code]
    words = message.casefold()
    for fault, phrases in _PHRASES:
        if any(phrase in words for phrase in phrases):
            # "not supported" about a parameter says nothing about the method.
            refused_form = fault is Fault.METHOD_NOT_SUPPORTED and code == -32602
            return Fault.INVALID_PARAMS if refused_form else fault
    return _LOOSE_CODES.get(code, Fault.RPC_ERROR)


def _parse(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Raises `CallFailed` naming the kind of nonsense."""
    if not body.strip():
        raise _malformed("an empty body", b"")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise _malformed("JSON that is no JSON-RPC response", body) from None
    except msgspec.DecodeError:
        shape = "an HTML page" if body.lstrip()[:1] == b"<" else "a body that is not JSON"
        raise _malformed(shape, body) from None
    except RecursionError:
        raise _malformed("JSON nested too deep", b"") from None


def _answer(response: _Response, call_id: int, body: bytes) -> bytes | CallFailed:
    failure = _error(response)
    if failure is not None and response.id in (None, msgspec.UNSET):
        # Allowed where the server gave up before it read the id, as limits do.
        return failure
    if response.id is msgspec.UNSET:
        return _malformed("a response without id", body)
    if response.id != call_id:
        return _malformed("a response to another call", body)
    if failure is not None:
        return failure
    if isinstance(response.result, msgspec.UnsetType):
        return _malformed("a response with neither result nor error", body)
    return bytes(response.result)


def _error(response: _Response) -> CallFailed | None:
    if isinstance(response.error, msgspec.UnsetType) or bytes(response.error) == b"null":
        # Some nodes send `"error": null` beside a result.
        return None
    code, message = _code_and_message(bytes(response.error))
    fault = classify(code, message)
    number = "" if code is None else f" {code}"
    return CallFailed(
        fault, f"the node answered with error{number}: {_OWN_WORDS[fault]}", excerpt=excerpt(message), code=code
    )


def _code_and_message(raw: bytes) -> tuple[int | None, str]:
    """Vendors send the error as an object, a bare string, or with the code as a string."""
    try:
        error: object = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None, ""
    if not isinstance(error, dict):
        return None, str(error)
    code, message = error.get("code"), error.get("message")
    words = message if isinstance(message, str) else ""
    data = error.get("data")
    if isinstance(data, str):
        words = f"{words} {data}"
    if isinstance(code, str) and re.fullmatch(r"-?[0-9]{1,9}", code):
        code = int(code)
    return (code if isinstance(code, int) else None), words


def _malformed(shape: str, body: bytes) -> CallFailed:
    return CallFailed(Fault.MALFORMED, f"the node sent {shape}", excerpt=excerpt(body))


_PLAIN_CODES = {
    -32601: Fault.METHOD_NOT_SUPPORTED,
    -32008: Fault.TOO_BIG,  # jsonrpsee: response
    -32010: Fault.TOO_BIG,  # jsonrpsee: batch
    -32011: Fault.TOO_BIG,  # jsonrpsee: batch response
    4444: Fault.PRUNED,  # EIP-4444 clients
    429: Fault.RATE_LIMITED,
}

_LOOSE_CODES: dict[int | None, Fault] = {
    -32001: Fault.UNAVAILABLE,  # EIP-1474 "resource not found"; balancers send it for "no healthy node"
    -32002: Fault.UNAVAILABLE,  # EIP-1474 "resource unavailable"; geth: timeout
    -32003: Fault.TOO_BIG,  # geth: response too large
    -32004: Fault.METHOD_NOT_SUPPORTED,  # EIP-1474
    -32005: Fault.RATE_LIMITED,  # EIP-1474 "limit exceeded"
    -32007: Fault.TOO_BIG,  # jsonrpsee: request
    -32029: Fault.RATE_LIMITED,
    -32097: Fault.RATE_LIMITED,
    -32600: Fault.INVALID_PARAMS,
    -32602: Fault.INVALID_PARAMS,
    503: Fault.UNAVAILABLE,
}

# In this order: "Batched requests are not supported" is about size, "the method does not exist/is not available" about
# the method, and "archive requests are not available on your plan" about the plan.
_PHRASES: tuple[tuple[Fault, tuple[str, ...]], ...] = (
    (
        Fault.TOO_BIG,
        (
            "too big",
            "too large",
            "batch size",
            "batch limit",
            "batched requests",
            "batch requests",
            "batch is not",
            "requests in batch",
            "response size",
            "message size",
            "oversized",
            "query returned more than",
        ),
    ),
    (
        Fault.METHOD_NOT_SUPPORTED,
        (
            "method not found",
            "method not supported",
            "method not available",
            "method not allowed",
            "method is not",
            "method is disabled",
            "unsupported method",
            "unknown method",
            "does not exist/is not available",
            "not whitelisted",
            "not available on",
            "not included in your",
            "not implemented",
            "not supported",
        ),
    ),
    (
        Fault.RATE_LIMITED,
        (
            "rate limit",
            "rate-limit",
            "ratelimit",
            "too many requests",
            "quota",
            "capacity",
            "throttl",
            "limit exceeded",
            "limit reached",
            "request limit",
            "per second",
            "request count exceeded",
            "compute units",
            "out of credits",
            "resource_exhausted",
            "slow down",
        ),
    ),
    (
        Fault.PRUNED,
        (
            "pruned",
            "history",
            "historical",
            "missing trie node",
            "archive",
            "state is not available",
            "ancient block",
        ),
    ),
    (
        Fault.NOT_FOUND,
        (
            "header not found",
            "block not found",
            "unknown block",
            "header for hash not found",
            "could not find block",
            "not found",
            "no block with",
            "cannot find",
            "cannot be found",
            "unable to find",
            "does not exist",
            "doesn't exist",
            "unfinalized",
            "not yet available",
            "greater than latest",
            "beyond current head",
            "after last accepted block",
            "out of range",
        ),
    ),
    (
        Fault.UNAVAILABLE,
        ("unavailable", "overloaded", "timed out", "timeout", "busy", "try again", "no healthy", "syncing"),
    ),
    (
        Fault.INVALID_PARAMS,
        (
            "invalid argument",
            "invalid param",
            "missing value",
            "cannot unmarshal",
            "leading zero",
            "invalid type",
            "hex string",
        ),
    ),
)

_OWN_WORDS = {
    Fault.NOT_FOUND: "not found",
    Fault.METHOD_NOT_SUPPORTED: "it does not offer that method",
    Fault.RATE_LIMITED: "a limit is reached",
    Fault.TOO_BIG: "too big for it",
    Fault.PRUNED: "it does not keep data that old",
    Fault.INVALID_PARAMS: "it does not take such parameters",
    Fault.UNAVAILABLE: "unavailable at the moment",
    Fault.RPC_ERROR: "it could not answer",
}
