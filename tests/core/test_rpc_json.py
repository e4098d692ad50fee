from __future__ import annotations

import json
from typing import Any

import pytest

from app.core import trie
from app.core.blocks import BlockName, Position
from app.core.errors import ContentInvalid, TxNotMined
from app.core.hexadecimal import from_hex
from app.core.rpc_json import (
    decode_block,
    decode_block_name,
    decode_position,
    decode_receipts,
    field_names,
    withdrawals_leaves,
)
from app.core.rpc_transaction import RpcTransaction, UnreadableTransaction
from tests.corpus_files import block_json, family, files, fixtures, label, load, recorded

_HASH = "0x" + "ab" * 32


def _block(**changes: Any) -> bytes:
    block = dict(fixtures()["mixed3"]["block"])
    block.update(changes)
    return json.dumps(block).encode()


def test_transactions_are_whole_or_hashes() -> None:
    block = decode_block(_block())
    first = block.transactions[0]
    assert isinstance(first, RpcTransaction)
    hashes = [entry.hash for entry in block.transactions if isinstance(entry, RpcTransaction)]
    named = decode_block(_block(transactions=["0x" + each.hex() for each in hashes]))
    assert named.transactions == hashes


def test_identity_of_a_transaction_and_of_a_receipt() -> None:
    fixture = fixtures()["mixed3"]
    for index, entry in enumerate(decode_block(_block()).transactions):
        assert isinstance(entry, RpcTransaction)
        assert "0x" + entry.hash.hex() == fixture["block"]["transactions"][index]["hash"]
        assert entry.block_hash is not None
        assert "0x" + entry.block_hash.hex() == fixture["block"]["hash"]
        assert entry.transaction_index == index
    for index, receipt in enumerate(decode_receipts(json.dumps(fixture["receipts"]).encode())):
        assert receipt.transaction_index == index
        assert receipt.transaction_hash is not None
        assert receipt.foreign_block(from_hex(fixture["block"]["hash"])) is None
        assert receipt.foreign_block(bytes(31) + b"\x01") == fixture["block"]["hash"]


@pytest.mark.parametrize("empty", [None, "", "0x", "0x0", "0X00", "0x" + "00" * 32, 0, False])
def test_an_empty_block_hash_of_a_stored_log_is_no_block_hash(empty: object) -> None:
    log = {"address": "0x" + "11" * 20, "topics": [], "data": "0x", "blockHash": empty}
    told = {"cumulativeGasUsed": "0x1", "status": "0x1", "logs": [log], "blockHash": empty, "transactionHash": empty}
    (receipt,) = decode_receipts(json.dumps([told]).encode())
    assert receipt.foreign_block(b"\x11" * 32) is None
    assert receipt.transaction_hash is None
    assert receipt.transaction_index is None
    (other,) = decode_receipts(json.dumps([told | {"logs": [log | {"blockHash": "0x" + "22" * 32}]}]).encode())
    assert other.foreign_block(b"\x11" * 32) == "0x" + "22" * 32


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("blockHash", "0x12"),
        ("blockHash", "0x" + "zz" * 32),
        ("hash", "0x1"),
        ("hash", 7),
    ],
)
def test_a_broken_name_is_the_nodes_fault(field: str, value: str) -> None:
    transaction = dict(fixtures()["mixed3"]["block"]["transactions"][0]) | {field: value}
    (entry,) = decode_block(_block(transactions=[transaction])).transactions
    assert isinstance(entry, RpcTransaction)
    with pytest.raises(ContentInvalid):
        _ = (entry.hash, entry.block_hash)


@pytest.mark.parametrize("value", [hex(2**64), "first", -1, [], {}, 1.5])
def test_an_index_that_cannot_be_read_is_none(value: object) -> None:
    transaction = dict(fixtures()["mixed3"]["block"]["transactions"][0]) | {"transactionIndex": value}
    (entry,) = decode_block(_block(transactions=[transaction])).transactions
    assert isinstance(entry, RpcTransaction)
    assert entry.transaction_index is None


