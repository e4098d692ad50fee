"""The sample for Alertmanager: what it takes, and that one loss pages once."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import yaml

from tests.deploy import promql
from tests.deploy.promql import DEPLOY

SAMPLE = DEPLOY / "prometheus" / "alertmanager.yaml"
ALERTS = {alert["alert"]: alert for alert in promql.alerts()}

Labels = Mapping[str, str]


def sample() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
    return document


def matches(matchers: Iterable[str], labels: Labels) -> bool:
    """Whether an alert has all of them, as Alertmanager reads them: anchored, an absent label is empty."""
    for matcher in matchers:
        name, operator, value = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]
        held = (
            re.fullmatch(value, labels.get(name, "")) is not None if "~" in operator else labels.get(name, "") == value
        )
        if held == operator.startswith("!"):
            return False
    return True


def inhibited(alert: Labels, firing: Iterable[Labels]) -> bool:
    return any(
        matches(rule["target_matchers"], alert)
        and any(
            matches(rule["source_matchers"], source)
            and all(source.get(name, "") == alert.get(name, "") for name in rule.get("equal", ()))
            for source in firing
            if source is not alert
        )
        for rule in sample()["inhibit_rules"]
    )


def notifications(firing: list[Labels]) -> list[tuple[str, tuple[str, ...]]]:
    """Receivers that are told, each with the group that it is told of."""
    route = sample()["route"]
    told = set()
    for alert in firing:
        if inhibited(alert, firing):
            continue
        child = next((each for each in route["routes"] if matches(each["matchers"], alert)), route)
        told.add((child["receiver"], tuple(alert.get(name, "") for name in route["group_by"])))
    return sorted(told)


def of(name: str, **labels: str) -> dict[str, str]:
    """An alert of the shipped rules."""
    return {"alertname": name, "severity": ALERTS[name]["labels"]["severity"], **labels}


REPLICAS = ("a:3100", "b:3100", "c:3100")
PRIMARY = {"chain": "ethereum", "upstream": "primary"}


def the_only_node_dies() -> list[Labels]:
    firing: list[Labels] = [
        of("CopathSubscriptionDown", **PRIMARY),
        of("CopathUpstreamThrottled", **PRIMARY),
        of("CopathRetriesExhausted", chain="ethereum"),
        of("CopathBackfillStalled", chain="ethereum"),
        of("CopathAnchorsStalled", chain="ethereum"),
        of("CopathFailingFast"),
        of("CopathFailingSlowly"),
    ]
    for instance in REPLICAS:
        firing += [
            of("CopathChainUnreachable", instance=instance, chain="ethereum"),
            of("CopathUpstreamDown", instance=instance, **PRIMARY),
            of("CopathHeadStale", instance=instance, chain="ethereum"),
            of("CopathSaturated", instance=instance, gate="http"),
            of("CopathColdLaneFull", instance=instance, scope="global"),
        ]
    return firing


def one_of_two_nodes_dies() -> list[Labels]:
    firing: list[Labels] = [of("CopathSubscriptionDown", **PRIMARY)]
    for instance in REPLICAS:
        firing += [of(name, instance=instance, **PRIMARY) for name in ("CopathUpstreamDown", "CopathUpstreamLagging")]
    return firing


def the_database_dies() -> list[Labels]:
    firing: list[Labels] = []
    for instance in REPLICAS:
        firing += [of("CopathLedgerDown", instance=instance, chain=chain) for chain in ("ethereum",)]
        firing += [of("CopathRateLimitsDegraded", instance=instance, op=op) for op in ("take", "keys")]
    return firing


@pytest.mark.parametrize(
    ("firing", "told"),
    [
        (the_only_node_dies(), [("pager", ("ethereum",))]),
        (one_of_two_nodes_dies(), [("tickets", ("ethereum",))]),
        (the_database_dies(), [("tickets", ("ethereum",))]),
    ],
    ids=["the only node of a chain", "one node of two", "the database"],
)
def test_one_loss_is_told_once(firing: list[Labels], told: list[tuple[str, tuple[str, ...]]]) -> None:
    assert notifications(firing) == told


def test_what_has_another_cause_is_told_beside_it() -> None:
    firing = the_only_node_dies()
    firing += [
        of("CopathSelfCheckFailed", chain="ethereum", kind="receipt"),
        of("CopathHeadStale", instance="a:3100", chain="optimism"),
        of("CopathDown", instance="d:3100"),
    ]
    assert not inhibited(firing[-3], firing)
    assert notifications(firing) == [("pager", ("",)), ("pager", ("ethereum",)), ("pager", ("optimism",))]


def test_rules_name_alerts_and_labels_that_there_are() -> None:
    for rule in sample()["inhibit_rules"]:
        (source,), (target,) = rule["source_matchers"], rule["target_matchers"]
        sources, targets = ([*re.findall(r"Copath\w+", each)] for each in (source, target))
        assert {*sources, *targets} <= set(ALERTS)
        assert not set(sources) & set(targets), "an alert that silences itself is never told"
        for name in (*sources, *targets):
            for label in rule.get("equal", ()):
                assert label in labels_of(ALERTS[name]["expr"]), f"{name} has no {label}"


def labels_of(expression: str) -> set[str]:
    """The labels that an alert of this expression may have."""
    grouped = re.search(r"\b(?:by)\s*\(([^)]*)\)", expression)
    if grouped:
        return {label.strip() for label in grouped[1].split(",")}
    exposed = promql.exposed()
    return {"instance"}.union(*(exposed.get(each.name, frozenset()) for each in promql.selectors(expression)))


def test_a_cause_fires_no_later_than_what_it_inhibits() -> None:
    """Else what follows is told first. Rates and ages take their time besides."""
    seconds = {"s": 1, "m": 60, "h": 3600}

    def waits_s(name: str) -> int:
        text = ALERTS[name].get("for", "0s")
        return int(text[:-1]) * seconds[text[-1]]

    group_wait = sample()["route"]["group_wait"]
    patience_s = int(group_wait[:-1]) * seconds[group_wait[-1]]
    late = {
        (source, target)
        for rule in sample()["inhibit_rules"]
        for source in re.findall(r"Copath\w+", rule["source_matchers"][0])
        for target in re.findall(r"Copath\w+", rule["target_matchers"][0])
        if waits_s(source) > waits_s(target) + patience_s
    }
    windows = {
        ("CopathLedgerDown", "CopathLedgerDropping"),  # nothing drops before thousands of blocks wait
        ("CopathUpstreamDown", "CopathPoolTooSmall"),
        ("CopathBlockStoreDown", "CopathBlocksNotKept"),
    }
    assert late <= windows


def test_alertmanager_takes_it() -> None:
    program = shutil.which("amtool")
    if program is None:
        pytest.skip("amtool is not installed (Debian and Ubuntu: apt-get install prometheus-alertmanager)")
    judged = subprocess.run([program, "check-config", str(SAMPLE)], capture_output=True, text=True, timeout=60)
    assert judged.returncode == 0, judged.stdout + judged.stderr
