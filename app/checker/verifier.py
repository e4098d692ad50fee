"""RLP and the Merkle-Patricia trie (Yellow Paper, appendices B, C, D), and what each kind of body must show."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from sha3 import keccak_256 as keccak

EMPTY, CHILD = b"\x80", {0x80, 0xA0, *range(0xC0, 0xDF)}  # first bytes: nothing, a hash, a node below 32 bytes
HEX_PREFIX, NUMBER = re.compile("^(00|1|20|3)(.*)$"), re.compile("0|[1-9][0-9]{0,19}")
HASH, DATA = re.compile("0x[0-9a-f]{64}"), re.compile("0x(?:[0-9a-f]{128})*+(?:[0-9a-f]{2})*+")  # no backtracking
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.([0-9]{3}){1,3})?Z")
OPTIONAL = {"log", "encodings", "transactionHashBy", "txHash"}  # the only fields that a body may leave out
LOG = {"address": DATA, "topics": [HASH], "data": DATA, "rlp": DATA, "indexInReceipt": int, "indexInBlock": int}
FORM = {"format": re.compile("copath/1"), "kind": re.compile("transaction|receipt|log"), "chainKey": NUMBER, "log": LOG}
PLACE = {"chainId": NUMBER, "blockNumber": int, "blockHash": HASH, "headerRlp": DATA, "transactionIndex": int}
TRIE = {"root": HASH, "key": DATA, "value": DATA, "nodes": [DATA], "encodings": {re.compile("[a-z0-9-]+"): DATA}}
SAID = {"level": re.compile("latest|safe|finalized"), "by": re.compile("[a-z-]+"), "sources": int}
NATIVE = FORM | PLACE | TRIE | {"transactionHash": HASH, "transactionHashBy": re.compile("rpc"), "finality": SAID}
LEAF = {"txHash": HASH, "txBytes": DATA, "merkleProof": {"root": HASH, "siblings": [{"hash": HASH, "isLeft": bool}]}}
USC = {"chainKey": int, "generatedAt": TIME, "continuityProof": {"lowerEndpointDigest": HASH, "roots": [HASH]}}
SINGLE = USC | LEAF | {"headerNumber": int, "txIndex": int, "cached": bool}
BATCH = USC | {"fromHeader": int, "toHeader": int, "merkleProofs": {NUMBER: {NUMBER: LEAF}}, "cached": bool}


class Refused(Exception):
    """Why bytes must not leave: `reason` is a closed name; `node` counts from the root, `nibble` along the key."""

    def __init__(self, reason: str, field: str = "", expected: Any = None, found: Any = None, **at: int) -> None:
        self.reason, self.field, self.expected, self.found = reason, field, expected, found
        self.node, self.nibble = at.get("node"), at.get("nibble")


def require(good: object, reason: str, field: str = "", expected: Any = None, found: Any = None, **at: int) -> None:
    if not good:
        raise Refused(reason, field, expected, found, **at)


def _strict(token: Any) -> Any:  # an object's pairs: no name twice; an integer's text: no sign, no 65th bit
    if isinstance(token, str):
        require(token.isdecimal() and len(token) <= 20 and int(token) < 2**64, "MalformedField", "", "u64", token[:40])
        return int(token)
    require(len(fields := dict(token)) == len(token), "DuplicateField")
    return fields


_JSON = json.JSONDecoder(object_pairs_hook=_strict, parse_int=_strict)


def _read(value: Any, shape: Any, where: str) -> Any:
    """Hex as bytes. Shapes: {name: shape}, {pattern of names: shape}, [shape], a pattern of text, a type."""
    if type(value) is type(shape) is list:
        return [_read(item, shape[0], where) for item in value]
    if type(value) is type(shape) is dict:
        if isinstance(names := next(iter(shape)), re.Pattern):
            shape = dict.fromkeys(filter(names.fullmatch, value), shape[names])
        strange = (value.keys() ^ shape.keys()) - (OPTIONAL - value.keys())
        require(not strange, "MalformedField", f"{where}.{ascii(min(strange, default=''))[1:-1]}"[1:])
        return {name: _read(item, shape[name], f"{where}.{name}") for name, item in value.items()}
    good = shape.fullmatch(value) if isinstance(shape, re.Pattern) and type(value) is str else type(value) is shape
    if not good:
        raise Refused("MalformedField", where[1:], str(getattr(shape, "pattern", shape)), type(value).__name__)
    return bytes.fromhex(value[2:]) if type(value) is str and value[:2] == "0x" else value


def read_body(body: bytes, shape: dict[Any, Any], asked: Mapping[str, object]) -> Any:
    """The values of a body. What `asked` names ("log.rlp" looks inside) must be just that JSON value in it."""
    try:
        fields = _JSON.decode(body.decode())
    except (ValueError, RecursionError) as broken:
        raise Refused("NotAProof", found=str(broken)) from None
    values = _read(fields, shape, "")
    for name, expected in asked.items():
        found = reduce(lambda at, step: at.get(step) if isinstance(at, dict) else None, name.split("."), fields)
        require(type(found) is type(expected) and found == expected, "NotWhatWasAsked", name, expected, found)
    return values


def rlp_list(data: bytes, reason: str, field: str, most: int = 64, **at: int) -> list[tuple[bytes, bytes]]:
    """The items, `most` at most, of the one list that `data` encodes, each as its whole encoding and its payload."""
    items, begin = list[tuple[bytes, bytes]](), 0
    while begin < len(data) and len(items) <= most:
        start, size = (begin, 1) if data[begin] < 0x80 else (begin + 1, data[begin] & 0x3F)
        if size > 55:
            start, size = start + size - 55, int.from_bytes(data[start : start + size - 55])
            size = size if size > 55 and data[begin + 1] else len(data)  # padded, or no need of the long form
        end = start + size
        if end > len(data) or (data[begin] == 0x81 and data[start] < 0x80):
            break
        items.append((data[begin:end], data[start:end]))
        begin = end if len(items) > 1 else start
    require(begin == len(data) and items and items[0][0] == data and data[0] >= 0xC0, reason, field, **at)
    return items[1:]


def check_trie(root: bytes, key: bytes, value: bytes | None, nodes: Sequence[bytes], listed: bool = True) -> bytes:
    """The value under `key` (it is `value`, if given) in the trie of `root`, shown by `nodes` and none too many. Nodes below
    32 bytes, embedded in their parents, are not among them or, where `listed` allows it, all repeated as the last."""
    path, link, used, done, embedded = key.hex(), b"\xa0" + root, 0, False, list[bytes]()
    while link != EMPTY and not done:
        here = {"node": used + len(embedded), "nibble": 2 * len(key) - len(path)}
        if link[0] >= 0xC0:
            embedded.append(node := link)
        else:
            require(used < len(nodes), "TruncatedProof", "nodes", link[1:], **here)
            node, digest, used = nodes[used], keccak(nodes[used]).digest(), used + 1
            same = digest == link[1:] and (used == 1 or len(node) >= 32)
            require(same, "NodeHashMismatch" if used > 1 else "RootMismatch", "nodes", link[1:], digest, **here)
        items = rlp_list(node, "MalformedNode", "nodes", **here)
        if len(items) == 17:
            (link, found), path, done = items[int(path[0], 16) if path else 16], path[1:], not path
        else:
            prefix = items[0][1].hex() if len(items) == 2 and items[0][0][0] < 0xC0 else ""
            flag, part = next(iter(HEX_PREFIX.findall(prefix)), ("", ""))
            done = flag in ("20", "3")
            require(done or part, "MalformedNode", "nodes", **here)
            met = path == part if done else path.startswith(part)
            (link, found), path = items[1] if met else (EMPTY, b""), path[len(part) :]
        require(link[0] < 0xC0 if done else link[0] in CHILD, "MalformedNode", "nodes", **here)
    exact = list(nodes[used:]) in ([], embedded if listed else [])
    require(link != EMPTY, "Absent" if exact else "KeyMismatch", "key", **here)
    require(exact, "ExtraNodes", "nodes", node=used)
    require(value in (None, found), "ValueMismatch", "value", value, found)
    return found


def check_native(body: bytes, asked: Mapping[str, object]) -> None:
    """Header under the block hash, number and root in the header, value under rlp(index) in the trie, log in it."""
    proof = read_body(body, NATIVE, asked)
    kind, digest, fault = proof["kind"], keccak(proof["headerRlp"]).digest(), ("HeaderMismatch", "headerRlp")
    outer = rlp_list(proof["headerRlp"], *fault)
    header = max([outer, *(rlp_list(item, *fault) for item, _ in outer if item[0] >= 0xC0)], key=len)  # Tempo wraps it
    require(len(header) >= 15, *fault)
    (_, height), (_, root) = header[8], header[4 if kind == "transaction" else 5]
    number, index = (proof[name].to_bytes(8).lstrip(b"\0") for name in ("blockNumber", "transactionIndex"))
    require(digest == proof["blockHash"], "HeaderMismatch", "blockHash", digest, proof["blockHash"])
    require(height == number, "HeaderMismatch", "blockNumber", height, number)
    require(root == proof["root"], "HeaderMismatch", "root", root, proof["root"])
    key = index if len(index) == 1 and index < b"\x80" else bytes([0x80 + len(index)]) + index
    require(proof["key"] == key, "KeyMismatch", "key", key, proof["key"])
    leaf = check_trie(root, key, proof["value"], proof["nodes"], listed=False)
    for name, encoding in proof.get("encodings", {}).items():
        whole = name != "nodes" or encoding == _abi_bytes_array(proof["nodes"])
        require(whole and all(node in encoding for node in proof["nodes"]), "EncodingMismatch", f"encodings.{name}")
    digest = keccak(leaf).digest() if kind == "transaction" else proof["transactionHash"]
    require(digest == proof["transactionHash"], "ValueMismatch", "transactionHash", digest, proof["transactionHash"])
    require(("log" in proof) == (kind == "log"), "LogMismatch", "log")
    if kind == "log":
        _check_log(proof["log"], rlp_list(leaf[leaf[0] < 0x80 :], "LogMismatch", "value"))


def _abi_bytes_array(items: Sequence[bytes]) -> bytes:
    tails = [len(item).to_bytes(32) + item + bytes(-len(item) % 32) for item in items]
    places = [32 * len(items) + sum(map(len, tails[:index])) for index in range(len(items))]
    return b"".join(number.to_bytes(32) for number in (32, len(items), *places)) + b"".join(tails)


def _check_log(log: dict[str, Any], receipt: list[tuple[bytes, bytes]]) -> None:
    require(len(receipt) > 3, "LogMismatch", "value")
    listed, index = receipt[3][0], log["indexInReceipt"]
    logs = rlp_list(listed, "LogMismatch", "value", len(listed) // 24)  # no log is shorter
    require(index <= log["indexInBlock"], "LogMismatch", "log.indexInBlock", index, log["indexInBlock"])
    require([log["rlp"]] == [item for item, _ in logs[index : index + 1]], "LogMismatch", "log.rlp")
    fields = rlp_list(log["rlp"], "LogMismatch", "log.rlp")
    require([item[0] >= 0xC0 for item, _ in fields] == [False, True, False], "LogMismatch", "log.rlp")
    claims = {"address": log["address"], "topics": b"".join(b"\xa0" + t for t in log["topics"]), "data": log["data"]}
    for (name, claim), (_, proven) in zip(claims.items(), fields, strict=True):
        require(claim == proven, "LogMismatch", f"log.{name}", proven, claim)


def check_usc(body: bytes, asked: Mapping[str, object], anchor: tuple[int, bytes]) -> None:
    """A leaf in its block's tree, whose root is the first of a chain of digests that ends in `anchor`."""
    proof = read_body(body, SINGLE, asked)
    _check_usc(proof, proof["headerNumber"], [(proof["headerNumber"], proof["txIndex"], proof)], anchor)


