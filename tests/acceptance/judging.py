"""Judges a body that the server sent, with nothing of ours: the recorded block, `rlp`, the trie library, Solidity."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import rlp

from tests.acceptance.server import Answer
from tests.oracles import trie_library
from tests.oracles.signing import keccak
from tests.oracles.solidity import verify_trie_proof

Record = dict[str, Any]

_COMMON = {
    "format",
    "kind",
    "chainKey",
    "chainId",
    "blockNumber",
    "blockHash",
    "headerRlp",
    "finality",
    "transactionHash",
    "transactionIndex",
    "root",
    "key",
    "value",
    "nodes",
}


@dataclass(frozen=True, slots=True)
class TrieProof:
    """The trie part of a native body, as bytes."""

    root: bytes
    key: bytes
    value: bytes
    nodes: tuple[bytes, ...]

    @classmethod
    def of(cls, body: dict[str, Any]) -> TrieProof:
        """Reads it out of a parsed body."""
        nodes = tuple(to_bytes(node) for node in body["nodes"])
        return cls(to_bytes(body["root"]), to_bytes(body["key"]), to_bytes(body["value"]), nodes)


def to_bytes(text: str) -> bytes:
    """Bytes of a body: 0x and lower-case hex, nothing else."""
    assert text.startswith("0x"), text
    assert text == text.lower(), text
    return bytes.fromhex(text[2:])


def integer(value: object) -> int:
    """A quantity as the recordings spell it: hex, decimal text, a JSON number, a boolean."""
    if isinstance(value, str):
        return int(value, 16) if value[:2].lower() == "0x" else int(value)
    assert isinstance(value, int)
    return int(value)


def transaction_hashes(record: Record) -> list[str]:
    """The hashes of the block's transactions in order, whatever form the recording has them in."""
    listed = record["block"].get("transactions") or []
    found = [entry if isinstance(entry, str) else entry["hash"] for entry in listed]
    if not found:
        found = [receipt["transactionHash"] for receipt in record.get("receipts") or []]
    return [entry.lower() for entry in found]


def sampled(count: int, seed: int, size: int = 8) -> list[int]:
    """Up to `size` indexes below `count`: the ends, the places where the keys change their length, and some others."""
    wanted = [index for index in (0, count - 1, 127, 128, 255, 256) if 0 <= index < count]
    others = [index for index in range(count) if index not in wanted]
    random.Random(seed).shuffle(others)
    return sorted(set((wanted + others)[:size]))


def judge(
    body: bytes,
    record: Record,
    kind: str,
    index: int,
    *,
    chain_key: int,
    chain_id: int,
    allow: Sequence[str] = (),
    hash_by_node: bool = False,
) -> TrieProof:
    """Asserts that a native body proves item `index` of the recorded block. Returns the proof.

    `hash_by_node` says that the block's transactions may be beyond proof, and the hash beside a receipt marked as such.
    """
    fields = json.loads(body)
    block = record["block"]
    tx_hash = transaction_hashes(record)[index]
    if kind != "transaction" and hash_by_node:
        # The header commits to the receipt at this index; that it belongs to this transaction is then the node's word.
        assert fields.pop("transactionHashBy", "rpc") == "rpc"
    assert set(fields) == _COMMON | set(allow)
    assert fields["format"] == "copath/1"
    assert fields["kind"] == kind
    assert fields["chainKey"] == str(chain_key)
    assert fields["chainId"] == str(chain_id)
    assert fields["blockNumber"] == integer(block["number"])
    assert fields["blockHash"] == block["hash"].lower()
    assert fields["transactionIndex"] == index
    assert fields["transactionHash"] == tx_hash
    assert fields["finality"]["level"] in ("latest", "safe", "finalized")

    header_rlp = to_bytes(fields["headerRlp"])
    assert keccak(header_rlp) == to_bytes(fields["blockHash"])
    header = rlp.decode(header_rlp)
    if isinstance(header[3], list):  # Tempo's header wraps Ethereum's
        header = header[3]
    proof = TrieProof.of(fields)
    assert int.from_bytes(header[8], "big") == fields["blockNumber"]
    assert proof.root == header[5 if kind != "transaction" else 4]
    assert proof.key == rlp.encode(index)

    assert trie_library.accepts(proof.root, proof.key, proof.value, proof.nodes)
    assert verify_trie_proof(proof.root, proof.key, proof.value, proof.nodes)
    if kind == "transaction":
        assert keccak(proof.value) == to_bytes(tx_hash)
    else:
        _judge_receipt(proof.value, record["receipts"][index])
    if kind == "log":
        _judge_log(fields["log"], proof.value, record, index)
    return proof


def receipt_fields(leaf: bytes) -> list[Any]:
    """The decoded fields of a receipt leaf, typed or not."""
    fields: list[Any] = rlp.decode(leaf if leaf[0] >= 0xC0 else leaf[1:])
    return fields


def _judge_receipt(leaf: bytes, receipt: Record) -> None:
    outcome, cumulative, bloom, logs, *_ = receipt_fields(leaf)
    if leaf[0] < 0xC0 and receipt.get("type") is not None:
        assert leaf[0] == integer(receipt["type"])
    if len(outcome) == 32:
        assert "0x" + outcome.hex() == receipt["root"]
    else:
        assert int.from_bytes(outcome, "big") == integer(receipt["status"])
    assert int.from_bytes(cumulative, "big") == integer(receipt["cumulativeGasUsed"])
    if receipt.get("logsBloom"):
        assert "0x" + bloom.hex() == receipt["logsBloom"].lower()
    assert len(logs) == len(receipt["logs"])
    for (address, topics, data), told in zip(logs, receipt["logs"], strict=True):
        assert "0x" + address.hex() == told["address"].lower()
        assert ["0x" + topic.hex() for topic in topics] == [topic.lower() for topic in told["topics"]]
        assert "0x" + data.hex() == told["data"].lower()


def _judge_log(told: dict[str, Any], leaf: bytes, record: Record, index: int) -> None:
    in_receipt = told["indexInReceipt"]
    log = receipt_fields(leaf)[3][in_receipt]
    before = sum(len(receipt["logs"]) for receipt in record["receipts"][:index])
    assert told["indexInBlock"] == before + in_receipt
    assert to_bytes(told["rlp"]) == rlp.encode(log)
    assert to_bytes(told["address"]) == log[0]
    assert [to_bytes(topic) for topic in told["topics"]] == list(log[1])
    assert to_bytes(told["data"]) == log[2]


NATIVE, COMPATIBLE = "application/problem+json", "application/json"


def judge_error(answer: Answer, status: int, code: str, media_type: str) -> None:
    """One shape everywhere: code, message, retriable; natively RFC 9457 around them; and nothing that is not the client's."""
    assert answer.status == status, answer.body[:500]
    body = answer.json
    assert body["code"] == code, body
    assert isinstance(body["message"], str)
    assert body["message"]
    assert isinstance(body["retriable"], bool)
    assert answer.headers["content-type"].split(";")[0] == media_type
    if media_type == NATIVE:
        assert body["status"] == status
        for name in ("type", "title", "detail", "instance"):
            assert isinstance(body[name], str), (name, body)
    else:
        assert set(body) <= {"code", "message", "retriable", "block_number", "last_attested_block"}
    for secret in (b"127.0.0.1", b"Traceback", b".py", b"http://", b"site-packages"):
        assert secret not in answer.body.replace(b"http://localhost", b""), body
    assert "no-store" in answer.headers.get("cache-control", "no-store")
