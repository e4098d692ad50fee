from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import trie
from app.core.trie import InvalidProof
from tests import reference
from tests.corpus_files import VECTORS, fixtures
from tests.oracles import damage, trie_library

from .test_trie import Items, crowded_keys, item_lists


def _bytes(text: str | None) -> bytes:
    return bytes.fromhex((text or "").removeprefix("0x"))


def _refusal(root: bytes, key: bytes, nodes: Sequence[bytes], *, absence: bool = False) -> InvalidProof:
    with pytest.raises(InvalidProof) as refused:
        trie.verify(root, key, nodes, absence=absence)
    return refused.value


def _place(refused: InvalidProof) -> tuple[str, int | None, int | None]:
    return refused.reason, refused.node, refused.nibble


# --- published proofs -----------------------------------------------------------------------------------------------


def _published() -> Iterator[Any]:
    for path in sorted((VECTORS / "mpt").glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for place, vector in enumerate(content.get("vectors", [content] if "nodes" in content else [])):
            yield pytest.param(vector, id=f"{path.stem}-{vector.get('name', place)}")


PUBLISHED = list(_published())
SOUND = [param for param in PUBLISHED if not param.values[0].get("expectError")]
BROKEN = [param for param in PUBLISHED if param.values[0].get("expectError")]

# What is wrong with each, in our words.
BROKEN_REASONS = {
    "test_get_nonexistentKey1_reverts": "KeyMismatch",
    "test_get_nonexistentKey2_reverts": "KeyMismatch",
    "test_get_wrongKeyProof_reverts": "NodeHashMismatch",
    "test_get_corruptedProof_reverts": "RootMismatch",
    "test_get_invalidDataRemainder_reverts": "ExtraNodes",
    "test_get_invalidInternalNodeHash_reverts": "NodeHashMismatch",
    "test_get_zeroBranchValueLength_reverts": "KeyMismatch",
    "test_get_zeroLengthKey_reverts": "KeyMismatch",
    "test_get_smallerPathThanKey1_reverts": "KeyMismatch",
    "test_get_smallerPathThanKey2_reverts": "KeyMismatch",
    "test_get_extraProofElements_reverts": "ExtraNodes",
}


@pytest.mark.parametrize("vector", SOUND)
def test_published_proofs_verify(vector: dict[str, Any]) -> None:
    root = _bytes(vector.get("root", vector.get("receiptsRoot")))
    nodes = [_bytes(node) for node in vector["nodes"]]
    assert trie.verify(root, _bytes(vector["key"]), nodes) == _bytes(vector["value"])


@pytest.mark.parametrize("vector", BROKEN)
def test_published_broken_proofs_are_refused_with_the_right_reason(vector: dict[str, Any]) -> None:
    nodes = [_bytes(node) for node in vector["nodes"]]
    refused = _refusal(_bytes(vector["root"]), _bytes(vector["key"]), nodes)
    assert refused.reason == BROKEN_REASONS[vector["name"]]


def test_published_proofs_are_all_run() -> None:
    assert len(SOUND) == 22
    assert len(BROKEN) == len(BROKEN_REASONS)


# --- B42: absent, and broken, are different answers -----------------------------------------------------------------

PAIR = trie.build_ordered([b"zero" * 20, b"one" * 20])
MANY = trie.build_ordered([b"value %d " % index * 5 for index in range(130)])


@pytest.mark.parametrize("absence", [False, True])
def test_B42_broken_proofs_are_named_and_never_absent(absence: bool) -> None:
    root, key, nodes = MANY.root, trie.ordered_key(129), trie.prove(MANY, 129)
    assert len(nodes) == 5
    tampered = [*nodes[:2], nodes[2][:-1] + bytes([nodes[2][-1] ^ 1]), *nodes[3:]]
    assert _place(_refusal(root, key, tampered, absence=absence)) == ("NodeHashMismatch", 2, 2)
    assert _place(_refusal(root, key, nodes[:2] + nodes[3:], absence=absence)) == ("NodeHashMismatch", 2, 2)
    assert _place(_refusal(root, key, nodes[:-1], absence=absence)) == ("TruncatedProof", 4, 4)
    assert _place(_refusal(root, key, nodes[1:], absence=absence)) == ("RootMismatch", 0, 0)
    assert _place(_refusal(bytes(32), key, nodes, absence=absence)) == ("RootMismatch", 0, 0)
    assert _place(_refusal(root, key, (), absence=absence)) == ("TruncatedProof", 0, 0)
    assert _place(_refusal(root, key, [*nodes, nodes[-1]], absence=absence)) == ("ExtraNodes", 5, 4)
    # The proof of another item: the nibble is where the two keys part.
    assert _place(_refusal(root, trie.ordered_key(128), nodes, absence=absence)) == ("KeyMismatch", 4, 3)
    assert _place(_refusal(root, trie.ordered_key(0), nodes, absence=absence)) == ("KeyMismatch", 2, 1)
    assert _place(_refusal(root, trie.ordered_key(1), nodes, absence=absence)) == ("KeyMismatch", 1, 0)


def test_B42_a_complete_path_beside_the_key_is_absent_only_on_purpose() -> None:
    key, nodes = trie.ordered_key(2), trie.prove(PAIR, 1)
    assert _place(_refusal(PAIR.root, key, nodes)) == ("KeyMismatch", 1, 1)
    assert _place(_refusal(PAIR.root, key, nodes, absence=True)) == ("Absent", 1, 1)
    # An empty slot of a branch, and a path that leaves an extension.
    assert _place(_refusal(PAIR.root, b"\x70", nodes[:1], absence=True)) == ("Absent", 0, 0)
    assert _place(_refusal(MANY.root, b"\x82\x01\x00", trie.prove(MANY, 129)[:2], absence=True)) == ("Absent", 1, 1)
    assert _place(_refusal(MANY.root, b"\x81\x70", trie.prove(MANY, 129)[:3], absence=True)) == ("Absent", 2, 2)
    assert _place(_refusal(trie.EMPTY_ROOT, b"\x01", (), absence=True)) == ("Absent", None, None)


def test_B42_nodes_beyond_the_point_where_the_key_turns_off_prove_another_key() -> None:
    assert _place(_refusal(PAIR.root, b"\x70", trie.prove(PAIR, 1), absence=True)) == ("KeyMismatch", 0, 0)


@settings(max_examples=200)
@given(item_lists(crowded_keys), crowded_keys, st.data())
def test_B42_absence_is_proved_for_no_key_that_is_there(items: Items, asked: bytes, data: st.DataObject) -> None:
    packed = trie.build(items)
    nodes = trie.prove(packed, data.draw(st.integers(0, len(items) - 1)))
    nodes = nodes[: data.draw(st.integers(0, len(nodes)))]
    try:
        assert trie.verify(packed.root, asked, nodes, absence=True) == dict(items)[asked]
    except InvalidProof as refused:
        if refused.reason == "Absent":
            assert asked not in dict(items)
            assert trie_library.value_in(packed.root, asked, nodes) == b""


# --- embedded nodes, listed or not ----------------------------------------------------------------------------------

SMALL = trie.build([(b"a", b"a"), (b"b", b"b"), (b"c", b"c")])
# extension [6, branch], branch [.., leaf a, leaf b, leaf c, ..], leaf b
EXTENSION = _bytes("d916d780c22061c22062c2206380808080808080808080808080")
BRANCH = _bytes("d780c22061c22062c2206380808080808080808080808080")
LEAF_A, LEAF_B = _bytes("c22061"), _bytes("c22062")


def test_embedded_nodes_may_be_listed_where_the_path_reaches_them() -> None:
    assert trie.prove(SMALL, 1) == (EXTENSION,)
    for nodes in ([EXTENSION], [EXTENSION, BRANCH], [EXTENSION, BRANCH, LEAF_B], [EXTENSION, LEAF_B]):
        assert trie.verify(SMALL.root, b"b", nodes) == b"b"


@pytest.mark.parametrize(
    "nodes",
    [
        [EXTENSION, LEAF_B, BRANCH],
        [EXTENSION, BRANCH, LEAF_A],
        [EXTENSION, LEAF_A],
        [EXTENSION, BRANCH, BRANCH],
        [EXTENSION, BRANCH, LEAF_B, LEAF_B],
        [EXTENSION, EXTENSION],
        [EXTENSION, BRANCH, LEAF_B + b"\0"],
        [EXTENSION, BRANCH[:-1]],
        [EXTENSION, b""],
    ],
)
def test_nothing_else_may_be_listed_with_them(nodes: list[bytes]) -> None:
    assert _refusal(SMALL.root, b"b", nodes).reason == "ExtraNodes"


def test_embedded_nodes_stand_in_for_no_root() -> None:
    assert _refusal(SMALL.root, b"b", [BRANCH, LEAF_B]).reason == "RootMismatch"


# --- malformed nodes ------------------------------------------------------------------------------------------------

HASH = b"\xa0" + bytes(32)
LEAF_ONE = "c23161"  # odd path "1", value "a"


def _branch(**slots: bytes) -> bytes:
    listed = [slots.get(f"_{place}", b"\x80") for place in range(17)]
    payload = b"".join(listed)
    return bytes([0xC0 + len(payload)]) + payload if len(payload) < 56 else bytes([0xF8, len(payload)]) + payload


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (b"", "missing"),
        (b"\x80", "a string"),
        (b"\x61", "a string"),
        (b"\xc0", "0 items"),
        (_bytes("c3203161"), "3 items"),
        (_bytes("c23161") + b"\0", "bytes after"),
        (_bytes("c231"), "longer than"),
        (_bytes("f8023161"), "long length"),
        (_bytes("c3318161"), "needs none"),
        (_bytes("c4813161"), "longer than"),
        (_bytes("c2c061"), "not one string"),
        (_bytes("c28061"), "hex prefix"),
        (_bytes("c24161"), "hex prefix"),
        (_bytes("c22161"), "hex prefix"),
        (_bytes("c20161"), "hex prefix"),
        (_bytes("c23180"), "no value"),
        (_bytes("c231c0"), "not one string"),
        (b"\xe2\x00" + HASH, "no path"),
        (_bytes("c21180"), "neither a hash nor a node"),
        (_bytes("c21161"), "neither a hash nor a node"),
        (_bytes("c211c0"), "0 items"),
        (b"\xe1\x11\x9f" + bytes(31), "neither a hash nor a node"),
        (b"\xe3\x11\xa1" + bytes(33), "neither a hash nor a node"),
        (b"\xe1\x11\xdf\x31\x9d" + bytes(29), "32 bytes or more"),
        (_branch(_0=b"\x61"), "neither a hash nor a node"),
        (_branch(_15=_bytes("c22161")), "hex prefix"),
        (_branch(_5=_bytes("c3318161")), "needs none"),
        (_branch(_16=b"\xc0"), "not one string"),
        (_branch(_3=b"\xe1\x31\x9f" + bytes(31)), "32 bytes or more"),
    ],
)
def test_root_that_is_no_node_is_malformed(node: bytes, why: str) -> None:
    refused = _refusal(reference.keccak(node), b"\x11", [node])
    assert _place(refused) == ("MalformedNode", 0, 0)
    assert why in refused.detail


