"""The demo, as anybody starts it first: real blocks, no key, no node; and the client package is content with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.judging import judge, to_bytes, transaction_hashes
from tests.acceptance.server import Copath, running_demo
from tests.acceptance.waiting import until
from tests.corpus_files import files, load
from tests.oracles.sdk import Sdk


@pytest.fixture(scope="module")
def demo() -> Iterator[Copath]:
    with running_demo() as running:
        yield running


def _chain(demo: Copath, name: str) -> tuple[int, int]:
    """(chain key, chain id) of a demo chain."""
    listed = demo.get(f"/api/v1/chains/{name}").json
    return int(listed["chainKey"]), int(listed["chainId"])


def test_the_client_package_proves_every_transaction_of_the_sepolia_range(demo: Copath, sdk: Sdk) -> None:
    key, _ = _chain(demo, "sepolia")
    heights = [int(load(path)["block"]["number"], 16) for path in files("contiguous") if "sepolia" in path.name]
    last = min(heights) + (max(heights) - min(heights)) // 10 * 10
    until(
        lambda: (demo.get(f"/api/v1/attested-height/{key}").json["attestedHeight"] or 0) >= last, "the demo's anchors"
    )
    proven = 0
    for path in files("contiguous"):
        record = load(path)
        height = int(record["block"]["number"], 16)
        if record["chain"] != "sepolia" or not min(heights) < height <= last:
            continue
        for index, tx_hash in enumerate(transaction_hashes(record)):
            result = sdk.generate_proof(key, demo.url, to_bytes(tx_hash))
            assert result["success"], result
            body = result["data"]
            assert (body["headerNumber"], body["txIndex"], body["txHash"]) == (height, index, tx_hash)
            leaf = sdk.leaf(record["block"]["transactions"][index], record["receipts"][index])
            assert to_bytes(body["txBytes"]) == leaf
            root, _ = sdk.recompute(body)
            assert root == to_bytes(body["merkleProof"]["root"]) == to_bytes(body["continuityProof"]["roots"][0])
            proven += 1
    assert proven >= 10


@pytest.mark.parametrize(("name", "prefix"), [("sepolia", "sepolia"), ("mainnet-early", "mainnet")])
def test_native_proofs_of_both_ranges(name: str, prefix: str, demo: Copath) -> None:
    key, chain_id = _chain(demo, name)
    for path in [path for path in files("contiguous") if path.name.startswith(prefix)][1:40:4]:
        record = load(path)
        for index, tx_hash in enumerate(transaction_hashes(record)):
            for kind in ("transaction", "receipt"):
                answer = demo.get(f"/api/v1/proofs/{name}/{kind}s/{tx_hash}")
                assert answer.status == 200, answer.body[:300]
                judge(answer.body, record, kind, index, chain_key=key, chain_id=chain_id)
