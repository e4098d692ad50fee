"""Copath between a source chain and Creditcoin, two real nodes: whatever it serves the contract at the precompile's place takes,
and Creditcoin's client package makes the same of the same blocks without a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.judging import to_bytes
from tests.acceptance.played_creditcoin import PlayedCreditcoin, Source, played_creditcoin, source_chain
from tests.acceptance.server import Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.oracles.anvil import CHAIN_ID
from tests.oracles.sdk import Sdk
from tests.oracles.usc_damage import usc_damages

KEY = 9
GENESIS, INTERVAL, CHECKPOINT, ATTESTED = 3, 5, 18, 33
"""Attested are 3, 8, 13, ... 33, and of these 3 and 18 are checkpoints: 23, 28 and 33 are still attestations."""


@dataclass(frozen=True)
class Scene:
    source: Source
    creditcoin: PlayedCreditcoin
    copath: Copath

    def proof(self, tx_hash: str) -> dict[str, Any]:
        """As the client package's `ProverAPIProofGenerator` gets it."""
        result = self.source.sdk.generate_proof(KEY, self.copath.url, to_bytes(tx_hash), timeout_ms=20000)
        assert result["success"], result
        body: dict[str, Any] = result["data"]
        return body

    def raw(self, tx_hash: str) -> dict[str, Any]:
        """As its raw generator makes it of both nodes."""
        result = self.source.sdk.generate_raw(KEY, self.source.anvil.url, self.creditcoin.url, to_bytes(tx_hash))
        assert result["success"], result
        body: dict[str, Any] = result["data"]
        return body

    def provable(self) -> list[tuple[int, int, str]]:
        """Height, index and hash of every transaction that an anchor covers."""
        heights = range(GENESIS + 1, ATTESTED + 1)
        return [(height, index, each) for height in heights for index, each in enumerate(self.source.tx_hashes(height))]


def attested_height(copath: Copath) -> int | None:
    height: int | None = copath.get(f"/api/v1/attested-height/{KEY}").json["attestedHeight"]
    return height


def configured(source: Source, creditcoin: PlayedCreditcoin) -> dict[str, object]:
    anchors = {"source": "creditcoin", "url": f"{creditcoin.url}/?key=of-nobody-else"}
    finality = {"mode": "depth", "depth": 2}
    return chain(KEY, "source", CHAIN_ID, source.anvil.url, anchors=anchors, finality=finality)


@pytest.fixture(scope="module")
def scene(sdk: Sdk) -> Iterator[Scene]:
    with source_chain(sdk, GENESIS) as source, played_creditcoin(sdk) as creditcoin:
        source.mine(36, every_type_at=(8, 20), empty_at=(6, 12, 22))
        assert source.anvil.height() >= ATTESTED + 3
        creditcoin.support(KEY, GENESIS)
        creditcoin.attest(KEY, {height: source.digests[height] for height in range(GENESIS, ATTESTED + 1, INTERVAL)})
        creditcoin.checkpoint(KEY, GENESIS)
        creditcoin.checkpoint(KEY, CHECKPOINT)
        with running_copath(configured(source, creditcoin)) as copath:
            until(lambda: attested_height(copath) == ATTESTED, "the anchors to be read")
            yield Scene(source, creditcoin, copath)


def test_the_client_package_reads_the_same_anchors_from_both(scene: Scene) -> None:
    tells = scene.creditcoin.tells
    assert tells("latestAttested", KEY)["height"] == attested_height(scene.copath) == ATTESTED
    (supported,) = tells("supportedChains", KEY)
    listed, ready = scene.copath.get(f"/api/v1/chains/{KEY}").json, scene.copath.get("/readyz").json
    assert (supported["chainKey"], supported["chainId"], supported["chainEncoding"]) == (KEY, CHAIN_ID, 1)
    assert listed["anchors"] == {
        "source": "creditcoin",
        "genesis": tells("attestationGenesis", KEY),
        "attestedHeight": ATTESTED,
        "checkpointHeight": CHECKPOINT,
        "state": "ok",
        "ageSeconds": listed["anchors"]["ageSeconds"],
        "asOfHeight": scene.creditcoin.height(),
        "asOfAgeSeconds": listed["anchors"]["asOfAgeSeconds"],
    }
    assert ready["cc3_finalized_height"] == scene.creditcoin.height()
    assert ready["cc3_finalized_age_seconds"] >= int(listed["anchors"]["asOfAgeSeconds"])
    tells("waitUntilAttested", KEY, height=ATTESTED)
    assert scene.copath.metric("copath_anchor_polls_total", chain="source", result="ok") > 0
    assert scene.copath.metric("copath_anchor_age_seconds", chain="source") < 30


def test_the_contract_takes_every_proof_and_the_raw_generator_makes_the_same(scene: Scene) -> None:
    brackets = set()
    for height, index, tx_hash in scene.provable():
        body = scene.proof(tx_hash)
        assert (body["chainKey"], body["headerNumber"], body["txIndex"], body["txHash"]) == (
            KEY,
            height,
            index,
            tx_hash,
        )
        assert scene.creditcoin.accepts(body), (height, index)
        upper = height + len(body["continuityProof"]["roots"]) - 1
        bounds = scene.creditcoin.tells("continuityBounds", KEY, height=height)
        if height == CHECKPOINT:
            assert upper == CHECKPOINT  # where the client package goes on to the next attestation
        else:
            assert upper == bounds["childHeight"]
        brackets.add((bounds["parentIsAttestation"], bounds["childIsAttestation"]))
        by_position = scene.copath.get(f"/api/v1/proof/{KEY}/{height}/{index}").json
        for name in ("txBytes", "txHash", "merkleProof", "continuityProof"):
            assert by_position[name] == body[name]
    assert brackets == {(False, False), (False, True), (True, True)}
    heights = {height for height, _, _ in scene.provable()}
    assert {GENESIS + 1, 8, 13, 17, CHECKPOINT, CHECKPOINT + 1, 23, 24, ATTESTED} <= heights


