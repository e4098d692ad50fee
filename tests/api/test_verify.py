"""POST /api/v1/proofs/verify: a verdict on whatever the other routes returned, and on what they never would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from app.api import verify as verifying
from app.checker import Refused
from app.core.hexadecimal import to_hex
from tests.api.exchanges import Asked, asked
from tests.api.fakes import RecordedHouse
from tests.chain.recorded_chain import RecordedChain
from tests.fakes import settle

VERIFY = "/api/v1/proofs/verify"
NATIVE = [
    "/api/v1/proofs/11/blocks/19426587/transactions/3",
    "/api/v1/proofs/11/blocks/19426587/receipts/3",
    "/api/v1/proofs/11/blocks/19426587/logs/3",
    "/api/v1/proofs/11/blocks/22869878/receipts/0",
]
USC = "/api/v1/proof/2/1000004/0"
FIELDS = ["valid", "reason", "node", "nibble", "field", "expected", "found", "message"]


async def verdict(client: httpx2.AsyncClient, body: object) -> dict[str, Any]:
    response = await client.post(VERIFY, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = response.json()
    assert list(found) == FIELDS
    return found


def anchor_of(house: RecordedHouse) -> dict[str, Any]:
    anchors = house.by_name["mainnet-early"].anchors
    assert anchors is not None
    return {"height": 1000010, "digest": to_hex(anchors.attestations[1000010])}


@pytest.mark.parametrize("path", NATIVE)
async def test_what_a_native_route_returned_is_valid(client: httpx2.AsyncClient, path: str) -> None:
    proof = (await client.get(path)).json()
    for body in (proof, {"proof": proof}):
        found = await verdict(client, body)
        assert (found["valid"], found["reason"], found["field"]) == (True, "Valid", None)
    found = await verdict(client, proof | {"value": "0x00"})
    assert (found["valid"], found["reason"], found["field"]) == (False, "ValueMismatch", "value")


async def test_what_the_compatible_route_returned_is_valid_under_its_anchor(
    client: httpx2.AsyncClient, house: RecordedHouse
) -> None:
    proof, anchor = (await client.get(USC)).json(), anchor_of(house)
    for body in (proof | {"anchor": anchor}, {"proof": proof, "anchor": anchor}):
        assert (await verdict(client, body))["valid"]
    without = await verdict(client, proof)
    assert (without["valid"], without["reason"], without["field"]) == (False, "AnchorMissing", "anchor")
    other = await verdict(client, proof | {"anchor": anchor | {"digest": "0x" + "11" * 32}})
    assert (other["valid"], other["reason"]) == (False, "AnchorMismatch")


@pytest.mark.parametrize("query", ["", "?split=1", "?split=2"])
async def test_what_a_batch_route_returned_is_valid_whole_and_split(
    client: httpx2.AsyncClient, house: RecordedHouse, query: str
) -> None:
    asked = [
        {"headerNumber": 1000004, "txIndexes": [0, 1]},
        {"headerNumber": 1000006},
        {"headerNumber": 1000010, "txIndexes": [0]},
    ]
    batch = (await client.post(f"/api/v1/proof-batch/2{query}", json=asked)).json()
    assert ("batches" in batch) == bool(query)
    assert (await verdict(client, {"proof": batch, "anchor": anchor_of(house)}))["valid"]
    assert (await verdict(client, {"proof": batch | {"chainKey": "2"}, "anchor": anchor_of(house)}))[
        "field"
    ] == "chainKey"


async def test_absence_is_proven_in_the_raw_form(client: httpx2.AsyncClient) -> None:
    proof = (await client.get(NATIVE[1])).json()
    raw = {"kind": "trie", **{name: proof[name] for name in ("root", "key", "value", "nodes")}}
    assert (await verdict(client, raw))["valid"]
    assert (await verdict(client, raw | {"value": None}))["reason"] == "ValueMismatch"
    # The nodes end in a leaf or a branch that the longer key does not fit.
    absent = await verdict(client, raw | {"key": raw["key"] + "00", "value": None})
    assert (absent["valid"], absent["reason"]) == (True, "Absent")
    assert (await verdict(client, raw | {"key": raw["key"] + "00"}))["valid"] is False


@pytest.mark.parametrize(
    ("content", "media_type", "status", "code"),
    [
        (b"{}", "application/json", 400, "InvalidParameter"),
        (b"[]", "application/json", 400, "InvalidParameter"),
        (b'{"proof": 1}', "application/json; charset=utf-8", 400, "InvalidParameter"),
        (b"{", "application/json", 400, "MalformedJson"),
        (b"", "application/json", 400, "MalformedJson"),
        (b"\xff\xfe", "application/json", 400, "MalformedJson"),
        (b"{}", "text/plain", 415, "UnsupportedMediaType"),
        (b"{}", "", 415, "UnsupportedMediaType"),
        (b"[" * (2 * 1024 * 1024 + 1), "application/json", 413, "PayloadTooLarge"),
    ],
)
async def test_what_is_no_proof_at_all_is_refused(
    client: httpx2.AsyncClient, content: bytes, media_type: str, status: int, code: str
) -> None:
    response = await client.post(VERIFY, content=content, headers={"Content-Type": media_type})
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"


async def test_a_proof_that_only_one_verifier_accepts_is_a_fault_of_ours(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Refused("RootMismatch", "root")

    proof, usc, anchor = (await client.get(NATIVE[1])).json(), (await client.get(USC)).json(), anchor_of(house)
    raw = {"kind": "trie", **{name: proof[name] for name in ("root", "key", "value", "nodes")}}
    for check in ("check_native", "check_usc", "check_trie"):
        monkeypatch.setattr(verifying.checker, check, refuse)
    for kind, body in (("receipt", proof), ("usc", usc | {"anchor": anchor}), ("trie", raw)):
        response = await client.post(VERIFY, json=body)
        assert (response.status_code, response.json()["code"]) == (500, "SelfCheckFailed")
        assert "valid" not in response.json()
        assert house.counted("copath_selfcheck_failures_total", chain="", kind=kind) == 1
    # What the first refuses is refused, whoever would accept it.
    assert (await verdict(client, proof | {"value": "0x00"}))["reason"] == "ValueMismatch"


# --- what it costs others -----------------------------------------------------------------------------------------------


@pytest.fixture
async def running() -> AsyncIterator[Asked]:
    async with asked(RecordedChain(), process=1) as house:
        yield house


LARGE = json.dumps(
    {"kind": "trie", "root": "0x" + "00" * 32, "key": "0x", "value": "0x", "nodes": ["0x"] * 39_000}
).encode()
JSON = [(b"content-type", b"application/json")]


async def test_large_bodies_are_judged_off_the_loop_one_at_a_time(running: Asked) -> None:
    large = [running.ask(VERIFY, "POST", body=LARGE, headers=JSON) for _ in range(3)]
    turns = 0
    while not large[0].answered.is_set():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 20, "the loop went on while the body was judged"
    assert not large[2].answered.is_set()
    for each in large:
        assert (await each).json["reason"] == "RootMismatch"


async def test_too_many_large_bodies_are_refused_and_small_ones_are_not(running: Asked) -> None:
    large = [running.ask(VERIFY, "POST", body=LARGE, headers=JSON) for _ in range(verifying.MAX_WAITING + 3)]
    small = running.ask(VERIFY, "POST", body=b'{"kind": "trie"}', headers=JSON)
    assert (await small).json["reason"] == "MalformedField"
    answers = [(await each).status for each in large]
    assert sorted(set(answers)) == [200, 503]
    assert answers.count(200) >= verifying.MAX_WAITING
    refused = next(each for each in large if each.status == 503)
    assert refused.code == "Overloaded"
    assert "retry-after" in refused.headers


async def test_who_hangs_up_leaves_the_turn_to_the_next(running: Asked) -> None:
    first, second = (running.ask(VERIFY, "POST", body=LARGE, headers=JSON) for _ in range(2))
    for _ in range(10):
        await asyncio.sleep(0)
    first.hang_up()
    await first
    assert (await second).status == 200


async def test_a_short_body_waits_for_one_long_one_and_not_for_all(running: Asked) -> None:
    short = json.dumps({"kind": "trie", "root": "0x" + "00" * 32, "key": "0x", "value": "0x", "nodes": ["0x"] * 4_000})
    assert verifying.INLINE_BYTES < len(short) < len(LARGE)
    large = [running.ask(VERIFY, "POST", body=LARGE, headers=JSON) for _ in range(4)]
    for _ in range(5):
        await asyncio.sleep(0)
    late = await running.ask(VERIFY, "POST", body=short.encode(), headers=JSON)
    assert late.json["reason"] == "RootMismatch"
    assert sum(each.answered.is_set() for each in large) <= 2
    for each in large:
        assert (await each).status == 200


async def test_turns_are_handed_on_whoever_leaves_the_line() -> None:
    turns = verifying._Turns()
    await turns.acquire(1)
    order: list[int] = []

    async def one(size: int) -> None:
        await turns.acquire(size)
        order.append(size)
        turns.release()

    tasks = [asyncio.ensure_future(one(size)) for size in (5, 3, 4, 9)]
    await settle()
    assert turns.waiting == 4
    tasks[2].cancel()
    await settle()
    turns.release()
    tasks[1].cancel()  # its turn has come in this moment
    await settle()
    assert order == [5, 9]
    assert turns.waiting == 0
    await turns.acquire(7)
    turns.release()


async def test_it_takes_no_cold_place(running: Asked) -> None:
    running.house.door.process.limit = 0  # no room for anything cold
    assert (await running.ask(VERIFY, "POST", body=b'{"kind": "trie"}', headers=JSON)).status == 200
    assert running.metric("admission_rejected_total") == 0
