"""The demo's chains: the same code as for a real node, over the blocks that are shipped."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.core.block_building import build
from app.core.blocks import BlockBodies, BlockRef
from app.core.errors import BlockNotOnSourceChain, HistoryUnavailable
from app.core.hexadecimal import from_hex
from app.core.provable_block import BuildRequest, ProvableBlock, Verdict
from app.upstream.demo import demo_chains, demo_examples, demo_heights, demo_transport
from app.upstream.evm import EvmNode
from app.upstream.failover import Failover
from app.upstream.retries import Patience
from tests.corpus_files import files, load
from tests.upstream.conftest import HandClock, handed

DATA = Path(demo_transport.__code__.co_filename).parent / "demo_blocks"

CHAINS = {chain["name"]: chain for chain in demo_chains()}

EVERY_BLOCK = [(name, height) for name in CHAINS for height in demo_heights(name)]

WITHOUT_PROOF = {
    # Its transactions cannot all be encoded yet; its receipts can.
    ("samples-tempo", 17_708_868): "transactions",
    # Recorded without receipts.
    ("samples-gnosis", 40_000_000): "receipts",
}


@asynccontextmanager
async def upstream_of(name: str) -> AsyncIterator[Failover]:
    """As the house builds it; only time is moved by hand."""
    chain, clock = CHAINS[name], HandClock()
    url = chain["eth_rpc_url"]
    node = EvmNode("primary", url, chain_id=chain["chain_id"], transport=demo_transport(url), clock=clock.now)
    upstream = Failover([node], patience=Patience(clock.pause, clock.now))
    try:
        yield upstream
        assert clock.pauses == []
    finally:
        await upstream.aclose()


def test_the_chains_have_distinct_keys_and_names_that_a_route_can_carry() -> None:
    assert len({chain["chain_key"] for chain in CHAINS.values()}) == len(CHAINS)
    assert all(re.fullmatch(r"[a-z][a-z0-9-]*", name) for name in CHAINS)
    assert {"mainnet-early", "sepolia", "samples-ethereum", "samples-op-stack"} <= set(CHAINS)


def test_the_ranges_are_contiguous_and_anchored_the_samples_are_not() -> None:
    for name, chain in CHAINS.items():
        heights = demo_heights(name)
        if name.startswith("samples-"):
            assert chain["anchors"] == {"source": "none"}
        else:
            assert heights == tuple(range(heights[0], heights[-1] + 1))
            assert chain["anchors"]["source"] == "self"
            assert chain["anchors"]["genesis"] == heights[0]


def test_what_is_shipped_stays_small_and_is_all_in_the_index() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 1_500_000
    assert {path.name for path in DATA.glob("*.gz")} == {f"{name}.jsonl.gz" for name in CHAINS}


def test_what_is_shipped_is_what_was_recorded() -> None:
    recorded: dict[str, dict[str, Any]] = {}
    for path in files("full", "contiguous", "block-only", "nonstandard"):
        record = load(path)
        recorded.setdefault(record["block"]["hash"].lower(), record)
    for name in CHAINS:
        with gzip.open(DATA / f"{name}.jsonl.gz", "rt") as lines:
            for line in lines:
                shipped = json.loads(line)
                source = recorded[shipped["block"]["hash"].lower()]
                assert len(shipped["block"]["transactions"]) == len(source["block"]["transactions"])
                if source.get("receipts") is not None:
                    assert shipped["receipts"] is not None


@pytest.mark.parametrize(("name", "height"), EVERY_BLOCK, ids=lambda value: str(value))
async def test_every_block_comes_by_height_and_by_hash_and_is_proven(name: str, height: int) -> None:
    chain = CHAINS[name]

    async def accept(bodies: BlockBodies) -> ProvableBlock:
        request = BuildRequest(
            family=chain["family"],
            chain_id=chain["chain_id"],
            anchored=chain["anchors"]["source"] != "none",
            height=height,
            block_hash=None,
            block_json=bodies.block_json,
            receipts_json=bodies.receipts_json,
            receipts_error=bodies.receipts_error,
        )
        return build(request)

    async with upstream_of(name) as upstream:
        block = await upstream.fetch(BlockRef(height=height), accept)
        assert block.height == height
        assert (await upstream.fetch(BlockRef(block_hash=block.block_hash), accept)) == block
        lacking = WITHOUT_PROOF.get((name, height))
        assert (block.transactions_verdict is Verdict.PROVEN) is (lacking != "transactions")
        assert (block.receipts_verdict is Verdict.PROVEN) is (lacking != "receipts")
        if chain["anchors"]["source"] != "none":
            assert block.leaves_verdict is Verdict.PROVEN
        for index in range(min(3, block.transaction_count)):
            position = await upstream.position(block.transaction_hash(index))
            assert position is not None
            assert (position.height, position.index, position.block_hash) == (height, index, block.block_hash)


@pytest.mark.parametrize("name", CHAINS)
async def test_the_last_block_is_head_safe_and_finalized(name: str) -> None:
    async with upstream_of(name) as upstream:
        for tag in ("latest", "safe", "finalized"):
            tagged = await upstream.tagged(tag)
            assert tagged is not None
            assert tagged.height == demo_heights(name)[-1]
        assert await upstream.tagged("pending") is None
        assert await upstream.chain_id() == CHAINS[name]["chain_id"]


async def test_a_block_that_is_not_shipped_is_history_and_one_above_is_not_there_yet() -> None:
    async with upstream_of("samples-ethereum") as upstream:
        with pytest.raises(HistoryUnavailable):
            await upstream.fetch(BlockRef(height=22_869_877), handed)
        with pytest.raises(BlockNotOnSourceChain):
            await upstream.fetch(BlockRef(height=22_869_879), handed)
        with pytest.raises(BlockNotOnSourceChain):
            await upstream.fetch(BlockRef(block_hash=bytes(32)), handed)
        assert await upstream.position(bytes(32)) is None


async def test_receipts_that_were_not_recorded_are_missing_not_empty() -> None:
    async with upstream_of("samples-gnosis") as upstream:
        bodies = await upstream.fetch(BlockRef(height=40_000_000), handed)
        assert bodies.receipts_json is None
        assert bodies.receipts_error is not None


async def test_receipts_come_one_by_one_and_in_batches_too() -> None:
    async with upstream_of("samples-ethereum") as upstream:
        upstream.nodes[0].capabilities.block_receipts = False
        bodies = await upstream.fetch(BlockRef(height=22_869_878), handed)
        assert len(json.loads(bodies.receipts_json or b"")) == 301


async def test_what_the_demo_does_not_offer_is_refused_as_by_a_node() -> None:
    async with httpx2.AsyncClient(transport=demo_transport("demo:sepolia")) as client:
        response = await client.post("http://demo", json={"id": 1, "method": "eth_getLogs", "params": [{}]})
        assert response.json()["error"]["code"] == -32601
        response = await client.post(
            "http://demo", json={"id": 1, "method": "eth_getBlockByNumber", "params": ["x", True]}
        )
        assert response.json()["error"]["code"] == -32602


@pytest.mark.parametrize("spelling", ["mainnet-early", "demo:mainnet-early", "demo://mainnet-early", "//mainnet-early"])
def test_a_chain_is_named_alone_or_as_a_url(spelling: str) -> None:
    assert demo_transport(spelling)


@pytest.mark.parametrize("name", ["", "mainnet", "../secrets", "demo://"])
def test_a_name_that_is_none_of_the_demos_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the demo has no chain"):
        demo_transport(name)


async def test_the_examples_name_what_is_shipped() -> None:
    examples = demo_examples()
    assert examples[0][1].startswith("/api/v1/proofs/samples-ethereum/receipts/0x")
    for _, path in examples:
        for tx_hash in re.findall(r"0x[0-9a-f]{64}", path):
            key = path.split("/")[4]
            name = key if key in CHAINS else next(n for n, chain in CHAINS.items() if str(chain["chain_key"]) == key)
            async with upstream_of(name) as upstream:
                assert await upstream.position(from_hex(tx_hash)) is not None
