"""The Merkle-Patricia trie of a block: root, prove, verify. Source: Yellow Paper, appendices B, C and D.

Keys are read as nibbles, four bits each, written here as lower-case hex digits. A node is one of

    leaf        [hex prefix of the rest of the key, value]
    extension   [hex prefix of a shared path, child]               the child is a branch
    branch      [child 0 .. child f, value or empty]               at least two of the 17 are set

A child stands in its parent as its own encoding when that has fewer than 32 bytes (it is embedded), else as its keccak
hash (it is listed). The root is always listed. An embedded node is too short to hold a hash, so whatever lies below it
is embedded too.

The trie is built bottom-up from sorted keys: a key's node hangs at the deepest nibble it shares with a neighbour, and a
branch is complete, so encoded and hashed, once the next key leaves it. Nothing is encoded or hashed twice, and nothing
recurses.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from app.core import rlp
from app.core.keccak import keccak
from app.core.trie_proof import EMPTY_ROOT, HASH_BYTES, InvalidProof, Reason, verify

__all__ = [
    "EMPTY_ROOT",
    "InvalidProof",
    "PackedTrie",
    "Reason",
    "build",
    "build_ordered",
    "ordered_key",
    "prove",
    "value",
    "verify",
]

_NO_PARENT = 0xFFFFFFFF
_U32 = struct.Struct("<I")


class PackedTrie(msgspec.Struct, frozen=True, array_like=True):
    """A whole trie in a few bytes objects. Listed nodes are numbered children first, so the root comes last.

    `value_ends`, `node_ends`: where value i and node k end in `values` and `nodes`. `parents`: the listed node that
    leads to node k, 0xFFFFFFFF for the root. `terminals`: the last listed node on the way to item i. All four are u32,
    little endian.
    """

    root: bytes
    values: bytes
    value_ends: bytes
    nodes: bytes
    node_ends: bytes
    parents: bytes
    terminals: bytes

    @property
    def count(self) -> int:
        """How many items the trie holds."""
        return len(self.value_ends) // 4


class _Branch:
    """A branch that the keys still to come may enter. `depth` is the number of nibbles above it."""

    __slots__ = ("depth", "items", "nodes", "slots")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.slots = [rlp.EMPTY_STRING] * 17
        self.nodes: list[int] = []  # listed nodes directly below, whose parent is this branch once it is listed
        self.items: list[int] = []  # items held here or in embedded nodes below


def ordered_key(index: int) -> bytes:
    """The key of item `index` in a block's tries: rlp(index)."""
    return rlp.encode_uint(index)


def build_ordered(values: Sequence[bytes]) -> PackedTrie:
    """The trie of a block's transactions or receipts: the key of value i is rlp(i)."""
    return build([(ordered_key(index), value) for index, value in enumerate(values)])


def build(items: Sequence[tuple[bytes, bytes]]) -> PackedTrie:
    """The trie over (key, value) pairs in any order; the position of a pair is the index to ask for it by later.

    Requires distinct keys and values of at least one byte (a trie cannot tell an empty value from none); ValueError
    otherwise.
    """
    keys = [key.hex() for key, _ in items]
    order = sorted(range(len(items)), key=keys.__getitem__)
    builder = _Builder(len(items))
    open_branches: list[_Branch] = []
    shared_before = -1  # nibbles shared with the previous key in order; -1 at either end
    for place, item in enumerate(order):
        key, value = keys[item], items[item][1]
        if not value:
            raise ValueError(f"the value of item {item} is empty")
        shared_after = _shared(key, keys[order[place + 1]]) if place + 1 < len(order) else -1

        depth = max(shared_before, shared_after)
        if depth < 0:
            builder.leaf(None, item, key, value)
            break
        if not open_branches or open_branches[-1].depth < depth:
            open_branches.append(_Branch(depth))
        builder.leaf(open_branches[-1], item, key, value)

        while open_branches and open_branches[-1].depth > shared_after:
            branch = open_branches.pop()
            # The parent is the next branch up, unless the next key turns off in between: then that is a branch too.
            if shared_after >= 0 and (not open_branches or open_branches[-1].depth < shared_after):
                open_branches.append(_Branch(shared_after))
            builder.close(branch, open_branches[-1] if open_branches else None, key)
        shared_before = shared_after
    return builder.pack([value for _, value in items])


def _shared(key: str, after: str) -> int:
    """How many leading nibbles two sorted neighbours share. ValueError when they are the same key."""
    if after.startswith(key):
        if len(key) == len(after):
            raise ValueError(f"the key 0x{key} is given twice")
        return len(key)
    depth = 0
    while key[depth] == after[depth]:
        depth += 1
    return depth


