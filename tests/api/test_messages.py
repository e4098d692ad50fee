"""Messages in the words of the route that was asked: native routes have their own, compatible ones those of their clients."""

from __future__ import annotations

import pickle
import re

import httpx2
import pytest

from app.core.errors import TxHashNotFound
from tests.api.fakes import RecordedHouse, anchored_chain

THEIRS = re.compile(r"chain_key|header_number|tx_index|tx_hash|tx hash|tx proof|continuity-only|at height")
HASH = "ab" * 32


@pytest.fixture
def house() -> RecordedHouse:
    return RecordedHouse([anchored_chain()])


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"receipts/{HASH}", "TxHashNotFound"),
        (f"transactions/{HASH}", "TxHashNotFound"),
        ("receipts/0xabc", "InvalidParameter"),
        ("receipts/0xab", "InvalidParameter"),
        ("receipts/zz", "InvalidParameter"),
        (f"logs/{HASH}/x", "InvalidParameter"),
        ("blocks/1000004/receipts/9999", "TxIndexOutOfBounds"),
        ("blocks/1000004/transactions/9999", "TxIndexOutOfBounds"),
        ("blocks/1000004/logs/9999", "LogIndexOutOfBounds"),
        ("blocks/x/logs/1", "InvalidParameter"),
        ("blocks/5/logs/1", "BlockNotOnSourceChain"),
    ],
)
async def test_native_routes_speak_their_own_words(client: httpx2.AsyncClient, path: str, code: str) -> None:
    refused = (await client.get(f"/api/v1/proofs/mainnet-early/{path}")).json()
    assert refused["code"] == code
    assert THEIRS.search(refused["message"]) is None, refused["message"]
    assert refused["detail"] == refused["message"]


async def test_an_empty_block_is_not_sent_to_another_family_of_proofs(
    client: httpx2.AsyncClient, house: RecordedHouse
) -> None:
    empty = next(block for block in house.chains[2].blocks if block.transaction_count == 0)
    native = (await client.get(f"/api/v1/proofs/2/blocks/{empty.height}/receipts/0")).json()
    assert native["message"] == f"block {empty.height} is empty; there is nothing to prove"
    theirs = (await client.get(f"/api/v1/proof/2/{empty.height}/0")).json()
    assert theirs["message"] == f"block {empty.height} is empty; tx proof unavailable (use a continuity-only proof)"


async def test_chains_are_named_by_key_and_name(client: httpx2.AsyncClient) -> None:
    for path in ("/api/v1/proofs/9/receipts/x", "/api/v1/chains/nowhere"):
        assert (await client.get(path)).json()["message"].endswith("(allowed: 2 (mainnet-early))")
    theirs = (await client.get("/api/v1/proof/9/1/0")).json()
    assert theirs["message"] == "Chain key not configured: 9 (allowed: [2])"


def test_whether_one_refusal_is_retriable_goes_with_it() -> None:
    refusal = TxHashNotFound("not yet")
    refusal.retriable = True
    assert pickle.loads(pickle.dumps(refusal)).retriable
    assert not pickle.loads(pickle.dumps(TxHashNotFound("no"))).retriable
