"""What the words of an error mean, whoever sent it: the texts that clients, providers and gateways really send.

Words come before codes, since vendors use one code for several things: -32011 is a batch that is too large, a limit, or a gateway
without a backend. Only codes of one meaning come first.
"""

from __future__ import annotations

import re

from .faults import Fault

MOST_CHARACTERS = 4096
"""Of a message are read."""


def fault_of_error(code: int | None, message: str) -> Fault:
    """What a JSON-RPC error means."""
    if code in _PLAIN_CODES:
        return _PLAIN_CODES[code]
    found = fault_of_words(message, names_method=code in _METHOD_CODES)
    if found in _ABOUT_MORE_THAN_A_CALL:
        return found
    if code == -32601 and found is not Fault.NOT_SERVED:
        return Fault.METHOD_NOT_SUPPORTED
    if code == -32602 and found in (Fault.METHOD_NOT_SUPPORTED, Fault.NOT_SERVED):
        return Fault.INVALID_PARAMS  # "not supported" about a parameter says nothing about the method
    return found or _LOOSE_CODES.get(code, Fault.RPC_ERROR)


def fault_of_words(message: str, *, names_method: bool = False) -> Fault | None:
    """What words mean on their own; None where they mean nothing here. `names_method`: they are about the method of the call."""
    words = message[:MOST_CHARACTERS].casefold()
    for fault, pattern in _FIRST:
        if pattern.search(words):
            return fault
    about_method = names_method or _METHOD_NAMED.search(words) is not None
    if _PLAN.search(words):
        return Fault.METHOD_NOT_SUPPORTED if about_method else Fault.PRUNED
    of_one_block = _OF_ONE_BLOCK.search(words) is not None
    if _METHOD_GONE.search(words):
        return Fault.NOT_SERVED if of_one_block else Fault.METHOD_NOT_SUPPORTED
    if _REFUSED.search(words) and not _NOT_YET.search(words):
        return Fault.METHOD_NOT_SUPPORTED if about_method and not of_one_block else Fault.NOT_SERVED
    return next((fault for fault, pattern in _LAST if pattern.search(words)), None)


_PLAIN_CODES = {4444: Fault.PRUNED, 429: Fault.RATE_LIMITED}  # EIP-4444 clients; HTTP

_METHOD_CODES = (-32601, -32004)

_ABOUT_MORE_THAN_A_CALL = (Fault.TOO_BIG, Fault.UNAVAILABLE, Fault.RATE_LIMITED, Fault.PRUNED)

_LOOSE_CODES: dict[int | None, Fault] = {
    -32001: Fault.UNAVAILABLE,  # EIP-1474 "resource not found"; balancers send it for "no healthy node"
    -32002: Fault.UNAVAILABLE,  # EIP-1474 "resource unavailable"; geth: timeout
    -32003: Fault.TOO_BIG,  # geth: response too large
    -32004: Fault.METHOD_NOT_SUPPORTED,  # EIP-1474
    -32005: Fault.RATE_LIMITED,  # EIP-1474 "limit exceeded"
    -32007: Fault.TOO_BIG,  # jsonrpsee: request
    -32008: Fault.TOO_BIG,  # jsonrpsee: response
    -32010: Fault.TOO_BIG,  # jsonrpsee: batch
    -32011: Fault.TOO_BIG,  # jsonrpsee: batch response
    -32029: Fault.RATE_LIMITED,
    -32097: Fault.RATE_LIMITED,
    -32600: Fault.INVALID_PARAMS,
    -32602: Fault.INVALID_PARAMS,
    503: Fault.UNAVAILABLE,
}


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


