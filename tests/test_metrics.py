"""Metrics: every name once, at 0 from the start, in closed sets of series, in the format that was asked for."""

from __future__ import annotations

import ast
import inspect
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from app.api import inputs
from app.chain import witnessing
from app.core import errors
from app.core.errors import InvalidParameter
from app.metrics import NO_CHAIN, OUTCOMES, Metrics, labels
from app.metrics.labels import CONTENT_CHECKS, UPSTREAM_METHODS
from app.settings.kinds import METHODS
from app.upstream.subscription import EVENT

APP = Path(__file__).parent.parent / "app"
ROUTE = "/api/v1/proof/{chain_key}/{header_number}/{tx_index}"

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,/;q=0.1"
)
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT = "text/plain; version=0.0.4; charset=utf-8"


@pytest.fixture
def metrics() -> Metrics:
    return started()


def started(**options: bool) -> Metrics:
    metrics = Metrics(CollectorRegistry(), version="1.2.3", git_sha="abc", **options)
    metrics.register_chain("ethereum", 1, ["primary", "fallback-1"])
    metrics.register_routes([("GET", ROUTE)])
    metrics.register_task("head")
    return metrics


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(metrics.exposition(None)[0].decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, /, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


def collectors(metrics: Metrics) -> dict[str, MetricWrapperBase]:
    return {name: item for name, item in vars(metrics).items() if isinstance(item, MetricWrapperBase)}


def test_an_attribute_bears_the_name_of_its_metric(metrics: Metrics) -> None:
    for attribute, collector in collectors(metrics).items():
        (family,) = collector.collect()
        suffix = "_total" if family.type == "counter" else ""
        assert f"copath_{attribute}" == family.name + suffix
        assert family.documentation.endswith((".", "?"))


def test_counters_and_gauges_stand_at_0_from_the_start(metrics: Metrics) -> None:
    open_sets = {"unsupported_transaction_type_total"}  # the type is known once one was seen
    for attribute, collector in collectors(metrics).items():
        (family,) = collector.collect()
        if family.type != "histogram" and attribute not in open_sets | {"build_info"}:
            assert family.samples, attribute
            assert all(sample.value == 0 for sample in family.samples if not sample.name.endswith("_created")), (
                attribute
            )
    assert value(metrics, "copath_build_info", version="1.2.3", git_sha="abc") == 1
    assert value(metrics, "copath_task_up", name="head") == 0
    assert value(metrics, "copath_proof_outcome_total", outcome="served", chain="ethereum") == 0
    assert value(metrics, "copath_selfcheck_failures_total", chain="ethereum", kind="receipt") == 0
    labels = {"chain": "ethereum", "upstream": "fallback-1", "trie": "receipts"}
    assert value(metrics, "copath_root_mismatch_total", **labels) == 0


def test_durations_with_labels_are_not_seeded(metrics: Metrics) -> None:
    assert not any(name.startswith("copath_proof_duration_seconds_") for name, _ in samples(metrics))


def test_the_first_reorganisation_is_an_increase(metrics: Metrics) -> None:
    assert value(metrics, "copath_reorg_depth_blocks_count", chain="ethereum") == 0
    assert value(metrics, "copath_reorg_depth_blocks_bucket", chain="ethereum", le="8.0") == 0


def test_the_last_bucket_of_the_queue_wait_is_its_limit() -> None:
    metrics = Metrics(CollectorRegistry(), queue_wait_limit_s=7)
    metrics.fill_queue_wait_duration_seconds.labels("a", "request").observe(1)
    bounds = [
        float(dict(labels)["le"])
        for name, labels in samples(metrics)
        if name == "copath_fill_queue_wait_duration_seconds_bucket"
    ]
    assert sorted(bounds)[-2:] == [7, math.inf]


def test_every_code_of_an_error_is_an_outcome() -> None:
    codes = {
        kind.code
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.ProofError) and kind is not errors.ProofError
    }
    assert codes | {"served", "cancelled"} == set(OUTCOMES)


