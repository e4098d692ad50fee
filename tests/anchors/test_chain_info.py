"""What is asked of the ChainInfo precompile, and read from it, is what its published ABI says."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import sha3
from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from app.anchors import chain_info
from app.anchors.chain_info import Bounds, End, Listed, NotChainInfo
from tests.oracles.node import require_packages

HEIGHTS = st.integers(0, 2**63 - 1)
DIGESTS = st.binary(min_size=32, max_size=32)


def published() -> dict[str, dict[str, Any]]:
    """The functions of the client package's `chain_info.json`, by name."""
    package = require_packages() / "@gluwa" / "cc-next-query-builder" / "dist" / "chain-info" / "chain_info.json"
    return {each["name"]: each for each in json.loads(package.read_text())}


def type_of(described: dict[str, Any]) -> str:
    if not described["type"].startswith("tuple"):
        return str(described["type"])
    return f"({','.join(type_of(each) for each in described['components'])}){described['type'][len('tuple') :]}"


ASKED: list[tuple[str, bytes, list[object]]] = [
    ("get_chain_by_key", chain_info.ask_chain(7), [7]),
    ("get_attestation_genesis_height", chain_info.ask_genesis(7), [7]),
    ("get_latest_attestation_height_and_hash", chain_info.ask_latest_attestation(7), [7]),
    ("get_latest_checkpoint_height_and_hash", chain_info.ask_latest_checkpoint(7), [7]),
    ("get_attestation_bounds", chain_info.ask_bounds(7, 2**64 - 1), [7, 2**64 - 1]),
    ("get_attestation_height_for_digest", chain_info.ask_attestation(7, b"\x01" * 32), [7, b"\x01" * 32]),
    ("get_checkpoint_for_height", chain_info.ask_checkpoint(7, 300), [7, 300]),
]


@pytest.mark.parametrize(("name", "data", "values"), ASKED, ids=[name for name, _, _ in ASKED])
def test_calls_are_those_of_the_published_abi(name: str, data: bytes, values: list[object]) -> None:
    types = [type_of(each) for each in published()[name]["inputs"]]
    selector = sha3.keccak_256(f"{name}({','.join(types)})".encode()).digest()[:4]
    assert data == selector + encode(types, values)


def answer(name: str, value: object) -> bytes:
    """As the precompile answers: its outputs are one value or one structure."""
    return bytes(encode([type_of(each) for each in published()[name]["outputs"]], [value]))


@given(HEIGHTS, HEIGHTS, st.binary(max_size=70), st.integers(0, 255), st.booleans())
def test_a_chain_is_read_whatever_its_name(key: int, chain_id: int, name: bytes, encoding: int, exists: bool) -> None:
    read = chain_info.read_chain(answer("get_chain_by_key", ((key, chain_id, name, encoding), exists)))
    assert read == (Listed(key, chain_id, encoding) if exists else None)


@given(HEIGHTS, DIGESTS, st.booleans(), st.booleans())
def test_the_newest_of_each_kind_is_read(height: int, digest: bytes, is_attestation: bool, exists: bool) -> None:
    for name in ("get_latest_attestation_height_and_hash", "get_latest_checkpoint_height_and_hash"):
        read = chain_info.read_newest(answer(name, (height, digest, is_attestation, exists)))
        assert read == (End(height, digest, is_attestation) if exists else None)


@given(HEIGHTS, DIGESTS, st.booleans(), HEIGHTS, DIGESTS, st.booleans())
def test_bounds_are_read_one_by_one(low: int, below: bytes, lower: bool, high: int, above: bytes, upper: bool) -> None:
    both = any(below) and any(above)
    read = chain_info.read_bounds(answer("get_attestation_bounds", (low, below, lower, high, above, upper, both)))
    assert read == Bounds(
        End(low, below, lower) if any(below) else None, End(high, above, upper) if any(above) else None
    )


def test_what_is_not_there_is_none() -> None:
    assert chain_info.read_chain(answer("get_chain_by_key", ((0, 0, b"", 0), False))) is None
    nothing = (0, bytes(32), False)
    assert chain_info.read_bounds(answer("get_attestation_bounds", (*nothing, *nothing, False))) == Bounds(None, None)
    pairs = encode(["uint64", "bool"], [5, False]), encode(["uint64", "bool"], [5, True])
    assert [chain_info.read_attestation(each) for each in pairs] == [None, 5]
    pairs = encode(["bytes32", "bool"], [b"\1" * 32, False]), encode(["bytes32", "bool"], [b"\1" * 32, True])
    assert [chain_info.read_checkpoint(each) for each in pairs] == [None, b"\1" * 32]
    assert chain_info.read_genesis(encode(["uint64"], [9])) == 9


READERS: list[tuple[Callable[[bytes], object], int]] = [
    (chain_info.read_genesis, 1),
    (chain_info.read_newest, 4),
    (chain_info.read_bounds, 7),
    (chain_info.read_attestation, 2),
    (chain_info.read_checkpoint, 2),
    (chain_info.read_chain, 8),
]


@pytest.mark.parametrize(("read", "words"), READERS, ids=[read.__name__ for read, _ in READERS])
def test_whatever_else_is_answered_is_refused_or_read(read: Callable[[bytes], object], words: int) -> None:
    with pytest.raises(NotChainInfo, match="it answers nothing"):
        read(b"")
    with pytest.raises(NotChainInfo):
        read(b"\xff" * 32 * words)
    with pytest.raises(NotChainInfo, match="too short"):
        read(bytes(31))


@given(st.sampled_from([read for read, _ in READERS]), st.binary(max_size=400))
def test_no_answer_breaks_a_reader(read: Callable[[bytes], object], data: bytes) -> None:
    with contextlib.suppress(NotChainInfo):
        read(data)


@pytest.mark.parametrize("height", [2**63, 2**64 - 1])
def test_a_height_that_no_chain_comes_to_is_no_answer(height: int) -> None:
    end = encode(["uint64", "bytes32", "bool"], [height, b"\x01" * 32, True])
    none = encode(["uint64", "bytes32", "bool"], [height, bytes(32), False])
    for read, answer in (
        (chain_info.read_newest, end + encode(["bool"], [True])),
        (chain_info.read_bounds, end + end + encode(["bool"], [True])),
        (chain_info.read_genesis, encode(["uint64"], [height])),
        (chain_info.read_attestation, encode(["uint64", "bool"], [height, True])),
    ):
        with pytest.raises(chain_info.NotChainInfo):
            read(answer)
    assert chain_info.read_bounds(none + none + encode(["bool"], [False])) == chain_info.Bounds(None, None)
