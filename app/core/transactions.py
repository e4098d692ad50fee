"""Transactions: from the fields a node sends to the envelope whose Keccak hash is the transaction's hash.

Where nodes disagree about a spelling, every documented one is encoded and the hash decides; beyond those nothing is
guessed. Which types a chain may have is a matter of its family: the same byte means different things on different
chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from app.core import transactions_arbitrum as arbitrum
from app.core import transactions_ethereum as ethereum
from app.core import transactions_optimism as optimism
from app.core import transactions_tempo as tempo
from app.core.errors import ContentInvalid
from app.core.hexadecimal import to_hex
from app.core.keccak import keccak
from app.core.rpc_transaction import RpcTransaction
from app.core.transaction import AccessList, Authorization, Deposit, Transaction, UnsupportedType

__all__ = ["AccessList", "Authorization", "Deposit", "Transaction", "UnsupportedType", "decode_transaction"]

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


def decode_transaction(rpc: RpcTransaction, family: str, chain_id: int) -> Transaction:
    """The transaction, with an envelope that hashes to its hash. `chain_id` stands in where a typed one does not say
    its own.

    Raises `UnsupportedType` when the family has no codec for it, `ContentInvalid` when no documented spelling hashes
    to its hash.
    """
    type_ = rpc.type
    tx_hash = rpc.hash
    codec = _BY_FAMILY.get(family, _ETHEREUM).get(type_)
    if codec is None:
        raise UnsupportedType(type_)
    try:
        for candidate in codec(rpc, tx_hash, chain_id):
            if keccak(candidate.envelope) == tx_hash:
                return candidate
    except ValueError as error:
        raise ContentInvalid("decode", f"transaction {to_hex(tx_hash)}: {error}") from error
    if type_ in _PARTLY_KNOWN:
        raise UnsupportedType(type_)
    raise ContentInvalid(
        "transaction_hash", f"transaction {to_hex(tx_hash)} of type {type_:#x} does not hash to its hash"
    )
