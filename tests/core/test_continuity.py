from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.continuity import Bracket, SortedMapping, choose_bracket, cut, digest
from app.core.errors import AttestationsMissing, BlockNotReady, Internal, ProofError
from tests import reference
from tests.corpus_files import VECTORS


def _vector(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((VECTORS / "usc" / name).read_text(encoding="utf-8"))
    return loaded


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def _root(height: int) -> bytes:
    return (height + 1000).to_bytes(32, "big")


# The chain of the vectors: root(n) = n + 1000, and the digest of height 0 is zero.
DIGESTS = [bytes(32)]
for _height in range(1, 1001):
    DIGESTS += reference.digests(_height, [_root(_height)], DIGESTS[-1])

CASES = _vector("continuity_00_selection.json")["cases"]


def _anchors(described: str | list[int]) -> SortedMapping:
    if isinstance(described, list):
        heights = described
    else:
        _, step, _, first, _, last = described.split()
        heights = list(range(int(first), int(last) + 1, int(step)))
    return SortedMapping({height: DIGESTS[height] for height in heights})


def _choose(case: dict[str, Any]) -> Bracket:
    attestations, checkpoints = _anchors(case["attestations"]), _anchors(case["checkpoints"])
    return choose_bracket(attestations, checkpoints, case["min_query"], case["max_query"], chain_key=2)


# --- digest -----------------------------------------------------------------------------------------------------------


def test_digest_meets_the_published_chain() -> None:
    chain = _vector("digest_00_mock_chain.json")["chain"]
    assert len(chain) == 30
    for link in chain:
        assert digest(link["n"], _bytes(link["root"]), _bytes(link["prev"])) == _bytes(link["digest"])


def test_first_digest_hashes_forty_bytes() -> None:
    example = _vector("digest_00_mock_chain.json")["no_prev_digest_example"]
    first = digest(example["block_number"], _bytes(example["root"]), None)
    assert first == _bytes(example["digest"])
    assert first != digest(example["block_number"], _bytes(example["root"]), bytes(32))


@pytest.mark.parametrize(
    ("height", "root", "previous"),
    [(-1, bytes(32), None), (1 << 64, bytes(32), None), (1, bytes(31), None), (1, bytes(32), bytes(33))],
)
def test_digest_refuses_what_it_cannot_hash(height: int, root: bytes, previous: bytes | None) -> None:
    with pytest.raises(ValueError, match="height"):
        digest(height, root, previous)


# --- choosing anchors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", [case for case in CASES if "error" not in case["expected"]], ids=lambda case: case["name"]
)
def test_chosen_bracket_and_proof_meet_the_vectors(case: dict[str, Any]) -> None:
    expected = case["expected"]
    bracket = _choose(case)
    assert (bracket.source, bracket.lower, bracket.upper) == (expected["source"], expected["lower"], expected["upper"])
    assert bracket.upper_digest == _bytes(expected["upper_digest"])
    proof = cut(bracket, [_root(height) for height in range(bracket.lower + 1, bracket.upper + 1)], case["min_query"])
    assert proof.lower_endpoint_digest == _bytes(expected["lowerEndpointDigest"])
    assert list(proof.roots) == [_bytes(root) for root in expected["roots"]]
    # What the verifier does with it.
    assert (
        reference.digests(case["min_query"], list(proof.roots), proof.lower_endpoint_digest)[-1] == bracket.upper_digest
    )


@pytest.mark.parametrize("case", [case for case in CASES if "error" in case["expected"]], ids=lambda case: case["name"])
def test_refused_selection_meets_the_vectors(case: dict[str, Any]) -> None:
    expected = case["expected"]
    with pytest.raises(ProofError) as refused:
        _choose(case)
    assert refused.value.code == expected["error"]
    assert refused.value.extra == {
        key: expected[key] for key in ("block_number", "last_attested_block") if key in expected
    }


def test_all_twelve_cases_are_run() -> None:
    assert len(CASES) == 12


def test_refusals_speak_the_words_clients_know() -> None:
    with pytest.raises(AttestationsMissing) as missing:
        choose_bracket(SortedMapping(), SortedMapping(), 5, 5, chain_key=7)
    assert missing.value.message == "attestations missing for chain 7"
    with pytest.raises(BlockNotReady) as early:
        choose_bracket(SortedMapping({10: b"a"}), SortedMapping({20: b"c"}), 5, 21, chain_key=7)
    assert early.value.message == (
        "The continuity proof cannot be created because block 21 is not attested to yet. Last attested block: 20"
    )
    assert early.value.extra == {"block_number": 21, "last_attested_block": 20}
    assert early.value.retriable
    with pytest.raises(Internal) as hole:
        choose_bracket(SortedMapping({10: b"a"}), SortedMapping({20: b"c"}), 5, 7, chain_key=7)
    assert hole.value.message.startswith("internal error: no anchor below block 5")


