from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trie import HexaryTrie

from app.core import trie
from app.core.receipts import decode_receipt, encodings
from app.core.rpc_json import decode_receipts
from tests import reference
from tests.corpus_files import VECTORS, fixtures, receipts_json, recorded
from tests.oracles import solidity, trie_library

Items = list[tuple[bytes, bytes]]


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def _library(items: Items) -> HexaryTrie:
    library = HexaryTrie({})
    for key, value in items:
        library[key] = value
    return library


# Few letters, so that keys share nibbles, are prefixes of others, and differ in the high or in the low half of a byte.
crowded_keys = st.lists(st.sampled_from([0x00, 0x01, 0x10, 0x11, 0x80, 0xFF]), max_size=5).map(bytes)
any_keys = st.binary(max_size=6) | st.binary(min_size=32, max_size=32) | st.binary(min_size=33, max_size=80)
short_values = st.binary(min_size=1, max_size=40)


def item_lists(keys: st.SearchStrategy[bytes], max_size: int = 24) -> st.SearchStrategy[Items]:
    return st.dictionaries(keys, short_values, min_size=1, max_size=max_size).map(lambda items: list(items.items()))


# --- B03: the keys of a block's tries -------------------------------------------------------------------------------


def test_B03_keys_are_rlp_of_the_index() -> None:
    keys = {0: "80", 1: "01", 127: "7f", 128: "8180", 255: "81ff", 256: "820100", 65536: "83010000"}
    assert {index: trie.ordered_key(index).hex() for index in keys} == keys


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 127, 128, 129, 130, 255, 256, 257, 1000])
def test_B03_every_index_proves_at_every_size(count: int) -> None:
    values = [b"value %d " % index + b"." * (index % 50) for index in range(count)]
    packed = trie.build_ordered(values)
    assert packed.count == count
    assert packed.root == trie_library.root_of(values)
    for index, value in enumerate(values):
        nodes, key = trie.prove(packed, index), trie.ordered_key(index)
        assert trie.value(packed, index) == value
        assert trie.verify(packed.root, key, nodes) == value
        assert trie_library.value_in(packed.root, key, nodes) == value
    if count <= 257:
        items = dict(zip(map(trie.ordered_key, range(count)), values, strict=True))
        assert packed.root == reference.trie_root(items)


def test_B03_proofs_of_one_and_of_130_receipts_have_the_known_lengths() -> None:
    expect = fixtures()["legacy130"]["expect"]
    packed = trie.build_ordered([_bytes(leaf) for leaf in expect["leaves"]])
    assert packed.root == _bytes(expect["receiptsRoot"])
    lengths = {index: len(trie.prove(packed, index)) for index in (0, 127, 128, 129)}
    assert lengths == {0: 3, 127: 3, 128: 5, 129: 5}
    assert len(trie.prove(trie.build_ordered([b"alone"]), 0)) == 1


@pytest.mark.parametrize("name", [name for name in fixtures() if name != "zero_receipts_root"])
def test_receipt_tries_of_the_fixtures(name: str) -> None:
    expect = fixtures()[name]["expect"]
    values = [_bytes(leaf) for leaf in expect["leaves"]]
    packed = trie.build_ordered(values)
    assert packed.root == _bytes(expect["receiptsRoot"])
    assert [trie.prove(packed, index) for index in range(packed.count)] == trie_library.proofs_of(values)


def test_growing_block_has_the_published_root_after_every_receipt() -> None:
    vector = json.loads((VECTORS / "mpt" / "unichain-sepolia_35535698_receipt_prefix_roots.json").read_text())
    record = recorded("full", "unichain-sepolia_35535698")
    receipts = [decode_receipt(receipt, None) for receipt in decode_receipts(receipts_json(record))]
    name, leaves = next(encodings(receipts, "op-stack"))
    assert name == "canonical"
    for prefix in vector["prefixes"]:
        assert trie.build_ordered(leaves[: prefix["k"]]).root == _bytes(prefix["receiptsRoot"])


def test_B41_extension_on_the_path_is_understood_outside() -> None:
    expect = fixtures()["legacy130"]["expect"]
    packed = trie.build_ordered([_bytes(leaf) for leaf in expect["leaves"]])
    nodes = trie.prove(packed, 129)
    # branch, branch, extension, branch, leaf
    assert [node[0] for node in nodes] == [0xF9, 0xF8, 0xE2, 0xF8, 0xF9]
    value = trie.value(packed, 129)
    assert solidity.verify_trie_proof(packed.root, trie.ordered_key(129), value, nodes)
    assert trie_library.accepts(packed.root, trie.ordered_key(129), value, nodes)


# --- B40: nodes embedded in their parents ---------------------------------------------------------------------------


def test_B40_two_letters_are_one_node() -> None:
    packed = trie.build([(b"a", b"a"), (b"b", b"b")])
    assert packed.root.hex() == "a5d65fac276d46b3f826a1eff29ec761924168f3b7d55fffaef9d8b4ae2d1d10"
    assert packed.root == _library([(b"a", b"a"), (b"b", b"b")]).root_hash
    only = [_bytes("d716d580c22061c220628080808080808080808080808080")]
    assert list(trie.prove(packed, 0)) == list(trie.prove(packed, 1)) == only


