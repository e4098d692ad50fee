"""Single fields of a transaction, from a node's spelling to a value. Every reader raises ValueError for what is no
such value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.core.hexadecimal import from_hex, from_hex_exact, parse_quantity
from app.core.rlp import EMPTY_LIST, encode_list_of_encoded
from app.core.rpc_transaction import RpcAccess, RpcTransaction
from app.core.transaction import AccessList

ADDRESS_HEADER = b"\x94"
HASH_HEADER = b"\xa0"


def uint(value: object, bits: int) -> int:
    """A quantity of at most `bits` bits."""
    number = parse_quantity(value)
    if number >> bits:
        raise ValueError(f"a quantity of more than {bits} bits")
    return number


def uint_or_zero(value: object, bits: int) -> int:
    """As `uint`; absent is zero."""
    return 0 if value is None else uint(value, bits)


def data(value: Any) -> bytes:
    """Bytes of any length."""
    if not isinstance(value, str):
        raise ValueError("not data")  # noqa: TRY004  # broken data, not a broken caller
    return from_hex(value)


def exact(value: Any, size_bytes: int) -> bytes:
    """Bytes of one length."""
    if not isinstance(value, str):
        raise ValueError("not data")  # noqa: TRY004  # broken data, not a broken caller
    return from_hex_exact(value, size_bytes)


def address_or_empty(value: Any) -> bytes:
    """An address, or nothing: null, absent, `0x` and the empty string all mean that there is none."""
    if value is None or value in ("", "0x"):
        return b""
    return exact(value, 20)


def input_of(rpc: RpcTransaction) -> bytes:
    """The call data, which some nodes name `data`."""
    return from_hex(rpc.input if rpc.input is not None else rpc.data or "")


def access_list_of(given: Sequence[RpcAccess] | None) -> tuple[AccessList, bytes]:
    """The access list and its encoding (EIP-2930); null and absent mean the empty list."""
    if not given:
        return (), EMPTY_LIST
    entries = []
    encoded = []
    for access in given:
        address = from_hex_exact(access.address, 20)
        keys = tuple([from_hex_exact(key, 32) for key in access.storage_keys or access.storage_keys_snake or ()])
        entries.append((address, keys))
        encoded.append(
            encode_list_of_encoded(
                (ADDRESS_HEADER + address, encode_list_of_encoded([HASH_HEADER + key for key in keys]))
            )
        )
    return tuple(entries), encode_list_of_encoded(encoded)


def parities(*spelled: Any) -> list[int]:
    """The distinct signature parities that a node gives, in the order given. Raises ValueError when there is none."""
    found: list[int] = []
    for value in spelled:
        if value is not None and (parity := uint(value, 256)) not in found:
            found.append(parity)
    if not found:
        raise ValueError("no signature parity")
    return found
