"""A value in a Merkle-Patricia trie: alone, or as a native proof has it, below a header.

block hash <- header <- number, root <- nodes, from the root down <- value <- transaction hash, log
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.core import abi, rlp, trie
from app.core.keccak import keccak
from app.core.proof_forms import Statement
from app.core.receipts import logs_of_leaf, parse_log
from app.core.trie_proof import HASH_BYTES

from .verdict import Diagnosis, Fault, require

_LIST = 0xC0
_MOST_HEADER_FIELDS = 64
"""Headers have 15 to 30 fields."""


def trie_verdict(statement: Statement) -> Diagnosis:
    """Of the raw form. A value of None claims that the key is not in the trie. Raises `Fault`."""
    claim = statement.fields
    wanted: bytes | None = claim["value"]
    try:
        value = trie.verify(claim["root"], claim["key"], claim["nodes"], absence=True)
    except trie.InvalidProof as refused:
        fault = _of_trie(refused, claim)
        if refused.reason != "Absent":
            raise fault from refused
        return replace(fault.diagnosis, valid=wanted is None)
    if wanted is None:
        raise Fault("ValueMismatch", "value", "the key is in the trie", "null: no such key", value)
    _require_value(wanted, value)
    return Diagnosis("Valid", "the trie holds this value under this key", True)


def _of_trie(refused: trie.InvalidProof, claim: dict[str, Any]) -> Fault:
    root, key, nodes = claim["root"], claim["key"], claim["nodes"]
    at = {name: place for name, place in (("node", refused.node), ("nibble", refused.nibble)) if place is not None}
    message = refused.detail or _MEANING[refused.reason]
    field = "nodes"
    if refused.reason == "RootMismatch":
        field = "root"
        if keccak(nodes[-1]) == root:
            message = "the last node hashes to the root: nodes are listed from the root down"
    elif refused.reason in ("KeyMismatch", "Absent"):
        field = "key"
    if refused.reason != "RootMismatch" and _holds(root, keccak(key), nodes):
        message = "the trie is keyed by keccak(key), as those of accounts and storage are"
    return Fault(refused.reason, field, message, refused.expected, refused.found, **at)


_MEANING = {
    "RootMismatch": "the first node does not hash to the root",
    "NodeHashMismatch": "the node is not the one that its parent commits to",
}


def _holds(root: bytes, key: bytes, nodes: list[bytes]) -> bool:
    try:
        trie.verify(root, key, nodes)
    except trie.InvalidProof:
        return False
    return True


def _require_value(claimed: bytes, proven: bytes) -> None:
    if claimed == proven:
        return
    if len(claimed) != len(proven):
        message = f"the key holds another value: {len(proven)} bytes, not {len(claimed)}"
    else:
        differs = next(place for place, (a, b) in enumerate(zip(claimed, proven, strict=True)) if a != b)
        message = f"the key holds another value: they differ from byte {differs} on"
    raise Fault("ValueMismatch", "value", message, proven, claimed)


def native_verdict(statement: Statement) -> Diagnosis:
    """Of a transaction, receipt or log under its block hash, which has to be trusted. Raises `Fault`."""
    proof = statement.fields
    kind, index = proof["kind"], proof["transactionIndex"]
    _require_header(proof)
    leaf = _leaf_at(proof, index)
    for place, node in enumerate(proof["nodes"]):
        if place and len(node) < HASH_BYTES:
            raise Fault("ExtraNodes", "nodes", "a node this short stands in its parent, and is not listed", node=place)
    _require_value(proof["value"], leaf)
    for name, encoding in proof.get("encodings", {}).items():
        if not all(node in encoding for node in proof["nodes"]):
            raise Fault("EncodingMismatch", f"encodings.{name}", "the encoding does not hold every node")
        if name == "nodes" and encoding != abi.bytes_array_alone(proof["nodes"]):
            raise Fault("EncodingMismatch", "encodings.nodes", "it is not abi.encode of the nodes as bytes[]")
    if kind == "transaction":
        require(
            proof["transactionHash"], keccak(leaf), "ValueMismatch", "transactionHash", "the value has another hash"
        )
    if kind == "log" or "log" in proof:
        _require_log(proof, leaf)
    what = f"log {proof['log']['indexInReceipt']} of receipt {index}" if kind == "log" else f"{kind} {index}"
    return Diagnosis("Valid", f"{what} stands in block {proof['blockNumber']}, if the block hash does", True)


def _require_header(proof: dict[str, Any]) -> None:
    found = keccak(proof["headerRlp"])
    if found != proof["blockHash"]:
        message = "the header does not hash to the block hash"
        raise Fault("HeaderHashMismatch", "headerRlp", message, proof["blockHash"], found)
    try:
        fields = _header_fields(proof["headerRlp"])
        height, root = rlp.string_of(fields[8]), rlp.string_of(fields[4 if proof["kind"] == "transaction" else 5])
    except ValueError as broken:
        raise Fault("HeaderMismatch", "headerRlp", f"no header that we can read: {broken}") from broken
    if height != rlp.encode_int(proof["blockNumber"]):
        said = int.from_bytes(height, "big") if len(height) <= 8 else height
        raise Fault("HeaderMismatch", "blockNumber", "the header has another number", said, proof["blockNumber"])
    name = "transactionsRoot" if proof["kind"] == "transaction" else "receiptsRoot"
    require(proof["root"], root, "HeaderMismatch", "root", f"the header has another {name}")


def _header_fields(header: bytes) -> list[bytes]:
    """The fields of the header, which on Tempo stands inside a wrapper. Raises `RlpError`."""
    outer = rlp.split_list(header, _MOST_HEADER_FIELDS)
    inner = [rlp.split_list(item, _MOST_HEADER_FIELDS) for item in outer if item[0] >= _LIST]
    fields = max([outer, *inner], key=len)
    if len(fields) < 15:
        raise rlp.RlpError(f"it has {len(fields)} fields")
    return fields


def _leaf_at(proof: dict[str, Any], index: int) -> bytes:
    """The value that the nodes prove under the key of an index."""
    root, key, nodes = proof["root"], proof["key"], proof["nodes"]
    wanted = trie.ordered_key(index)
    if key != wanted:
        # Either may be the one that was changed: the nodes tell which.
        other = _index_of(key) if _holds(root, key, nodes) else None
        if other is not None:
            raise Fault("KeyMismatch", "transactionIndex", "key and nodes are of another index", other, index)
        raise Fault("KeyMismatch", "key", "the key is not rlp(transactionIndex)", wanted, key)
    try:
        return trie.verify(root, key, nodes)
    except trie.InvalidProof as refused:
        raise _of_trie(refused, proof) from refused


def _index_of(key: bytes) -> int | None:
    try:
        index = int.from_bytes(rlp.string_of(key), "big")
    except ValueError:
        return None
    return index if trie.ordered_key(index) == key else None


def _require_log(proof: dict[str, Any], leaf: bytes) -> None:
    if proof["kind"] != "log" or "log" not in proof:
        message = "a log proof has a log" if proof["kind"] == "log" else "only a log proof has a log"
        raise Fault("LogMismatch", "log", message)
    log = proof["log"]
    try:
        logs = logs_of_leaf(leaf)
    except ValueError as broken:
        raise Fault("LogMismatch", "value", f"no receipt that we can read: {broken}") from broken
    place = log["indexInReceipt"]
    if place > log["indexInBlock"]:
        message = "a log comes no earlier in its block than in its receipt"
        raise Fault("LogMismatch", "log.indexInBlock", message, f"{place} or more", log["indexInBlock"])
    if place >= len(logs) or logs[place] != log["rlp"]:
        if log["rlp"] in logs:
            message = "the receipt has this log at another index"
            raise Fault("LogMismatch", "log.indexInReceipt", message, logs.index(log["rlp"]), place)
        if place >= len(logs):
            message = f"the receipt has {len(logs)} logs"
            raise Fault("LogMismatch", "log.indexInReceipt", message, f"less than {len(logs)}", place)
        raise Fault("LogMismatch", "log.rlp", "the receipt has another log at this index", logs[place], log["rlp"])
    try:
        proven = parse_log(log["rlp"])
    except ValueError as broken:
        raise Fault("LogMismatch", "log.rlp", f"no log that we can read: {broken}") from broken
    require(log["address"], proven.address, "LogMismatch", "log.address", "the log is of another address")
    if (topics := tuple(log["topics"])) != proven.topics:
        places = range(max(len(topics), len(proven.topics)))
        at = next(each for each in places if topics[each : each + 1] != proven.topics[each : each + 1])
        both = [b"".join(of[at : at + 1]) or "none" for of in (proven.topics, topics)]
        raise Fault("LogMismatch", f"log.topics[{at}]", "the log has another topic", *both)
    require(log["data"], proven.data, "LogMismatch", "log.data", "the log has other data")
