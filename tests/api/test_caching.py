"""What a cache in between may keep, and for how long: a proof that a reorg or an anchor made wrong is served by nobody then."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import httpx2
import pytest

from app.anchors.self_attested import SelfAttested
from app.api import conditional
from tests.api.exchanges import Asked, Exchange, asked
from tests.api.fakes import RecordedHouse
from tests.chain.recorded_chain import BUSY, RecordedChain, branch, sepolia, tx_hashes
from tests.fakes import settle

USC = "/api/v1/proof/2/1000004/0"
FINALIZED = BUSY
IMMUTABLE = "public, max-age=31536000, immutable"


def etag(answer: Exchange) -> str:
    return answer.headers["etag"]


# --- finalized or not ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def recorded() -> RecordedChain:
    """Final up to FINALIZED, with some blocks above."""
    chain = RecordedChain()
    await chain.see(head=FINALIZED + 10, finalized=FINALIZED)
    return chain


@pytest.fixture
async def running(recorded: RecordedChain) -> AsyncIterator[Asked]:
    async with asked(recorded) as house:
        yield house


def by_hash(height: int, query: str = "?e=1") -> str:
    return f"/api/v1/proofs/sepolia/blocks/{sepolia(height)['block']['hash']}/receipts/0{query}"


def ways_to(height: int) -> list[str]:
    """Every URL of the first receipt of a block but the immutable one."""
    tx_hash = "0x" + tx_hashes(sepolia(height))[0].hex()
    base = "/api/v1/proofs/7"
    return [
        f"{base}/receipts/{tx_hash}",
        f"{base}/blocks/{height}/receipts/0?e=1",
        by_hash(height, ""),
        by_hash(height, "?e=2"),
    ]


async def test_B46_the_last_finalized_block_and_the_first_that_is_not(running: Asked) -> None:
    final, young = await running.ask(by_hash(FINALIZED)), await running.ask(by_hash(FINALIZED + 1))
    assert (final.headers["cache-control"], final.json["finality"]["level"]) == (IMMUTABLE, "finalized")
    assert re.fullmatch(r"public, max-age=[12]", young.headers["cache-control"])
    assert young.json["finality"]["level"] == "latest"
    assert "content-location" not in young.headers
    for answer in (final, young):
        assert re.fullmatch(r'"[0-9a-f]{32}"', etag(answer))
        assert "Accept-Encoding" in answer.headers["vary"]
    for path in ways_to(FINALIZED):
        answer = await running.ask(path)
        assert answer.headers["cache-control"] == "public, max-age=60", path
        assert answer.headers["content-location"] == by_hash(FINALIZED).replace("sepolia", "7")
        assert (answer.body, etag(answer)) == (final.body, etag(final))
    for path in ways_to(FINALIZED + 1):
        answer = await running.ask(path)
        assert answer.headers["cache-control"] == young.headers["cache-control"], path
        assert "content-location" not in answer.headers


async def test_B46_what_becomes_final_becomes_immutable(running: Asked, recorded: RecordedChain) -> None:
    before = await running.ask(by_hash(FINALIZED + 1))
    await recorded.see(head=FINALIZED + 10, finalized=FINALIZED + 1)
    after = await running.ask(by_hash(FINALIZED + 1), headers=[(b"if-none-match", etag(before).encode())])
    # The level is part of what the proof says, so the tag is another.
    assert (after.status, after.headers["cache-control"], after.json["finality"]["level"]) == (
        200,
        IMMUTABLE,
        "finalized",
    )


@pytest.mark.parametrize("of", ["receipts/{tx_hash}", "blocks/{height}/receipts/0", "blocks/{hash}/receipts/0?e=1"])
async def test_after_a_reorg_no_stale_proof_outlives_its_age(running: Asked, recorded: RecordedChain, of: str) -> None:
    height = FINALIZED + 1
    block = sepolia(height)
    tx_hash = "0x" + tx_hashes(block)[0].hex()
    path = "/api/v1/proofs/7/" + of.format(tx_hash=tx_hash, height=height, hash=block["block"]["hash"])
    before = await running.ask(path)
    age = re.fullmatch(r"public, max-age=(\d+)", before.headers["cache-control"])
    assert age is not None
    assert int(age[1]) <= 2
    recorded.reorg(branch(height, [sepolia(FINALIZED), sepolia(FINALIZED - 3)]))
    # The head has not been looked at again; a cache asks whether what it has is still right.
    after = await running.ask(path, headers=[(b"if-none-match", etag(before).encode())])
    assert after.status != 304
    assert after.body != before.body
    if after.status == 200:
        assert after.json["blockHash"] != before.json["blockHash"]
        assert etag(after) != etag(before)
    else:
        assert (after.status, after.headers["cache-control"]) == (404, "no-store")


# --- 304 ----------------------------------------------------------------------------------------------------------------


async def test_B70_what_is_final_and_at_hand_costs_no_call_and_no_cold_place(
    running: Asked, recorded: RecordedChain
) -> None:
    tags = {path: etag(await running.ask(path)) for path in (by_hash(FINALIZED), *ways_to(FINALIZED))}
    recorded.calls()
    running.house.door.process.limit = 0  # nothing cold gets in
    for path, tag in tags.items():
        for method in ("GET", "HEAD"):
            same = await running.ask(path, method, headers=[(b"if-none-match", f"W/{tag}".encode())])
            assert (same.status, same.body, etag(same)) == (304, b"", tag)
    assert recorded.calls() == {}


async def test_B70_above_the_finalized_height_a_304_asks_which_block_stands_there(
    running: Asked, recorded: RecordedChain
) -> None:
    path = by_hash(FINALIZED + 1)
    tag = etag(await running.ask(path)).encode()
    recorded.calls()
    assert (await running.ask(path, headers=[(b"if-none-match", tag)])).status == 304
    assert recorded.calls() == {"name_of": 1}


@pytest.mark.parametrize("condition", [b"*", b'"anything"'])
async def test_B70_nothing_is_unchanged_that_is_not_known_to_stand(running: Asked, condition: bytes) -> None:
    """Neither a block that is not there nor one that was replaced: the condition is looked at last."""
    for path in (f"/api/v1/proofs/7/blocks/0x{'11' * 32}/receipts/0?e=1", f"/api/v1/proofs/7/receipts/0x{'11' * 32}"):
        answer = await running.ask(path, headers=[(b"if-none-match", condition)])
        assert (answer.status, answer.headers["cache-control"]) == (404, "no-store")
        assert "etag" not in answer.headers


async def test_B70_the_tag_of_a_replaced_block_is_good_for_nothing(running: Asked, recorded: RecordedChain) -> None:
    path = by_hash(FINALIZED + 1)
    tag = etag(await running.ask(path)).encode()
    recorded.reorg(branch(FINALIZED + 1, [sepolia(FINALIZED - 2)]))
    answer = await running.ask(path, headers=[(b"if-none-match", tag + b", *")])
    assert (answer.status, answer.headers["cache-control"]) == (404, "no-store")


# --- usc ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rests_s", "cache_control"),
    [
        (0.0, "public, no-cache"),
        (0.99, "public, no-cache"),
        (1.0, "public, max-age=1"),
        (45.7, "public, max-age=45"),
        (1e9, "public, max-age=60"),
    ],
)
async def test_a_usc_answer_is_kept_until_the_next_anchor_may_come(
    client: httpx2.AsyncClient, house: RecordedHouse, rests_s: float, cache_control: str
) -> None:
    assert conditional.anchored(rests_s) == cache_control
    house.by_name["mainnet-early"].anchors_rest_s = rests_s
    answer = await client.get(USC)
    assert answer.headers["cache-control"] == cache_control
    assert "content-location" not in answer.headers
    same = await client.get(USC, headers={"If-None-Match": answer.headers["etag"]})
    assert (same.status_code, same.headers["cache-control"]) == (304, cache_control)


async def test_a_usc_tag_names_block_and_upper_anchor(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    anchors = house.by_name["mainnet-early"].anchors
    assert anchors is not None
    first, again = await client.get(USC), await client.get(USC)
    assert first.headers["etag"] == again.headers["etag"]
    assert re.fullmatch(r'W/"[0-9a-f]{32}"', first.headers["etag"])
    other = await client.get("/api/v1/proof/2/1000007/0")
    assert other.headers["etag"] != first.headers["etag"]
    # The anchor that it ends in is retired: the next one is above.
    anchors.attestations = type(anchors.attestations)(
        {height: digest for height, digest in anchors.attestations.items() if height != 1000010}
    )
    moved = await client.get(USC, headers={"If-None-Match": first.headers["etag"]})
    assert moved.status_code == 200
    assert moved.headers["etag"] != first.headers["etag"]
    assert len(moved.json()["continuityProof"]["roots"]) > len(first.json()["continuityProof"]["roots"])
    assert "immutable" not in moved.headers["cache-control"]


async def test_a_retired_anchor_is_seen_by_the_next_question() -> None:
    """With the real anchors: an attestation gives way to the checkpoint above it, and the pace of anchors is learned."""
    genesis = BUSY - 1
    chain = RecordedChain(genesis, anchors=SelfAttested(7, genesis, 2, 2))
    await chain.see(head=FINALIZED + 10, finalized=genesis + 2)
    background = chain.chain.run()
    async with asked(chain) as running:
        task = asyncio.ensure_future(background)
        try:
            await settle(200)
            path = f"/api/v1/proof/7/{genesis + 1}/0"
            first = await running.ask(path)
            assert (first.status, first.headers["cache-control"]) == (200, "public, no-cache")
            assert (await running.ask(path, headers=[(b"if-none-match", etag(first).encode())])).status == 304
            await chain.see(head=FINALIZED + 10, finalized=genesis + 4)
            await settle(200)
            assert chain.chain.anchors is not None
            after = await running.ask(path, headers=[(b"if-none-match", etag(first).encode())])
            assert after.status == 200
            assert etag(after) != etag(first)
            roots = [json.loads(each.body)["continuityProof"]["roots"] for each in (first, after)]
            assert roots[1][: len(roots[0])] == roots[0]
            assert len(roots[1]) > len(roots[0])
            for step in (6, 8):
                await chain.clock.advance(30)
                await chain.see(head=FINALIZED + 10, finalized=genesis + step)
                await settle(200)
            paced = re.fullmatch(r"public, max-age=(\d+)", (await running.ask(path)).headers["cache-control"])
            assert paced is not None
            assert 0 < int(paced[1]) <= 30
            await chain.clock.advance(31)
            assert (await running.ask(path)).headers["cache-control"] == "public, no-cache", "the next one is due"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


# --- everything else ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/proofs/modern/receipts/0x" + "11" * 32,
        "/api/v1/proofs/modern/blocks/22869878/receipts/99999",
        "/api/v1/proofs/modern/blocks/x/receipts/0",
        "/api/v1/proofs/modern/blocks/22869878/receipts/0?finality=finalized",
        "/api/v1/proof/2/1000019/0",
        "/api/v1/proof/2/1000001/0",
        "/api/v1/proof-by-tx/2/0x" + "11" * 32,
        "/api/v1/attested-height/2",
        "/api/v1/chains",
        "/readyz",
        "/nothing",
    ],
)
async def test_errors_absences_and_states_are_not_kept(client: httpx2.AsyncClient, path: str) -> None:
    answer = await client.get(path, headers={"If-None-Match": "*"})
    assert answer.status_code != 304
    assert answer.headers["cache-control"] == "no-store"
    assert "etag" not in answer.headers
