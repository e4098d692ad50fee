"""Hexadecimal spellings: strict about what is data, tolerant about how a node spells a number.

JSON-RPC knows two kinds of hex string (execution-apis, "hex value encoding"): DATA, whole bytes, and QUANTITY, a
number without leading zeros. Nodes break the second rule in every way there is, so a quantity is read by what its
prefix says it is; data is never guessed at.
"""

from __future__ import annotations

from binascii import unhexlify

_PREFIXES = ("0x", "0X")


def to_hex(data: bytes) -> str:
    """`0x` and two lower-case digits a byte."""
    return "0x" + data.hex()


def from_hex(text: str) -> bytes:
    """The bytes that `text` spells: hex digits in pairs, prefix optional. Raises ValueError for anything else.

    `bytes.fromhex` would skip white space; what a node sends is either hex or broken.
    """
    return unhexlify(text[2:] if text[:2] in _PREFIXES else text)


def from_hex_exact(text: str, size_bytes: int) -> bytes:
    """As `from_hex`, for a value of one length: hashes, addresses, blooms. Raises ValueError for any other length."""
    data = unhexlify(text[2:] if text[:2] in _PREFIXES else text)
    if len(data) != size_bytes:
        raise ValueError(f"{len(data)} bytes where {size_bytes} belong")
    return data


def parse_quantity(value: object) -> int:
    """The number that a node means: 0x-hex (`0x` alone is zero; leading zeros and upper case allowed), a decimal
    string, a JSON integer or a JSON boolean. Raises ValueError for what is none of these, and for negative numbers.

    Whether a string is hex is decided by its prefix alone: "10" is ten.
    """
    if isinstance(value, str):
        digits = value[2:]
        if value[:2] in _PREFIXES:
            if not digits:
                return 0
            # int() would also take signs, underscores, white space, a second prefix and the digits of other scripts.
            if not (digits.isalnum() and digits.isascii()) or digits[:2] in _PREFIXES:
                raise ValueError("not a hex quantity")
            try:
                return int(digits, 16)
            except ValueError:
                raise ValueError("not a hex quantity") from None  # int() would quote what the node sent
        if not (value.isdigit() and value.isascii()):
            raise ValueError("not a quantity")
        return int(value)
    if value is None:
        raise ValueError("a quantity is missing")
    if not isinstance(value, int):  # whatever else JSON can hold, for fields that are read untyped
        raise ValueError("not a quantity")  # noqa: TRY004  # broken data, not a broken caller
    if value < 0:
        raise ValueError("a negative quantity")
    return int(value)


def encode_quantity(number: int) -> str:
    """The one spelling of a number that every node accepts: `0x`, lower case, no leading zeros, `0x0` for zero."""
    if number < 0:
        raise ValueError("a quantity is never negative")
    return hex(number)


def parse_hash(text: str) -> bytes:
    """A 32-byte hash as a client may write it: 64 hex digits of any case, prefix optional. Raises ValueError."""
    return from_hex_exact(text, 32)
