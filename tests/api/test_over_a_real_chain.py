"""The doors over a chain as the house wires it: real flights, caches, levels and anchors, and a node that counts its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from app.anchors.self_attested import SelfAttested
from app.chain.chain import Chain
from app.chain.ports import Clock
from app.core.admission import Door
from app.core.blocks import BlockRef
from app.metrics import Metrics
from tests.api.fakes import open_door
from tests.api.serving import serving
from tests.chain.recorded_chain import BUSY, FIRST, RecordedChain, sepolia
from tests.fakes import settle

FINALIZED = 175890


@dataclass
class OneChain:
    """A house of one chain."""

    chain: Chain
    metrics: Metrics
    clock: Clock
    """That of the chain: deadlines are told by one clock."""
    started: bool = True
    draining: bool = False
    builder_healthy: bool = True
    started_at: float = 0.0
    heartbeat_age_s: float = 0.0
    loop_lag_s: float = 0.0
    closing: bool = False
    saturated: bool = False
    door: Door = field(default_factory=open_door)
    chains: dict[int, Chain] = field(init=False)
    by_name: dict[str, Chain] = field(init=False)

    def __post_init__(self) -> None:
        self.chains, self.by_name = {self.chain.key: self.chain}, {self.chain.name: self.chain}

    def now(self) -> float:
        return self.clock.now()


@pytest.fixture
async def plain() -> RecordedChain:
    """Without anchors."""
    recorded = RecordedChain()
    await recorded.see(finalized=FINALIZED)
    recorded.calls()
    return recorded


@pytest.fixture
async def anchored() -> RecordedChain:
    """With anchors of our own every ten heights, up to the finalized one; the roots are known, and no block is in the cache."""
    anchors = SelfAttested(7, FIRST, 10, 10)
    builder = RecordedChain(anchors=anchors)
    await builder.see(finalized=FINALIZED)

    async def root_at(height: int) -> bytes:
        return (await builder.chain.block(BlockRef(height=height))).block.usc_root

    await anchors.advance(FINALIZED, root_at)
    fresh = RecordedChain(anchors=anchors)
    await fresh.see(finalized=FINALIZED)
    for height in range(FIRST, FINALIZED + 1):
        fresh.chain.roots.note(height, await root_at(height))
    fresh.calls()
    return fresh


async def served(recorded: RecordedChain) -> AsyncIterator[httpx2.AsyncClient]:
    async with serving(OneChain(recorded.chain, recorded.metrics, recorded.clock)) as client:
        yield client


@pytest.fixture
async def plain_client(plain: RecordedChain) -> AsyncIterator[httpx2.AsyncClient]:
    async for client in served(plain):
        yield client


@pytest.fixture
async def anchored_client(anchored: RecordedChain) -> AsyncIterator[httpx2.AsyncClient]:
    async for client in served(anchored):
        yield client


def tx_hash(height: int, index: int = 0) -> str:
    found: str = sepolia(height)["block"]["transactions"][index]["hash"]
    return found


async def test_B73_four_spellings_of_a_hash_cost_one_fetch(
    plain: RecordedChain, plain_client: httpx2.AsyncClient
) -> None:
    digits = tx_hash(BUSY)[2:]
    answers = [
        await plain_client.get(f"/api/v1/proofs/sepolia/receipts/{spelling}")
        for spelling in (f"0x{digits}", f"0X{digits.upper()}", digits, digits.upper())
    ]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == len({answer.headers["etag"] for answer in answers}) == 1
    assert plain.calls() == {"position": 1, "fetch": 1, "build": 1}


async def test_every_way_to_a_block_is_one_fetch(plain: RecordedChain, plain_client: httpx2.AsyncClient) -> None:
    base = "/api/v1/proofs/sepolia"
    first = await plain_client.get(f"{base}/blocks/{BUSY}/receipts/1")
    plain.calls()
    for path in (
        f"blocks/{hex(BUSY)}/transactions/2",
        f"receipts/{tx_hash(BUSY, 1)}",
        first.headers["content-location"].removeprefix("/api/v1/proofs/7/"),
    ):
        assert (await plain_client.get(f"{base}/{path}")).status_code == 200
    assert plain.calls() == {}


async def test_B70_a_304_for_a_final_block_costs_no_call(
    plain: RecordedChain, plain_client: httpx2.AsyncClient
) -> None:
    path = f"/api/v1/proofs/sepolia/blocks/{BUSY}/receipts/0"
    tag = (await plain_client.get(path)).headers["etag"]
    plain.calls()
    assert (await plain_client.get(path, headers={"If-None-Match": tag})).status_code == 304
    assert plain.calls() == {}


async def test_B46_both_sides_of_the_finalized_height() -> None:
    recorded = RecordedChain()
    await recorded.see(finalized=BUSY)
    expected = {BUSY: "public, max-age=31536000, immutable", BUSY + 1: "public, max-age=2"}
    async for client in served(recorded):
        for height, cache_control in expected.items():
            block_hash = sepolia(height)["block"]["hash"]
            answer = await client.get(f"/api/v1/proofs/sepolia/blocks/{block_hash}/receipts/0?e=1")
            assert (answer.status_code, answer.headers["cache-control"]) == (200, cache_control)


async def test_B45_what_is_not_there_yet_is_not_kept(plain: RecordedChain, plain_client: httpx2.AsyncClient) -> None:
    path = "/api/v1/proofs/sepolia/blocks/175904/receipts/0"
    absent = await plain_client.get(path)
    assert (absent.status_code, absent.json()["code"], absent.json()["retriable"]) == (
        404,
        "BlockNotOnSourceChain",
        True,
    )
    assert absent.headers["cache-control"] == "no-store"


async def test_no_anchors_means_no_call(plain: RecordedChain, plain_client: httpx2.AsyncClient) -> None:
    for path in (f"proof/7/{BUSY}/0", f"proof-by-tx/7/{tx_hash(BUSY)}"):
        refused = await plain_client.get(f"/api/v1/{path}")
        assert (refused.status_code, refused.json()["code"]) == (404, "AttestationsMissing")
    assert plain.calls() == {}


async def test_a_usc_proof_of_a_cold_block_costs_its_own_fetch_only(
    anchored: RecordedChain, anchored_client: httpx2.AsyncClient
) -> None:
    by_hash = await anchored_client.get(f"/api/v1/proof-by-tx/7/{tx_hash(BUSY)}")
    assert by_hash.status_code == 200
    assert by_hash.json()["cached"] is False
    assert anchored.calls() == {"position": 1, "fetch": 1, "build": 1}
    again = (await anchored_client.get(f"/api/v1/proof-by-tx/7/{tx_hash(BUSY)}")).json()
    by_height = (await anchored_client.get(f"/api/v1/proof/7/{BUSY}/0")).json()
    assert again["cached"] is True
    assert again["merkleProof"] == by_height["merkleProof"] == by_hash.json()["merkleProof"]
    assert again["continuityProof"] == by_height["continuityProof"]
    assert anchored.calls() == {}


async def test_B47_the_anchors_decide_before_any_call(
    anchored: RecordedChain, anchored_client: httpx2.AsyncClient
) -> None:
    height = (await anchored_client.get("/api/v1/attested-height/7")).json()["attestedHeight"]
    assert FIRST < height <= FINALIZED
    not_yet = (await anchored_client.get(f"/api/v1/proof/7/{height + 1}/0")).json()
    assert (not_yet["code"], not_yet["last_attested_block"]) == ("BlockNotReady", height)
    genesis = (await anchored_client.get(f"/api/v1/proof/7/{FIRST}/0")).json()
    assert genesis["code"] == "BlockBeforeOrAtGenesis"
    assert anchored.calls() == {}


async def test_the_listing_of_a_real_chain_is_json_without_addresses(plain_client: httpx2.AsyncClient) -> None:
    listed: dict[str, Any] = (await plain_client.get("/api/v1/chains/sepolia")).json()
    assert (listed["chainKey"], listed["finalized"]) == ("7", FINALIZED)
    assert "://" not in str(listed)


async def test_a_client_that_leaves_frees_its_place_in_the_chain(
    plain: RecordedChain, plain_client: httpx2.AsyncClient
) -> None:
    hold = plain.upstream.hold("fetch")
    asked = asyncio.create_task(plain_client.get(f"/api/v1/proofs/sepolia/blocks/{BUSY}/receipts/0"))
    await hold.reached()
    asked.cancel()
    await settle()
    assert asked.cancelled()
    hold.release()
    await settle()
    assert plain.at_rest()
