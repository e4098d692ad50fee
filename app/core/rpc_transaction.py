"""A transaction as nodes send it, in every spelling that some node is known for, and the few fields that are read on
their own.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from app.core.errors import ContentInvalid
from app.core.hexadecimal import from_hex_exact, parse_quantity

Spelled: TypeAlias = str | int | bool | None
"""A quantity as some node may spell it; `parse_quantity` reads it."""


class RpcAccess(msgspec.Struct, gc=False):
    """One entry of an access list; some Substrate nodes write `storage_keys`."""

    address: str
    storage_keys: list[str] | None = msgspec.field(default=None, name="storageKeys")
    storage_keys_snake: list[str] | None = msgspec.field(default=None, name="storage_keys")


class RpcAuthorizationSignature(msgspec.Struct, rename="camel", gc=False):
    """The nested signature that Frontier nodes put into an authorization."""

    y_parity: Spelled = None
    v: Spelled = None
    r: Spelled = None
    s: Spelled = None
    odd_y_parity: Spelled = msgspec.field(default=None, name="odd_y_parity")


class RpcAuthorization(msgspec.Struct, rename="camel", gc=False):
    """One entry of an EIP-7702 authorization list."""

    address: str
    nonce: Spelled
    chain_id: Spelled = None
    chain_id_snake: Spelled = msgspec.field(default=None, name="chain_id")
    y_parity: Spelled = None
    v: Spelled = None
    r: Spelled = None
    s: Spelled = None
    signature: RpcAuthorizationSignature | None = None


class RpcTransaction(msgspec.Struct, rename="camel", gc=False):
    """One transaction of a block. `from_hex` is what the node says, and hashed for a few unsigned types only."""

    hash_hex: Any = msgspec.field(default=None, name="hash")
    given_type: Any = msgspec.field(default=None, name="type")
    block_hash_hex: Any = msgspec.field(default=None, name="blockHash")
    given_index: Any = msgspec.field(default=None, name="transactionIndex")
    from_hex: str | None = msgspec.field(default=None, name="from")
    nonce: Spelled = None
    gas: Spelled = None
    to: str | None = None
    value: Spelled = None
    input: str | None = None
    data: str | None = None
    gas_price: Spelled = None
    max_priority_fee_per_gas: Spelled = None
    max_fee_per_gas: Spelled = None
    max_fee_per_blob_gas: Spelled = None
    blob_versioned_hashes: list[str] | None = None
    access_list: list[RpcAccess] | None = None
    authorization_list: list[RpcAuthorization] | None = None
    chain_id: Spelled = None
    v: Spelled = None
    y_parity: Spelled = None
    r: Spelled = None
    s: Spelled = None
    # OP stack deposits, then Celo
    source_hash: Any = None
    mint: Any = None
    is_system_tx: Any = None
    fee_currency: Any = None
    gateway_fee_recipient: Any = None
    gateway_fee: Any = None
    # Arbitrum, then Tempo: other chains may use these names for other things, so nothing is assumed about their form
    request_id: Any = None
    ticket_id: Any = None
    refund_to: Any = None
    max_refund: Any = None
    submission_fee_refund: Any = None
    l1_base_fee: Any = msgspec.field(default=None, name="l1BaseFee")
    deposit_value: Any = None
    retry_to: Any = None
    retry_value: Any = None
    retry_data: Any = None
    beneficiary: Any = None
    max_submission_fee: Any = None
    calls: Any = None
    nonce_key: Any = None
    valid_before: Any = None
    valid_after: Any = None
    fee_token: Any = None
    fee_payer_signature: Any = None
    aa_authorization_list: Any = None
    key_authorization: Any = None
    signature: Any = None

    @property
    def hash(self) -> bytes | None:
        """The hash that the node gives the transaction, 32 bytes; None where it gives none."""
        return hash_field(self.hash_hex, "a transaction hash") if given(self.hash_hex) else None

    @property
    def type(self) -> int:
        """The EIP-2718 type as the node gives it, at most 64 bits; a transaction without one is a legacy transaction."""
        return 0 if self.given_type is None else number_field(self.given_type, "type")

    @property
    def block_hash(self) -> bytes | None:
        """The block that the node says the transaction is in."""
        return hash_field(self.block_hash_hex, "a transaction's blockHash") if given(self.block_hash_hex) else None

    @property
    def transaction_index(self) -> int | None:
        """The position that the node says the transaction has; None where it says none that can be read."""
        return number_or_none(self.given_index)


class UnreadableTransaction(RpcTransaction, gc=False):
    """A transaction that is not of the form above: what could be read of its name, and `fault`, why the rest could not."""

    fault: str = ""


LAST_TYPE = 0x7F
"""EIP-2718 ends here: a leaf that begins with a higher byte is a legacy one."""


def given(value: object) -> bool:
    """Whether a field of bytes says anything: null, an empty string, `0x` and zero of any length all say nothing."""
    if isinstance(value, str):
        return bool(value.removeprefix("0x").removeprefix("0X").strip("0"))
    return value is not None and value != 0


def number_or_none(value: object) -> int | None:
    """A quantity of at most 64 bits, for a field that decides nothing; None for what is no such quantity."""
    try:
        number = parse_quantity(value)
    except ValueError:
        return None
    return None if number >> 64 else number


def hash_field(text: object, what: str) -> bytes:
    """The 32 bytes of a field that is read on its own. Raises `ContentInvalid`."""
    try:
        return from_hex_exact(text if isinstance(text, str) else "", 32)
    except ValueError as error:
        raise ContentInvalid("decode", f"{what} that is not 32 bytes of hex") from error


def number_field(value: object, what: str) -> int:
    """A quantity that every client keeps in 64 bits. Raises `ContentInvalid`."""
    try:
        number = parse_quantity(value)
    except ValueError as error:
        raise ContentInvalid("decode", f"{what}: {error}") from error
    if number >> 64:
        raise ContentInvalid("decode", f"{what} of more than 64 bits")
    return number