def test_hash_may_not_lead_to_a_node_that_belongs_embedded() -> None:
    leaf = _bytes("c23161")
    root = _branch(_1=b"\xa0" + reference.keccak(leaf), _2=HASH)
    refused = _refusal(reference.keccak(root), b"\x11", [root, leaf])
    assert _place(refused) == ("MalformedNode", 1, 1)


def test_malformed_node_is_placed_where_it_stands() -> None:
    child = _bytes("e3") + b"\x31" + b"\x81\x61" + b"\x9f" + bytes(31)
    root = _branch(_1=b"\xa0" + reference.keccak(child), _2=HASH)
    assert _place(_refusal(reference.keccak(root), b"\x11", [root, child])) == ("MalformedNode", 1, 1)


def test_deeply_nested_lists_are_refused_without_following_them() -> None:
    node = b""
    for _ in range(5_000):
        node = reference.rlp([]) if not node else _wrapped(node)
    assert _refusal(reference.keccak(node), b"\x11", [node]).reason == "MalformedNode"


def _wrapped(payload: bytes) -> bytes:
    size = len(payload)
    length = reference.be(size)
    return bytes([0xC0 + size]) + payload if size < 56 else bytes([0xF7 + len(length)]) + length + payload


@given(st.binary(max_size=80), st.binary(max_size=4))
def test_any_bytes_are_refused_and_never_crash(node: bytes, key: bytes) -> None:
    try:
        value = trie.verify(reference.keccak(node), key, [node])
    except InvalidProof:
        value = b""
    assert value in node


