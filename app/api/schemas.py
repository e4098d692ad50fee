"""What the bodies look like, for the documentation: responses are written by `wire` and never built from these
models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema, models_json_schema

from app.api.problems import PROBLEMS
from app.core.diagnosis import Reason

Hex = Annotated[str, Field(pattern="^0x([0-9a-f]{2})*$", description="Bytes as lower-case 0x-hex.")]
AnyHex = Annotated[
    str, Field(pattern="^(0[xX])?([0-9a-fA-F]{2})*$", description="Bytes as hex, any case, 0x optional.")
]
Hash = Annotated[str, Field(pattern="^0x[0-9a-f]{64}$")]
AnyHash = Annotated[
    str, Field(pattern="^(0[xX])?[0-9a-fA-F]{64}$", description="32 bytes as hex, any case, 0x optional.")
]
Decimal = Annotated[str, Field(pattern="^(0|[1-9][0-9]*)$", description="A decimal number as a string.")]

Omitted = SkipJsonSchema[None]
"""In a union with the type of a field: the field is left out where it has no value, and never null."""

U64_SCHEMA: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
EXACT_SCHEMA: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}
TX_HASH_SCHEMA: dict[str, Any] = {"type": "string", "pattern": "^(0[xX])*[0-9a-fA-F]{64}$"}


# Path parameters are declared for the documentation: their form is shown here, and enforced by `inputs` alone.
_CHAIN_KEY: dict[str, Any] = {"type": "string", "pattern": "^[0-9]{1,19}$"}
_CHAIN: dict[str, Any] = {"type": "string", "pattern": "^([0-9]{1,19}|[a-z][a-z0-9-]{0,63})$"}
_HEIGHT: dict[str, Any] = {"anyOf": [U64_SCHEMA, {"type": "string", "pattern": "^0[xX][0-9a-fA-F]{1,16}$"}]}
_BLOCK: dict[str, Any] = {
    "anyOf": [EXACT_SCHEMA, {"type": "string", "pattern": "^((0[xX])?[0-9a-fA-F]{64}|0[xX][0-9a-fA-F]{1,13})$"}]
}
ChainKeyPath = Annotated[str, WithJsonSchema(_CHAIN_KEY), Path(description="Configured chain key, a decimal number.")]
ChainPath = Annotated[str, WithJsonSchema(_CHAIN), Path(description="Chain key or chain name.")]
HeightPath = Annotated[str, WithJsonSchema(_HEIGHT), Path(description="Height, decimal or 0x-hex.")]
TxHashPath = Annotated[
    str, WithJsonSchema(TX_HASH_SCHEMA), Path(description="Transaction hash, any case, 0x optional.")
]
BlockPath = Annotated[
    str,
    WithJsonSchema(_BLOCK),
    Path(description="Block hash (64 hex digits, 0x optional), or height (decimal or 0x-hex)."),
]
IndexPath = Annotated[str, WithJsonSchema(EXACT_SCHEMA), Path(description="Index from 0.")]
U64IndexPath = Annotated[str, WithJsonSchema(U64_SCHEMA), Path(description="Index from 0.")]

U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
Exact = Annotated[int, Field(ge=0, le=2**53 - 1)]


class _Body(BaseModel):
    """Field names as written."""


class CamelBody(BaseModel):
    """Field names in camelCase on the wire."""

    model_config = ConfigDict(alias_generator=to_camel)


class FinalityStatement(CamelBody):
    """How final the block is, and on whose word."""

    level: Literal["latest", "safe", "finalized"]
    by: Literal["rpc-tag", "depth", "quorum"]
    sources: Exact


class ProvenLog(CamelBody):
    """One log, with both of its coordinates."""

    address: Hex
    topics: list[Hash]
    data: Hex
    index_in_receipt: Exact
    index_in_block: Exact
    rlp: Hex


class NativeProof(CamelBody):
    """`value` stands under `key` in the Merkle-Patricia trie of `root`, which the header commits to."""

    format: Literal["copath/1"]
    kind: Literal["transaction", "receipt", "log"]
    chain_key: Decimal
    chain_id: Decimal
    block_number: Exact
    block_hash: Hash
    header_rlp: Hex
    finality: FinalityStatement
    transaction_hash: Hash
    transaction_hash_by: Annotated[
        Literal["rpc"] | Omitted,
        Field(
            description="Where the block's transactions cannot be proven: the hash is the node's word, not proven.",
        ),
    ] = None
    transaction_index: Exact
    root: Hash
    key: Hex
    value: Hex
    nodes: list[Hex]
    log: Annotated[ProvenLog | Omitted, Field(description="Of log proofs.")] = None
    encodings: Annotated[dict[str, Hex] | Omitted, Field(description="The encodings asked for, by name.")] = None


class Sibling(CamelBody):
    """A neighbour on the way to the root."""

    hash: Hash
    is_left: bool


class MerkleProof(CamelBody):
    """Siblings, leaf level first."""

    root: Hash
    siblings: list[Sibling]


class ContinuityProofBody(CamelBody):
    """Roots of consecutive heights up to an anchor, and the digest below the first."""

    lower_endpoint_digest: Hash
    roots: list[Hash]


class UscProof(CamelBody):
    """A usc proof of one transaction."""

    chain_key: U64
    header_number: U64
    tx_index: U64
    tx_hash: Hash
    tx_bytes: Hex
    continuity_proof: ContinuityProofBody
    merkle_proof: MerkleProof
    cached: bool
    generated_at: Annotated[str, Field(description="RFC 3339, UTC.")]


class Verdict(_Body):
    """Whether a proof holds; if not, the first thing that is wrong with it."""

    valid: bool
    reason: Reason
    node: Annotated[Exact | None, Field(description="Which node, from the root down.")]
    nibble: Annotated[Exact | None, Field(description="How many nibbles into the key.")]
    field: Annotated[str | None, Field(examples=["log.topics[1]"])]
    expected: Annotated[Exact | str | None, Field(description="What the trusted side demands.")]
    found: Annotated[Exact | str | None, Field(description="What the proof has.")]
    message: str


class NewestAttested(CamelBody):
    """The newest height that an anchor covers."""

    attested_height: U64 | None


class ChainAnchors(CamelBody):
    """Where anchors come from; `self` is accepted by no chain. `state` (`ok`, `unread`, `stale` or `refused`), `age_seconds` and
    `reason` tell how it goes to read those of others, `as_of_height` of which block of Creditcoin they are; `stalled` what keeps
    them from being made or read now."""

    source: Literal["none", "self", "static", "creditcoin"]
    genesis: Exact | None
    attested_height: Exact | None
    checkpoint_height: Exact | None
    state: Literal["ok", "unread", "stale", "refused"] | Omitted = None
    age_seconds: float | Omitted = None
    as_of_height: Exact | None = None
    as_of_age_seconds: float | Omitted = None
    reason: str | Omitted = None
    stalled: str | Omitted = None
    note: str | Omitted = None


BackfillState = Literal[
    "off",
    "done by another replica",
    "waiting for the database",
    "waiting for a finalized height",
    "filling",
    "failing",
    "out of budget",
    "caught up",
]


class ChainBackfill(CamelBody):
    """Blocks filled ahead of requests: the heights that are to be (lowest and highest), how many are missing, the lowest done."""

    state: BackfillState
    window: Annotated[list[Exact], Field(min_length=2, max_length=2)] | None
    remaining: Exact | None
    lowest: Exact | None
    error: str | Omitted = None


class UpstreamCapabilities(CamelBody):
    """What was learned of an upstream, and what it may be asked for."""

    receipts: Literal["by-block", "by-transaction"]
    receipts_form: str | None
    batch_limit: Exact
    pruned_below: Exact | None
    connections: Exact
    body_bytes: Exact


class UpstreamStatus(CamelBody):
    """One upstream, by the name that the configuration gives it."""

    name: str
    state: Annotated[str, Field(description="One word; more may be added.", examples=["ok"])]
    derives_from: str | None
    chain_id: Decimal | None
    head: Exact | None
    head_age_seconds: float | None
    lag: Exact | None
    latency_ms: float | None
    breaker: Literal["closed", "half-open", "open"]
    cooldown_seconds: float
    subscription: Annotated[str | None, Field(description="One word; null where there is none.")]
    trusted: bool
    budget_used: float | None
    capabilities: UpstreamCapabilities


class ChainCache(CamelBody):
    """Blocks in memory."""

    blocks: Exact
    bytes: Exact


Family = Literal[
    "ethereum", "op-stack", "arbitrum", "polygon", "celo", "gnosis", "bsc", "tempo", "frontier", "hyperliquid"
]


class ChainStatus(CamelBody):
    """One chain: what can be proven on it, how far it is, and how its upstreams fare (by name, never by address)."""

    chain_key: Decimal
    chain_id: Decimal | None
    name: str
    family: Family
    kinds: list[Literal["transaction", "receipt", "log", "usc"]]
    head: Exact | None
    safe: Exact | None
    finalized: Exact | None
    finality_by: Annotated[Literal["rpc-tag", "depth", "quorum"], Field(description="On whose word finality stands.")]
    finality_sources: Exact
    head_age_seconds: float | None
    anchors: ChainAnchors
    backfill: ChainBackfill
    cache: ChainCache
    upstreams: list[UpstreamStatus]
    servable: bool
    saturated: bool
    reasons: list[str]


class ChainList(CamelBody):
    """Every configured chain, by ascending key."""

    chains: list[ChainStatus]


class Alive(_Body):
    """Whether the event loop turns."""

    status: Literal["alive", "dead"]


class Health(_Body):
    """Whether a load balancer should send requests here."""

    status: Literal["ok", "unhealthy"]
    reason: Annotated[Literal["starting", "draining", "saturated"] | Omitted, Field(description="Of `unhealthy`.")] = (
        None
    )


class ChainReadiness(_Body):
    """One chain's part in the readiness of this replica."""

    servable: bool
    reasons: list[str]


