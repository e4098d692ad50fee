"""The OpenAPI document beside a running demo: its examples are what the demo answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jsonschema_rs
import pytest

from tests.acceptance import openapi_examples
from tests.acceptance.server import Copath, running_demo

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def demo() -> Iterator[Copath]:
    with running_demo() as running:
        yield running


@pytest.fixture(scope="module")
def document(demo: Copath) -> dict[str, Any]:
    found: dict[str, Any] = demo.get("/openapi.json").json
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, found in document["paths"].items():
        for method, operation in found.items():
            yield path, method, operation


def accepts(document: dict[str, Any], content: dict[str, Any], value: Any) -> bool:
    """Whether a value is what a media type of the document holds."""
    schema = {**content["schema"], "components": document["components"]}
    return jsonschema_rs.validator_for(schema).is_valid(value)


def example_of(document: dict[str, Any], reference: dict[str, Any]) -> Any:
    return document["components"]["examples"][reference["$ref"].rsplit("/", 1)[-1]]["value"]


def test_every_example_is_what_the_demo_answers(demo: Copath) -> None:
    kept = json.loads(openapi_examples.FILE.read_bytes())
    made = openapi_examples.made(demo)
    assert openapi_examples.settled(kept) == openapi_examples.settled(made), (
        "the examples are not those of the demo: python -m tests.acceptance.openapi_examples"
    )


def test_every_operation_answers_its_examples(demo: Copath, document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        values = {each["name"]: each for each in operation.get("parameters", ())}
        target = path
        for name, parameter in values.items():
            if parameter["in"] == "path":
                target = target.replace(f"{{{name}}}", quote(str(parameter["example"]), safe=""))
        query = {n: p["example"] for n, p in values.items() if p["in"] == "query" and "example" in p}
        answer_schema = operation["responses"]["200"]["content"]
        bodies = [None]
        if "requestBody" in operation:
            content = operation["requestBody"]["content"]["application/json"]
            bodies = [example_of(document, example) for example in content["examples"].values()]
            assert all(accepts(document, content, body) for body in bodies), path
        for body in bodies:
            for asked in (target, f"{target}?{urlencode(query)}"):
                answer = demo.get(asked) if method == "get" else demo.post(asked, body)
                assert answer.status == 200, (asked, answer.body[:300])
                if "application/json" in answer_schema:
                    assert accepts(document, answer_schema["application/json"], answer.json), asked


def test_every_example_of_an_answer_is_of_its_form(document: dict[str, Any]) -> None:
    shown = 0
    for _, _, operation in operations(document):
        content = operation["responses"]["200"]["content"].get("application/json", {})
        for example in content.get("examples", {}).values():
            assert accepts(document, content, example_of(document, example)), example
            shown += 1
    assert shown >= 15


def test_schemathesis_finds_nothing(demo: Copath, tmp_path: Path) -> None:
    arguments = ["--config-file", str(ROOT / "schemathesis.toml"), "run", f"{demo.url}/openapi.json", "--checks", "all"]
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", *arguments, "--no-color"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.acceptance.schemathesis_checks"},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (tested,) = re.findall(r"Tested: +(\d+)", done.stdout)
    assert int(tested) == sum(len(found) for found in demo.get("/openapi.json").json["paths"].values())
    (generated, passed) = re.findall(r"(\d+) generated, (\d+) passed", done.stdout)[0]
    assert generated == passed
    assert int(generated) > 1000
