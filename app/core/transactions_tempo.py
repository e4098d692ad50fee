"""Tempo's own transaction type, as far as it is known: batches of calls under signatures of several schemes.

Layout as recorded blocks confirm it; an access key that is granted, or other accounts that authorise, in the
transaction are not covered, and such a transaction is refused as unsupported. Source: Tempo's transaction
specification.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.core.rlp import EMPTY_LIST, EMPTY_STRING, encode_bytes, encode_list_of_encoded, encode_uint
from app.core.rpc_transaction import RpcTransaction
from app.core.transaction import Transaction, UnsupportedType
from app.core.transaction_fields import access_list_of, address_or_empty, data, exact, parities, uint, uint_or_zero

TEMPO = 0x76


def tempo(rpc: RpcTransaction, tx_hash: bytes, chain_id: int) -> Iterator[Transaction]:
    """0x76: [chainId, maxPriorityFeePerGas, maxFeePerGas, gas, calls, accessList, nonceKey, nonce, validBefore,
    validAfter, feeToken, feePayerSignature, authorizations, signature].
    """
    if rpc.key_authorization is not None or rpc.aa_authorization_list or rpc.fee_payer_signature is not None:
        raise UnsupportedType(TEMPO, partly=True)
    signed_for = chain_id if rpc.chain_id is None else uint(rpc.chain_id, 256)
    priority_fee, fee = uint(rpc.max_priority_fee_per_gas, 128), uint(rpc.max_fee_per_gas, 128)
    gas_limit, nonce = uint(rpc.gas, 64), uint(rpc.nonce, 64)
    accesses, encoded_accesses = access_list_of(rpc.access_list)
    items = (
        encode_uint(signed_for),
        encode_uint(priority_fee),
        encode_uint(fee),
        encode_uint(gas_limit),
        encode_list_of_encoded([_call(each) for each in _list(rpc.calls)]),
        encoded_accesses,
        encode_uint(uint(rpc.nonce_key, 256)),
        encode_uint(nonce),
        encode_uint(uint_or_zero(rpc.valid_before, 64)),
        encode_uint(uint_or_zero(rpc.valid_after, 64)),
        encode_bytes(address_or_empty(rpc.fee_token)),
        EMPTY_STRING,
        EMPTY_LIST,
        encode_bytes(_signature(rpc.signature)),
    )
    yield Transaction(
        type=TEMPO,
        hash=tx_hash,
        envelope=b"\x76" + encode_list_of_encoded(items),
        chain_id=signed_for,
        nonce=nonce,
        gas_limit=gas_limit,
        max_priority_fee_per_gas=priority_fee,
        max_fee_per_gas=fee,
        access_list=accesses,
    )


def _call(given: object) -> bytes:
    call = _object(given)
    given_input = call.get("input") if call.get("input") is not None else call.get("data")
    return encode_list_of_encoded(
        (
            encode_bytes(address_or_empty(call.get("to"))),
            encode_uint(uint_or_zero(call.get("value"), 256)),
            encode_bytes(b"" if given_input is None else data(given_input)),
        )
    )


def _signature(given: object, *, nested: bool = False) -> bytes:
    """The signature as one byte string: bare for secp256k1, otherwise behind a byte that names the scheme."""
    fields = _object(given)
    if "userAddress" in fields and not nested:
        scheme = b"\x04" if fields.get("version") == "v2" else b"\x03"
        return scheme + exact(fields["userAddress"], 20) + _signature(fields.get("signature"), nested=True)
    scalars = _word(fields, "r") + _word(fields, "s")
    match fields.get("type"):
        case "secp256k1":
            return scalars + bytes((27 + (parities(fields.get("yParity"), fields.get("v"))[0] & 1),))
        case "p256":
            prehashed = b"\x01" if fields.get("preHash") else b"\x00"
            return b"\x01" + scalars + _word(fields, "pubKeyX") + _word(fields, "pubKeyY") + prehashed
        case "webAuthn":
            key = _word(fields, "pubKeyX") + _word(fields, "pubKeyY")
            return b"\x02" + data(fields.get("webauthnData")) + scalars + key
        case _:
            raise UnsupportedType(TEMPO, partly=True)


def _word(fields: dict[str, Any], name: str) -> bytes:
    return uint(fields.get(name), 256).to_bytes(32, "big")


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("not a list")  # noqa: TRY004  # broken data, not a broken caller
    return value


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004  # broken data, not a broken caller
    return value
