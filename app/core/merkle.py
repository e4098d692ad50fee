"""The binary keccak tree over a block's leaves: root, prove, verify.

    level 2                 R = inner(P0, P1)
                       .----'----.
    level 1           P0          P1 = inner(L2, 0)
                    .-'-.        .-'-.
    level 0        L0   L1      L2    0

leaf = keccak(0x00 || leaf bytes), inner = keccak(0x01 || left || right). Where a level has an odd number of nodes the
missing sibling is 32 zero bytes: not hashed, and not a copy of the last node. One leaf is its own root; without a leaf
the root is 32 zero bytes and nothing can be proved. Source: the Creditcoin universal smart contract (USC) verifier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from app.core.errors import MerkleError
from app.core.keccak import keccak

HASH_BYTES = 32
ZERO = bytes(HASH_BYTES)

# A verifier on chain counts the index in a uint64: it follows at most this many siblings.
MAX_SIBLINGS = 64


class PackedTree(msgspec.Struct, frozen=True, array_like=True):
    """A whole tree: `levels` is the hashes of every level joined, leaves first, root last, without the padding."""

    size: int
    levels: bytes
    root: bytes


def leaf_hash(leaf: bytes) -> bytes:
    """The hash of leaf bytes of any length."""
    return keccak(b"\x00" + leaf)


def build(leaves: Sequence[bytes]) -> PackedTree:
    """The tree over `leaves`, in their order."""
    return build_from_hashes([keccak(b"\x00" + leaf) for leaf in leaves])


def build_from_hashes(hashes: Sequence[bytes]) -> PackedTree:
    """The tree over leaves that are hashed already."""
    level = list(hashes)
    if any(len(node) != HASH_BYTES for node in level):
        raise ValueError("a leaf hash has 32 bytes")
    if not level:
        return PackedTree(0, b"", ZERO)
    joined = level.copy()
    while len(level) > 1:
        if len(level) % 2:
            level.append(ZERO)
        nodes = iter(level)
        level = [keccak(b"\x01" + left + right) for left, right in zip(nodes, nodes, strict=True)]
        joined += level
    return PackedTree(len(hashes), b"".join(joined), level[0])


def prove(tree: PackedTree, index: int) -> tuple[tuple[bytes, bool], ...]:
    """The siblings from the leaf level up: (hash, whether it stands on the left). ceil(log2(size)) of them.

    Requires 0 <= index < size; IndexError otherwise.
    """
    if not 0 <= index < tree.size:
        raise IndexError(f"leaf {index} of {tree.size}")
    siblings: list[tuple[bytes, bool]] = []
    for start, width in _levels(tree.size):
        sibling = index ^ 1
        at = HASH_BYTES * (start + sibling)
        siblings.append((tree.levels[at : at + HASH_BYTES] if sibling < width else ZERO, bool(index & 1)))
        index >>= 1
    return tuple(siblings)


def _levels(size: int) -> Iterator[tuple[int, int]]:
    """(start, width) of every level below the root, in nodes."""
    start, width = 0, size
    while width > 1:
        yield start, width
        start, width = start + width, (width + 1) // 2


def verify(root: bytes, leaf: bytes, siblings: Sequence[tuple[bytes, bool]]) -> int:
    """The index at which `leaf` (its bytes, not its hash) stands under `root`: the sum of isLeft(k) * 2**k.

    Lengths are checked before anything is hashed. Raises `MerkleError` when the siblings lead elsewhere.
    """
    if len(siblings) > MAX_SIBLINGS:
        raise MerkleError(f"internal error: {len(siblings)} siblings, the limit is {MAX_SIBLINGS}")
    if len(root) != HASH_BYTES or any(len(sibling) != HASH_BYTES for sibling, _ in siblings):
        raise MerkleError("internal error: a root and every sibling have 32 bytes")
    node, index = follow(leaf, siblings)
    if node != root:
        raise MerkleError(f"internal error: leaf and siblings lead to 0x{node.hex()}, not to the root 0x{root.hex()}")
    return index


def follow(leaf: bytes, siblings: Sequence[tuple[bytes, bool]]) -> tuple[bytes, int]:
    """The root that `leaf` (its bytes) and its siblings, each of 32 bytes, lead to, and the index that they say it has."""
    index, node = 0, leaf_hash(leaf)
    for level, (sibling, is_left) in enumerate(siblings):
        if is_left:
            index |= 1 << level
            node = keccak(b"\x01" + sibling + node)
        else:
            node = keccak(b"\x01" + node + sibling)
    return node, index
