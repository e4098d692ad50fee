"""Receipts: from the fields a node sends to the leaves of the receipts trie.

A receipt has no hash of its own; only the root over all of them tells whether an encoding is the right one. So a
block's receipts are offered in every documented encoding, canonical first, and the root decides, block by block
(EIP-658, EIP-2718; the deposits specification of the OP stack for Regolith and Canyon; CIP-64 for Celo).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from app.core.errors import ContentInvalid
from app.core.hexadecimal import from_hex, from_hex_exact
from app.core.keccak import keccak
from app.core.rlp import (
    RlpError,
    encode_bytes,
    encode_list_of_encoded,
    encode_uint,
    split_list,
    string_of,
)
from app.core.rpc_json import RpcLog, RpcReceipt
from app.core.rpc_transaction import LAST_TYPE, given, number_or_none
from app.core.transaction_fields import exact, uint

DEPOSIT, CELO_DYNAMIC_FEE = 0x7E, 0x7B

_ADDRESS_HEADER = b"\x94"
_HASH_HEADER = b"\xa0"
_BLOOM_HEADER = b"\xb9\x01\x00"

_MOST_FIELDS = 16
_LEAST_LOG_BYTES, _TOPIC_BYTES = 24, 33
"""Encoded: a log has an address of 20 bytes, a list of topics and data. A receipt from a stranger can hold a million items that
are neither."""


class Log(msgspec.Struct, frozen=True, gc=False):
    """One log: 20-byte address, 32-byte topics, data."""

    address: bytes
    topics: tuple[bytes, ...]
    data: bytes


class Receipt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One receipt as the node tells it. Before Byzantium it has a 32-byte `post_state`, since then a `status`; a node
    may give both. `deposit_nonce` and `deposit_receipt_version` are None where absent, and zero is not absence.
    """

    type: int
    status: int | None
    post_state: bytes | None
    cumulative_gas_used: int
    logs_bloom: bytes
    logs: tuple[Log, ...]
    deposit_nonce: int | None = None
    deposit_receipt_version: int | None = None
    base_fee: int | None = None
    transaction_hash: bytes | None = None
    transaction_index: int | None = None


def decode_receipt(rpc: RpcReceipt, tx_type: int | None) -> Receipt:
    """The receipt; one without a type has that of its transaction, one without a bloom the bloom of its logs.

    Raises `ContentInvalid` for fields that are not what they should be, where no root could be met without them.
    """
    type_ = rpc.type
    if type_ is None:
        type_ = tx_type if tx_type is not None and tx_type <= LAST_TYPE else 0
    try:
        logs = tuple([_log(each) for each in rpc.given_logs or ()])
        status, post_state = _outcomes(rpc)
        return Receipt(
            type=type_,
            status=status,
            post_state=post_state,
            cumulative_gas_used=uint(rpc.cumulative_gas_used, 64),
            logs_bloom=_given_bloom(rpc.logs_bloom) or bloom(logs),
            logs=logs,
            deposit_nonce=number_or_none(rpc.deposit_nonce),
            deposit_receipt_version=number_or_none(rpc.deposit_receipt_version),
            base_fee=_base_fee(rpc.base_fee),
            transaction_hash=rpc.transaction_hash,
            transaction_index=rpc.transaction_index,
        )
    except ValueError as error:
        raise ContentInvalid("decode", f"a receipt: {error}") from error


def readings(receipts: Sequence[Receipt], types: Sequence[int | None]) -> Iterator[Sequence[Receipt]]:
    """The receipts as they are told; then with what follows from proven data in its place, for the root to decide.

    `types` are those of the transactions, in order, where they are known: a receipt has the type of its transaction.
    A bloom is a function of the logs. Each later reading differs from those before it.
    """
    yield receipts
    typed = [
        receipt if type_ is None or type_ > LAST_TYPE or type_ == receipt.type else replace(receipt, type=type_)
        for receipt, type_ in zip(receipts, types, strict=False)
    ]
    typed += receipts[len(types) :]
    differs = any(one is not other for one, other in zip(typed, receipts, strict=True))
    if differs:
        yield typed
    bloomed = _with_blooms(receipts)
    if bloomed is not None:
        yield bloomed
        if differs:
            yield _with_blooms(typed) or typed


