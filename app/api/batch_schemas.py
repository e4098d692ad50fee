"""What batches look like, for the documentation: they are read by `batch_questions` and written by `batch_bodies`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from app.api.batch_questions import MAX_INDEXES, MAX_PROOF_QUERIES, MAX_SPLIT, MAX_TX_HASHES
from app.api.schemas import U64, ContinuityProofBody, Decimal, Hash, Hex, MerkleProof


class _CamelBody(BaseModel):
    """Field names in camelCase on the wire."""

    model_config = ConfigDict(extra="allow", alias_generator=to_camel)


class UscBatchItem(_CamelBody):
    """One transaction of a batch."""

    tx_hash: Hash
    tx_bytes: Hex
    merkle_proof: MerkleProof


class UscBatch(_CamelBody):
    """usc proofs of many transactions. `roots` begin at `fromHeader` and end at an anchor that covers `toHeader`."""

    chain_key: U64
    from_header: U64
    to_header: U64
    continuity_proof: ContinuityProofBody
    merkle_proofs: Annotated[
        dict[Decimal, dict[Decimal, UscBatchItem]],
        Field(
            description="By height, then by transaction index, both ascending. A height asked for without indexes is not in it."
        ),
    ]
    cached: Annotated[bool, Field(description="Always false.")]
    generated_at: Annotated[str, Field(description="RFC 3339, UTC.")]


class UscSplitBatch(_CamelBody):
    """With `split`: the same proofs as batches that one call of the verifying precompile takes, each with a continuity proof.

    All end in the same anchor; the roots of each begin at its own `fromHeader`. Heights asked for without indexes, where there
    are any, are the first sub-batch.
    """

    chain_key: U64
    from_header: U64
    to_header: U64
    split: Annotated[int, Field(ge=1, le=MAX_SPLIT)]
    batches: list[UscBatch]


ANSWER: dict[str, Any] = {"model": UscBatch | UscSplitBatch, "description": "All of the proofs that were asked for"}

SPLIT: dict[str, Any] = {
    "name": "split",
    "in": "query",
    "required": False,
    "description": (
        f"Answers with sub-batches of at most so many transactions. The verifying precompile takes {MAX_SPLIT}, "
        "and roots that begin at the lowest height of each call."
    ),
    "schema": {"type": "integer", "minimum": 1, "maximum": MAX_SPLIT},
}

_U64: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}


def _body(items: dict[str, Any], most: int, example: list[Any]) -> dict[str, Any]:
    schema = {"type": "array", "minItems": 1, "maxItems": most, "items": items}
    return {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}


BY_POSITION = _body(
    {
        "type": "object",
        "required": ["headerNumber"],
        "properties": {
            "headerNumber": _U64,
            "txIndexes": {"type": "array", "maxItems": MAX_INDEXES, "default": [], "items": _U64},
        },
    },
    MAX_PROOF_QUERIES,
    [{"headerNumber": 1000004, "txIndexes": [0, 1]}, {"headerNumber": 1000007}],
)
BY_TRANSACTION = _body(
    {
        "type": "string",
        "pattern": "^(0[xX])*[0-9a-fA-F]{64}$",
        "description": "Transaction hash, any case, 0x optional.",
    },
    MAX_TX_HASHES,
    ["0x" + "ab" * 32],
)
