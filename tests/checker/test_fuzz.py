"""Whatever the bytes are, the answer is a verdict: nothing but `Refused` comes out, and nothing changed is accepted."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import rlp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.checker import Refused, check_native, check_trie, check_usc, check_usc_batch
from tests.checker.bodies import as_bytes, asked_of, big_block, keccak, usc_chain

Check = Callable[[bytes], None]


def native(body: bytes) -> None:
    check_native(body, asked_of(big_block().body("log", 13, 4)))


def native_unasked(body: bytes) -> None:
    check_native(body, {})


def single(body: bytes) -> None:
    check_usc(body, {}, usc_chain().anchor)


def batch(body: bytes) -> None:
    check_usc_batch(body, {}, usc_chain().anchor)


CHECKS = pytest.mark.parametrize("check", [native, native_unasked, single, batch])


def whole(check: Check) -> dict[str, Any]:
    if check is batch:
        return usc_chain().batch({103: [0, 9], 107: [128]})
    return usc_chain().single(9) if check is single else big_block().body("log", 13, 4)


@CHECKS
@settings(deadline=None)
@given(body=st.binary(max_size=300))
def test_arbitrary_bytes(check: Check, body: bytes) -> None:
    with pytest.raises(Refused):
        check(body)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.just("0x")
    | st.just("0x" + "ab" * 32),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=8), inside, max_size=4),
    max_leaves=20,
)


@CHECKS
@settings(deadline=None)
@given(value=JSON)
def test_arbitrary_json(check: Check, value: object) -> None:
    with pytest.raises(Refused):
        check(json.dumps(value).encode())


@CHECKS
@settings(deadline=None)
@given(data=st.data())
def test_fields_with_arbitrary_values(check: Check, data: st.DataObject) -> None:
    """A whole body in which some values, anywhere, are of any JSON type: refused, or nothing that matters was changed."""
    body = whole(check)
    for _ in range(data.draw(st.integers(1, 3))):
        holder: Any = body
        while True:
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(holder[key], (dict, list)) and data.draw(st.booleans()):
                holder = holder[key]
                continue
            holder[key] = data.draw(JSON)
            break
    with suppress(Refused):
        check(as_bytes(body))


@CHECKS
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_bytes(check: Check, data: st.DataObject) -> None:
    original = as_bytes(whole(check))
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        piece = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"0", b"1", b"a", b'"', b",", b"{", b"}", b"[", b"]", b" "])
        )
        damaged[at : at + data.draw(st.integers(0, 3))] = piece
    try:
        check(bytes(damaged))
    except Refused:
        return
    if check is native:
        assert json.loads(bytes(damaged)) == json.loads(original)


@settings(deadline=None)
@given(
    root=st.binary(max_size=33),
    key=st.binary(max_size=4),
    value=st.none() | st.binary(max_size=4),
    nodes=st.lists(st.binary(max_size=60), max_size=4),
)
def test_arbitrary_nodes(root: bytes, key: bytes, value: bytes | None, nodes: list[bytes]) -> None:
    with pytest.raises(Refused):
        check_trie(root, key, value, nodes)


@settings(deadline=None)
@given(nodes=st.lists(st.binary(max_size=80), min_size=1, max_size=4), key=st.binary(max_size=3))
def test_arbitrary_nodes_under_their_own_root(nodes: list[bytes], key: bytes) -> None:
    with suppress(Refused):
        check_trie(keccak(nodes[0]), key, None, nodes)


RLP = st.recursive(
    st.binary(max_size=40) | st.sampled_from([b"", b"\x20", b"\x00", b"\x11", b"\x3a", bytes(32)]),
    lambda inside: st.lists(inside, max_size=4) | st.lists(inside, min_size=17, max_size=17),
    max_leaves=40,
)


@settings(deadline=None)
@given(node=RLP, key=st.binary(max_size=3))
def test_arbitrary_structures_under_their_own_root(node: Any, key: bytes) -> None:
    encoded = bytes(rlp.encode(node))
    with suppress(Refused):
        check_trie(keccak(encoded), key, None, [encoded])
