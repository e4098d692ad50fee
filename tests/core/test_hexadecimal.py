from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.hexadecimal import encode_quantity, from_hex, from_hex_exact, parse_hash, parse_quantity, to_hex


@given(st.binary(max_size=80))
def test_bytes_survive_hex(data: bytes) -> None:
    text = to_hex(data)
    assert text == "0x" + data.hex()
    assert from_hex(text) == from_hex(text[2:]) == from_hex("0X" + text[2:].upper()) == data
    assert from_hex_exact(text, len(data)) == data


@pytest.mark.parametrize(
    "text",
    ["0x0", "0xabc", "0xzz", "0x 12", "12 34", "0x12\n", "0x1_2", "0x\u0661\u0662", "\uff11\uff12", "0x0x12", "x12"],
)
def test_what_is_not_whole_bytes_of_hex_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)hex|ascii|odd"):
        from_hex(text)


@pytest.mark.parametrize("size_bytes", [0, 19, 21, 40])
def test_an_address_has_twenty_bytes(size_bytes: int) -> None:
    with pytest.raises(ValueError, match="20 belong"):
        from_hex_exact("0x" + "11" * size_bytes, 20)


@given(st.integers(min_value=0, max_value=2**256 - 1), st.integers(min_value=0, max_value=70))
def test_B34_every_spelling_of_a_quantity_is_the_same_number(number: int, zeros: int) -> None:
    digits = f"{number:x}"
    for spelled in (f"0x{digits}", f"0x{'0' * zeros}{digits}", f"0X{digits.upper()}", str(number), number):
        assert parse_quantity(spelled) == number


def test_B34_the_prefix_decides_whether_a_quantity_is_hex() -> None:
    assert parse_quantity("10") == 10
    assert parse_quantity("0x10") == 16
    assert parse_quantity("0x") == 0
    assert parse_quantity(True) == 1
    assert parse_quantity(False) == 0


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, 2**63, 2**64, 2**70, 2**256 - 1])
def test_B67_numbers_beyond_53_bits_stay_exact(number: int) -> None:
    assert parse_quantity(number) == parse_quantity(hex(number)) == parse_quantity(str(number)) == number


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        " ",
        "abc",
        "0x-1",
        "-1",
        "+1",
        "-0x1",
        "0x+1",
        "0x_1",
        "1_000",
        "0x 1",
        " 1",
        "1 ",
        "1.0",
        "1e3",
        "1.18e21",
        "0xg",
        "0x0x1",
        "\u0661",
        "0x\u0661",
        "\uff11",
        "9" * 5000,
        -1,
        1.0,
        1.18e21,
        [],
        {},
        b"\x01",
    ],
)
def test_B67_what_is_not_one_exact_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"quantity|digits"):
        parse_quantity(value)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0x0"),
        (15, "0xf"),
        (16, "0x10"),
        (255, "0xff"),
        (256, "0x100"),
        (0x07D6D1, "0x7d6d1"),
        (2**64, "0x1" + "0" * 16),
    ],
)
def test_B33_a_quantity_is_sent_without_leading_zeros(number: int, text: str) -> None:
    assert encode_quantity(number) == text


def test_B33_no_negative_quantity_is_sent() -> None:
    with pytest.raises(ValueError, match="never negative"):
        encode_quantity(-1)


@given(st.binary(min_size=32, max_size=32))
def test_a_client_may_write_a_hash_with_or_without_prefix_in_any_case(digest: bytes) -> None:
    for text in (digest.hex(), "0x" + digest.hex(), "0X" + digest.hex().upper()):
        assert parse_hash(text) == digest


@pytest.mark.parametrize(
    "text", ["", "0x", "ab" * 31, "ab" * 33, "0x" + "ab" * 31 + "zz", "\uff11" * 64, " " + "ab" * 32, "ab" * 32 + "\n"]
)
def test_what_is_not_64_ascii_hex_digits_is_no_hash(text: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)hex|ascii|odd|belong"):
        parse_hash(text)
