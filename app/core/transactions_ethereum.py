"""The transaction types of Ethereum itself: legacy with and without EIP-155, EIP-2930, EIP-1559, EIP-4844, EIP-7702.

Each codec yields the candidates that the node's spelling allows, usually one. Blob transactions are encoded as they
stand in a block: without blobs, commitments and proofs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from app.core.keccak import keccak
from app.core.rlp import EMPTY_STRING, encode_bytes, encode_list_of_encoded, encode_uint
from app.core.rpc_transaction import RpcAuthorization, RpcTransaction
from app.core.transaction import Authorization, Transaction
from app.core.transaction_fields import (
    HASH_HEADER,
    access_list_of,
    address_or_empty,
    exact,
    input_of,
    parities,
    uint,
)

LEGACY, ACCESS_LIST, DYNAMIC_FEE, BLOB, SET_CODE = range(5)

_PRE_EIP155 = (27, 28)


def legacy(rpc: RpcTransaction, tx_hash: bytes, chain_id: int, type_: int = LEGACY) -> Iterator[Transaction]:
    """[nonce, gasPrice, gas, to, value, data, v, r, s]. The chain id stands in `v` or nowhere, whatever the node says
    beside.
    """
    nonce, gas_price, gas_limit = uint(rpc.nonce, 64), uint(rpc.gas_price, 256), uint(rpc.gas, 64)
    to, value, call_data = address_or_empty(rpc.to), uint(rpc.value, 256), input_of(rpc)
    v, r, s = uint(rpc.v, 256), uint(rpc.r, 256), uint(rpc.s, 256)
    body = [
        encode_uint(nonce),
        encode_uint(gas_price),
        encode_uint(gas_limit),
        encode_bytes(to),
        encode_uint(value),
        encode_bytes(call_data),
    ]
    signed_for = None
    signing_hash = b""
    if v >= 35:
        signed_for = (v - 35) >> 1
        signing_hash = keccak(encode_list_of_encoded([*body, encode_uint(signed_for), EMPTY_STRING, EMPTY_STRING]))
    elif v in _PRE_EIP155:
        signing_hash = keccak(encode_list_of_encoded(body))
    yield Transaction(
        type=type_,
        hash=tx_hash,
        envelope=encode_list_of_encoded([*body, encode_uint(v), encode_uint(r), encode_uint(s)]),
        nonce=nonce,
        gas_limit=gas_limit,
        to=to,
        value=value,
        input=call_data,
        gas_price=gas_price,
        chain_id=signed_for,
        v=v,
        # 27, 28 and every EIP-155 value are odd for an even y.
        y_parity=1 - (v & 1) if signing_hash else v & 1,
        r=r,
        s=s,
        signing_hash=signing_hash,
    )


def access_list(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x01: [chainId, nonce, gasPrice, gas, to, value, data, accessList, y, r, s]."""
    gas_price = uint(rpc.gas_price, 256)
    return _typed(rpc, tx_hash, chain_id, ACCESS_LIST, [encode_uint(gas_price)], [], gas_price=gas_price)