def test_B40_embedded_nodes_are_not_repeated() -> None:
    items = [(b"12345", b"1"), (b"123456", b"2"), (b"1234", b"3")]
    packed = trie.build(items)
    assert packed.root.hex() == "96486addc8aa7ccb204fdf03a4909b8c0cc6943f2d80682530d0709fbb469732"
    assert packed.root == _library(items).root_hash
    nodes = trie.prove(packed, 0)
    assert len(nodes) == 2
    assert [trie.verify(packed.root, key, trie.prove(packed, i)) for i, (key, _) in enumerate(items)] == [
        b"1",
        b"2",
        b"3",
    ]


@settings(max_examples=300)
@given(item_lists(crowded_keys) | item_lists(any_keys))
def test_B40_trie_and_proofs_are_the_definition_s(items: Items) -> None:
    packed = trie.build(items)
    assert packed.root == reference.trie_root(dict(items))
    for index, (key, value) in enumerate(items):
        nodes = trie.prove(packed, index)
        assert list(nodes) == reference.trie_proof(dict(items), key)
        assert trie.value(packed, index) == value
        assert trie.verify(packed.root, key, nodes) == value


@settings(max_examples=150)
@given(item_lists(crowded_keys | any_keys))
def test_B40_root_and_proofs_meet_the_trie_library(items: Items) -> None:
    packed, library = trie.build(items), _library(items)
    assert packed.root == library.root_hash
    for index, (key, value) in enumerate(items):
        assert trie_library.value_in(packed.root, key, trie.prove(packed, index)) == value


@settings(max_examples=100)
@given(st.lists(short_values, max_size=300))
def test_ordered_tries_are_the_definition_s(values: list[bytes]) -> None:
    packed = trie.build_ordered(values)
    items = {trie.ordered_key(index): value for index, value in enumerate(values)}
    assert packed.root == reference.trie_root(items)
    for index in range(0, len(values), 7):
        assert list(trie.prove(packed, index)) == reference.trie_proof(items, trie.ordered_key(index))


@given(item_lists(crowded_keys), st.randoms(use_true_random=False))
def test_order_of_the_items_decides_their_indexes_and_nothing_else(items: Items, random: object) -> None:
    shuffled = items.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = trie.build(items), trie.build(shuffled)
    assert (one.root, one.nodes, one.parents) == (other.root, other.nodes, other.parents)
    for index, item in enumerate(shuffled):
        assert trie.prove(other, index) == trie.prove(one, items.index(item))
        assert trie.value(other, index) == item[1]


# --- what a packed trie is ------------------------------------------------------------------------------------------


def test_empty_trie_has_the_known_root_and_proves_nothing() -> None:
    packed = trie.build_ordered([])
    assert packed.root == trie.EMPTY_ROOT == reference.keccak(b"\x80")
    assert packed.root.hex() == "56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"
    assert (packed.count, packed.nodes, packed.values) == (0, b"", b"")
    for index in (-1, 0, 1):
        with pytest.raises(IndexError):
            trie.prove(packed, index)
        with pytest.raises(IndexError):
            trie.value(packed, index)


@pytest.mark.parametrize("index", [-1, 3, 4])
def test_index_outside_the_trie_is_refused(index: int) -> None:
    packed = trie.build_ordered([b"a", b"b", b"c"])
    with pytest.raises(IndexError, match="of 3"):
        trie.prove(packed, index)
    with pytest.raises(IndexError, match="of 3"):
        trie.value(packed, index)


def test_every_listed_node_is_kept_once_and_leads_to_the_root() -> None:
    packed = trie.build_ordered([b"receipt %d " % index * 9 for index in range(300)])
    ends = memoryview(packed.node_ends).cast("I")
    nodes = [packed.nodes[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    parents = memoryview(packed.parents).cast("I").tolist()
    assert len(set(nodes)) == len(nodes) == len(parents)
    assert reference.keccak(nodes[-1]) == packed.root
    assert parents[-1] == 0xFFFFFFFF
    for node, parent in zip(nodes[:-1], parents[:-1], strict=True):
        assert reference.keccak(node) in nodes[parent]


def test_packed_trie_survives_msgpack() -> None:
    packed = trie.build_ordered([b"value %d" % index for index in range(40)])
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=trie.PackedTrie)
    assert again == packed
    assert trie.prove(again, 39) == trie.prove(packed, 39)


def test_ten_thousand_items_build_and_prove() -> None:
    values = [b"%d" % index * 20 for index in range(10_000)]
    packed = trie.build_ordered(values)
    for index in (0, 1, 127, 128, 255, 256, 4096, 9_999):
        nodes = trie.prove(packed, index)
        assert trie.verify(packed.root, trie.ordered_key(index), nodes) == values[index]
        assert trie_library.value_in(packed.root, trie.ordered_key(index), nodes) == values[index]


def test_deep_trie_needs_no_deep_stack() -> None:
    items = [(b"a" * length, b"%d" % length) for length in range(2_000)]
    packed = trie.build(items)
    nodes = trie.prove(packed, 1_999)
    assert len(nodes) > 1_999
    assert trie.verify(packed.root, items[-1][0], nodes) == b"1999"


def test_same_key_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="0x6b is given twice"):
        trie.build([(b"k", b"1"), (b"j", b"2"), (b"k", b"3")])


def test_empty_value_is_refused() -> None:
    with pytest.raises(ValueError, match="item 1 is empty"):
        trie.build([(b"k", b"1"), (b"j", b"")])