def _with_blooms(receipts: Sequence[Receipt]) -> list[Receipt] | None:
    """The receipts with the blooms of their logs; None where they have them."""
    found = [bloom(receipt.logs) for receipt in receipts]
    if all(each == receipt.logs_bloom for each, receipt in zip(found, receipts, strict=True)):
        return None
    return [replace(receipt, logs_bloom=each) for receipt, each in zip(receipts, found, strict=True)]


# --- encodings of a whole block -------------------------------------------------------------------------------------


def encodings(receipts: Sequence[Receipt], family: str) -> Iterator[tuple[str, list[bytes]]]:
    """Named candidate leaves of all receipts, canonical first; every later one differs from those before it.

    `canonical`: status before post-state, deposit nonce and version where the version is present, Celo's base fee
    where present. `post-state-first`: where a node gives both. `regolith`: no deposit receipt carries its nonce.
    `without-base-fee`: Celo.
    """
    tails = [_tail(receipt) for receipt in receipts]
    celo = family == "celo"
    canonical = [
        _leaf(receipt, _outcome(receipt), tail, _deposit_fields(receipt), _celo_fields(receipt) if celo else b"")
        for receipt, tail in zip(receipts, tails, strict=True)
    ]
    yield "canonical", canonical
    if any(receipt.status is not None and receipt.post_state is not None for receipt in receipts):
        yield (
            "post-state-first",
            [
                leaf
                if receipt.post_state is None
                else _leaf(receipt, encode_bytes(receipt.post_state), tail, _deposit_fields(receipt), b"")
                for receipt, tail, leaf in zip(receipts, tails, canonical, strict=True)
            ],
        )
    if any(_deposit_fields(receipt) for receipt in receipts):
        yield (
            "regolith",
            [
                _leaf(receipt, _outcome(receipt), tail, b"", b"") if receipt.type == DEPOSIT else leaf
                for receipt, tail, leaf in zip(receipts, tails, canonical, strict=True)
            ],
        )
    if celo and any(_celo_fields(receipt) for receipt in receipts):
        yield (
            "without-base-fee",
            [
                _leaf(receipt, _outcome(receipt), tail, b"", b"") if receipt.type == CELO_DYNAMIC_FEE else leaf
                for receipt, tail, leaf in zip(receipts, tails, canonical, strict=True)
            ],
        )


def noncanonical_encodings(receipts: Sequence[Receipt]) -> Iterator[tuple[str, list[bytes]]]:
    """Forms of typed receipts that some chains' headers were once made over and that no verifier takes for a receipt.

    `rlp-wrapped`: type and payload wrapped in an RLP string; `untyped`: the type byte left out. Nothing without typed
    receipts.
    """
    if not any(receipt.type for receipt in receipts):
        return
    _, canonical = next(encodings(receipts, ""))
    paired = list(zip(receipts, canonical, strict=True))
    yield "rlp-wrapped", [encode_bytes(leaf) if receipt.type else leaf for receipt, leaf in paired]
    yield "untyped", [leaf[1:] if receipt.type else leaf for receipt, leaf in paired]


def encode_log(log: Log) -> bytes:
    """rlp([address, topics, data])."""
    topics = log.topics
    if topics:
        payload = _HASH_HEADER + _HASH_HEADER.join(topics)
        encoded_topics = encode_list_of_encoded((payload,))
    else:
        encoded_topics = b"\xc0"
    return encode_list_of_encoded((_ADDRESS_HEADER + log.address, encoded_topics, encode_bytes(log.data)))


def bloom(logs: Iterable[Log]) -> bytes:
    """The 2048-bit filter over the addresses and topics of the logs (Yellow Paper, 4.3.1)."""
    bits = 0
    for value in {value for log in logs for value in (log.address, *log.topics)}:
        digest = keccak(value)
        for at in (0, 2, 4):
            bits |= 1 << (((digest[at] << 8) | digest[at + 1]) & 2047)
    return bits.to_bytes(256, "big")


