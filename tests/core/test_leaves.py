from __future__ import annotations

import json
from typing import Any

import eth_abi
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import abi
from app.core.errors import ContentInvalid, UnsupportedBlockFormat
from app.core.leaves import encode_leaf
from app.core.merkle import leaf_hash
from app.core.receipts import Log, Receipt, decode_receipt
from app.core.rpc_json import RpcReceipt, RpcTransaction
from app.core.transactions import Authorization, Deposit, Transaction, UnsupportedType, decode_transaction
from tests import reference
from tests.corpus_files import VECTORS

ENCODED = sorted((VECTORS / "usc").glob("enc_*.json"))
SENDER = bytes.fromhex("5e" * 20)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def _load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((VECTORS / "usc" / name).read_text(encoding="utf-8"))
    return loaded


def _receipt(**fields: Any) -> Receipt:
    given: dict[str, Any] = {
        "type": 2,
        "status": 1,
        "post_state": None,
        "cumulative_gas_used": 50_000,
        "logs_bloom": bytes(256),
        "logs": (),
    }
    return Receipt(**{**given, **fields})


def _transaction(**fields: Any) -> Transaction:
    given: dict[str, Any] = {"type": 2, "hash": bytes(32), "envelope": b"\x02", "chain_id": 1, "to": bytes(20)}
    return Transaction(**{**given, **fields})


# --- published leaves -----------------------------------------------------------------------------------------------


def test_the_vectors_cover_every_type() -> None:
    types = {int(_load(path.name)["tx"]["type"], 16) for path in ENCODED if "tx" in _load(path.name)}
    assert types == {0, 1, 2, 3, 4}
    assert len(ENCODED) == 11


@pytest.mark.parametrize("name", [path.name for path in ENCODED if "20_op_deposit" not in path.name])
def test_leaf_meets_the_published_bytes(name: str) -> None:
    vector = _load(name)
    rpc = msgspec.json.decode(json.dumps(vector["tx"]), type=RpcTransaction)
    tx = decode_transaction(rpc, "ethereum", 1)
    receipt = decode_receipt(msgspec.json.decode(json.dumps(vector["receipt"]), type=RpcReceipt), tx.type)
    gas_used = int(vector["receipt"]["gasUsed"], 16)
    leaf = encode_leaf(tx, receipt, _bytes(vector["tx"]["from"]), gas_used)
    assert leaf.hex() == _bytes(vector["encoded"]).hex()
    assert leaf_hash(leaf) == _bytes(vector["leaf_hash"])
    assert reference.leaf(tx, receipt, _bytes(vector["tx"]["from"]), gas_used) == leaf


def test_deposit_leaf_meets_the_published_bytes() -> None:
    vector = _load("enc_20_op_deposit_own.json")
    fields = vector["fields"]
    tx = _transaction(
        type=126,
        to=_bytes(fields["to"]),
        gas_limit=fields["gas"],
        value=fields["value"],
        input=_bytes(fields["input"]),
        deposit=Deposit(_bytes(fields["sourceHash"]), _bytes(fields["from_"]), fields["mint"], fields["isSystemTx"]),
    )
    receipt = _receipt(
        type=126,
        status=fields["status"],
        deposit_nonce=fields["depositNonce"],
        deposit_receipt_version=fields["depositReceiptVersion"],
    )
    leaf = encode_leaf(tx, receipt, _bytes(fields["from_"]), fields["gasUsed"])
    assert leaf.hex() == _bytes(vector["encoded"]).hex()
    assert leaf_hash(leaf) == _bytes(vector["leaf_hash"])


# --- the encoding, against eth-abi ----------------------------------------------------------------------------------


def _ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1) | st.sampled_from([0, 1, (1 << bits) - 1])


u8, u64, u128, u256 = _ints(8), _ints(64), _ints(128), _ints(256)
addresses = st.binary(min_size=20, max_size=20)
hashes = st.binary(min_size=32, max_size=32)
hash_tuples = st.lists(hashes, max_size=4).map(tuple)
data = st.binary(max_size=70)
logs = st.lists(st.builds(Log, address=addresses, topics=hash_tuples, data=data), max_size=4).map(tuple)
authorizations = st.builds(Authorization, chain_id=u256, address=addresses, nonce=u64, y_parity=u8, r=u256, s=u256)

