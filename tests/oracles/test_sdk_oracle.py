"""The client package agrees with the recorded vectors: so the judge is the one that the vectors came from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corpus_files import VECTORS
from tests.oracles.sdk import Sdk, SdkError

USC = VECTORS / "usc"
LEAVES = sorted(path for path in USC.glob("enc_*.json") if "own" not in path.stem)


@pytest.fixture(scope="module")
def sdk() -> Iterator[Sdk]:
    with Sdk() as running:
        yield running


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


@pytest.mark.parametrize("path", LEAVES, ids=lambda path: path.stem)
def test_leaf_encoding(sdk: Sdk, path: Path) -> None:
    vector = json.loads(path.read_text())
    assert sdk.leaf(vector["tx"], vector["receipt"]) == _bytes(vector["encoded"])


def test_trees(sdk: Sdk) -> None:
    cases = json.loads((USC / "merkle_01_sizes_0_to_9.json").read_text())["cases"]
    for case in cases:
        leaves = [_bytes(leaf) for leaf in case["leaves"]]
        assert sdk.root(leaves) == _bytes(case["root"])
        if leaves:
            root, proofs = sdk.tree(leaves)
            assert root == _bytes(case["root"])
            assert len(proofs) == len(leaves)


def test_digests(sdk: Sdk) -> None:
    vector = json.loads((USC / "digest_00_mock_chain.json").read_text())
    for step in vector["chain"]:
        assert sdk.digest(step["n"], _bytes(step["root"]), _bytes(step["prev"])) == _bytes(step["digest"])
    first = vector["no_prev_digest_example"]
    assert sdk.digest(first["block_number"], _bytes(first["root"]), None) == _bytes(first["digest"])


def test_an_unreachable_server_and_a_bad_call_are_told_apart(sdk: Sdk) -> None:
    answer = sdk.generate_proof(1, "http://127.0.0.1:9", bytes(32))
    assert answer["success"] is False
    with pytest.raises(SdkError):
        sdk.call("digest", height="no number", root="0x")


def test_javascript_reading(sdk: Sdk) -> None:
    value, unsafe = sdk.round_trip('{"small": 1, "text": "99999999999999999999", "big": 9007199254740993, "part": 1.5}')
    assert value["text"] == "99999999999999999999"
    assert unsafe == ["9007199254740993", "1.5"]
