"""What can go wrong with one call to one node: a closed set, and what each member means for the next step."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """Why a call to a node gave no result."""

    # The connection.
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    DNS = "dns"
    TLS = "tls"
    CONNECT_TIMEOUT = "connect-timeout"
    RESET = "reset"
    ATTEMPT_TIMEOUT = "attempt-timeout"
    # Ours, never blamed on the node.
    DEADLINE = "deadline"
    POOL_BUSY = "pool-busy"
    TURN_OVER = "turn-over"
    SPENT = "spent"
    # The HTTP status.
    DENIED = "denied"
    HTTP_4XX = "http-4xx"
    HTTP_5XX = "http-5xx"
    RATE_LIMITED = "rate-limited"
    # The body.
    BODY_TOO_LARGE = "body-too-large"
    MALFORMED = "malformed"
    WRONG_CHAIN = "wrong-chain"
    # A JSON-RPC error, well formed.
    NOT_FOUND = "not-found"
    METHOD_NOT_SUPPORTED = "method-not-supported"
    INVALID_PARAMS = "invalid-params"
    TOO_BIG = "too-big"
    PRUNED = "pruned"
    NOT_SERVED = "not-served"
    UNAVAILABLE = "unavailable"
    RPC_ERROR = "rpc-error"


NEVER_CONNECTED = frozenset({Fault.REFUSED, Fault.UNREACHABLE, Fault.DNS, Fault.TLS, Fault.CONNECT_TIMEOUT})
"""After one of these, whatever answers next at that address may be another node."""

TRANSIENT = NEVER_CONNECTED | {
    Fault.RESET,
    Fault.ATTEMPT_TIMEOUT,
    Fault.POOL_BUSY,
    Fault.HTTP_5XX,
    Fault.MALFORMED,
    Fault.UNAVAILABLE,
    Fault.RPC_ERROR,
}
"""Worth another attempt at the same node after a pause. A limit is not among them: it is waited for."""

ANSWERED = frozenset(
    {
        Fault.NOT_FOUND,
        Fault.METHOD_NOT_SUPPORTED,
        Fault.INVALID_PARAMS,
        Fault.TOO_BIG,
        Fault.PRUNED,
        Fault.NOT_SERVED,
        Fault.RPC_ERROR,
    }
)
"""The node understood the call and said no: more than silence, less than a result."""

BLAMED = NEVER_CONNECTED | {
    Fault.RESET,
    Fault.ATTEMPT_TIMEOUT,
    Fault.HTTP_4XX,
    Fault.HTTP_5XX,
    Fault.BODY_TOO_LARGE,
    Fault.MALFORMED,
    Fault.UNAVAILABLE,
    Fault.RPC_ERROR,
}
"""Counted by the node's breaker. Limits, refused credentials and another chain have consequences of their own; our own
deadline, our own lack of connections and whatever was cancelled are no fault of a node."""

HARD = (NEVER_CONNECTED - {Fault.CONNECT_TIMEOUT}) | {Fault.RESET, Fault.MALFORMED}
"""Quick and definite: waiting a moment mends none of these."""

_RESULTS = {
    Fault.REFUSED: "transport",
    Fault.UNREACHABLE: "transport",
    Fault.DNS: "transport",
    Fault.TLS: "transport",
    Fault.RESET: "transport",
    Fault.CONNECT_TIMEOUT: "timeout",
    Fault.ATTEMPT_TIMEOUT: "timeout",
    Fault.DEADLINE: "cancelled",
    Fault.POOL_BUSY: "cancelled",
    Fault.TURN_OVER: "cancelled",
    Fault.SPENT: "cancelled",
    Fault.DENIED: "http_4xx",
    Fault.HTTP_4XX: "http_4xx",
    Fault.HTTP_5XX: "http_5xx",
    Fault.RATE_LIMITED: "rate_limited",
    Fault.NOT_FOUND: "not_found",
    Fault.PRUNED: "not_found",
}


_WHAT = {
    Fault.REFUSED: "connection refused",
    Fault.UNREACHABLE: "unreachable",
    Fault.DNS: "host name does not resolve",
    Fault.TLS: "TLS handshake failed",
    Fault.CONNECT_TIMEOUT: "connection timed out",
    Fault.RESET: "connection broke off",
    Fault.ATTEMPT_TIMEOUT: "timed out",
    Fault.DENIED: "authentication refused",
    Fault.HTTP_4XX: "HTTP 4xx",
    Fault.HTTP_5XX: "HTTP 5xx",
    Fault.RATE_LIMITED: "rate limited",
    Fault.BODY_TOO_LARGE: "response too large",
    Fault.MALFORMED: "not JSON-RPC",
    Fault.WRONG_CHAIN: "wrong chain",
    Fault.METHOD_NOT_SUPPORTED: "method not supported",
    Fault.INVALID_PARAMS: "parameters refused",
    Fault.TOO_BIG: "too big",
    Fault.PRUNED: "data not kept",
    Fault.NOT_SERVED: "block not served",
    Fault.UNAVAILABLE: "unavailable",
    Fault.RPC_ERROR: "JSON-RPC error",
}


class CallFailed(Exception):
    """One call to one node gave no result. Stays inside this package: what leaves it is a `ProofError`.

    `message` is in our own words and fit for a client. `excerpt` is what the node said, printable but not yet without
    our secrets: for logs only, after `Poster.scrub`.
    """

    def __init__(
        self,
        fault: Fault,
        message: str,
        *,
        retry_after_s: float | None = None,
        excerpt: str = "",
        code: int | None = None,
        denied: bool = False,
    ) -> None:
        super().__init__(fault, message)
        self.fault = fault
        self.message = message
        self.retry_after_s = retry_after_s
        self.excerpt = excerpt
        self.code = code
        self.denied = denied
        """It came with an HTTP status that refuses access, if for this call alone."""

    def __str__(self) -> str:
        return f"{self.fault}: {self.message}"

    @property
    def transient(self) -> bool:
        """Whether the same call may succeed at the same node after a pause."""
        return self.fault in TRANSIENT

    @property
    def result(self) -> str:
        """The closed word that metrics use for it."""
        return _RESULTS.get(self.fault, "invalid")

    @property
    def what(self) -> str | None:
        """The stable words that listings use for it; None where it is no error of the node."""
        return _WHAT.get(self.fault)

    def again(self) -> CallFailed:
        """A copy for one more caller: a raised exception carries one caller's traceback."""
        return CallFailed(
            self.fault,
            self.message,
            retry_after_s=self.retry_after_s,
            excerpt=self.excerpt,
            code=self.code,
            denied=self.denied,
        )
