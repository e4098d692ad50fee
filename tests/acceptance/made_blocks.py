"""Small chains made here, as a node would tell them: real signatures and roots, every type in a few kilobytes.

The recorded blocks are what the world is like; these are for questions that they are too large or too few to ask.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import rlp

from tests.oracles import signing, trie_library
from tests.oracles.signing import Account, Call, keccak

Record = dict[str, Any]

CHAIN_ID = 4242
OP_CHAIN_ID = 4243
_NO_UNCLES = keccak(rlp.encode([]))
_FIELDS = {
    0: "nonce gasPrice gas to value input v r s",
    1: "chainId nonce gasPrice gas to value input accessList yParity r s",
    2: "chainId nonce maxPriorityFeePerGas maxFeePerGas gas to value input accessList yParity r s",
    3: "chainId nonce maxPriorityFeePerGas maxFeePerGas gas to value input accessList maxFeePerBlobGas "
    "blobVersionedHashes yParity r s",
    4: "chainId nonce maxPriorityFeePerGas maxFeePerGas gas to value input accessList authorizationList yParity r s",
    0x7E: "sourceHash from to mint value gas isSystemTx input",
}
_HEADER_TEXT = (
    "parentHash sha3Uncles miner stateRoot transactionsRoot receiptsRoot logsBloom difficulty number gasLimit gasUsed "
    "timestamp extraData mixHash nonce baseFeePerGas withdrawalsRoot blobGasUsed excessBlobGas parentBeaconBlockRoot "
    "requestsHash"
)
_QUANTITIES_TEXT = (
    "difficulty number gasLimit gasUsed timestamp baseFeePerGas blobGasUsed excessBlobGas chainId nonce gasPrice gas "
    "value v r s yParity maxPriorityFeePerGas maxFeePerGas maxFeePerBlobGas mint"
)
_HEADER = tuple(_HEADER_TEXT.split())
_QUANTITIES = frozenset(_QUANTITIES_TEXT.split())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a transaction came to: the parts of its receipt that are free to choose."""

    gas_used: int = 21_000
    status: int = 1
    logs: Sequence[tuple[bytes, Sequence[bytes], bytes]] = field(default_factory=tuple)


def _hex(data: bytes) -> str:
    return "0x" + data.hex()


def _quantity(data: bytes) -> str:
    return hex(int.from_bytes(data, "big"))


def _bloom(logs: Sequence[tuple[bytes, Sequence[bytes], bytes]]) -> bytes:
    bits = 0
    for address, topics, _ in logs:
        for item in (address, *topics):
            digest = keccak(item)
            for place in (0, 2, 4):
                bits |= 1 << (int.from_bytes(digest[place : place + 2], "big") & 2047)
    return bits.to_bytes(256, "big")


def header_rlp(block: Record) -> bytes:
    """The header of a block as JSON tells it: the fields it has, in their order."""
    fields = []
    for name in _HEADER:
        if name in block:
            text = block[name]
            is_number = name in _QUANTITIES and name != "nonce"
            fields.append(int(text, 16) if is_number else bytes.fromhex(text[2:]))
    return rlp.encode(fields)


def rehash(record: Record) -> Record:
    """A copy whose block hash is that of its header, told everywhere: a changed header that is honest about it."""
    changed = copy.deepcopy(record)
    block = changed["block"]
    block["hash"] = _hex(keccak(header_rlp(block)))
    for item in [*block["transactions"], *changed["receipts"]]:
        item["blockHash"] = block["hash"]
        for log in item.get("logs", ()):
            log["blockHash"] = block["hash"]
    return changed


