"""Transaction types of the OP stack and of Celo, which became one of its chains.

Sources: the deposits specification of the OP stack; Celo's CIP-64 and CIP-42.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.core.rlp import encode_bytes, encode_list_of_encoded, encode_uint
from app.core.rpc_transaction import RpcTransaction
from app.core.transaction import Deposit, Transaction
from app.core.transaction_fields import access_list_of, address_or_empty, exact, input_of, uint, uint_or_zero
from app.core.transactions_ethereum import encoded_fees, fees_of, signed

DEPOSIT, CELO_DYNAMIC_FEE, CELO_GATEWAY = 0x7E, 0x7B, 0x7C


def deposit(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x7e: [sourceHash, from, to, mint, value, gas, isSystemTx, data]. Nonce and signature are shown by nodes and
    not hashed.
    """
    source_hash, sender = exact(rpc.source_hash, 32), exact(rpc.from_hex, 20)
    to, call_data = address_or_empty(rpc.to), input_of(rpc)
    mint, value, gas_limit = uint_or_zero(rpc.mint, 256), uint(rpc.value, 256), uint(rpc.gas, 64)
    is_system_tx = uint_or_zero(rpc.is_system_tx, 1)
    nonce = None if rpc.nonce is None else uint(rpc.nonce, 64)
    yield Transaction(
        type=DEPOSIT,
        hash=tx_hash,
        envelope=b"\x7e"
        + encode_list_of_encoded(
            (
                encode_bytes(source_hash),
                encode_bytes(sender),
                encode_bytes(to),
                encode_uint(mint),
                encode_uint(value),
                encode_uint(gas_limit),
                encode_uint(is_system_tx),
                encode_bytes(call_data),
            )
        ),
        nonce=nonce or 0,
        gas_limit=gas_limit,
        to=to,
        value=value,
        input=call_data,
        sender=sender,
        deposit=Deposit(source_hash, sender, mint, bool(is_system_tx), nonce),
    )


def celo_dynamic_fee(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x7b (CIP-64): the fields of EIP-1559, then the currency that fees are paid in."""
    return _celo(rpc, tx_hash, chain_id, CELO_DYNAMIC_FEE)


def celo_gateway(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x7c (CIP-42, retired): fee currency, gateway fee recipient and gateway fee stand after the gas limit."""
    return _celo(rpc, tx_hash, chain_id, CELO_GATEWAY)


def _celo(rpc: RpcTransaction, tx_hash: bytes, chain_id: int, type_: int) -> Iterator[Transaction]:
    signed_for = chain_id if rpc.chain_id is None else uint(rpc.chain_id, 256)
    fees = fees_of(rpc)
    nonce, gas_limit = uint(rpc.nonce, 64), uint(rpc.gas, 64)
    to, value, call_data = address_or_empty(rpc.to), uint(rpc.value, 256), input_of(rpc)
    accesses, encoded_accesses = access_list_of(rpc.access_list)
    currency = [encode_bytes(address_or_empty(rpc.fee_currency))]
    call = [encode_bytes(to), encode_uint(value), encode_bytes(call_data), encoded_accesses]
    if type_ == CELO_GATEWAY:
        gateway = [
            encode_bytes(address_or_empty(rpc.gateway_fee_recipient)),
            encode_uint(uint_or_zero(rpc.gateway_fee, 256)),
        ]
        tail = [*currency, *gateway, *call]
    else:
        tail = [*call, *currency]
    return signed(
        rpc,
        type_,
        [encode_uint(signed_for), encode_uint(nonce), *encoded_fees(fees), encode_uint(gas_limit), *tail],
        hash=tx_hash,
        chain_id=signed_for,
        nonce=nonce,
        gas_limit=gas_limit,
        to=to,
        value=value,
        input=call_data,
        access_list=accesses,
        **fees,
    )
