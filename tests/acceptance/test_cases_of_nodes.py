"""Cases from other people's bug reports: what nodes say, and what may come of it. One small chain each, one or two nodes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import rlp

from tests.acceptance.judging import Record, judge, transaction_hashes
from tests.acceptance.made_blocks import (
    CHAIN_ID,
    Outcome,
    Sent,
    every_type,
    make_block,
    rehash,
    small_chain,
)
from tests.acceptance.recorded_node import RecordedChain, RecordedNode, Refusal
from tests.acceptance.server import Answer, Copath, chain, running_copath
from tests.corpus_files import FIXTURES, fixtures, recorded
from tests.oracles import signing
from tests.oracles.sdk import Sdk
from tests.oracles.signing import Account, Call

Change = Callable[[Record], None]
Behaviour = Callable[[RecordedChain], None]

MADE = small_chain(every_type())[1]
WRONG_ROOTS: dict[str, str] = json.loads((FIXTURES / "mixed3_wrong_roots.json").read_text())
NOT_COMMITTED = {"no type byte", "typed leaf RLP-wrapped"}


def fixture_block(name: str) -> Record:
    """A synthetic block: its header, transactions and receipts."""
    entry = fixtures()[name]
    return {"block": entry["block"], "receipts": entry["receipts"]}


def changed(record: Record, change: Change) -> Record:
    """A copy, changed in place."""
    other = copy.deepcopy(record)
    change(other)
    return other


@dataclass(frozen=True, slots=True)
class Told:
    """What one node of a chain tells: its blocks, and how it behaves beyond them."""

    records: list[Record]
    behaviour: Behaviour = lambda _: None
    chain_id: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One chain: the truth about its block, and what each of its nodes makes of it."""

    truth: Record
    nodes: list[Told]
    family: str = "ethereum"
    chain_id: int = 1
    more: dict[str, object] = field(default_factory=dict)


CASES: dict[str, Case] = {}


def case(name: str, truth: Record, *nodes: Record | Told, family: str = "ethereum", chain_id: int = 1) -> None:
    """Declares one chain. Without nodes, one node tells the truth."""
    told = [one if isinstance(one, Told) else Told([one]) for one in nodes or (truth,)]
    CASES[name] = Case(truth, told, family, chain_id)


def pair(name: str, truth: Record, bad: Record | Told, family: str = "ethereum", chain_id: int = 1) -> None:
    """Declares two chains: one whose only node is bad, one whose second node tells the truth."""
    case(f"{name}-alone", truth, bad, family=family, chain_id=chain_id)
    case(f"{name}-helped", truth, bad, truth, family=family, chain_id=chain_id)


# --- the chains -------------------------------------------------------------------------------------------------------

MIXED = fixture_block("mixed3")
for fixture_name in ("mixed3", "legacy130", "pre_byzantium_1", "zero_receipts_root", "empty"):
    case(fixture_name.replace("_", "-"), fixture_block(fixture_name))
case("op-post-canyon", fixture_block("op_post_canyon"), family="op-stack", chain_id=10)
case("polygon-state-sync", fixture_block("polygon_state_sync_pre_madhugiri"), family="polygon", chain_id=137)
ARBITRUM = recorded("full", "arbitrum-one_150000000")
case("arbitrum-as-ethereum", ARBITRUM, chain_id=42161)


def _with_root(root: str) -> Record:
    return rehash(changed(MIXED, lambda record: record["block"].update(receiptsRoot=root)))


for number, what in enumerate(WRONG_ROOTS):
    case(f"wrong-root-{number}", _with_root(WRONG_ROOTS[what]))


def _at_height(record: Record, height: int) -> Record:
    def move(moved: Record) -> None:
        moved["block"]["number"] = hex(height)
        for item in [*moved["block"]["transactions"], *moved["receipts"]]:
            item["blockNumber"] = hex(height)
            for log in item.get("logs", ()):
                log["blockNumber"] = hex(height)

    return rehash(changed(record, move))


WRAPPED = _at_height(_with_root(WRONG_ROOTS["typed leaf RLP-wrapped"]), 19_000_001)
case("two-encodings", MIXED, Told([MIXED, WRAPPED]))


def _each_receipt(change: Callable[[Record], None]) -> Change:
    def apply(record: Record) -> None:
        for receipt in record["receipts"]:
            change(receipt)

    return apply


def _cumulative_is_own(receipt: Record) -> None:
    receipt["cumulativeGasUsed"] = receipt["gasUsed"]


