"""What is said of a proof that holds: only what it proves."""

from __future__ import annotations

import json

from app.verifying import Trust, verdict
from tests.checker.bodies import big_block, usc_chain


def test_a_usc_proof_is_named_by_what_its_leaf_is_bound_to_and_not_by_the_hash_beside_it() -> None:
    chain = usc_chain()
    body = chain.single(9)
    for stated in ("0x" + "66" * 32, None):
        beside = {name: value for name, value in (body | {"txHash": stated}).items() if value is not None}
        diagnosis, said = verdict(json.dumps(beside).encode(), Trust(anchor=chain.anchor))
        assert diagnosis.valid
        height, anchored = body["headerNumber"], chain.anchor[0]
        assert said == f"transaction 9 of block {height} is under the anchor at {anchored}"


def test_a_log_is_named_by_its_place_in_its_receipt_and_the_receipt_by_its_own() -> None:
    body = big_block().body("log", 13, 4)
    diagnosis, said = verdict(json.dumps(body).encode(), Trust())
    assert diagnosis.message.startswith("log 4 of receipt 13 stands in block ")
    assert said.startswith(f"log 4 of receipt 13 is in block {body['blockNumber']} ")