@pytest.mark.parametrize(
    ("entry", "hash_", "type_"),
    [
        (1, None, 0),
        ([], None, 0),
        (None, None, 0),
        ("0x12", None, 0),
        ("zz" * 32, None, 0),
        ({"hash": _HASH, "type": "0x2", "accessList": "0x"}, _HASH, 2),
        ({"hash": _HASH, "type": "0x55", "to": 5, "calls": [[[]]]}, _HASH, 0x55),
    ],
)
def test_a_transaction_that_cannot_be_read_does_not_hide_the_others(
    entry: object, hash_: str | None, type_: int
) -> None:
    whole = fixtures()["mixed3"]["block"]["transactions"][0]
    first, second, third = decode_block(_block(transactions=[whole, entry, _HASH])).transactions
    assert isinstance(first, RpcTransaction)
    assert not isinstance(first, UnreadableTransaction)
    assert isinstance(second, UnreadableTransaction)
    assert second.hash == (None if hash_ is None else from_hex(hash_))
    assert second.type == type_
    assert second.fault
    assert third == from_hex(_HASH)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b'"0x"',
        b"{",
        b"\xff\xfe",
        b"<html>502 Bad Gateway</html>",
        b'{"transactions":[],"number":1.18e21}',
        b'{"transactions":[],"number":1e3}',
        b'{"transactions":[],"number":1.0}',
        b'{"transactions":[],"number":' + b"9" * 5000 + b"}",
        b'{"transactions":[],"hash":{}}',
        b'{"transactions":[],"hash":"\\ud800"}',
        b'{"transactions":[],"withdrawals":[1]}',
        b'{"transactions":[],"extra":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 100_000,
    ],
)
def test_what_is_no_block_is_the_nodes_fault_and_never_a_crash(raw: bytes) -> None:
    with pytest.raises(ContentInvalid):
        decode_block(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"{}",
        b"[1]",
        b"[null]",
        b"[{}]",
        b'[{"cumulativeGasUsed":"0x1","logs":[null]}]',
        b'[{"cumulativeGasUsed":"0x1","logs":[{}]}]',
        b'[{"cumulativeGasUsed":1.5}]',
        b'[{"cumulativeGasUsed":"0x1","logs":' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
    ],
)
def test_what_are_no_receipts_is_the_nodes_fault_and_never_a_crash(raw: bytes) -> None:
    with pytest.raises(ContentInvalid):
        decode_receipts(raw)


def test_a_missing_answer_says_what_was_null() -> None:
    with pytest.raises(ContentInvalid) as caught:
        decode_block(b"null")
    assert caught.value.check == "null_block"
    with pytest.raises(ContentInvalid) as caught:
        decode_receipts(b"null")
    assert caught.value.check == "null_receipts"


def test_null_entries_are_refused() -> None:
    with pytest.raises(ContentInvalid):
        decode_block(block_json(recorded("negative", "blocks_post-shanghai-bad-withdrawals-nil")))
    block = decode_block(block_json(recorded("negative", "blocks_post-shanghai-bad-transactions-nil")))
    assert any(isinstance(entry, UnreadableTransaction) for entry in block.transactions)


def test_of_two_fields_of_one_name_the_last_counts_and_nothing_breaks() -> None:
    raw = _block()
    doubled = raw[:-1] + b', "number": "0x7", "transactions": []}'
    block = decode_block(doubled)
    assert block.header.number == "0x7"
    assert block.transactions == []


def test_B67_a_json_number_of_any_size_is_exact() -> None:
    block = decode_block(_block(difficulty=2**70, timestamp=2**64))
    assert block.header.difficulty == 2**70
    assert block.header.timestamp == 2**64


def test_fields_with_a_value_are_named_and_null_is_absent() -> None:
    block = decode_block(_block(newField="0x0", otherField=None, list=[None]))
    names = field_names(block)
    assert "newField" in names
    assert "list" in names
    assert "otherField" not in names


def test_error_details_carry_no_payload() -> None:
    (entry,) = decode_block(_block(transactions=[{"hash": _HASH, "accessList": ["secret"]}])).transactions
    assert isinstance(entry, UnreadableTransaction)
    assert "secret" not in entry.fault
    with pytest.raises(ContentInvalid) as caught:
        decode_block(_block(hash=["secret"]))
    assert "secret" not in str(caught.value)


# --- withdrawals ----------------------------------------------------------------------------------------------------


def test_withdrawals_match_the_root_of_every_recorded_block_that_commits_to_them() -> None:
    seen = 0
    for path in files("full", "block-only", "nonstandard"):
        record = load(path)
        if family(record) == "op-stack":
            continue
        block = decode_block(block_json(record))
        if block.withdrawals is None or block.header.withdrawals_root is None:
            continue
        root = trie.build_ordered(withdrawals_leaves(block.withdrawals)).root
        assert "0x" + root.hex() == block.header.withdrawals_root, label(path)
        seen += bool(block.withdrawals)
    assert seen > 10


