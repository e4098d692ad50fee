"""Checking a Merkle-Patricia proof, strictly: nodes and trie as drawn in `app.core.trie`.

Every node is a canonical encoding, is the one its parent commits to, and is used, in its order and once: of one claim
there is one proof. The only freedom is that embedded nodes may be listed besides, each where the path reaches it, as
Optimism's `MerkleTrie` wants them and as OpenZeppelin's `TrieProof` allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from app.core import rlp
from app.core.keccak import keccak

# keccak(rlp("")): the trie that holds nothing.
EMPTY_ROOT = keccak(rlp.EMPTY_STRING)

# A child of this many bytes or more stands in its parent as its hash, which is itself this long.
HASH_BYTES = 32

_HASH_HEADER = 0xA0
_BRANCH_ITEMS = 17

Reason = Literal[
    "RootMismatch",  # the first node does not hash to the root
    "NodeHashMismatch",  # a node is not the one its parent commits to
    "KeyMismatch",  # the nodes lead to another key than the one asked for
    "ValueMismatch",  # the key holds another value
    "TruncatedProof",  # the path goes on below the last node
    "ExtraNodes",  # nodes are left over where the path ends
    "Absent",  # the nodes prove that the key is not in the trie
    "MalformedNode",  # a node is no canonical encoding of a trie node
]


class InvalidProof(Exception):
    """A proof was refused: at which position in the list of nodes, and how many nibbles into the key."""

    def __init__(
        self,
        reason: Reason,
        node: int | None = None,
        nibble: int | None = None,
        *,
        detail: str = "",
        expected: bytes | None = None,
        found: bytes | None = None,
    ) -> None:
        super().__init__(reason, node, nibble)
        self.reason = reason
        self.node = node
        self.nibble = nibble
        self.detail = detail
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        place = "".join(
            f" {name} {at}" for name, at in (("node", self.node), ("nibble", self.nibble)) if at is not None
        )
        return f"{self.reason}{' at' if place else ''}{place}{': ' if self.detail else ''}{self.detail}"


class _Node(NamedTuple):
    """A leaf or an extension has a path and one slot, a branch no path and 17 slots; slots are encoded RLP items."""

    path: str | None
    is_leaf: bool
    slots: list[bytes]


def verify(root: bytes, key: bytes, nodes: Sequence[bytes], *, absence: bool = False) -> bytes:
    """The value that `key` holds in the trie under `root`, as `nodes`, root first, prove it.

    Raises `InvalidProof`. With `absence`, nodes that prove that the key is not in the trie are `Absent`; without it
    they are what they are to someone who asked for a value, a `KeyMismatch`: absence is never answered by accident.
    """
    if not nodes:
        if absence and root == EMPTY_ROOT:
            raise InvalidProof("Absent", detail="the trie is empty")
        raise InvalidProof("TruncatedProof", 0, 0, detail="there is no node", expected=root)
    if (found := keccak(nodes[0])) != root:
        raise InvalidProof("RootMismatch", 0, 0, expected=root, found=found)

    wanted = key.hex()
    encoded, at, depth = nodes[0], 0, 0  # the node being read, the last listed node used, the nibbles behind us
    while True:
        node = _read(encoded, at, depth)
        if node.path is None:
            # At the end of the key the value in the branch is meant, before it one of the children.
            ends = depth == len(wanted)
            slot = node.slots[16 if ends else int(wanted[depth], 16)]
            beyond = depth + 1
        else:
            ends = node.is_leaf
            slot = node.slots[0]
            beyond = depth + len(node.path)
            if not (wanted[depth:] == node.path if ends else wanted.startswith(node.path, depth)):
                raise _no_value(nodes, at, depth + _agreed(node.path, wanted[depth:]), absence)
        if slot == rlp.EMPTY_STRING:
            raise _no_value(nodes, at, depth, absence)
        if ends:
            if at + 1 < len(nodes):
                raise InvalidProof("ExtraNodes", at + 1, len(wanted), detail="the path ends before this node")
            return rlp.string_of(slot)

        if slot[0] == _HASH_HEADER:
            encoded = _listed_child(nodes, at + 1, beyond, slot[1:], node)
            at += 1
        else:
            encoded = slot
            if at + 1 < len(nodes) and nodes[at + 1] == encoded:
                at += 1
        depth = beyond


def _listed_child(nodes: Sequence[bytes], at: int, depth: int, expected: bytes, parent: _Node) -> bytes:
    """The node at `at`, which must be the child that hashes to `expected`."""
    if at == len(nodes):
        raise InvalidProof(
            "TruncatedProof", at, depth, detail="the path goes on below the last node", expected=expected
        )
    child = nodes[at]
    if (found := keccak(child)) != expected:
        # Another child of the same branch: sound nodes, proof of another key. The nibble is the one that chose it.
        if bytes([_HASH_HEADER]) + found in parent.slots:
            raise InvalidProof(
                "KeyMismatch", at, depth - 1, detail="the nodes lead to another key", expected=expected, found=found
            )
        raise InvalidProof("NodeHashMismatch", at, depth, expected=expected, found=found)
    if len(child) < HASH_BYTES:
        raise InvalidProof("MalformedNode", at, depth, detail="a node this short is embedded, never hashed")
    return child


def _no_value(nodes: Sequence[bytes], at: int, depth: int, absence: bool) -> InvalidProof:
    """The trie branches off the key. Nodes that go on below that point prove some other key."""
    if absence and at + 1 == len(nodes):
        return InvalidProof("Absent", at, depth, detail="the trie holds no such key")
    return InvalidProof("KeyMismatch", at, depth, detail="the nodes lead to another key")


def _agreed(path: str, wanted: str) -> int:
    """How many leading nibbles two paths share."""
    return next(
        (depth for depth, (a, b) in enumerate(zip(path, wanted, strict=False)) if a != b), min(len(path), len(wanted))
    )


def _read(encoded: bytes, at: int, depth: int) -> _Node:
    try:
        return _node(encoded)
    except ValueError as malformed:
        raise InvalidProof("MalformedNode", at, depth, detail=str(malformed)) from malformed


def _node(encoded: bytes) -> _Node:
    """Read a node and, to their ends, the nodes embedded in it: fewer than 32 bytes each, so this cannot nest deeply.

    Raises ValueError unless it is a canonical encoding of a leaf, an extension or a branch.
    """
    items = rlp.split_list(encoded, _BRANCH_ITEMS)
    if len(items) == _BRANCH_ITEMS:
        for child in items[:16]:
            if child != rlp.EMPTY_STRING:
                _require_child(child)
        rlp.string_of(items[16])
        return _Node(None, False, items)
    if len(items) != 2:
        raise ValueError(f"a list of {len(items)} items is no trie node")

    flagged = rlp.string_of(items[0]).hex()
    flags = flagged[:1]
    if flags not in ("0", "1", "2", "3") or (flags in ("0", "2") and flagged[1] != "0"):
        raise ValueError("the hex prefix is not valid")
    is_leaf = flags in ("2", "3")
    path = flagged[1 if flags in ("1", "3") else 2 :]
    if is_leaf:
        if not rlp.string_of(items[1]):
            raise ValueError("the leaf has no value")
    else:
        if not path:
            raise ValueError("the extension has no path")
        _require_child(items[1])
    return _Node(path, is_leaf, items[1:])


def _require_child(item: bytes) -> None:
    """A child is a hash, or a whole node of fewer than 32 bytes."""
    if item[0] >= 0xC0:
        if len(item) >= HASH_BYTES:
            raise ValueError("an embedded node has 32 bytes or more")
        _node(item)
    elif item[0] != _HASH_HEADER:
        raise ValueError("a child is neither a hash nor a node")
