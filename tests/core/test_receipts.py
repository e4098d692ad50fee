from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import rlp as oracle
from msgspec.structs import replace

from app.core import trie
from app.core.errors import ContentInvalid
from app.core.receipts import (
    Receipt,
    bloom,
    decode_leaf,
    decode_receipt,
    encodings,
    logs_of_leaf,
    noncanonical_encodings,
    parse_log,
)
from app.core.rpc_json import decode_receipts
from tests.corpus_files import FIXTURES, family, files, fixtures, label, load, receipts_json


def _types(block: dict[str, Any]) -> list[int | None]:
    entries = block.get("transactions") or []
    return [int(entry.get("type") or "0x0", 16) if isinstance(entry, dict) else None for entry in entries]


def _receipts(given: list[dict[str, Any]], types: list[int | None] | None = None) -> list[Receipt]:
    decoded = decode_receipts(json.dumps(given).encode())
    known = types or [None] * len(decoded)
    return [decode_receipt(receipt, type_) for receipt, type_ in zip(decoded, known, strict=True)]


def _root(leaves: list[bytes]) -> str:
    return "0x" + trie.build_ordered(leaves).root.hex()


def _roots(receipts: list[Receipt], family_: str = "ethereum") -> dict[str, str]:
    return {name: _root(leaves) for name, leaves in encodings(receipts, family_)}