def _outcome(receipt: Receipt) -> bytes:
    if receipt.status is not None:
        return encode_uint(receipt.status)
    return encode_bytes(receipt.post_state or b"")


def _tail(receipt: Receipt) -> bytes:
    """The encoded fields that every form shares: cumulative gas, bloom, logs."""
    logs = encode_list_of_encoded([encode_log(log) for log in receipt.logs])
    return b"".join((encode_uint(receipt.cumulative_gas_used), _BLOOM_HEADER, receipt.logs_bloom, logs))


def _deposit_fields(receipt: Receipt) -> bytes:
    """Since Canyon a deposit receipt ends in its nonce and version; before, a node may show the nonce although it is
    not hashed.
    """
    if receipt.type != DEPOSIT or receipt.deposit_receipt_version is None:
        return b""
    return encode_uint(receipt.deposit_nonce or 0) + encode_uint(receipt.deposit_receipt_version)


def _celo_fields(receipt: Receipt) -> bytes:
    if receipt.type != CELO_DYNAMIC_FEE or receipt.base_fee is None:
        return b""
    return encode_uint(receipt.base_fee)


def _leaf(receipt: Receipt, outcome: bytes, tail: bytes, deposit: bytes, celo: bytes) -> bytes:
    payload = encode_list_of_encoded((outcome, tail, deposit, celo))
    return bytes((receipt.type,)) + payload if receipt.type else payload


# --- reading leaves -------------------------------------------------------------------------------------------------


def decode_leaf(leaf: bytes) -> tuple[int, list[bytes]]:
    """Type (0 for legacy) and the receipt's fields, each still an encoded item. Raises RlpError for what is no
    receipt leaf.
    """
    if not leaf:
        raise RlpError("an empty receipt")
    type_ = leaf[0] if leaf[0] < 0x80 else 0
    fields = split_list(leaf[1:] if leaf[0] < 0x80 else leaf, _MOST_FIELDS)
    if len(fields) < 4:
        raise RlpError("a receipt with fewer than four fields")
    return type_, fields


def logs_of_leaf(leaf: bytes) -> list[bytes]:
    """The encoded logs of a receipt leaf, in order."""
    logs = decode_leaf(leaf)[1][3]
    return split_list(logs, len(logs) // _LEAST_LOG_BYTES)


def parse_log(rlp: bytes) -> Log:
    """The log that `rlp` encodes. Raises RlpError."""
    fields = split_list(rlp, 3)
    if len(fields) != 3:
        raise RlpError("a log has three fields")
    topics = tuple([string_of(topic) for topic in split_list(fields[1], len(fields[1]) // _TOPIC_BYTES)])
    return Log(string_of(fields[0]), topics, string_of(fields[2]))


# --- fields ---------------------------------------------------------------------------------------------------------


def _log(rpc: RpcLog) -> Log:
    topics = tuple([from_hex_exact(topic, 32) for topic in rpc.topics or ()])
    return Log(from_hex_exact(rpc.address, 20), topics, from_hex(rpc.data or ""))


def _outcomes(rpc: RpcReceipt) -> tuple[int | None, bytes | None]:
    """Status and post-state. Beside a status, nodes also write a root that is null, `0x`, zero or an empty string."""
    status = None if rpc.status in (None, "") else uint(rpc.status, 256)
    post_state = None
    if given(rpc.root):
        try:
            post_state = exact(rpc.root, 32)
        except ValueError:
            if status is None:
                raise
    if status is None and post_state is None:
        raise ValueError("neither a status nor a post-state root")
    return status, post_state


def _given_bloom(value: object) -> bytes | None:
    """The bloom that a node gives; None for what is none."""
    try:
        return exact(value, 256)
    except ValueError:
        return None


def _base_fee(value: object) -> int | None:
    try:
        return uint(value, 256)
    except ValueError:
        return None
