"""What clients put into a path or a query, turned into numbers, hashes and block names.

Everything is decided here, from the text alone, before anything else happens: one spelling or another of the same hash
is the same hash from this point on. Only ASCII counts as a digit. Every refusal is `InvalidParameter` (400).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.core.blocks import BlockRef
from app.core.errors import InvalidParameter
from app.core.finality import Level

MAX_U64 = 2**64 - 1
MAX_EXACT_JSON = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly; the native routes take no larger number."""

CHAIN_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")

_DECIMAL = re.compile(r"[0-9]{1,20}")
_HEX_QUANTITY = re.compile(r"0[xX]([0-9a-fA-F]{1,16})")
_PREFIXES = re.compile(r"(?:0[xX])*")
_NOT_HEX = re.compile(r"[^0-9a-fA-F]")
_HASH = re.compile(r"(?:0[xX])?[0-9a-fA-F]{64}")


_KINDS = {"chain_key": "chain", "chain": "chain", "header_number": "block"}


def shown(text: str) -> str:
    """Client text as it may appear in a message: ASCII, quoted, cut to a line."""
    return ascii(text if len(text) <= 80 else text[:80] + "...")


# --- the compatible routes: unsigned 64 bits, and the reference server's messages ---


def u64(name: str, text: str) -> int:
    """An unsigned 64-bit decimal path parameter: digits only, no sign, no exponent, no separators."""
    if _DECIMAL.fullmatch(text) is None or int(text) > MAX_U64:
        raise InvalidParameter(
            f"invalid parameter: could not parse {name} from request path", about=_KINDS.get(name, "index")
        )
    return int(text)


def u64_height(name: str, text: str) -> int:
    """A height on the compatible routes: `u64`, or 0x-hex of at most 64 bits."""
    quantity = _HEX_QUANTITY.fullmatch(text)
    return int(quantity[1], 16) if quantity else u64(name, text)


def tx_hash(text: str) -> bytes:
    """A transaction hash in any case, with or without 0x (stripped as often as it is repeated), as 32 bytes."""
    digits = text[_PREFIXES.match(text).end() :]  # type: ignore[union-attr]  # the pattern matches the empty string
    strange = _NOT_HEX.search(digits)
    if strange is not None:
        raise InvalidParameter(
            f"invalid parameter: invalid tx_hash hex: Invalid character {strange[0]!a} at position {strange.start()}",
            about="tx_hash",
        )
    if len(digits) % 2:
        raise InvalidParameter("invalid parameter: invalid tx_hash hex: Odd number of digits", about="tx_hash")
    if len(digits) != 64:
        raise InvalidParameter(f"invalid parameter: tx_hash must be 32 bytes, got {len(digits) // 2}", about="tx_hash")
    return bytes.fromhex(digits)


# --- the native routes ---


def index(name: str, text: str) -> int:
    """A position in a block or a receipt: a decimal number up to 2^53-1."""
    if _DECIMAL.fullmatch(text) is None or int(text) > MAX_EXACT_JSON:
        raise InvalidParameter(
            f"{name} must be a decimal number from 0 to {MAX_EXACT_JSON}, not {shown(text)}",
            about=_KINDS.get(name, "index"),
        )
    return int(text)


def block_ref(text: str) -> BlockRef:
    """A block by hash (64 hex digits, 0x optional) or by height (decimal or 0x-hex, up to 2^53-1)."""
    if _HASH.fullmatch(text) is not None:
        return BlockRef(block_hash=bytes.fromhex(text[-64:]))
    quantity = _HEX_QUANTITY.fullmatch(text)
    if quantity is not None:
        height = int(quantity[1], 16)
    elif _DECIMAL.fullmatch(text) is not None:
        height = int(text)
    else:
        height = -1
    if not 0 <= height <= MAX_EXACT_JSON:
        raise InvalidParameter(
            f"block must be a hash of 64 hex digits or a height from 0 to {MAX_EXACT_JSON}, not {shown(text)}",
            about="block",
        )
    return BlockRef(height=height)


def level(values: Sequence[str]) -> Level:
    """The finality level asked for, `latest` when none is."""
    text = _single("finality", values)
    if text is None:
        return Level.LATEST
    try:
        return Level(text)
    except ValueError:
        known = ", ".join(one.value for one in Level)
        raise InvalidParameter(f"finality must be one of {known}, not {shown(text)}", about="query") from None


def log_is_block_wide(values: Sequence[str]) -> bool:
    """Whether a log index counts over the whole block (`index=block`) or inside its receipt (`index=receipt`, the
    default)."""
    text = _single("index", values)
    if text not in (None, "receipt", "block"):
        raise InvalidParameter(f"index must be one of receipt, block, not {shown(text or '')}", about="query")
    return text == "block"


def encodings(values: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The extra encodings asked for, each once, in the order of `known`."""
    for text in values:
        if text not in known:
            raise InvalidParameter(f"encoding must be one of {', '.join(known)}, not {shown(text)}", about="query")
    return tuple(name for name in known if name in values)


def _single(name: str, values: Sequence[str]) -> str | None:
    if len(values) > 1:
        raise InvalidParameter(f"{name} is given {len(values)} times", about="query")
    return values[0] if values else None
