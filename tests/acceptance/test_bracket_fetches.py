"""What a running server asks of its node for a usc proof between anchors a hundred blocks apart."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Answer, Client, Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.api.long_bracket import GENESIS, MIDDLE, UPPER, blocks, busy, tx_hash
from tests.chain.recorded_chain import SEPOLIA

KEY = 7


@pytest.fixture(scope="module")
def asked(node: RecordedNode) -> RecordedChain:
    """The chain as its node has it, up to one above the upper anchor."""
    node.chains["bracket"] = RecordedChain(SEPOLIA, blocks().values())
    return node.chains["bracket"]


@pytest.fixture(scope="module")
def copath(node: RecordedNode, asked: RecordedChain) -> Iterator[Copath]:
    """Every root of the bracket is known to it, and next to none of its blocks is in memory."""
    anchors = {"source": "self", "genesis": GENESIS, "interval": 50, "checkpoint_every": 2}
    cache = {"merkle_backfill_enabled": False, "merkle_max_bytes": "16KiB"}
    configured = chain(KEY, "bracket", SEPOLIA, node.url("bracket"), anchors=anchors, cache=cache)
    with running_copath(configured) as running:
        until(lambda: running.get(f"/api/v1/attested-height/{KEY}").json["attestedHeight"] == UPPER, "the upper anchor")
        yield running


def fetches(asked: RecordedChain) -> tuple[int, int]:
    return asked.block_fetches(), asked.hits("eth_getBlockReceipts")


def test_a_cold_request_inside_a_known_bracket_is_one_block_and_its_receipts(
    copath: Copath, asked: RecordedChain
) -> None:
    for height in busy(5):
        before = fetches(asked)
        answer = copath.get(f"/api/v1/proof-by-tx/{KEY}/{tx_hash(height)}")
        assert answer.status == 200, answer.body[:300]
        roots = answer.json["continuityProof"]["roots"]
        assert len(roots) == UPPER - height + 1
        assert answer.json["cached"] is False
        assert fetches(asked) == (before[0] + 1, before[1] + 1)


def test_32_callers_of_a_cold_block_are_one_fetch(copath: Copath, asked: RecordedChain) -> None:
    copath.get(f"/api/v1/proof-by-tx/{KEY}/{tx_hash(busy(7)[-1])}")  # so that no other block is in memory
    before = fetches(asked)
    paths = [f"/api/v1/proof-by-tx/{KEY}/{tx_hash(index=index)}" for index in range(3)]
    paths += [f"/api/v1/proof/{KEY}/{MIDDLE}/{index}" for index in range(3)]

    def ask(number: int) -> Answer:
        client = Client(copath.port)
        try:
            return client.get(paths[number % len(paths)])
        finally:
            client.close()

    with asked.held("eth_getBlockReceipts") as gate, ThreadPoolExecutor(32) as pool:
        answers = [pool.submit(ask, number) for number in range(32)]
        try:
            until(lambda: copath.metric("copath_http_requests_in_flight") >= 32, "32 requests in flight")
        finally:
            gate.set()
        assert {answer.result().status for answer in answers} == {200}
    assert fetches(asked) == (before[0] + 1, before[1] + 1)
