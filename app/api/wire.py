"""Proofs as the bytes that leave: key order, hex spelling and number spelling are part of the contract.

Hashes and bytes are lower-case 0x-hex of full length. Natively `chainId` and `chainKey` are strings, so that no number
in a native body passes 2^53-1; the compatible bodies keep the reference server's 64-bit numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import orjson

from app.api.lobby import ChainFloor, CutContinuity, FoundBlock
from app.core.abi import bytes_array_alone
from app.core.continuity import ContinuityProof
from app.core.hexadecimal import to_hex
from app.core.provable_block import ENCODER_VERSION, InclusionProof, LeafProof, LogProof, Verdict

FORMAT = f"copath/{ENCODER_VERSION}"
TRANSACTION = "transaction"
RECEIPT = "receipt"
LOG = "log"
USC = "usc"


def native_body(
    chain: ChainFloor,
    found: FoundBlock,
    kind: str,
    tx_index: int,
    proof: InclusionProof,
    log: LogProof | None,
    encodings: Sequence[str] = (),
) -> bytes:
    """A native proof of one transaction, receipt or log. The same block, item and finality give the same bytes
    everywhere."""
    block, finality = found.block, found.finality
    body: dict[str, object] = {
        "format": FORMAT,
        "kind": kind,
        "chainKey": str(chain.key),
        "chainId": str(block.chain_id),
        "blockNumber": block.height,
        "blockHash": to_hex(block.block_hash),
        "headerRlp": to_hex(block.header_rlp),
        "finality": {"level": finality.level.value, "by": finality.by, "sources": finality.sources},
        "transactionHash": to_hex(block.transaction_hash(tx_index)),
    }
    if kind != TRANSACTION and block.transactions_verdict is not Verdict.PROVEN:
        # The receipt is proven, its place among the transactions' hashes is not: said where it is so, and only there.
        body["transactionHashBy"] = "rpc"
    body |= {
        "transactionIndex": tx_index,
        "root": to_hex(proof.root),
        "key": to_hex(proof.key),
        "value": to_hex(proof.value),
        "nodes": [to_hex(node) for node in proof.nodes],
    }
    if log is not None:
        body["log"] = {
            "address": to_hex(log.address),
            "topics": [to_hex(topic) for topic in log.topics],
            "data": to_hex(log.data),
            "indexInReceipt": log.index_in_receipt,
            "indexInBlock": log.index_in_block,
            "rlp": to_hex(log.rlp),
        }
    if encodings:
        body["encodings"] = {name: to_hex(_ENCODED[name](proof)) for name in encodings}
    return orjson.dumps(body)


_ENCODED: Mapping[str, Callable[[InclusionProof], bytes]] = {"nodes": lambda proof: bytes_array_alone(proof.nodes)}
"""By the names that can be asked for."""


def usc_body(
    chain: ChainFloor, found: FoundBlock, tx_index: int, leaf: LeafProof, continuity: CutContinuity, *, cached: bool
) -> bytes:
    """A usc proof of one transaction, in the reference server's shape."""
    block = found.block
    return orjson.dumps(
        {
            "chainKey": chain.key,
            "headerNumber": block.height,
            "txIndex": tx_index,
            "txHash": to_hex(block.transaction_hash(tx_index)),
            "txBytes": to_hex(leaf.leaf),
            "continuityProof": continuity_fields(continuity.proof),
            "merkleProof": merkle_fields(leaf),
            "cached": cached,
            "generatedAt": time_of_day(),
        }
    )


def batch_item(tx_hash: bytes, leaf: LeafProof) -> bytes:
    """One transaction of a usc batch."""
    return orjson.dumps({"txHash": to_hex(tx_hash), "txBytes": to_hex(leaf.leaf), "merkleProof": merkle_fields(leaf)})


def continuity_fields(proof: ContinuityProof) -> dict[str, object]:
    """`continuityProof` of a usc body."""
    return {
        "lowerEndpointDigest": to_hex(proof.lower_endpoint_digest),
        "roots": [to_hex(root) for root in proof.roots],
    }


def merkle_fields(leaf: LeafProof) -> dict[str, object]:
    """`merkleProof` of a usc body."""
    return {
        "root": to_hex(leaf.root),
        "siblings": [{"hash": to_hex(hash_), "isLeft": is_left} for hash_, is_left in leaf.siblings],
    }


def time_of_day() -> str:
    """Now, as `generatedAt` has it: RFC 3339, UTC, three fractional digits."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