def _transaction(raw: bytes, sender: bytes) -> Record:
    tx_type = raw[0] if raw[0] < 0xC0 else 0
    items = rlp.decode(raw if raw[0] >= 0xC0 else raw[1:])
    told: Record = {"type": hex(tx_type), "hash": _hex(keccak(raw)), "from": _hex(sender)}
    for name, item in zip(_FIELDS[tx_type].split(), items, strict=True):
        match name:
            case "accessList":
                told[name] = [
                    {"address": _hex(address), "storageKeys": [_hex(key) for key in keys]} for address, keys in item
                ]
            case "authorizationList":
                names = ("chainId", "address", "nonce", "yParity", "r", "s")
                told[name] = [
                    {
                        part: _hex(value) if part == "address" else _quantity(value)
                        for part, value in zip(names, entry, strict=True)
                    }
                    for entry in item
                ]
            case "blobVersionedHashes":
                told[name] = [_hex(entry) for entry in item]
            case "to":
                told[name] = _hex(item) if item else None
            case "isSystemTx":
                told[name] = bool(item)
            case _:
                told[name] = _quantity(item) if name in _QUANTITIES else _hex(item)
    if tx_type == 0 and int(told["v"], 16) >= 35:
        told["chainId"] = hex((int(told["v"], 16) - 35) // 2)
    if "yParity" in told:
        told["v"] = told["yParity"]
    if tx_type == 0x7E:
        told |= {"v": "0x0", "r": "0x0", "s": "0x0", "gasPrice": "0x0"}
    return told


@dataclass(frozen=True, slots=True)
class Sent:
    """One transaction for a block: its bytes as hashed, who sent it, what came of it."""

    raw: bytes
    sender: bytes
    outcome: Outcome = field(default_factory=Outcome)


def make_block(height: int, parent_hash: bytes, sent: Sequence[Sent], **header: str) -> Record:
    """One block and its receipts, as a node tells them. `header` overrides header fields before the hash is taken."""
    transactions, receipts, leaves = [], [], []
    cumulative, log_index, bloom = 0, 0, 0
    for index, one in enumerate(sent):
        told = _transaction(one.raw, one.sender)
        cumulative += one.outcome.gas_used
        receipt_bloom = _bloom(one.outcome.logs)
        bloom |= int.from_bytes(receipt_bloom, "big")
        place = {"blockNumber": hex(height), "transactionIndex": hex(index)}
        fields = [one.outcome.status, cumulative, receipt_bloom, [[a, list(t), d] for a, t, d in one.outcome.logs]]
        receipt: Record = {
            "type": told["type"],
            "transactionHash": told["hash"],
            **place,
            "from": told["from"],
            "to": told["to"],
            "contractAddress": None,
            "status": hex(one.outcome.status),
            "cumulativeGasUsed": hex(cumulative),
            "gasUsed": hex(one.outcome.gas_used),
            "effectiveGasPrice": "0x3b9aca00",
            "logsBloom": _hex(receipt_bloom),
            "logs": [],
        }
        if told["type"] == "0x7e":  # after Canyon
            told["nonce"] = hex(7 + index)
            receipt |= {"depositNonce": told["nonce"], "depositReceiptVersion": "0x1"}
            fields += [7 + index, 1]
        for address, topics, data in one.outcome.logs:
            receipt["logs"].append(
                {
                    "address": _hex(address),
                    "topics": [_hex(topic) for topic in topics],
                    "data": _hex(data),
                    **place,
                    "transactionHash": told["hash"],
                    "logIndex": hex(log_index),
                    "removed": False,
                }
            )
            log_index += 1
        prefix = b"" if told["type"] == "0x0" else bytes([int(told["type"], 16)])
        leaves.append(prefix + rlp.encode(fields))
        transactions.append(told | place)
        receipts.append(receipt)
    empty = _hex(trie_library.root_of([]))
    block: Record = {
        "parentHash": _hex(parent_hash),
        "sha3Uncles": _hex(_NO_UNCLES),
        "miner": "0x" + "00" * 20,
        "stateRoot": "0x" + "aa" * 32,
        "transactionsRoot": _hex(trie_library.root_of([one.raw for one in sent])),
        "receiptsRoot": _hex(trie_library.root_of(leaves)),
        "logsBloom": _hex(bloom.to_bytes(256, "big")),
        "difficulty": "0x0",
        "number": hex(height),
        "gasLimit": "0x1c9c380",
        "gasUsed": hex(cumulative),
        "timestamp": hex(1_700_000_000 + 12 * height),
        "extraData": "0x",
        "mixHash": "0x" + "bb" * 32,
        "nonce": "0x0000000000000000",
        "baseFeePerGas": "0x3b9aca00",
        "withdrawalsRoot": empty,
        "blobGasUsed": "0x20000",
        "excessBlobGas": "0x0",
        "parentBeaconBlockRoot": "0x" + "cc" * 32,
        "requestsHash": "0x" + "dd" * 32,
        **header,
        "size": "0x400",
        "uncles": [],
        "withdrawals": [],
        "transactions": transactions,
    }
    return rehash({"block": block, "receipts": receipts})


def block_hash(record: Record) -> bytes:
    """The hash of a block."""
    return bytes.fromhex(record["block"]["hash"][2:])


def every_type(chain_id: int = CHAIN_ID) -> list[Sent]:
    """Transactions of types 0 (both signings) to 4, a create, a failure, and logs of zero to four topics."""
    alice, bob = Account.numbered(21), Account.numbered(22)
    to, code = b"\x11" * 20, b"\x22" * 20
    access = [(code, [bytes(32), b"\x01" * 32]), (to, [])]
    logs = [(code, [bytes([topic]) * 32 for topic in range(1, count + 1)], b"\x2a" * (count * 9)) for count in range(5)]
    blob = signing.without_sidecar(signing.blob(alice, Call(to), chain_id, blobs=2))
    delegation = signing.authorization(bob, chain_id, code)
    return [
        Sent(signing.legacy(alice, Call(to, value=7), chain_id), alice.address),
        Sent(signing.legacy(alice, Call(code, data=b"\x01\x02"), None), alice.address, Outcome(40_000, 1, logs[:2])),
        Sent(
            signing.with_access_list(alice, Call(code), chain_id, access), alice.address, Outcome(50_000, 1, logs[2:4])
        ),
        Sent(signing.dynamic_fee(bob, Call(None, data=b"\x60\x00"), chain_id), bob.address, Outcome(60_000, 0)),
        Sent(signing.dynamic_fee(bob, Call(to, 9), chain_id, access), bob.address, Outcome(30_000, 1, logs[4:])),
        Sent(blob, alice.address, Outcome(21_000)),
        Sent(
            signing.set_code(bob, Call(code), chain_id, [delegation], access),
            bob.address,
            Outcome(70_000, 1, logs[1:2]),
        ),
    ]


def op_deposit(number: int) -> Sent:
    """An OP-stack deposit: signed by nobody, its sender among its fields."""
    sender = b"\xde" * 20
    fields = [b"\x5c" * 31 + bytes([number]), sender, b"\x42" * 20, 10**18, 5, 100_000, b"", b"\x01\x02"]
    return Sent(b"\x7e" + rlp.encode(fields), sender, Outcome(46_000))


def small_chain(sent: Sequence[Sent], chain_id: int = CHAIN_ID) -> list[Record]:
    """Three blocks from height 1: one plain transaction, the given transactions, none."""
    first = Account.numbered(20)
    plain = Sent(signing.dynamic_fee(first, Call(b"\x11" * 20), chain_id), first.address)
    blocks = [make_block(1, bytes(32), [plain])]
    blocks.append(make_block(2, block_hash(blocks[0]), sent))
    blocks.append(make_block(3, block_hash(blocks[1]), []))
    return blocks
