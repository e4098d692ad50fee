"""What clients may write, and what it becomes: before any look-up, and with one canonical form."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api import inputs
from app.core.blocks import BlockRef
from app.core.errors import InvalidParameter
from app.core.finality import Level

HASH = bytes(range(0xA0, 0xC0))


@pytest.mark.parametrize("text", ["0", "007", "1", "18446744073709551615"])
def test_u64_takes_unsigned_64_bit_decimals(text: str) -> None:
    assert inputs.u64("tx_index", text) == int(text)


NO_NUMBERS = [
    "",
    "-1",
    "-4",
    "+1",
    "1e3",
    "1_000",
    " 1",
    "1 ",
    "1\n",
    "1.0",
    "NOT",
    "18446744073709551616",
    "9" * 40,
    "\N{ARABIC-INDIC DIGIT ONE}",
    "\N{SUPERSCRIPT TWO}",
    "\N{FULLWIDTH DIGIT ONE}",
    "0b1",
    "null",
]


@pytest.mark.parametrize("text", [*NO_NUMBERS, "0x10"])
def test_B73_u64_refuses_everything_else(text: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        inputs.u64("tx_index", text)
    assert refused.value.message == "invalid parameter: could not parse tx_index from request path"


@pytest.mark.parametrize(
    ("text", "height"),
    [("1000004", 1000004), ("0xf4244", 1000004), ("0XF4244", 1000004), ("0x0", 0), ("0xffffffffffffffff", 2**64 - 1)],
)
def test_B73_heights_are_decimal_or_hex(text: str, height: int) -> None:
    assert inputs.u64_height("header_number", text) == height


@pytest.mark.parametrize(
    "text", [*NO_NUMBERS, "0x", "0x1_0", "0x10000000000000000", "0xg", "0x-1", "ff", "0x\N{FULLWIDTH DIGIT ONE}"]
)
def test_B73_no_other_height(text: str) -> None:
    with pytest.raises(InvalidParameter):
        inputs.u64_height("header_number", text)


@pytest.mark.parametrize(
    "text",
    [HASH.hex(), "0x" + HASH.hex(), "0X" + HASH.hex().upper(), "0x0x" + HASH.hex(), "0x0X" + HASH.hex().upper()],
)
def test_B73_every_spelling_of_a_hash_is_one_hash(text: str) -> None:
    assert inputs.tx_hash(text) == HASH


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "tx_hash must be 32 bytes, got 0"),
        ("0x", "tx_hash must be 32 bytes, got 0"),
        ("0x" + "ab" * 31, "tx_hash must be 32 bytes, got 31"),
        ("0x" + "ab" * 33, "tx_hash must be 32 bytes, got 33"),
        ("a" * 63, "invalid tx_hash hex: Odd number of digits"),
        ("a" * 65, "invalid tx_hash hex: Odd number of digits"),
        ("0xUNEXPECTED", "invalid tx_hash hex: Invalid character 'U' at position 0"),
        ("ab" * 31 + " a", "invalid tx_hash hex: Invalid character ' ' at position 62"),
        ("ab" * 31 + "a\N{FULLWIDTH DIGIT ONE}", "invalid tx_hash hex: Invalid character '\\uff11' at position 63"),
    ],
)
def test_B73_what_is_no_hash_is_refused_in_the_reference_servers_words(text: str, message: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        inputs.tx_hash(text)
    assert refused.value.message == f"invalid parameter: {message}"


@given(st.text(max_size=80))
def test_any_text_is_a_hash_of_32_bytes_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidParameter):
        assert len(inputs.tx_hash(text)) == 32


@given(st.text(max_size=80))
def test_any_text_names_one_block_or_is_refused(text: str) -> None:
    with contextlib.suppress(InvalidParameter):
        ref = inputs.block_ref(text)
        assert (ref.height is None) != (ref.block_hash is None)


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("0", BlockRef(height=0)),
        ("0x10", BlockRef(height=16)),
        ("9007199254740991", BlockRef(height=2**53 - 1)),
        ("0x1fffffffffffff", BlockRef(height=2**53 - 1)),
        (HASH.hex(), BlockRef(block_hash=HASH)),
        ("0x" + HASH.hex().upper(), BlockRef(block_hash=HASH)),
        ("1" * 64, BlockRef(block_hash=b"\x11" * 32)),
    ],
)
def test_a_block_is_named_by_hash_or_height(text: str, ref: BlockRef) -> None:
    assert inputs.block_ref(text) == ref


@pytest.mark.parametrize(
    "text", [*NO_NUMBERS, "9007199254740992", "0x20000000000000", "0x", "latest", "0x" + "1" * 63, "0x0x" + "1" * 64]
)
def test_B67_no_other_block(text: str) -> None:
    with pytest.raises(InvalidParameter):
        inputs.block_ref(text)


@pytest.mark.parametrize("text", [*NO_NUMBERS, "9007199254740992", "0x1"])
def test_B67_native_positions_stay_below_2_to_53(text: str) -> None:
    with pytest.raises(InvalidParameter):
        inputs.index("i", text)
    assert inputs.index("i", "9007199254740991") == 2**53 - 1


def test_finality_is_one_of_three_levels() -> None:
    assert inputs.level([]) is Level.LATEST
    assert inputs.level(["safe"]) is Level.SAFE
    for strange in (["Finalized"], [""], ["safe", "finalized"]):
        with pytest.raises(InvalidParameter):
            inputs.level(strange)


def test_log_indexes_count_in_the_receipt_unless_told_otherwise() -> None:
    assert not inputs.log_is_block_wide([])
    assert not inputs.log_is_block_wide(["receipt"])
    assert inputs.log_is_block_wide(["block"])
    for strange in (["Block"], [""], ["block", "block"]):
        with pytest.raises(InvalidParameter):
            inputs.log_is_block_wide(strange)


def test_unknown_encodings_are_refused_with_the_known_ones() -> None:
    known = ("nodes", "other")
    assert inputs.encodings(["other", "nodes", "other"], known) == known
    with pytest.raises(InvalidParameter, match="nodes, other, not 'polygon'"):
        inputs.encodings(["nodes", "polygon"], known)


def test_what_a_client_wrote_is_shown_short_and_in_ascii() -> None:
    assert inputs.shown("a\n\N{SNOWMAN}") == "'a\\n\\u2603'"
    assert len(inputs.shown("x" * 5000)) < 100