transactions = st.builds(
    Transaction,
    type=st.sampled_from([0, 1, 2, 3, 4, 126]),
    hash=hashes,
    envelope=st.just(b""),
    nonce=u64,
    gas_limit=u64,
    to=st.just(b"") | addresses,
    value=u256,
    input=data,
    gas_price=u128,
    max_priority_fee_per_gas=u128,
    max_fee_per_gas=u128,
    max_fee_per_blob_gas=u256,
    chain_id=u64,
    access_list=st.lists(st.tuples(addresses, hash_tuples), max_size=3).map(tuple),
    blob_versioned_hashes=hash_tuples,
    authorization_list=st.lists(authorizations, max_size=3).map(tuple),
    v=u256,
    y_parity=u8,
    r=u256,
    s=u256,
    deposit=st.builds(
        Deposit, source_hash=hashes, sender=addresses, mint=u256, is_system_tx=st.booleans(), nonce=st.none()
    ),
)
receipts = st.builds(
    Receipt,
    type=st.just(0),
    status=st.none() | u8,
    post_state=st.none(),
    cumulative_gas_used=u64,
    logs_bloom=st.binary(min_size=256, max_size=256),
    logs=logs,
    deposit_nonce=u64,
    deposit_receipt_version=st.sampled_from([None, 0, 1]),
)


@given(transactions, receipts, addresses, u64)
def test_leaf_is_what_eth_abi_encodes(tx: Transaction, receipt: Receipt, sender: bytes, gas_used: int) -> None:
    assert encode_leaf(tx, receipt, sender, gas_used) == reference.leaf(tx, receipt, sender, gas_used)


@given(st.lists(st.binary(max_size=100), max_size=6), st.lists(hashes, max_size=6))
def test_pieces_are_what_eth_abi_encodes(items: list[bytes], words: list[bytes]) -> None:
    encoded = abi.dynamic_array([abi.dynamic_bytes(item) for item in items])
    assert abi.offset(1) + encoded == eth_abi.encode(["bytes[]"], [items])
    assert abi.offset(1) + abi.bytes32_array(words, "words") == eth_abi.encode(["bytes32[]"], [words])
    assert abi.offset(1) + abi.static_array(words) == eth_abi.encode(["bytes32[]"], [words])
    for item in items:
        assert abi.offset(1) + abi.dynamic_bytes(item) == eth_abi.encode(["bytes"], [item])


# --- rules that bite ------------------------------------------------------------------------------------------------


def _words(leaf: bytes, chunk: int) -> list[bytes]:
    (_, chunks) = eth_abi.decode(["uint8", "bytes[]"], leaf)
    return [chunks[chunk][start : start + 32] for start in range(0, len(chunks[chunk]), 32)]


def _status(receipt: Receipt) -> int:
    return int.from_bytes(_words(encode_leaf(_transaction(), receipt, SENDER, 21_000), -1)[0], "big")


def test_receipt_without_a_status_counts_as_success() -> None:
    assert _status(_receipt(status=None, post_state=bytes(32))) == 1
    assert _status(_receipt(status=0)) == 0
    assert _status(_receipt(status=1)) == 1


def test_creation_has_the_flag_and_the_zero_address() -> None:
    created = _words(encode_leaf(_transaction(to=b""), _receipt(), SENDER, 0), 0)
    called = _words(encode_leaf(_transaction(to=bytes(20)), _receipt(), SENDER, 0), 0)
    assert (created[3][-1], created[4]) == (1, bytes(32))
    assert (called[3][-1], called[4]) == (0, bytes(32))


def _nonce(tx: Transaction, receipt: Receipt) -> int:
    return int.from_bytes(_words(encode_leaf(tx, receipt, SENDER, 0), 0)[0], "big")


def test_deposit_nonce_counts_only_with_the_version() -> None:
    deposit = Deposit(bytes(32), SENDER, 0, False)
    tx = _transaction(type=126, chain_id=None, nonce=9, deposit=deposit)
    assert _nonce(tx, _receipt(deposit_nonce=7, deposit_receipt_version=1)) == 7
    assert _nonce(tx, _receipt(deposit_nonce=7, deposit_receipt_version=0)) == 7
    assert _nonce(tx, _receipt(deposit_nonce=7)) == 0
    assert _nonce(tx, _receipt()) == 0


def test_reported_deposit_nonce_may_not_contradict_the_receipt() -> None:
    receipt = _receipt(deposit_nonce=7, deposit_receipt_version=1)
    agreeing = _transaction(type=126, deposit=Deposit(bytes(32), SENDER, 0, False, nonce=7))
    assert _nonce(agreeing, receipt) == 7
    contradicting = _transaction(type=126, deposit=Deposit(bytes(32), SENDER, 0, False, nonce=8))
    with pytest.raises(ContentInvalid, match="deposit_nonce"):
        encode_leaf(contradicting, receipt, SENDER, 0)
    assert _nonce(contradicting, _receipt(deposit_nonce=7)) == 0


