"""Batches are documented as they are: what may be sent, what comes back."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from app.core.hexadecimal import to_hex
from tests.api.fakes import RecordedHouse

BY_PLACE, BY_HASH = "/api/v1/proof-batch/{chain_key}", "/api/v1/proof-batch-by-tx/{chain_key}"


@pytest.fixture
async def document(client: httpx2.AsyncClient) -> dict[str, Any]:
    """The OpenAPI document as it is served."""
    parsed: dict[str, Any] = (await client.get("/openapi.json")).json()
    return parsed


def validator(document: dict[str, Any], content: dict[str, Any]) -> jsonschema_rs.Validator:
    """For what a media type of the document holds."""
    return jsonschema_rs.validator_for({**content["schema"], "components": document["components"]})


async def test_answers_are_as_documented(
    client: httpx2.AsyncClient, house: RecordedHouse, document: dict[str, Any]
) -> None:
    block: Any = next(b for b in house.by_name["mainnet-early"].blocks if b.height == 1000004)
    hashes = [to_hex(block.transaction_hash(index)) for index in range(2)]
    entries = [{"headerNumber": 1000004, "txIndexes": [0, 1]}, {"headerNumber": 1000002}]
    for template, body in ((BY_PLACE, entries), (BY_HASH, hashes)):
        operation = document["paths"][template]["post"]
        answer = validator(document, operation["responses"]["200"]["content"]["application/json"])
        asked = validator(document, operation["requestBody"]["content"]["application/json"])
        assert asked.is_valid(body)
        for query, schema in (("", "UscBatch"), ("?split=1", "UscSplitBatch")):
            path = template.format(chain_key=2) + query
            response = await client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
            assert [error.message for error in answer.iter_errors(response.json())] == []
            model = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
            assert validator(document, model).is_valid(response.json())
        assert not validator(document, {"schema": {"$ref": "#/components/schemas/UscBatch"}}).is_valid(response.json())


async def test_what_is_refused_is_documented_to_be(client: httpx2.AsyncClient, document: dict[str, Any]) -> None:
    for template, bodies in (
        (
            BY_PLACE,
            (
                [],
                [{}],
                [{"headerNumber": -1}],
                [{"headerNumber": 1}] * 11,
                [{"headerNumber": 1, "txIndexes": [0] * 11}],
            ),
        ),
        (BY_HASH, ([], [1], ["0x12"], ["0x" + "00" * 32] * 101)),
    ):
        operation = document["paths"][template]["post"]
        asked = validator(document, operation["requestBody"]["content"]["application/json"])
        for body in bodies:
            assert not asked.is_valid(body), body
            path = template.format(chain_key=2)
            response = await client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
            assert str(response.status_code) in operation["responses"]
            assert response.status_code == 400


async def test_the_examples_can_be_tried(client: httpx2.AsyncClient, document: dict[str, Any]) -> None:
    for template in (BY_PLACE, BY_HASH):
        operation = document["paths"][template]["post"]
        content = operation["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            value = document["components"]["examples"][example["$ref"].rsplit("/", 1)[-1]]["value"]
            assert validator(document, content).is_valid(value)
        (split,) = [each for each in operation["parameters"] if each["in"] == "query"]
        assert (split["name"], split["schema"]) == ("split", {"type": "integer", "minimum": 1, "maximum": 10})
        assert "415" in operation["responses"]
