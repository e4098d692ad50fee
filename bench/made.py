"""A block of as many transactions as are asked for, as a node tells it: hashes and roots hold, signatures are arbitrary."""

from __future__ import annotations

from typing import Any

from app.core.keccak import keccak
from app.core.receipts import Log, bloom
from app.core.rlp import encode, encode_int
from app.core.trie import EMPTY_ROOT, build_ordered
from tests.acceptance.made_blocks import rehash

HEIGHT, CHAIN_ID = 20_000_000, 1
_TO, _FROM = b"\x11" * 20, b"\x22" * 20
_INPUT_BYTES, _LOGS = 260, 2


def made(transactions: int) -> dict[str, Any]:
    """Shaped as a recorded block; 2.7 KB of JSON for each transaction."""
    told, receipts, raws, leaves = [], [], [], []
    for index in range(transactions):
        place = {"blockNumber": hex(HEIGHT), "transactionIndex": hex(index)}
        transaction, raw = _transaction(index)
        receipt, leaf = _receipt(index, transaction["hash"])
        told.append(transaction | place)
        receipts.append(receipt | place)
        raws.append(raw)
        leaves.append(leaf)
    zero = _hex(bytes(32))
    block = {
        "parentHash": zero,
        "sha3Uncles": _hex(keccak(encode([]))),
        "miner": _hex(bytes(20)),
        "stateRoot": zero,
        "transactionsRoot": _hex(build_ordered(raws).root),
        "receiptsRoot": _hex(build_ordered(leaves).root),
        "logsBloom": _hex(bytes(255) + b"\x01"),
        "difficulty": "0x0",
        "number": hex(HEIGHT),
        "gasLimit": hex(10**10),
        "gasUsed": hex(21_000 * transactions),
        "timestamp": "0x665ba27f",
        "extraData": "0x",
        "mixHash": zero,
        "nonce": "0x0000000000000000",
        "baseFeePerGas": "0x7",
        "withdrawalsRoot": _hex(EMPTY_ROOT),
        "uncles": [],
        "withdrawals": [],
        "transactions": told,
    }
    return {"chain": "made", "chainId": CHAIN_ID, **rehash({"block": block, "receipts": receipts})}


def _transaction(index: int) -> tuple[dict[str, Any], bytes]:
    data = keccak(index.to_bytes(8, "big")) * (_INPUT_BYTES // 32)
    r, s = (b"\x01" + keccak(part + b"%d" % index)[1:] for part in (b"r", b"s"))
    raw = encode([encode_int(index), b"\x09", encode_int(21_000), _TO, encode_int(index), data, b"\x25", r, s])
    told = {
        "type": "0x0",
        "hash": _hex(keccak(raw)),
        "from": _hex(_FROM),
        "nonce": hex(index),
        "gasPrice": "0x9",
        "gas": hex(21_000),
        "to": _hex(_TO),
        "value": hex(index),
        "input": _hex(data),
        "v": "0x25",
        "r": _hex(r),
        "s": _hex(s),
        "chainId": hex(CHAIN_ID),
    }
    return told, raw


def _receipt(index: int, tx_hash: str) -> tuple[dict[str, Any], bytes]:
    logs = [Log(_TO, (keccak(b"topic"), keccak(b"%d" % index)), bytes(32)) for _ in range(_LOGS)]
    flood, used = bloom(logs), 21_000 * (index + 1)
    leaf = encode([b"\x01", encode_int(used), flood, [[log.address, list(log.topics), log.data] for log in logs]])
    told = {
        "type": "0x0",
        "transactionHash": tx_hash,
        "from": _hex(_FROM),
        "to": _hex(_TO),
        "contractAddress": None,
        "status": "0x1",
        "cumulativeGasUsed": hex(used),
        "gasUsed": hex(21_000),
        "logsBloom": _hex(flood),
        "logs": [
            {
                "address": _hex(log.address),
                "topics": [_hex(topic) for topic in log.topics],
                "data": _hex(log.data),
                "blockNumber": hex(HEIGHT),
                "transactionHash": tx_hash,
                "transactionIndex": hex(index),
                "logIndex": hex(index * _LOGS + at),
                "removed": False,
            }
            for at, log in enumerate(logs)
        ],
    }
    return told, leaf


def _hex(data: bytes) -> str:
    return "0x" + data.hex()
