"""Whoever refuses, the client sees one body: routes, layers, the framework, and faults of ours."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from app.api import problems
from app.api.guard import MAX_BODY_BYTES, MAX_TARGET_BYTES, Guard, Limits
from app.core.errors import ContentInvalid, Overloaded
from app.core.hexadecimal import to_hex
from tests.api.fakes import RecordedHouse, anchored_chain, plain_chain
from tests.api.serving import serving

COMPATIBLE = "/api/v1/proof/2/1000004/0"
SECRET = "https://node.example/v2/SECRET-KEY"


def native(house: RecordedHouse) -> str:
    return f"/api/v1/proofs/modern/receipts/{to_hex(house.by_name['modern'].blocks[0].transaction_hash(0))}"


def assert_problem(response: httpx2.Response, status: int, code: str) -> None:
    body = response.json()
    assert response.status_code == body["status"] == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    assert {"code", "message", "retriable", "type", "title", "status", "detail", "instance"} <= set(body)
    assert body["code"] == code
    assert response.headers["x-request-id"] in body["instance"]


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/api/v1/proof/2/1000004",
        "/api/v1/proof/2/1000004/0/",
        "/api/v1/proofs/modern/receipts/",
        "/api/v1/chains/",
        "/livez/",
        "/healthz-anything",
    ],
)
async def test_B72_unknown_paths_are_problems(client: httpx2.AsyncClient, path: str) -> None:
    assert_problem(await client.get(path), 404, "NotFound")


@pytest.mark.parametrize("path", ["/api/v1/proofs/modern/multiproof"])
async def test_routes_that_do_not_exist_yet_are_not_found(client: httpx2.AsyncClient, path: str) -> None:
    assert_problem(await client.post(path, json=[]), 404, "NotFound")


@pytest.mark.parametrize("path", ["/livez", "/metrics", "/docs", "/openapi.json", "/api/v1/chains"])
async def test_B72_B65_wrong_methods_are_problems_with_allow(client: httpx2.AsyncClient, path: str) -> None:
    response = await client.post(path, json={})
    assert_problem(response, 405, "MethodNotAllowed")
    assert response.headers["allow"] == "GET, HEAD, OPTIONS"


async def test_wrong_methods_on_compatible_routes_keep_the_plain_body(client: httpx2.AsyncClient) -> None:
    response = await client.delete(COMPATIBLE)
    assert response.status_code == 405
    assert response.headers["content-type"] == "application/json"
    assert response.headers["allow"] == "GET, HEAD, OPTIONS"
    assert set(response.json()) == {"code", "message", "retriable"}


async def test_B72_oversized_paths_and_bodies(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    fits = "/" + "a" * (MAX_TARGET_BYTES - 1)
    assert_problem(await client.get(fits), 404, "NotFound")
    assert_problem(await client.get(fits + "a"), 413, "PayloadTooLarge")
    assert_problem(await client.get(native(house) + "?e=" + "1" * MAX_TARGET_BYTES), 413, "PayloadTooLarge")
    assert_problem(await client.post("/livez", content=b"x" * (MAX_BODY_BYTES + 1)), 413, "PayloadTooLarge")
    assert (await client.get("/api/v1/proof/2/" + "1" * MAX_TARGET_BYTES + "/0")).json()["code"] == "PayloadTooLarge"
    stranger = await client.get("/api/v1/proof/3/" + "1" * MAX_TARGET_BYTES + "/0")
    assert stranger.json()["code"] == "PayloadTooLarge", "nothing is read out of a path that is too long"
    assert house.by_name["modern"].looked_up == []


async def test_a_body_larger_than_announced_is_cut_off_while_it_is_read() -> None:
    async def reads_all(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(2 * MAX_BODY_BYTES // 65536):
            await receive()

    sent: list[Message] = []
    chunk = {"type": "http.request", "body": b"x" * 65536, "more_body": True}
    handed_out = 0

    async def receive() -> Message:
        nonlocal handed_out
        handed_out += len(chunk["body"])  # type: ignore[arg-type]
        return chunk

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
    await Guard(Limits(reads_all))(scope, receive, send)
    assert sent[0]["status"] == 413
    assert handed_out <= MAX_BODY_BYTES + 65536


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError(f"could not reach {SECRET}"),
        ContentInvalid("header_hash", SECRET),
        TimeoutError(SECRET),
        KeyError(SECRET),
        ExceptionGroup(SECRET, [ValueError(SECRET)]),
    ],
    ids=lambda fault: type(fault).__name__,
)
async def test_B72_a_fault_is_counted_logged_and_answered_without_its_text(
    client: httpx2.AsyncClient, house: RecordedHouse, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    for chain in house.served:
        chain.fails_with = fault
    with caplog.at_level(logging.INFO), house.counting("copath_unhandled_exceptions_total", source="asgi") as counted:
        problem = await client.get(native(house))
        plain = await client.get(COMPATIBLE)
    assert_problem(problem, 500, "Internal")
    assert plain.json() == {"code": "Internal", "message": "internal error", "retriable": False}
    assert counted == [2]
    assert "SECRET" not in problem.text + plain.text
    logged = [record for record in caplog.records if record.getMessage() == "unhandled_exception"]
    assert [record.type for record in logged] == [type(fault).__name__] * 2  # type: ignore[attr-defined]
    assert logged[0].request_id == problem.headers["x-request-id"]  # type: ignore[attr-defined]
    assert any("fakes.py" in frame for frame in logged[0].stack_frames)  # type: ignore[attr-defined]
    assert "SECRET" not in str([vars(record) for record in caplog.records])


async def test_a_fault_is_counted_before_it_is_logged(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the disk is full")

    handler = BrokenHandler()
    logging.getLogger("app.api.guard").addHandler(handler)
    try:
        house.by_name["modern"].fails_with = RuntimeError("fault")
        with house.counting("copath_unhandled_exceptions_total", source="asgi") as counted:
            response = await client.get(native(house))
    finally:
        logging.getLogger("app.api.guard").removeHandler(handler)
    assert counted[0] >= 1
    assert_problem(response, 500, "Internal")


async def test_errors_of_the_chain_keep_their_code_and_wait(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    house.by_name["modern"].fails_with = Overloaded("too many proof requests in flight; retry with back-off")
    response = await client.get(native(house))
    assert_problem(response, 503, "Overloaded")
    assert response.headers["retry-after"] in ("1", "2", "3")


async def test_a_layer_that_breaks_outside_the_routes_is_answered_too(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house.metrics, "http_requests_in_flight", None)
    with house.counting("copath_unhandled_exceptions_total", source="asgi") as counted:
        response = await client.get(native(house))
    assert_problem(response, 500, "Internal")
    assert counted == [1]


async def test_a_fault_after_the_first_byte_breaks_the_answer_off_and_is_counted_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("late")

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    with pytest.raises(RuntimeError, match="late"):
        await Guard(breaks)(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert [record.getMessage() for record in caplog.records].count("unhandled_exception") == 1


class Entry(BaseModel):
    height: int


async def test_B72_the_frameworks_own_refusals_wear_the_same_body() -> None:
    app = FastAPI(
        exception_handlers={
            HTTPException: problems.answer_http_exception,
            RequestValidationError: problems.answer_validation_error,
        }
    )

    @app.post("/entries")
    async def entries(entry: Entry) -> None: ...

    @app.get("/refused/{status}")
    async def refused(status: int) -> None:
        raise HTTPException(status, detail=SECRET if status >= 500 else "no")

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://copath") as client:
        not_json = await client.post("/entries", content=b"{", headers={"Content-Type": "application/json"})
        wrong = await client.post("/entries", json={"height": "high"})
        by_status = {
            status: (await client.get(f"/refused/{status}")).json()
            for status in (400, 401, 404, 405, 413, 415, 500, 503)
        }
        wrong_method = await client.put("/entries")
    assert (not_json.status_code, not_json.json()["code"]) == (400, "MalformedJson")
    assert (wrong.status_code, wrong.json()["code"]) == (400, "InvalidParameter")
    assert wrong.json()["message"].startswith("invalid parameter: body.height: ")
    assert {status: body["code"] for status, body in by_status.items()} == {
        400: "InvalidParameter",
        401: "Unauthorized",
        404: "NotFound",
        405: "MethodNotAllowed",
        413: "PayloadTooLarge",
        415: "UnsupportedMediaType",
        500: "Internal",
        503: "Internal",
    }
    assert "SECRET" not in str(by_status)
    assert wrong_method.headers["allow"] == "POST"


async def test_a_request_before_the_house_is_open_is_our_fault_and_says_nothing() -> None:
    from app.asgi import create_app
    from app.settings import Settings
    from app.settings.models import CorsSettings

    app = create_app(Settings.model_construct(cors=CorsSettings()))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://copath") as client:
        assert_problem(await client.get("/api/v1/chains"), 500, "Internal")
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).json()["reasons"] == ["starting"]
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/api/v1/health")).status_code == 200


TEMPLATES = (
    "/api/v1/proof/{}/{}/{}",
    "/api/v1/proof-by-tx/{}/{}",
    "/api/v1/attested-height/{}",
    "/api/v1/chains/{}",
    "/api/v1/proofs/modern/transactions/{}",
    "/api/v1/proofs/modern/logs/{}/{}",
    "/api/v1/proofs/{}/blocks/{}/receipts/{}",
    "/api/v1/proofs/modern/blocks/{}/logs/{}",
    "/{}",
)
WORDS = st.one_of(
    st.text(min_size=1, max_size=70),
    st.integers(-(2**70), 2**70).map(str),
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.sampled_from(["2", "11", "modern", "mainnet-early", "1000004", "0x10", "19426587", "0", ".", "..", "%", "\x00"]),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(TEMPLATES), st.lists(WORDS, min_size=3, max_size=3), st.text(max_size=40))
def test_B72_no_text_in_a_url_makes_a_fault(template: str, words: list[str], query: str) -> None:
    path = template.format(*(quote(word, safe="") for word in words))

    async def ask() -> httpx2.Response:
        async with serving(RecordedHouse([plain_chain(), anchored_chain()])) as client:
            return await client.get(f"{path}?finality={quote(query)}&{quote(query, safe='=&')}")

    response = asyncio.run(ask())
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert response.json()["code"] in problems.PROBLEMS


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/api/v1/proof-by-tx/2/0xzz", "bad_tx_hash"),
        ("/api/v1/proof/2/-1/0", "bad_block"),
        ("/api/v1/proof/2/1/x", "bad_index"),
        ("/api/v1/proof/NOT/0/0", "bad_chain"),
        ("/api/v1/proof/999/0/0", "unknown_chain"),
        ("/api/v1/proofs/modern/receipts/" + "ab" * 32 + "?finality=soon", "bad_query"),
        ("/" + "a" * MAX_TARGET_BYTES, "too_large"),
    ],
)
async def test_rejected_input_is_counted_by_reason_at_its_origin(
    client: httpx2.AsyncClient, house: RecordedHouse, path: str, reason: str
) -> None:
    counter = house.metrics.rejected_inputs_total.labels(reason)
    before = counter._value.get()
    assert (await client.get(path)).status_code in (400, 413)
    assert counter._value.get() == before + 1
