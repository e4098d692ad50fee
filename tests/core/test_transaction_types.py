from __future__ import annotations

from typing import Any

import pytest
import rlp as oracle

from app.core.errors import ContentInvalid
from app.core.keccak import keccak
from app.core.transactions import UnsupportedType
from tests.core.node_transactions import decode, first, number
from tests.corpus_files import recorded


@pytest.mark.parametrize("type_", [0x3F, 0x64, 0x65, 0x66, 0x68, 0x69, 0x6A, 0x76, 0x78, 0x7B, 0x7C, 0x7E, 0x7F, 0x05])
def test_B10_a_type_without_a_codec_in_the_family_is_named(type_: int) -> None:
    for family_ in ("ethereum", "polygon", "gnosis", "bsc", "frontier", "hyperliquid", "of-tomorrow"):
        with pytest.raises(UnsupportedType) as caught:
            decode({"hash": "0x" + "00" * 32, "type": hex(type_)}, family_)
        assert caught.value.type == type_


@pytest.mark.parametrize(
    "family_",
    ["ethereum", "op-stack", "celo", "arbitrum", "polygon", "gnosis", "bsc", "tempo", "frontier", "hyperliquid"],
)
@pytest.mark.parametrize("type_", ["0x0", "0x1", "0x2", "0x3", "0x4"])
def test_every_family_has_the_types_of_ethereum(family_: str, type_: str) -> None:
    assert decode(first(type_), family_).type == number(type_)


@pytest.mark.parametrize("family_", ["op-stack", "celo"])
def test_a_deposit_hashes_without_what_a_node_shows_beside(family_: str) -> None:
    given = first("0x7e")
    decoded = decode(given, family_)
    assert decoded.deposit is not None
    assert decoded.deposit.sender == decoded.sender == bytes.fromhex(given["from"][2:])
    assert decoded.deposit.source_hash == bytes.fromhex(given["sourceHash"][2:])
    assert decoded.signing_hash == b""
    beside = given | {"nonce": "0x77", "v": "0x1", "r": "0x2", "s": "0x3", "gasPrice": "0x9", "yParity": "0x1"}
    shown = decode(beside, family_)
    assert shown.envelope == decoded.envelope
    assert shown.deposit is not None
    assert shown.deposit.nonce == 0x77
    bare = {key: value for key, value in given.items() if key not in ("nonce", "isSystemTx", "v", "r", "s", "yParity")}
    without = decode(bare | ({"mint": None} if not number(given["mint"]) else {}), family_)
    assert without.envelope == decoded.envelope
    assert without.deposit is not None
    assert without.deposit.nonce is None


@pytest.mark.parametrize(("mint", "system"), [(0, False), (10**18, False), (0, True)])
def test_a_deposit_agrees_with_another_encoder(mint: int, system: bool) -> None:
    fields = [b"\x5a" * 32, b"\xde" * 20, b"", mint, 5, 1_000_000, int(system), b"\x44"]
    envelope = b"\x7e" + oracle.encode(fields)
    decoded = decode(
        {
            "type": "0x7e",
            "hash": "0x" + keccak(envelope).hex(),
            "sourceHash": "0x" + "5a" * 32,
            "from": "0x" + "de" * 20,
            "to": None,
            "mint": hex(mint),
            "value": "0x5",
            "gas": hex(1_000_000),
            "isSystemTx": system,
            "input": "0x44",
        },
        "op-stack",
    )
    assert decoded.deposit is not None
    assert (decoded.deposit.mint, decoded.deposit.is_system_tx) == (mint, system)
    assert decoded.envelope == envelope


