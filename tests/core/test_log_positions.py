"""Which log is meant by a position: counted from the receipts that were checked, whatever numbers the node gives them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from app.core.block_building import build
from app.core.errors import LogIndexOutOfBounds
from app.core.provable_block import BuildRequest, ProvableBlock
from tests.acceptance.made_blocks import CHAIN_ID, Outcome, Sent, make_block
from tests.oracles import signing
from tests.oracles.signing import Account, Call

CODE = b"\x22" * 20
Number = Callable[[int, int, int], str]
"""What a node says of a log: from its place in the block, in its receipt, and the index of the transaction."""

NUMBERINGS: dict[str, Number] = {
    "through the block": lambda in_block, in_receipt, tx: hex(in_block),
    "from 0 in each receipt": lambda in_block, in_receipt, tx: hex(in_receipt),
    "backwards": lambda in_block, in_receipt, tx: hex(99 - in_block),
    "all the same": lambda in_block, in_receipt, tx: "0x7",
    "no number": lambda in_block, in_receipt, tx: "later",
}


def a_block(number: Number) -> ProvableBlock:
    """Two transactions of two logs each; the data of a log tells which it is."""
    account = Account.numbered(71)
    sent = [
        Sent(
            signing.dynamic_fee(account, Call(CODE), CHAIN_ID),
            account.address,
            Outcome(40_000, 1, [(CODE, [b"\x01" * 32], bytes([tx, place])) for place in range(2)]),
        )
        for tx in range(2)
    ]
    record: dict[str, Any] = make_block(1, bytes(32), sent)
    in_block = 0
    for tx, receipt in enumerate(record["receipts"]):
        for in_receipt, log in enumerate(receipt["logs"]):
            log["logIndex"] = number(in_block, in_receipt, tx)
            in_block += 1
    return build(
        BuildRequest(
            family="ethereum",
            chain_id=CHAIN_ID,
            anchored=False,
            height=1,
            block_hash=None,
            block_json=json.dumps(record["block"]).encode(),
            receipts_json=json.dumps(record["receipts"]).encode(),
        )
    )


@pytest.mark.parametrize("number", NUMBERINGS.values(), ids=NUMBERINGS)
def test_B39_positions_are_counted_from_what_was_checked(number: Number) -> None:
    block = a_block(number)
    found = [block.log_proof_in_block(place) for place in range(4)]
    assert [log.data for log in found] == [bytes([tx, place]) for tx in range(2) for place in range(2)]
    assert [(log.tx_index, log.index_in_receipt, log.index_in_block) for log in found] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 2),
        (1, 1, 3),
    ]
    assert block.log_proof_in_receipt(1, 1).index_in_block == 3


@pytest.mark.parametrize("number", NUMBERINGS.values(), ids=NUMBERINGS)
def test_B39_beyond_the_last_log_there_is_none(number: Number) -> None:
    block = a_block(number)
    with pytest.raises(LogIndexOutOfBounds):
        block.log_proof_in_block(4)
    with pytest.raises(LogIndexOutOfBounds):
        block.log_proof_in_receipt(0, 2)
