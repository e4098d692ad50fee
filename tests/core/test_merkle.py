from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import merkle
from app.core.errors import MerkleError
from tests import reference
from tests.corpus_files import VECTORS

Siblings = list[tuple[bytes, bool]]


def _vector(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((VECTORS / "usc" / name).read_text(encoding="utf-8"))
    return loaded


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def _siblings(listed: list[dict[str, Any]]) -> tuple[tuple[bytes, bool], ...]:
    return tuple((_bytes(sibling["hash"]), sibling["isLeft"]) for sibling in listed)


def _leaves(count: int) -> list[bytes]:
    return [b"leaf %d" % index for index in range(count)]


def test_trees_meet_the_sdk_literals() -> None:
    cases = _vector("merkle_00_upstream_literals.json")["cases"]
    assert [len(case["leaves"]) for case in cases] == [0, 1, 4, 3, 34]
    for case in cases:
        leaves = [_bytes(leaf) for leaf in case["leaves"]]
        tree = merkle.build(leaves)
        assert tree.root == _bytes(case["root"])
        if case["proof_index"] is not None:
            siblings = merkle.prove(tree, case["proof_index"])
            assert siblings == _siblings(case["siblings"])
            assert merkle.verify(tree.root, leaves[case["proof_index"]], siblings) == case["proof_index"]


def test_levels_and_every_proof_meet_the_package() -> None:
    cases = _vector("merkle_01_sizes_0_to_9.json")["cases"]
    assert [len(case["leaves"]) for case in cases] == list(range(10))
    for case in cases:
        tree = merkle.build([_bytes(leaf) for leaf in case["leaves"]])
        assert tree.root == _bytes(case["root"])
        assert tree.levels == b"".join(_bytes(node) for level in case["levels"] for node in level)
        assert len(case["proofs"]) == tree.size
        for index, proof in enumerate(case["proofs"]):
            assert merkle.prove(tree, index) == _siblings(proof["siblings"])


def test_block_of_mixed_types_meets_the_package() -> None:
    block = _vector("block_8tx_mixed_types.json")
    proofs = [_siblings(proof["siblings"]) for proof in block["merkleProofs"]]
    # Not every leaf is on file: the hash of each stands in its neighbour's proof.
    tree = merkle.build_from_hashes([proofs[index ^ 1][0][0] for index in range(8)])
    assert tree.root == _bytes(block["root"])
    assert [merkle.prove(tree, index) for index in range(8)] == proofs
    for index, name in enumerate(block["leaf_files"]):
        if (VECTORS / "usc" / name).exists():
            leaf = _bytes(_vector(name)["encoded"])
            assert merkle.verify(tree.root, leaf, proofs[index]) == index


def test_blocks_of_the_mock_provider() -> None:
    blocks = _vector("mock_blocks_own.json")["blocks"]
    assert [block["block"] for block in blocks] == [99, 100, 101]
    for block in blocks:
        tree = merkle.build([_bytes(leaf) for leaf in block["tx_bytes"]])
        assert tree.root == _bytes(block["merkle_root"])
        assert [merkle.prove(tree, index) for index in range(tree.size)] == [_siblings(p) for p in block["proofs"]]


@pytest.mark.parametrize("count", [*range(1, 34), 63, 64, 65, 127, 128, 129, 255, 256, 257])
def test_every_proof_is_the_definition_s_and_verifies(count: int) -> None:
    leaves = _leaves(count)
    tree = merkle.build(leaves)
    assert tree.root == reference.tree_root(leaves)
    for index, leaf in enumerate(leaves):
        siblings = merkle.prove(tree, index)
        assert list(siblings) == reference.tree_proof(leaves, index)
        assert merkle.verify(tree.root, leaf, siblings) == index


def test_B43_a_block_without_leaves_has_a_zero_root_and_no_proof() -> None:
    tree = merkle.build([])
    assert tree == merkle.PackedTree(0, b"", bytes(32))
    with pytest.raises(IndexError):
        merkle.prove(tree, 0)


@pytest.mark.parametrize("index", [-1, 5, 6])
def test_index_outside_the_tree_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match="of 5"):
        merkle.prove(merkle.build(_leaves(5)), index)


def test_padding_is_zero_and_not_a_copy_of_the_last_node() -> None:
    three = merkle.build(_leaves(3))
    assert merkle.prove(three, 2)[0] == (bytes(32), False)
    assert three.root != merkle.build([*_leaves(3), _leaves(3)[2]]).root


def test_leaf_hash_has_thirty_two_bytes() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        merkle.build_from_hashes([bytes(31)])


# --- damage -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.data())
def test_damaged_proofs_are_refused(count: int, data: st.DataObject) -> None:
    leaves = _leaves(count)
    index = data.draw(st.integers(0, count - 1))
    tree = merkle.build(leaves)
    siblings = list(merkle.prove(tree, index))

    def refused(root: bytes, leaf: bytes, damaged: Siblings) -> None:
        with pytest.raises(MerkleError):
            merkle.verify(root, leaf, damaged)

    position = data.draw(st.integers(0, 31))
    refused(_flip(tree.root, position), leaves[index], siblings)
    refused(tree.root, leaves[index] + b"\0", siblings)
    refused(tree.root, leaves[index], [*siblings, (bytes(32), False)])
    for level, (sibling, is_left) in enumerate(siblings):
        before, after = siblings[:level], siblings[level + 1 :]
        refused(tree.root, leaves[index], [*before, (_flip(sibling, position), is_left), *after])
        refused(tree.root, leaves[index], [*before, (sibling, not is_left), *after])
        refused(tree.root, leaves[index], [*before, *after])
        refused(tree.root, leaves[index], [*before, (sibling, is_left), (sibling, is_left), *after])
        if after and after[0] != (sibling, is_left):
            refused(tree.root, leaves[index], [*before, after[0], (sibling, is_left), *after[1:]])


def _flip(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def test_sibling_of_another_length_is_refused_before_anything_is_hashed() -> None:
    tree = merkle.build(_leaves(2))
    (sibling, is_left), *_ = merkle.prove(tree, 0)
    with pytest.raises(MerkleError, match="32 bytes"):
        merkle.verify(tree.root, _leaves(2)[0], [(sibling + b"\0", is_left)])
    with pytest.raises(MerkleError, match="limit is 64"):
        merkle.verify(tree.root, _leaves(2)[0], [(sibling, is_left)] * 65)


def test_inner_node_passes_for_no_leaf() -> None:
    leaves = _leaves(4)
    tree = merkle.build(leaves)
    hashes = [merkle.leaf_hash(leaf) for leaf in leaves]
    with pytest.raises(MerkleError):
        merkle.verify(tree.root, hashes[0] + hashes[1], merkle.prove(tree, 0)[1:])
