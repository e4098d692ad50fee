"""What can be configured: frozen models with the names and defaults of the configuration file.

Values that are secret, or may hold one, are kept out of every `repr`; `redacted` says what may be shown of them.
Durations are seconds (`_secs`), sizes bytes (`_bytes`). A limit is never zero, "no limit" is an explicit null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from app.settings.kinds import (
    AnchorUrl,
    BlockStoreUrl,
    Count,
    DatabaseUrl,
    File,
    Headers,
    Height,
    Host,
    Name,
    Network,
    Origin,
    PepperText,
    Price,
    Rate,
    Seconds,
    SecondsOrZero,
    Size,
    SubscriptionUrl,
    UpstreamUrl,
    no_boolean,
    priced_methods,
    switch_word,
)

Family = Literal[
    "ethereum", "op-stack", "arbitrum", "polygon", "celo", "gnosis", "bsc", "tempo", "frontier", "hyperliquid"
]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class TlsSettings(Model):
    certificate: File | None = None
    private_key: File | None = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key go together")
        return self


class CorsSettings(Model):
    allow_origins: tuple[Origin, ...] = ("*",)


class AdmissionSettings(Model):
    max_in_flight_requests: Count | None = 64
    max_in_flight_per_chain: Count | None = 32
    max_warm_in_flight: Count | None = 256
    request_timeout_secs: Seconds = 120.0


class RateSettings(Model):
    enabled: bool = False
    # Wide of anything that is meant, and such that neither the fields of an answer nor the integers of the database overflow.
    per_second: Annotated[Rate, Field(ge=1e-5, le=1e6)] = 20.0
    burst: Annotated[Count, Field(le=10**9)] = 60


class ConsumerSettings(Model):
    api_keys_required: bool = False
    pepper: PepperText | None = Field(default=None, repr=False)
    pepper_file: File | None = Field(default=None, repr=False)
    max_in_flight: Count | None = None
    rate: RateSettings = RateSettings()
    expected_replicas: Count = 1
    trusted_proxies: tuple[Network, ...] = ()

    @property
    def told_apart(self) -> bool:
        """Whether anything is configured for which it matters who asks."""
        return self.api_keys_required or self.pepper is not None or self.max_in_flight is not None or self.rate.enabled


class SaturationSettings(Model):
    threshold_secs: SecondsOrZero = 10.0
    expiry_secs: Seconds = 60.0


class ShutdownSettings(Model):
    lame_duck_secs: SecondsOrZero = 10.0
    drain_secs: Seconds | None = None


class BuildSettings(Model):
    processes: Literal["auto"] | Annotated[int, BeforeValidator(no_boolean), Field(ge=0, le=256)] = "auto"


class LoggingSettings(Model):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] | None = None


class MetricsSettings(Model):
    compat_names: bool = False


class UpstreamSettings(Model):
    """One node that a chain reads from."""

    name: Name
    url: UpstreamUrl = Field(repr=False)
    url_file: File | None = Field(default=None, repr=False)
    ws_url: SubscriptionUrl | None = Field(default=None, repr=False)
    ws_url_file: File | None = Field(default=None, repr=False)
    derives_from: str | None = None
    priority: Height | None = None
    headers: Headers = Field(default_factory=dict, repr=False)
    headers_file: File | None = Field(default=None, repr=False)
    max_concurrent: Count | None = None
    price: Literal["alchemy", "infura", "flat"] | Annotated[Mapping[str, Price], AfterValidator(priced_methods)] = (
        "flat"
    )
    units_per_second: Rate | None = None
    units_per_day: Rate | None = None

    @model_validator(mode="after")
    def _subscribes_beside_http(self) -> Self:
        if self.ws_url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(
                "ws_url goes with a url that is http:// or https://; over another WebSocket everything goes anyway"
            )
        return self


class RoutingSettings(Model):
    frontier_freshness_blocks: Count = 256
    primary_grace_secs: SecondsOrZero = 6.0
    attempt_timeout_secs: Seconds = 20.0
    primary_retry_cap_secs: Seconds = 2.0
    hedge: Annotated[Literal["off", "on"], BeforeValidator(switch_word)] = "off"


class FinalitySettings(Model):
    mode: Literal["tag", "depth"] = "tag"
    depth: Count = 64


class CacheSettings(Model):
    max_concurrent_block_fills: Count = 16
    max_queued_fills: Count = 64
    merkle_max_bytes: Size = 256 * 2**20
    merkle_retention_blocks: Count | None = None
    merkle_backfill_enabled: bool = True


class AnchorSettings(Model):
    source: Literal["none", "self", "static", "creditcoin"] = "none"
    genesis: Height | None = None
    interval: Count = 10
    checkpoint_every: Count = 10
    url: AnchorUrl | None = Field(default=None, repr=False)
    url_file: File | None = Field(default=None, repr=False)
    path: File | None = None

    @model_validator(mode="after")
    def _source_has_its_place(self) -> Self:
        if self.source == "creditcoin" and self.url is None:
            raise ValueError("source creditcoin needs url, the node that the anchors are read from")
        return self


class ChainSettings(Model):
    """One source chain. `upstream_list` is what it reads from, in whichever form that was written."""

    chain_key: Annotated[int, BeforeValidator(no_boolean), Field(ge=0, le=2**63 - 1)]
    name: Name
    chain_id: Count | None = None
    family: Family = "ethereum"
    eth_rpc_url: UpstreamUrl | None = Field(default=None, repr=False)
    eth_rpc_url_file: File | None = Field(default=None, repr=False)
    eth_rpc_fallback_urls: tuple[UpstreamUrl, ...] = Field(default=(), repr=False)
    eth_rpc_fallback_urls_file: File | None = Field(default=None, repr=False)
    eth_rpc_fallbacks_derive_from_primary: bool = False
    upstreams: tuple[UpstreamSettings, ...] = ()
    routing: RoutingSettings = RoutingSettings()
    finality: FinalitySettings = FinalitySettings()
    cache: CacheSettings = CacheSettings()
    anchors: AnchorSettings = AnchorSettings()

    @model_validator(mode="before")
    @classmethod
    def _named_by_its_key(cls, data: object) -> object:
        if isinstance(data, Mapping) and data.get("name") is None and "chain_key" in data:
            return {**data, "name": f"chain-{data['chain_key']}"}
        return data

    @field_validator("name")
    @classmethod
    def _is_no_route(cls, name: str) -> str:
        if name == "verify":
            raise ValueError("must not be verify, which is a route beside the chains")
        if name == "http":
            raise ValueError("must not be http, which is the gate of the whole process in metrics")
        return name

    @property
    def upstream_list(self) -> tuple[UpstreamSettings, ...]:
        """The nodes to read from, primary first; the short form names them primary, fallback-1, fallback-2, ..."""
        if self.eth_rpc_url is None:
            return self.upstreams
        fallbacks = enumerate(self.eth_rpc_fallback_urls, start=1)
        source = "primary" if self.eth_rpc_fallbacks_derive_from_primary else None
        return (
            UpstreamSettings(name="primary", url=self.eth_rpc_url),
            *(UpstreamSettings(name=f"fallback-{number}", url=url, derives_from=source) for number, url in fallbacks),
        )

    @model_validator(mode="after")
    def _upstreams_are_told_apart(self) -> Self:
        if self.upstreams and (self.eth_rpc_url is not None or self.eth_rpc_fallback_urls):
            raise ValueError("gives upstreams both ways: use eth_rpc_url and eth_rpc_fallback_urls, or upstreams")
        if self.upstreams and self.eth_rpc_fallbacks_derive_from_primary:
            raise ValueError("has no fallbacks to derive: in the long form give derives_from of each upstream")
        if not self.upstream_list:
            raise ValueError("has no upstream: give eth_rpc_url, or upstreams")
        names = [upstream.name for upstream in self.upstream_list]
        if len(set(names)) < len(names):
            raise ValueError("has two upstreams of the same name")
        if len({upstream.url for upstream in self.upstream_list}) < len(names):
            raise ValueError("has two upstreams of the same URL")
        for upstream in self.upstreams:
            if upstream.derives_from is not None and upstream.derives_from not in {*names} - {upstream.name}:
                raise ValueError(f"derives_from of upstream {upstream.name} must name another upstream of the chain")
        return self


class BlockStoreSettings(Model):
    local_path: File | None = "blocks"
    max_bytes: Size = 10 * 2**30
    max_age_secs: Seconds | None = 30 * 86400.0
    shared: bool | None = None


class Settings(Model):
    bind_host: Host = "127.0.0.1"
    bind_port: Annotated[int, BeforeValidator(no_boolean), Field(ge=0, le=65535)] = 3100
    tls: TlsSettings = TlsSettings()
    cors: CorsSettings = CorsSettings()
    database_url: DatabaseUrl = Field(default="sqlite+aiosqlite:///copath.db", repr=False)
    database_url_file: File | None = Field(default=None, repr=False)
    block_store_url: BlockStoreUrl | None = Field(default="file:blocks", repr=False)
    block_store: BlockStoreSettings = BlockStoreSettings()
    max_batch_size: Count = 10
    max_batch_span: Count = 1000
    admission: AdmissionSettings = AdmissionSettings()
    consumers: ConsumerSettings = ConsumerSettings()
    saturation: SaturationSettings = SaturationSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    build: BuildSettings = BuildSettings()
    logging: LoggingSettings = LoggingSettings()
    metrics: MetricsSettings = MetricsSettings()
    chains: Annotated[tuple[ChainSettings, ...], Field(min_length=1)]

    @property
    def drain_secs(self) -> float:
        """How long requests in flight may take to end once no new ones are accepted."""
        given = self.shutdown.drain_secs
        return self.admission.request_timeout_secs + 5 if given is None else given
