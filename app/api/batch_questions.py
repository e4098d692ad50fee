"""What a batch asks for, read from its body: which proofs, and in how many pieces they are wanted.

Everything is decided from the bytes alone, in the reference server's order: form, then numbers of things as written, and only
then are equal ones merged. Nothing here asks anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from fastapi import Request

from app.api import inputs
from app.api.visit import visit_of
from app.core.errors import (
    EmptyProofQueries,
    EmptyTxHashes,
    InvalidParameter,
    MalformedJson,
    TooManyProofQueries,
    TooManyTxHashes,
    TooManyTxQueriesInProofQuery,
    UnsupportedMediaType,
)
from app.core.hexadecimal import to_hex

MAX_PROOF_QUERIES = 10
MAX_INDEXES = 10
MAX_TX_HASHES = 100
MAX_LOGGED_HASHES = 10
"""Of a batch, in its line of the log; their number is there too."""

MAX_SPLIT = 10
"""What the verifying precompile takes in one call."""

MAX_COMMAS = 4096
"""No batch within the limits needs a thirtieth of them. A body with more is not read: two megabytes of empty arrays would stop
the event loop for longer than any proof takes."""

Queries = Mapping[int, tuple[int, ...]]
"""Heights, ascending, each with its transaction indexes, ascending; none for a height whose roots alone are asked for."""


async def proof_queries(request: Request) -> Queries:
    """The entries of a batch by position, merged by height. Raises what the body is refused for, before anything is asked."""
    entries = _array_of(await _json_body(request, TooManyProofQueries(_TOO_MANY_QUERIES)))
    asked = [_proof_query(entry, f"[{at}]") for at, entry in enumerate(entries)]
    if not asked:
        raise EmptyProofQueries("Batch request should contain at least one proof query")
    if len(asked) > MAX_PROOF_QUERIES:
        raise TooManyProofQueries(_TOO_MANY_QUERIES)
    if any(len(indexes) > MAX_INDEXES for _, indexes in asked):
        raise TooManyTxQueriesInProofQuery(f"Each proof query can contain at most {MAX_INDEXES} tx indexes")
    queries = merged((height, index) for height, indexes in asked for index in indexes or (None,))
    count = sum(len(indexes) for indexes in queries.values())
    visit_of(request.scope).asked = {"heights": list(queries), "transactions": count}
    return queries


async def tx_hashes(request: Request) -> tuple[bytes, ...]:
    """The hashes of a batch by transaction, each once, in the order in which they were given."""
    entries = _array_of(await _json_body(request, TooManyTxHashes(_TOO_MANY_HASHES)))
    for at, entry in enumerate(entries):
        if not isinstance(entry, str):
            raise _misshapen(f"[{at}]", "a transaction hash as a string")
    if not entries:
        raise EmptyTxHashes("Batch request should contain at least one tx hash")
    if len(entries) > MAX_TX_HASHES:
        raise TooManyTxHashes(_TOO_MANY_HASHES)
    hashes = tuple(dict.fromkeys(inputs.tx_hash(entry) for entry in entries))
    shown = [to_hex(each) for each in hashes[:MAX_LOGGED_HASHES]]
    visit_of(request.scope).asked = {"tx_hashes": shown, "transactions": len(hashes)}
    return hashes


def split(values: Sequence[str]) -> int | None:
    """Into sub-batches of how many transactions at most the answer is to be split; None when it is wanted whole."""
    if not values:
        return None
    if len(values) > 1 or values[0] not in _SPLITS:
        raise InvalidParameter(f"invalid parameter: split must be one number from 1 to {MAX_SPLIT}", about="query")
    return int(values[0])


def merged(places: Iterable[tuple[int, int | None]]) -> Queries:
    """Places grouped by height; an index of None names the height alone."""
    found: dict[int, set[int]] = {}
    for height, index in places:
        indexes = found.setdefault(height, set())
        if index is not None:
            indexes.add(index)
    return {height: tuple(sorted(found[height])) for height in sorted(found)}


_SPLITS = frozenset(str(size) for size in range(1, MAX_SPLIT + 1))
_TOO_MANY_QUERIES = f"Batch request cannot contain more than {MAX_PROOF_QUERIES} proof queries"
_TOO_MANY_HASHES = f"Batch request cannot contain more than {MAX_TX_HASHES} tx hashes"


async def _json_body(request: Request, too_many: Exception) -> Any:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not (
        media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))
    ):
        raise UnsupportedMediaType("the request body must be application/json")
    body = await request.body()
    if body.count(b",") > MAX_COMMAS:
        raise too_many
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise MalformedJson("the request body is not JSON") from None


def _array_of(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _misshapen("", "an array")
    return value


def _proof_query(entry: Any, where: str) -> tuple[int, list[int]]:
    if not isinstance(entry, dict):
        raise _misshapen(where, "an object")
    if "headerNumber" not in entry:
        raise _misshapen(where, "an object with a headerNumber")
    height, indexes = entry["headerNumber"], entry.get("txIndexes", [])
    if not _is_u64(height):
        raise _misshapen(f"{where}.headerNumber", "an unsigned 64-bit number")
    if not isinstance(indexes, list) or not all(map(_is_u64, indexes)):
        raise _misshapen(f"{where}.txIndexes", "an array of unsigned 64-bit numbers")
    return height, indexes


def _is_u64(value: Any) -> bool:
    return type(value) is int and 0 <= value <= inputs.MAX_U64


def _misshapen(where: str, expected: str) -> InvalidParameter:
    return InvalidParameter(f"invalid parameter: body{where} must be {expected}")