def test_every_check_of_content_is_in_the_closed_set() -> None:
    named = {
        node.args[0].value
        for path in APP.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "ContentInvalid"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert named <= set(CONTENT_CHECKS)


def test_two_servers_in_one_process_count_apart() -> None:
    first, second = started(), started()
    first.builder_pool_breaks_total.inc()
    assert value(first, "copath_builder_pool_breaks_total") == 1
    assert value(second, "copath_builder_pool_breaks_total") == 0


def test_B63_no_series_is_made_by_proofs_of_different_hashes(metrics: Metrics) -> None:
    def one_proof() -> None:
        metrics.http_requests_total.labels("GET", ROUTE, "2xx").inc()
        metrics.http_request_duration_seconds.labels("GET", ROUTE).observe(0.01)
        metrics.proof_outcome_total.labels("served", "ethereum").inc()
        metrics.proof_duration_seconds.labels("hit").observe(0.01)

    one_proof()
    before = samples(metrics).keys()
    for _ in range(1000):
        one_proof()
    assert samples(metrics).keys() == before
    labels = {label for _, series in before for label, _ in series}
    assert labels.isdisjoint({"path", "hash", "tx_hash", "block", "height", "message", "key", "url"})


# --- nothing is declared and never moved ----------------------------------------------------------------------------


def outside(room: str = "metrics") -> list[ast.AST]:
    """Every node of the program but those of one room."""
    return [
        node
        for path in sorted(APP.rglob("*.py"))
        if room not in path.relative_to(APP).parts
        for node in ast.walk(ast.parse(path.read_text()))
    ]


def test_every_collector_is_moved_by_the_program(metrics: Metrics) -> None:
    used = {node.attr for node in outside() if isinstance(node, ast.Attribute)}
    set_once = {"build_info"}  # by the collectors themselves
    assert set(collectors(metrics)) - used - set_once == set()


def test_every_value_of_a_closed_set_is_given_by_the_program() -> None:
    """A value that no code names is a series that stays at 0 for ever, and an alert on it that never fires."""
    given = {node.value for node in outside() if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    about = {
        keyword.value.value
        for node in outside()
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "about" and isinstance(keyword.value, ast.Constant)
    }
    about |= {*inputs._KINDS.values(), "index", InvalidParameter("").about}
    made = {check.format(name) for check in witnessing._CHECKS.values() for name in witnessing._NAMES}
    made |= {f"bad_{each}" for each in about} | {f"{first}xx" for first in (2, 3, 4, 5)}
    idle = {
        name: left
        for name, values in vars(labels).items()
        if isinstance(values, tuple) and (left := set(values) - given - made)
    }
    assert idle == {}


def test_every_error_that_is_an_outcome_is_raised_somewhere() -> None:
    called = {
        node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        for node in outside()
        if isinstance(node, ast.Call)
    }
    kinds = dict(inspect.getmembers(errors, lambda each: inspect.isclass(each) and each is not errors.ProofError))
    idle = {kind.__name__ for kind in kinds.values() if getattr(kind, "code", None) in OUTCOMES} - called
    assert idle == set()


# --- formats --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, TEXT),
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", TEXT),
        (PROMETHEUS_2, OPEN_METRICS),
        (PROMETHEUS_3, f"{OPEN_METRICS}; escaping=allow-utf-8"),
        ("application/openmetrics-text", OPEN_METRICS),
        ('Application/OpenMetrics-Text; version="1.0.0"', OPEN_METRICS),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;q=0.1,text/plain;version=0.0.4;q=0.9", TEXT),
        ("application/openmetrics-text;version=2.0.0", TEXT),
        ("application/openmetrics-text;version=abc", TEXT),
        (
            "text/plain;version=1.0.0;escaping=underscores",
            "text/plain; version=1.0.0; charset=utf-8; escaping=underscores",
        ),
    ],
)
def test_B69_the_content_type_matches_the_body(metrics: Metrics, accept: str | None, content_type: str) -> None:
    body, answered = metrics.exposition(accept)
    assert answered.startswith(content_type)
    if answered.startswith("application/openmetrics-text"):
        assert body.endswith(b"# EOF\n")
        families = {family.name for family in parse_openmetrics(body.decode())}
    else:
        assert b"# EOF" not in body
        families = {family.name for family in parse_text(body.decode())}
    assert "copath_fill" in families


