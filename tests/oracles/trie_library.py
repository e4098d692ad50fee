"""The `trie` library (py-trie) as a second opinion on Merkle-Patricia proofs.

It looks nodes up by their hash, so nodes that are appended, repeated or in another order change nothing for it: only
flipped bytes and dropped nodes can be held against it.
"""

from __future__ import annotations

from collections.abc import Sequence

import rlp
from rlp.exceptions import RLPException
from trie import HexaryTrie
from trie.exceptions import BadTrieProof, InvalidNode
from trie.exceptions import ValidationError as TrieValidationError


def root_of(values: Sequence[bytes]) -> bytes:
    """The root of the ordered trie: item i under rlp(i)."""
    trie = HexaryTrie({}, prune=True)
    for index, value in enumerate(values):
        trie[rlp.encode(index)] = value
    return bytes(trie.root_hash)


def proofs_of(values: Sequence[bytes]) -> list[tuple[bytes, ...]]:
    """Every proof of the ordered trie, nodes root to leaf, each as RLP; embedded nodes are not repeated."""
    trie = HexaryTrie({})
    for index, value in enumerate(values):
        trie[rlp.encode(index)] = value
    proofs = []
    for index in range(len(values)):
        nodes = [rlp.encode(node) for node in trie.get_proof(rlp.encode(index))]
        proofs.append(tuple(node for place, node in enumerate(nodes) if place == 0 or len(node) >= 32))
    return proofs


def value_in(root: bytes, key: bytes, nodes: Sequence[bytes]) -> bytes | None:
    """The value that `nodes` give `key` under `root`; b"" where they prove it absent; None where they prove nothing."""
    try:
        decoded = [rlp.decode(node) for node in nodes]
        return bytes(HexaryTrie.get_from_proof(root, key, decoded))
    # What it raises at a damaged node is not documented: each of these was seen.
    except (
        BadTrieProof,
        InvalidNode,
        TrieValidationError,
        RLPException,
        AssertionError,
        ValueError,
        TypeError,
        KeyError,
    ):
        return None


def accepts(root: bytes, key: bytes, value: bytes, nodes: Sequence[bytes]) -> bool:
    """Whether the library reads exactly `value` out of the proof."""
    return value != b"" and value_in(root, key, nodes) == value