class Readiness(_Body):
    """Whether this replica can serve, and why not."""

    ready: bool
    reasons: list[str]
    eth_rpc_connected: bool | None
    cc3_finalized_height: U64 | None
    cc3_finalized_age_seconds: U64 | None
    cc3_snapshot_height: U64 | None
    chains: dict[str, ChainReadiness]


class CompatHealth(_Body):
    """The reference server's health body; `chains` is ours."""

    status: Literal["healthy", "degraded"]
    cc3_rpc_connected: bool | None
    eth_rpc_connected: bool | None
    uptime_seconds: U64
    cc3_cache_fresh: bool
    cc3_cache_age_seconds: U64 | None
    cc3_finalized_height: U64 | Omitted = None
    cc3_finalized_age_seconds: U64 | Omitted = None
    cc3_silent_recoveries: U64
    ready: bool
    not_ready_reasons: list[str]
    chains: dict[str, ChainReadiness]


class ErrorBody(_Body):
    """An error on the compatible routes."""

    code: Annotated[str, Field(json_schema_extra={"enum": sorted(PROBLEMS)})]
    message: str
    retriable: Annotated[
        bool, Field(description="Whether the same request may succeed later; `Retry-After` says when.")
    ]
    block_number: Annotated[U64 | Omitted, Field(description="BlockNotReady only.")] = None
    last_attested_block: Annotated[U64 | Omitted, Field(description="BlockNotReady only.")] = None


