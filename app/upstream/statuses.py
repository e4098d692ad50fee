"""What an HTTP status other than success means, with what stood in the body."""

from __future__ import annotations

from . import jsonrpc
from .faults import CallFailed, Fault
from .standing import retry_after_s


def failure_of_status(status: int, retry_after: str | None, body: bytes, wall_now: float) -> CallFailed:
    """A JSON-RPC error in the body says more than the status, limits apart."""
    said = jsonrpc.decode_error(body)
    wait_s = retry_after_s(retry_after, wall_now)
    words = jsonrpc.excerpt(body)
    if status == 429 or (status == 503 and wait_s is not None):
        return CallFailed(Fault.RATE_LIMITED, f"the node answered HTTP {status}", retry_after_s=wait_s, excerpt=words)
    if said is not None and (status not in (401, 402, 403) or said.fault is Fault.METHOD_NOT_SUPPORTED):
        return said
    fault = Fault.HTTP_5XX if status >= 500 else Fault.HTTP_4XX
    if status in (401, 402, 403):
        fault = Fault.DENIED
    elif status == 413:
        fault = Fault.TOO_BIG
    elif status == 408:
        # A server's word for "this idle connection is over".
        fault = Fault.RESET
    elif status < 400:
        fault = Fault.MALFORMED
    return CallFailed(fault, f"the node answered HTTP {status}", excerpt=words)
