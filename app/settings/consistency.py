"""What no single setting can tell: whether they fit together."""

from __future__ import annotations

from collections.abc import Iterator

from app.settings.models import AdmissionSettings, ChainSettings, RoutingSettings, Settings
from app.settings.tree import Path


def with_dependent_defaults(settings: Settings) -> Settings:
    """Defaults that nobody overrode shrink with the limit that somebody did set: a file that only lowers the request timeout,
    or only the places of the process, is complete."""
    admission = settings.admission
    places = admission.max_in_flight_requests
    if places is not None and "max_in_flight_per_chain" not in admission.model_fields_set:
        default = AdmissionSettings.model_fields["max_in_flight_per_chain"].default
        admission = admission.model_copy(update={"max_in_flight_per_chain": min(default, places)})
    chains = tuple(_with_stages_within(chain, admission.request_timeout_secs) for chain in settings.chains)
    return settings.model_copy(update={"admission": admission, "chains": chains})


def _with_stages_within(chain: ChainSettings, timeout_s: float) -> ChainSettings:
    shares = {
        "attempt_timeout_secs": timeout_s,
        "primary_grace_secs": 0.6 * timeout_s,
        "primary_retry_cap_secs": 0.2 * timeout_s,
    }
    update = {
        name: min(RoutingSettings.model_fields[name].default, share)
        for name, share in shares.items()
        if name not in chain.routing.model_fields_set
    }
    return chain.model_copy(update={"routing": chain.routing.model_copy(update=update)})


def conflicts(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Everything that does not fit: the key to blame, and why."""
    admission = settings.admission
    timeout_s = admission.request_timeout_secs
    places, per_chain = admission.max_in_flight_requests, admission.max_in_flight_per_chain
    if places is not None and (per_chain is None or per_chain > places):
        yield (
            ("admission", "max_in_flight_per_chain"),
            f"must not be above admission.max_in_flight_requests, which is {places}",
        )
    if settings.consumers.pepper is None:
        without = "needs consumers.pepper or pepper_file: what is stored of consumers is hashed with it"
        if settings.consumers.api_keys_required:
            yield ("consumers", "api_keys_required"), without
        if settings.consumers.rate.enabled:
            yield ("consumers", "rate", "enabled"), without
    names: set[str] = set()
    keys: set[int] = set()
    for chain in settings.chains:
        path = ("chains", str(chain.chain_key))
        if chain.name in names:
            yield (*path, "name"), "is the name of an earlier chain too"
        if chain.chain_key in keys:
            yield (*path, "chain_key"), "is the key of an earlier chain too"
        names.add(chain.name)
        keys.add(chain.chain_key)
        if chain.cache.merkle_backfill_enabled and chain.cache.max_concurrent_block_fills < 2:
            yield (
                (*path, "cache", "max_concurrent_block_fills"),
                "leaves backfill nothing beside the one permit that is reserved for requests: raise it to 2, "
                "or set merkle_backfill_enabled to false",
            )
        routing = chain.routing
        within = f"admission.request_timeout_secs, which is {timeout_s:g}"
        if routing.attempt_timeout_secs > timeout_s:
            yield (*path, "routing", "attempt_timeout_secs"), f"must not be above {within}"
        if routing.primary_grace_secs + routing.primary_retry_cap_secs > timeout_s:
            grace = (*path, "routing", "primary_grace_secs")
            yield grace, f"must, with primary_retry_cap_secs, not be above {within}"


def doubts(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Everything that is possible and hardly meant: the key to look at, and why."""
    timeout_s = settings.admission.request_timeout_secs
    if settings.drain_secs < timeout_s:
        yield (
            ("shutdown", "drain_secs"),
            f"is below admission.request_timeout_secs, which is {timeout_s:g}: requests that take longer are cut at a shutdown",
        )
    if settings.block_store.shared and settings.database_url.startswith("sqlite"):
        yield (
            ("block_store", "shared"),
            "several processes share what is in PostgreSQL, and database_url names SQLite: each fetches and builds for itself",
        )
    if settings.block_store.shared is not None and settings.block_store_url is None:
        yield ("block_store", "shared"), "has no effect: block_store_url is null"
