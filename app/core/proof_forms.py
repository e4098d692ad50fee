"""Proofs as JSON, read from whoever sends them: what every field must be, and which one is not.

A proof that a route returned is bytes under a contract, so its form is taken at its word: names, lower-case hex, numbers of at
most 64 bits. The raw form of a trie proof is written by hand, so its hex may be spelt as one likes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from app.core.hexadecimal import from_hex

MAX_KEY_BYTES = 1024
"""Of the key of a raw trie proof. Ethereum's own have 32 at most."""

MAX_COMMAS, MAX_BRACES = 40_000, 10_000
"""A request takes two megabytes at most, and a root 69 bytes of it; a hundred leaves have 64 siblings each at most. To read that
much of empty arrays would hold up everybody else, in whichever thread: the interpreter frees and collects them in one go."""

_SHOWN = 40
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,19}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.([0-9]{3}){1,3})?Z")

Read: TypeAlias = Callable[[Any, str], Any]
"""Turns a JSON value, found at a place, into what it means. Raises `Malformed`."""


class NotJson(ValueError):
    """Bytes that are no JSON text."""


class NotAProof(ValueError):
    """JSON that has the form of no proof at all."""


class Malformed(Exception):
    """A proof with a field that is not what it must be. `reason`: MalformedField or DuplicateField."""

    def __init__(self, field: str, expected: str, found: object, reason: str = "MalformedField") -> None:
        super().__init__(f"{field} must be {expected}")
        self.reason = reason
        self.field = field
        self.expected = expected
        self.found = shown(found)


@dataclass(frozen=True, slots=True)
class Statement:
    """What is claimed. `kind`: trie, native, usc, batch or split; `said` is the body as JSON, `fields` the same values, hex read
    as bytes; `anchor` the (height, digest) that a usc proof is to lead to."""

    kind: str
    said: dict[str, Any]
    fields: dict[str, Any] = field(repr=False)
    anchor: tuple[int, bytes] | None = None


def parse(body: bytes) -> Any:
    """The JSON value of a text. Raises `NotJson`, `NotAProof` for one of more values than any proof has, and `Malformed` for a
    name that an object has twice."""
    if body.count(b",") > MAX_COMMAS or body.count(b"{") > MAX_BRACES:
        raise NotAProof("a proof has fewer values than this body")
    try:
        return _JSON.decode(body.decode())
    except (ValueError, RecursionError) as broken:
        raise NotJson("the body is not JSON") from broken


def read(value: Any, anchor: tuple[int, bytes] | None = None) -> Statement:
    """The statement of a body that a proof route returned, as it is or as `{"proof": body}`, or of the raw form of a trie
    proof. An anchor in it stands for `anchor` where that is None. Raises `NotAProof` and `Malformed`."""
    if isinstance(value, dict) and isinstance(value.get("proof"), dict) and value.keys() <= {"proof", "anchor"}:
        outer, value = value, dict(value["proof"])
        if "anchor" in outer:
            value["anchor"] = outer["anchor"]
    if not isinstance(value, dict):
        raise NotAProof("a proof is a JSON object")
    kind = _kind_of(value)
    said = dict(value)
    if kind in ("usc", "batch", "split"):
        written = said.pop("anchor", None)
        if anchor is None and written is not None:
            anchor = tuple(_ANCHOR(written, "anchor").values())
    return Statement(kind, said, _FORMS[kind](said, ""), anchor)


def _kind_of(value: dict[str, Any]) -> str:
    if value.get("kind") == "trie":
        return "trie"
    if "batches" in value:
        return "split"
    if "continuityProof" in value:
        return "batch" if "merkleProofs" in value else "usc"
    if value.get("kind") in ("transaction", "receipt", "log") or "format" in value:
        return "native"
    raise NotAProof(
        'a proof is what a proof route returned, or {"proof": that}, or {"kind": "trie", "root", "key", "value", "nodes"}'
    )


