"""What the bodies look like, for the documentation: responses are written by `wire` and never built from these
models."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel

from app.api.problems import PROBLEMS
from app.core.diagnosis import Reason

Hex = Annotated[str, Field(pattern="^0x([0-9a-f]{2})*$", description="Bytes as lower-case 0x-hex.")]
Hash = Annotated[str, Field(pattern="^0x[0-9a-f]{64}$")]
Decimal = Annotated[str, Field(pattern="^(0|[1-9][0-9]*)$", description="A decimal number as a string.")]


def form(description: str, pattern: str, *examples: str) -> Any:
    """A path parameter for the documentation: its pattern is shown, and enforced by `inputs` alone."""
    return Path(description=description, examples=list(examples), json_schema_extra={"pattern": pattern})


U64_TEXT = "^[0-9]{1,20}$"
HEIGHT_TEXT = "^([0-9]{1,20}|0[xX][0-9a-fA-F]{1,16})$"
ChainKeyPath = Annotated[str, form("Configured chain key, unsigned 64-bit decimal.", U64_TEXT, "1")]
ChainPath = Annotated[str, form("Chain key or chain name.", "^([0-9]{1,20}|[a-z][a-z0-9-]*)$", "ethereum")]
HeightPath = Annotated[str, form("Height, decimal or 0x-hex.", HEIGHT_TEXT, "1000004")]
TxHashPath = Annotated[
    str, form("Transaction hash, any case, 0x optional.", "^(0[xX])*[0-9a-fA-F]{64}$", "0x" + "ab" * 32)
]
BlockPath = Annotated[
    str,
    form(
        "Block hash (64 hex digits, 0x optional), or height (decimal or 0x-hex).",
        "^((0[xX])?[0-9a-fA-F]{64}|[0-9]{1,16}|0[xX][0-9a-fA-F]{1,14})$",
        "22869878",
    ),
]
IndexPath = Annotated[str, form("Decimal index from 0.", U64_TEXT, "0")]

U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
Exact = Annotated[int, Field(ge=0, le=2**53 - 1)]


class _Body(BaseModel):
    """Field names as written."""

    model_config = ConfigDict(extra="allow")


class _CamelBody(BaseModel):
    """Field names in camelCase on the wire."""

    model_config = ConfigDict(extra="allow", alias_generator=to_camel)


class FinalityStatement(_CamelBody):
    """How final the block is, and on whose word."""

    level: Annotated[str, Field(pattern="^(latest|safe|finalized)$")]
    by: Annotated[str, Field(pattern="^(rpc-tag|depth|quorum)$")]
    sources: Exact


class ProvenLog(_CamelBody):
    """One log, with both of its coordinates."""

    address: Hex
    topics: list[Hash]
    data: Hex
    index_in_receipt: Exact
    index_in_block: Exact
    rlp: Hex


class NativeProof(_CamelBody):
    """`value` stands under `key` in the Merkle-Patricia trie of `root`, which the header commits to."""

    format: Annotated[str, Field(examples=["copath/1"])]
    kind: Annotated[str, Field(pattern="^(transaction|receipt|log)$")]
    chain_key: Decimal
    chain_id: Decimal
    block_number: Exact
    block_hash: Hash
    header_rlp: Hex
    finality: FinalityStatement
    transaction_hash: Hash
    transaction_hash_by: Annotated[
        str | None,
        Field(
            pattern="^rpc$",
            description="Where the block's transactions cannot be proven: the hash is the node's word, not proven.",
        ),
    ] = None
    transaction_index: Exact
    root: Hash
    key: Hex
    value: Hex
    nodes: list[Hex]
    log: ProvenLog | None = None
    encodings: Annotated[dict[str, Hex] | None, Field(description="The encodings asked for, by name.")] = None


class Sibling(_CamelBody):
    """A neighbour on the way to the root."""

    hash: Hash
    is_left: bool


class MerkleProof(_CamelBody):
    """Siblings, leaf level first."""

    root: Hash
    siblings: list[Sibling]


class ContinuityProofBody(_CamelBody):
    """Roots of consecutive heights up to an anchor, and the digest below the first."""

    lower_endpoint_digest: Hash
    roots: list[Hash]


class UscProof(_CamelBody):
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
    reason: Annotated[str, Field(json_schema_extra={"enum": list(get_args(Reason))})]
    node: Annotated[Exact | None, Field(description="Which node, from the root down.")]
    nibble: Annotated[Exact | None, Field(description="How many nibbles into the key.")]
    field: Annotated[str | None, Field(examples=["log.topics[1]"])]
    expected: Annotated[Exact | str | None, Field(description="What the trusted side demands.")]
    found: Annotated[Exact | str | None, Field(description="What the proof has.")]
    message: str


VERIFY_REQUEST: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "description": (
                    "What a proof route returned, or it under `proof`; a usc proof with the `anchor` that is trusted; or the raw "
                    "form of a trie proof, whose `value` null claims that the key is not in the trie."
                ),
                "properties": {
                    "kind": {"type": "string", "examples": ["trie"]},
                    "proof": {"type": "object"},
                    "anchor": {
                        "type": "object",
                        "properties": {"height": {"type": ["integer", "string"]}, "digest": {"type": "string"}},
                        "required": ["height", "digest"],
                    },
                    "root": {"type": "string"},
                    "key": {"type": "string"},
                    "value": {"type": ["string", "null"]},
                    "nodes": {"type": "array", "items": {"type": "string"}},
                },
            },
            "examples": {
                "trie": {
                    "summary": "A trie of one item",
                    "value": {
                        "kind": "trie",
                        "root": "0x0934a6a4a84a455b46bf2e427c90fbc07dbce3fd6fe5b9213cc6cd7c8030792c",
                        "key": "0x80",
                        "value": "0x61",
                        "nodes": ["0xc482208061"],
                    },
                }
            },
        }
    },
}


class AttestedHeight(_CamelBody):
    """The newest height that an anchor covers."""

    attested_height: U64 | None


class ChainAnchors(_CamelBody):
    """Where anchors come from; `self` is accepted by no chain. `state` (`ok`, `unread`, `stale` or `refused`), `age_seconds` and
    `reason` tell how it goes to read those of others, `as_of_height` of which block of Creditcoin they are; `stalled` what keeps
    them from being made or read now."""

    source: Annotated[str, Field(pattern="^(none|self|static|creditcoin)$")]
    genesis: Exact | None = None
    attested_height: Exact | None = None
    checkpoint_height: Exact | None = None
    state: Annotated[str, Field(pattern="^(ok|unread|stale|refused)$")] | None = None
    age_seconds: float | None = None
    as_of_height: Exact | None = None
    as_of_age_seconds: float | None = None
    reason: str | None = None
    stalled: str | None = None
    note: str | None = None


class ChainBackfill(_CamelBody):
    """Blocks filled ahead of requests: the heights that are to be (lowest and highest), how many are missing, the lowest done."""

    state: str
    window: Annotated[list[Exact], Field(min_length=2, max_length=2)] | None = None
    remaining: Exact | None = None
    lowest: Exact | None = None
    error: str | None = None


class ChainStatus(_CamelBody):
    """One chain: what can be proven on it, how far it is, and how its upstreams fare (by name, never by address)."""

    chain_key: Decimal
    chain_id: Decimal | None
    name: str
    family: str
    kinds: list[str]
    head: Exact | None
    safe: Exact | None = None
    finalized: Exact | None
    anchors: ChainAnchors
    backfill: ChainBackfill | None = None
    servable: bool
    saturated: bool = False
    reasons: list[str]


class ChainList(_CamelBody):
    """Every configured chain, by ascending key."""

    chains: list[ChainStatus]


class Alive(_Body):
    """The event loop turns."""

    status: str


class Health(_Body):
    """Whether a load balancer should send requests here."""

    status: Annotated[str, Field(pattern="^(ok|unhealthy)$")]
    reason: str | None = None


class ChainReadiness(_Body):
    """One chain's part in the readiness of this replica."""

    servable: bool
    reasons: list[str]