_CELO_MAINNET = {
    "hash": "0x2499b178a0e54fb856354bb53c9cb0fe2d1f70b2e6c876f6470e7a6e5090f3ac",
    "nonce": "0x705",
    "from": "0xefe945ee33ce4ab037ff4d1e1384d0efcd95f37b",
    "to": "0x7a1e295c4babdf229776680c93ed0f73d069abc0",
    "value": "0x0",
    "gasPrice": "0x1ae0426f1",
    "gas": "0x3644c",
    "maxFeePerGas": "0x26442dbed",
    "maxPriorityFeePerGas": "0x4d7ee",
    "input": "0xcac35c7a290decd9548b62a8d60345a988386fc84ba6bc95484008f6362f93160ef3e563",
    "r": "0xaa0cfaa3df893578b3504062b862428f0e4a94046370cf2a4fd6c392c0760dd8",
    "s": "0x1337d022bbb8faed78a9707e6c38d51f575816e7f85aa540f3d37a9081c58a71",
    "v": "0x0",
    "yParity": "0x0",
    "chainId": "0xa4ec",
    "accessList": [],
    "type": "0x7b",
    "feeCurrency": "0x2f25deb3848c207fc8e0c34035b3ba7fc157602b",
}
"""A transaction of block 32460725 of Celo."""


def test_a_celo_transaction_names_the_currency_of_its_fees() -> None:
    assert decode(_CELO_MAINNET, "celo", 42220).chain_id == 42220
    for change in ({"feeCurrency": None}, {"feeCurrency": "0x" + "11" * 20}):
        with pytest.raises(ContentInvalid):
            decode(_CELO_MAINNET | change, "celo", 42220)


def _arbitrum(type_: int, fields: list[Any], **given: Any) -> tuple[dict[str, Any], bytes]:
    envelope = bytes((type_,)) + oracle.encode(fields)
    shown = {"hash": "0x" + keccak(envelope).hex(), "type": hex(type_), "chainId": "0xa4b1", "from": "0x" + "f0" * 20}
    # Nodes show every common field, hashed or not.
    shown |= {"nonce": "0x0", "gas": "0x0", "gasPrice": "0x77", "value": "0x0", "to": None, "input": "0x"}
    shown |= {"v": "0x0", "r": "0x0", "s": "0x0"}
    return shown | given, envelope


_ID, _TICKET, _FROM, _TO, _REFUND, _BENEFICIARY = (
    b"\x01" * 32,
    b"\x02" * 32,
    b"\xf0" * 20,
    b"\x11" * 20,
    b"\x22" * 20,
    b"\x33" * 20,
)


def _x(value: bytes) -> str:
    return "0x" + value.hex()


@pytest.mark.parametrize(
    ("type_", "fields", "given"),
    [
        (0x64, [42161, _ID, _FROM, _TO, 10**18], {"requestId": _x(_ID), "to": _x(_TO), "value": hex(10**18)}),
        (
            0x65,
            [42161, _FROM, 3, 100, 21000, b"", 5, b"\xaa"],
            {"nonce": "0x3", "maxFeePerGas": "0x64", "gas": "0x5208", "value": "0x5", "input": "0xaa"},
        ),
        (
            0x66,
            [42161, _ID, _FROM, 100, 21000, _TO, 5, b"\xaa"],
            {
                "requestId": _x(_ID),
                "maxFeePerGas": "0x64",
                "gas": "0x5208",
                "to": _x(_TO),
                "value": "0x5",
                "input": "0xaa",
            },
        ),
        (
            0x68,
            [42161, 1, _FROM, 100, 21000, _TO, 5, b"\xaa", _TICKET, _REFUND, 9, 0],
            {
                "nonce": "0x1",
                "maxFeePerGas": "0x64",
                "gas": "0x5208",
                "to": _x(_TO),
                "value": "0x5",
                "input": "0xaa",
                "ticketId": _x(_TICKET),
                "refundTo": _x(_REFUND),
                "maxRefund": "0x9",
                "submissionFeeRefund": "0x0",
            },
        ),
        (
            0x69,
            [42161, _ID, _FROM, 7, 10**18, 100, 21000, _TO, 5, _BENEFICIARY, 8, _REFUND, b"\xbb\xcc"],
            {
                "requestId": _x(_ID),
                "l1BaseFee": "0x7",
                "depositValue": hex(10**18),
                "maxFeePerGas": "0x64",
                "gas": "0x5208",
                "retryTo": _x(_TO),
                "retryValue": "0x5",
                "beneficiary": _x(_BENEFICIARY),
                "maxSubmissionFee": "0x8",
                "refundTo": _x(_REFUND),
                "retryData": "0xbbcc",
                "to": "0x000000000000000000000000000000000000006e",
                "input": "0xc9f95d32",
            },
        ),
        (0x6A, [42161, b"\x6b\xf6"], {"input": "0x6bf6", "to": "0x00000000000000000000000000000000000a4b05"}),
    ],
)
def test_arbitrum_transactions_agree_with_another_encoder(type_: int, fields: list[Any], given: dict[str, Any]) -> None:
    shown, envelope = _arbitrum(type_, fields, **given)
    decoded = decode(shown, "arbitrum", 42161)
    assert decoded.envelope == envelope
    assert decoded.signing_hash == b""
    assert decoded.sender == (_FROM if type_ != 0x6A else bytes.fromhex("00000000000000000000000000000000000a4b05"))
    for name in ("requestId", "ticketId", "refundTo", "retryData", "beneficiary"):
        if name in given:
            with pytest.raises(ContentInvalid):
                decode(shown | {name: {"odd": 1}}, "arbitrum", 42161)