def shown(value: object) -> int | str | None:
    """A value as a diagnosis may show it: a number that every JSON reader keeps exactly, or text of one line, cut where it is
    long."""
    if isinstance(value, bytes):
        return "0x" + value.hex() if len(value) <= _SHOWN else f"0x{value[:32].hex()}... ({len(value)} bytes)"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        if 0 <= value < 1 << 64:
            return value if value < 1 << 53 else str(value)
        return "a negative number" if value < 0 else "a number beyond 64 bits"
    if isinstance(value, str):
        return value if len(value) <= 2 * _SHOWN and value.isprintable() else f"{ascii(value[:_SHOWN])[1:-1]}..."
    return {dict: "an object", list: "a list", float: "a number with a fraction or exponent"}.get(
        type(value), "nothing"
    )


# --- JSON ---------------------------------------------------------------------------------------------------------------


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Malformed(str(shown(name)), "given once", "twice", "DuplicateField")
            seen.add(name)
    return named


def _integer(text: str) -> int:
    # Python would not read a number of thousands of digits; 20 hold every one of 64 bits. "-0" is no spelling of ours either.
    return -1 if text[0] == "-" else int(text) if len(text) <= 20 else 1 << 64


_JSON = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)


# --- fields -------------------------------------------------------------------------------------------------------------


def _hex(size: int | None) -> Read:
    expected = "0x and lower-case hex digits in pairs" if size is None else f"0x and {2 * size} lower-case hex digits"

    def read_hex(value: Any, at: str) -> bytes:
        if isinstance(value, str) and value.startswith("0x") and value == value.lower():
            try:
                data = from_hex(value)
            except ValueError:
                data = None
            if data is not None and size in (None, len(data)):
                return data
        raise Malformed(at, expected, value)

    return read_hex


def _any_hex(size: int | None, limit: int | None = None) -> Read:
    expected = "hex digits in pairs" if size is None else f"{2 * size} hex digits"
    if limit is not None:
        expected += f", of {limit} bytes at most"

    def read_any_hex(value: Any, at: str) -> bytes:
        try:
            data = from_hex(value) if isinstance(value, str) else None
        except ValueError:
            data = None
        if data is None or size not in (None, len(data)) or (limit is not None and len(data) > limit):
            raise Malformed(at, expected, value)
        return data

    return read_any_hex