def check_usc_batch(body: bytes, asked: Mapping[str, object], anchor: tuple[int, bytes]) -> None:
    """The same of many leaves, in ascending order, of blocks in the range that the body states."""
    batch = read_body(body, BATCH, asked)
    first, last, blocks = batch["fromHeader"], batch["toHeader"], batch["merkleProofs"]
    leaves = [(int(height), int(index), leaf) for height in blocks for index, leaf in blocks[height].items()]
    order = [(first, 0), *(leaf[:2] for leaf in leaves), (last, 2**64), (anchor[0], 2**64)]
    require(order == sorted(order) and all(blocks.values()), "MalformedField", "merkleProofs")
    _check_usc(batch, first, leaves, anchor)


def _check_usc(usc: dict[str, Any], first: int, leaves: list[tuple[int, int, Any]], anchor: tuple[int, bytes]) -> None:
    digest, roots = usc["continuityProof"]["lowerEndpointDigest"], usc["continuityProof"]["roots"]
    last = first + len(roots) - 1
    require(first <= last == anchor[0] < 2**64 and len(roots) <= 50_000, "AnchorMismatch", "roots", anchor[0], last)
    for height, root in enumerate(roots, first):
        digest = keccak(height.to_bytes(8) + root + digest).digest()
    require(digest == anchor[1], "DigestMismatch", "continuityProof", anchor[1], digest)
    for height, index, leaf in leaves:
        node, path = keccak(b"\0" + leaf["txBytes"]).digest(), leaf["merkleProof"]["siblings"]
        for step in path:
            node = keccak(b"\1" + (step["hash"] + node if step["isLeft"] else node + step["hash"])).digest()
        found = sum(step["isLeft"] << depth for depth, step in enumerate(path))
        require(0 < len(leaf["txBytes"]) <= 10 << 20 and len(path) <= 64, "MalformedField", "merkleProof")
        require(found == index, "IndexMismatch", "txIndex", index, found)
        for root in (leaf["merkleProof"]["root"], roots[height - first]):
            require(node == root, "RootMismatch", "merkleProof.root", node, root)