def test_changed_withdrawals_do_not_match() -> None:
    block = decode_block(block_json(recorded("negative", "blocks_post-shanghai-bad-withdrawals")))
    assert block.withdrawals is not None
    root = trie.build_ordered(withdrawals_leaves(block.withdrawals)).root
    assert "0x" + root.hex() != block.header.withdrawals_root


@pytest.mark.parametrize("change", [{"address": "0x12"}, {"amount": "x"}, {"amount": -1}, {"index": None}])
def test_a_broken_withdrawal_is_the_nodes_fault(change: dict[str, Any]) -> None:
    withdrawal = {"index": "0x1", "validatorIndex": 7, "address": "0x" + "11" * 20, "amount": "32"} | change
    block = decode_block(_block(withdrawals=[withdrawal]))
    assert block.withdrawals is not None
    with pytest.raises(ContentInvalid):
        withdrawals_leaves(block.withdrawals)


# --- names and positions --------------------------------------------------------------------------------------------


def test_the_name_of_a_block() -> None:
    raw = json.dumps(
        {"number": "0x7", "hash": _HASH, "parentHash": "0x" + "cd" * 32, "timestamp": 9, "size": "0x1"}
    ).encode()
    assert decode_block_name(raw) == BlockName(7, bytes.fromhex("ab" * 32), bytes.fromhex("cd" * 32), 9)
    assert decode_block_name(b"null") is None


@pytest.mark.parametrize(
    "change",
    [
        {"number": None},
        {"number": hex(2**64)},
        {"number": 1.5},
        {"hash": "0x12"},
        {"parentHash": "0x12"},
        {"timestamp": "soon"},
    ],
)
def test_a_block_without_a_proper_name_is_the_nodes_fault(change: dict[str, Any]) -> None:
    name = {"number": "0x7", "hash": _HASH, "parentHash": _HASH, "timestamp": "0x9"} | change
    with pytest.raises(ContentInvalid):
        decode_block_name(json.dumps(name).encode())


@pytest.mark.parametrize("nothing", [None, "0x", "0x0", "0x" + "00" * 32])
def test_a_first_block_has_no_parent(nothing: object) -> None:
    told = {"number": "0x0", "hash": _HASH, "parentHash": nothing, "timestamp": "0x9"}
    name = decode_block_name(json.dumps(told).encode())
    assert name is not None
    assert name.parent_hash == bytes(32)


@pytest.mark.parametrize("told", [None, "0x", 7, {}, ...])
def test_a_list_of_transactions_that_cannot_be_read_is_empty(told: object) -> None:
    block = dict(fixtures()["mixed3"]["block"])
    del block["transactions"]
    raw = json.dumps(block if told is ... else block | {"transactions": told}).encode()
    assert decode_block(raw).transactions == []


def test_the_position_of_a_transaction() -> None:
    answer = {"hash": _HASH, "blockHash": "0x" + "cd" * 32, "blockNumber": "0x7", "transactionIndex": 3}
    position = Position(block_hash=bytes.fromhex("cd" * 32), height=7, index=3)
    raw = json.dumps(answer).encode()
    assert decode_position(raw) == decode_position(raw, bytes.fromhex("ab" * 32)) == position
    assert decode_position(b"null") is None
    with pytest.raises(ContentInvalid):
        decode_position(raw, bytes(32))
    for nothing in (None, "0x", "0x" + "00" * 32):  # it was asked for by its hash
        unnamed = json.dumps(answer | {"hash": nothing}).encode()
        assert decode_position(unnamed, bytes.fromhex("ab" * 32)) == position


@pytest.mark.parametrize(
    "pending",
    [
        {"blockHash": None},
        {"blockHash": "0x"},
        {"blockHash": "0x" + "00" * 32},
        {"blockNumber": None},
        {"transactionIndex": None},
    ],
)
def test_a_pending_transaction_is_in_no_block(pending: dict[str, Any]) -> None:
    answer = {"hash": _HASH, "blockHash": _HASH, "blockNumber": "0x7", "transactionIndex": "0x3"} | pending
    with pytest.raises(TxNotMined):
        decode_position(json.dumps(answer).encode())
