"""The pieces of Solidity's ABI encoding that a leaf is made of. Source: Solidity documentation, "Contract ABI
Specification".

Everything is a whole number of 32-byte words. A tuple or an array is heads, then tails: a static element is its own
head, a dynamic one has its offset there, counted in bytes from the first head, and its encoding among the tails.
"""

from __future__ import annotations

from collections.abc import Sequence

_ZEROS = [bytes(count) for count in range(33)]
_WORD_BYTES = 32


class OutOfRange(ValueError):
    """A value that its ABI type cannot hold. `field` names it."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(field, detail)
        self.field = field
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.field} {self.detail}"


def uint(number: int, bits: int, field: str) -> bytes:
    """One word: an unsigned integer of `bits` bits. Raises `OutOfRange`, never wraps."""
    if number >> bits:
        raise OutOfRange(field, f"{number} does not fit uint{bits}")
    return number.to_bytes(_WORD_BYTES, "big")


def boolean(flag: bool) -> bytes:
    """One word: 1 or 0."""
    return uint(int(flag), 8, "bool")


def address(account: bytes, field: str) -> bytes:
    """One word: 20 bytes, zeros in front."""
    if len(account) != 20:
        raise OutOfRange(field, f"0x{account.hex()} is no address of 20 bytes")
    return _ZEROS[12] + account


def bytes32(data: bytes, field: str) -> bytes:
    """One word: 32 bytes as they are."""
    if len(data) != _WORD_BYTES:
        raise OutOfRange(field, f"0x{data.hex()} is not of 32 bytes")
    return data


def dynamic_bytes(data: bytes) -> bytes:
    """The tail of `bytes`: its length, then itself, zeros behind up to a whole word."""
    size = len(data)
    return size.to_bytes(_WORD_BYTES, "big") + data + _ZEROS[-size % _WORD_BYTES]


def bytes32_array(items: Sequence[bytes], field: str) -> bytes:
    """The tail of `bytes32[]`: the number of items, then the items."""
    return len(items).to_bytes(_WORD_BYTES, "big") + b"".join([bytes32(item, field) for item in items])


def static_array(items: Sequence[bytes]) -> bytes:
    """The tail of an array of static tuples, each of them encoded."""
    return len(items).to_bytes(_WORD_BYTES, "big") + b"".join(items)


def dynamic_array(items: Sequence[bytes]) -> bytes:
    """The tail of an array of dynamic items (tuples with a dynamic part, or `bytes`), each of them encoded."""
    offset = _WORD_BYTES * len(items)
    parts = [len(items).to_bytes(_WORD_BYTES, "big")]
    for item in items:
        parts.append(offset.to_bytes(_WORD_BYTES, "big"))
        offset += len(item)
    parts += items
    return b"".join(parts)


def bytes_array_alone(items: Sequence[bytes]) -> bytes:
    """`abi.encode` of one `bytes[]` and nothing else."""
    return offset(1) + dynamic_array([dynamic_bytes(item) for item in items])


def offset(heads: int, *tails_before: bytes) -> bytes:
    """The head of a dynamic element among `heads` heads: it begins behind them and behind the tails before it."""
    return (_WORD_BYTES * heads + sum(map(len, tails_before))).to_bytes(_WORD_BYTES, "big")
