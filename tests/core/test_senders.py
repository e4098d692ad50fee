from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coincurve import PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.errors import ContentInvalid
from app.core.keccak import keccak
from app.core.rpc_json import decode_block
from app.core.rpc_transaction import RpcTransaction
from app.core.senders import recover_sender
from app.core.transactions import Transaction, UnsupportedType, decode_transaction
from tests.core.node_transactions import decode, first
from tests.corpus_files import block_json, family, files, label, load, recorded

_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@pytest.mark.parametrize("path", files("full", "contiguous", "block-only"), ids=label)
def test_every_recorded_sender_is_recovered(path: Path) -> None:
    record = load(path)
    for entry in decode_block(block_json(record)).transactions:
        assert isinstance(entry, RpcTransaction)
        transaction = decode_transaction(entry, family(record), record["chainId"] or 0)
        assert "0x" + recover_sender(transaction).hex() == (entry.from_hex or "").lower()


def _from_another(type_: str) -> dict[str, Any]:
    return first(type_) | {"from": "0x" + "66" * 20}


@pytest.mark.parametrize("type_", ["0x0", "0x1", "0x2", "0x3", "0x4"])
def test_what_the_node_says_about_the_sender_is_not_believed(type_: str) -> None:
    assert recover_sender(decode(_from_another(type_))) == bytes.fromhex(first(type_)["from"][2:])


@settings(max_examples=25)
@given(
    secret=st.integers(1, _ORDER - 1),
    v_base=st.sampled_from([27, 35, 35 + 2 * 1001]),
)
def test_a_legacy_sender_before_and_after_eip155(secret: int, v_base: int) -> None:
    key = PrivateKey.from_int(secret)
    digest = keccak(b"anything")
    signature = key.sign_recoverable(digest, hasher=None)
    transaction = Transaction(
        type=0,
        hash=bytes(32),
        envelope=b"",
        v=v_base + signature[64],
        y_parity=signature[64],
        r=int.from_bytes(signature[:32], "big"),
        s=int.from_bytes(signature[32:64], "big"),
        signing_hash=digest,
    )
    sender = keccak(key.public_key.format(compressed=False)[1:])[12:]
    assert recover_sender(transaction) == sender
    # Before Homestead, the mirrored signature was as good.
    mirrored = replace(transaction, s=_ORDER - transaction.s, y_parity=1 - transaction.y_parity)
    assert recover_sender(mirrored) == sender


@pytest.mark.parametrize(
    "change",
    [
        {"r": 0},
        {"s": 0},
        {"r": _ORDER},
        {"s": _ORDER},
        {"r": 2**256 - 1},
        {"y_parity": 2},
        {"y_parity": 27},
        {"y_parity": 300},
        {"r": 5},  # no point of the curve has this x
        {"signing_hash": b""},
    ],
)
def test_a_signature_of_no_key_has_no_sender(change: dict[str, Any]) -> None:
    with pytest.raises(ContentInvalid) as caught:
        recover_sender(replace(decode(first("0x2")), **change))
    assert caught.value.check == "signature"


@pytest.mark.parametrize(("type_", "family_"), [("0x7e", "op-stack"), ("0x6a", "arbitrum")])
def test_an_unsigned_transaction_names_its_sender(type_: str, family_: str) -> None:
    given_ = first(type_)
    assert "0x" + recover_sender(decode(given_, family_)).hex() == given_["from"].lower()


def test_a_type_with_signatures_of_other_schemes_is_unsupported() -> None:
    entries = recorded("nonstandard", "tempoModerato_6000178")["block"]["transactions"]
    transaction = decode(next(entry for entry in entries if entry["type"] == "0x76"), "tempo", 42431)
    with pytest.raises(UnsupportedType):
        recover_sender(transaction)


def test_system_transactions_without_a_signature_have_no_sender() -> None:
    (given_,) = recorded("nonstandard", "stable_13683593")["block"]["transactions"]
    with pytest.raises(ContentInvalid):
        recover_sender(decode(given_, "frontier", 988))