def _fixture(name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return [dict(each) for each in fixtures()[name]["receipts"]], fixtures()[name]["expect"]


# --- recorded blocks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", files("full", "contiguous", "receipts-only"), ids=label)
def test_every_recorded_receipts_root_is_met(path: Path) -> None:
    record = load(path)
    decoded = decode_receipts(receipts_json(record))
    types = _types(record["block"]) or [None] * len(decoded)
    receipts = [decode_receipt(receipt, type_) for receipt, type_ in zip(decoded, types, strict=True)]
    name, leaves = next(encodings(receipts, family(record)))
    assert name == "canonical"
    assert _root(leaves) == record["block"]["receiptsRoot"]
    filters = 0
    for receipt, leaf in zip(receipts, leaves, strict=True):
        assert bloom(receipt.logs) == receipt.logs_bloom
        assert [parse_log(log) for log in logs_of_leaf(leaf)] == list(receipt.logs)
        assert decode_leaf(leaf)[0] == receipt.type
        filters |= int.from_bytes(receipt.logs_bloom, "big")
    assert filters == int(record["block"]["logsBloom"], 16)


@pytest.mark.parametrize("path", files("nonstandard"), ids=label)
def test_receipts_of_odd_chains_are_met_or_not_as_recorded(path: Path) -> None:
    record = load(path)
    if record["receipts"] is None:
        return
    receipts = [decode_receipt(receipt, None) for receipt in decode_receipts(receipts_json(record))]
    candidates = [*encodings(receipts, family(record)), *noncanonical_encodings(receipts)]
    met = [name for name, leaves in candidates if _root(leaves) == record["block"]["receiptsRoot"]]
    assert met == (["canonical"] if record["verification"]["receiptsRoot"] else [])


def test_a_block_without_transactions_has_the_empty_root() -> None:
    assert _roots([]) == {"canonical": "0x" + trie.EMPTY_ROOT.hex()}


# --- encodings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixed3", "pre_byzantium_1", "op_post_canyon", "legacy130", "empty"])
def test_B01_typed_leaves_are_type_and_payload(name: str) -> None:
    given_, expect = _fixture(name)
    receipts = _receipts(given_)
    _, leaves = next(encodings(receipts, "op-stack"))
    assert ["0x" + leaf.hex() for leaf in leaves] == expect["leaves"]
    assert _root(leaves) == expect["receiptsRoot"]
    for receipt, leaf in zip(receipts, leaves, strict=True):
        assert leaf[0] == receipt.type if receipt.type else leaf[0] >= 0xC0


def test_B01_the_roots_of_common_mistakes_are_never_met() -> None:
    given_, _ = _fixture("mixed3")
    receipts = _receipts(given_)
    wrong = json.loads((FIXTURES / "mixed3_wrong_roots.json").read_text())
    assert not set(_roots(receipts).values()) & set(wrong.values())
    named = {name: _root(leaves) for name, leaves in noncanonical_encodings(receipts)}
    assert named == {"rlp-wrapped": wrong["typed leaf RLP-wrapped"], "untyped": wrong["no type byte"]}


def test_B02_a_block_of_legacy_receipts_has_no_other_form() -> None:
    given_, _ = _fixture("legacy130")
    assert list(noncanonical_encodings(_receipts(given_))) == []


def test_B04_wrong_cumulative_gas_misses_the_root() -> None:
    given_, expect = _fixture("mixed3")
    wrong = json.loads((FIXTURES / "mixed3_wrong_roots.json").read_text())
    own = _receipts([each | {"cumulativeGasUsed": each["gasUsed"]} for each in given_])
    total = _receipts([each | {"cumulativeGasUsed": given_[-1]["cumulativeGasUsed"]} for each in given_])
    assert _roots(own) == {"canonical": wrong["gasUsed instead of cumulative"]}
    assert _roots(total) == {"canonical": wrong["block total in every receipt"]}
    assert expect["receiptsRoot"] not in (*_roots(own).values(), *_roots(total).values())


def test_B05_before_byzantium_the_post_state_stands_first() -> None:
    given_, expect = _fixture("pre_byzantium_1")
    assert expect["receiptsRoot"].startswith("0x2c18df72")
    assert _roots(_receipts(given_)) == {"canonical": expect["receiptsRoot"]}
    as_status = [{key: value for key, value in each.items() if key != "root"} | {"status": "0x1"} for each in given_]
    (root,) = _roots(_receipts(as_status)).values()
    assert root.startswith("0x056b23fb")


def test_B06_a_receipt_with_both_root_and_status() -> None:
    given_, expect = _fixture("mixed3")
    both = _receipts([each | {"root": fixtures()["mixed3"]["block"]["hash"]} for each in given_])
    roots = _roots(both)
    assert list(roots) == ["canonical", "post-state-first"]
    assert roots["canonical"] == expect["receiptsRoot"]

    given_, expect = _fixture("pre_byzantium_1")
    roots = _roots(_receipts([each | {"status": "0x1"} for each in given_]))
    assert roots["canonical"] != roots["post-state-first"] == expect["receiptsRoot"]


@pytest.mark.parametrize("empty", [None, "", "0x"])
def test_B06_an_empty_root_beside_a_status_is_no_root(empty: str | None) -> None:
    given_, expect = _fixture("mixed3")
    receipts = _receipts([each | {"root": empty} for each in given_])
    assert {receipt.post_state for receipt in receipts} == {None}
    assert _roots(receipts) == {"canonical": expect["receiptsRoot"]}


@pytest.mark.parametrize("nonce", [0, 7])
def test_B07_a_deposit_nonce_is_encoded_when_its_version_is_there(nonce: int) -> None:
    given_, expect = _fixture("op_post_canyon")
    assert expect["receiptsRoot"].startswith("0xde24a8ee")
    (receipt,) = _receipts([each | {"depositNonce": hex(nonce)} for each in given_])
    candidates = dict(encodings([receipt], "op-stack"))
    type_, fields = decode_leaf(candidates["canonical"][0])
    assert type_ == 0x7E
    assert fields[4:] == [b"\x80" if nonce == 0 else b"\x07", b"\x01"]
    assert len(decode_leaf(candidates["regolith"][0])[1]) == 4


def test_B07_before_canyon_the_nonce_is_shown_and_not_hashed() -> None:
    given_, expect = _fixture("op_post_canyon")
    shown = [{key: value for key, value in each.items() if key != "depositReceiptVersion"} for each in given_]
    omitted = [{key: value for key, value in each.items() if key != "depositNonce"} for each in shown]
    assert _roots(_receipts(shown)) == _roots(_receipts(omitted))
    assert expect["receiptsRoot"] not in _roots(_receipts(omitted)).values()
    (receipt,) = _receipts(shown)
    assert receipt.deposit_nonce == 7
    assert receipt.deposit_receipt_version is None


def test_B18_fields_beside_the_receipt_are_ignored() -> None:
    given_, expect = _fixture("mixed3")
    beside = {
        "blobGasUsed": "0x20000",
        "blobGasPrice": "0x1",
        "l1Fee": None,
        "gasUsedForL1": "0x9",
        "timeboosted": False,
        "blockTimestamp": 1700000000,
        "l1BlockNumber": "0x1",
        "feeStats": {"paid": []},
    }
    assert _roots(_receipts([each | beside for each in given_])) == {"canonical": expect["receiptsRoot"]}


def test_B37_one_flipped_status_misses_the_root() -> None:
    given_, expect = _fixture("mixed3")
    for index in range(len(given_)):
        flipped = [dict(each) for each in given_]
        flipped[index]["status"] = "0x0" if flipped[index]["status"] == "0x1" else "0x1"
        assert expect["receiptsRoot"] not in _roots(_receipts(flipped)).values()


@pytest.mark.parametrize(
    "spelled",
    [{"0x1": True, "0x0": False}, {"0x1": "1", "0x0": "0"}, {"0x1": 1, "0x0": 0}, {"0x1": "0x01", "0x0": "0x"}],
)
def test_B34_a_status_in_any_spelling(spelled: dict[str, Any]) -> None:
    given_, expect = _fixture("mixed3")
    receipts = [
        each | {"status": spelled[each["status"]], "cumulativeGasUsed": int(each["cumulativeGasUsed"], 16)}
        for each in given_
    ]
    assert _roots(_receipts(receipts)) == {"canonical": expect["receiptsRoot"]}


def test_a_receipt_without_a_type_has_that_of_its_transaction() -> None:
    given_, expect = _fixture("mixed3")
    types: list[int | None] = [int(each["type"], 16) for each in given_]
    for absent in ({}, {"type": None}):
        untyped = [{key: value for key, value in each.items() if key != "type"} | absent for each in given_]
        assert _roots(_receipts(untyped, types)) == {"canonical": expect["receiptsRoot"]}
        assert {receipt.type for receipt in _receipts(untyped)} == {0}


@pytest.mark.parametrize("absent", [None, "", "0x", ...])
def test_a_missing_bloom_is_computed(absent: Any) -> None:
    given_, expect = _fixture("mixed3")
    bare = [{key: value for key, value in each.items() if key != "logsBloom"} for each in given_]
    if absent is not ...:
        bare = [each | {"logsBloom": absent} for each in bare]
    assert _roots(_receipts(bare)) == {"canonical": expect["receiptsRoot"]}


def test_a_bloom_that_is_given_is_encoded_as_given() -> None:
    given_, _ = _fixture("mixed3")
    zeroed = _receipts([each | {"logsBloom": "0x" + "00" * 256} for each in given_])
    assert _roots(zeroed)["canonical"] == json.loads((FIXTURES / "mixed3_wrong_roots.json").read_text())["bloom zeroed"]


@pytest.mark.parametrize("type_", [0x3F, 0x64, 0x68, 0x69, 0x6A, 0x76, 0x78, 0x7F, 0x05])
def test_any_other_type_is_its_byte_and_four_fields(type_: int) -> None:
    (receipt,) = _receipts(
        [{"type": hex(type_), "status": "0x1", "cumulativeGasUsed": "0x0", "logs": [], "gasUsedForL1": "0x5"}]
    )
    ((name, (leaf,)),) = encodings([receipt], "arbitrum")
    assert name == "canonical"
    assert leaf == bytes((type_,)) + oracle.encode([1, 0, bytes(256), []])


def test_a_celo_receipt_may_end_in_the_base_fee_of_its_currency() -> None:
    (receipt,) = _receipts(
        [{"type": "0x7b", "status": "0x1", "cumulativeGasUsed": "0x9", "logs": [], "baseFee": "0x0"}]
    )
    found = {name: leaf for name, (leaf,) in encodings([receipt], "celo")}
    assert found == {
        "canonical": b"\x7b" + oracle.encode([1, 9, bytes(256), [], 0]),
        "without-base-fee": b"\x7b" + oracle.encode([1, 9, bytes(256), []]),
    }
    assert [name for name, _ in encodings([receipt], "ethereum")] == ["canonical"]


def test_a_celo_deposit_without_its_nonce_leaves_the_base_fee_of_others_alone() -> None:
    celo, deposit = _receipts(
        [
            {"type": "0x7b", "status": "0x1", "cumulativeGasUsed": "0x9", "baseFee": "0x5"},
            {
                "type": "0x7e",
                "status": "0x1",
                "cumulativeGasUsed": "0x9",
                "depositNonce": "0x1",
                "depositReceiptVersion": "0x1",
            },
        ]
    )
    widths = {
        name: [len(decode_leaf(leaf)[1]) for leaf in leaves] for name, leaves in encodings([celo, deposit], "celo")
    }
    assert widths == {"canonical": [5, 6], "regolith": [5, 4], "without-base-fee": [4, 6]}


def test_only_the_doubtful_receipts_change_between_candidates() -> None:
    given_, _ = _fixture("mixed3")
    deposit, _ = _fixture("op_post_canyon")
    receipts = [*_receipts(given_), *_receipts(deposit)]
    receipts[0] = replace(receipts[0], post_state=b"\x77" * 32)
    candidates = dict(encodings(receipts, "op-stack"))
    assert list(candidates) == ["canonical", "post-state-first", "regolith"]
    changed = {
        name: [index for index, leaf in enumerate(leaves) if leaf != candidates["canonical"][index]]
        for name, leaves in candidates.items()
    }
    assert changed == {"canonical": [], "post-state-first": [0], "regolith": [3]}


# --- broken fields --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"cumulativeGasUsed": hex(2**64)},
        {"cumulativeGasUsed": "all"},
        {"status": "0xzz"},
        {"status": hex(2**256)},
        {"status": None},
        {"status": None, "root": "0x"},
        {"status": None, "root": "0x12"},
        {"logs": [{"address": "0x12", "topics": [], "data": "0x"}]},
        {"logs": [{"address": "0x" + "11" * 20, "topics": ["0x12"], "data": "0x"}]},
        {"logs": [{"address": "0x" + "11" * 20, "topics": ["0x" + "0g" * 32], "data": "0x"}]},
        {"logs": [{"address": "0x" + "11" * 20, "topics": [], "data": "0x1"}]},
    ],
)
def test_B34_a_broken_field_is_the_nodes_fault_and_never_a_crash(change: dict[str, Any]) -> None:
    given_, _ = _fixture("mixed3")
    with pytest.raises(ContentInvalid):
        _receipts([given_[0] | change])