def _cumulative_is_total(receipt: Record) -> None:
    receipt["cumulativeGasUsed"] = MIXED["block"]["gasUsed"]


def _status_for_root(receipt: Record) -> None:
    del receipt["root"]
    receipt["status"] = "0x1"


def _without_deposit_fields(receipt: Record) -> None:
    receipt.pop("depositNonce", None)
    receipt.pop("depositReceiptVersion", None)


def _flip_status(record: Record) -> None:
    record["receipts"][1]["status"] = "0x0"


def _foreign_receipts(record: Record) -> None:
    for receipt in record["receipts"]:
        receipt["blockHash"] = "0x" + "f0" * 32
        for log in receipt["logs"]:
            log["blockHash"] = receipt["blockHash"]


def _foreign_log(record: Record) -> None:
    next(receipt for receipt in record["receipts"] if receipt["logs"])["logs"][0]["blockHash"] = "0x" + "f0" * 32


pair("b04-own-gas", MIXED, changed(MIXED, _each_receipt(_cumulative_is_own)))
pair("b04-total", MIXED, changed(MIXED, _each_receipt(_cumulative_is_total)))
PRE_BYZANTIUM = fixture_block("pre_byzantium_1")
pair("b05-status", PRE_BYZANTIUM, changed(PRE_BYZANTIUM, _each_receipt(_status_for_root)))
OP = fixture_block("op_post_canyon")
pair("b07-no-nonce", OP, changed(OP, _each_receipt(_without_deposit_fields)), family="op-stack", chain_id=10)
pair("b19-missing", MIXED, changed(MIXED, lambda record: record["receipts"].pop()))
pair("b19-surplus", MIXED, changed(MIXED, lambda record: record["receipts"].append(record["receipts"][-1])))
pair("b19-lost-transaction", MIXED, changed(MIXED, lambda record: record["block"]["transactions"].pop()))
pair("b21-no-receipts", MIXED, changed(MIXED, lambda record: record.update(receipts=[])))
pair("b20-null-receipts", MIXED, changed(MIXED, lambda record: record.update(receipts=None)))
pair("b23-foreign", MIXED, changed(MIXED, _foreign_receipts))
pair("b23-foreign-log", MIXED, changed(MIXED, _foreign_log))
pair("b37-status", MIXED, changed(MIXED, _flip_status))
case("b37-all-wrong", MIXED, changed(MIXED, _flip_status), changed(MIXED, _each_receipt(_cumulative_is_own)))
pair("b34-odd-data", MIXED, changed(MIXED, lambda record: record["block"]["transactions"][1].update(input="0xabc")))
pair("b34-no-hex", MIXED, changed(MIXED, lambda record: record["receipts"][1].update(logsBloom="bloom")))
pair("b35-wrong-chain", MIXED, Told([MIXED], chain_id=5))


def _null_twice(told: RecordedChain) -> None:
    left = [None, None]
    receipts = MIXED["receipts"]
    told.answers["eth_getBlockReceipts"] = lambda _: left.pop() if left else receipts


case("b22-null-twice", MIXED, Told([MIXED], _null_twice), MIXED)


def _method_missing(_: tuple[Any, ...]) -> None:
    raise Refusal(-32601, "the method eth_getBlockReceipts does not exist/is not available")


def _one_by_one(told: RecordedChain) -> None:
    told.answers["eth_getBlockReceipts"] = _method_missing


def _one_by_one_with_a_gap(told: RecordedChain) -> None:
    _one_by_one(told)
    known = {receipt["transactionHash"]: receipt for receipt in MIXED["receipts"][:-1]}
    told.answers["eth_getTransactionReceipt"] = lambda params: known.get(params[0])


case("b24-one-by-one", MIXED, Told([MIXED], _one_by_one))
pair("b24-gap", MIXED, Told([MIXED], _one_by_one_with_a_gap))


# The same block, spelled otherwise: each of these must give the same bytes as the plain spelling.

MADE_TYPES = {int(transaction["type"], 16): place for place, transaction in enumerate(MADE["block"]["transactions"])}


def _typed(change: Callable[[Record], None]) -> Change:
    def apply(record: Record) -> None:
        for transaction in record["block"]["transactions"]:
            if transaction["type"] != "0x0":
                change(transaction)

    return apply


def _empty_access_list(value: object) -> Change:
    def apply(record: Record) -> None:
        for transaction in record["block"]["transactions"]:
            if transaction.get("accessList") == []:
                if value is KeyError:
                    del transaction["accessList"]
                else:
                    transaction["accessList"] = value

    return apply


