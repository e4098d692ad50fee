"""The walk from a root: what it accepts, and that it names what is wrong with everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
import rlp
from hypothesis import given, settings
from hypothesis import strategies as st
from trie import HexaryTrie

from app.checker import Refused, check_trie
from tests.checker.bodies import big_block, block_of, hashed_to, keccak
from tests.corpus_files import VECTORS, fixtures
from tests.oracles import damage, trie_library

EMPTY_ROOT = keccak(b"\x80")


def refusal(root: bytes, key: bytes, value: bytes | None, nodes: Any, **how: bool) -> Refused:
    with pytest.raises(Refused) as caught:
        check_trie(root, key, value, nodes, **how)
    return caught.value


def nodes_of(trie: HexaryTrie, key: bytes) -> tuple[list[bytes], list[bytes]]:
    """The nodes on the way to `key`: those that are hashed, and those that are embedded in them."""
    nodes = [bytes(rlp.encode(node)) for node in trie.get_proof(key) if node != b""]
    hashed = [node for place, node in enumerate(nodes) if place == 0 or len(node) >= 32]
    return hashed, nodes[len(hashed) :]


def trie_of(items: dict[bytes, bytes]) -> HexaryTrie:
    trie = HexaryTrie({})
    for key, value in items.items():
        trie[key] = value
    return trie


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 127, 128, 129, 130, 255, 256, 257])
def test_every_item_of_an_ordered_trie_is_accepted(count: int) -> None:
    values = [hashed_to(f"value {count} {index}", 1 + index % 70) for index in range(count)]
    root = trie_library.root_of(values)
    for index, nodes in enumerate(trie_library.proofs_of(values)):
        assert check_trie(root, rlp.encode(index), values[index], nodes) == values[index]


def test_the_value_is_handed_out_where_none_is_expected() -> None:
    block = big_block()
    assert check_trie(block.header[5], rlp.encode(17), None, block.receipt_proofs[17]) == block.receipts[17]


def test_B40_embedded_nodes_are_not_listed() -> None:
    root = bytes.fromhex("a5d65fac276d46b3f826a1eff29ec761924168f3b7d55fffaef9d8b4ae2d1d10")
    node = bytes.fromhex("d716d580c22061c220628080808080808080808080808080")
    assert check_trie(root, b"a", b"a", [node]) == b"a"
    trie = trie_of({b"12345": b"1", b"123456": b"2", b"1234": b"3"})
    assert bytes(trie.root_hash).hex().startswith("96486add")
    hashed, embedded = nodes_of(trie, b"12345")
    assert len(hashed) == 2
    assert check_trie(trie.root_hash, b"12345", b"1", hashed) == b"1"
    assert check_trie(trie.root_hash, b"12345", b"1", hashed + embedded) == b"1"
    assert refusal(trie.root_hash, b"12345", b"1", hashed + embedded, listed=False).reason == "ExtraNodes"
    assert len(embedded) == 2
    for some in (
        embedded[:1],
        embedded[1:],
        embedded[::-1],
        [*embedded, embedded[-1]],
        [embedded[0] + b"\0", embedded[1]],
    ):
        assert refusal(trie.root_hash, b"12345", b"1", hashed + some).reason == "ExtraNodes"


def test_B41_a_path_through_an_extension_is_accepted() -> None:
    leaves = [bytes.fromhex(leaf[2:]) for leaf in fixtures()["legacy130"]["expect"]["leaves"]]
    root = bytes.fromhex(fixtures()["legacy130"]["expect"]["receiptsRoot"][2:])
    proofs = trie_library.proofs_of(leaves)
    assert [len(proofs[index]) for index in (0, 127, 128, 129)] == [3, 3, 5, 5]
    assert [len(rlp.decode(node)) for node in proofs[129]] == [17, 17, 2, 17, 2]
    for index, nodes in enumerate(proofs):
        assert check_trie(root, rlp.encode(index), leaves[index], nodes) == leaves[index]


def test_B42_broken_is_never_absent() -> None:
    block = block_of(130)
    root, nodes, value = block.header[5], list(block.receipt_proofs[129]), block.receipts[129]
    key = rlp.encode(129)
    assert check_trie(root, key, value, nodes) == value
    tampered = [*nodes[:2], nodes[2][:-1] + b"\0", *nodes[3:]]
    assert (refusal(root, key, value, tampered).reason, refusal(root, key, value, tampered).node) == (
        "NodeHashMismatch",
        2,
    )
    assert refusal(root, key, value, nodes[:-1]).reason == "TruncatedProof"
    assert refusal(root, key, value, []).reason == "TruncatedProof"
    assert refusal(root, key, value, nodes[:2] + nodes[3:]).reason == "NodeHashMismatch"
    assert refusal(bytes(32), key, value, nodes).reason == "RootMismatch"
    assert refusal(block.header[4], key, value, nodes).reason == "RootMismatch"
    assert refusal(root, key, b"other", nodes).reason == "ValueMismatch"
    for index in (0, 1, 127, 128):
        assert refusal(root, rlp.encode(index), value, nodes).reason in {"NodeHashMismatch", "KeyMismatch"}


def test_B42_absent_is_a_whole_proof_that_the_key_is_not_there() -> None:
    block = block_of(130)
    trie = trie_of({rlp.encode(index): leaf for index, leaf in enumerate(block.receipts)})
    for index in (130, 200, 255, 256, 70_000):
        hashed, embedded = nodes_of(trie, rlp.encode(index))
        assert refusal(block.header[5], rlp.encode(index), None, hashed + embedded).reason == "Absent"
        whole = [*hashed, *embedded, hashed[0]]
        assert refusal(block.header[5], rlp.encode(index), None, whole).reason == "KeyMismatch"
        if len(hashed) > 1:
            assert refusal(block.header[5], rlp.encode(index), None, hashed[:-1]).reason == "TruncatedProof"


def test_where_it_fails_is_told() -> None:
    block = block_of(130)
    nodes = list(block.receipt_proofs[129])
    found = refusal(block.header[5], rlp.encode(129), None, [*nodes[:3], nodes[3][:-1] + b"\1", nodes[4]])
    assert (found.reason, found.node, found.nibble) == ("NodeHashMismatch", 3, 3)
    assert found.expected != found.found
    assert refusal(block.header[5], rlp.encode(129), None, [*nodes, b"\x80"]).node == 5


SMALL = st.dictionaries(st.binary(min_size=1, max_size=4), st.binary(min_size=1, max_size=40), min_size=1, max_size=40)


@settings(deadline=None)
@given(SMALL, st.lists(st.binary(min_size=1, max_size=4), max_size=5))
def test_any_trie_agrees_with_the_library(items: dict[bytes, bytes], others: list[bytes]) -> None:
    trie = trie_of(items)
    for key in {*items, *others}:
        hashed, embedded = nodes_of(trie, key)
        if key in items:
            assert check_trie(trie.root_hash, key, items[key], hashed, listed=False) == items[key]
            assert check_trie(trie.root_hash, key, items[key], hashed + embedded) == items[key]
        else:
            assert refusal(trie.root_hash, key, None, hashed).reason == "Absent"
            assert refusal(trie.root_hash, key, None, hashed + embedded).reason == "Absent"


@pytest.mark.parametrize("index", [0, 1, 16, 127, 128, 129, 255, 256, 299])
def test_every_damage_is_refused(index: int) -> None:
    block = big_block()
    for root, leaves, proofs in (
        (block.header[4], block.transactions, block.transaction_proofs),
        (block.header[5], block.receipts, block.receipt_proofs),
    ):
        key, value, nodes = rlp.encode(index), leaves[index], proofs[index]
        assert check_trie(root, key, value, nodes) == value
        for broken in (*damage.flip_every_byte(nodes), *damage.damages(nodes, seed=index, count=40)):
            with pytest.raises(Refused) as caught:
                check_trie(root, key, value, broken.nodes)
            assert caught.value.reason in {"RootMismatch", "NodeHashMismatch", "TruncatedProof", "ExtraNodes"}, broken


def test_no_proof_serves_another_index() -> None:
    block = block_of(130)
    keys = [rlp.encode(index) for index in range(130)]
    for mine, nodes in enumerate(block.receipt_proofs):
        for index in {0, 1, 127, 128, 129, mine ^ 1, mine ^ 16, mine ^ 128} - {mine}:
            if index < 130:
                found = refusal(block.header[5], keys[index], None, nodes)
                assert found.reason in {"NodeHashMismatch", "KeyMismatch", "TruncatedProof"}, (mine, index)


def leaf(path: str, value: Any = b"v" * 40) -> list[Any]:
    return [bytes.fromhex(path), value]


def branch(**children: Any) -> list[Any]:
    items: list[Any] = [b""] * 17
    for place, child in children.items():
        items[int(place[1:], 16) if place != "value" else 16] = child
    return items


@pytest.mark.parametrize(
    "node",
    [
        b"",
        b"\x80",
        b"\xc0",
        b"\x05",
        rlp.encode([b"a", b"b", b"c"]),
        rlp.encode([b""] * 16),
        rlp.encode([b""] * 18),
        rlp.encode(b"v" * 40),
        rlp.encode(b"v" * 17),
        rlp.encode(leaf("20ab")) + b"\0",
        rlp.encode(leaf("20ab"))[:-1],
        rlp.encode(leaf("40ab")),
        rlp.encode(leaf("a0ab")),
        rlp.encode(leaf("21ab")),
        rlp.encode(leaf("2fab")),
        rlp.encode(leaf("0fab", bytes(32))),
        rlp.encode(leaf("00", bytes(32))),
        rlp.encode(leaf("", bytes(32))),
        rlp.encode([[b"\x20", b"\xab"], b"v"]),
        rlp.encode(leaf("20ab", [b"a", b"list"])),
        rlp.encode(leaf("1a", bytes(31))),
        rlp.encode(leaf("1a", bytes(33))),
        rlp.encode(leaf("1a", b"\x05")),
        rlp.encode(leaf("1a", leaf("3b", b"v" * 29))),
        rlp.encode(branch(_a=bytes(31))),
        rlp.encode(branch(_a=b"\x05")),
        rlp.encode(branch(_a=leaf("3b", b"v" * 40))),
        rlp.encode(branch(_a=[])),
        rlp.encode(branch(_a=[b"\x20"])),
        rlp.encode(branch(_a=branch(_b=b"v"))),
        b"\xf8\x07" + rlp.encode(leaf("20ab", b"abc"))[1:],  # a short list in the long form
        b"\xf9\x00\x2d" + rlp.encode(leaf("20ab"))[2:],  # a length with a leading zero
        b"\xc5\x82\x20\xab\x81\x05",  # a byte that should stand for itself
        b"\xc7\x82\x20\xab\x84abc",  # an item that overruns its list
        b"\xc8\x82\x20\xab\x83abc\x84",  # the same, behind all that is wanted
        b"\xc9\x82\x20\xab\x83abc\x81\x05",
        b"\xf9\x00\x48" + rlp.encode(leaf("20ab", b"v" * 67))[2:],  # a length with a leading zero
        bytes([0x80 + 44]) + rlp.encode(leaf("20ab"))[1:],  # a string of what would be a leaf as a list
        b"\xc9\xb8\x02\x20\xab\x84abcd",  # a short string in the long form
        b"\xff" * 9,
        b"\xfb\xff\xff\xff\xff",
        b"\xf8",
        b"\xb8",
        b"\x81",
        b"\xc1\x81",
    ],
    ids=lambda node: node.hex()[:24] or "empty",
)
def test_a_malformed_node_is_refused_even_under_its_own_hash(node: bytes) -> None:
    assert refusal(keccak(node), b"\xab", None, [node]).reason == "MalformedNode"


def test_well_formed_nodes_stand_where_their_malformed_twins_fell() -> None:
    for node, value in (
        (leaf("20ab"), b"v" * 40),
        (leaf("1a", leaf("3b", b"v" * 28)), b"v" * 28),
        (leaf("00ab", branch(value=b"v")), b"v"),
        (branch(_a=leaf("3b", b"v")), b"v"),
        (branch(_a=leaf("1b", branch(value=b"v"))), b"v"),
    ):
        encoded = rlp.encode(node)
        assert check_trie(keccak(encoded), b"\xab", value, [encoded]) == value


def test_a_short_node_is_embedded_never_hashed() -> None:
    short = rlp.encode(leaf("3b", b"v"))
    root = rlp.encode(branch(_a=keccak(short)))
    assert refusal(keccak(root), b"\xab", b"v", [root, short]).reason == "NodeHashMismatch"


def test_an_empty_value_is_no_value() -> None:
    for node in (leaf("20ab", b""), branch(_a=b"")):
        encoded = rlp.encode(node)
        assert refusal(keccak(encoded), b"\xab", None, [encoded]).reason == "Absent"


def test_the_empty_trie_proves_nothing() -> None:
    assert refusal(EMPTY_ROOT, b"\x80", None, []).reason == "TruncatedProof"
    assert refusal(EMPTY_ROOT, b"\x80", None, [b"\x80"]).reason == "MalformedNode"


def test_a_very_deep_trie_needs_no_deep_stack() -> None:
    nodes = [rlp.encode(leaf("30"))]
    for _ in range(2999):
        nodes.append(rlp.encode(branch(_0=keccak(nodes[-1]))))
    nodes.reverse()
    key, value = bytes(1500), b"v" * 40
    assert check_trie(keccak(nodes[0]), key, value, nodes) == value
    assert refusal(keccak(nodes[0]), key + b"\0", value, nodes).reason == "Absent"
    assert refusal(keccak(nodes[0]), key[1:], value, nodes).reason == "KeyMismatch"


def mpt(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((VECTORS / "mpt" / name).read_text(encoding="utf-8"))
    return loaded


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


OPTIMISM = mpt("optimism_MerkleTrie_vectors.json")["vectors"]


@pytest.mark.parametrize("vector", OPTIMISM, ids=lambda vector: vector["name"])
def test_optimism_vectors(vector: dict[str, Any]) -> None:
    root, key, nodes = unhex(vector["root"]), unhex(vector["key"]), [unhex(node) for node in vector["nodes"]]
    if vector["expect"] == "value":
        assert check_trie(root, key, unhex(vector["value"]), nodes) == unhex(vector["value"])
        hashed = [node for place, node in enumerate(nodes) if place == 0 or len(node) >= 32]
        assert check_trie(root, key, None, hashed, listed=False) == unhex(vector["value"])
    else:
        assert refusal(root, key, None, nodes).reason == REVERTS[vector["name"].split("_")[2]]


REVERTS = {
    "nonexistentKey1": "Absent",
    "nonexistentKey2": "Absent",
    "wrongKeyProof": "NodeHashMismatch",
    "corruptedProof": "RootMismatch",
    "invalidDataRemainder": "ExtraNodes",
    "invalidInternalNodeHash": "NodeHashMismatch",
    "zeroBranchValueLength": "Absent",
    "zeroLengthKey": "Absent",
    "smallerPathThanKey1": "Absent",
    "smallerPathThanKey2": "Absent",
    "extraProofElements": "ExtraNodes",
}


RECORDED = [
    *mpt("colibri_getLogs1.json")["vectors"],
    *(
        {**vector, "root": vector["receiptsRoot"]}
        for vector in map(
            mpt,
            [
                "polymer_RLP_proof1.json",
                "polymer_arb-proof.json",
                "rainbow_post_shapella_proof.json",
                "rainbow_pre_shapella_proof.json",
            ],
        )
    ),
]


@pytest.mark.parametrize("vector", RECORDED, ids=lambda vector: f"{vector['root'][2:8]}-{vector['index']}")
def test_recorded_receipt_proofs(vector: dict[str, Any]) -> None:
    root, key, value = (unhex(vector[name]) for name in ("root", "key", "value"))
    nodes = [unhex(node) for node in vector["nodes"]]
    assert key == rlp.encode(vector["index"])
    assert check_trie(root, key, value, nodes, listed=False) == value
    for broken in damage.damages(nodes, seed=vector["index"], count=60):
        refusal(root, key, value, broken.nodes)
