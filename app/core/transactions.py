"""Transactions: from the fields a node sends to the envelope whose Keccak hash is the transaction's hash.

Where nodes disagree about a spelling, every documented one is encoded and the hash decides, or the root for a
transaction without a hash; beyond those nothing is guessed. Which types a chain may have is a matter of its family:
the same byte means different things on different chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from app.core import transactions_arbitrum as arbitrum
from app.core import transactions_ethereum as ethereum
from app.core import transactions_optimism as optimism
from app.core import transactions_tempo as tempo
from app.core.errors import ContentInvalid
from app.core.hexadecimal import parse_quantity, to_hex
from app.core.keccak import keccak
from app.core.rpc_transaction import RpcTransaction, UnreadableTransaction, given, number_or_none
from app.core.transaction import AccessList, Authorization, Deposit, Transaction, UnsupportedType
from app.core.transaction_fields import exact

__all__ = [
    "AccessList",
    "Authorization",
    "Deposit",
    "Transaction",
    "UnsupportedType",
    "alternatives",
    "decode_transaction",
    "has_codec",
]

Codec = Callable[[RpcTransaction, bytes, int], Iterator[Transaction]]
"""(the node's object, its hash, the configured chain id) -> candidates, likeliest first. Raises ValueError for broken
fields.
"""

_ETHEREUM: dict[int, Codec] = {
    ethereum.LEGACY: ethereum.legacy,
    ethereum.ACCESS_LIST: ethereum.access_list,
    ethereum.DYNAMIC_FEE: ethereum.dynamic_fee,
    ethereum.BLOB: ethereum.blob,
    ethereum.SET_CODE: ethereum.set_code,
}

_ARBITRUM: dict[int, Codec] = {
    arbitrum.DEPOSIT: arbitrum.deposit,
    arbitrum.UNSIGNED: arbitrum.unsigned,
    arbitrum.CONTRACT: arbitrum.contract,
    arbitrum.RETRY: arbitrum.retry,
    arbitrum.SUBMIT_RETRYABLE: arbitrum.submit_retryable,
    arbitrum.INTERNAL: arbitrum.internal,
    arbitrum.CLASSIC_LEGACY: arbitrum.classic_legacy,
}

_CELO: dict[int, Codec] = {
    optimism.DEPOSIT: optimism.deposit,
    optimism.CELO_DYNAMIC_FEE: optimism.celo_dynamic_fee,
    optimism.CELO_GATEWAY: optimism.celo_gateway,
}

_BY_FAMILY: dict[str, dict[int, Codec]] = {
    "op-stack": _ETHEREUM | {optimism.DEPOSIT: optimism.deposit},
    "celo": _ETHEREUM | _CELO,
    "arbitrum": _ETHEREUM | _ARBITRUM,
    "tempo": _ETHEREUM | {tempo.TEMPO: tempo.tempo},
}

_PARTLY_KNOWN = frozenset({arbitrum.CLASSIC_LEGACY, optimism.CELO_GATEWAY, tempo.TEMPO})
"""Types where a hash that is not met may be our codec's fault: no reason to distrust the node."""

_MAX_ALTERNATIVES = 8


def has_codec(type_: int, family: str) -> bool:
    """Whether transactions of the type can be encoded in this family."""
    return type_ in _BY_FAMILY.get(family, _ETHEREUM)


def decode_transaction(rpc: RpcTransaction, family: str, chain_id: int, *, derive: bool = True) -> Transaction:
    """The transaction, with an envelope that hashes to its hash. `chain_id` stands in where a typed one does not say
    its own. `derive`: if no spelling as given hashes to it, the values that other nodes would have given are tried.

    Raises `UnsupportedType` when the family has no codec for it, `ContentInvalid` when no documented spelling hashes
    to its hash.
    """
    return alternatives(rpc, family, chain_id, derive=derive)[0]


def alternatives(rpc: RpcTransaction, family: str, chain_id: int, *, derive: bool = True) -> list[Transaction]:
    """As `decode_transaction`; of a transaction that the node gives no hash all that it may be, likeliest first, at
    least one: only the root can tell which it is.
    """
    type_ = rpc.type
    codec = _BY_FAMILY.get(family, _ETHEREUM).get(type_)
    if codec is None:
        raise UnsupportedType(type_)
    if isinstance(rpc, UnreadableTransaction):
        raise ContentInvalid("decode", f"transaction {_name(rpc)}: {rpc.fault}")
    tx_hash = rpc.hash
    found: dict[bytes, Transaction] = {}
    fault: ValueError | None = None
    for spelling in _spellings(rpc, type_, chain_id, derive=derive):
        try:
            for candidate in codec(spelling, tx_hash or b"", chain_id):
                hashed = keccak(candidate.envelope)
                if hashed == tx_hash:
                    return [candidate]
                if tx_hash is None and hashed not in found:
                    found[hashed] = replace(candidate, hash=hashed)
        except ValueError as error:
            fault = fault or error
        if len(found) >= _MAX_ALTERNATIVES:
            break
    if found:
        return list(found.values())
    if fault is not None:
        raise ContentInvalid("decode", f"transaction {_name(rpc)}: {fault}") from fault
    if type_ in _PARTLY_KNOWN:
        raise UnsupportedType(type_, partly=True)
    raise ContentInvalid("transaction_hash", f"transaction {_name(rpc)} of type {type_:#x} does not hash to its hash")


def _name(rpc: RpcTransaction) -> str:
    return "without a hash" if rpc.hash is None else to_hex(rpc.hash)


# --- spellings ------------------------------------------------------------------------------------------------------

_NUMBERS = (
    "nonce",
    "gas",
    "value",
    "gas_price",
    "max_priority_fee_per_gas",
    "max_fee_per_gas",
    "max_fee_per_blob_gas",
    "r",
    "s",
)


def _spellings(rpc: RpcTransaction, type_: int, chain_id: int, *, derive: bool) -> Iterator[RpcTransaction]:
    """The node's object as it is; then what it may mean, a few dozen at most: absent numbers are zero, `to` is empty
    where a node shows the created contract or zero, the chain id is the configured one, and `v` is spelled otherwise.
    """
    yield rpc
    if not derive:
        return
    absent: dict[str, Any] = {name: 0 for name in _NUMBERS if getattr(rpc, name) in (None, "")}
    # What stands there as it is comes first in each of them.
    targets: list[Any] = [rpc.to]
    if not given(rpc.to) or _is_address(rpc.to):
        targets.append(None)
    chain_ids: list[Any] = [rpc.chain_id]
    if type_ != ethereum.LEGACY and rpc.chain_id is not None and not given(rpc.chain_id):
        chain_ids.append(None)
    signatures: list[dict[str, Any]] = [{}, *_signatures(rpc, type_, chain_id)]
    for target in targets:
        for signed_for in chain_ids:
            for signature in signatures:
                changes = absent | {"to": target, "chain_id": signed_for} | signature
                if any(getattr(rpc, name) != value for name, value in changes.items()):
                    yield replace(rpc, **changes)


def _is_address(text: object) -> bool:
    try:
        return bool(exact(text, 20))
    except ValueError:
        return False


def _signatures(rpc: RpcTransaction, type_: int, chain_id: int) -> Iterator[dict[str, Any]]:
    """The few other values that `v` can have, the parity that is given first: 0 or 1, 27 or 28 (before EIP-155), or with a
    chain id in it.
    """
    v: int | None
    try:
        v = parse_quantity(rpc.v if rpc.v not in (None, "") else rpc.y_parity)
    except ValueError:
        v = None
    parity = 0 if v is None else v & 1 if v < 2 else 1 - (v & 1)
    if type_ in (ethereum.LEGACY, arbitrum.CLASSIC_LEGACY):
        own = [] if v is None or v < 35 else [(v - 35) >> 1]
        known = dict.fromkeys(each for each in (number_or_none(rpc.chain_id), chain_id, *own) if each)
        for y in (parity, 1 - parity):
            yield from ({"v": other} for other in (*(35 + 2 * each + y for each in known), 27 + y, y))
    else:
        yield from ({"v": y, "y_parity": None} for y in (parity, 1 - parity))
