"""Recursive Length Prefix (Yellow Paper, appendix B): the only serialisation that a block hash knows.

Encoders come in two layers: `encode` for a nested structure, and the pieces below it for hot paths that assemble a
list from items which are encoded already. Decoding is strict: a second spelling of the same item is refused, since it
hashes differently.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, Union

Item: TypeAlias = Union[bytes, "list[Item]"]
Encodable: TypeAlias = Union[bytes, "list[Encodable]", "tuple[Encodable, ...]"]

MAX_DEPTH = 128
"""Nothing in a block nests deeper than a handful of lists; without a bound, a few kilobytes could exhaust the stack."""

EMPTY_STRING = b"\x80"
EMPTY_LIST = b"\xc0"

_BYTE = [bytes((value,)) for value in range(256)]
_STRING_HEADER = _BYTE[0x80:0xB8]
_LIST_HEADER = _BYTE[0xC0:0xF8]


class RlpError(ValueError):
    """Bytes that are not the canonical encoding of one item."""


def encode_int(number: int) -> bytes:
    """The minimal big-endian bytes of a number, as the scalar of an item: zero is the empty string. Raises ValueError
    below zero.
    """
    if number < 0:
        raise ValueError("RLP has no negative numbers")
    return number.to_bytes((number.bit_length() + 7) >> 3, "big")


def encode_uint(number: int) -> bytes:
    """The encoded item of a number: `encode(encode_int(number))`."""
    if number < 0x80:
        if number > 0:
            return _BYTE[number]
        if number == 0:
            return EMPTY_STRING
    return encode_bytes(encode_int(number))


def encode_bytes(data: bytes) -> bytes:
    """The encoded item of a byte string."""
    size = len(data)
    if size < 56:
        if size == 1 and data[0] < 0x80:
            return data
        return _STRING_HEADER[size] + data
    length = encode_int(size)
    return _BYTE[0xB7 + len(length)] + length + data


def encode_list_of_encoded(items: Iterable[bytes]) -> bytes:
    """The encoded list of items that are encoded already."""
    payload = b"".join(items)
    size = len(payload)
    if size < 56:
        return _LIST_HEADER[size] + payload
    length = encode_int(size)
    return _BYTE[0xF7 + len(length)] + length + payload


def encode(item: Encodable) -> bytes:
    """The encoding of a byte string, or of a list of encodable items at any depth."""
    if isinstance(item, bytes):
        return encode_bytes(item)
    return encode_list_of_encoded([encode(child) for child in item])


def decode(data: bytes) -> Item:
    """The one item that `data` encodes: bytes, or nested lists of bytes. Raises RlpError for trailing bytes, for any
    spelling that is not the shortest, and beyond `MAX_DEPTH` levels.
    """
    item, end = _decode_at(data, 0, len(data), MAX_DEPTH)
    if end != len(data):
        raise RlpError("bytes after the item")
    return item


def split_list(data: bytes, most: int | None = None) -> list[bytes]:
    """The items of the list that `data` encodes, each still encoded: one level, however much is in them.

    Raises RlpError, also for more than `most` items: bytes from strangers can hold a million of them.
    """
    is_list, start, end = _header(data, 0, len(data))
    if not is_list:
        raise RlpError("a string where a list belongs")
    if end != len(data):
        raise RlpError("bytes after the list")
    items: list[bytes] = []
    while start < end:
        if most is not None and len(items) == most:
            raise RlpError(f"a list of more than {most} items")
        item_end = _header(data, start, end)[2]
        items.append(data[start:item_end])
        start = item_end
    return items


def string_of(data: bytes) -> bytes:
    """The byte string that `data` encodes. Raises RlpError for a list."""
    is_list, start, end = _header(data, 0, len(data))
    if is_list or end != len(data):
        raise RlpError("not one string")
    return data[start:end]


def _header(data: bytes, at: int, limit: int) -> tuple[bool, int, int]:
    """(is it a list, where its payload starts, where it ends) of the item at `at`, which must lie below `limit`."""
    if at >= limit:
        raise RlpError("an item is missing")
    first = data[at]
    if first < 0x80:
        return False, at, at + 1
    is_list = first >= 0xC0
    size = first - (0xC0 if is_list else 0x80)
    start = at + 1
    if size > 55:
        start += size - 55
        length = data[at + 1 : start]
        if start > limit or length[0] == 0:
            raise RlpError("a length that is cut short, or has leading zeros")
        size = int.from_bytes(length, "big")
        if size < 56:
            raise RlpError("a long length for a short item")
    end = start + size
    if end > limit:
        raise RlpError("an item longer than what holds it")
    if size == 1 and not is_list and data[start] < 0x80:
        raise RlpError("a header before a byte that needs none")
    return is_list, start, end


def _decode_at(data: bytes, at: int, limit: int, depth: int) -> tuple[Item, int]:
    is_list, start, end = _header(data, at, limit)
    if not is_list:
        return data[start:end], end
    if depth == 0:
        raise RlpError(f"lists nested more than {MAX_DEPTH} deep")
    items: list[Item] = []
    while start < end:
        item, start = _decode_at(data, start, end, depth - 1)
        items.append(item)
    return items, end
