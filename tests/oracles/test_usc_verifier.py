"""The Solidity verifier: what the precompile's ABI says, what it accepts, what it refuses and in which words."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.checker import Refused, check_usc, check_usc_batch
from tests.checker.bodies import CHAIN_KEY, UscChain, as_bytes, hashed_to, keccak, usc_chain
from tests.oracles.usc_damage import usc_damages
from tests.oracles.usc_verifier import Reverted, UscVerifier, compiled

PROJECT = Path(__file__).parent.parent.parent
BATCH = {103: [0, 3, 10], 104: [0], 106: [5], 107: [0, 64, 129]}
PRECOMPILE = {
    "verify(uint64,uint64,bytes,(bytes32,(bytes32,bool)[]),(bytes32,bytes32[]))": "7cc4e258",
    "verify(uint64,uint64[],bytes[],(bytes32,(bytes32,bool)[])[],(bytes32,bytes32[]))": "1b5f6f88",
    "verifyAndEmit(uint64,uint64,bytes,(bytes32,(bytes32,bool)[]),(bytes32,bytes32[]))": "02f4d167",
    "verifyAndEmit(uint64,uint64[],bytes[],(bytes32,(bytes32,bool)[])[],(bytes32,bytes32[]))": "4da3b895",
    "calculateTxIndex((bytes32,(bytes32,bool)[]))": "44f85f1c",
}
UNANCHORED = "Continuity proof does not match attestation or checkpoint"


@pytest.fixture
def verifier() -> UscVerifier:
    """With the anchor of the synthetic chain attested."""
    made = UscVerifier()
    made.set_attestation(CHAIN_KEY, *usc_chain().anchor)
    return made


def refusal(verifier: UscVerifier, body: dict[str, Any]) -> str:
    with pytest.raises(Reverted) as caught:
        (verifier.verify_batch if "merkleProofs" in body else verifier.verify)(body)
    return str(caught.value)


def changed(body: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {**body, **fields}


# --- the bytecode, and the ABI ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.stem for path in PROJECT.glob("tests/solidity/*.json")))
def test_the_kept_bytecode_is_that_of_the_sources(name: str) -> None:
    (path,) = [*PROJECT.glob(f"tests/solidity/{name}.sol"), *PROJECT.glob(f"clients/solidity/{name}.sol")]
    digest = hashlib.sha256(path.read_bytes())
    for imported in re.findall(r'from "((?:\./|clients/)[^"]+)"', path.read_text()):
        digest.update(((path.parent if imported.startswith("./") else PROJECT) / imported).read_bytes())
    assert compiled(name)["sourceSha256"] == digest.hexdigest(), "make it anew: npm run solidity, in tests/node"


def test_the_verifier_has_the_precompiles_functions() -> None:
    assert PRECOMPILE.items() <= compiled("UscVerifier")["methodIdentifiers"].items()


def test_the_abi_is_that_of_the_sdk() -> None:
    package = PROJECT / "tests/node/node_modules/@gluwa/cc-next-query-builder/dist/block-prover/block_prover.json"
    if not package.exists():
        pytest.skip("the client package is not installed")

    def spelled(parameter: dict[str, Any]) -> str:
        inner = ",".join(spelled(part) for part in parameter.get("components", ()))
        return str(parameter["type"]).replace("tuple", f"({inner})") if inner else str(parameter["type"])

    signatures = {
        f"{entry['name']}({','.join(spelled(each) for each in entry['inputs'])})"
        for entry in json.loads(package.read_text())
        if entry["type"] == "function"
    }
    assert signatures == set(PRECOMPILE)


# --- what is accepted -------------------------------------------------------------------------------------------------


def test_every_single_proof_is_accepted_and_its_index_is_told(verifier: UscVerifier) -> None:
    for index in range(11):
        body = usc_chain().single(index)
        assert verifier.verify(body) == []
        assert verifier.verify(body, emit=True) == [(CHAIN_KEY, 103, index)]
        assert verifier.index_of(body["merkleProof"]) == index


def test_a_batch_is_accepted_with_an_event_for_each(verifier: UscVerifier) -> None:
    body = usc_chain().batch(BATCH)
    assert verifier.verify_batch(body) == []
    expected = [(CHAIN_KEY, height, index) for height, indexes in BATCH.items() for index in indexes]
    assert verifier.verify_batch(body, emit=True) == expected


def test_the_order_of_a_batch_does_not_matter(verifier: UscVerifier) -> None:
    body = usc_chain().batch(BATCH)
    turned = changed(body, merkleProofs=dict(reversed(body["merkleProofs"].items())))
    assert len(verifier.verify_batch(turned, emit=True)) == 8


@pytest.mark.parametrize("kind", ["attestation", "checkpoint"])
def test_either_kind_of_anchor_will_do_and_only_at_its_height(kind: str) -> None:
    height, digest = usc_chain().anchor
    body = usc_chain().single(3)
    verifier = UscVerifier()
    put = verifier.set_attestation if kind == "attestation" else verifier.set_checkpoint
    assert refusal(verifier, body) == UNANCHORED
    for at in (height - 1, height + 1):
        put(CHAIN_KEY, at, digest)
        assert refusal(verifier, body) == UNANCHORED
    put(CHAIN_KEY + 1, height, digest)
    put(CHAIN_KEY, height, keccak(digest))
    assert refusal(verifier, body) == UNANCHORED
    put(CHAIN_KEY, height, digest)
    assert verifier.verify(body) == []
    put(CHAIN_KEY, height, digest, exists=False)
    assert refusal(verifier, body) == UNANCHORED, "retired, or reverted"


def test_a_single_leaf_and_an_anchor_at_the_height_itself() -> None:
    chain = UscChain(7, ((b"only",),), hashed_to("lower", 32))
    verifier = UscVerifier()
    verifier.set_checkpoint(CHAIN_KEY, *chain.anchor)
    body = chain.single(0)
    assert (body["merkleProof"]["siblings"], len(body["continuityProof"]["roots"])) == ([], 1)
    assert verifier.verify(body, emit=True) == [(CHAIN_KEY, 7, 0)]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_refusals_are_in_the_precompiles_words(verifier: UscVerifier) -> None:
    body = usc_chain().single(3)
    roots = body["continuityProof"]["roots"]
    cases = {
        "Transaction data cannot be empty": changed(body, txBytes="0x"),
        "Merkle proof validation failed": changed(body, txBytes=body["txBytes"] + "00"),
        "Merkle root mismatch": changed(body, continuityProof={**body["continuityProof"], "roots": roots[1:]}),
        "Continuity chain cannot be empty": changed(body, continuityProof={**body["continuityProof"], "roots": []}),
        UNANCHORED: changed(body, headerNumber=104),
        "Continuity chain range overflow": changed(body, headerNumber=2**64 - 1),
    }
    assert {reason: refusal(verifier, broken) for reason, broken in cases.items()} == {
        reason: reason for reason in cases
    }


def test_refusals_of_batches_are_in_the_precompiles_words(verifier: UscVerifier) -> None:
    body = usc_chain().batch(BATCH)
    lower = bytes.fromhex(body["continuityProof"]["lowerEndpointDigest"][2:])
    roots = [bytes.fromhex(root[2:]) for root in body["continuityProof"]["roots"]]
    leaf = b"leaf"
    proof = (keccak(b"\0" + leaf), [])
    cases = [
        ("Should have the same number of heights, encoded transactions, and merkle proofs", ([103], [], [proof])),
        ("Should have the same number of heights, encoded transactions, and merkle proofs", ([103], [leaf], [])),
        ("Should have the same number of heights, encoded transactions, and merkle proofs", ([], [leaf], [proof])),
        ("Should have at least one height", ([], [], [])),
        ("Batch exceeds maximum allowed size", ([103] * 11, [leaf] * 11, [proof] * 11)),
        ("Continuity chain doesn't cover maximum query height", ([103, 109], [leaf] * 2, [proof] * 2)),
        ("Transaction data cannot be empty", ([103], [b""], [proof])),
        ("Merkle proof validation failed", ([103], [leaf + b"\0"], [proof])),
        ("Merkle root mismatch", ([103], [leaf], [proof])),
    ]
    for reason, (heights, leaves, proofs) in cases:
        with pytest.raises(Reverted, match=re.escape(reason)):
            verifier.verify_many(CHAIN_KEY, heights, leaves, proofs, (lower, roots))
    with pytest.raises(Reverted, match="Continuity chain cannot be empty"):
        verifier.verify_many(CHAIN_KEY, [103], [leaf], [proof], (lower, []))


def test_limits() -> None:
    verifier, leaf = UscVerifier(), b"leaf"
    root = keccak(b"\0" + leaf)
    with pytest.raises(Reverted, match="Continuity chain exceeds maximum allowed roots"):
        verifier.verify_many(1, [1], [leaf], [(root, [])], (bytes(32), [root] * 50_001))
    tall = [(bytes(32), False)] * 65
    with pytest.raises(Reverted, match="Merkle proof exceeds maximum allowed siblings"):
        verifier.verify_many(1, [1], [leaf], [(root, tall)], (bytes(32), [root]))
    node = root
    for _ in range(64):
        node = keccak(b"\1" + node + bytes(32))
    verifier.set_attestation(1, 1, keccak((1).to_bytes(8) + node + bytes(32)))
    verifier.verify_many(1, [1], [leaf], [(node, tall[:64])], (bytes(32), [node]))
    verifier.verify_many(1, [1] * 10, [leaf] * 10, [(node, tall[:64])] * 10, (bytes(32), [node]))


@pytest.mark.parametrize("kind", ["single", "batch"])
def test_each_damaged_field_is_refused_here_and_by_the_checker(verifier: UscVerifier, kind: str) -> None:
    body = usc_chain().single(9) if kind == "single" else usc_chain().batch(BATCH)
    check = check_usc if kind == "single" else check_usc_batch
    check(as_bytes(body), {"chainKey": CHAIN_KEY}, usc_chain().anchor)
    tried = 0
    for seed in range(3):
        for what, broken in usc_damages(body, seed):
            assert not verifier.accepts(broken), what
            with pytest.raises(Refused):
                check(as_bytes(broken), {"chainKey": CHAIN_KEY}, usc_chain().anchor)
            tried += 1
    assert tried > 100