def test_identical_to_the_raw_generator_wherever_a_height_lies(scene: Scene) -> None:
    chosen = [place for place in scene.provable() if place[1] == 0 or place[0] in (12, 25)]
    assert len(chosen) > 25
    for height, _, tx_hash in chosen:
        raw, body = scene.raw(tx_hash), scene.proof(tx_hash)
        assert scene.creditcoin.accepts(raw)
        for name in ("chainKey", "headerNumber", "txIndex", "txHash", "txBytes", "merkleProof"):
            assert body[name] == raw[name], (height, name)
        ours, theirs = body["continuityProof"], raw["continuityProof"]
        if height == CHECKPOINT:
            # On the newest checkpoint itself it goes on to the attestation above, past the anchor that it stands on.
            assert ours["roots"] == theirs["roots"][:1]
            assert len(theirs["roots"]) == INTERVAL + 1
            theirs = {**theirs, "roots": ours["roots"]}
        assert ours == theirs, height


def test_the_contract_refuses_whatever_is_damaged(scene: Scene) -> None:
    refused = 0
    for height in (GENESIS + 1, CHECKPOINT, CHECKPOINT + 1, ATTESTED):
        body = scene.proof(scene.source.tx_hashes(height)[0])
        for what, broken in usc_damages(body, seed=height):
            assert not scene.creditcoin.accepts(broken), (height, what)
            refused += 1
    assert refused > 40


@pytest.mark.parametrize("heights", [(4, 9), (16, 24), (17, 21), (18, 18), (19, 33), (4, 33)])
def test_the_contract_takes_batches_on_both_sides_of_the_checkpoint(scene: Scene, heights: tuple[int, int]) -> None:
    inside = [place for place in scene.provable() if heights[0] <= place[0] <= heights[1]]
    chosen = [inside[0], *inside[1:-1][:8], inside[-1]] if len(inside) > 1 else inside
    answer = scene.copath.post(f"/api/v1/proof-batch-by-tx/{KEY}", [tx_hash for _, _, tx_hash in chosen])
    assert answer.status == 200, answer.body[:300]
    body = answer.json
    assert (body["fromHeader"], body["toHeader"]) == (chosen[0][0], chosen[-1][0])
    assert scene.creditcoin.accepts(body)
    for number, (what, broken) in enumerate(usc_damages(body, seed=heights[0])):
        if number % 4 == 0:
            assert not scene.creditcoin.accepts(broken), what


def test_what_is_not_attested_is_refused_without_asking_anybody(scene: Scene) -> None:
    genesis = scene.copath.get(f"/api/v1/proof/{KEY}/{GENESIS}/0")
    assert (genesis.status, genesis.code) == (400, "BlockBeforeOrAtGenesis")
    early = scene.copath.get(f"/api/v1/proof/{KEY}/{ATTESTED + 1}/0")
    assert (early.status, early.code) == (422, "BlockNotReady")
    assert (early.json["block_number"], early.json["last_attested_block"]) == (ATTESTED + 1, ATTESTED)


def test_the_node_is_named_nowhere(scene: Scene) -> None:
    shown = scene.copath.log.read_text()
    for path in (f"/api/v1/chains/{KEY}", "/metrics", "/readyz", "/health", "/api/v1/health"):
        shown += scene.copath.get(path).body.decode()
    assert "of-nobody-else" not in shown


def test_a_chain_that_creditcoin_knows_as_another_has_no_anchors(scene: Scene) -> None:
    scene.creditcoin.support(KEY + 1, GENESIS, chain_id=1)
    other = {**configured(scene.source, scene.creditcoin), "chain_key": KEY + 1}
    with running_copath(other) as copath:
        state = until(
            lambda: copath.get(f"/api/v1/chains/{KEY + 1}").json["anchors"].get("reason"), "the anchors to be refused"
        )
        assert state == f"key {KEY + 1} of Creditcoin is chain 1, the source chain is {CHAIN_ID}"
        assert copath.get(f"/api/v1/proof/{KEY + 1}/{GENESIS + 1}/0").code == "AttestationsMissing"
        assert "anchors are refused" in copath.get(f"/api/v1/chains/{KEY + 1}").json["reasons"]


def test_a_file_of_the_same_anchors_gives_the_same_proofs(scene: Scene, tmp_path: Path) -> None:
    standing = {
        GENESIS: "genesis",
        CHECKPOINT: "checkpoint",
        23: "attestation",
        28: "attestation",
        ATTESTED: "attestation",
    }
    lines = [f"{height},0x{scene.source.digests[height].hex()},{kind}" for height, kind in standing.items()]
    path = tmp_path / "anchors.csv"
    path.write_text("\n".join(["height,digest,kind", *lines]))
    anchors = {"source": "static", "path": str(path)}
    with running_copath({**configured(scene.source, scene.creditcoin), "anchors": anchors}) as copath:
        assert attested_height(copath) == ATTESTED
        for height in (GENESIS + 1, CHECKPOINT, CHECKPOINT + 1, 26, ATTESTED):
            way = f"/api/v1/proof/{KEY}/{height}/0"
            body = until(lambda way=way: copath.get(way).json.get("continuityProof"), "the head to be known")
            assert body == scene.copath.get(way).json["continuityProof"]
