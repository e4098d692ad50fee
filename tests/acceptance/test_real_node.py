"""A real node behind the server: blocks of every transaction type, a block that cannot be proven, and reorgs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.judging import Record, judge, transaction_hashes
from tests.acceptance.server import Answer, Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.oracles import signing
from tests.oracles.anvil import CHAIN_ID, EMITTER_INIT, Anvil, running_anvil
from tests.oracles.sdk import Sdk
from tests.oracles.signing import Account, Call

KEY = 5
IDENTITY = {"chain_key": KEY, "chain_id": CHAIN_ID}


@pytest.fixture
def anvil() -> Iterator[Anvil]:
    with running_anvil() as running:
        yield running


@pytest.fixture
def copath(anvil: Anvil) -> Iterator[Copath]:
    with running_copath(chain(KEY, "anvil", CHAIN_ID, anvil.url)) as running:
        yield running


def _record(anvil: Anvil, height: int) -> Record:
    return {"block": anvil.block(height), "receipts": anvil.receipts(height)}


def _get(copath: Copath, way: str) -> Answer:
    return copath.get(f"/api/v1/proofs/{KEY}/{way}")


def _wait_for_head(copath: Copath, height: int) -> None:
    """The server's view of the head is a poll old: above it, it says so."""
    way = f"blocks/{height}/transactions/0"
    until(lambda: _get(copath, way).code != "BlockNotOnSourceChain", f"the server to see block {height}")


def test_every_type_a_create_a_failure_and_logs_are_proven(anvil: Anvil, copath: Copath) -> None:
    height = anvil.mine_every_type()
    _wait_for_head(copath, height)
    record = _record(anvil, height)
    logs = 0
    for index, tx_hash in enumerate(transaction_hashes(record)):
        for kind, way in (
            ("transaction", f"transactions/{tx_hash}"),
            ("receipt", f"receipts/{tx_hash}"),
            ("transaction", f"blocks/{height}/transactions/{index}"),
            ("receipt", f"blocks/{record['block']['hash']}/receipts/{index}"),
        ):
            answer = _get(copath, way)
            assert answer.status == 200, (way, answer.body[:300])
            judge(answer.body, record, kind, index, **IDENTITY)
        for in_receipt in range(len(record["receipts"][index]["logs"])):
            answer = _get(copath, f"logs/{tx_hash}/{in_receipt}")
            assert answer.status == 200, answer.body[:300]
            judge(answer.body, record, "log", index, allow=("log",), **IDENTITY)
            assert answer.json["log"]["indexInBlock"] == logs
            logs += 1
    assert logs >= 6


def test_anchored_blocks_of_a_real_node_are_what_the_client_package_makes_of_them(anvil: Anvil, sdk: Sdk) -> None:
    height = anvil.mine_every_type()
    anvil.mine(70)
    anchors = {"source": "self", "genesis": 1, "interval": 1, "checkpoint_every": 1000}
    finality = {"mode": "depth", "depth": 2}
    with running_copath(chain(KEY, "anvil", CHAIN_ID, anvil.url, anchors=anchors, finality=finality)) as copath:
        until(lambda: (copath.get(f"/api/v1/attested-height/{KEY}").json["attestedHeight"] or 0) >= height, "an anchor")
        record = _record(anvil, height)
        root = sdk.root_of_block(record["block"]["transactions"], record["receipts"])
        for index, tx_hash in enumerate(transaction_hashes(record)):
            result = sdk.generate_proof(KEY, copath.url, bytes.fromhex(tx_hash[2:]))
            assert result["success"], result
            leaf = sdk.leaf(record["block"]["transactions"][index], record["receipts"][index])
            assert result["data"]["txBytes"] == "0x" + leaf.hex()
            assert result["data"]["merkleProof"]["root"] == "0x" + root.hex()
            assert sdk.recompute(result["data"])[0] == root


def test_a_block_whose_transactions_root_is_wrong_is_refused_as_such(anvil: Anvil, copath: Copath) -> None:
    # This node takes the root over the blob transaction with its blobs, which no other node does.
    height = anvil.mine_every_type(blobs=True)
    _wait_for_head(copath, height)
    record = _record(anvil, height)
    for index, tx_hash in enumerate(transaction_hashes(record)):
        for way in (f"transactions/{tx_hash}", f"blocks/{height}/transactions/{index}"):
            refused = _get(copath, way)
            assert (refused.status, refused.code) == (422, "UnsupportedBlockFormat"), refused.body[:300]
            assert refused.json["retriable"] is False
        receipt = _get(copath, f"blocks/{height}/receipts/{index}")
        assert receipt.status == 200, receipt.body[:300]
        assert receipt.json["transactionHashBy"] == "rpc"
    after = anvil.mine_every_type()
    _served(copath, f"blocks/{after}/transactions/0", anvil.block(after)["hash"])