@given(
    st.text(max_size=80) | st.lists(st.sampled_from([*PROMETHEUS_3, "version=", "q=", "text/plain", ";"])).map("".join)
)
def test_B69_no_accept_header_breaks_a_scrape(accept: str) -> None:
    body, answered = Metrics(CollectorRegistry()).exposition(accept)
    assert body.endswith(b"# EOF\n") == answered.startswith("application/openmetrics-text")


def test_B69_counters_end_in_total_and_units_are_seconds_and_bytes(metrics: Metrics) -> None:
    for family in parse_text(metrics.exposition(None)[0].decode()):
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        assert not family.name.endswith(("_ms", "_milliseconds", "_kb", "_created"))


# --- names of existing dashboards -----------------------------------------------------------------------------------


def test_compat_names_are_off_by_default(metrics: Metrics) -> None:
    assert not any(name.startswith(("prover_", "proof_gen_")) for name, _ in samples(metrics))


def test_compat_names_are_computed_from_ours() -> None:
    metrics = started(compat_names=True)
    metrics.http_requests_total.labels("GET", ROUTE, "2xx").inc(3)
    metrics.http_requests_total.labels("GET", ROUTE, "5xx").inc(2)
    metrics.http_requests_total.labels("GET", ROUTE, "error").inc(1)
    metrics.http_request_duration_seconds.labels("GET", ROUTE).observe(0.3)
    metrics.admission_in_flight.labels("global", NO_CHAIN).set(4)
    metrics.admission_in_flight.labels("chain", "ethereum").set(3)
    metrics.admission_rejected_total.labels("overloaded").inc(5)
    metrics.admission_rejected_total.labels("fill_queue_full").inc(6)
    metrics.admission_rejected_total.labels("consumer_rate").inc(7)
    metrics.proof_outcome_total.labels("BlockNotReady", "ethereum").inc(8)
    metrics.proof_outcome_total.labels("BlockNotReady", NO_CHAIN).inc(1)
    metrics.fill_waiting.labels("ethereum", "request").set(2)
    metrics.fill_waiting.labels("ethereum", "backfill").set(1)
    assert value(metrics, "proof_gen_requests_total", endpoint="ProofWithTx", status="Success") == 3
    assert value(metrics, "proof_gen_requests_total", endpoint="ProofWithTx", status="ServerError") == 3
    assert value(metrics, "proof_gen_request_duration_seconds_count", endpoint="ProofWithTx") == 1
    assert value(metrics, "prover_http_requests_total", method="GET", route=ROUTE, status_class="2xx") == 3
    assert value(metrics, "proof_gen_requests_in_flight") == 4
    assert value(metrics, "proof_gen_requests_rejected_total", reason="Overloaded") == 5
    assert value(metrics, "proof_gen_requests_rejected_total", reason="ChainOverloaded") == 6
    assert value(metrics, "proof_gen_errors_total", error_type="BlockNotReady") == 9
    assert value(metrics, "proof_gen_errors_total", error_type="Overloaded") is None
    assert value(metrics, "prover_prove_transaction_outcome_total", outcome="BlockNotReady") == 9
    assert value(metrics, "prover_queue_waiting_requests") == 3
    assert value(metrics, "proof_gen_last_attested_height", chain_key="1") is None
    metrics.chain_attested_head.labels("ethereum").set(1000)
    assert value(metrics, "proof_gen_last_attested_height", chain_key="1") == 1000


def test_compat_names_are_valid_openmetrics_too() -> None:
    metrics = started(compat_names=True)
    metrics.http_request_duration_seconds.labels("GET", ROUTE).observe(0.3)
    metrics.fill_queue_wait_duration_seconds.labels("ethereum", "request").observe(0.3)
    metrics.fill_queue_wait_duration_seconds.labels("ethereum", "backfill").observe(0.3)
    families = {family.name for family in parse_openmetrics(metrics.exposition(PROMETHEUS_3)[0].decode())}
    assert {"proof_gen_requests", "prover_queue_wait_duration_seconds"} <= families


def test_what_may_have_a_price_is_what_is_called_and_what_is_announced() -> None:
    assert set(METHODS) == {*UPSTREAM_METHODS, EVENT}
