"""A real Prometheus that scrapes a running demo with the shipped rules: what the dashboard asks for is there."""

from __future__ import annotations

import json
import math
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

from app.house import demo_chains
from app.upstream.demo import demo_heights
from tests.acceptance.server import free_port, running_from
from tests.acceptance.waiting import until
from tests.deploy import promql

pytestmark = pytest.mark.xdist_group("prometheus")  # one server for all of them

RECEIPT = "/api/v1/proofs/samples-ethereum/receipts/0x7cdcd8a640dd62ae6a697b8f7ed682bb151ba5b6e1abbff56e57af1afd52cc86"

# What is off in a demo and has panels of its own.
SWITCHED_ON = {
    "block_store_url": "file:blocks",
    "consumers": {
        "pepper": "a pepper of tests, long enough",
        "rate": {"enabled": True, "per_second": 200, "burst": 200},
    },
}


def whole_demo() -> str:
    """The chains of the demo with everything switched on. One keeps no block in memory, so that each is looked up again; of
    another nothing is filled before it is asked for."""
    otherwise = {
        "samples-ethereum": {"cache": {"merkle_max_bytes": "1KiB", "merkle_backfill_enabled": False}},
        "mainnet-early": {"cache": {"merkle_backfill_enabled": False}, "anchors": {"source": "none"}},
    }
    chains = [{**chain, **otherwise.get(chain["name"], {})} for chain in demo_chains()]
    text: str = yaml.safe_dump({**SWITCHED_ON, "database_url": "sqlite+aiosqlite:///copath.db", "chains": chains})
    return f"bind_port: {{port}}\n{text}"


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

    def numbers(self, expression: str) -> list[float]:
        """What would be drawn of it: NaN is nothing."""
        values = [float(series["value"][1]) for series in self.ask(expression)]
        return [value for value in values if not math.isnan(value)]


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed (Debian and Ubuntu: apt-get install prometheus)")
    with (
        running_from(["--config", "{file}"], {}, whole_demo()) as copath,
        tempfile.TemporaryDirectory(prefix="copath-prometheus-") as folder,
    ):
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
        scrapes, heights = [0], iter(demo_heights("mainnet-early"))

        def scraped_often() -> bool:
            assert process.poll() is None, (place / "log").read_text()
            # Between scrapes something has to happen, or nothing has a rate.
            for path in (RECEIPT, "/nowhere", "/api/v1/proofs/none/receipts/0x00", "/api/v1/chains"):
                copath.get(path)
            try:
                seen = running.numbers('count_over_time(up{job="copath"}[1m])')
                if seen and seen[0] > scrapes[-1]:
                    scrapes.append(int(seen[0]))
                    copath.get(f"/api/v1/proofs/mainnet-early/blocks/{next(heights)}/receipts/0")  # is not at hand
                return scrapes[-1] >= 5 and bool(running.ask("copath:cold_lane_use:ratio"))
            except OSError:
                return False

        try:
            until(scraped_often, "some scrapes")
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
        if not prometheus.numbers(filled_in(expression))
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
    until(lambda: prometheus.ask("copath_upstream_up == 1"), "the nodes to answer")
    assert prometheus.ask("copath_upstream_up == 0") == []
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