# --- damage ---------------------------------------------------------------------------------------------------------


def _blocks() -> list[tuple[trie.PackedTrie, int]]:
    leaves = [_bytes(leaf) for leaf in fixtures()["legacy130"]["expect"]["leaves"]]
    receipts = trie.build_ordered(leaves)
    return [(receipts, index) for index in (0, 1, 127, 128, 129)] + [(PAIR, 0), (MANY, 129)]


@pytest.mark.parametrize(("packed", "index"), _blocks(), ids=lambda value: value if isinstance(value, int) else "")
def test_damaged_proofs_are_refused(packed: trie.PackedTrie, index: int) -> None:
    nodes, key = trie.prove(packed, index), trie.ordered_key(index)
    damaged = [*damage.flip_every_byte(nodes), *damage.drops(nodes), *damage.rearrangements(nodes, seed=index)]
    assert {each.kind for each in damaged} >= {"flip", "drop", "append", "repeat"}
    for each in damaged:
        for absence in (False, True):
            refused = _refusal(packed.root, key, each.nodes, absence=absence)
            assert refused.reason not in {"Absent", "KeyMismatch"}, each


@settings(max_examples=150)
@given(item_lists(crowded_keys, max_size=12), st.data())
def test_damaged_proofs_of_crowded_tries_are_refused(items: Items, data: st.DataObject) -> None:
    packed = trie.build(items)
    index = data.draw(st.integers(0, len(items) - 1))
    key, value = items[index]
    nodes = trie.prove(packed, index)
    for each in damage.damages(nodes, seed=index):
        assert _refusal(packed.root, key, each.nodes).reason != "Absent"
    for other in range(len(items)):
        if other != index:
            # Two items may share all listed nodes: then the proof of one is the proof of the other.
            if trie.prove(packed, other) == nodes:
                assert trie.verify(packed.root, key, nodes) == value
            else:
                refused = _refusal(packed.root, key, trie.prove(packed, other))
                assert refused.reason in {"KeyMismatch", "TruncatedProof", "ExtraNodes"}


def test_refusal_reads_as_a_diagnosis() -> None:
    refused = _refusal(MANY.root, trie.ordered_key(129), trie.prove(MANY, 129)[:-1])
    assert str(refused) == "TruncatedProof at node 4 nibble 4: the path goes on below the last node"
    assert refused.expected == reference.keccak(trie.prove(MANY, 129)[-1])
    assert str(InvalidProof("ValueMismatch")) == "ValueMismatch"
