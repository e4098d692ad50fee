"""Every recorded block that can be proven from: what the routes would answer of it is valid to both verifiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.api import wire
from app.api.verify import judge
from app.core.block_building import build
from app.core.errors import ContentInvalid, ProofError
from app.core.finality import Finality, Level
from app.core.provable_block import BuildRequest, InclusionProof, LogProof, ProvableBlock
from tests.api.fakes import Found, RecordedChain
from tests.corpus_files import block_json, family, files, label, load, receipts_json

SETS = ("full", "contiguous", "nonstandard", "block-only")
FINAL = Finality(Level.FINALIZED, "rpc-tag", 1)


def provable(path: Path) -> ProvableBlock | None:
    """The block, None where it is refused."""
    record = load(path)
    request = BuildRequest(
        family=family(record),
        chain_id=record["chainId"] or 1,
        anchored=False,
        height=int(str(record["block"]["number"]), 0),
        block_hash=None,
        block_json=block_json(record),
        receipts_json=None if record.get("receipts") is None else receipts_json(record),
    )
    try:
        return build(request)
    except (ContentInvalid, ProofError):
        return None


def body_of(block: ProvableBlock, kind: str, index: int, proof: InclusionProof, log: LogProof | None = None) -> bytes:
    chain = RecordedChain(7, "recorded", [block], chain_id=block.chain_id)
    return wire.native_body(chain, Found(block, FINAL, cached=True), kind, index, proof, log)


def bodies(block: ProvableBlock) -> list[bytes]:
    """Of the first, the last and a middle item of each kind that is proven."""
    found = []
    for index in sorted({0, block.transaction_count // 2, block.transaction_count - 1}):
        for kind, cut in ((wire.TRANSACTION, block.transaction_proof), (wire.RECEIPT, block.receipt_proof)):
            try:
                found.append(body_of(block, kind, index, cut(index)))
            except ProofError:
                continue
    for place in sorted({0, block.log_count - 1}):
        try:
            log = block.log_proof_in_block(place)
            found.append(body_of(block, wire.LOG, log.tx_index, log.receipt, log))
        except ProofError:
            continue
    return found


@pytest.mark.parametrize("set_name", SETS)
def test_every_recorded_block(set_name: str) -> None:
    count = 0
    for path in files(set_name):
        block = provable(path)
        for body in [] if block is None else bodies(block):
            diagnosis, statement = judge(body)
            assert diagnosis.valid, (label(path), diagnosis)
            assert statement is not None
            count += 1
    assert count > 20
