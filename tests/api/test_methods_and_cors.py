"""HEAD, OPTIONS and browsers, on every route there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from app.api.visit import RouteTable
from app.core.errors import Draining
from app.core.hexadecimal import to_hex
from tests.api.fakes import RecordedHouse
from tests.api.serving import serving
from tests.corpus_files import recorded

HEIGHT = 19426587
TX_HASH = recorded("full", f"mainnet_{HEIGHT}")["block"]["transactions"][5]["hash"]

EVERY_GET = [
    "/",
    "/livez",
    "/readyz",
    "/health",
    "/metrics",
    "/docs",
    "/docs/swagger-ui-bundle.js",
    "/docs/swagger-ui.css",
    "/docs/favicon.png",
    "/openapi.json",
    "/api/swagger",
    "/api/swagger/",
    "/api/swagger/openapi.json",
    "/api/v1/health",
    "/api/v1/chains",
    "/api/v1/chains/modern",
    "/api/v1/attested-height/2",
    "/api/v1/proof/2/1000004/0",
    "/api/v1/proof-by-tx/2/" + to_hex(bytes(32)),
    f"/api/v1/proofs/modern/transactions/{TX_HASH}",
    f"/api/v1/proofs/modern/receipts/{TX_HASH}",
    f"/api/v1/proofs/modern/logs/{TX_HASH}/0",
    f"/api/v1/proofs/modern/blocks/{HEIGHT}/transactions/0",
    f"/api/v1/proofs/modern/blocks/{HEIGHT}/receipts/0",
    f"/api/v1/proofs/modern/blocks/{HEIGHT}/logs/0",
]


def stable(headers: httpx2.Headers) -> dict[str, str]:
    """Headers without those that name one answer."""
    return {name: value for name, value in headers.items() if name not in ("x-request-id", "retry-after")}


@pytest.mark.parametrize("path", EVERY_GET)
async def test_B65_head_answers_like_get_without_a_body(
    client: httpx2.AsyncClient, house: RecordedHouse, path: str
) -> None:
    await client.get(path)  # so that both of the next find the block settled
    get, head = await client.get(path), await client.head(path)
    assert head.status_code == get.status_code
    assert head.content == b""
    got, headed = stable(get.headers), stable(head.headers)
    if path in ("/metrics", "/api/v1/health"):  # another moment, other figures
        assert got.pop("content-length")
        assert headed.pop("content-length")
    assert headed == got
    assert int(get.headers["content-length"]) == len(get.content)


@pytest.mark.parametrize("path", EVERY_GET)
async def test_B65_options_tells_what_a_path_answers(client: httpx2.AsyncClient, path: str) -> None:
    response = await client.options(path)
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers["allow"] == "GET, HEAD, OPTIONS"


async def test_the_list_above_names_every_route(client: httpx2.AsyncClient, route_table: RouteTable) -> None:
    found = {route_table.find(path)[0] for path in EVERY_GET}
    assert None not in found
    assert found == {sign for sign in route_table.signs if "GET" in sign.methods}


EXPOSED = {"etag", "retry-after", "ratelimit", "ratelimit-policy", "x-request-id", "content-location"}


def assert_readable(response: httpx2.Response, origin: str = "*") -> None:
    assert response.headers["access-control-allow-origin"] == origin
    exposed = {name.strip().lower() for name in response.headers["access-control-expose-headers"].split(",")}
    assert exposed == EXPOSED


def every_kind_of_answer(house: RecordedHouse) -> Iterator[tuple[str, str, dict[str, str], int]]:
    modern: Any = house.by_name["modern"]
    yield "GET", "/api/v1/proof/2/1000004/0", {}, 200
    yield "GET", "/api/v1/proof/2/1000004/0", {"If-None-Match": "*"}, 304
    yield "GET", "/nothing", {}, 404
    yield "GET", "/api/v1/proof/3/1/0", {}, 400
    yield "POST", "/livez", {}, 405
    yield "GET", "/" + "x" * 3000, {}, 413
    yield "GET", "/api/v1/proof/2/1000019/0", {}, 422
    yield "GET", "/metrics", {}, 200
    modern.fails_with = RuntimeError("fault")
    yield "GET", f"/api/v1/proofs/modern/receipts/{TX_HASH}", {}, 500
    modern.fails_with = Draining("this server is shutting down")
    yield "GET", f"/api/v1/proofs/modern/receipts/{TX_HASH}", {}, 503


async def test_B66_every_answer_can_be_read_by_a_browser(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    for method, path, headers, status in every_kind_of_answer(house):
        response = await client.request(method, path, headers={"Origin": "https://dapp.example", **headers})
        assert response.status_code == status, path
        assert_readable(response)
        assert response.headers["x-request-id"]


async def test_B66_a_fault_in_an_outer_layer_can_be_read_too(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house.metrics, "http_requests_in_flight", None)
    response = await client.get("/api/v1/chains", headers={"Origin": "https://dapp.example"})
    assert response.status_code == 500
    assert_readable(response)


async def test_only_configured_origins_may_read(house: RecordedHouse) -> None:
    async with serving(house, origins=["https://dapp.example"]) as client:
        known = await client.get("/nothing", headers={"Origin": "https://dapp.example"})
        stranger = await client.get("/nothing", headers={"Origin": "https://other.example"})
        none = await client.get("/nothing")
        preflight = {"Origin": "https://other.example", "Access-Control-Request-Method": "GET"}
        refused = await client.options("/api/v1/chains", headers=preflight)
    assert_readable(known, "https://dapp.example")
    assert "origin" in known.headers["vary"].lower()
    assert "access-control-allow-origin" not in stranger.headers
    assert "access-control-allow-origin" not in none.headers
    assert refused.status_code == 400
    assert refused.json()["code"] == "InvalidParameter"
    assert refused.headers["content-type"] == "application/problem+json"
    assert "access-control-allow-origin" not in refused.headers


async def test_preflights_are_answered_at_the_door(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    asked = {
        "Origin": "https://dapp.example",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "content-type,x-api-key",
    }
    response = await client.options(f"/api/v1/proofs/modern/receipts/{TX_HASH}", headers=asked)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "*"
    assert "GET" in response.headers["access-control-allow-methods"]
    assert "x-api-key" in response.headers["access-control-allow-headers"]
    assert house.by_name["modern"].looked_up == []
    assert house.counted("copath_proof_outcome_total", outcome="served", chain="modern") == 0


@pytest.mark.parametrize(("path", "others"), [("/metrics", ["Accept", "Accept-Encoding"]), ("/livez", [])])
async def test_caches_are_told_that_a_browser_may_be_answered_otherwise(
    client: httpx2.AsyncClient, path: str, others: list[str]
) -> None:
    for headers in ({}, {"Origin": "https://dapp.example"}):
        answer = await client.get(path, headers=headers)
        assert answer.headers.get_list("vary") == [", ".join([*others, "Origin"])]


def test_a_table_of_routes_knows_how_many_segments_each_has() -> None:
    routes = FastAPI(openapi_url=None)

    @routes.get("/{anything:path}")
    async def route() -> None: ...

    with pytest.raises(TypeError, match="any number of segments"):
        RouteTable(routes.routes)
