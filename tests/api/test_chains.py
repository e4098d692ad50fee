"""The listing of chains."""

from __future__ import annotations

import httpx2
import pytest

from tests.api.fakes import RecordedHouse


async def test_chains_are_listed_by_ascending_key(client: httpx2.AsyncClient) -> None:
    response = await client.get("/api/v1/chains")
    assert response.status_code == 200
    listed = response.json()["chains"]
    assert [(chain["chainKey"], chain["name"], chain["chainId"]) for chain in listed] == [
        ("2", "mainnet-early", "1"),
        ("11", "modern", "1"),
    ]
    assert listed[0]["anchors"].items() >= {"source": "self", "attestedHeight": 1000018}.items()


@pytest.mark.parametrize("name", ["11", "modern"])
async def test_one_chain_by_key_or_name(client: httpx2.AsyncClient, name: str) -> None:
    one = (await client.get(f"/api/v1/chains/{name}")).json()
    assert one in (await client.get("/api/v1/chains")).json()["chains"]
    assert one["name"] == "modern"


async def test_an_unknown_chain_is_told_the_known_keys(client: httpx2.AsyncClient) -> None:
    response = await client.get("/api/v1/chains/4")
    assert (response.status_code, response.json()["code"]) == (400, "InvalidChainKey")
    assert response.json()["message"] == "Chain not configured: 4 (allowed: 2 (mainnet-early), 11 (modern))"


async def test_B67_a_key_beyond_2_to_53_stays_exact(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    house.by_name["modern"].key = 2**63 - 1
    assert (await client.get("/api/v1/chains")).json()["chains"][1]["chainKey"] == str(2**63 - 1)
    assert (await client.get("/api/v1/chains/modern")).json()["chainKey"] == str(2**63 - 1)