class Readiness(_Body):
    """Whether this replica can serve, and why not."""

    ready: bool
    reasons: list[str]
    eth_rpc_connected: bool
    cc3_finalized_height: U64 | None
    cc3_finalized_age_seconds: U64 | None
    cc3_snapshot_height: U64 | None
    chains: dict[str, ChainReadiness]


class CompatHealth(_Body):
    """The reference server's health body; `chains` is ours."""

    status: Annotated[str, Field(pattern="^(healthy|degraded)$")]
    cc3_rpc_connected: bool
    eth_rpc_connected: bool
    uptime_seconds: U64
    cc3_cache_fresh: bool
    cc3_cache_age_seconds: U64 | None
    cc3_finalized_height: U64 | None = None
    cc3_finalized_age_seconds: U64 | None = None
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
    block_number: Annotated[U64 | None, Field(description="BlockNotReady only.")] = None
    last_attested_block: Annotated[U64 | None, Field(description="BlockNotReady only.")] = None


class ProblemBody(ErrorBody):
    """An error everywhere else: the same fields in a problem document (RFC 9457)."""

    type: Annotated[str, Field(examples=["urn:copath:problem:TxHashNotFound"])]
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    instance: Annotated[str, Field(description="Names the request by its id.")]


def error_schemas() -> dict[str, Any]:
    """The JSON schemas of both error bodies, by component name."""
    return {
        model.__name__: TypeAdapter(model).json_schema(ref_template="#/components/schemas/{model}")
        for model in (ErrorBody, ProblemBody)
    }