def dynamic_fee(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x02: [chainId, nonce, maxPriorityFeePerGas, maxFeePerGas, gas, to, value, data, accessList, y, r, s]."""
    fees = fees_of(rpc)
    return _typed(rpc, tx_hash, chain_id, DYNAMIC_FEE, encoded_fees(fees), [], **fees)


def blob(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x03: as 0x02 with [..., accessList, maxFeePerBlobGas, blobVersionedHashes, y, r, s]."""
    fees = fees_of(rpc)
    blob_fee = uint(rpc.max_fee_per_blob_gas, 256)
    hashes = tuple([exact(each, 32) for each in rpc.blob_versioned_hashes or ()])
    extra = [encode_uint(blob_fee), encode_list_of_encoded([HASH_HEADER + each for each in hashes])]
    return _typed(
        rpc,
        tx_hash,
        chain_id,
        BLOB,
        encoded_fees(fees),
        extra,
        max_fee_per_blob_gas=blob_fee,
        blob_versioned_hashes=hashes,
        **fees,
    )


def set_code(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x04: as 0x02 with [..., accessList, authorizationList, y, r, s]."""
    fees = fees_of(rpc)
    for authorizations in _authorization_readings(rpc.authorization_list or ()):
        encoded = [
            encode_list_of_encoded(
                (
                    encode_uint(each.chain_id),
                    encode_bytes(each.address),
                    encode_uint(each.nonce),
                    encode_uint(each.y_parity),
                    encode_uint(each.r),
                    encode_uint(each.s),
                )
            )
            for each in authorizations
        ]
        yield from _typed(
            rpc,
            tx_hash,
            chain_id,
            SET_CODE,
            encoded_fees(fees),
            [encode_list_of_encoded(encoded)],
            authorization_list=authorizations,
            **fees,
        )


def fees_of(rpc: RpcTransaction) -> dict[str, int]:
    """The EIP-1559 fees, under the names of `Transaction`."""
    return {
        "max_priority_fee_per_gas": uint(rpc.max_priority_fee_per_gas, 256),
        "max_fee_per_gas": uint(rpc.max_fee_per_gas, 256),
    }


def encoded_fees(fees: dict[str, int]) -> list[bytes]:
    """The EIP-1559 fees in the order of the envelope."""
    return [encode_uint(fees["max_priority_fee_per_gas"]), encode_uint(fees["max_fee_per_gas"])]


def _typed(
    rpc: RpcTransaction,
    tx_hash: bytes,
    chain_id: int,
    type_: int,
    fees: list[bytes],
    extra: list[bytes],
    **fields: Any,
) -> Iterator[Transaction]:
    """[chainId, nonce, *fees, gas, to, value, data, accessList, *extra] and the signature, for each parity that is
    given.
    """
    signed_for = chain_id if rpc.chain_id is None else uint(rpc.chain_id, 256)
    nonce, gas_limit = uint(rpc.nonce, 64), uint(rpc.gas, 64)
    to, value, call_data = address_or_empty(rpc.to), uint(rpc.value, 256), input_of(rpc)
    accesses, encoded_accesses = access_list_of(rpc.access_list)
    body = [
        encode_uint(signed_for),
        encode_uint(nonce),
        *fees,
        encode_uint(gas_limit),
        encode_bytes(to),
        encode_uint(value),
        encode_bytes(call_data),
        encoded_accesses,
        *extra,
    ]
    return signed(
        rpc,
        type_,
        body,
        hash=tx_hash,
        chain_id=signed_for,
        nonce=nonce,
        gas_limit=gas_limit,
        to=to,
        value=value,
        input=call_data,
        access_list=accesses,
        **fields,
    )


def signed(rpc: RpcTransaction, type_: int, body: list[bytes], **fields: Any) -> Iterator[Transaction]:
    """Type byte, the body's items, y, r, s: one candidate for each parity that is given."""
    type_byte = bytes((type_,))
    r, s = uint(rpc.r, 256), uint(rpc.s, 256)
    encoded_r, encoded_s = encode_uint(r), encode_uint(s)
    signing_hash = keccak(type_byte + encode_list_of_encoded(body))
    for parity in parities(rpc.y_parity, rpc.v):
        yield Transaction(
            type=type_,
            envelope=type_byte + encode_list_of_encoded([*body, encode_uint(parity), encoded_r, encoded_s]),
            v=parity,
            y_parity=parity,
            r=r,
            s=s,
            signing_hash=signing_hash,
            **fields,
        )


def _authorization_readings(given: Sequence[RpcAuthorization]) -> Iterator[tuple[Authorization, ...]]:
    """The list with the first parity that each entry gives; and, where entries give several that differ, with the
    next ones.
    """
    entries = [(each, _authorization_parities(each)) for each in given]
    readings = max((len(found) for _, found in entries), default=1)
    for reading in range(readings):
        yield tuple([_authorization(each, found[min(reading, len(found) - 1)]) for each, found in entries])


def _authorization_parities(given: RpcAuthorization) -> list[int]:
    inner = given.signature
    if inner is None:
        return parities(given.y_parity, given.v)
    return parities(given.y_parity, given.v, inner.y_parity, inner.v, inner.odd_y_parity)


def _authorization(given: RpcAuthorization, parity: int) -> Authorization:
    inner = given.signature
    r = inner.r if given.r is None and inner is not None else given.r
    s = inner.s if given.s is None and inner is not None else given.s
    return Authorization(
        chain_id=uint(given.chain_id if given.chain_id is not None else given.chain_id_snake, 256),
        address=exact(given.address, 20),
        nonce=uint(given.nonce, 64),
        y_parity=parity,
        r=uint(r, 256),
        s=uint(s, 256),
    )
