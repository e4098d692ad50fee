"""The recording rules that stand in for `metrics.compat_names`: what they record is what that setting exposes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.metrics import Metrics
from tests.deploy.promql import DEPLOY

RULES = DEPLOY / "prometheus" / "compat-rules.yaml"
ROUTES = (
    "/api/v1/proof/{chain_key}/{header_number}/{tx_index}",
    "/api/v1/proof-by-tx/{chain_key}/{tx_hash}",
    "/api/v1/proof-batch/{chain_key}",
    "/api/v1/proof-batch-by-tx/{chain_key}",
    "/api/v1/proofs/{chain}/receipts/{tx_hash}",
    "/api/v1/attested-height/{chain_key}",
    "/api/v1/health",
    "other",
)
OF_THE_ALIAS = ("proof_gen_", "prover_")

Sample = tuple[str, dict[str, str], float]


def busy() -> Metrics:
    """Metrics of which every series has a value of its own: sums that come out the same in any order."""
    metrics = Metrics(compat_names=True)
    metrics.register_chain("ethereum", 1, ["own"])
    metrics.register_routes([("GET", route) for route in ROUTES])
    for at, route in enumerate(ROUTES):
        metrics.http_request_duration_seconds.labels("GET", route).observe((at + 1) / 128)
        metrics.http_requests_total.labels("GET", route, "2xx").inc(at + 1)
        metrics.http_requests_total.labels("GET", route, "4xx").inc(10 * at)
        metrics.http_requests_total.labels("GET", route, "5xx").inc(100)
    metrics.http_requests_in_flight.set(3)
    for at, scope in enumerate(("global", "warm")):
        metrics.admission_in_flight.labels(scope, "").set(at + 5)
    metrics.admission_in_flight.labels("chain", "ethereum").set(50)
    for at, reason in enumerate(
        ("overloaded", "chain_overloaded", "fill_queue_full", "fill_wait_timeout", "timeout", "draining")
    ):
        metrics.admission_rejected_total.labels(reason).inc(at + 1)
    for at, outcome in enumerate(("served", "cancelled", "TxHashNotFound", "Overloaded", "Internal")):
        metrics.proof_outcome_total.labels(outcome, "ethereum").inc(at + 1)
        metrics.proof_outcome_total.labels(outcome, "").inc(at + 20)
    for at, cache in enumerate(("hit", "miss", "joined")):
        metrics.proof_duration_seconds.labels(cache).observe((at + 1) / 8)
    metrics.merkle_build_duration_seconds.labels("ethereum").observe(0.02)
    for at, kind in enumerate(("request", "backfill")):
        metrics.fill_queue_wait_duration_seconds.labels("ethereum", kind).observe(at + 1)
        metrics.fill_waiting.labels("ethereum", kind).set(at + 7)
    metrics.chain_attested_head.labels("ethereum").set(1234)
    metrics.last_proof_timestamp_seconds.set(1000)
    metrics.start_time_seconds.set(900)
    metrics.unhandled_exceptions_total.labels("task").inc(2)
    return metrics


def samples(metrics: Metrics) -> list[Sample]:
    families = text_string_to_metric_families(metrics.exposition(None)[0].decode())
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def series(name: str, labels: dict[str, str]) -> str:
    return f"{name}{{{','.join(f'{key}={quoted(value)}' for key, value in sorted(labels.items()))}}}"


def quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def test_they_record_what_the_setting_exposes(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian and Ubuntu: apt-get install prometheus)")
    exposed = samples(busy())
    wanted: dict[str, list[dict[str, Any]]] = {}
    for name, labels, value in exposed:
        if name.startswith(OF_THE_ALIAS):
            known = {"chain": "ethereum"} if name == "proof_gen_last_attested_height" else labels
            wanted.setdefault(name, []).append({"labels": series(name, known), "value": value})
    given = [
        {"series": series(name, labels), "values": f"{value}x1"}
        for name, labels, value in exposed
        if name.startswith("copath_")
    ]
    checks = [{"expr": name, "eval_time": "1m", "exp_samples": rows} for name, rows in wanted.items()]
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": checks}],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    judged = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "test.yaml")], capture_output=True, text=True, timeout=120
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    recorded = {rule["record"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    assert recorded == set(wanted)
