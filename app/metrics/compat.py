"""The names that existing dashboards know, computed from ours at scrape time and only where `metrics.compat_names` asks.

Nothing is counted twice: a collector reads the counters under their own names and emits them again. Buckets are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.metrics.labels import NO_CHAIN

if TYPE_CHECKING:
    from app.metrics.collectors import Metrics

# A rule turns the labels of one of our samples into those of the alias, or drops the sample.
Relabel = Callable[[dict[str, str]], dict[str, str] | None]

_ENDPOINTS = (
    ("/api/v1/proof/", "ProofWithTx"),
    ("/api/v1/proof-by-tx/", "ProofByTxHash"),
    ("/api/v1/proof-batch/", "ProofBatch"),
    ("/api/v1/proof-batch-by-tx/", "ProofBatchByTxHash"),
    ("/api/v1/health", "Health"),
    ("/api/v1/attested-height/", "AttestedHeight"),
)
_REASONS = {
    "overloaded": "Overloaded",
    "chain_overloaded": "ChainOverloaded",
    "fill_queue_full": "ChainOverloaded",
    "fill_wait_timeout": "ChainOverloaded",
    "timeout": "Timeout",
}
# Not errors of a proof for the dashboards in question: they are counted as refusals, or not at all.
_NO_ERRORS = {"served", "cancelled", "InvalidChainKey", "Overloaded", "ChainOverloaded", "RequestTimeout"}


class CompatNames(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Empty, and present so that registering does not collect: the names clash with nothing of ours."""
        return ()

    def collect(self) -> Iterator[Metric]:
        ours = self._metrics

        def by_endpoint(labels: dict[str, str]) -> dict[str, str] | None:
            endpoint = _endpoint(labels["route"])
            return None if endpoint is None else {"endpoint": endpoint}

        def by_endpoint_and_status(labels: dict[str, str]) -> dict[str, str] | None:
            endpoint = _endpoint(labels["route"])
            status = {"2xx": "Success", "4xx": "ClientError"}.get(labels["status_class"], "ServerError")
            return None if endpoint is None else {"endpoint": endpoint, "status": status}

        def by_chain_key(labels: dict[str, str]) -> dict[str, str] | None:
            key = ours.chain_key(labels["chain"])
            return None if key is None else {"chain_key": str(key)}

        yield _alias("prover_build_info", ours.build_info, _same)
        yield _alias("prover_http_requests", ours.http_requests_total, _same)
        yield _alias("proof_gen_requests", ours.http_requests_total, by_endpoint_and_status)
        yield _alias("prover_http_request_duration_seconds", ours.http_request_duration_seconds, _same)
        yield _alias("proof_gen_request_duration_seconds", ours.http_request_duration_seconds, by_endpoint)
        yield _alias("prover_http_inflight_requests", ours.http_requests_in_flight, _same)
        yield _alias("proof_gen_requests_in_flight", ours.admission_in_flight, _process_wide)
        yield _alias("proof_gen_requests_rejected", ours.admission_rejected_total, _reason)
        yield _alias("prover_prove_transaction_outcome", ours.proof_outcome_total, _outcome)
        yield _alias("proof_gen_errors", ours.proof_outcome_total, _error)
        yield _alias("prover_prove_transaction_duration_seconds", ours.proof_duration_seconds, _unlabelled)
        yield _alias("proof_gen_merkle_generation_duration_seconds", ours.merkle_build_duration_seconds, _unlabelled)
        yield _alias("prover_queue_wait_duration_seconds", ours.fill_queue_wait_duration_seconds, _unlabelled)
        yield _alias("prover_queue_waiting_requests", ours.fill_waiting, _unlabelled)
        yield _alias("proof_gen_last_attested_height", ours.chain_attested_head, by_chain_key, drop_zero=True)
        yield _alias("proof_gen_last_proof_generation_timestamp_seconds", ours.last_proof_timestamp_seconds, _same)
        yield _alias("proof_gen_start_time_seconds", ours.start_time_seconds, _same)
        yield _alias("prover_panics", ours.unhandled_exceptions_total, _same)


def _alias(name: str, metric: MetricWrapperBase, relabel: Relabel, *, drop_zero: bool = False) -> Metric:
    """The samples of one of our metrics under another name; those that `relabel` gives the same labels are added up.

    `drop_zero` leaves out a value that is not known yet, where the alias has no series for that."""
    (ours,) = metric.collect()
    # All samples of one label set together, as OpenMetrics wants the parts of a histogram.
    groups: dict[tuple[tuple[str, str], ...], dict[tuple[str, str | None], float]] = {}
    for sample in ours.samples:
        suffix = sample.name.removeprefix(ours.name)
        if suffix == "_created" or (drop_zero and not sample.value):
            continue
        labels = relabel({key: value for key, value in sample.labels.items() if key != "le"})
        if labels is not None:
            group = groups.setdefault(tuple(labels.items()), {})
            part = (suffix, sample.labels.get("le"))
            group[part] = group.get(part, 0.0) + sample.value
    alias = Metric(name, ours.documentation, ours.type)
    for series, group in groups.items():
        for (suffix, bound), value in group.items():
            alias.add_sample(name + suffix, dict(series) if bound is None else {**dict(series), "le": bound}, value)
    return alias


def _endpoint(route: str) -> str | None:
    return next((endpoint for prefix, endpoint in _ENDPOINTS if route.startswith(prefix)), None)


def _same(labels: dict[str, str]) -> dict[str, str] | None:
    return labels


def _unlabelled(_: dict[str, str]) -> dict[str, str] | None:
    return {}


def _process_wide(labels: dict[str, str]) -> dict[str, str] | None:
    return {} if labels["chain"] == NO_CHAIN else None


def _reason(labels: dict[str, str]) -> dict[str, str] | None:
    reason = _REASONS.get(labels["reason"])
    return None if reason is None else {"reason": reason}


def _outcome(labels: dict[str, str]) -> dict[str, str] | None:
    return {"outcome": labels["outcome"]}


def _error(labels: dict[str, str]) -> dict[str, str] | None:
    return None if labels["outcome"] in _NO_ERRORS else {"error_type": labels["outcome"]}
