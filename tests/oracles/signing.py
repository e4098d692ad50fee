"""Transactions of every type, signed: enough of a wallet to make a real node build the blocks that tests need.

Written from EIP-155, 2930, 1559, 4844 and 7702 with `rlp` and `coincurve`, and with nothing of the code under test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import coincurve
import rlp
import sha3

Rlp = Any  # nested lists of bytes and integers, as `rlp.encode` takes them
AccessList = Sequence[tuple[bytes, Sequence[bytes]]]

GWEI = 10**9


def keccak(data: bytes) -> bytes:
    """Keccak-256."""
    digest: bytes = sha3.keccak_256(data).digest()
    return digest


@dataclass(slots=True)
class Account:
    """A key, its address and the nonce of its next transaction."""

    key: coincurve.PrivateKey
    address: bytes = field(init=False)
    nonce: int = 0

    def __post_init__(self) -> None:
        self.address = keccak(self.key.public_key.format(compressed=False)[1:])[12:]

    @classmethod
    def numbered(cls, number: int) -> Account:
        """The account of a seed number: the same everywhere, of value nowhere."""
        return cls(coincurve.PrivateKey(hashlib.sha256(b"copath test account %d" % number).digest()))

    def sign(self, digest: bytes) -> tuple[int, int, int]:
        """(parity, r, s) over a 32-byte digest."""
        signature = self.key.sign_recoverable(digest, hasher=None)
        return signature[64], int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")

    def take_nonce(self) -> int:
        """The next nonce, which is thereby used."""
        nonce = self.nonce
        self.nonce += 1
        return nonce


@dataclass(frozen=True, slots=True)
class Call:
    """What a transaction does, whatever its type. `to` is None for a create."""

    to: bytes | None
    value: int = 0
    data: bytes = b""
    gas: int = 200_000


def _access(entries: AccessList) -> Rlp:
    return [[address, list(keys)] for address, keys in entries]


def legacy(sender: Account, call: Call, chain_id: int | None, gas_price: int = 5 * GWEI) -> bytes:
    """Type 0; with `chain_id` its signature names the chain (EIP-155), without it does not."""
    fields = [sender.take_nonce(), gas_price, call.gas, call.to or b"", call.value, call.data]
    tail = [] if chain_id is None else [chain_id, 0, 0]
    parity, r, s = sender.sign(keccak(rlp.encode(fields + tail)))
    v = parity + (27 if chain_id is None else 35 + 2 * chain_id)
    return rlp.encode([*fields, v, r, s])


def with_access_list(
    sender: Account, call: Call, chain_id: int, access: AccessList, gas_price: int = 5 * GWEI
) -> bytes:
    """Type 1 (EIP-2930)."""
    fields = [
        chain_id,
        sender.take_nonce(),
        gas_price,
        call.gas,
        call.to or b"",
        call.value,
        call.data,
        _access(access),
    ]
    return _typed(1, sender, fields)


def dynamic_fee(sender: Account, call: Call, chain_id: int, access: AccessList = ()) -> bytes:
    """Type 2 (EIP-1559)."""
    return _typed(2, sender, _fee_fields(sender, call, chain_id, access))


def authorization(signer: Account, chain_id: int, delegate: bytes) -> Rlp:
    """One signed EIP-7702 authorization of `signer` for the code at `delegate`, as RLP fields. It uses one nonce."""
    nonce = signer.take_nonce()
    parity, r, s = signer.sign(keccak(b"\x05" + rlp.encode([chain_id, delegate, nonce])))
    return [chain_id, delegate, nonce, parity, r, s]


def set_code(
    sender: Account, call: Call, chain_id: int, authorizations: Sequence[Rlp], access: AccessList = ()
) -> bytes:
    """Type 4 (EIP-7702)."""
    return _typed(4, sender, [*_fee_fields(sender, call, chain_id, access), list(authorizations)])


# A blob of zeros is the zero polynomial: its commitment and its proof are both the point at infinity, so no trusted
# set-up is needed to make one that every node accepts.
_ZERO_BLOB = bytes(131072)
_INFINITY = b"\xc0" + bytes(47)


def blob(sender: Account, call: Call, chain_id: int, blobs: int = 1) -> bytes:
    """Type 3 (EIP-4844) in its network form, with `blobs` blobs of zeros beside it."""
    versioned_hash = b"\x01" + hashlib.sha256(_INFINITY).digest()[1:]
    fields = [*_fee_fields(sender, call, chain_id, ()), 10 * GWEI, [versioned_hash] * blobs]
    parity, r, s = sender.sign(keccak(b"\x03" + rlp.encode(fields)))
    sidecar = [[_ZERO_BLOB] * blobs, [_INFINITY] * blobs, [_INFINITY] * blobs]
    return b"\x03" + rlp.encode([[*fields, parity, r, s], *sidecar])


def without_sidecar(raw: bytes) -> bytes:
    """A type 3 transaction as a block holds it: the signed fields alone, without blobs, commitments and proofs."""
    fields, *_ = rlp.decode(raw[1:])
    return b"\x03" + rlp.encode(fields)


def _fee_fields(sender: Account, call: Call, chain_id: int, access: AccessList) -> list[Rlp]:
    fees = [GWEI, 20 * GWEI]
    return [chain_id, sender.take_nonce(), *fees, call.gas, call.to or b"", call.value, call.data, _access(access)]


def _typed(tx_type: int, sender: Account, fields: list[Rlp]) -> bytes:
    prefix = bytes([tx_type])
    parity, r, s = sender.sign(keccak(prefix + rlp.encode(fields)))
    return prefix + rlp.encode([*fields, parity, r, s])
