from __future__ import annotations

from typing import Any

import pytest
import rlp as oracle
from hypothesis import given
from hypothesis import strategies as st

from app.core.rlp import (
    MAX_DEPTH,
    RlpError,
    decode,
    encode,
    encode_bytes,
    encode_int,
    encode_list_of_encoded,
    encode_uint,
    split_list,
    string_of,
)

_strings = st.one_of(st.binary(max_size=3), st.binary(max_size=70), st.binary(min_size=250, max_size=300))
_items = st.recursive(_strings, lambda inner: st.lists(inner, max_size=6), max_leaves=20)


@given(_items)
def test_encoding_agrees_with_another_implementation(item: Any) -> None:
    encoded = encode(item)
    assert encoded == oracle.encode(item)
    assert decode(encoded) == item


@given(st.integers(min_value=0, max_value=2**300))
def test_numbers_are_minimal_big_endian(number: int) -> None:
    assert encode_uint(number) == oracle.encode(number) == encode_bytes(encode_int(number))


def test_zero_is_the_empty_string_and_never_a_zero_byte() -> None:
    assert encode_int(0) == b""
    assert encode_uint(0) == b"\x80"


@pytest.mark.parametrize("encode_number", [encode_int, encode_uint])
def test_negative_numbers_have_no_encoding(encode_number: Any) -> None:
    with pytest.raises(ValueError, match="negative"):
        encode_number(-1)


@pytest.mark.parametrize("size", [0, 1, 55, 56, 255, 256, 65535, 65536])
def test_lengths_at_every_border(size: int) -> None:
    assert encode_bytes(b"\xff" * size) == oracle.encode(b"\xff" * size)
    assert encode_list_of_encoded([b"\x01"] * size) == oracle.encode([1] * size)
    assert decode(encode_bytes(b"\xff" * size)) == b"\xff" * size


@given(st.lists(_items, max_size=8))
def test_a_list_splits_into_its_encoded_items(items: list[Any]) -> None:
    assert split_list(encode(items)) == [encode(item) for item in items]


@given(_strings)
def test_the_string_of_an_item(data: bytes) -> None:
    assert string_of(encode_bytes(data)) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x81\x01",  # one byte below 0x80 needs no header
        b"\x81\x7f",
        b"\x82\x01",  # cut short
        b"\xb8",  # no length
        b"\xb8\x01\xff",  # a long length for a short string
        b"\xb8\x37" + b"\x00" * 55,
        b"\xb9\x00\x38" + b"\x00" * 56,  # a length with a leading zero
        b"\xb9\x01",
        b"\xbf" + b"\xff" * 8,
        b"\xc1",  # cut short
        b"\xc2\x01",
        b"\xc1\x82",  # an item that leaves its list
        b"\xf8\x00",
        b"\xf8\x37" + b"\x00" * 55,
        b"\xff" + b"\xff" * 8,
        b"\x01\x02",  # two items
        b"\xc0\xc0",
        b"\x80\x00",
    ],
)
def test_any_other_spelling_is_refused(data: bytes) -> None:
    with pytest.raises(RlpError):
        decode(data)


@given(st.binary(max_size=40))
def test_whatever_is_accepted_is_the_canonical_encoding(data: bytes) -> None:
    try:
        item = decode(data)
    except RlpError:
        return
    assert encode(item) == data


def test_nesting_is_bounded() -> None:
    nested: Any = []
    for _ in range(MAX_DEPTH - 1):
        nested = [nested]
    assert decode(encode(nested)) == nested
    deep = b"\xc0"
    for _ in range(10_000):
        deep = encode_list_of_encoded([deep])
    with pytest.raises(RlpError):
        decode(deep)


@pytest.mark.parametrize("data", [b"\x80", b"\x01", b"\xc1\x01\x01", b"\xc2\x81\x01", b""])
def test_only_one_whole_list_is_split(data: bytes) -> None:
    with pytest.raises(RlpError):
        split_list(data)


@pytest.mark.parametrize("data", [b"\xc0", b"\x80\x80", b""])
def test_only_one_whole_string_is_unwrapped(data: bytes) -> None:
    with pytest.raises(RlpError):
        string_of(data)
