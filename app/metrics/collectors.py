"""The collectors themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector

from app.metrics.block_store import BlockStoreMetrics
from app.metrics.compat import CompatNames
from app.metrics.exposition import expose
from app.metrics.labels import (
    CACHE_REJECT_REASONS,
    CACHE_RESULTS,
    CONTENT_CHECKS,
    EVICTION_REASONS,
    EXCEPTION_SOURCES,
    FILL_CLASSES,
    FILL_RESULTS,
    NO_CHAIN,
    OUTCOMES,
    PROOF_KINDS,
    PURPOSES,
    REJECT_REASONS,
    REJECTED_INPUTS,
    ROUTES_TAKEN,
    STATUS_CLASSES,
    TRIES,
    UPSTREAM_METHODS,
    UPSTREAM_RESULTS,
)
from app.metrics.lasting import LastingMetrics
from app.metrics.making import Maker
from app.metrics.making import seed as _seed

_LATENCY = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 8.5, 15.0, 30.0, 60.0, 120.0)
_BUILD = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096)
_LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
_DEPTH = (1, 2, 3, 5, 8, 13, 21, 34, 64, 128, 256)


class Metrics(LastingMetrics, BlockStoreMetrics):
    """The collectors of one process. `queue_wait_limit_s` is how long a fill may wait for its permit: the last finite bucket
    of the wait histogram, so that a wait that ran out is told from one that nearly did."""

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        version: str = "unknown",
        git_sha: str = "unknown",
        compat_names: bool = False,
        queue_wait_limit_s: float = 24.0,
    ) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        self.registry = registry
        self._chain_keys: dict[str, int] = {}
        self._before_scrape: list[Callable[[], None]] = []

        make = Maker(registry)
        counter, gauge, histogram = make.counter, make.gauge, make.histogram

        self.build_info = gauge("build_info", "Version in use; always 1.", "version", "git_sha")
        self.start_time_seconds = gauge("start_time_seconds", "When this process began to serve, Unix time.")
        self.last_proof_timestamp_seconds = gauge(
            "last_proof_timestamp_seconds", "When the last proof left, Unix time."
        )
        self.draining = gauge("draining", "1 from the shutdown signal on.")
        self.task_up = gauge("task_up", "1 while a background task runs.", "name")
        self.unhandled_exceptions_total = counter(
            "unhandled_exceptions_total", "Faults nobody caught, by where.", "source"
        )
        self.event_loop_lag_seconds = histogram("event_loop_lag_seconds", "How late the event loop woke up.", _LAG)

        self.http_requests_total = counter(
            "http_requests_total", "Requests, by route template and class of status.", "method", "route", "status_class"
        )
        self.http_request_duration_seconds = histogram(
            "http_request_duration_seconds",
            "From the request to the last byte of its answer.",
            _LATENCY,
            "method",
            "route",
        )
        self.http_requests_in_flight = gauge("http_requests_in_flight", "Requests being answered, probes left out.")

        self.admission_in_flight = gauge("admission_in_flight", "Places taken at the door.", "scope", "chain")
        self.admission_limit = gauge("admission_limit", "Places at the door.", "scope", "chain")
        self.admission_rejected_total = counter(
            "admission_rejected_total", "Requests refused before any work.", "reason"
        )
        self.saturated = gauge("saturated", "1 while a gate has refused for longer than the threshold.", "gate")
        self.saturation_open_seconds = gauge("saturation_open_seconds", "How long a gate has been refusing.", "gate")
        self.rejected_inputs_total = counter(
            "rejected_inputs_total", "Requests that were refused for what they ask, by why.", "reason"
        )
        self.consumer_ratelimit_decisions_total = counter(
            "consumer_ratelimit_decisions_total", "Decisions on a consumer's rate.", "decision", "layer"
        )
        self.ratelimit_backend_errors_total = counter(
            "ratelimit_backend_errors_total", "Failed calls to the shared rate limits.", "op"
        )
        self.ratelimit_backend_duration_seconds = histogram(
            "ratelimit_backend_duration_seconds", "Calls to the shared rate limits.", _LATENCY, "op"
        )

        self.proof_outcome_total = counter(
            "proof_outcome_total", "Proof requests, served or not, by what became of them.", "outcome", "chain"
        )
        self.proof_duration_seconds = histogram("proof_duration_seconds", "Proofs that were served.", _LATENCY, "cache")
        self.selfcheck_failures_total = counter(
            "selfcheck_failures_total", "Answers that the independent verifier refused.", "chain", "kind"
        )
        self.merkle_build_duration_seconds = histogram(
            "merkle_build_duration_seconds", "Building one block's tries and tree.", _BUILD, "chain"
        )
        self.builder_pool_breaks_total = counter(
            "builder_pool_breaks_total", "Times a builder process died under its work."
        )

        self.fill_total = counter("fill_total", "Fills that ended.", "chain", "class", "result")
        self.fill_duration_seconds = histogram(
            "fill_duration_seconds", "Fills, from the permit to the settled block.", _LATENCY, "chain", "class"
        )
        self.fill_queue_wait_duration_seconds = histogram(
            "fill_queue_wait_duration_seconds",
            "Waiting for a permit that was then given.",
            sorted({b for b in _LATENCY if b < queue_wait_limit_s} | {queue_wait_limit_s}),
            "chain",
            "class",
        )
        self.fill_waiting = gauge("fill_waiting", "Fills waiting for a permit.", "chain", "class")
        self.fill_running = gauge("fill_running", "Fills that hold a permit.", "chain", "class")
        self.singleflight_joins_total = counter(
            "singleflight_joins_total", "Callers that joined a fill in flight.", "chain"
        )
        self.singleflight_handover_total = counter(
            "singleflight_handover_total", "Fills begun again by a caller whose first fill failed.", "chain"
        )
        self.singleflight_memo_hits_total = counter(
            "singleflight_memo_hits_total", "Callers answered with a failure still remembered.", "chain"
        )
        self.block_cache_requests_total = counter(
            "block_cache_requests_total", "Look-ups of blocks.", "chain", "result"
        )
        self.block_cache_bytes = gauge("block_cache_bytes", "Size of the settled blocks.", "chain")
        self.block_cache_entries = gauge("block_cache_entries", "Number of the settled blocks.", "chain")
        self.block_cache_evictions_total = counter(
            "block_cache_evictions_total", "Settled blocks let go.", "chain", "reason"
        )
        self.block_cache_admission_rejected_total = counter(
            "block_cache_admission_rejected_total", "Blocks served but not kept.", "chain", "reason"
        )

        self.upstream_requests_total = counter(
            "upstream_requests_total", "Calls to upstreams.", "chain", "upstream", "method", "result"
        )
        self.upstream_request_duration_seconds = histogram(
            "upstream_request_duration_seconds",
            "Calls to upstreams, without the wait for a connection.",
            _LATENCY,
            "chain",
            "upstream",
            "method",
        )
        self.upstream_up = gauge("upstream_up", "1 while an upstream is asked and answers.", "chain", "upstream")
        self.upstream_batch_limit = gauge(
            "upstream_batch_limit", "Calls that an upstream takes in one batch; 0 while unknown.", "chain", "upstream"
        )
        self.upstream_pool_timeouts_total = counter(
            "upstream_pool_timeouts_total", "Calls that found no free connection: ours to mend.", "chain", "upstream"
        )
        self.upstream_head_block = gauge(
            "upstream_head_block", "Newest height an upstream showed.", "chain", "upstream"
        )
        self.upstream_head_age_seconds = gauge(
            "upstream_head_age_seconds", "Since an upstream's head last moved.", "chain", "upstream"
        )
        self.upstream_lag_blocks = gauge("upstream_lag_blocks", "Behind the highest head seen.", "chain", "upstream")
        self.upstream_breaker_state = gauge(
            "upstream_breaker_state", "0 closed, 1 half open, 2 open.", "chain", "upstream"
        )
        self.upstream_cooldown_seconds = gauge(
            "upstream_cooldown_seconds", "Until a rate limited upstream is asked again.", "chain", "upstream"
        )
        self.upstream_units_total = counter(
            "upstream_units_total",
            "Units that calls to upstreams cost, in the provider's own.",
            "chain",
            "upstream",
            "purpose",
        )
        self.upstream_budget_used_ratio = gauge(
            "upstream_budget_used_ratio",
            "Share of today's units of an upstream's account that is spent.",
            "chain",
            "upstream",
        )
        self.upstream_subscription_live = gauge(
            "upstream_subscription_live", "1 while an upstream announces its blocks.", "chain", "upstream"
        )
        self.upstream_announcements_total = counter(
            "upstream_announcements_total", "Blocks that upstreams announced.", "chain", "upstream"
        )
        self.upstream_connections_total = counter(
            "upstream_connections_total", "WebSockets opened to upstreams.", "chain", "upstream"
        )
        self.upstream_route_total = counter("upstream_route_total", "How upstreams were chosen.", "chain", "route")
        self.content_invalid_total = counter(
            "content_invalid_total", "Upstream data that failed a check.", "chain", "upstream", "check"
        )
        self.source_disagreement_total = counter(
            "source_disagreement_total", "Times upstreams came to contradict each other about what is final.", "chain"
        )
        self.root_mismatch_total = counter(
            "root_mismatch_total", "Rebuilt roots that differ from the header's.", "chain", "upstream", "trie"
        )
        self.unknown_header_fields_total = counter(
            "unknown_header_fields_total", "Blocks whose header has fields unknown here: a fork?", "chain"
        )
        self.unsupported_transaction_type_total = counter(
            "unsupported_transaction_type_total", "Blocks with a transaction type unknown here.", "chain", "type"
        )
        self.retry_budget_exhausted_total = counter("retry_budget_exhausted_total", "Retries not made.", "chain")
        self.hedges_total = counter("hedges_total", "Second calls beside a slow first one.", "chain", "result")

        self.reorgs_total = counter("reorgs_total", "Reorganisations seen.", "chain")
        self.reorg_depth_blocks = histogram(
            "reorg_depth_blocks", "How many blocks a reorganisation undid.", _DEPTH, "chain"
        )
        self.chain_safe_head = gauge("chain_safe_head", "Newest height held to be safe.", "chain")
        self.chain_attested_head = gauge("chain_attested_head", "Newest anchored height.", "chain")
        self.anchor_age_seconds = gauge(
            "anchor_age_seconds", "Since anchors were last read from Creditcoin; since the start before that.", "chain"
        )
        self.anchor_polls_total = counter(
            "anchor_polls_total", "Readings of the anchors of Creditcoin.", "chain", "result"
        )
        self.anchor_reverts_total = counter(
            "anchor_reverts_total", "Times anchors that were read turned out not to stand any more.", "chain"
        )
        self._add_lasting(make)
        self._add_block_store(make)

        ProcessCollector(registry=registry)
        self.build_info.labels(version=version, git_sha=git_sha).set(1)
        self._seed_process()
        if compat_names:
            registry.register(CompatNames(self))

    def _seed_process(self) -> None:
        _seed(self.unhandled_exceptions_total, EXCEPTION_SOURCES)
        _seed(self.admission_in_flight, ("global", "warm"), (NO_CHAIN,))
        _seed(self.admission_limit, ("global", "warm"), (NO_CHAIN,))
        _seed(self.admission_rejected_total, REJECT_REASONS)
        _seed(self.rejected_inputs_total, REJECTED_INPUTS)
        _seed(self.saturated, ("http",))
        _seed(self.saturation_open_seconds, ("http",))
        _seed(self.consumer_ratelimit_decisions_total, ("allowed", "denied"), ("local", "shared", "fallback"))
        _seed(self.ratelimit_backend_errors_total, ("take", "purge", "ping", "keys"))
        _seed(self.proof_outcome_total, OUTCOMES, (NO_CHAIN,))
        _seed(self.selfcheck_failures_total, (NO_CHAIN,), (*PROOF_KINDS, "trie"))  # of proofs that came in

    def register_routes(self, routes: Iterable[tuple[str, str]]) -> None:
        """Lay the series of (method, route template) pairs."""
        for method, route in routes:
            _seed(self.http_requests_total, (method,), (route,), STATUS_CLASSES)

    def register_task(self, name: str) -> None:
        """Lay the series of a background task: down until it says otherwise."""
        _seed(self.task_up, (name,))

    def register_chain(self, chain: str, chain_key: int, upstreams: Sequence[str]) -> None:
        """Lay the series of a configured chain and its upstreams, all by name."""
        self._chain_keys[chain] = chain_key
        chains = (chain,)
        for per_chain in (
            self.singleflight_joins_total,
            self.singleflight_handover_total,
            self.singleflight_memo_hits_total,
            self.block_cache_bytes,
            self.block_cache_entries,
            self.unknown_header_fields_total,
            self.retry_budget_exhausted_total,
            self.source_disagreement_total,
            self.reorgs_total,
            self.reorg_depth_blocks,
            self.chain_safe_head,
            self.chain_attested_head,
            self.anchor_age_seconds,
            self.anchor_reverts_total,
            self.saturated,
            self.saturation_open_seconds,
        ):
            _seed(per_chain, chains)
        _seed(self.admission_in_flight, ("chain",), chains)
        _seed(self.admission_limit, ("chain",), chains)
        _seed(self.proof_outcome_total, OUTCOMES, chains)
        _seed(self.selfcheck_failures_total, chains, PROOF_KINDS)
        _seed(self.fill_total, chains, FILL_CLASSES, FILL_RESULTS)
        _seed(self.fill_waiting, chains, FILL_CLASSES)
        _seed(self.fill_running, chains, FILL_CLASSES)
        _seed(self.block_cache_requests_total, chains, CACHE_RESULTS)
        _seed(self.block_cache_evictions_total, chains, EVICTION_REASONS)
        _seed(self.block_cache_admission_rejected_total, chains, CACHE_REJECT_REASONS)
        _seed(self.upstream_route_total, chains, ROUTES_TAKEN)
        _seed(self.hedges_total, chains, ("won", "lost", "suppressed"))
        _seed(self.anchor_polls_total, chains, ("ok", "failed", "refused"))
        self._seed_lasting(chains)
        self._seed_block_store(chains)
        _seed(self.upstream_requests_total, chains, upstreams, UPSTREAM_METHODS, UPSTREAM_RESULTS)
        _seed(self.upstream_units_total, chains, upstreams, PURPOSES)
        _seed(self.content_invalid_total, chains, upstreams, CONTENT_CHECKS)
        _seed(self.root_mismatch_total, chains, upstreams, TRIES)
        for per_upstream in (
            self.upstream_up,
            self.upstream_batch_limit,
            self.upstream_pool_timeouts_total,
            self.upstream_head_block,
            self.upstream_head_age_seconds,
            self.upstream_lag_blocks,
            self.upstream_breaker_state,
            self.upstream_cooldown_seconds,
            self.upstream_budget_used_ratio,
            self.upstream_subscription_live,
            self.upstream_announcements_total,
            self.upstream_connections_total,
        ):
            _seed(per_upstream, chains, upstreams)

    def chain_key(self, chain: str) -> int | None:
        return self._chain_keys.get(chain)

    def exposition(self, accept_header: str | None) -> tuple[bytes, str]:
        """Body and content type of a scrape, OpenMetrics or Prometheus text, as the `Accept` header prefers."""
        parts, content_type = self.exposition_in_parts(accept_header)
        return b"".join(parts), content_type

    def exposition_in_parts(self, accept_header: str | None) -> tuple[Iterator[bytes], str]:
        """The same for an event loop, which has other things to do between two parts: all of them may take 10 ms a chain."""
        for publish in self._before_scrape:
            publish()
        return expose(self.registry, accept_header)

    def before_scrape(self, publish: Callable[[], None]) -> None:
        """`publish` is called at each scrape, before anything is read: for figures that others count in plain integers."""
        self._before_scrape.append(publish)
