"""What an HTTP status other than success means, with what stood in the body."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from . import jsonrpc
from .faults import CallFailed, Fault
from .vendor_words import fault_of_words

LONGEST_WAIT_S = 1e9
"""Nothing that a node asks for is taken to be longer."""

_REFUSALS = (401, 402, 403)

_OF_THIS_CALL = frozenset({Fault.PRUNED, Fault.METHOD_NOT_SUPPORTED, Fault.RATE_LIMITED, Fault.UNAVAILABLE})
"""What a status that refuses access may say of one call, by the words beside it, and not of our credentials."""

_MEANINGS = {
    Fault.PRUNED: "it does not keep data that old, or not for this plan",
    Fault.RATE_LIMITED: "a limit is reached",
}


def failure_of_status(status: int, retry_after: str | None, body: bytes, wall_now: float) -> CallFailed:
    """A JSON-RPC error, or words, in the body say more than the status, limits apart."""
    said = jsonrpc.decode_error(body)
    wait_s = retry_after_s(retry_after, wall_now)
    words = jsonrpc.excerpt(body)
    if status == 429 or (status == 503 and wait_s is not None):
        return CallFailed(Fault.RATE_LIMITED, f"the node answered HTTP {status}", retry_after_s=wait_s, excerpt=words)
    if said is not None and (status not in _REFUSALS or said.fault in _OF_THIS_CALL):
        said.denied = status in _REFUSALS
        said.retry_after_s = wait_s
        return said
    fault = Fault.HTTP_5XX if status >= 500 else Fault.HTTP_4XX
    if status in _REFUSALS:
        fault = Fault.DENIED
    elif status == 413:
        fault = Fault.TOO_BIG
    elif status == 408:
        # A server's word for "this idle connection is over".
        fault = Fault.RESET
    elif status < 400:
        fault = Fault.MALFORMED
    worded = None if words.startswith("<") or said is not None else fault_of_words(words)
    if fault in (Fault.DENIED, Fault.HTTP_4XX) and worded in _MEANINGS:
        meaning = f"the node answered HTTP {status}: {_MEANINGS[worded]}"
        return CallFailed(worded, meaning, retry_after_s=wait_s, excerpt=words, denied=fault is Fault.DENIED)
    return CallFailed(fault, f"the node answered HTTP {status}", excerpt=words)


def retry_after_s(header: str | None, wall_now: float) -> float | None:
    """Seconds that a `Retry-After` header asks for, in either form (RFC 9110, 10.2.3); None when it is unusable."""
    if header is None:
        return None
    text = header.strip()[:64]
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        wait_s = parsedate_to_datetime(text).timestamp() - wall_now
    except (ValueError, TypeError, OverflowError, OSError):  # a date or a zone that no calendar has
        return None
    return min(max(wait_s, 0.0), LONGEST_WAIT_S)
