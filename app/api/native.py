"""The native routes: Merkle-Patricia proofs against the header's own roots, by transaction hash or by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fastapi import FastAPI, Request
from starlette.datastructures import QueryParams
from starlette.responses import Response

from app.api import conditional, inputs, second_opinion, wire
from app.api.lobby import ChainFloor, FoundBlock
from app.api.schemas import BlockPath, ChainPath, IndexPath, NativeProof, TxHashPath
from app.api.usc import chain_in
from app.api.visit import visit_of
from app.core.blocks import BlockRef
from app.core.errors import LogIndexOutOfBounds
from app.core.finality import Level
from app.core.hexadecimal import to_hex
from app.core.provable_block import ENCODER_VERSION, InclusionProof, LogProof, ProvableBlock

ENCODINGS = ("nodes",)
"""Encodings that can be asked for by name. `nodes`: `abi.encode` of the nodes as the `bytes[]` that a contract takes."""

_PLURAL = {wire.TRANSACTION: "transactions", wire.RECEIPT: "receipts", wire.LOG: "logs"}


def _query(name: str, description: str, schema: dict[str, object]) -> dict[str, object]:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


# For the documentation only: values are read from the query string by `Wishes`, so that every refusal has our shape.
_LEVEL = _query(
    "finality",
    "Least finality.",
    {"type": "string", "enum": [level.value for level in Level], "default": Level.LATEST.value},
)
_ENCODING = _query(
    "encoding", "Extra encodings, repeatable.", {"type": "array", "items": {"type": "string", "enum": list(ENCODINGS)}}
)
_VERSION = _query("e", "Encoder version; part of an immutable URL.", {"type": "string"})
_INDEX = _query(
    "index", "What log_index counts in.", {"type": "string", "enum": ["receipt", "block"], "default": "receipt"}
)


@dataclass(frozen=True, slots=True)
class Cut:
    """One proof cut from a block. `log` is set for log proofs, and its receipt is `proof`."""

    tx_index: int
    proof: InclusionProof
    log: LogProof | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the query string asks for."""

    level: Level
    encodings: tuple[str, ...]
    version: str | None

    @classmethod
    def of(cls, query: QueryParams) -> Wishes:
        """Raises `InvalidParameter`."""
        versions = query.getlist("e")
        return cls(
            inputs.level(query.getlist("finality")),
            inputs.encodings(query.getlist("encoding"), ENCODINGS),
            versions[-1] if versions else None,
        )


def add_routes(app: FastAPI) -> None:
    """Registers the native GET routes."""
    common = [_LEVEL, _ENCODING, _VERSION]
    for path, operation, route, summary, queries in (
        (
            "transactions/{tx_hash}",
            "getTransactionProof",
            transaction_by_hash,
            "Transaction proof by transaction hash",
            common,
        ),
        ("receipts/{tx_hash}", "getReceiptProof", receipt_by_hash, "Receipt proof by transaction hash", common),
        (
            "logs/{tx_hash}/{log_index}",
            "getLogProof",
            log_by_hash,
            "Log proof by transaction hash and log index",
            [_INDEX, *common],
        ),
        (
            "blocks/{block}/transactions/{i}",
            "getTransactionProofAt",
            transaction_at,
            "Transaction proof by position",
            common,
        ),
        ("blocks/{block}/receipts/{i}", "getReceiptProofAt", receipt_at, "Receipt proof by position", common),
        ("blocks/{block}/logs/{i}", "getLogProofAt", log_at, "Log proof by position in the block", common),
    ):
        app.get(
            f"/api/v1/proofs/{{chain}}/{path}",
            operation_id=operation,
            summary=summary,
            tags=["native"],
            responses={200: {"model": NativeProof}},
            response_class=Response,
            openapi_extra={"parameters": queries},
        )(route)


async def transaction_by_hash(
    request: Request,
    chain: ChainPath,
    tx_hash: TxHashPath,
) -> Response:
    """That the transaction stands in a block, against the header's `transactionsRoot`."""
    return await _by_hash(request, wire.TRANSACTION, tx_hash, transaction_cut)


async def receipt_by_hash(
    request: Request,
    chain: ChainPath,
    tx_hash: TxHashPath,
) -> Response:
    """The receipt of a transaction, against the header's `receiptsRoot`."""
    return await _by_hash(request, wire.RECEIPT, tx_hash, receipt_cut)


async def log_by_hash(
    request: Request,
    chain: ChainPath,
    tx_hash: TxHashPath,
    log_index: IndexPath,
) -> Response:
    """One log of a transaction, with the proof of its receipt. `index=block` counts logs over the whole block."""
    position = inputs.index("log_index", log_index)
    block_wide = inputs.log_is_block_wide(request.query_params.getlist("index"))

    def cut(block: ProvableBlock, tx_index: int) -> Cut:
        if not block_wide:
            log = block.log_proof_in_receipt(tx_index, position)
        else:
            log = block.log_proof_in_block(position)
            if log.tx_index != tx_index:
                raise LogIndexOutOfBounds(
                    f"log_index {position} at height {block.height} is not in the receipt of transaction {tx_index}"
                )
        return Cut(tx_index, log.receipt, log)

    pinned = {"log.indexInBlock" if block_wide else "log.indexInReceipt": position}
    return await _by_hash(request, wire.LOG, tx_hash, cut, pinned)


