"""The definitions themselves, slow and recursive: what the fast code is compared with.

Nothing here imports the project. The trie is the Yellow Paper's (appendices B, C and D), letter by letter; the binary
tree, the leaf and the digest are the Creditcoin verifier's.
"""

from __future__ import annotations

from typing import Any

import eth_abi
import sha3


def keccak(data: bytes) -> bytes:
    return sha3.keccak_256(data).digest()


# --- appendix B: recursive length prefix ----------------------------------------------------------------------------


def rlp(x: Any) -> bytes:
    if isinstance(x, bytes):
        if len(x) == 1 and x[0] < 128:
            return x
        if len(x) < 56:
            return bytes([128 + len(x)]) + x
        return bytes([183 + len(be(len(x)))]) + be(len(x)) + x
    s = b"".join(rlp(item) for item in x)
    if len(s) < 56:
        return bytes([192 + len(s)]) + s
    return bytes([247 + len(be(len(s)))]) + be(len(s)) + s


def be(x: int) -> bytes:
    """Big endian without leading zeros."""
    return b"" if x == 0 else be(x // 256) + bytes([x % 256])


# --- appendix C: hex prefix -----------------------------------------------------------------------------------------


def hp(x: list[int], t: bool) -> bytes:
    f = 2 if t else 0
    nibbles = [f, 0, *x] if len(x) % 2 == 0 else [f + 1, *x]
    return bytes(16 * nibbles[i] + nibbles[i + 1] for i in range(0, len(nibbles), 2))


# --- appendix D: the trie -------------------------------------------------------------------------------------------


def nibbles(key: bytes) -> list[int]:
    return [nibble for byte in key for nibble in (byte // 16, byte % 16)]


def trie_root(items: dict[bytes, bytes]) -> bytes:
    return keccak(rlp(c(as_pairs(items), 0)) if items else rlp(b""))


def as_pairs(items: dict[bytes, bytes]) -> list[tuple[list[int], bytes]]:
    return [(nibbles(key), value) for key, value in items.items()]


def n(J: list[tuple[list[int], bytes]], i: int) -> Any:  # noqa: N803 -- the paper's letters
    """How a node stands in its parent: nothing, itself, or its hash."""
    if not J:
        return b""
    structure = c(J, i)
    return structure if len(rlp(structure)) < 32 else keccak(rlp(structure))


def c(J: list[tuple[list[int], bytes]], i: int) -> Any:  # noqa: N803
    """The node over the pairs J, which agree in their first i nibbles."""
    if len(J) == 1:
        key, value = J[0]
        return [hp(key[i:], True), value]
    j = shared(J)
    if j != i:
        return [hp(J[0][0][i:j], False), n(J, j)]
    children = [n([pair for pair in J if len(pair[0]) > i and pair[0][i] == y], i + 1) for y in range(16)]
    return [*children, next((value for key, value in J if len(key) == i), b"")]


def shared(J: list[tuple[list[int], bytes]]) -> int:  # noqa: N803
    first = J[0][0]
    return max(x for x in range(len(first) + 1) if all(key[:x] == first[:x] for key, _ in J))


def trie_proof(items: dict[bytes, bytes], key: bytes) -> list[bytes]:
    """The nodes on the way to `key` that do not stand in their parent as themselves, root first."""
    J, i, listed, is_root = as_pairs(items), 0, [], True  # noqa: N806
    wanted = nibbles(key)
    while True:
        node = rlp(c(J, i))
        if is_root or len(node) >= 32:
            listed.append(node)
        is_root = False
        if len(J) == 1:
            return listed
        j = shared(J)
        if j != i:
            i = j
            continue
        if i == len(wanted):
            return listed
        J = [pair for pair in J if len(pair[0]) > i and pair[0][i] == wanted[i]]  # noqa: N806
        i += 1


# --- the binary tree ------------------------------------------------------------------------------------------------


def tree_levels(leaves: list[bytes]) -> list[list[bytes]]:
    level = [keccak(b"\0" + leaf) for leaf in leaves]
    return tree_above(level) if level else []


def tree_above(level: list[bytes]) -> list[list[bytes]]:
    if len(level) == 1:
        return [level]
    padded = level + [bytes(32)] * (len(level) % 2)
    return [level, *tree_above([keccak(b"\1" + padded[i] + padded[i + 1]) for i in range(0, len(padded), 2)])]


def tree_root(leaves: list[bytes]) -> bytes:
    return tree_levels(leaves)[-1][0] if leaves else bytes(32)


def tree_proof(leaves: list[bytes], index: int) -> list[tuple[bytes, bool]]:
    siblings = []
    for level in tree_levels(leaves)[:-1]:
        sibling = index + 1 if index % 2 == 0 else index - 1
        siblings.append((level[sibling] if sibling < len(level) else bytes(32), index % 2 == 1))
        index //= 2
    return siblings


# --- the digest chain -----------------------------------------------------------------------------------------------


def digests(first: int, roots: list[bytes], previous: bytes | None) -> list[bytes]:
    if not roots:
        return []
    digest = keccak(first.to_bytes(8, "big") + roots[0] + (previous or b""))
    return [digest, *digests(first + 1, roots[1:], digest)]


# --- the leaf -------------------------------------------------------------------------------------------------------

COMMON = ["uint64", "uint64", "address", "bool", "address", "uint256", "bytes"]
RECEIPT = ["uint8", "uint64", "(address,bytes32[],bytes)[]", "bytes"]
ACCESS_LIST = "(address,bytes32[])[]"
FEES = ["uint64", "uint128", "uint128", ACCESS_LIST]
SIGNATURE = ["uint8", "bytes32", "bytes32"]
MIDDLE = {
    0: [["uint128", "uint256", "bytes32", "bytes32"]],
    1: [["uint64", "uint128", ACCESS_LIST, *SIGNATURE]],
    2: [[*FEES, *SIGNATURE]],
    3: [FEES, ["uint256", "bytes32[]", *SIGNATURE]],
    4: [FEES, ["(uint256,address,uint64,uint8,uint256,uint256)[]", *SIGNATURE]],
    126: [["bytes32", "uint256", "bool"]],
}


def leaf(tx: Any, receipt: Any, sender: bytes, gas_used: int) -> bytes:
    """abi.encode(uint8 type, bytes[] chunks), every chunk abi.encode of its own fields."""
    r, s = tx.r.to_bytes(32, "big"), tx.s.to_bytes(32, "big")
    access_list = [(address, list(keys)) for address, keys in tx.access_list]
    fees = [tx.chain_id, tx.max_priority_fee_per_gas, tx.max_fee_per_gas, access_list]
    signature = [tx.y_parity, r, s]
    nonce = tx.nonce
    if tx.type == 0:
        middle = [[tx.gas_price, tx.v, r, s]]
    elif tx.type == 1:
        middle = [[tx.chain_id, tx.gas_price, access_list, *signature]]
    elif tx.type == 2:
        middle = [[*fees, *signature]]
    elif tx.type == 3:
        middle = [fees, [tx.max_fee_per_blob_gas, list(tx.blob_versioned_hashes), *signature]]
    elif tx.type == 4:
        authorizations = [(a.chain_id, a.address, a.nonce, a.y_parity, a.r, a.s) for a in tx.authorization_list]
        middle = [fees, [authorizations, *signature]]
    else:
        nonce = receipt.deposit_nonce if receipt.deposit_receipt_version is not None else 0
        middle = [[tx.deposit.source_hash, tx.deposit.mint, tx.deposit.is_system_tx]]
    common = [nonce, tx.gas_limit, sender, tx.to == b"", tx.to or bytes(20), tx.value, tx.input]
    status = 1 if receipt.status is None else receipt.status
    logs = [(log.address, list(log.topics), log.data) for log in receipt.logs]
    chunks = [
        eth_abi.encode(COMMON, common),
        *(eth_abi.encode(types, fields) for types, fields in zip(MIDDLE[tx.type], middle, strict=True)),
        eth_abi.encode(RECEIPT, [status, gas_used, logs, receipt.logs_bloom]),
    ]
    return eth_abi.encode(["uint8", "bytes[]"], [tx.type, chunks])
