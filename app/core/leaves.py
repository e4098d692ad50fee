"""The leaf of the binary tree: one transaction with its receipt, as the contracts on the other side decode it.

    abi.encode(uint8 type, bytes[] chunks)

Each chunk is the ABI encoding of its fields as if they were a function's parameters:

    first     uint64 nonce, uint64 gasLimit, address from, bool toIsNull, address to, uint256 value, bytes input
    type 0    uint128 gasPrice, uint256 v, bytes32 r, bytes32 s
    type 1    uint64 chainId, uint128 gasPrice, ACCESS_LIST, SIGNATURE
    type 2    FEES, SIGNATURE
    type 3    FEES  |  uint256 maxFeePerBlobGas, bytes32[] blobVersionedHashes, SIGNATURE
    type 4    FEES  |  (uint256 chainId, address, uint64 nonce, uint8 yParity, uint256 r, uint256 s)[], SIGNATURE
    type 126  bytes32 sourceHash, uint256 mint, bool isSystemTx
    last      uint8 status, uint64 gasUsed, (address, bytes32[] topics, bytes data)[] logs, bytes logsBloom

    ACCESS_LIST = (address, bytes32[])[]
    FEES        = uint64 chainId, uint128 maxPriorityFeePerGas, uint128 maxFeePerGas, ACCESS_LIST
    SIGNATURE   = uint8 yParity, bytes32 r, bytes32 s

where `|` parts two chunks. Source: the Creditcoin universal smart contract (USC) encoding, version 1. A value too large
for its word is refused, never cut.
"""

from __future__ import annotations

from app.core.abi import (
    OutOfRange,
    address,
    boolean,
    bytes32,
    bytes32_array,
    dynamic_array,
    dynamic_bytes,
    offset,
    static_array,
    uint,
)
from app.core.errors import ContentInvalid, UnsupportedBlockFormat
from app.core.receipts import Log, Receipt
from app.core.transaction import AccessList, Authorization, Transaction, UnsupportedType

DEPOSIT_NONCE = "deposit_nonce"
"""The check that a deposit and its receipt name the same nonce: no trie holds that of the deposit."""

_LEGACY, _ACCESS_LIST, _DYNAMIC_FEE, _BLOB, _SET_CODE, _DEPOSIT = 0, 1, 2, 3, 4, 126

_NO_ADDRESS = bytes(20)


def encode_leaf(tx: Transaction, receipt: Receipt, sender: bytes, gas_used: int) -> bytes:
    """The leaf bytes of one transaction.

    `sender` is the recovered signer, 20 bytes; `gas_used` the difference of cumulative gas: no root commits to what a
    node says of the two. Raises `UnsupportedType` for a type without a layout, `UnsupportedBlockFormat` for a value
    beyond its word, and `ContentInvalid` when the nonce that a node reports of a deposit is not its receipt's.
    """
    try:
        chunks = [_common(tx, receipt, sender), *_middle(tx), _outcome(receipt, gas_used)]
        # Two heads: the type, and where the array of chunks begins.
        return uint(tx.type, 8, "type") + offset(2) + dynamic_array([dynamic_bytes(chunk) for chunk in chunks])
    except OutOfRange as unfit:
        raise UnsupportedBlockFormat(f"no leaf for transaction 0x{tx.hash.hex()}: {unfit}") from unfit


def _common(tx: Transaction, receipt: Receipt, sender: bytes) -> bytes:
    nonce = _deposit_nonce(tx, receipt) if tx.type == _DEPOSIT else tx.nonce
    return b"".join(
        (
            uint(nonce, 64, "nonce"),
            uint(tx.gas_limit, 64, "gas"),
            address(sender, "from"),
            boolean(not tx.to),
            address(tx.to or _NO_ADDRESS, "to"),
            uint(tx.value, 256, "value"),
            offset(7),
            dynamic_bytes(tx.input),
        )
    )