async def transaction_at(
    request: Request,
    chain: ChainPath,
    block: BlockPath,
    i: IndexPath,
) -> Response:
    """The transaction at index `i` of a block."""
    position = inputs.index("i", i)
    return await _at(
        request, wire.TRANSACTION, block, {"transactionIndex": position}, lambda found: transaction_cut(found, position)
    )


async def receipt_at(
    request: Request,
    chain: ChainPath,
    block: BlockPath,
    i: IndexPath,
) -> Response:
    """The receipt at index `i` of a block."""
    position = inputs.index("i", i)
    return await _at(
        request, wire.RECEIPT, block, {"transactionIndex": position}, lambda found: receipt_cut(found, position)
    )


async def log_at(
    request: Request,
    chain: ChainPath,
    block: BlockPath,
    i: IndexPath,
) -> Response:
    """The log at index `i` of a block, counted over all its receipts."""
    position = inputs.index("i", i)

    def cut(found: ProvableBlock) -> Cut:
        log = found.log_proof_in_block(position)
        return Cut(log.tx_index, log.receipt, log)

    return await _at(request, wire.LOG, block, {"log.indexInBlock": position}, cut)


def transaction_cut(block: ProvableBlock, tx_index: int) -> Cut:
    """The transaction proof at an index."""
    return Cut(tx_index, block.transaction_proof(tx_index))


def receipt_cut(block: ProvableBlock, tx_index: int) -> Cut:
    """The receipt proof at an index."""
    return Cut(tx_index, block.receipt_proof(tx_index))


async def _by_hash(
    request: Request,
    kind: str,
    tx_hash_text: str,
    cut: Callable[[ProvableBlock, int], Cut],
    pinned: Mapping[str, object] | None = None,
) -> Response:
    wanted = inputs.tx_hash(tx_hash_text)
    wishes = Wishes.of(request.query_params)
    chain = chain_in(request)
    found = await chain.transaction(wanted, wishes.level)
    assert found.index is not None, "a block found by transaction hash knows the transaction's index"
    asked = {"transactionHash": to_hex(wanted), **(pinned or {})}
    return _answer(request, chain, found, kind, cut(found.block, found.index), asked, wishes, by_block_hash=False)


async def _at(
    request: Request, kind: str, block_text: str, pinned: Mapping[str, object], cut: Callable[[ProvableBlock], Cut]
) -> Response:
    ref = inputs.block_ref(block_text)
    wishes = Wishes.of(request.query_params)
    chain = chain_in(request)
    found = await chain.block(ref, wishes.level)
    asked = {**_named(ref), **pinned}
    by_block_hash = ref.block_hash is not None
    return _answer(request, chain, found, kind, cut(found.block), asked, wishes, by_block_hash=by_block_hash)


def _named(ref: BlockRef) -> dict[str, object]:
    return {"blockNumber": ref.height} if ref.block_hash is None else {"blockHash": to_hex(ref.block_hash)}


def _answer(
    request: Request,
    chain: ChainFloor,
    found: FoundBlock,
    kind: str,
    cut: Cut,
    pinned: Mapping[str, object],
    wishes: Wishes,
    *,
    by_block_hash: bool,
) -> Response:
    body = wire.native_body(chain, found, kind, cut.tx_index, cut.proof, cut.log, wishes.encodings)
    asked = {"kind": kind, "chainKey": str(chain.key), "chainId": str(found.block.chain_id), **pinned}
    second_opinion.require_native(request.scope, chain, body, asked)
    visit_of(request.scope).cache = "hit" if found.cached else "miss"
    freshness, location = conditional.FRESH, None
    if found.finality.level is Level.FINALIZED:
        location = immutable_url(chain, found.block, kind, cut, wishes.encodings)
        named = by_block_hash and wishes.version == str(ENCODER_VERSION)
        # The word that finality stands on is part of the bytes: while it is not that of all, the bytes may yet change.
        named = named and (found.finality.by, found.finality.sources) == chain.full_word
        freshness = conditional.IMMUTABLE if named else conditional.SETTLED
    return conditional.answer(request, body, conditional.strong_tag(body), freshness, location)


def immutable_url(chain: ChainFloor, block: ProvableBlock, kind: str, cut: Cut, encodings: Sequence[str] = ()) -> str:
    """The URL that names block hash, encoder version and encodings, under which this answer never changes once final."""
    position = cut.tx_index if cut.log is None else cut.log.index_in_block
    place = f"/api/v1/proofs/{chain.key}/blocks/{to_hex(block.block_hash)}/{_PLURAL[kind]}/{position}"
    return "".join([f"{place}?e={ENCODER_VERSION}", *(f"&encoding={name}" for name in encodings)])
