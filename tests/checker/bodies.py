"""Bodies to check, made with the `rlp` and `trie` libraries and straight from the formulas: no code of the prover's."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import rlp
import sha3

from tests.oracles import trie_library

CHAIN_KEY, CHAIN_ID, HEIGHT = 7, 424242, 20_000_000
ITEMS = 300
"""Items of the synthetic block: keys of one, two and three bytes, and paths through extensions."""


def keccak(data: bytes) -> bytes:
    return bytes(sha3.keccak_256(data).digest())


def to_hex(data: bytes) -> str:
    return "0x" + data.hex()


def hashed_to(pattern: str, size: int) -> bytes:
    """`size` bytes that look random and are the same in every run."""
    return random.Random(pattern).randbytes(size)


def receipt_leaf(index: int, logs: Sequence[Any]) -> bytes:
    """A receipt as the trie holds it: legacy, typed, or a deposit with its two extra fields."""
    fields: list[Any] = [b"\x01", 21_000 * (index + 1), hashed_to(f"bloom {index}", 256), list(logs)]
    match index % 5:
        case 0:
            return bytes(rlp.encode(fields))
        case 4:
            return b"\x7e" + bytes(rlp.encode([*fields, index, 1]))
        case kind:
            return bytes([kind]) + bytes(rlp.encode(fields))


def log_of(index: int, place: int) -> list[Any]:
    """One log: address, up to four topics, data of very different sizes."""
    name = f"log {index} {place}"
    topics = [hashed_to(f"{name} topic {n}", 32) for n in range((index + place) % 5)]
    return [hashed_to(name, 20), topics, hashed_to(f"{name} data", [0, 1, 32, 55, 56, 300][(index + place) % 6])]


@dataclass
class SyntheticBlock:
    """A block whose header commits to both tries."""

    transactions: list[bytes]
    receipts: list[bytes]
    logs: list[list[list[Any]]]
    height: int = HEIGHT
    header: list[bytes] = field(default_factory=list)
    header_rlp: bytes = b""
    transaction_proofs: list[tuple[bytes, ...]] = field(default_factory=list)
    receipt_proofs: list[tuple[bytes, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.transaction_proofs = trie_library.proofs_of(self.transactions)
        self.receipt_proofs = trie_library.proofs_of(self.receipts)
        roots = [trie_library.root_of(self.transactions), trie_library.root_of(self.receipts)]
        start = [hashed_to("parent", 32), keccak(b"\xc0"), hashed_to("miner", 20), hashed_to("state", 32)]
        end = [
            bytes(256),
            b"",
            self.height.to_bytes(8).lstrip(b"\0"),
            b"\x01\xc9",
            b"\x52\x08",
            b"\x65\x53\xf1\x00",
            b"x",
        ]
        self.header = [*start, *roots, *end, bytes(32), bytes(8), b"\x07", hashed_to("withdrawals", 32)]
        self.header_rlp = bytes(rlp.encode(self.header))

    def body(self, kind: str, index: int, log: int = 0) -> dict[str, Any]:
        """The native body of one item, as the routes answer it."""
        of_transactions = kind == "transaction"
        leaves = self.transactions if of_transactions else self.receipts
        proofs = self.transaction_proofs if of_transactions else self.receipt_proofs
        body: dict[str, Any] = {
            "format": "copath/1",
            "kind": kind,
            "chainKey": str(CHAIN_KEY),
            "chainId": str(CHAIN_ID),
            "blockNumber": self.height,
            "blockHash": to_hex(keccak(self.header_rlp)),
            "headerRlp": to_hex(self.header_rlp),
            "finality": {"level": "safe", "by": "rpc-tag", "sources": 2},
            "transactionHash": to_hex(keccak(self.transactions[index])),
            "transactionIndex": index,
            "root": to_hex(self.header[4 if of_transactions else 5]),
            "key": to_hex(rlp.encode(index)),
            "value": to_hex(leaves[index]),
            "nodes": [to_hex(node) for node in proofs[index]],
        }
        if kind == "log":
            address, topics, data = self.logs[index][log]
            body["log"] = {
                "address": to_hex(address),
                "topics": [to_hex(topic) for topic in topics],
                "data": to_hex(data),
                "indexInReceipt": log,
                "indexInBlock": sum(len(logs) for logs in self.logs[:index]) + log,
                "rlp": to_hex(rlp.encode([address, topics, data])),
            }
        return body


def asked_of(body: dict[str, Any]) -> dict[str, object]:
    """What a route would demand of a native body: all that no root commits to, and what the request named."""
    names = ["kind", "chainKey", "chainId", "blockHash", "transactionHash", "transactionIndex"]
    asked = {name: body[name] for name in names} | {
        f"finality.{name}": body["finality"][name] for name in body["finality"]
    }
    return asked | ({"log.indexInBlock": body["log"]["indexInBlock"]} if "log" in body else {})


def as_bytes(body: object) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def block_of(count: int) -> SyntheticBlock:
    """A block of `count` transactions, with none to six logs each."""
    logs = [[log_of(index, place) for place in range(index % 7)] for index in range(count)]
    transactions = [hashed_to(f"transaction {index}", 100 + index % 90) for index in range(count)]
    return SyntheticBlock(transactions, [receipt_leaf(i, logs[i]) for i in range(count)], logs)


@lru_cache(maxsize=1)
def big_block() -> SyntheticBlock:
    return block_of(ITEMS)


def inner(left: bytes, right: bytes) -> bytes:
    return keccak(b"\x01" + left + right)


def usc_levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """The keccak tree of a block, leaves first, an odd level filled up with a zero hash."""
    levels = [[keccak(b"\x00" + leaf) for leaf in leaves]]
    while len(levels[-1]) > 1:
        row = levels[-1] + [bytes(32)] * (len(levels[-1]) % 2)
        levels.append([inner(row[i], row[i + 1]) for i in range(0, len(row), 2)])
    return levels


def usc_item(leaves: Sequence[bytes], index: int) -> dict[str, Any]:
    levels, siblings, at = usc_levels(leaves), [], index
    for row in levels[:-1]:
        sibling = row[at ^ 1] if at ^ 1 < len(row) else bytes(32)
        siblings.append({"hash": to_hex(sibling), "isLeft": at % 2 == 1})
        at //= 2
    return {
        "txHash": to_hex(hashed_to(f"tx {index}", 32)),
        "txBytes": to_hex(leaves[index]),
        "merkleProof": {"root": to_hex(levels[-1][0]), "siblings": siblings},
    }


@dataclass(frozen=True)
class UscChain:
    """Blocks from `first` on, the digest below them, and the anchor at their end."""

    first: int
    blocks: tuple[tuple[bytes, ...], ...]
    lower: bytes

    @property
    def roots(self) -> list[bytes]:
        return [usc_levels(leaves)[-1][0] if leaves else bytes(32) for leaves in self.blocks]

    @property
    def anchor(self) -> tuple[int, bytes]:
        digest = self.lower
        for height, root in enumerate(self.roots, self.first):
            digest = keccak(height.to_bytes(8) + root + digest)
        return self.first + len(self.blocks) - 1, digest

    def _frame(self) -> dict[str, Any]:
        roots = [to_hex(root) for root in self.roots]
        return {
            "chainKey": CHAIN_KEY,
            "continuityProof": {"lowerEndpointDigest": to_hex(self.lower), "roots": roots},
            "cached": False,
            "generatedAt": "2026-01-02T03:04:05.678Z",
        }

    def single(self, index: int) -> dict[str, Any]:
        return self._frame() | {"headerNumber": self.first, "txIndex": index} | usc_item(self.blocks[0], index)

    def batch(self, wanted: dict[int, list[int]]) -> dict[str, Any]:
        proofs = {
            str(height): {str(index): usc_item(self.blocks[height - self.first], index) for index in indexes}
            for height, indexes in wanted.items()
            if indexes
        }
        heights = {"fromHeader": min(wanted), "toHeader": max(wanted)}
        return self._frame() | heights | {"merkleProofs": proofs}


@lru_cache(maxsize=1)
def usc_chain() -> UscChain:
    sizes = [11, 1, 0, 6, 130, 2]
    blocks = (tuple(hashed_to(f"{n} {i}", 64 + i) for i in range(size)) for n, size in enumerate(sizes))
    return UscChain(first=103, blocks=tuple(blocks), lower=hashed_to("lower", 32))