def test_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        choose_bracket(SortedMapping({1: b"", 9: b""}), SortedMapping(), 6, 5, chain_key=7)


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)), st.integers(0, 40), st.integers(0, 10))
def test_choice_is_the_first_complete_pair_of_nearest_anchors(a: set[int], c: set[int], lo: int, span: int) -> None:
    hi = lo + span
    lower = {kind: max((h for h in of if h < lo), default=None) for kind, of in (("a", a), ("c", c))}
    upper = {kind: min((h for h in of if h >= hi), default=None) for kind, of in (("a", a), ("c", c))}
    pairs = [(lower[x], upper[y]) for x, y in ("aa", "cc", "ca", "ac")]
    wanted = next(((low, up) for low, up in pairs if low is not None and up is not None), None)
    attestations = SortedMapping((height, b"a%d" % height) for height in a)
    checkpoints = SortedMapping((height, b"c%d" % height) for height in c)
    try:
        chosen = choose_bracket(attestations, checkpoints, lo, hi, chain_key=1)
    except AttestationsMissing:
        assert not a | c
    except BlockNotReady:
        assert max(a | c) < hi
    except Internal:
        assert wanted is None
        assert max(a | c) >= hi
        assert min(a | c) >= lo
    else:
        assert (chosen.lower, chosen.upper) == wanted
        kinds = {
            "attestation": "aa",
            "checkpoint": "cc",
            "mixed_cp_lower_att_upper": "ca",
            "mixed_att_lower_cp_upper": "ac",
        }[chosen.source]
        assert chosen.lower_digest == b"%c%d" % (kinds[0].encode(), chosen.lower)
        assert chosen.upper_digest == b"%c%d" % (kinds[1].encode(), chosen.upper)


# --- the anchors themselves -------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["put", "drop_up_to", "drop_above"]), st.integers(0, 30)), max_size=40))
def test_sorted_mapping_is_a_sorted_dictionary(steps: list[tuple[str, int]]) -> None:
    mapping, model = SortedMapping(), {}
    for number, (step, height) in enumerate(steps):
        if step == "put":
            mapping.put(height, b"%d" % number)
            model[height] = b"%d" % number
        elif step == "drop_up_to":
            mapping.drop_up_to(height)
            model = {h: d for h, d in model.items() if h > height}
        else:
            mapping.drop_above(height)
            model = {h: d for h, d in model.items() if h <= height}
        assert dict(mapping) == model
        assert list(mapping) == sorted(model)
        assert len(mapping) == len(model)
        assert mapping.newest == max(model, default=None)
        assert all(low < high for low, high in pairwise(mapping))


def test_dropping_up_to_a_height_below_the_first_drops_nothing() -> None:
    mapping = SortedMapping({10: b"a", 20: b"b"})
    mapping.drop_up_to(5)
    assert list(mapping) == [10, 20]
    mapping.drop_above(25)
    assert list(mapping) == [10, 20]


# --- cutting ----------------------------------------------------------------------------------------------------------

BRACKET = Bracket("attestation", 100, DIGESTS[100], 110, DIGESTS[110])
ROOTS = [_root(height) for height in range(101, 111)]


@pytest.mark.parametrize("lo", range(101, 111))
def test_cut_starts_at_every_height_of_the_bracket(lo: int) -> None:
    proof = cut(BRACKET, ROOTS, lo)
    assert proof.lower_endpoint_digest == DIGESTS[lo - 1]
    assert proof.roots == tuple(_root(height) for height in range(lo, 111))


@pytest.mark.parametrize("lo", [0, 99, 100, 111, 200])
def test_cut_refuses_a_start_outside_the_bracket(lo: int) -> None:
    with pytest.raises(Internal, match="outside the anchors"):
        cut(BRACKET, ROOTS, lo)


@pytest.mark.parametrize("damaged", range(10))
def test_cut_refuses_a_root_of_another_fork_even_below_the_start(damaged: int) -> None:
    roots = ROOTS.copy()
    roots[damaged] = bytes(32)
    with pytest.raises(Internal, match="not the attested one"):
        cut(BRACKET, roots, 110)


def test_cut_refuses_roots_that_are_not_one_per_height() -> None:
    for roots in (ROOTS[:-1], ROOTS[1:], [*ROOTS, ROOTS[-1]], []):
        with pytest.raises(Internal, match="not contiguous"):
            cut(BRACKET, roots, 105)
    for roots in (ROOTS[::-1], [ROOTS[1], ROOTS[0], *ROOTS[2:]], [ROOTS[0], *ROOTS[:-1]]):
        with pytest.raises(Internal, match="not the attested one"):
            cut(BRACKET, roots, 105)
    with pytest.raises(Internal, match="root of 31 bytes at height 103"):
        cut(BRACKET, [*ROOTS[:2], ROOTS[2][:-1], *ROOTS[3:]], 105)


def test_cut_refuses_another_lower_digest() -> None:
    with pytest.raises(Internal, match="not the attested one"):
        cut(Bracket("attestation", 100, bytes(32), 110, DIGESTS[110]), ROOTS, 105)
