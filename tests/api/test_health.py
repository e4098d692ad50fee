"""Probes and health: what each of them judges, and what it never judges."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx2
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from app.api import health
from tests.api.fakes import RecordedHouse
from tests.api.serving import serving
from tests.api.test_consumers import Known
from tests.fakes import Hold, settle


async def ready(client: httpx2.AsyncClient) -> tuple[int, list[str]]:
    response = await client.get("/readyz")
    assert response.json()["ready"] is (response.status_code == 200)
    return response.status_code, response.json()["reasons"]


async def test_all_is_well(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/livez")).content == b'{"status":"alive"}'
    assert (await client.get("/health")).content == b'{"status":"ok"}'
    assert await ready(client) == (200, [])
    for path in ("/livez", "/health", "/readyz", "/metrics", "/api/v1/health"):
        assert (await client.get(path)).headers["cache-control"] == "no-store"


async def test_B68_liveness_judges_this_process_only(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    for chain in house.served:
        chain.servable, chain.reasons = False, ("no upstream",)
    house.draining = True
    assert (await client.get("/livez")).status_code == 200
    house.heartbeat_age_s = 4.9
    assert (await client.get("/livez")).status_code == 200
    house.heartbeat_age_s = 5.1
    assert (await client.get("/livez")).status_code == 503
    house.heartbeat_age_s, house.builder_healthy = 0.0, False
    assert (await client.get("/livez")).status_code == 503


async def test_B68_one_servable_chain_is_enough(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    down = house.by_name["modern"]
    down.servable, down.reasons = False, ("no head seen yet", "chain id not known yet")
    response = await client.get("/readyz")
    assert response.status_code == 200
    assert response.json()["chains"] == {
        "mainnet-early": {"servable": True, "reasons": []},
        "modern": {"servable": False, "reasons": ["chain id not known yet", "no head seen yet"]},
    }


async def test_who_cannot_tell_whose_a_key_is_and_serves_nobody_without_one_is_not_ready(
    client: httpx2.AsyncClient, house: RecordedHouse
) -> None:
    house.keys = Known(known=False)
    assert await ready(client) == (200, []), "everybody is served without one"
    house.keys.awaited = True
    assert await ready(client) == (503, ["API keys cannot be checked yet"])


async def test_B68_reasons_are_stable_and_per_chain(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    for chain in house.served:
        chain.servable, chain.reasons = False, ("b", "a")
    expected = ["no chain is servable", "mainnet-early: a", "mainnet-early: b", "modern: a", "modern: b"]
    assert await ready(client) == (503, expected)
    assert await ready(client) == (503, expected)
    house.draining, house.loop_lag_s = True, 1.5
    assert await ready(client) == (503, ["draining", "event loop lags", *expected])
    house.started = False
    assert await ready(client) == (503, ["starting"])


async def test_readiness_has_the_reference_servers_fields(client: httpx2.AsyncClient) -> None:
    body = (await client.get("/readyz")).json()
    assert list(body) == [
        "ready",
        "reasons",
        "eth_rpc_connected",
        "cc3_finalized_height",
        "cc3_finalized_age_seconds",
        "cc3_snapshot_height",
        "chains",
    ]


async def test_a_heartbeat_that_has_stopped_is_a_reason(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    assert await ready(client) == (200, [])
    house.heartbeat_age_s = 6.0
    assert await ready(client) == (503, ["heartbeat has stopped"])
    assert (await client.get("/livez")).status_code == 503


async def test_a_lagging_loop_is_not_ready_but_alive(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    house.loop_lag_s = 1.1
    assert (await ready(client))[0] == 503
    assert (await client.get("/livez")).status_code == 200


@pytest.mark.parametrize(("state", "reason"), [({"draining": True}, "draining"), ({"started": False}, "starting")])
async def test_load_balancers_are_told_to_go_away(
    client: httpx2.AsyncClient, house: RecordedHouse, state: dict[str, Any], reason: str
) -> None:
    for name, value in state.items():
        setattr(house, name, value)
    response = await client.get("/health")
    assert response.status_code == 503
    assert response.json() == {"status": "unhealthy", "reason": reason}


async def test_compat_health_is_always_200(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    well = (await client.get("/api/v1/health")).json()
    assert (well["status"], well["ready"], well["not_ready_reasons"]) == ("healthy", True, [])
    for chain in house.served:
        chain.servable = False
    house.draining = True
    response = await client.get("/api/v1/health")
    assert response.status_code == 200
    body = response.json()
    assert (body["status"], body["ready"], body["eth_rpc_connected"]) == ("degraded", False, None)
    assert body["not_ready_reasons"][0] == "draining"
    assert {"cc3_rpc_connected", "cc3_cache_fresh", "cc3_cache_age_seconds", "uptime_seconds"} <= set(body)
    assert {"cc3_silent_recoveries", "chains"} <= set(body)
    assert "cc3_finalized_height" not in body, "no chain reads Creditcoin"


async def test_compat_health_is_degraded_while_anchors_are_missing(house: RecordedHouse) -> None:
    anchored = house.by_name["mainnet-early"]
    assert anchored.anchors is not None
    anchored.anchors.attestations.drop_above(anchored.anchors.genesis)
    async with serving(house) as client:
        body = (await client.get("/api/v1/health")).json()
    assert (body["status"], body["cc3_rpc_connected"], body["eth_rpc_connected"]) == ("degraded", None, None)


WELL = {"name": "primary", "state": "ok", "breaker": "closed"}
STATES: list[tuple[list[list[dict[str, object]]], bool | None]] = [
    ([[], []], None),
    ([[WELL], []], True),
    ([[WELL], [WELL]], True),
    ([[WELL], [{**WELL, "state": "limited"}]], True),
    ([[WELL], [{**WELL, "breaker": "open"}, WELL]], True),
    ([[WELL], [{**WELL, "breaker": "open"}]], False),
    ([[WELL], [{**WELL, "breaker": "half-open"}]], False),
    ([[WELL], [{**WELL, "state": "unverified"}]], False),
    ([[WELL], [{**WELL, "state": "denied"}, {**WELL, "state": "wrong-chain"}]], False),
    ([[WELL], [{**WELL, "state": "astray"}]], False),
]


@pytest.mark.parametrize(("upstreams", "connected"), STATES)
async def test_the_nodes_are_connected_if_each_chain_has_one_that_answers(
    client: httpx2.AsyncClient,
    house: RecordedHouse,
    upstreams: list[list[dict[str, object]]],
    connected: bool | None,
) -> None:
    for chain, listed in zip(house.served, upstreams, strict=True):
        chain.upstreams = listed
    compat = (await client.get("/api/v1/health")).json()
    assert (await client.get("/readyz")).json()["eth_rpc_connected"] is compat["eth_rpc_connected"] is connected
    assert compat["status"] == ("degraded" if connected is False else "healthy")


@pytest.mark.parametrize(
    ("reading", "connected"),
    [
        ({"source": "self"}, None),
        ({"source": "static", "state": "stale", "reason": "a file"}, None),
        ({"source": "creditcoin", "state": "ok", "ageSeconds": 3.0}, True),
        ({"source": "creditcoin", "state": "ok", "ageSeconds": 30.0, "reason": "no answer in time"}, False),
        ({"source": "creditcoin", "state": "stale", "ageSeconds": 300.0, "reason": "no answer in time"}, False),
        ({"source": "creditcoin", "state": "unread"}, False),
        ({"source": "creditcoin", "state": "refused", "reason": "the chain is not registered"}, True),
    ],
)
async def test_creditcoin_is_connected_if_it_answered_the_last_reading(
    house: RecordedHouse, monkeypatch: pytest.MonkeyPatch, reading: dict[str, object], connected: bool | None
) -> None:
    anchored = house.by_name["mainnet-early"]
    listed = {**anchored.status(), "anchors": {"attestedHeight": 1000018, **reading}}
    monkeypatch.setattr(anchored, "status", lambda: listed)
    async with serving(house) as client:
        assert (await client.get("/api/v1/health")).json()["cc3_rpc_connected"] is connected


@pytest.mark.parametrize(("state", "healthy"), [("ok", True), ("stale", False), ("refused", False)])
async def test_compat_health_tells_how_old_what_creditcoin_said_is(
    house: RecordedHouse, monkeypatch: pytest.MonkeyPatch, state: str, healthy: bool
) -> None:
    anchored = house.by_name["mainnet-early"]
    listed = anchored.status()
    told = {**listed["anchors"], "state": state, "ageSeconds": 181.7}  # type: ignore[dict-item]  # a mapping, as listed
    monkeypatch.setattr(anchored, "status", lambda: {**listed, "anchors": told})
    async with serving(house) as client:
        body = (await client.get("/api/v1/health")).json()
    assert (body["cc3_cache_fresh"], body["cc3_cache_age_seconds"]) == (healthy, 181)
    assert body["status"] == ("healthy" if healthy else "degraded")


async def test_the_block_of_creditcoin_that_was_read_is_told_the_oldest_of_several(
    house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: dict[int, dict[str, object]] = {2: {"asOfHeight": 900, "asOfAgeSeconds": 3.2}}
    for chain in house.served:
        listed = {**chain.status(), "anchors": readings.setdefault(chain.key, {})}
        monkeypatch.setattr(chain, "status", lambda listed=listed: listed)
        monkeypatch.setattr(chain, "anchors", chain.anchors or house.by_name["mainnet-early"].anchors)
    async with serving(house) as client:
        for other, told in (({}, (900, 3)), ({"asOfHeight": 870, "asOfAgeSeconds": 31.9}, (870, 31))):
            readings[11].update(other)
            for path in ("/readyz", "/api/v1/health"):
                body = (await client.get(path)).json()
                assert (body["cc3_finalized_height"], body["cc3_finalized_age_seconds"]) == told
    assert (body["cc3_finalized_height"], list(body)[6:8]) == (
        870,
        ["cc3_finalized_height", "cc3_finalized_age_seconds"],
    )


async def test_B58_probes_answer_while_every_chain_hangs(client: httpx2.AsyncClient, house: RecordedHouse) -> None:
    for chain in house.served:
        chain.held = Hold()
    hanging = [asyncio.create_task(client.get("/api/v1/proof/2/1000004/0")) for _ in range(50)]
    await settle()
    assert house.by_name["mainnet-early"].held.waiting == 50  # type: ignore[union-attr]
    for path in ("/livez", "/readyz", "/health", "/metrics", "/api/v1/health", "/api/v1/chains", "/openapi.json"):
        assert (await client.get(path)).status_code == 200, path
    assert (await client.get("/api/v1/attested-height/2")).json() == {"attestedHeight": 1000018}
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (None, False),
        ("*/*", False),
        ("text/plain;version=0.0.4;q=1,*/*;q=0.1", False),
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.4", True),
        ("application/json", False),
        ("application/openmetrics-text;version=oops", False),
    ],
)
async def test_B69_the_content_type_of_a_scrape_matches_its_body(
    client: httpx2.AsyncClient, accept: str | None, openmetrics: bool
) -> None:
    headers = [] if accept is None else [("Accept", accept)]
    response = await client.send(client.build_request("GET", "/metrics", headers=headers))
    assert response.status_code == 200
    content_type = response.headers["content-type"]
    assert content_type.count("charset=") == 1
    assert content_type.startswith("application/openmetrics-text; version=" if openmetrics else "text/plain; version=")
    assert response.text.endswith("# EOF\n") is openmetrics
    parse = parse_openmetrics if openmetrics else parse_text
    assert any(family.name.startswith("copath_http_requests") for family in parse(response.text))


async def test_a_scrape_lets_others_have_their_turns(
    client: httpx2.AsyncClient, house: RecordedHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def turns_during_a_scrape() -> int:
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            others = group.create_task(take_turns())
            assert (await client.get("/metrics")).status_code == 200
            others.cancel()
        return turns

    monkeypatch.setattr(health, "_TURN_S", math.inf)
    at_once = await turns_during_a_scrape()
    monkeypatch.setattr(health, "_TURN_S", 0)
    assert await turns_during_a_scrape() >= at_once + len(list(house.metrics.registry.collect()))
