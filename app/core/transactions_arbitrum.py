"""Arbitrum Nitro's own transaction types: messages from the parent chain, retryables, and the node's own bookkeeping.

None carries a signature; the sender is one of the hashed fields. Source: `arb_types.go` of Nitro's fork of go-ethereum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.core.rlp import encode_bytes, encode_list_of_encoded, encode_uint
from app.core.rpc_transaction import RpcTransaction
from app.core.transaction import Transaction
from app.core.transaction_fields import address_or_empty, data, exact, input_of, uint, uint_or_zero
from app.core.transactions_ethereum import legacy

DEPOSIT, UNSIGNED, CONTRACT, RETRY, SUBMIT_RETRYABLE, INTERNAL, CLASSIC_LEGACY = (
    0x64,
    0x65,
    0x66,
    0x68,
    0x69,
    0x6A,
    0x78,
)

ARBOS_ADDRESS = bytes.fromhex("00000000000000000000000000000000000a4b05")
"""Who sends internal transactions."""


def deposit(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x64: [chainId, requestId, from, to, value]."""
    fields = _Fields(rpc, chain_id)
    yield fields.transaction(
        DEPOSIT, tx_hash, [fields.chain_id, fields.hash(rpc.request_id), fields.sender, fields.to, fields.value]
    )


def unsigned(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x65: [chainId, from, nonce, maxFeePerGas, gas, to, value, data]."""
    fields = _Fields(rpc, chain_id)
    head = [fields.chain_id, fields.sender, fields.nonce, fields.fee_cap, fields.gas]
    yield fields.transaction(UNSIGNED, tx_hash, [*head, fields.to, fields.value, fields.input])


def contract(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x66: [chainId, requestId, from, maxFeePerGas, gas, to, value, data]."""
    fields = _Fields(rpc, chain_id)
    head = [fields.chain_id, fields.hash(rpc.request_id), fields.sender, fields.fee_cap, fields.gas]
    yield fields.transaction(CONTRACT, tx_hash, [*head, fields.to, fields.value, fields.input])


def retry(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x68: [chainId, nonce, from, maxFeePerGas, gas, to, value, data, ticketId, refundTo, maxRefund,
    submissionFeeRefund].
    """
    fields = _Fields(rpc, chain_id)
    head = [fields.chain_id, fields.nonce, fields.sender, fields.fee_cap, fields.gas]
    refund = [
        fields.hash(rpc.ticket_id),
        encode_bytes(exact(rpc.refund_to, 20)),
        encode_uint(uint_or_zero(rpc.max_refund, 256)),
        encode_uint(uint_or_zero(rpc.submission_fee_refund, 256)),
    ]
    yield fields.transaction(RETRY, tx_hash, [*head, fields.to, fields.value, fields.input, *refund])


def submit_retryable(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x69: [chainId, requestId, from, l1BaseFee, depositValue, maxFeePerGas, gas, retryTo, retryValue, beneficiary,
    maxSubmissionFee, refundTo, retryData]."""
    fields = _Fields(rpc, chain_id)
    items = [
        fields.chain_id,
        fields.hash(rpc.request_id),
        fields.sender,
        encode_uint(uint(rpc.l1_base_fee, 256)),
        encode_uint(uint(rpc.deposit_value, 256)),
        fields.fee_cap,
        fields.gas,
        encode_bytes(address_or_empty(rpc.retry_to)),
        encode_uint(uint_or_zero(rpc.retry_value, 256)),
        encode_bytes(exact(rpc.beneficiary, 20)),
        encode_uint(uint(rpc.max_submission_fee, 256)),
        encode_bytes(exact(rpc.refund_to, 20)),
        encode_bytes(b"" if rpc.retry_data is None else data(rpc.retry_data)),
    ]
    yield fields.transaction(SUBMIT_RETRYABLE, tx_hash, items)


def internal(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x6a: [chainId, data]."""
    fields = _Fields(rpc, chain_id)
    yield fields.transaction(INTERNAL, tx_hash, [fields.chain_id, fields.input], sender=ARBOS_ADDRESS)


def classic_legacy(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x78: a legacy transaction from before Nitro. Its leaf is the plain legacy encoding; its hash may be one that
    nothing in the block yields, and then it cannot be checked.
    """
    return legacy(rpc, tx_hash, chain_id, CLASSIC_LEGACY)


class _Fields:
    """The encoded fields that the types share. What a type does not hash may be absent."""

    def __init__(self, rpc: RpcTransaction, chain_id: int) -> None:
        self._rpc = rpc
        self._chain_id = chain_id if rpc.chain_id is None else uint(rpc.chain_id, 256)

    @property
    def chain_id(self) -> bytes:
        return encode_uint(self._chain_id)

    @property
    def sender(self) -> bytes:
        return encode_bytes(exact(self._rpc.from_hex, 20))

    @property
    def nonce(self) -> bytes:
        return encode_uint(uint(self._rpc.nonce, 64))

    @property
    def fee_cap(self) -> bytes:
        # Nodes give these types a gasPrice too; the hashed one is the cap, where both are shown.
        cap = self._rpc.max_fee_per_gas
        return encode_uint(uint(self._rpc.gas_price if cap is None else cap, 256))

    @property
    def gas(self) -> bytes:
        return encode_uint(uint(self._rpc.gas, 64))

    @property
    def to(self) -> bytes:
        return encode_bytes(address_or_empty(self._rpc.to))

    @property
    def value(self) -> bytes:
        return encode_uint(uint(self._rpc.value, 256))

    @property
    def input(self) -> bytes:
        return encode_bytes(input_of(self._rpc))

    def hash(self, value: Any) -> bytes:
        return encode_bytes(exact(value, 32))

    def transaction(self, type_: int, tx_hash: bytes, items: list[bytes], sender: bytes | None = None) -> Transaction:
        rpc = self._rpc
        return Transaction(
            type=type_,
            hash=tx_hash,
            envelope=bytes((type_,)) + encode_list_of_encoded(items),
            chain_id=self._chain_id,
            nonce=uint_or_zero(rpc.nonce, 64),
            gas_limit=uint_or_zero(rpc.gas, 64),
            to=address_or_empty(rpc.to),
            value=uint_or_zero(rpc.value, 256),
            input=input_of(rpc),
            max_fee_per_gas=uint_or_zero(rpc.max_fee_per_gas, 256),
            sender=exact(rpc.from_hex, 20) if sender is None else sender,
        )
