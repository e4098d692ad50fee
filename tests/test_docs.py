"""The example configuration, the README and the settings say the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.metrics import Metrics
from app.metrics.__main__ import table as table_of_metrics
from app.settings import LoadedSettings, load_settings
from app.settings.kinds import parse_size
from app.settings.models import ChainSettings, UpstreamSettings
from app.settings.overrides import _COMPAT
from app.settings.shape import all_paths, model_at

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "config.example.yaml"
ENVIRON = {"ETHEREUM_RPC_KEY": "made-up-key"}

# What the example has to make up, because it has no default.
MADE_UP = {
    "chains.chain_key",
    "chains.name",
    "chains.chain_id",
    "chains.family",
    "chains.eth_rpc_url",
    "chains.upstreams.name",
    "chains.upstreams.url",
}


def leaves() -> list[str]:
    return [".".join(path) for path in all_paths()]


def default_of(path: str) -> Any:
    *parents, name = path.split(".")
    model = {("chains",): ChainSettings, ("chains", "upstreams"): UpstreamSettings}.get(tuple(parents))
    model = model or (
        model_at(("chains", "1", *parents[1:])) if parents[:1] == ["chains"] else model_at(tuple(parents))
    )
    assert model is not None
    return model.model_fields[name].get_default(call_default_factory=True)


def written(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a configuration as (path without indexes, value)."""
    if isinstance(value, dict) and (value or path == ""):
        for key, child in value.items():
            yield from written(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for child in value:
            yield from written(child, path)
    else:
        yield path, value


def same(path: str, shown: Any, default: Any) -> bool:
    """Whether a value as written in YAML is a default."""
    if path.endswith("hedge") and isinstance(shown, bool):
        shown = "on" if shown else "off"
    if path.endswith("max_bytes"):
        shown = parse_size(shown)
    if isinstance(default, tuple):
        return tuple(shown) == default
    return bool(shown == default)


@pytest.fixture(scope="module")
def example() -> LoadedSettings:
    return load_settings(str(EXAMPLE), ENVIRON)


def test_the_example_loads_without_a_warning(example: LoadedSettings) -> None:
    assert example.warnings == []


def test_the_example_shows_every_setting_and_no_other() -> None:
    shown = {path for path, _ in written(yaml.safe_load(EXAMPLE.read_text()))}
    assert shown == set(leaves())


def test_the_example_shows_the_defaults() -> None:
    different = [
        path
        for path, value in written(yaml.safe_load(EXAMPLE.read_text()))
        if path not in MADE_UP and not same(path, value, default_of(path))
    ]
    assert different == []


def test_every_knob_of_the_example_is_explained_where_it_stands() -> None:
    paragraphs = re.split(r"\n\s*\n", EXAMPLE.read_text())
    assert [paragraph for paragraph in paragraphs if "#" not in paragraph] == []


def test_every_setting_is_read() -> None:
    readers = [
        ROOT / "app" / name
        for name in (
            "house.py",
            "consumers.py",
            "stores.py",
            "wiring.py",
            "asgi.py",
            "serving/__init__.py",
            "serving/listener.py",
            "cli.py",
            "settings/models.py",
        )
    ]
    names = {
        node.attr
        for reader in readers
        if reader.exists()
        for node in ast.walk(ast.parse(reader.read_text()))
        if isinstance(node, ast.Attribute)
    }
    idle = [path for path in leaves() if path.rpartition(".")[2] not in names and not path.endswith("_file")]
    assert idle == []


# --- README ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def readme() -> str:
    path = ROOT / "README.md"
    assert path.exists(), "README.md is missing"
    return path.read_text()


@pytest.fixture(scope="module")
def configuration(readme: str) -> str:
    """The section under a heading that begins with the word Configuration."""
    match = re.search(r"^(#+) Configuration\b.*?$(.*?)(?=^\1 |\Z)", readme, re.MULTILINE | re.DOTALL)
    assert match, "README.md has no section called Configuration"
    return match[2]


@pytest.fixture(scope="module")
def table(configuration: str) -> dict[str, str]:
    """Its table: | `admission.request_timeout_secs` | `120` | what it is for |, lists written as `chains[].name`."""
    rows = re.findall(r"^\| `([\w.\[\]]+)` +\| ([^|]*?) *\|", configuration, re.MULTILINE)
    assert len(rows) == len({path for path, _ in rows}), "a setting stands twice"
    return {path.replace("[]", ""): default.strip("`") for path, default in rows}


def test_the_readme_lists_every_setting_and_no_other(table: dict[str, str]) -> None:
    assert set(table) == {path for path in leaves() if not path.endswith("_file") or path == "consumers.pepper_file"}


def test_the_readme_shows_the_defaults(table: dict[str, str]) -> None:
    required = {"chains.chain_key", "chains.upstreams.name", "chains.upstreams.url"}
    special = {"chains.name": "chain-<chain_key>"}
    different = {
        path: shown
        for path, shown in table.items()
        if not (
            shown == special[path]
            if path in special
            else shown == "required"
            if path in required
            else same(path, yaml.safe_load(shown), default_of(path))
        )
    }
    assert different == {}


def test_the_readme_names_the_compat_variables(configuration: str) -> None:
    for name in (*_COMPAT, "PROOF_GEN_CONFIG_FILE", "CC3_RPC_URL"):
        assert f"`{name}`" in configuration


def test_the_readme_holds_the_table_of_metrics_that_is_made_from_the_registry(readme: str) -> None:
    match = re.search(r"^<!-- metrics: .*? -->\n(.*?)^<!-- end of metrics -->$", readme, re.MULTILINE | re.DOTALL)
    assert match, "README.md has no table of metrics"
    assert match[1].splitlines() == list(table_of_metrics(Metrics())), "make it anew: python -m app.metrics"


def test_the_table_of_metrics_lists_what_a_scrape_holds() -> None:
    rows = [line.split(" | ") for line in table_of_metrics(Metrics())][2:]
    listed = {(name.strip("| `"), kind) for name, kind, *_ in rows}
    exposed = re.findall(r"^# TYPE (copath_\w+) (\w+)$", Metrics().exposition(None)[0].decode(), re.MULTILINE)
    assert listed == set(exposed)
    by_name = {name.strip("| `"): labels for name, _, labels, _ in rows}
    assert by_name["copath_http_requests_total"] == "`method`, `route`, `status_class`"


def test_the_readme_begins_with_the_commands_that_exist(readme: str) -> None:
    named = re.findall(r"\bmake ([a-z-]+)", readme)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named[:1] == ["run"]
    assert {"run", "test"} <= set(named) <= set(targets)


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