def _deposit_nonce(tx: Transaction, receipt: Receipt) -> int:
    """A deposit signs no nonce. From Canyon on, told by the version, its receipt commits to the one it used."""
    if receipt.deposit_receipt_version is None:
        return 0
    nonce = receipt.deposit_nonce or 0
    reported = tx.deposit.nonce if tx.deposit else None
    if reported not in (None, nonce):
        raise ContentInvalid(
            DEPOSIT_NONCE, f"deposit 0x{tx.hash.hex()} has nonce {reported}, in its receipt it is {nonce}"
        )
    return nonce


def _middle(tx: Transaction) -> list[bytes]:
    if tx.type == _LEGACY:
        return [uint(tx.gas_price, 128, "gasPrice") + uint(tx.v, 256, "v") + _r_and_s(tx)]
    if tx.type == _ACCESS_LIST:
        heads = _chain_id(tx) + uint(tx.gas_price, 128, "gasPrice")
        return [heads + offset(6) + _signature(tx) + _access_list(tx.access_list)]
    if tx.type == _DYNAMIC_FEE:
        return [_fees(tx) + offset(7) + _signature(tx) + _access_list(tx.access_list)]
    if tx.type == _BLOB:
        hashes = bytes32_array(tx.blob_versioned_hashes, "blobVersionedHashes")
        return [
            _fees(tx) + offset(4) + _access_list(tx.access_list),
            uint(tx.max_fee_per_blob_gas, 256, "maxFeePerBlobGas") + offset(5) + _signature(tx) + hashes,
        ]
    if tx.type == _SET_CODE:
        authorizations = static_array([_authorization(each) for each in tx.authorization_list])
        return [
            _fees(tx) + offset(4) + _access_list(tx.access_list),
            offset(4) + _signature(tx) + authorizations,
        ]
    if tx.type == _DEPOSIT and tx.deposit is not None:
        source_hash = bytes32(tx.deposit.source_hash, "sourceHash")
        return [source_hash + uint(tx.deposit.mint, 256, "mint") + boolean(tx.deposit.is_system_tx)]
    raise UnsupportedType(tx.type)


def _chain_id(tx: Transaction) -> bytes:
    if tx.chain_id is None:
        raise OutOfRange("chainId", "is missing")
    return uint(tx.chain_id, 64, "chainId")


def _fees(tx: Transaction) -> bytes:
    return (
        _chain_id(tx)
        + uint(tx.max_priority_fee_per_gas, 128, "maxPriorityFeePerGas")
        + uint(tx.max_fee_per_gas, 128, "maxFeePerGas")
    )


def _signature(tx: Transaction) -> bytes:
    return uint(tx.y_parity, 8, "yParity") + _r_and_s(tx)


def _r_and_s(tx: Transaction) -> bytes:
    return uint(tx.r, 256, "r") + uint(tx.s, 256, "s")


def _access_list(entries: AccessList) -> bytes:
    return dynamic_array(
        [address(account, "accessList") + offset(2) + bytes32_array(keys, "accessList") for account, keys in entries]
    )


def _authorization(given: Authorization) -> bytes:
    """As given: an authorization that is not valid is skipped by the chain, and is part of the transaction all the
    same.
    """
    return (
        uint(given.chain_id, 256, "authorizationList chainId")
        + address(given.address, "authorizationList address")
        + uint(given.nonce, 64, "authorizationList nonce")
        + uint(given.y_parity, 8, "authorizationList yParity")
        + uint(given.r, 256, "authorizationList r")
        + uint(given.s, 256, "authorizationList s")
    )


def _outcome(receipt: Receipt, gas_used: int) -> bytes:
    # Before Byzantium a receipt had a state root in place of the status; it stands for success.
    status = 1 if receipt.status is None else receipt.status
    logs = dynamic_array([_log(log) for log in receipt.logs])
    return b"".join(
        (
            uint(status, 8, "status"),
            uint(gas_used, 64, "gasUsed"),
            offset(4),
            offset(4, logs),
            logs,
            dynamic_bytes(receipt.logs_bloom),
        )
    )


def _log(log: Log) -> bytes:
    topics = bytes32_array(log.topics, "topics")
    return address(log.address, "log address") + offset(3) + offset(3, topics) + topics + dynamic_bytes(log.data)