def _rich(anvil: Anvil, *numbers: int) -> list[bytes]:
    """Signed transactions, one of each account. The money is in block 1, which no reorg here reaches."""
    accounts = [Account.numbered(number) for number in numbers]
    anvil.fund(*accounts)
    assert anvil.mine() == 1
    return [signing.dynamic_fee(account, Call(None, data=EMITTER_INIT), CHAIN_ID) for account in accounts]


def _served(copath: Copath, way: str, block_hash: str) -> Answer:
    """The proof, as soon as the server gives it from that block: its view of the head is a poll old."""

    def ask() -> Answer | None:
        answer = _get(copath, way)
        return answer if answer.status == 200 and answer.json["blockHash"] == block_hash else None

    return until(ask, f"{way} from block {block_hash}")


@pytest.mark.parametrize("warm", [True, False], ids=["already-served", "never-served"])
def test_B44_a_replaced_block_is_not_answered_from_by_number(warm: bool, anvil: Anvil, copath: Copath) -> None:
    staying, another = _rich(anvil, 31, 32)
    anvil.send(staying)
    height = anvil.mine()
    old = anvil.block(height)["hash"]
    if warm:
        _served(copath, f"blocks/{height}/transactions/0", old)
    anvil.mine()
    anvil.reorg(2, [(another, 0)])
    new = _record(anvil, height)
    assert new["block"]["hash"] != old
    anvil.mine()
    answer = _served(copath, f"blocks/{height}/transactions/0", new["block"]["hash"])
    judge(answer.body, new, "transaction", 0, **IDENTITY)
    for _ in range(20):  # and never back
        assert _get(copath, f"blocks/{height}/transactions/0").json["blockHash"] == new["block"]["hash"]


def test_B44_a_transaction_that_moved_is_proven_where_it_is_and_one_that_vanished_is_not(
    anvil: Anvil, copath: Copath
) -> None:
    moving, vanishing = _rich(anvil, 33, 34)
    moving_hash, vanishing_hash = anvil.send(moving), anvil.send(vanishing)
    height = anvil.mine()
    old = anvil.block(height)["hash"]
    anvil.mine()
    for tx_hash in (moving_hash, vanishing_hash):
        _served(copath, f"transactions/{tx_hash}", old)
    anvil.reorg(2, [(moving, 1)])
    anvil.mine()
    new = _record(anvil, height + 1)
    answer = _served(copath, f"transactions/{moving_hash}", new["block"]["hash"])
    judge(answer.body, new, "transaction", 0, **IDENTITY)
    until(lambda: _get(copath, f"transactions/{vanishing_hash}").code == "TxHashNotFound", "the other one to be gone")
    # The old block by its hash: a true statement about a block that is not canonical, or a refusal; no fault.
    assert _get(copath, f"blocks/{old}/transactions/0").status in (200, 404, 410)


def test_a_transaction_that_is_not_mined_yet_is_said_to_be(anvil: Anvil, copath: Copath) -> None:
    (raw,) = _rich(anvil, 35)
    tx_hash = anvil.send(raw)
    waiting = _get(copath, f"transactions/{tx_hash}")
    assert (waiting.status, waiting.code, waiting.json["retriable"]) == (404, "TxNotMined", True)
    height = anvil.mine()
    served = _served(copath, f"transactions/{tx_hash}", anvil.block(height)["hash"])
    judge(served.body, _record(anvil, height), "transaction", 0, **IDENTITY)


def test_absence_is_an_answer_of_the_node_and_not_of_its_silence(anvil: Anvil, copath: Copath) -> None:
    unknown = _get(copath, f"transactions/0x{'ee' * 32}")
    assert (unknown.status, unknown.code, unknown.json["retriable"]) == (404, "TxHashNotFound", True), (
        "as it may be new"
    )
    above = _get(copath, "blocks/1000000/transactions/0")
    assert (above.status, above.code, above.json["retriable"]) == (404, "BlockNotOnSourceChain", True)
