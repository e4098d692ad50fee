"""The OpenAPI document against the routes, the answers and the table of errors; and a page that needs no other host."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any, get_args

import httpx2
import jsonschema_rs
import pytest

from app.api import docs
from app.api.openapi import openapi_document
from app.api.problems import PROBLEMS
from app.api.visit import COMPATIBLE, RouteTable
from app.chain.backfill import State
from app.core.diagnosis import Reason
from app.core.hexadecimal import to_hex
from app.settings.models import ConsumerSettings, Family
from tests.api.fakes import RecordedHouse
from tests.api.serving import serving

UNDOCUMENTED = {
    "/",
    "/docs",
    "/docs/swagger-ui-bundle.js",
    "/docs/swagger-ui.css",
    "/docs/favicon.png",
    "/api/swagger",
    "/api/swagger/",
    "/api/swagger/openapi.json",
    "/openapi.json",
}


@pytest.fixture
async def document(client: httpx2.AsyncClient) -> dict[str, Any]:
    """The OpenAPI document as it is served."""
    parsed: dict[str, Any] = (await client.get("/openapi.json")).json()
    return parsed


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation) for path, found in document["paths"].items() for method, operation in found.items()
    ]


async def test_the_document_lists_the_routes_and_no_others(document: dict[str, Any], route_table: RouteTable) -> None:
    documented = {(path, method.upper()) for path, method, _ in operations(document)}
    routed = {
        (sign.template, method)
        for sign in route_table.signs
        for method in sign.methods - {"HEAD"}
        if sign.template not in UNDOCUMENTED
    }
    assert documented == routed
    assert {sign.template for sign in route_table.signs} >= UNDOCUMENTED
    assert {sign.template for sign in route_table.signs} >= COMPATIBLE


async def test_every_operation_is_named_once_and_described(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    for path, _, operation in operations(document):
        assert operation["summary"], path
        named = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path))


async def test_operations_have_short_names_of_their_own(document: dict[str, Any]) -> None:
    assert {operation["operationId"] for _, _, operation in operations(document)} == {
        "getTransactionProof",
        "getReceiptProof",
        "getLogProof",
        "getTransactionProofAt",
        "getReceiptProofAt",
        "getLogProofAt",
        "getUscProof",
        "getUscProofByTransaction",
        "getUscBatch",
        "getUscBatchByTransaction",
        "getAttestedHeight",
        "verifyProof",
        "listChains",
        "getChain",
        "getLiveness",
        "getReadiness",
        "getHealth",
        "getCompatHealth",
        "getMetrics",
    }


def resolved(document: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """What a `$ref` stands for."""
    found: Any = document
    for step in reference["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    assert isinstance(found, dict)
    return found


def codes_of(document: dict[str, Any], response: dict[str, Any]) -> list[str]:
    """The codes that a documented error can have."""
    ((_, content),) = response["content"].items()
    base, narrowed = resolved(document, content["schema"])["allOf"]
    assert base["$ref"].endswith(("/ErrorBody", "/ProblemBody"))
    codes: list[str] = narrowed["properties"]["code"]["enum"]
    return codes


async def test_B72_errors_are_documented_where_they_can_happen(document: dict[str, Any]) -> None:
    documented: set[str] = set()
    for path, method, operation in operations(document):
        listed = {int(status) for status in operation["responses"]}
        assert {405, 413, 500} <= listed, path
        if path == "/api/v1/proofs/verify":
            assert listed == {200, 400, 401, 405, 408, 413, 415, 429, 500, 503, 504}
        elif path.startswith("/api/v1/proof"):
            assert {200, 400, 401, 404, 422, 429, 503, 504} <= listed, path
            assert (409 in listed) == ("finality" in str(operation["parameters"])), path
        assert (304 in listed) == (method == "get" and path.startswith("/api/v1/proof")), path
        for status in listed - {200, 304}:
            response = operation["responses"][str(status)]
            if path in ("/livez", "/readyz", "/health") and status == 503:
                continue
            ((media_type, content),) = response["content"].items()
            plain = path in COMPATIBLE
            assert media_type == ("application/json" if plain else "application/problem+json")
            assert content["schema"]["$ref"].endswith("Error" if plain else "Problem")
            codes = codes_of(document, response)
            assert {PROBLEMS[code].status for code in codes} == {status}
            documented |= {*codes}
    assert documented == set(PROBLEMS) - {"NotFound"}  # which is answered where no route is
    assert document["components"]["schemas"]["ErrorBody"]["properties"]["code"]["enum"] == sorted(PROBLEMS)


async def test_header_fields_are_documented_and_sent(
    client: httpx2.AsyncClient, document: dict[str, Any], house: RecordedHouse
) -> None:
    tx_hash = to_hex(house.by_name["modern"].blocks[0].transaction_hash(5))
    native = "/api/v1/proofs/{chain}/transactions/{tx_hash}"
    usc = "/api/v1/proof/{chain_key}/{header_number}/{tx_index}"
    for template, path, status, always in (
        (native, f"/api/v1/proofs/11/transactions/{tx_hash}", 200, {"ETag", "Cache-Control", "X-Request-Id"}),
        (native, f"/api/v1/proofs/11/transactions/{'00' * 32}", 404, {"Cache-Control", "X-Request-Id"}),
        (usc, "/api/v1/proof/2/1000004/0", 200, {"ETag", "Cache-Control", "X-Request-Id"}),
        (usc, "/api/v1/proof/2/1000019/0", 422, {"Cache-Control", "X-Request-Id"}),
        ("/livez", "/livez", 200, {"Cache-Control", "X-Request-Id"}),
    ):
        fields = document["paths"][template]["get"]["responses"][str(status)]["headers"]
        assert {name for name, field in fields.items() if resolved(document, field)["required"]} == always
        response = await client.get(path)
        assert response.status_code == status
        assert always <= {name for name in fields if name in response.headers}
    responses = document["paths"][native]["get"]["responses"]
    for status in ("409", "429", "503", "504"):
        assert resolved(document, responses[status]["headers"]["Retry-After"])["required"]
    assert not resolved(document, responses["404"]["headers"]["Retry-After"])["required"]
    for status in responses:
        assert {"RateLimit", "RateLimit-Policy"} <= responses[status]["headers"].keys()
    assert "Content-Location" in responses["200"]["headers"]
    assert resolved(document, responses["401"]["headers"]["WWW-Authenticate"])["required"]


@pytest.mark.parametrize("required", [False, True])
async def test_a_key_is_documented_as_needed_where_it_is(required: bool, house: RecordedHouse) -> None:
    consumers = ConsumerSettings.model_construct(api_keys_required=required)
    async with serving(house, consumers=consumers) as client:
        document = (await client.get("/openapi.json")).json()
    schemes = document["components"]["securitySchemes"]
    assert (schemes["bearer"]["type"], schemes["bearer"]["scheme"]) == ("http", "bearer")
    assert (schemes["apiKey"]["in"], schemes["apiKey"]["name"]) == ("header", "X-API-Key")
    for path, _, operation in operations(document):
        if path.startswith("/api/v1/proof"):
            assert operation["security"] == [{"bearer": []}, {"apiKey": []}, *([] if required else [{}])]
        else:
            assert "security" not in operation


async def test_closed_sets_are_enums_and_what_can_be_null_is_nullable(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["NativeProof"]["properties"]["kind"]["enum"] == ["transaction", "receipt", "log"]
    assert schemas["FinalityStatement"]["properties"]["level"]["enum"] == ["latest", "safe", "finalized"]
    assert schemas["ChainBackfill"]["properties"]["state"]["enum"] == [state.value for state in State]
    assert schemas["ChainStatus"]["properties"]["family"]["enum"] == list(get_args(Family))
    assert schemas["Verdict"]["properties"]["reason"]["enum"] == list(get_args(Reason))
    patterns = re.findall(r"'pattern': '([^']+)'", str(document))
    assert not [pattern for pattern in patterns if re.fullmatch(r"\^\(?[a-z-]+(\|[a-z-]+)*\)?\$", pattern)]
    for name, field in (
        ("TrieProof", "value"),
        ("NewestAttested", "attestedHeight"),
        ("Verdict", "node"),
        ("Readiness", "cc3_finalized_height"),
        ("ChainStatus", "finalized"),
    ):
        assert {"type": "null"} in schemas[name]["properties"][field]["anyOf"]
        assert field in schemas[name]["required"]
    for name, field in (("NativeProof", "log"), ("ErrorBody", "block_number"), ("Health", "reason")):
        assert "null" not in str(schemas[name]["properties"][field])
        assert field not in schemas[name]["required"]


def validator(document: dict[str, Any], path: str, status: int) -> jsonschema_rs.Validator:
    """For the body that `path` documents for `status`."""
    ((_, content),) = document["paths"][path]["get"]["responses"][str(status)]["content"].items()
    inlined = {**content["schema"], "components": document["components"]}
    return jsonschema_rs.validator_for(inlined)


async def test_answers_are_as_documented(
    client: httpx2.AsyncClient, document: dict[str, Any], house: RecordedHouse
) -> None:
    block = house.by_name["modern"].blocks[0]
    tx_hash = to_hex(block.transaction_hash(5))
    native = "/api/v1/proofs/{chain}"
    for template, path, status in (
        (native + "/transactions/{tx_hash}", f"/api/v1/proofs/11/transactions/{tx_hash}", 200),
        (native + "/receipts/{tx_hash}", f"/api/v1/proofs/11/receipts/{tx_hash}", 200),
        (native + "/logs/{tx_hash}/{log_index}", f"/api/v1/proofs/11/logs/{tx_hash}/0", 200),
        (native + "/logs/{tx_hash}/{log_index}", f"/api/v1/proofs/11/logs/{tx_hash}/99999", 404),
        (native + "/blocks/{block}/receipts/{i}", "/api/v1/proofs/11/blocks/x/receipts/0", 400),
        ("/api/v1/proof/{chain_key}/{header_number}/{tx_index}", "/api/v1/proof/2/1000004/0", 200),
        ("/api/v1/proof/{chain_key}/{header_number}/{tx_index}", "/api/v1/proof/2/1000019/0", 422),
        ("/api/v1/attested-height/{chain_key}", "/api/v1/attested-height/2", 200),
        ("/api/v1/attested-height/{chain_key}", "/api/v1/attested-height/11", 200),
        ("/api/v1/chains", "/api/v1/chains", 200),
        ("/api/v1/chains/{chain}", "/api/v1/chains/modern", 200),
        ("/livez", "/livez", 200),
        ("/readyz", "/readyz", 200),
        ("/health", "/health", 200),
        ("/api/v1/health", "/api/v1/health", 200),
    ):
        response = await client.get(path)
        assert response.status_code == status, path
        problems = [error.message for error in validator(document, template, status).iter_errors(response.json())]
        assert problems == [], path


async def test_documented_fields_are_spelt_as_served(document: dict[str, Any]) -> None:
    native = document["components"]["schemas"]["NativeProof"]
    assert {"chainKey", "blockHash", "headerRlp", "transactionIndex", "nodes"} <= set(native["required"])
    usc = document["components"]["schemas"]["UscProof"]
    assert {"headerNumber", "txBytes", "continuityProof", "merkleProof", "generatedAt"} <= set(usc["required"])


async def test_no_schema_is_named_as_a_field_of_its_own(document: dict[str, Any]) -> None:
    # Generated code would have one variable for both.
    for name, schema in document["components"]["schemas"].items():
        fields = {field.replace("_", "").lower() for field in schema.get("properties", ())}
        assert name.lower() not in fields


async def test_both_addresses_serve_the_same_document(client: httpx2.AsyncClient) -> None:
    first, second = await client.get("/openapi.json"), await client.get("/api/swagger/openapi.json")
    assert first.content == second.content
    assert first.headers["content-type"] == "application/json"
    assert json.loads(first.content)["openapi"].startswith("3.")


async def test_the_document_is_made_once_and_not_on_the_event_loop(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_in: list[int] = []

    def noted(*given: Any, **more: Any) -> dict[str, Any]:
        made_in.append(threading.get_ident())
        return openapi_document(*given, **more)

    monkeypatch.setattr(docs, "openapi_document", noted)
    answers = await asyncio.gather(*(client.get("/openapi.json") for _ in range(3)))
    assert len({answer.content for answer in answers}) == 1
    assert len(made_in) == 1
    assert made_in != [threading.get_ident()]
    again = await client.get("/openapi.json", headers={"If-None-Match": answers[0].headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_redirects_lead_to_the_page(client: httpx2.AsyncClient) -> None:
    root = await client.get("/")
    assert (root.status_code, root.headers["location"]) == (308, "/api/swagger")
    swagger = await client.get("/api/swagger")
    assert (swagger.status_code, swagger.headers["location"]) == (303, "/api/swagger/")
    page = await client.get("/", follow_redirects=True)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("page", ["/docs", "/api/swagger/"])
async def test_the_page_needs_no_other_host(client: httpx2.AsyncClient, page: str) -> None:
    html = (await client.get(page)).text
    assert not re.search(r"https?://|//[a-z]", html)
    referenced = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert {reference.rsplit("/", 1)[-1] for reference in referenced} == {
        "swagger-ui-bundle.js",
        "swagger-ui.css",
        "favicon.png",
    }
    (openapi,) = re.findall(r'"?url"?: ["\']([^"\']+)["\']', html)
    for reference in (*referenced, openapi):
        asset = await client.get(str(httpx2.URL(f"http://copath{page}").join(reference)))
        assert asset.status_code == 200, reference
        assert asset.content