def test_authorizations_are_encoded_as_given() -> None:
    odd = Authorization(chain_id=(1 << 256) - 1, address=SENDER, nonce=3, y_parity=255, r=0, s=(1 << 256) - 1)
    tx = _transaction(type=4, authorization_list=(odd,))
    words = _words(encode_leaf(tx, _receipt(), SENDER, 0), 2)
    assert [int.from_bytes(word, "big") for word in words[5:]] == [
        odd.chain_id,
        int(SENDER.hex(), 16),
        3,
        255,
        0,
        odd.s,
    ]


@pytest.mark.parametrize("type_", [5, 0x64, 0x6A, 0x76, 0x7B, 0x7F, 255])
def test_type_without_a_layout_is_refused(type_: int) -> None:
    with pytest.raises(UnsupportedType) as refused:
        encode_leaf(_transaction(type=type_), _receipt(), SENDER, 0)
    assert refused.value.type == type_


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"nonce": 1 << 64}, "nonce"),
        ({"nonce": -1}, "nonce"),
        ({"gas_limit": 1 << 64}, "gas"),
        ({"to": bytes(19)}, "to"),
        ({"value": 1 << 256}, "value"),
        ({"type": 0, "gas_price": 1 << 128}, "gasPrice"),
        ({"type": 0, "v": 1 << 256}, "v"),
        ({"type": 0, "r": 1 << 256}, "r"),
        ({"type": 0, "s": 1 << 256}, "s"),
        ({"type": 1, "chain_id": 1 << 64}, "chainId"),
        ({"type": 1, "chain_id": None}, "chainId"),
        ({"type": 1, "gas_price": 1 << 128}, "gasPrice"),
        ({"type": 1, "y_parity": 256}, "yParity"),
        ({"max_priority_fee_per_gas": 1 << 128}, "maxPriorityFeePerGas"),
        ({"max_fee_per_gas": 1 << 128}, "maxFeePerGas"),
        ({"access_list": ((bytes(21), ()),)}, "accessList"),
        ({"access_list": ((bytes(20), (bytes(31), bytes(33))),)}, "accessList"),
        ({"type": 3, "max_fee_per_blob_gas": 1 << 256}, "maxFeePerBlobGas"),
        ({"type": 3, "blob_versioned_hashes": (bytes(31),)}, "blobVersionedHashes"),
        ({"type": 4, "authorization_list": (Authorization(1 << 256, SENDER, 0, 0, 0, 0),)}, "authorizationList"),
        ({"type": 4, "authorization_list": (Authorization(1, SENDER[1:], 0, 0, 0, 0),)}, "authorizationList"),
        ({"type": 4, "authorization_list": (Authorization(1, SENDER, 1 << 64, 0, 0, 0),)}, "authorizationList"),
        ({"type": 4, "authorization_list": (Authorization(1, SENDER, 0, 256, 0, 0),)}, "authorizationList"),
        ({"type": 126, "deposit": Deposit(bytes(31), SENDER, 0, False)}, "sourceHash"),
        ({"type": 126, "deposit": Deposit(bytes(32), SENDER, 1 << 256, False)}, "mint"),
    ],
)
def test_transaction_beyond_its_words_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedBlockFormat, match=f": {named} "):
        encode_leaf(_transaction(**fields), _receipt(), SENDER, 0)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"status": 256}, "status"),
        ({"logs": (Log(bytes(19), (), b""),)}, "log address"),
        ({"logs": (Log(bytes(20), (bytes(33),), b""),)}, "topics"),
    ],
)
def test_receipt_beyond_its_words_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedBlockFormat, match=f": {named} "):
        encode_leaf(_transaction(), _receipt(**fields), SENDER, 0)


def test_gas_and_sender_beyond_their_words_are_refused() -> None:
    for gas_used in (1 << 64, -1):
        with pytest.raises(UnsupportedBlockFormat, match="gasUsed"):
            encode_leaf(_transaction(), _receipt(), SENDER, gas_used)
    with pytest.raises(UnsupportedBlockFormat, match="from"):
        encode_leaf(_transaction(), _receipt(), SENDER[:-1], 0)
    with pytest.raises(UnsupportedBlockFormat, match=r"no leaf for transaction 0x0{64}: nonce"):
        encode_leaf(_transaction(nonce=1 << 64), _receipt(), SENDER, 0)