def _decimal_authorizations(record: Record) -> None:
    for entry in record["block"]["transactions"][MADE_TYPES[4]]["authorizationList"]:
        entry["chainId"] = str(int(entry["chainId"], 16))
        entry["nonce"] = int(entry["nonce"], 16)
        entry["v"] = int(entry.pop("yParity"), 16)
        entry["r"], entry["s"] = str(int(entry["r"], 16)), str(int(entry["s"], 16))


def _legacy_chain_id(value: object) -> Change:
    def apply(record: Record) -> None:
        for transaction in record["block"]["transactions"]:
            if transaction["type"] == "0x0":
                transaction.pop("chainId", None)
                if value is not KeyError:
                    transaction["chainId"] = value

    return apply


def _more_receipt_fields(receipt: Record) -> None:
    receipt |= {
        "blobGasUsed": "0x20000",
        "blobGasPrice": "0x1",
        "l1Fee": "0x1",
        "gasUsedForL1": "0x2",
        "timeboosted": False,
        "blockTimestamp": 1700000000,
        "root": None,
    }


def _padded(record: Record) -> None:
    for transaction in record["block"]["transactions"]:
        for name in ("r", "s", "nonce", "value", "gas"):
            transaction[name] = "0x000" + transaction[name][2:].upper()
        transaction["value"] = "0x" if int(transaction["value"], 16) == 0 else transaction["value"]
    for receipt in record["receipts"]:
        receipt["cumulativeGasUsed"] = int(receipt["cumulativeGasUsed"], 16)
        receipt["gasUsed"] = str(int(receipt["gasUsed"], 16))
        receipt["status"] = receipt["status"] == "0x1"
    for name in ("gasUsed", "timestamp", "gasLimit"):
        record["block"][name] = "0x00" + record["block"][name][2:]


def _both_forms_of_outcome(receipt: Record) -> None:
    receipt["root"] = MADE["block"]["hash"]


def _forks_absent(record: Record) -> None:
    record["block"] |= {"blockAccessListHash": None, "slotNumber": None, "totalDifficulty": "0x1", "author": "0x"}


SPELLINGS: dict[str, Change] = {
    "b06-root-beside-status": _each_receipt(_both_forms_of_outcome),
    "b06-null-root": _each_receipt(lambda receipt: receipt.update(root=None)),
    "b06-empty-root": _each_receipt(lambda receipt: receipt.update(root="0x")),
    "b14-decimal": _decimal_authorizations,
    "b15-v-alone": _typed(lambda transaction: transaction.pop("yParity")),
    "b15-parity-alone": _typed(lambda transaction: transaction.pop("v")),
    "b15-v-lies": _typed(lambda transaction: transaction.update(v=hex(1 - int(transaction["v"], 16)))),
    "b15-parity-lies": _typed(lambda transaction: transaction.update(yParity=hex(1 - int(transaction["v"], 16)))),
    "b16-access-null": _empty_access_list(None),
    "b16-access-absent": _empty_access_list(KeyError),
    "b16-chain-absent": _typed(lambda transaction: transaction.pop("chainId")),
    "b17-absent": _legacy_chain_id(KeyError),
    "b17-null": _legacy_chain_id(None),
    "b17-right": _legacy_chain_id(hex(CHAIN_ID)),
    "b17-wrong": _legacy_chain_id("0x7"),
    "b18-more-fields": _each_receipt(_more_receipt_fields),
    "b34-padded": _padded,
    "null-fork-fields": _forks_absent,
}
case("spelled-plainly", MADE, chain_id=CHAIN_ID)
for spelling, spell in SPELLINGS.items():
    case(spelling, MADE, changed(MADE, spell), chain_id=CHAIN_ID)

SPARSE = [make_block(height, bytes(32), every_type()) for height in (0, 1, 15, 16, 255, 256, 0x07D6D1)]
case("b33-heights", SPARSE[0], Told(SPARSE), chain_id=CHAIN_ID)

