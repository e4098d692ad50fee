"""JSON-RPC 2.0 over bytes: requests out, results in. No I/O, no clock.

A result is handed on as the JSON text it had on the wire; what it means is not known here. Sources: the JSON-RPC 2.0
specification; what the codes and words of errors mean is in `vendor_words`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from .faults import CallFailed, Fault
from .vendor_words import fault_of_error

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
        by_id.setdefault(plain_id(response.id), response)
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


def plain_id(found: object) -> object:
    """An id as it was sent, although a gateway gives it back as text or as a decimal fraction: "7" and 7.0 for 7."""
    if isinstance(found, str) and re.fullmatch(r"[0-9]{1,18}", found):
        return int(found)
    return int(found) if isinstance(found, float) and found.is_integer() else found


def excerpt(text: bytes | str) -> str:
    """The beginning of what a node said as printable ASCII on one line. For logs only, and only after `Poster.scrub`."""
    if isinstance(text, bytes):
        text = text[:EXCERPT_CHARACTERS].decode("ascii", "replace")
    flat = re.sub(r"\s+", " ", text[:EXCERPT_CHARACTERS]).strip()
    return re.sub(r"[^\x20-\x7e]", "?", flat)


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
    if plain_id(response.id) != call_id:
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
    fault = fault_of_error(code, message)
    number = "" if code is None else f" {code}"
    return CallFailed(
        fault, f"the node answered with error{number}: {_OWN_WORDS[fault]}", excerpt=excerpt(message), code=code
    )


class _Error(msgspec.Struct):
    code: msgspec.Raw = msgspec.Raw(b"null")
    message: msgspec.Raw = msgspec.Raw(b"null")
    data: msgspec.Raw = msgspec.Raw(b"null")


_error_decoder = msgspec.json.Decoder(_Error)


def _code_and_message(raw: bytes) -> tuple[int | None, str]:
    """Vendors send the error as an object, a bare string, or with the code as a string."""
    try:
        error = _error_decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None, _text(raw)
    words = _text(bytes(error.message))
    data = _text(bytes(error.data))
    return _code(bytes(error.code)), f"{words} {data}" if data else words


def _code(raw: bytes) -> int | None:
    found = re.fullmatch(rb'"?(-?[0-9]{1,9})(\.0+)?"?', raw[:64])
    return None if found is None else int(found[1])


def _text(raw: bytes) -> str:
    """The beginning of a JSON string; nothing for any other value."""
    if raw[:1] != b'"':
        return ""
    if len(raw) > EXCERPT_CHARACTERS:
        return raw[1:EXCERPT_CHARACTERS].decode("utf-8", "replace")
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.MsgspecError:
        return ""


def _malformed(shape: str, body: bytes) -> CallFailed:
    return CallFailed(Fault.MALFORMED, f"the node sent {shape}", excerpt=excerpt(body))


_OWN_WORDS = {
    Fault.NOT_FOUND: "not found",
    Fault.NOT_SERVED: "it does not serve this",
    Fault.METHOD_NOT_SUPPORTED: "it does not offer that method",
    Fault.RATE_LIMITED: "a limit is reached",
    Fault.TOO_BIG: "too big for it",
    Fault.PRUNED: "it does not keep data that old",
    Fault.INVALID_PARAMS: "it does not take such parameters",
    Fault.UNAVAILABLE: "unavailable at the moment",
    Fault.RPC_ERROR: "it could not answer",
}
