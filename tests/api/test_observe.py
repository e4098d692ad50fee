"""Request ids, log lines and HTTP metrics: bounded labels, one line a request, nothing left in flight."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import httpx2
import pytest
from starlette.types import Message, Receive, Scope, Send

from app.api.observe import KINDS, HttpMetrics
from app.api.visit import REQUEST_ID, RouteSign, RouteTable, Visit, begin
from app.core.hexadecimal import to_hex
from app.metrics.labels import METHODS, OUTCOMES, STATUS_CLASSES
from tests.api.fakes import RecordedHouse
from tests.fakes import Hold, settle

RECEIPTS = "/api/v1/proofs/{chain}/receipts/{tx_hash}"


def receipts_path(house: RecordedHouse, index: int = 0) -> str:
    return f"/api/v1/proofs/modern/receipts/{to_hex(house.by_name['modern'].blocks[0].transaction_hash(index))}"


def lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == "copath.access"]


def series(house: RecordedHouse) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in house.metrics.registry.collect()
        for sample in family.samples
    }


@pytest.mark.parametrize("inbound", ["abc", "A" * 128, "!~", "trace-00/1;x=2"])
async def test_a_printable_request_id_is_kept(client: httpx2.AsyncClient, inbound: str) -> None:
    for path in ("/api/v1/chains", "/livez", "/nothing"):
        assert (await client.get(path, headers={"X-Request-Id": inbound})).headers["x-request-id"] == inbound


@pytest.mark.parametrize("inbound", [b"", b"a b", b"A" * 129, b"\xe9", b"a\tb"])
async def test_any_other_request_id_is_replaced(client: httpx2.AsyncClient, inbound: bytes) -> None:
    response = await client.get("/api/v1/chains", headers=[(b"X-Request-Id", inbound)])
    assert uuid.UUID(response.headers["x-request-id"]).version == 4
    assert response.headers.get_list("x-request-id") == [response.headers["x-request-id"]]


@pytest.mark.parametrize(
    ("path", "status", "outcome", "chain"),
    [
        ("/api/v1/proof/2/1000004/0", 200, "served", "mainnet-early"),
        ("/api/v1/proof/2/1000004/7", 400, "TxIndexOutOfBounds", "mainnet-early"),
        ("/api/v1/proof/5/1000004/7", 400, "InvalidChainKey", "5"),
        ("/nothing", 404, "NotFound", None),
    ],
)
async def test_B50_one_line_a_request_with_its_id(
    client: httpx2.AsyncClient,
    caplog: pytest.LogCaptureFixture,
    path: str,
    status: int,
    outcome: str,
    chain: str | None,
) -> None:
    with caplog.at_level(logging.INFO):
        response = await client.get(path)
    (line,) = lines(caplog)
    assert line.request_id == response.headers["x-request-id"]
    assert (line.status, line.outcome, getattr(line, "chain", None)) == (status, outcome, chain)
    assert (line.method, line.sent_bytes) == ("GET", len(response.content))
    assert line.duration_s > 0


HASH = "AB" * 32
QUESTIONS: list[tuple[str, dict[str, object]]] = [
    (f"/api/v1/proofs/modern/receipts/0X{HASH}", {"kind": "receipt", "chain": "modern", "tx_hash": f"0x{'ab' * 32}"}),
    (
        f"/api/v1/proofs/2/logs/{HASH}/3?index=block&finality=safe",
        {"kind": "log", "chain": "mainnet-early", "log_index": 3, "finality": "safe", "log_index_in": "block"},
    ),
    ("/api/v1/proofs/modern/blocks/0x10/transactions/07", {"kind": "transaction", "height": 16, "tx_index": 7}),
    (f"/api/v1/proofs/modern/blocks/{HASH}/logs/1", {"kind": "log", "block_hash": f"0x{'ab' * 32}", "log_index": 1}),
    ("/api/v1/proof/2/1000004/0", {"kind": "usc", "chain": "mainnet-early", "height": 1000004, "tx_index": 0}),
    (f"/api/v1/proof-by-tx/2/{HASH}", {"kind": "usc", "tx_hash": f"0x{'ab' * 32}"}),
    ("/api/v1/proof/99/1000004/0", {"kind": "usc", "chain": "99", "height": 1000004}),
    ("/api/v1/proofs/nowhere/receipts/00", {"kind": "receipt", "chain": "nowhere"}),
]


@pytest.mark.parametrize(("path", "told"), QUESTIONS, ids=[path for path, _ in QUESTIONS])
async def test_the_line_tells_what_was_asked_for(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture, path: str, told: dict[str, object]
) -> None:
    with caplog.at_level(logging.INFO):
        await client.get(path)
    (line,) = lines(caplog)
    assert {name: vars(line).get(name) for name in told} == told


async def test_the_line_of_a_batch_tells_its_heights_or_hashes(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    hashes = [f"{number:064x}" for number in range(12)]
    with caplog.at_level(logging.INFO):
        queries = [{"headerNumber": 1000005, "txIndexes": [1, 0]}, {"headerNumber": 1000004}]
        await client.post("/api/v1/proof-batch/2", json=queries)
        await client.post("/api/v1/proof-batch-by-tx/2", json=hashes)
    by_position, by_hash = (vars(line) for line in lines(caplog))
    assert (by_position["kind"], by_position["heights"]) == ("usc-batch", [1000004, 1000005])
    assert (by_position["transactions"], by_hash["transactions"]) == (2, 12)
    assert by_hash["tx_hashes"] == [f"0x{each}" for each in hashes[:10]]


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/proofs/modern/receipts/copath_0123456789ab_SECRET",
        "/api/v1/proofs/SECRET/receipts/00",
        "/api/v1/proofs/modern/blocks/SECRET/logs/SECRET?finality=SECRET&index=SECRET&key=SECRET",
        "/api/v1/proof/2/SECRET/SECRET",
        "/api/v1/proof-by-tx/2/SECRET",
        "/api/v1/proofs/modern/blocks/" + "9" * 21 + "/logs/SECRET",
    ],
)
async def test_text_of_another_form_is_not_logged(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    with caplog.at_level(logging.INFO):
        await client.get(path)
    (line,) = lines(caplog)
    assert "SECRET" not in str(vars(line))


def test_every_proof_route_has_a_kind(route_table: RouteTable) -> None:
    assert {sign.template for sign in route_table.signs if sign.template.startswith("/api/v1/proof")} == set(KINDS)


async def test_a_path_that_is_no_route_is_cut(client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await client.get("/" + "nothing" * 100)
    (unknown,) = lines(caplog)
    assert unknown.route == "other"
    assert len(unknown.path) < 80


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/metrics"])
async def test_probes_are_neither_logged_nor_counted(
    client: httpx2.AsyncClient, house: RecordedHouse, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    with caplog.at_level(logging.INFO):
        await client.get(path)
    assert lines(caplog) == []
    labels = {"method": "GET", "route": path, "status_class": "2xx"}
    assert house.counted("copath_http_requests_total", **labels) == 0


async def test_concurrent_requests_never_share_an_id(
    client: httpx2.AsyncClient, house: RecordedHouse, caplog: pytest.LogCaptureFixture
) -> None:
    house.by_name["modern"].held = hold = Hold()
    with caplog.at_level(logging.INFO):
        asked = [asyncio.create_task(client.get(receipts_path(house, index))) for index in range(8)]
        await settle()
        assert hold.waiting == house.counted("copath_http_requests_in_flight") == 8
        hold.release()
        answers = await asyncio.gather(*asked)
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == 8
    assert {line.request_id for line in lines(caplog)} == ids
    assert REQUEST_ID.get() is None


async def test_other_rooms_can_name_the_request(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    monkeypatch.setattr(house.by_name["modern"], "status", lambda: seen.append(REQUEST_ID.get()) or {})  # type: ignore[func-returns-value]
    response = await client.get("/api/v1/chains/modern")
    assert seen == [response.headers["x-request-id"]]
    assert REQUEST_ID.get() is None, "the next line belongs to no request"


async def test_B63_distinct_hashes_add_no_series(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    async def ask(number: int) -> None:
        tx_hash = number.to_bytes(32, "big").hex()
        await client.get(f"/api/v1/proofs/modern/receipts/{tx_hash}", headers={"X-Request-Id": str(number)})
        await client.get(f"/api/v1/proof-by-tx/2/{tx_hash}")
        await client.get(f"/api/v1/proofs/modern/blocks/{number}/logs/{number}")
        await client.request(f"BREW{number}", f"/no/such/{number}")
        await client.get(f"/api/v1/proof/{number + 100}/{number}/0")

    await ask(0)
    before = series(house)
    for number in range(1, 200):
        await ask(number)
    assert series(house) == before


async def test_B63_labels_come_from_closed_sets(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    await client.get(receipts_path(house))
    await client.request("BREW", receipts_path(house))
    await client.get("/no/such/path")
    templates = {"other"} | {
        labels["route"]
        for name, pairs in series(house)
        if name == "copath_http_requests_total" and "{" in (labels := dict(pairs))["route"]
    }
    for name, pairs in series(house):
        labels = dict(pairs)
        if name == "copath_http_requests_total":
            assert labels["method"] in METHODS
            assert labels["status_class"] in STATUS_CLASSES
            assert labels["route"] in templates or "{" not in labels["route"]
        if name == "copath_proof_outcome_total":
            assert labels["outcome"] in OUTCOMES
            assert labels["chain"] in ("", "modern", "mainnet-early")
    assert house.counted("copath_http_requests_total", method="other", route=RECEIPTS, status_class="4xx") == 1
    assert house.counted("copath_http_requests_total", method="GET", route="other", status_class="4xx") == 1


async def test_every_route_has_its_series_from_the_start(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    assert (
        house.metrics.registry.get_sample_value(
            "copath_http_requests_total", {"method": "GET", "route": RECEIPTS, "status_class": "5xx"}
        )
        == 0
    )


async def test_a_request_that_is_given_up_leaves_nothing_in_flight(
    client: httpx2.AsyncClient, house: RecordedHouse, caplog: pytest.LogCaptureFixture
) -> None:
    house.by_name["modern"].held = hold = Hold()
    with caplog.at_level(logging.INFO):
        asked = asyncio.create_task(client.get(receipts_path(house)))
        await hold.reached()
        assert house.counted("copath_http_requests_in_flight") == 1
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    assert house.counted("copath_http_requests_in_flight") == 0
    assert house.counted("copath_http_requests_total", method="GET", route=RECEIPTS, status_class="error") == 1
    assert house.counted("copath_proof_outcome_total", outcome="cancelled", chain="modern") == 1
    (line,) = lines(caplog)
    assert (line.status, line.outcome) == (None, "cancelled")


async def test_an_answer_that_breaks_off_was_not_served(house: RecordedHouse) -> None:
    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise asyncio.CancelledError

    async def send(message: Message) -> None:
        visit.status = message["status"]

    async def receive() -> Message:
        raise AssertionError("nobody reads")

    visit = Visit("id", "GET", RouteSign(RECEIPTS, frozenset({"GET"})), chain=house.by_name["modern"])
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "state": {"house": house}}
    begin(scope, visit)
    with pytest.raises(asyncio.CancelledError):
        await HttpMetrics(half)(scope, receive, send)
    assert house.counted("copath_proof_outcome_total", outcome="cancelled", chain="modern") == 1


async def test_another_house_counts_for_itself(house: RecordedHouse) -> None:
    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        pass

    async def unused(*_: Any) -> Any:
        raise AssertionError("nobody reads or sends")

    layer, other = HttpMetrics(nothing), RecordedHouse(house.served)
    for opened in (house, other, house):
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "state": {"house": opened}}
        begin(scope, Visit("id", "GET", RouteSign(RECEIPTS, frozenset({"GET"})), chain=house.by_name["modern"]))
        await layer(scope, unused, unused)
    counted = [
        each.counted("copath_http_requests_total", method="GET", route=RECEIPTS, status_class="error")
        for each in (house, other)
    ]
    assert counted == [2, 1]


async def test_every_proof_request_has_exactly_one_outcome(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    modern = house.by_name["modern"]
    for path in (
        receipts_path(house),
        receipts_path(house) + "?finality=x",
        "/api/v1/proofs/nope/receipts/00",
        "/api/v1/proof/2/1000004/0",
        "/api/v1/proof/2/1000005/99",
        "/api/v1/attested-height/2",
        "/api/v1/proof/no/such",
    ):
        await client.get(path)
        await client.head(path)
        await client.post(path)
        await client.options(path)
    modern.fails_with = RuntimeError("fault")
    await client.get(receipts_path(house))
    modern.fails_with, modern.held = None, Hold()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await client.get(receipts_path(house))

    def total(name: str, prefix: str = "") -> float:
        return sum(
            sample.value
            for family in house.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and sample.labels.get("route", "").startswith(prefix)
        )

    requests = total("copath_http_requests_total", "/api/v1/proof")
    assert requests == total("copath_proof_outcome_total") > 20


async def test_served_proofs_are_timed_by_where_they_came_from(
    client: httpx2.AsyncClient, house: RecordedHouse
) -> None:
    for _ in range(3):
        await client.get(receipts_path(house))
    await client.get(receipts_path(house) + "00")
    assert house.counted("copath_proof_duration_seconds_count", cache="miss") == 1
    assert house.counted("copath_proof_duration_seconds_count", cache="hit") == 2
    assert house.counted("copath_last_proof_timestamp_seconds") > 1_600_000_000