class ProblemBody(ErrorBody):
    """An error everywhere else: the same fields in a problem document (RFC 9457)."""

    type: Annotated[str, Field(examples=["urn:copath:problem:TxHashNotFound"])]
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    instance: Annotated[str, Field(description="Names the request by its id.")]


class Anchor(_Body):
    """A height of the attestation chain that is trusted, and its digest."""

    height: Annotated[U64 | Decimal, Field(description="A number, or the same in decimal as a string.")]
    digest: AnyHash


class TrieProof(_Body):
    """The raw form of a proof in a Merkle-Patricia trie."""

    kind: Literal["trie"]
    root: AnyHash
    key: AnyHex
    value: Annotated[AnyHex | None, Field(description="null claims that the key is not in the trie.")]
    nodes: Annotated[list[AnyHex], Field(description="From the root down.")]


def schemas_of(*models: type[BaseModel]) -> dict[str, Any]:
    """The JSON schemas of models and of what they hold, by component name."""
    _, found = models_json_schema(
        [(model, "serialization") for model in models], ref_template="#/components/schemas/{model}"
    )
    schemas: dict[str, Any] = found["$defs"]
    for schema in schemas.values():
        for field in schema.get("properties", {}).values():
            if field.get("default", "") is None:  # of a field that is left out instead
                del field["default"]
    return schemas
