"""What batches look like, for the documentation: they are read by `batch_questions` and written by `batch_bodies`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, JsonValue

from app.api.batch_questions import MAX_INDEXES, MAX_PROOF_QUERIES, MAX_SPLIT, MAX_TX_HASHES
from app.api.schemas import TX_HASH_SCHEMA, U64, CamelBody, ContinuityProofBody, Hash, Hex, MerkleProof, Omitted

_NUMBER_AS_NAME: dict[str, JsonValue] = {"type": "string", "pattern": "^(0|[1-9][0-9]*)$"}


class UscBatchItem(CamelBody):
    """One transaction of a batch."""

    tx_hash: Hash
    tx_bytes: Hex
    merkle_proof: MerkleProof


class UscBatch(CamelBody):
    """usc proofs of many transactions. `roots` begin at `fromHeader` and end at an anchor that covers `toHeader`."""

    chain_key: U64
    from_header: U64
    to_header: U64
    continuity_proof: ContinuityProofBody
    merkle_proofs: Annotated[
        dict[str, dict[str, UscBatchItem]],
        Field(
            description="By height, then by transaction index, both ascending. A height asked for without indexes is not in it.",
            json_schema_extra={"propertyNames": _NUMBER_AS_NAME},
        ),
    ]
    cached: Annotated[bool, Field(description="Always false.")]
    generated_at: Annotated[str, Field(description="RFC 3339, UTC.")]


class UscSplitBatch(CamelBody):
    """With `split`: the same proofs as batches that one call of the verifying precompile takes, each with a continuity proof.

    All end in the same anchor; the roots of each begin at its own `fromHeader`. Heights asked for without indexes, where there
    are any, are the first sub-batch.
    """

    chain_key: U64
    from_header: U64
    to_header: U64
    split: Annotated[int, Field(ge=1, le=MAX_SPLIT)]
    batches: list[UscBatch]


class ProofQuery(CamelBody):
    """Transactions of one block, by index. Without indexes, the roots from its height on alone."""

    header_number: U64
    tx_indexes: (
        Annotated[list[U64], Field(max_length=MAX_INDEXES, description="None asks for roots alone.")] | Omitted
    ) = None


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


def _body(items: dict[str, Any], most: int) -> dict[str, Any]:
    schema = {"type": "array", "minItems": 1, "maxItems": most, "items": items}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


BY_POSITION = _body({"$ref": "#/components/schemas/ProofQuery"}, MAX_PROOF_QUERIES)
BY_TRANSACTION = _body({**TX_HASH_SCHEMA, "description": "Transaction hash, any case, 0x optional."}, MAX_TX_HASHES)
