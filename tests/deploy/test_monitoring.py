"""Rules and dashboard as files: judged by promtool, and in step with the registry and with the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from app.consumers import LIMITS as CONSUMER_LIMITS
from app.metrics import Metrics
from app.metrics.labels import OUTCOMES
from app.settings.shape import all_paths
from app.store.database import Limits as DatabaseLimits
from tests.deploy import prometheus_rule, promql
from tests.deploy.promql import DEPLOY, OF_THE_SCRAPE, Selector

ROOT = DEPLOY.parent
TESTS = DEPLOY / "prometheus" / "rules_test.yaml"
GUIDE = ROOT / "docs" / "operations.md"

EXPRESSIONS = [
    *((rule.get("alert") or rule["record"], rule["expr"]) for rule in promql.rules()),
    *promql.dashboard_queries(),
    *((one["name"], one["expr"]) for one in promql.dashboard()["annotations"]["list"]),
]


def promtool(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian and Ubuntu: apt-get install prometheus)")
    return subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("what", ["rules", "rules_test"])
def test_promtool_takes_the_rules_and_every_alert_fires_on_what_it_is_for(what: str) -> None:
    arguments = ("check", "rules", "rules.yaml") if what == "rules" else ("test", "rules", "rules_test.yaml")
    judged = promtool(*arguments, cwd=TESTS.parent)
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_every_alert_is_seen_to_fire() -> None:
    fired = set(re.findall(r'alertname="(\w+)"}', TESTS.read_text()))
    assert fired == {alert["alert"] for alert in promql.alerts()}


def test_the_operator_reads_the_same_rules() -> None:
    made = "make it anew: python -m tests.deploy.prometheus_rule"
    assert prometheus_rule.RESOURCE.read_text() == prometheus_rule.wrapped(), made
    assert yaml.safe_load(prometheus_rule.wrapped())["spec"] == yaml.safe_load(promql.RULES.read_text())


def test_whoever_is_woken_is_told_what_to_do() -> None:
    headings = re.findall(r"^#+ (.+)$", GUIDE.read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    for alert in promql.alerts():
        name = alert["alert"]
        assert alert["labels"]["severity"] in ("critical", "warning"), name
        assert alert["annotations"]["summary"], name
        page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert (page, anchor) == ("docs/operations.md", name.lower())
        assert anchor in anchors, f"{page} says nothing of {name}"
    told = {heading for heading in headings if re.fullmatch(r"Copath[A-Z]\w+", heading)}
    assert told == {alert["alert"] for alert in promql.alerts()}, "it speaks of alerts that there are not"


def test_every_series_that_is_asked_for_exists() -> None:
    exposed = promql.exposed()
    recorded = {rule["record"] for rule in promql.rules() if "record" in rule}
    unknown: list[str] = []
    for name, expression in EXPRESSIONS:
        found = list(promql.selectors(expression))
        assert found, f"{name}: asks for nothing of ours"
        labels = set(OF_THE_SCRAPE)
        for selector in found:
            if selector.name in recorded:
                labels |= {"chain", "cache", "upstream", "purpose"}
                continue
            if selector.name != "up" and selector.name not in exposed:
                unknown.append(f"{name}: {selector.name}")
                continue
            own = exposed.get(selector.name, frozenset()) | OF_THE_SCRAPE
            labels |= own
            unknown += [
                f"{name}: {selector.name} has no {label}" for label, _, _ in selector.matchers if label not in own
            ]
        unknown += [f"{name}: nothing has a {label}" for label in promql.grouping_labels(expression) - labels]
    assert unknown == []


def test_every_value_that_is_asked_for_can_be() -> None:
    metrics = Metrics()
    metrics.register_chain("ethereum", 1, ["own"])
    exposition = metrics.exposition(None)[0].decode()
    impossible: list[str] = []
    for name, expression in EXPRESSIONS:
        for selector in promql.selectors(expression):
            impossible += [f"{name}: {selector.name} {value}" for value in impossible_values(selector, exposition)]
    assert impossible == []


def impossible_values(selector: Selector, exposition: str) -> list[str]:
    """Values of a label that no series has, of those metrics whose series stand from the start."""
    samples = re.findall(rf"^{re.escape(selector.name)}\{{(.*)\}} ", exposition, re.MULTILINE)
    if not samples:
        return []
    return [
        f"{label}={wanted}"
        for label, operator, value in selector.matchers
        if label not in OF_THE_SCRAPE and "$" not in value
        for wanted in (value.split("|") if "~" in operator else [value])
        if not any(f'{label}="{wanted}"' in sample for sample in samples)
    ]


def test_failures_are_the_same_over_every_window() -> None:
    of_windows = {
        value
        for rule in promql.rules()
        if rule.get("record", "").startswith("copath:proof_failures:")
        for selector in promql.selectors(rule["expr"])
        for label, operator, value in selector.matchers
        if (label, operator) == ("outcome", "=~")
    }
    assert len(of_windows) == 1
    assert set(of_windows.pop().split("|")) <= set(OUTCOMES)


def test_the_dashboard_is_whole() -> None:
    dashboard = promql.dashboard()
    panels = dashboard["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids))
    titles = [panel["title"] for panel in panels]
    assert len(titles) == len(set(titles))
    covered: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & covered, f"{panel['title']} lies on another panel"
        covered |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}", panel["title"]
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", promql.DASHBOARD.read_text()))
    assert used == variables


def units_of(expression: str) -> set[str]:
    """The units in which Grafana may draw what the expression yields."""
    if "histogram_quantile" in expression:
        return {"short" if "_blocks_bucket" in expression else "s"}
    if re.search(r"[_:]ratio", expression):
        return {"percentunit"}
    if "86400" in expression or "_bytes{" in expression:
        return {"bytes"}
    if expression.startswith("time() -") or re.search(r"_seconds(:p99_5m|\{)", expression):
        return {"s"}
    if re.search(r"\brate\(|:rate5m", expression) and "cpu_seconds" not in expression:
        return {"ops", "reqps"}
    return {"short"}


def test_every_line_is_drawn_in_its_own_unit() -> None:
    """Seconds and counts on one scale say nothing of either."""
    wrong = []
    for panel in promql.dashboard()["panels"]:
        for target in panel.get("targets", ()):
            drawn_in = panel["fieldConfig"]["defaults"]["unit"]
            for override in panel["fieldConfig"].get("overrides", ()):
                if re.search(override["matcher"]["options"], target["legendFormat"]):
                    drawn_in = next(each["value"] for each in override["properties"] if each["id"] == "unit")
            if drawn_in not in units_of(target["expr"]):
                wrong.append(f"{panel['title']}: {target['legendFormat']} in {drawn_in}")
    assert wrong == []


def test_every_line_is_told_from_its_neighbours() -> None:
    """What the expression groups by stands in the legend."""
    untold = []
    for panel in promql.dashboard()["panels"]:
        for target in panel.get("targets", ()):
            grouped = promql.grouping_labels(target["expr"]) - {"le"}
            untold += [
                f"{panel['title']}: {label}"
                for label in grouped - set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            ]
    assert untold == []


def test_no_window_is_shorter_than_some_scrapes() -> None:
    """A rate takes two samples, and one scrape may fail: of four at least, at the interval of the ServiceMonitor."""
    (endpoint,) = yaml.safe_load((DEPLOY / "prometheus" / "service-monitor.yaml").read_text())["spec"]["endpoints"]
    least_s = 4 * int(endpoint["interval"].removesuffix("s"))
    seconds = {"s": 1, "m": 60, "h": 3600}
    windows = {
        (name, window): int(window[:-1]) * seconds[window[-1]]
        for name, expression in EXPRESSIONS
        for window in re.findall(r"\[(\d+[smh])\]", expression)
    }
    assert {which: window_s for which, window_s in windows.items() if window_s < least_s} == {}
    queries = [expression for _, expression in promql.dashboard_queries()]
    assert not [one for one in queries if re.search(r"\[\d", one)], "the dashboard leaves its windows to Grafana"


def test_the_guide_sizes_by_what_was_measured() -> None:
    """The figures of the knee are those of the bench that it names."""
    measured, guide = (ROOT / "bench/overload/results.md").read_text(), GUIDE.read_text()
    (knee,) = re.findall(r"^\| (\d+), the knee \| (\d+) \| [\d.]+ ms \| ([\d.]+) ms \|$", measured, re.MULTILINE)
    (beyond,) = re.findall(r"^\| 32 \| (\d+) \| [\d.]+ ms \| ([\d.]+) ms \|$", measured, re.MULTILINE)
    (near,) = re.findall(r"50 ms: capacity is (\d+) cold proofs/s", measured)
    assert f"{knee[1]} proofs/s when there are {knee[0]} of them, with a p99 of {float(knee[2]):.0f} ms" in guide
    assert f"32 get {beyond[0]} proofs/s, with {float(beyond[1]):.0f} ms" in guide
    assert f"it is {near} proofs/s" in guide
    assert "`make bench ARGS=overload`" in guide


def test_the_guide_counts_the_connections_to_the_database() -> None:
    limits = DatabaseLimits()
    each = limits.connections + limits.overflow + 1  # for a moment, while tables are changed
    scaling = yaml.safe_load((DEPLOY / "kubernetes/overlays/replicas/scaling.yaml").read_text())
    rolled = scaling["spec"]["maxReplicas"] + 1
    pepper = CONSUMER_LIMITS.connections + CONSUMER_LIMITS.overflow
    guide = GUIDE.read_text()
    assert f"Each opens {each} connections\nat most, {each + pepper} with `consumers.pepper`" in guide
    assert f"{each * rolled} connections, or {(each + pepper) * rolled}" in guide


def test_the_guide_names_what_there_is() -> None:
    text = GUIDE.read_text()
    anchors = {
        re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        assert not path or (GUIDE.parent / path).exists(), target
        assert path or anchor in anchors, target
    settings = {".".join(path) for path in all_paths()}
    sections = {path.split(".")[0] for path in settings if "." in path} | {"chains"}
    short = {path.removeprefix("chains.") for path in settings}
    for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", text):
        if name.split(".")[0] in sections | {"cache", "routing", "anchors", "finality"}:
            assert any(f"{path}.".startswith(f"{name}.") for path in settings | short), f"there is no setting {name}"
    metrics = promql.exposed()
    for name in re.findall(r"`(copath_\w+)`", text):
        assert name in metrics, f"there is no metric {name}"
