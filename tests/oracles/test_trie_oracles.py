"""The judges themselves: they accept proofs that others published and refuse them damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.corpus_files import VECTORS
from tests.oracles import damage, trie_library
from tests.oracles.solidity import verify_trie_proof


class Proof(NamedTuple):
    """A published proof; `error` is the published verifier's complaint, None where it accepts."""

    name: str
    root: bytes
    key: bytes
    value: bytes
    nodes: tuple[bytes, ...]
    error: str | None


def _bytes(text: str | None) -> bytes:
    return bytes.fromhex((text or "").removeprefix("0x"))


def _published() -> Iterator[Proof]:
    for path in sorted((VECTORS / "mpt").glob("*.json")):
        content = json.loads(path.read_text())
        for place, vector in enumerate(content.get("vectors", [content] if "nodes" in content else [])):
            yield Proof(
                name=f"{path.stem}-{vector.get('name', place)}",
                root=_bytes(vector.get("root", vector.get("receiptsRoot"))),
                key=_bytes(vector["key"]),
                value=_bytes(vector.get("value")),
                nodes=tuple(_bytes(node) for node in vector["nodes"]),
                error=vector.get("expectError"),
            )


PUBLISHED = list(_published())
GOOD = [proof for proof in PUBLISHED if proof.error is None]
BAD = [proof for proof in PUBLISHED if proof.error is not None]


def _names(proofs: list[Proof]) -> list[str]:
    return [proof.name for proof in proofs]


def test_the_vectors_hold_both_kinds() -> None:
    assert len(GOOD) >= 20
    assert len(BAD) >= 8


@pytest.mark.parametrize("proof", GOOD, ids=_names(GOOD))
def test_solidity_accepts_published_proofs_and_refuses_another_value_key_or_root(proof: Proof) -> None:
    assert verify_trie_proof(proof.root, proof.key, proof.value, proof.nodes)
    assert not verify_trie_proof(proof.root, proof.key, proof.value + b"\x00", proof.nodes)
    assert not verify_trie_proof(proof.root, proof.key + b"\x01", proof.value, proof.nodes)
    assert not verify_trie_proof(bytes(32), proof.key, proof.value, proof.nodes)
    assert not verify_trie_proof(proof.root, b"", proof.value, proof.nodes)
    assert not verify_trie_proof(proof.root, proof.key, proof.value, ())


@pytest.mark.parametrize("proof", BAD, ids=_names(BAD))
def test_solidity_refuses_published_broken_proofs(proof: Proof) -> None:
    assert not verify_trie_proof(proof.root, proof.key, proof.value, proof.nodes)


@pytest.mark.parametrize("proof", GOOD, ids=_names(GOOD))
def test_solidity_refuses_every_damage(proof: Proof) -> None:
    for damaged in damage.damages(proof.nodes, seed=1):
        # A node under 32 bytes also stands inside its parent: listing it once more is a matter of taste, not damage.
        if damaged.kind == "drop" and set(damaged.nodes) >= {node for node in proof.nodes if len(node) >= 32}:
            continue
        assert not verify_trie_proof(proof.root, proof.key, proof.value, damaged.nodes), damaged


def test_trie_library_accepts_published_receipt_proofs_and_refuses_flips_and_drops() -> None:
    receipts = [proof for proof in GOOD if not proof.name.startswith("optimism")]
    assert len(receipts) >= 10
    for proof in receipts:
        assert trie_library.accepts(proof.root, proof.key, proof.value, proof.nodes)
        for damaged in [*damage.flips(proof.nodes, 40, seed=2), *damage.drops(proof.nodes)]:
            assert not trie_library.accepts(proof.root, proof.key, proof.value, damaged.nodes), damaged


def test_both_judges_agree_on_a_trie_built_by_the_library() -> None:
    values = [index.to_bytes(2, "big") * (1 + 40 * (index % 3)) for index in range(300)]
    root = trie_library.root_of(values)
    for index, nodes in enumerate(trie_library.proofs_of(values)):
        key = bytes([0x80]) if index == 0 else _rlp_integer(index)
        assert trie_library.accepts(root, key, values[index], nodes)
        assert verify_trie_proof(root, key, values[index], nodes)


def _rlp_integer(number: int) -> bytes:
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return data if number < 0x80 else bytes([0x80 + len(data)]) + data


def test_every_damage_differs_from_the_whole_proof() -> None:
    nodes = (b"\xc8" + bytes(40), b"\xc9" + bytes(50), b"\xca" + bytes(60))
    damaged = damage.damages(nodes, seed=3)
    assert len(damaged) >= 20
    assert {one.kind for one in damaged} == {"flip", "drop", "append", "prepend", "repeat", "swap", "cut", "extend"}
    assert all(one.nodes != nodes for one in damaged)
    assert damage.damages(nodes, seed=3) == damaged
    assert len(list(damage.flip_every_byte(nodes))) == sum(map(len, nodes))
