"""A real Prometheus that scrapes a running demo with the shipped rules: what the dashboard asks for is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.server import free_port, running_demo
from tests.acceptance.waiting import until
from tests.deploy import promql

pytestmark = pytest.mark.xdist_group("prometheus")  # one server for all of them

RECEIPT = "/api/v1/proofs/samples-ethereum/receipts/0x7cdcd8a640dd62ae6a697b8f7ed682bb151ba5b6e1abbff56e57af1afd52cc86"

# Of what does not happen in a demo there is no series before it does.
EMPTY_HERE = {
    "Duration of look-ups": "copath_block_store_read_duration_seconds",
    "Shared rate limits": "copath_ratelimit_backend_duration_seconds",
    "Unknown to this version": "copath_unsupported_transaction_type_total",
    "Reorganisations": "copath_reorg_depth_blocks",
}


@dataclass(frozen=True, slots=True)
class Prometheus:
    url: str

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer of its HTTP API, whose error is the assertion's text."""
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30
            ) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is starting
                raise
            body = json.load(error)
        assert body["status"] == "success", body
        return body["data"]

    def ask(self, expression: str) -> list[Any]:
        """An instant query."""
        found: list[Any] = self.get("query", query=expression)["result"]
        return found


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed (Debian and Ubuntu: apt-get install prometheus)")
    with running_demo() as copath, tempfile.TemporaryDirectory(prefix="copath-prometheus-") as folder:
        until(lambda: copath.get(RECEIPT).status == 200, "a first proof")
        place, port = Path(folder), free_port()
        rules = yaml.safe_load(promql.RULES.read_text())
        (place / "rules.yaml").write_text(
            yaml.safe_dump({"groups": [{**g, "interval": "1s"} for g in rules["groups"]]})
        )
        scrape = {"job_name": "copath", "static_configs": [{"targets": [f"127.0.0.1:{copath.port}"]}]}
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(place / "rules.yaml")],
            "scrape_configs": [scrape],
        }
        (place / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    program,
                    f"--config.file={place / 'prometheus.yml'}",
                    f"--storage.tsdb.path={place / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        running = Prometheus(f"http://127.0.0.1:{port}")

        def scraped_twice() -> bool:
            assert process.poll() is None, (place / "log").read_text()
            # Between scrapes something has to happen, or nothing has a rate.
            for path in (RECEIPT, "/nowhere", "/api/v1/proofs/none/receipts/0x00", "/api/v1/chains"):
                copath.get(path)
            try:
                seen = running.ask('count_over_time(up{job="copath"}[1m])')
                return bool(seen) and int(seen[0]["value"][1]) >= 5 and bool(running.ask("copath:cold_lane_use:ratio"))
            except OSError:
                return False

        try:
            until(scraped_twice, "some scrapes")
            yield running
        finally:
            process.terminate()
            process.wait()


def filled_in(expression: str) -> str:
    """What Grafana sends with everything chosen."""
    expression = expression.replace("$__rate_interval", "1m")
    return re.sub(r"\$(chain|instance)\b", ".*", expression)


def test_every_query_of_the_dashboard_returns_data(prometheus: Prometheus) -> None:
    empty = [
        f"{panel}: {expression}"
        for panel, expression in promql.dashboard_queries()
        if not prometheus.ask(filled_in(expression)) and EMPTY_HERE.get(panel, "\n") not in expression
    ]
    assert empty == []


def test_every_rule_can_be_evaluated(prometheus: Prometheus) -> None:
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(promql.rules())
    until(
        lambda: all(r["health"] != "unknown" for g in prometheus.get("rules")["groups"] for r in g["rules"]),
        "every rule to be evaluated",
    )
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    recorded = [rule["record"] for rule in promql.rules() if "record" in rule]
    assert [name for name in recorded if not prometheus.ask(name)] == []


def test_of_a_demo_at_rest_nobody_is_woken(prometheus: Prometheus) -> None:
    firing = [
        alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"] if alert["state"] == "firing"
    ]
    assert firing == []


def test_what_the_autoscaler_reads_is_there(prometheus: Prometheus) -> None:
    (rule,) = yaml.safe_load((promql.DEPLOY / "prometheus" / "adapter.yaml").read_text())["rules"]["custom"]
    query = rule["metricsQuery"].replace(",<<.LabelMatchers>>", "").replace("<<.GroupBy>>", "instance")
    assert len(prometheus.ask(query)) == 1


def test_what_the_dashboard_offers_to_choose_from_is_there(prometheus: Prometheus) -> None:
    for variable in promql.dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            assert prometheus.get(f"label/{label}/values", **{"match[]": series}), variable["name"]
