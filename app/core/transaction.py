"""What a decoded transaction is, whatever its type."""

from __future__ import annotations

import msgspec

AccessList = tuple[tuple[bytes, tuple[bytes, ...]], ...]
"""(address, storage keys) in the order of the transaction."""


class UnsupportedType(Exception):  # a verdict about the block, not a fault
    """A transaction whose type, or whose use of it, has no codec in the chain's family: its leaf cannot be made.

    `partly`: the type has a codec, and this transaction is beyond it, as far as the node's fields tell.
    """

    def __init__(self, type_: int, *, partly: bool = False) -> None:
        super().__init__(type_)
        self.type = type_
        self.partly = partly


class Authorization(msgspec.Struct, frozen=True, gc=False):
    """One EIP-7702 authorization, as given: `y_parity` and `s` may be of no valid signature."""

    chain_id: int
    address: bytes
    nonce: int
    y_parity: int
    r: int
    s: int


class Deposit(msgspec.Struct, frozen=True, gc=False):
    """What an OP-stack deposit has instead of a signature. `nonce` is what the node reports; it is not hashed."""

    source_hash: bytes
    sender: bytes
    mint: int
    is_system_tx: bool
    nonce: int | None = None


class Transaction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A transaction whose envelope hashes to its hash. Amounts are in wei, `to` is empty for a creation, and what a
    type does not have is zero or empty.

    `envelope` is the leaf of the transactions trie (EIP-2718: type byte and payload; for legacy the payload alone).
    `v` is as it stands there and `y_parity` the parity it carries. `signing_hash` is what the sender signed, empty
    for a type without a signature; `sender` is set where the envelope itself names it.
    """

    type: int
    hash: bytes
    envelope: bytes
    nonce: int = 0
    gas_limit: int = 0
    to: bytes = b""
    value: int = 0
    input: bytes = b""
    gas_price: int = 0
    max_priority_fee_per_gas: int = 0
    max_fee_per_gas: int = 0
    max_fee_per_blob_gas: int = 0
    chain_id: int | None = None
    access_list: AccessList = ()
    blob_versioned_hashes: tuple[bytes, ...] = ()
    authorization_list: tuple[Authorization, ...] = ()
    v: int = 0
    y_parity: int = 0
    r: int = 0
    s: int = 0
    signing_hash: bytes = b""
    sender: bytes = b""
    deposit: Deposit | None = None