# "Batched requests are not supported" is about size, "response size limit exceeded" too; "no backends available for method" is an
# outage; "archive requests are not available on your plan" is about old blocks and not about a method.
_FIRST: tuple[tuple[Fault, re.Pattern[str]], ...] = (
    (
        Fault.TOO_BIG,
        _any(
            r"too (big|large|long)",
            r"batch (size|limit|is not)",
            r"batch(ed)? requests",
            r"requests? in (a |the |one )?batch",
            r"(response|message|payload|body|content|result)[ -](size|length)",
            r"size (limit|exceed)",
            r"exceed\w* (the )?(max\w* )?(allowed )?(response|message|payload|body|batch|size)",
            r"response exceeds",
            r"oversized",
            r"query returned more than",
        ),
    ),
    (
        Fault.UNAVAILABLE,
        _any(
            r"no (healthy |available |live )?(backend|upstream|server|node|provider|endpoint)s? (is |are )?(currently )?"
            r"(available|healthy|found|online|left)",
            r"no (healthy|available|live) ",
            r"backends? (is |are )?(currently )?(unhealthy|unavailable|offline|down)",
            r"all (nodes|backends|upstreams|providers|endpoints) ",
            r"bad gateway",
            r"service (is )?(temporarily |currently )?unavailable",
        ),
    ),
    (
        Fault.RATE_LIMITED,
        _any(
            r"rate[ -]?limit",
            r"rate (is |was )?exceeded",
            r"too many (requests|connections|concurrent|calls)",
            r"quota",
            r"capacity",
            r"throttl",
            r"limit (was |is |has been |been )?(exceeded|reached|hit)",
            r"(exceed\w*|reached|hit) [\w' ]*\blimit",
            r"request limit",
            r"(requests?|calls?|units?) per ",
            r"per (second|minute|day)",
            r"(count|usage|requests?) exceeded",
            r"compute units",
            r"out of credits",
            r"credits? (are |is )?(exhausted|exceeded|used)",
            r"resource[_ ]exhausted",
            r"slow down",
        ),
    ),
    (
        Fault.PRUNED,
        _any(
            r"prun(ed|ing)",
            r"histor(y|ic)",
            r"missing trie node",
            r"archiv",
            r"state is not available",
            r"ancient block",
        ),
    ),
)

_PLAN = _any(
    r"(your|current|free|paid|growth|premium|this|higher|upgraded?)( \w+)? (plan|tier)\b",
    r"upgrade (to|your)",
    r"personal (token|key)",
    r"paid (plan|tier|subscription)",
    r"requires? a (paid|premium)",
)

_METHOD_NAMED = _any(r"\bmethods?\b", r"\beth_\w+", r"\brpc call\b")

_METHOD_GONE = _any(
    r"method (was )?not (found|supported|available|allowed|enabled)",
    r"method is (not|disabled)",
    r"(unsupported|unknown|invalid|no such) (rpc )?method",
    r"does not exist/is not available",
    r"not whitelisted",
)

_REFUSED = _any(
    r"not (implemented|supported|enabled|allowed)", r"unsupported", r"not available on", r"not included in", r"disabled"
)

_OF_ONE_BLOCK = _any(r"\btypes?\b", r"\bthis transaction", r"\bblocks?\b")

_NOT_YET = _any(r"not yet ")

_LAST: tuple[tuple[Fault, re.Pattern[str]], ...] = (
    (
        Fault.NOT_FOUND,
        _any(
            r"not found",
            r"unknown block",
            r"could not find block",
            r"no block with",
            r"cannot find",
            r"cannot be found",
            r"unable to find",
            r"does not exist",
            r"doesn't exist",
            r"unfinalized",
            r"not yet available",
            r"greater than latest",
            r"beyond current head",
            r"after last accepted block",
            r"out of range",
        ),
    ),
    (
        Fault.UNAVAILABLE,
        _any(r"unavailable", r"overloaded", r"timed out", r"timeout", r"busy", r"try again", r"syncing"),
    ),
    (
        Fault.INVALID_PARAMS,
        _any(
            r"invalid (\w+ )?(argument|param|type|length|hash|tag|identifier)",
            r"invalid block",
            r"missing value",
            r"cannot unmarshal",
            r"leading zero",
            r"hex string",
            r"expected (an? )?(object|string|hash|number)",
        ),
    ),
)
