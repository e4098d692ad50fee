"""Copath where the reference server stood: started by flags alone, or by that server's file and variables."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.judging import COMPATIBLE, judge, judge_error
from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Copath, running_from
from tests.acceptance.waiting import until
from tests.corpus_files import files, load

FIRST, LAST = 175840, 175903
BUSY = 175881
REFERENCE_FILE = """
bind_host: 127.0.0.1
bind_port: {port}
cc3_key: "//canary-cc3-key"
indexer_url: http://127.0.0.1:1/canary-indexer
max_batch_size: 4
max_batch_span: 900
admission: {max_in_flight_requests: 40, max_in_flight_per_chain: 20, request_timeout_secs: 60}
chains:
  - chain_key: 7
    eth_rpc_url: URL
    eth_rpc_fallback_urls: []
    archiver_url: http://127.0.0.1:1/canary-archiver
    block_confirmation_depth: 64
    cache:
      merkle_retention_blocks: null
      merkle_max_bytes: 64MiB
      block_cache_capacity: 512
      merkle_backfill_enabled: false
      checkpoint_cache_max_entries: null
      max_concurrent_block_fills: 8
"""
IGNORED = (
    "cc3_key",
    "indexer_url",
    "archiver_url",
    "block_confirmation_depth",
    "cache.block_cache_capacity",
    "cache.checkpoint_cache_max_entries",
)


@pytest.fixture(scope="module")
def sepolia(node: RecordedNode) -> str:
    """The URL of a node of recorded blocks in a row."""
    records = [load(path) for path in files("contiguous") if path.name.startswith("sepolia_")]
    node.chains["drop-in"] = RecordedChain(records[0]["chainId"], records)
    return node.url("drop-in")


def lines(copath: Copath) -> list[dict[str, object]]:
    """What it logged so far."""
    return [json.loads(line) for line in copath.log.read_text().splitlines() if line.startswith("{")]


def test_flags_alone_make_a_server(sepolia: str) -> None:
    arguments = ["--eth-rpc-url", sepolia, "--chain-key", "5", "--host", "127.0.0.1", "--port", "{port}"]
    with running_from(arguments, {}) as copath:
        listed = copath.get("/api/v1/chains/5").json
        assert (listed["chainKey"], listed["name"], listed["family"]) == ("5", "chain-5", "ethereum")
        answer = copath.get(f"/api/v1/proofs/5/blocks/{BUSY}/receipts/1")
        assert answer.status == 200, answer.body[:300]
        judge(answer.body, load_block(), "receipt", 1, chain_key=5, chain_id=11155111)
        assert copath.get("/api/v1/attested-height/5").json == {"attestedHeight": None}
        judge_error(copath.get(f"/api/v1/proof/5/{BUSY}/0"), 404, "AttestationsMissing", COMPATIBLE)
        judge_error(copath.get(f"/api/v1/proof/2/{BUSY}/0"), 400, "InvalidChainKey", COMPATIBLE)


def load_block() -> dict[str, object]:
    (path,) = [path for path in files("contiguous") if path.name.startswith(f"sepolia_{BUSY}")]
    return load(path)


def test_a_file_and_the_variables_of_the_reference_server_make_a_server(sepolia: str) -> None:
    environment = {
        "MAX_BATCH_SPAN": "20",
        "MAX_IN_FLIGHT_REQUESTS": "50",
        # Anchors of our own: that server's came from its chain.
        "COPATH_CHAINS__7__ANCHORS__SOURCE": "self",
        "COPATH_CHAINS__7__ANCHORS__GENESIS": str(FIRST),
    }
    with running_from(["--config", "{file}"], environment, REFERENCE_FILE.replace("URL", sepolia)) as copath:
        attested = FIRST + (LAST - FIRST) // 10 * 10
        until(
            lambda: copath.get("/api/v1/attested-height/7").json["attestedHeight"] == attested,
            f"anchors up to {attested}",
        )
        single = copath.get(f"/api/v1/proof/7/{BUSY}/0")
        assert single.status == 200, single.body[:300]
        by_hash = copath.get(f"/api/v1/proof-by-tx/7/{single.json['txHash']}")
        assert by_hash.json["merkleProof"] == single.json["merkleProof"]
        fitting = [{"headerNumber": BUSY, "txIndexes": [0]}, {"headerNumber": BUSY - 20}]
        assert copath.post("/api/v1/proof-batch/7", fitting).status == 200
        too_wide = [{"headerNumber": BUSY}, {"headerNumber": BUSY - 21}]
        judge_error(copath.post("/api/v1/proof-batch/7", too_wide), 400, "BatchSpanTooLarge", COMPATIBLE)
        assert copath.metric("copath_admission_limit", scope="global") == 50
        assert copath.metric("copath_admission_limit", scope="chain") == 20
        told = [str(line.get("detail")) for line in lines(copath) if line.get("event") == "configuration_warning"]
        assert len(told) == len(IGNORED)
        for key in IGNORED:
            assert any(key in line for line in told), (key, told)
        assert "canary" not in copath.log.read_text()


def test_the_file_may_be_named_by_the_reference_servers_variable(sepolia: str) -> None:
    text = "chains: [{chain_key: 9, eth_rpc_url: 'URL'}]\nbind_port: {port}\n".replace("URL", sepolia)
    with running_from(["--log-level", "warning"], {"PROOF_GEN_CONFIG_FILE": "given.yaml"}, text) as copath:
        assert [each["chainKey"] for each in copath.get("/api/v1/chains").json["chains"]] == ["9"]
