"""Blocks, transactions and receipts as nodes send them (execution-apis), and a little of how they deviate.

Only what some encoding needs is declared; every other field is skipped unread, since a node may add what it likes.
Values stay as they were spelled: whoever encodes a field decides what it is. `null` is the same as absent; zero is
not. A number in JSON is an integer of any size or refused: no quantity ever passes through a float.

Every function raises `ContentInvalid` for text that is not what it should be, whatever is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from app.core.blocks import BlockName, Position
from app.core.errors import ContentInvalid, TxNotMined
from app.core.hexadecimal import from_hex_exact, parse_quantity, to_hex
from app.core.rlp import encode_bytes, encode_list_of_encoded, encode_uint
from app.core.rpc_transaction import (
    LAST_TYPE,
    RpcTransaction,
    Spelled,
    UnreadableTransaction,
    given,
    hash_field,
    number_field,
    number_or_none,
)

__all__ = [
    "RpcBlock",
    "RpcHeader",
    "RpcLog",
    "RpcReceipt",
    "RpcTransaction",
    "RpcWithdrawal",
    "UnreadableTransaction",
    "decode_block",
    "decode_block_name",
    "decode_position",
    "decode_receipts",
    "field_names",
    "withdrawals_leaves",
]

T = TypeVar("T")


class RpcLog(msgspec.Struct, rename="camel", gc=False):
    """One log of a receipt; its indexes are not declared, since positions are counted from verified receipts."""

    address: str
    topics: list[str] | None = None
    data: str | None = None
    block_hash_hex: Any = msgspec.field(default=None, name="blockHash")


class RpcReceipt(msgspec.Struct, rename="camel", gc=False):
    """One receipt. `root` is a post-state root, a block hash, `0x` or absent, depending on the node.

    What the root does not need, or decides, is read in any form.
    """

    cumulative_gas_used: Spelled
    given_type: Any = msgspec.field(default=None, name="type")
    transaction_hash_hex: Any = msgspec.field(default=None, name="transactionHash")
    block_hash_hex: Any = msgspec.field(default=None, name="blockHash")
    given_index: Any = msgspec.field(default=None, name="transactionIndex")
    status: Any = None
    root: Any = None
    logs_bloom: Any = None
    given_logs: list[RpcLog] | None = msgspec.field(default=None, name="logs")
    deposit_nonce: Any = None
    deposit_receipt_version: Any = None
    base_fee: Any = None

    @property
    def logs(self) -> list[RpcLog]:
        """The logs, in order."""
        return self.given_logs or []

    @property
    def type(self) -> int | None:
        """The EIP-2718 type; None where the node gives none, or none that a leaf can begin with."""
        number = number_or_none(self.given_type)
        return None if number is None or number > LAST_TYPE else number

    @property
    def transaction_hash(self) -> bytes | None:
        """The transaction that the node says the receipt is of; None where it names none that can be read."""
        text = self.transaction_hash_hex
        try:
            return from_hex_exact(text, 32) if isinstance(text, str) and given(text) else None
        except ValueError:
            return None

    @property
    def transaction_index(self) -> int | None:
        """The position that the node says the receipt has; None where it says none that can be read."""
        return number_or_none(self.given_index)

    def foreign_block(self, expected: bytes) -> str | None:
        """The block that the receipt or one of its logs names, where that is another one than `expected`."""
        spelled = to_hex(expected)
        for name in (self.block_hash_hex, *(log.block_hash_hex for log in self.logs)):
            if name != spelled and given(name) and hash_field(name, "a receipt's blockHash") != expected:
                return to_hex(hash_field(name, "a receipt's blockHash"))
        return None


class RpcWithdrawal(msgspec.Struct, rename="camel", gc=False):
    """One EIP-4895 withdrawal; `amount` is in Gwei."""

    index: Spelled
    validator_index: Spelled
    address: str
    amount: Spelled


class RpcHeader(msgspec.Struct, rename="camel", gc=False):
    """The header fields of a block, those of every variant together; which of them are hashed is found out by
    hashing.
    """

    hash: str | None = None
    parent_hash: str | None = None
    sha3_uncles: str | None = msgspec.field(default=None, name="sha3Uncles")
    miner: str | None = None
    author: str | None = None
    state_root: str | None = None
    transactions_root: str | None = None
    receipts_root: str | None = None
    logs_bloom: str | None = None
    difficulty: Spelled = None
    number: Spelled = None
    gas_limit: Spelled = None
    gas_used: Spelled = None
    timestamp: Spelled = None
    extra_data: str | None = None
    mix_hash: Spelled = None
    nonce: Spelled = None
    base_fee_per_gas: Spelled = None
    withdrawals_root: str | None = None
    blob_gas_used: Spelled = None
    excess_blob_gas: Spelled = None
    parent_beacon_block_root: str | None = None
    requests_hash: str | None = None
    block_access_list_hash: str | None = None
    slot_number: Spelled = None
    # Authority Round seals, in the spellings of Erigon, OpenEthereum and Nethermind
    aura_step: Any = None
    aura_seal: Any = None
    seal_fields: Any = None
    step: Any = None
    signature: Any = None
    # Tempo
    main_block_general_gas_limit: Any = None
    shared_gas_limit: Any = None
    timestamp_millis_part: Any = None
    consensus_context: Any = None


class _BlockObject(RpcHeader, rename="camel", kw_only=True, gc=False):
    transactions: list[RpcTransaction | str | None] | None = None
    withdrawals: list[RpcWithdrawal | None] | None = None


class _LooseBlockObject(RpcHeader, rename="camel", kw_only=True, gc=False):
    transactions: msgspec.Raw = msgspec.Raw(b"[]")
    withdrawals: list[RpcWithdrawal | None] | None = None


class _Glimpse(msgspec.Struct, rename="camel", gc=False):
    """What names a transaction, of one that cannot be read."""

    hash: Any = None
    type: Any = None
    block_hash: Any = None
    transaction_index: Any = None


class _NameObject(msgspec.Struct, rename="camel", gc=False):
    number: Spelled
    hash: str
    parent_hash: Any = None
    timestamp: Spelled = None


class _PositionObject(msgspec.Struct, rename="camel", gc=False):
    hash: Any = None
    block_hash: Any = None
    block_number: Any = None
    transaction_index: Any = None


@dataclass(frozen=True, slots=True)
class RpcBlock:
    """One block as a node sent it. `transactions` are whole, or hashes where the node gave no more; `raw` is the JSON
    text.
    """

    header: RpcHeader
    transactions: list[RpcTransaction | bytes]
    withdrawals: list[RpcWithdrawal] | None
    raw: bytes


_block_decoder = msgspec.json.Decoder(_BlockObject | None)
_loose_block_decoder = msgspec.json.Decoder(_LooseBlockObject | None)
_entries_decoder = msgspec.json.Decoder(list[msgspec.Raw] | None)
_entry_decoder = msgspec.json.Decoder(RpcTransaction | str)
_glimpse_decoder = msgspec.json.Decoder(_Glimpse)
_receipts_decoder = msgspec.json.Decoder(list[RpcReceipt | None] | None)
_name_decoder = msgspec.json.Decoder(_NameObject | None)
_position_decoder = msgspec.json.Decoder(_PositionObject | None)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_block(raw: bytes) -> RpcBlock:
    """The block in the `result` of `eth_getBlockByHash` or `eth_getBlockByNumber`.

    A transaction that cannot be read is an `UnreadableTransaction`, and a list that cannot be read is empty: the header and
    the other tries do without them.
    `null`, or a `null` among the withdrawals, is invalid.
    """
    decoded: _BlockObject | _LooseBlockObject | None
    transactions: list[RpcTransaction | bytes] = []
    try:
        decoded = whole = _decoded(_block_decoder, raw, "a block")
        transactions = [] if whole is None else [_entry(each) for each in whole.transactions or ()]
    except ContentInvalid:
        decoded = loose = _decoded(_loose_block_decoder, raw, "a block")
        entries = [] if loose is None else _entries(bytes(loose.transactions))
        transactions = [_entry_of_raw(bytes(each)) for each in entries]
    if decoded is None:
        raise ContentInvalid("null_block", "null where a block was asked for")
    withdrawals: list[RpcWithdrawal] | None = None
    if decoded.withdrawals is not None:
        withdrawals = []
        for withdrawal in decoded.withdrawals:
            if withdrawal is None:
                raise ContentInvalid("null_withdrawal", f"withdrawal {len(withdrawals)} of the block is null")
            withdrawals.append(withdrawal)
    return RpcBlock(decoded, transactions, withdrawals, raw)


def _entry(entry: RpcTransaction | str | None) -> RpcTransaction | bytes:
    if entry is None:
        return UnreadableTransaction(fault="it is null")
    return hash_field(entry, "a transaction hash") if isinstance(entry, str) else entry


def _entries(raw: bytes) -> list[msgspec.Raw]:
    """The entries of a list of transactions; none, if it is no list: a header that commits to some then tells."""
    try:
        return _entries_decoder.decode(raw) or []
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return []


def _entry_of_raw(raw: bytes) -> RpcTransaction | bytes:
    """One entry of a block in which something cannot be read."""
    try:
        return _entry(_decoded(_entry_decoder, raw, "a transaction"))
    except ContentInvalid as invalid:
        try:
            glimpse = _glimpse_decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return UnreadableTransaction(fault="it is null" if raw == b"null" else invalid.detail)
        return UnreadableTransaction(
            hash_hex=glimpse.hash,
            given_type=glimpse.type,
            block_hash_hex=glimpse.block_hash,
            given_index=glimpse.transaction_index,
            fault=invalid.detail,
        )


def decode_receipts(raw: bytes) -> list[RpcReceipt]:
    """The receipts in the `result` of `eth_getBlockReceipts`. `null`, or a `null` among them, is invalid."""
    decoded = _decoded(_receipts_decoder, raw, "receipts")
    if decoded is None:
        raise ContentInvalid("null_receipts", "null where the receipts of a block were asked for")
    receipts: list[RpcReceipt] = []
    for receipt in decoded:
        if receipt is None:
            raise ContentInvalid("null_receipt", f"receipt {len(receipts)} of the block is null")
        receipts.append(receipt)
    return receipts


def decode_block_name(raw: bytes) -> BlockName | None:
    """Which block the `result` of a block request is; None for `null`. Nothing in it is checked but its form."""
    decoded = _decoded(_name_decoder, raw, "a block")
    if decoded is None:
        return None
    return BlockName(
        height=_height(decoded.number, "number"),
        block_hash=hash_field(decoded.hash, "a block hash"),
        parent_hash=hash_field(decoded.parent_hash, "a parent hash") if given(decoded.parent_hash) else bytes(32),
        timestamp=_height(decoded.timestamp, "timestamp"),
    )


def decode_position(raw: bytes, tx_hash: bytes | None = None) -> Position | None:
    """Where the `result` of `eth_getTransactionByHash` or `eth_getTransactionReceipt` puts the transaction; None for
    `null`.

    With `tx_hash`, an answer about another transaction is invalid. Raises `TxNotMined` for one that is in no block yet.
    """
    decoded = _decoded(_position_decoder, raw, "a transaction")
    if decoded is None:
        return None
    if tx_hash is not None and given(decoded.hash) and hash_field(decoded.hash, "a transaction hash") != tx_hash:
        raise ContentInvalid("identity", f"asked for transaction {to_hex(tx_hash)}, got another")
    if not given(decoded.block_hash) or decoded.block_number is None or decoded.transaction_index is None:
        raise TxNotMined("the transaction is in no block yet")
    return Position(
        block_hash=hash_field(decoded.block_hash, "a transaction's blockHash"),
        height=_height(decoded.block_number, "blockNumber"),
        index=_height(decoded.transaction_index, "transactionIndex"),
    )


def _height(value: Spelled, what: str) -> int:
    """A height, time or position that a database, a listing and a metric can hold: no chain comes further."""
    height = number_field(value, what)
    if height >> 63:
        raise ContentInvalid("decode", f"{what} of more than 63 bits")
    return height


def withdrawals_leaves(withdrawals: Sequence[RpcWithdrawal]) -> list[bytes]:
    """The values of the withdrawals trie (EIP-4895): rlp([index, validatorIndex, address, amount])."""
    try:
        return [
            encode_list_of_encoded(
                (
                    encode_uint(parse_quantity(each.index)),
                    encode_uint(parse_quantity(each.validator_index)),
                    encode_bytes(from_hex_exact(each.address, 20)),
                    encode_uint(parse_quantity(each.amount)),
                )
            )
            for each in withdrawals
        ]
    except ValueError as error:
        raise ContentInvalid("decode", f"a withdrawal: {error}") from error


def field_names(block: RpcBlock) -> list[str]:
    """The names of every field that the node gave a value other than `null`, known or not, in the order of the text."""
    return [name for name, value in _decoded(_fields_decoder, block.raw, "a block").items() if bytes(value) != b"null"]


def _decoded(decoder: msgspec.json.Decoder[T], raw: bytes, what: str) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        # The decoder's own words quote field paths only, never values.
        raise ContentInvalid("decode", f"not {what}: {error}") from error
