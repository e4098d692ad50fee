"""As much of PromQL as tells which series an expression asks for. Whether it is PromQL at all, Prometheus says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from app.metrics import Metrics
from app.metrics.__main__ import table

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yaml"
DASHBOARD = DEPLOY / "grafana" / "copath.json"

OF_THE_SCRAPE = frozenset({"instance", "job", "namespace", "pod"})
"""Labels that Prometheus adds to every series."""

_SERIES = re.compile(r"(?<![\w:$])((?:copath|process)[_:][\w:]*|up)\b(?!\s*\()(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


@dataclass(frozen=True, slots=True)
class Selector:
    """One series selector."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    """Label, operator, value."""


def selectors(expression: str) -> Iterator[Selector]:
    """Every selector of ours and of the client library's process metrics."""
    without_labels = _GROUPING.sub("", expression)
    for name, matchers in _SERIES.findall(without_labels):
        yield Selector(name, tuple(_MATCHER.findall(matchers)))


def grouping_labels(expression: str) -> set[str]:
    """The labels that the expression groups or joins by."""
    return {label.strip() for group in _GROUPING.findall(expression) for label in group.split(",")} - {""}


def rules() -> list[dict[str, Any]]:
    """Every recording and alerting rule."""
    document = yaml.safe_load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """The alerting ones."""
    return [rule for rule in rules() if "alert" in rule]


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return document


def dashboard_queries() -> list[tuple[str, str]]:
    """Title of the panel, and expression, of every query."""
    return [(panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def exposed() -> dict[str, frozenset[str]]:
    """The labels of every series of the registry, by the name that a selector has for it."""
    found: dict[str, frozenset[str]] = {}
    for row in list(table(Metrics()))[2:]:
        name, kind, labels = (cell.strip() for cell in row.strip("|").split("|")[:3])
        own = frozenset(re.findall(r"`(\w+)`", labels))
        if kind == "histogram":
            for suffix in ("sum", "count"):
                found[f"{name.strip('`')}_{suffix}"] = own
            found[f"{name.strip('`')}_bucket"] = own | {"le"}
        else:
            found[name.strip("`")] = own
    for name in re.findall(r"^# TYPE (process_\w+) ", Metrics().exposition(None)[0].decode(), re.MULTILINE):
        found[name] = frozenset()
    return found
