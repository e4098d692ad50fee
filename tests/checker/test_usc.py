"""usc bodies, single and batch: leaf, tree, digests, anchor."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.checker import Refused, check_usc, check_usc_batch
from tests.checker.bodies import CHAIN_KEY, UscChain, as_bytes, hashed_to, keccak, to_hex, usc_chain, usc_item
from tests.checker.mutations import accepted
from tests.corpus_files import VECTORS

BATCH = {103: [0, 3, 10], 104: [0], 105: [], 107: [0, 64, 129]}


def usc(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((VECTORS / "usc" / name).read_text(encoding="utf-8"))
    return loaded


def refusal(
    body: object, asked: Mapping[str, object] | None = None, anchor: tuple[int, bytes] | None = None
) -> Refused:
    check = check_usc_batch if isinstance(body, dict) and "merkleProofs" in body else check_usc
    with pytest.raises(Refused) as caught:
        check(body if isinstance(body, bytes) else as_bytes(body), asked or {}, anchor or usc_chain().anchor)
    return caught.value


def chain_of(sizes: list[int], first: int = 9) -> UscChain:
    blocks = (tuple(hashed_to(f"{first} {n} {i}", 40 + i) for i in range(size)) for n, size in enumerate(sizes))
    return UscChain(first, tuple(blocks), hashed_to("below", 32))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 64, 65, 130])
def test_every_leaf_is_accepted(size: int) -> None:
    chain = chain_of([size, 2])
    for index in range(size):
        body = chain.single(index)
        check_usc(as_bytes(body), {"chainKey": CHAIN_KEY, "headerNumber": 9, "txIndex": index}, chain.anchor)


@pytest.mark.parametrize("name", ["merkle_00_upstream_literals.json", "merkle_01_sizes_0_to_9.json"])
def test_recorded_trees(name: str) -> None:
    """Each recorded proof, under an anchor made for its root."""
    checked = 0
    for case in usc(name)["cases"]:
        proofs = dict(enumerate(proof["siblings"] for proof in case.get("proofs", [])))
        if case.get("proof_index") is not None:
            proofs[case["proof_index"]] = case["siblings"]
        for index, siblings in proofs.items():
            anchor = (5, keccak((5).to_bytes(8) + bytes.fromhex(case["root"][2:]) + bytes(32)))
            body = {
                "chainKey": 2,
                "headerNumber": 5,
                "txIndex": index,
                "txBytes": case["leaves"][index],
                "continuityProof": {"lowerEndpointDigest": to_hex(bytes(32)), "roots": [case["root"]]},
                "merkleProof": {"root": case["root"], "siblings": siblings},
                "cached": True,
                "generatedAt": "2026-01-02T03:04:05Z",
            }
            check_usc(as_bytes(body), {"txIndex": index}, anchor)
            assert refusal(body | {"txIndex": index + 1}, anchor=anchor).reason == "IndexMismatch"
            checked += 1
    assert checked > 3


def test_recorded_single_body() -> None:
    recorded = usc("api_01_single_response_shape.json")
    anchor = (110, bytes.fromhex(recorded["upper_digest_at_110"].removeprefix("0x")))
    asked = {"chainKey": 2, "headerNumber": 103, "txIndex": 3, "txHash": recorded["body"]["txHash"]}
    check_usc(as_bytes(recorded["body"]), asked, anchor)


def test_recorded_batch_body() -> None:
    body = usc("api_02_batch_response_shape.json")["body"]
    anchor = (110, bytes.fromhex(usc("api_01_single_response_shape.json")["upper_digest_at_110"].removeprefix("0x")))
    item = body["merkleProofs"]["103"]["3"]
    check_usc_batch(
        as_bytes(body), {"fromHeader": 103, "toHeader": 105, "merkleProofs.103.3.txHash": item["txHash"]}, anchor
    )
    assert refusal(body, {"merkleProofs.103.1.txHash": item["txHash"]}, anchor).reason == "NotWhatWasAsked"


def test_recorded_digests() -> None:
    """Whatever part of the chain of digests is shown, it leads to the recorded digest."""
    leaf = b"leaf"
    root = keccak(b"\0" + leaf)
    for link in usc("digest_00_mock_chain.json")["chain"]:
        digest = keccak(link["n"].to_bytes(8) + bytes.fromhex(link["root"][2:]) + bytes.fromhex(link["prev"][2:]))
        assert to_hex(digest) == link["digest"]
    rest = usc("digest_00_mock_chain.json")["chain"]
    lower = hashed_to("lower", 32)
    digest = keccak((7).to_bytes(8) + root + lower)
    for number, link in enumerate(rest, 8):
        digest = keccak(number.to_bytes(8) + bytes.fromhex(link["root"][2:]) + digest)
    body = chain_of([1], 7).single(0) | {"txBytes": to_hex(leaf), "merkleProof": {"root": to_hex(root), "siblings": []}}
    roots = [to_hex(root), *(link["root"] for link in rest)]
    body["continuityProof"] = {"lowerEndpointDigest": to_hex(lower), "roots": roots}
    check_usc(as_bytes(body), {}, (7 + len(rest), digest))


@pytest.mark.parametrize("wanted", [BATCH, {103: []}, {105: []}, {104: [0]}, {106: [5], 108: [1]}])
def test_batches_are_accepted(wanted: dict[int, list[int]]) -> None:
    whole = usc_chain()
    skip = min(wanted) - whole.first
    lower = whole.lower if not skip else UscChain(whole.first, whole.blocks[:skip], whole.lower).anchor[1]
    chain = UscChain(min(wanted), whole.blocks[skip:], lower)
    assert chain.anchor == whole.anchor
    check_usc_batch(as_bytes(chain.batch(wanted)), {"chainKey": CHAIN_KEY, "fromHeader": min(wanted)}, whole.anchor)


def test_every_changed_field_of_a_single_body_is_refused() -> None:
    body = usc_chain().single(10)
    asked = {name: body[name] for name in ("chainKey", "txHash", "cached", "generatedAt")}
    assert accepted(body, lambda changed: check_usc(changed, asked, usc_chain().anchor)) == []


def test_every_changed_field_of_a_batch_body_is_refused() -> None:
    body = usc_chain().batch(BATCH)
    asked = {name: body[name] for name in ("chainKey", "cached", "generatedAt", "fromHeader", "toHeader")}
    for height, items in body["merkleProofs"].items():
        asked |= {f"merkleProofs.{height}.{index}.txHash": item["txHash"] for index, item in items.items()}
    assert accepted(body, lambda changed: check_usc_batch(changed, asked, usc_chain().anchor)) == []


def test_every_flipped_byte_of_a_leaf_is_refused() -> None:
    body = usc_chain().single(4)
    leaf = bytes.fromhex(body["txBytes"][2:])
    for at in range(len(leaf)):
        broken = leaf[:at] + bytes([leaf[at] ^ 1]) + leaf[at + 1 :]
        assert refusal(body | {"txBytes": to_hex(broken)}).reason == "RootMismatch"


def test_the_reason_names_the_fault() -> None:
    chain = usc_chain()
    body, (end, digest) = chain.single(3), chain.anchor
    roots, lower = body["continuityProof"]["roots"], body["continuityProof"]["lowerEndpointDigest"]

    def with_roots(*others: str) -> dict[str, Any]:
        return body | {"continuityProof": {"lowerEndpointDigest": lower, "roots": list(others)}}

    foreign = usc_item(chain.blocks[3], 3)
    for broken, anchor, reason in (
        (body, (end + 1, digest), "AnchorMismatch"),
        (body, (end - 1, digest), "AnchorMismatch"),
        (body, (end, bytes(32)), "DigestMismatch"),
        (body | {"headerNumber": 104}, chain.anchor, "AnchorMismatch"),
        (body | {"headerNumber": 104}, (end + 1, digest), "DigestMismatch"),
        (with_roots(), chain.anchor, "AnchorMismatch"),
        (with_roots(), (102, bytes.fromhex(lower[2:])), "AnchorMismatch"),
        (with_roots(*roots[:-1]), chain.anchor, "AnchorMismatch"),
        (with_roots(*roots[::-1]), chain.anchor, "DigestMismatch"),
        (body | {"txIndex": 2}, chain.anchor, "IndexMismatch"),
        (body | {"txBytes": "0x"}, chain.anchor, "MalformedField"),
        (body | {"merkleProof": foreign["merkleProof"]}, chain.anchor, "RootMismatch"),
        (body | foreign, chain.anchor, "RootMismatch"),
    ):
        assert refusal(broken, anchor=anchor).reason == reason


def test_a_right_tree_of_another_block_is_refused() -> None:
    """The tree checks and its own root is stated, but the chain of digests holds another root at that height."""
    chain = usc_chain()
    forged = chain.single(0) | usc_item(chain.blocks[4], 0)
    assert refusal(forged).reason == "RootMismatch"
    batch = chain.batch({103: [0], 107: [0]})
    batch["merkleProofs"]["107"]["0"] = usc_item(chain.blocks[0], 0)
    assert refusal(batch).reason == "RootMismatch"


def test_no_more_than_64_siblings() -> None:
    for depth, good in ((64, True), (65, False)):
        node, siblings = keccak(b"\0" + b"leaf"), []
        for level in range(depth):
            siblings.append({"hash": to_hex(hashed_to(f"s{level}", 32)), "isLeft": False})
            node = keccak(b"\1" + node + hashed_to(f"s{level}", 32))
        body = chain_of([1]).single(0) | {"txBytes": to_hex(b"leaf")}
        body |= {"merkleProof": {"root": to_hex(node), "siblings": siblings}}
        body["continuityProof"]["roots"] = [to_hex(node)]
        anchor = (9, keccak((9).to_bytes(8) + node + hashed_to("below", 32)))
        if good:
            check_usc(as_bytes(body), {}, anchor)
        else:
            assert refusal(body, anchor=anchor).reason == "MalformedField"


def test_no_more_than_10_mib_of_a_transaction() -> None:
    for size, good in ((10 * 2**20, True), (10 * 2**20 + 1, False)):
        chain = UscChain(9, ((bytes(size),),), bytes(32))
        if good:
            check_usc(as_bytes(chain.single(0)), {}, chain.anchor)
        else:
            assert refusal(chain.single(0), anchor=chain.anchor).reason == "MalformedField"


def test_no_more_than_50_000_roots() -> None:
    """What the verifier on chain takes."""
    for count, good in ((50_000, True), (50_001, False)):
        chain = UscChain(9, ((b"leaf",), *[()] * (count - 1)), bytes(32))
        if good:
            check_usc(as_bytes(chain.single(0)), {}, chain.anchor)
        else:
            assert refusal(chain.single(0), anchor=chain.anchor).reason == "AnchorMismatch"


def test_an_index_past_64_bits_is_refused() -> None:
    body = usc_chain().single(3)
    for index in (2**64, 2**64 + 3, -1):
        assert refusal(body | {"txIndex": index}).reason == "MalformedField"


@pytest.mark.parametrize("first", [2**64 - 1, 2**64 - 2])
def test_heights_stay_below_2_to_the_64(first: int) -> None:
    chain = chain_of([1], 5)
    body = chain.single(0) | {"headerNumber": first}
    body["continuityProof"]["roots"] *= 3
    assert refusal(body, anchor=(first + 2, bytes(32))).reason == "AnchorMismatch"


def test_batches_are_ascending_and_within_their_range() -> None:
    chain = usc_chain()
    body = chain.batch(BATCH)
    proofs = body["merkleProofs"]
    backwards = dict(reversed(proofs.items()))
    inside = proofs | {"107": dict(reversed(proofs["107"].items()))}
    for broken in (
        body | {"merkleProofs": backwards},
        body | {"merkleProofs": inside},
        body | {"merkleProofs": proofs | {"108": {}}},
        body | {"toHeader": 106},
        body | {"toHeader": chain.anchor[0] + 1},
        body | {"toHeader": 102},
        chain.batch({103: []}) | {"toHeader": 102},
    ):
        assert refusal(broken).reason == "MalformedField"
    for name in ("0103", "103 ", "+103", "-1", "1_03", "\u0661\u0660\u0663", "x", "", "1" * 5000):
        assert refusal(body | {"merkleProofs": {name: proofs["103"]}}).reason == "MalformedField"
        assert refusal(body | {"merkleProofs": {"103": {name: proofs["103"]["3"]}}}).reason in {
            "MalformedField",
            "IndexMismatch",
        }
    assert refusal(body | {"merkleProofs": {"103": {"4": proofs["103"]["3"]}}}).reason == "IndexMismatch"


def test_the_hash_may_be_left_out() -> None:
    body = usc_chain().single(3)
    del body["txHash"]
    check_usc(as_bytes(body), {}, usc_chain().anchor)
    batch = copy.deepcopy(usc_chain().batch(BATCH))
    del batch["merkleProofs"]["103"]["3"]["txHash"]
    check_usc_batch(as_bytes(batch), {}, usc_chain().anchor)
    assert refusal(body, {"txHash": "0x"}).reason == "NotWhatWasAsked"


@pytest.mark.parametrize("text", ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.678901234Z"])
def test_times_as_the_reference_writes_them(text: str) -> None:
    check_usc(as_bytes(usc_chain().single(3) | {"generatedAt": text}), {}, usc_chain().anchor)


@pytest.mark.parametrize(
    "text", ["", "2026-01-02T03:04:05", "2026-01-02T03:04:05+00:00", "2026-01-02 03:04:05Z", "2026-01-02T03:04:05.67Z"]
)
def test_other_times_are_refused(text: str) -> None:
    assert refusal(usc_chain().single(3) | {"generatedAt": text}).field == "generatedAt"


def test_one_kind_of_body_is_not_the_other() -> None:
    with pytest.raises(Refused):
        check_usc(as_bytes(usc_chain().batch(BATCH)), {}, usc_chain().anchor)
    with pytest.raises(Refused):
        check_usc_batch(as_bytes(usc_chain().single(1)), {}, usc_chain().anchor)