class _Builder:
    """The listed nodes so far, and who leads to whom."""

    __slots__ = ("nodes", "parents", "root", "terminals")

    def __init__(self, count: int) -> None:
        self.root = EMPTY_ROOT
        self.nodes: list[bytes] = []
        self.parents: list[int] = []
        self.terminals = [0] * count

    def leaf(self, branch: _Branch | None, item: int, key: str, value: bytes) -> None:
        """Hang an item at `branch`; None makes it the only node of the trie."""
        depth = branch.depth if branch else -1
        if branch and depth == len(key):
            branch.slots[16] = rlp.encode_bytes(value)
            branch.items.append(item)
            return
        path = _hex_prefix(key[depth + 1 :], 2)
        node = rlp.encode_list_of_encoded([rlp.encode_bytes(path), rlp.encode_bytes(value)])
        self._hang(node, branch, key, [], [item])

    def close(self, branch: _Branch, parent: _Branch | None, key: str) -> None:
        """Encode a complete branch, and the extension above it if there is one; `key` is any key through it."""
        node = rlp.encode_list_of_encoded(branch.slots)
        top = parent.depth + 1 if parent else 0
        nodes, items = branch.nodes, branch.items
        if top < branch.depth:
            if len(node) >= HASH_BYTES:
                nodes, items, node = [self._list(node, nodes, items)], [], b"\xa0" + keccak(node)
            path = _hex_prefix(key[top : branch.depth], 0)
            node = rlp.encode_list_of_encoded([rlp.encode_bytes(path), node])
        self._hang(node, parent, key, nodes, items)

    def _hang(self, node: bytes, parent: _Branch | None, key: str, nodes: list[int], items: list[int]) -> None:
        """Put an encoded node in its place in `parent`, embedded or by hash; None makes it the root."""
        if parent is None:
            self._list(node, nodes, items)
            self.root = keccak(node)
            return
        if len(node) < HASH_BYTES:
            parent.items += items
        else:
            parent.nodes.append(self._list(node, nodes, items))
            node = b"\xa0" + keccak(node)
        parent.slots[int(key[parent.depth], 16)] = node

    def _list(self, node: bytes, below: list[int], items: list[int]) -> int:
        """Number a listed node and point everything that hangs on it at it."""
        number = len(self.nodes)
        self.nodes.append(node)
        self.parents.append(_NO_PARENT)
        for child in below:
            self.parents[child] = number
        for item in items:
            self.terminals[item] = number
        return number

    def pack(self, values: list[bytes]) -> PackedTrie:
        return PackedTrie(
            root=self.root,
            values=b"".join(values),
            value_ends=_pack_ends(values),
            nodes=b"".join(self.nodes),
            node_ends=_pack_ends(self.nodes),
            parents=struct.pack(f"<{len(self.parents)}I", *self.parents),
            terminals=struct.pack(f"<{len(self.terminals)}I", *self.terminals),
        )


def _pack_ends(parts: list[bytes]) -> bytes:
    end, ends = 0, []
    for part in parts:
        end += len(part)
        ends.append(end)
    return struct.pack(f"<{len(ends)}I", *ends)


def _hex_prefix(path: str, flags: int) -> bytes:
    """A path with its flags in front: 2 marks a leaf, 0 an extension, and 1 is added when the number of nibbles is odd;
    an even path gets a zero nibble more, to fill the byte.
    """
    return bytes.fromhex(f"{flags | 1}{path}" if len(path) % 2 else f"{flags}0{path}")


def value(trie: PackedTrie, index: int) -> bytes:
    """The value of item `index`. Requires 0 <= index < count; IndexError otherwise."""
    _require(trie, index)
    return _part(trie.values, trie.value_ends, index)


def prove(trie: PackedTrie, index: int) -> tuple[bytes, ...]:
    """The listed nodes from the root to the one that holds item `index`; embedded nodes are not repeated.

    Requires 0 <= index < count; IndexError otherwise, so an empty trie proves nothing.
    """
    _require(trie, index)
    path: list[bytes] = []
    (node,) = _U32.unpack_from(trie.terminals, 4 * index)
    while node != _NO_PARENT:
        path.append(_part(trie.nodes, trie.node_ends, node))
        (node,) = _U32.unpack_from(trie.parents, 4 * node)
    return tuple(reversed(path))


def _require(trie: PackedTrie, index: int) -> None:
    if not 0 <= index < trie.count:
        raise IndexError(f"item {index} of {trie.count}")


def _part(joined: bytes, ends: bytes, index: int) -> bytes:
    (end,) = _U32.unpack_from(ends, 4 * index)
    (start,) = _U32.unpack_from(ends, 4 * index - 4) if index else (0,)
    return joined[start:end]