def test_a_retryable_that_creates_a_contract() -> None:
    shown, envelope = _arbitrum(
        0x69,
        [42161, _ID, _FROM, 7, 0, 100, 21000, b"", 0, _BENEFICIARY, 8, _REFUND, b""],
        requestId=_x(_ID),
        l1BaseFee="0x7",
        depositValue="0x0",
        maxFeePerGas="0x64",
        gas="0x5208",
        retryValue="0x0",
        beneficiary=_x(_BENEFICIARY),
        maxSubmissionFee="0x8",
        refundTo=_x(_REFUND),
    )
    assert decode(shown, "arbitrum", 42161).envelope == envelope


def test_a_classic_arbitrum_transaction_counts_only_if_it_hashes() -> None:
    given = {**first("0x0"), "type": "0x78"}
    decoded = decode(given, "arbitrum", 42161)
    assert decoded.type == 0x78
    assert decoded.envelope == decode(first("0x0")).envelope
    with pytest.raises(UnsupportedType):
        decode(given | {"hash": "0x" + "34" * 32}, "arbitrum", 42161)


def test_tempo_transactions_under_an_access_key_grant_are_unsupported_not_wrong() -> None:
    entries = recorded("nonstandard", "tempo-mainnet_17708868")["block"]["transactions"]
    plain, granted = (entry for entry in entries if entry["type"] == "0x76")
    assert decode(plain, "tempo", 4217).type == 0x76
    for unsupported in (
        granted,
        plain | {"nonce": "0x1"},
        plain | {"signature": {"type": "new", "r": "0x1", "s": "0x1"}},
    ):
        with pytest.raises(UnsupportedType):
            decode(unsupported, "tempo", 4217)


@pytest.mark.parametrize(
    "change",
    [
        {"calls": None},
        {"calls": "0x"},
        {"calls": [1]},
        {"calls": [{"to": 5}]},
        {"calls": [{"to": None, "value": "0x0", "input": ["0x"]}]},
        {"nonceKey": None},
        {"validBefore": hex(2**64)},
        {"feeToken": "0x12"},
        {"signature": None},
        {"signature": "0x12"},
        {"signature": {"type": "secp256k1", "r": "0x1", "s": "0x1"}},
        {"signature": {"userAddress": "0x" + "11" * 20, "signature": 3}},
    ],
)
def test_broken_fields_of_a_tempo_transaction_are_the_nodes_fault(change: dict[str, Any]) -> None:
    entries = recorded("nonstandard", "tempo-mainnet_17708868")["block"]["transactions"]
    plain = next(entry for entry in entries if entry["type"] == "0x76")
    with pytest.raises(ContentInvalid) as caught:
        decode(plain | change, "tempo", 4217)
    assert caught.value.check == "decode"
