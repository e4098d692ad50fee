"""Cases from other people's bug reports, over HTTP: what nodes tell, and what may come of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import rlp

from tests.acceptance.cases import (
    ARBITRUM,
    BAD_NODES,
    CASES,
    GREAT_CHAIN,
    MADE,
    MIXED,
    NOT_COMMITTED,
    SPARSE,
    SPELLINGS,
    WRAPPED,
    WRONG_ROOTS,
)
from tests.acceptance.judging import Record, judge, transaction_hashes
from tests.acceptance.made_blocks import rehash
from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Answer, Copath, chain, running_copath
from tests.oracles.sdk import Sdk


@dataclass(frozen=True, slots=True)
class Running:
    """The server over all cases; questions by case name."""

    copath: Copath
    node: RecordedNode
    keys: dict[str, int]

    def get(self, name: str, way: str) -> Answer:
        """A GET below the chain of a case."""
        return self.copath.get(f"/api/v1/proofs/{name}/{way}")

    def item(self, name: str, kind: str, index: int, record: Record | None = None) -> Answer:
        """One item of the case's block, by the block's height."""
        height = int((record or CASES[name].truth)["block"]["number"], 16)
        return self.get(name, f"blocks/{height}/{kind}s/{index}")

    def told(self, name: str, number: int = 0) -> RecordedChain:
        """One node of a case."""
        return self.node.chains[f"case-{name}-{number}"]

    def proven(self, name: str, kind: str, index: int, record: Record | None = None) -> Answer:
        """Asserts that the item is proven, in the eyes of outsiders; the answer."""
        truth = record or CASES[name].truth
        answer = self.item(name, kind, index, truth)
        assert answer.status == 200, (name, kind, index, answer.body[:400])
        judge(answer.body, truth, kind, index, chain_key=self.keys[name], chain_id=CASES[name].chain_id)
        return answer

    def refused(self, name: str, kind: str, index: int, *codes: str) -> Answer:
        """Asserts that the item is refused with one of the codes; the answer."""
        answer = self.item(name, kind, index)
        assert answer.status in (422, 503), (name, kind, index, answer.status, answer.body[:400])
        assert answer.code in codes, (name, kind, index, answer.body[:400])
        assert answer.json["retriable"] is (answer.status == 503)
        return answer


@pytest.fixture(scope="module")
def running(node: RecordedNode) -> Iterator[Running]:
    chains = []
    keys = {}
    for key, (name, one) in enumerate(CASES.items(), start=1):
        urls = []
        for number, told in enumerate(one.nodes):
            source = RecordedChain(told.chain_id or one.chain_id, told.records)
            told.behaviour(source)
            node.chains[f"case-{name}-{number}"] = source
            urls.append(node.url(f"case-{name}-{number}"))
        keys[name] = key
        more: dict[str, Any] = {"eth_rpc_fallback_urls": urls[1:]} if urls[1:] else {}
        chains.append(chain(key, name, one.chain_id, urls[0], one.family, **more))
    with running_copath(*chains) as copath:
        yield Running(copath, node, keys)


@pytest.fixture
def second_nodes(running: Running) -> None:
    """The server reads from both nodes of a chain that has two."""
    names = [upstream["name"] for upstream in running.copath.get("/api/v1/chains/b37-status-helped").json["upstreams"]]
    assert len(names) == 2


# --- the cases --------------------------------------------------------------------------------------------------------


def test_B01_both_roots_of_a_block_of_mixed_types(running: Running) -> None:
    for index in range(3):
        for kind in ("transaction", "receipt"):
            running.proven("mixed3", kind, index)


@pytest.mark.parametrize(("number", "what"), [*enumerate(WRONG_ROOTS)], ids=lambda value: str(value).replace(" ", "-"))
def test_B01_a_root_made_by_a_common_mistake_is_not_served(number: int, what: str, running: Running) -> None:
    name = f"wrong-root-{number}"
    for index in range(3):
        code = "NotCommittedByHeader" if what in NOT_COMMITTED else "InconsistentSource"
        refused = running.refused(name, "receipt", index, "NotCommittedByHeader", "InconsistentSource")
        assert refused.code == code or what not in NOT_COMMITTED
        running.proven(name, "transaction", index)


def test_B02_what_a_header_commits_to_is_decided_block_by_block(running: Running) -> None:
    running.proven("two-encodings", "receipt", 1)
    height = int(WRAPPED["block"]["number"], 16)
    refused = running.get("two-encodings", f"blocks/{height}/receipts/1")
    assert (refused.status, refused.code) == (422, "NotCommittedByHeader")
    running.proven("two-encodings", "receipt", 2)
    assert running.copath.get("/api/v1/proofs/two-encodings/blocks/19000001/transactions/1").status == 200


def test_B03_B41_keys_of_every_length_and_a_path_with_an_extension(running: Running) -> None:
    counts = {}
    for index in range(130):
        for kind in ("transaction", "receipt"):
            answer = running.proven("legacy130", kind, index)
        counts[index] = len(answer.json["nodes"])
    assert [counts[index] for index in (0, 127, 128, 129)] == [3, 3, 5, 5]


@pytest.mark.parametrize("name", ["b04-own-gas", "b04-total"])
def test_B04_wrong_cumulative_gas(name: str, running: Running) -> None:
    refused = running.refused(f"{name}-alone", "receipt", 1, "InconsistentSource")
    assert MIXED["block"]["receiptsRoot"] in refused.json["message"]
    assert len([word for word in refused.json["message"].replace(",", " ").split() if len(word) == 66]) >= 2


def test_B05_a_state_root_in_the_place_of_a_status(running: Running) -> None:
    answer = running.proven("pre-byzantium-1", "receipt", 0)
    assert answer.json["root"].startswith("0x2c18df72")
    running.refused("b05-status-alone", "receipt", 0, "InconsistentSource", "NotCommittedByHeader")


def test_B07_a_deposit_receipt_has_six_fields(running: Running) -> None:
    answer = running.proven("op-post-canyon", "receipt", 0)
    assert answer.json["root"].startswith("0xde24a8ee")
    assert len(rlp.decode(bytes.fromhex(answer.json["value"][4:]))) == 6
    running.refused("b07-no-nonce-alone", "receipt", 0, "InconsistentSource")


def test_B08_a_transaction_that_no_root_commits_to(running: Running) -> None:
    record = CASES["polygon-state-sync"].truth
    *real, phantom = transaction_hashes(record)
    for index in range(len(real)):
        for kind in ("transaction", "receipt"):
            running.proven("polygon-state-sync", kind, index)
    for kind in ("transactions", "receipts"):
        refused = running.get("polygon-state-sync", f"{kind}/{phantom}")
        assert (refused.status, refused.code, refused.json["retriable"]) == (422, "NotCommittedByHeader", False)


def test_B10_one_unknown_type_makes_one_trie_unprovable(running: Running) -> None:
    for index in range(len(ARBITRUM["block"]["transactions"])):
        refused = running.refused("arbitrum-as-ethereum", "transaction", index, "UnsupportedTransactionType")
        assert "0x6a" in refused.json["message"]
        running.item("arbitrum-as-ethereum", "receipt", index)
        assert running.item("arbitrum-as-ethereum", "receipt", index).status == 200


def test_B11_a_header_without_a_receipts_root_is_asked_for_once(running: Running) -> None:
    for _ in range(5):
        running.refused("zero-receipts-root", "receipt", 0, "NotCommittedByHeader")
    running.proven("zero-receipts-root", "transaction", 0)
    assert running.told("zero-receipts-root").block_fetches() == 1


@pytest.mark.parametrize("name", SPELLINGS)
def test_B06_B14_B15_B16_B17_B18_B34_another_spelling_gives_the_same_bytes(name: str, running: Running) -> None:
    for index in range(len(MADE["receipts"])):
        for kind in ("transaction", "receipt"):
            answer = running.proven(name, kind, index)
            plain = running.proven("spelled-plainly", kind, index)
            assert answer.json | {"chainKey": ""} == plain.json | {"chainKey": ""}


@pytest.mark.parametrize("name", BAD_NODES)
def test_B04_B19_B20_B21_B23_B24_B34_B35_B37_one_bad_node_is_no_proof(name: str, running: Running) -> None:
    truth = CASES[f"{name}-alone"].truth
    last = len(truth["receipts"]) - 1
    alone = running.item(f"{name}-alone", "receipt", last)
    if name == "b19-surplus" and alone.status == 200:
        # What was told twice may be taken once, where the root is then met.
        judge(alone.body, truth, "receipt", last, chain_key=running.keys[f"{name}-alone"], chain_id=1)
        return
    if name in ("b19-lost-transaction", "b34-odd-data", "b34-no-hex"):
        # The root is met: no transaction is needed for it, and a bloom is a function of the logs.
        key, without_transactions = running.keys[f"{name}-alone"], name != "b34-no-hex"
        judge(alone.body, truth, "receipt", last, chain_key=key, chain_id=1, hash_by_node=without_transactions)
        if without_transactions:
            running.refused(f"{name}-alone", "transaction", 0, "InconsistentSource")
        return
    refused = running.refused(f"{name}-alone", "receipt", last, "InconsistentSource", "RpcUnavailable")
    assert int(refused.headers["retry-after"]) >= 1


@pytest.mark.usefixtures("second_nodes")
@pytest.mark.parametrize("name", BAD_NODES)
def test_B04_B19_B20_B21_B23_B24_B34_B35_B37_a_good_node_beside_a_bad_one_is_asked(name: str, running: Running) -> None:
    truth = CASES[f"{name}-helped"].truth
    for index, tx_hash in enumerate(transaction_hashes(truth)):
        for kind in ("transaction", "receipt"):
            running.proven(f"{name}-helped", kind, index)
        assert running.get(f"{name}-helped", f"receipts/{tx_hash}").status == 200
    if name == "b35-wrong-chain":
        assert running.told("b35-wrong-chain-helped").block_fetches() == 0
    if name == "b37-status":
        labels = {"chain": "b37-status-helped", "upstream": "primary"}
        assert running.copath.metric("copath_root_mismatch_total", **labels) >= 1


def test_B22_receipts_that_are_null_now_and_then(running: Running) -> None:
    running.proven("b22-null-twice", "receipt", 1)


def test_B24_receipts_one_by_one(running: Running) -> None:
    for index in range(3):
        running.proven("b24-one-by-one", "receipt", index)


def test_B33_B36_heights_are_spelled_as_nodes_want_them_and_tags_name_no_block_data(running: Running) -> None:
    for record in SPARSE:
        running.proven("b33-heights", "transaction", 3, record)
        running.proven("b33-heights", "receipt", 3, record)
    for name in CASES:
        for number in range(len(CASES[name].nodes)):
            assert running.told(name, number).violations == [], name


def test_B35_a_node_of_another_chain_is_never_used(running: Running) -> None:
    running.refused("b35-wrong-chain-alone", "receipt", 1, "RpcUnavailable", "InconsistentSource")
    assert running.told("b35-wrong-chain-alone").block_fetches() == 0
    assert running.copath.get("/readyz").status == 200


def test_B37_when_all_are_wrong_both_roots_are_named_and_counted(running: Running) -> None:
    refused = running.refused("b37-all-wrong", "receipt", 1, "InconsistentSource")
    assert MIXED["block"]["receiptsRoot"] in refused.json["message"]
    assert running.copath.metric("copath_root_mismatch_total", chain="b37-all-wrong", upstream="primary") >= 1


def test_B43_there_is_nothing_to_prove_in_an_empty_block(running: Running) -> None:
    for kind in ("transaction", "receipt", "log"):
        for _ in range(3):
            running.refused("empty", kind, 0, "EmptyBlockTxProof")
    assert running.told("empty").block_fetches() == 1


def test_B67_great_numbers_are_exact(running: Running, sdk: Sdk) -> None:
    for name in ("b67-great", "b67-json-numbers"):
        for kind in ("transaction", "receipt"):
            answer = running.proven(name, kind, 0)
            value, unsafe = sdk.round_trip(answer.body.decode())
            assert value == answer.json
            assert unsafe == []
            assert answer.json["chainId"] == str(GREAT_CHAIN)
    listed = running.copath.get("/api/v1/chains")
    assert listed.status == 200
    _, unsafe = sdk.round_trip(listed.body.decode())
    assert [number for number in unsafe if "." not in number] == []  # ages are fractions


def test_B67_what_cannot_be_exact_is_refused(running: Running) -> None:
    running.refused("b67-float", "transaction", 0, "InconsistentSource", "UnsupportedBlockFormat")
    late = running.item("b67-timestamp", "transaction", 0)
    assert late.status in (200, 422, 503), late.body[:300]
    if late.status == 200:
        assert late.json["blockHash"] == rehash(CASES["b67-timestamp"].truth)["block"]["hash"]