def _number(value: Any, at: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise Malformed(at, "a whole number of at most 64 bits", value)
    return value


def _flag(value: Any, at: str) -> bool:
    if type(value) is not bool:
        raise Malformed(at, "true or false", value)
    return value


def _text(pattern: str, expected: str) -> Read:
    compiled = re.compile(pattern)

    def read_text(value: Any, at: str) -> str:
        if not isinstance(value, str) or compiled.fullmatch(value) is None:
            raise Malformed(at, expected, value)
        return value

    return read_text


def _maybe(inner: Read) -> Read:
    return lambda value, at: None if value is None else inner(value, at)


def _listed(inner: Read) -> Read:
    def read_list(value: Any, at: str) -> list[Any]:
        if type(value) is not list:
            raise Malformed(at, "a list", value)
        return [inner(item, f"{at}[{place}]") for place, item in enumerate(value)]

    return read_list


def _fields(required: Mapping[str, Read], optional: Mapping[str, Read] | None = None) -> Read:
    known = {**required, **(optional or {})}

    def read_fields(value: Any, at: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise Malformed(at, "an object", value)
        for name in required:
            if name not in value:
                raise Malformed(_inside(at, name), "given", "nothing")
        for name in value:
            if name not in known:
                raise Malformed(_inside(at, str(shown(name))), "left out: no such proof has it", value[name])
        # In the order of the form, not of the body: of several faults always the same one is named.
        return {name: inner(value[name], _inside(at, name)) for name, inner in known.items() if name in value}

    return read_fields


def _entries(key: re.Pattern[str], expected: str, inner: Read) -> Read:
    def read_entries(value: Any, at: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise Malformed(at, "an object", value)
        for name in value:
            if key.fullmatch(name) is None:
                raise Malformed(_inside(at, str(shown(name))), f"named by {expected}", name)
        return {name: inner(item, _inside(at, name)) for name, item in value.items()}

    return read_entries


def _inside(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _height(value: Any, at: str) -> int:
    """A number, or its decimal spelling, for those whose numbers are strings."""
    return _number(int(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value, at)


# --- forms --------------------------------------------------------------------------------------------------------------

_HASH, _DATA = _hex(32), _hex(None)
_DECIMAL_TEXT = _text(_DECIMAL.pattern, "a decimal number as a string")
_DECIMAL_KEY = "a decimal number"

_LOG = _fields(
    {
        "address": _DATA,
        "topics": _listed(_HASH),
        "data": _DATA,
        "indexInReceipt": _number,
        "indexInBlock": _number,
        "rlp": _DATA,
    }
)
_FINALITY = _fields(
    {
        "level": _text("latest|safe|finalized", "latest, safe or finalized"),
        "by": _text("[a-z-]+", "a word of lower-case letters"),
        "sources": _number,
    }
)
_NATIVE = _fields(
    {
        "format": _text("copath/1", "copath/1"),
        "kind": _text("transaction|receipt|log", "transaction, receipt or log"),
        "chainKey": _DECIMAL_TEXT,
        "chainId": _DECIMAL_TEXT,
        "blockNumber": _number,
        "blockHash": _HASH,
        "headerRlp": _DATA,
        "finality": _FINALITY,
        "transactionHash": _HASH,
        "transactionIndex": _number,
        "root": _HASH,
        "key": _DATA,
        "value": _DATA,
        "nodes": _listed(_DATA),
    },
    {
        "transactionHashBy": _text("rpc", "rpc"),
        "log": _LOG,
        "encodings": _entries(re.compile("[a-z0-9-]+"), "lower-case letters, digits and hyphens", _DATA),
    },
)
_SIBLINGS = _listed(_fields({"hash": _HASH, "isLeft": _flag}))
_LEAF = {"txBytes": _DATA, "merkleProof": _fields({"root": _HASH, "siblings": _SIBLINGS})}
_HASH_OF_LEAF = {"txHash": _HASH}
_USC = {
    "chainKey": _number,
    "continuityProof": _fields({"lowerEndpointDigest": _HASH, "roots": _listed(_HASH)}),
    "cached": _flag,
    "generatedAt": _text(_TIME.pattern, "a time in UTC that ends in Z"),
}
_SINGLE = _fields({**_USC, "headerNumber": _number, "txIndex": _number, **_LEAF}, _HASH_OF_LEAF)
_BY_INDEX = _entries(_DECIMAL, _DECIMAL_KEY, _fields(_LEAF, _HASH_OF_LEAF))
_BATCH = _fields(
    {**_USC, "fromHeader": _number, "toHeader": _number, "merkleProofs": _entries(_DECIMAL, _DECIMAL_KEY, _BY_INDEX)}
)
_SPLIT = _fields(
    {"chainKey": _number, "fromHeader": _number, "toHeader": _number, "split": _number, "batches": _listed(_BATCH)}
)
_TRIE = _fields(
    {
        "kind": _text("trie", "trie"),
        "root": _any_hex(32),
        "key": _any_hex(None, MAX_KEY_BYTES),
        "value": _maybe(_any_hex(None)),
        "nodes": _listed(_any_hex(None)),
    }
)
_ANCHOR = _fields({"height": _height, "digest": _any_hex(32)})
_FORMS: Mapping[str, Read] = {"trie": _TRIE, "native": _NATIVE, "usc": _SINGLE, "batch": _BATCH, "split": _SPLIT}
