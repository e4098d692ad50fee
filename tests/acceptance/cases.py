"""The chains of the cases: what nodes were seen to tell, one small chain each, with one node or two."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.acceptance.judging import Record
from tests.acceptance.made_blocks import CHAIN_ID, Outcome, Sent, every_type, make_block, rehash, small_chain
from tests.acceptance.recorded_node import RecordedChain, Refusal
from tests.corpus_files import FIXTURES, fixtures, recorded
from tests.oracles import signing
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


CASES: dict[str, Case] = {}


def case(name: str, truth: Record, *nodes: Record | Told, family: str = "ethereum", chain_id: int = 1) -> None:
    """Declares one chain. Without nodes, one node tells the truth."""
    told = [one if isinstance(one, Told) else Told([one]) for one in nodes or (truth,)]
    CASES[name] = Case(truth, told, family, chain_id)


BAD_NODES: list[str] = []
"""Names of the pairs: `NAME-alone` and `NAME-helped`."""


def pair(name: str, truth: Record, bad: Record | Told, family: str = "ethereum", chain_id: int = 1) -> None:
    """Declares two chains: one whose only node is bad, one whose second node tells the truth."""
    BAD_NODES.append(name)
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