GREAT_CHAIN = 2**60 + 1
RICH = Account.numbered(40)
GREAT = make_block(
    7,
    bytes(32),
    [
        Sent(
            signing.dynamic_fee(RICH, Call(b"\x11" * 20, value=2**256 - 1, gas=2**63), GREAT_CHAIN),
            RICH.address,
            Outcome(2**62),
        )
    ],
    timestamp=hex(2**63 - 1),
    gasLimit=hex(2**63),
)
case("b67-great", GREAT, chain_id=GREAT_CHAIN)
case("b67-timestamp", changed(GREAT, lambda record: record["block"].update(timestamp=hex(2**64))), chain_id=GREAT_CHAIN)
CASES["b67-timestamp"].nodes[0].records[0] = rehash(CASES["b67-timestamp"].truth)


def _numbers_in_json(record: Record) -> None:
    record["block"]["transactions"][0]["value"] = 2**256 - 1
    record["receipts"][0]["cumulativeGasUsed"] = 2**62


case("b67-json-numbers", GREAT, changed(GREAT, _numbers_in_json), chain_id=GREAT_CHAIN)
case(
    "b67-float", GREAT, changed(GREAT, lambda record: record["block"]["transactions"][0].update(value=1.157e77)),
    chain_id=GREAT_CHAIN,
)  # fmt: skip


# --- the server -------------------------------------------------------------------------------------------------------


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
    running.proven(f"{name}-helped", "receipt", 1)


def test_B05_a_state_root_in_the_place_of_a_status(running: Running) -> None:
    answer = running.proven("pre-byzantium-1", "receipt", 0)
    assert answer.json["root"].startswith("0x2c18df72")
    running.refused("b05-status-alone", "receipt", 0, "InconsistentSource", "NotCommittedByHeader")
    running.proven("b05-status-helped", "receipt", 0)


def test_B07_a_deposit_receipt_has_six_fields(running: Running) -> None:
    answer = running.proven("op-post-canyon", "receipt", 0)
    assert answer.json["root"].startswith("0xde24a8ee")
    assert len(rlp.decode(bytes.fromhex(answer.json["value"][4:]))) == 6
    running.refused("b07-no-nonce-alone", "receipt", 0, "InconsistentSource")
    running.proven("b07-no-nonce-helped", "receipt", 0)


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


@pytest.mark.parametrize(
    "name",
    [
        "b19-missing",
        "b19-surplus",
        "b19-lost-transaction",
        "b20-null-receipts",
        "b21-no-receipts",
        "b23-foreign",
        "b23-foreign-log",
        "b24-gap",
        "b34-odd-data",
        "b34-no-hex",
        "b37-status",
    ],
)
def test_B19_B20_B21_B23_B24_B34_B37_one_bad_node_is_no_proof_and_a_good_one_beside_it_is(
    name: str, running: Running
) -> None:
    alone = running.item(f"{name}-alone", "receipt", 2)
    if (
        name == "b19-surplus" and alone.status == 200
    ):  # dropping what was told twice is allowed, where the root then matches
        judge(alone.body, MIXED, "receipt", 2, chain_key=running.keys[f"{name}-alone"], chain_id=1)
    else:
        refused = running.refused(f"{name}-alone", "receipt", 2, "InconsistentSource", "RpcUnavailable")
        assert int(refused.headers["retry-after"]) >= 1
    for index in range(3):
        for kind in ("transaction", "receipt"):
            running.proven(f"{name}-helped", kind, index)
    by_hash = running.get(f"{name}-helped", f"receipts/{transaction_hashes(MIXED)[2]}")
    assert by_hash.status == 200


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
    running.proven("b35-wrong-chain-helped", "receipt", 1)
    assert running.told("b35-wrong-chain-helped").block_fetches() == 0
    assert running.copath.get("/readyz").status == 200


def test_B37_when_all_are_wrong_both_roots_are_named_and_counted(running: Running) -> None:
    refused = running.refused("b37-all-wrong", "receipt", 1, "InconsistentSource")
    assert MIXED["block"]["receiptsRoot"] in refused.json["message"]
    running.proven("b37-status-helped", "receipt", 1)
    mismatches = running.copath.metric("copath_root_mismatch_total", chain="b37-status-helped", upstream="primary")
    assert mismatches >= 1


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
    value, unsafe = sdk.round_trip(listed.body.decode())
    assert unsafe == []


def test_B67_what_cannot_be_exact_is_refused(running: Running) -> None:
    running.refused("b67-float", "transaction", 0, "InconsistentSource", "UnsupportedBlockFormat")
    late = running.item("b67-timestamp", "transaction", 0)
    assert late.status in (200, 422, 503), late.body[:300]
    if late.status == 200:
        assert late.json["blockHash"] == rehash(CASES["b67-timestamp"].truth)["block"]["hash"]
