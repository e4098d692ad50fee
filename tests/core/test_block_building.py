"""Whole blocks in, verdicts and proofs out: the recorded corpus, the fixtures, and the ways in which data can be wrong."""

from __future__ import annotations

import copy
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import rlp

from app.core import merkle, trie
from app.core.block_building import build
from app.core.errors import (
    ContentInvalid,
    EmptyBlockTxProof,
    HeaderHashUnsupported,
    HistoryUnavailable,
    InconsistentSource,
    LogIndexOutOfBounds,
    NotCommittedByHeader,
    ProofError,
    TxIndexOutOfBounds,
    UnsupportedBlockFormat,
    UnsupportedTransactionType,
)
from app.core.headers import hash_header
from app.core.hexadecimal import from_hex
from app.core.keccak import keccak
from app.core.provable_block import BuildRequest, ProvableBlock, Verdict, unpack
from app.core.receipts import decode_receipt, logs_of_leaf, noncanonical_encodings, parse_log
from app.core.rpc_json import decode_block, decode_receipts
from tests import corpus_files
from tests.corpus_files import FIXTURES

NOT_KECCAK_CHAINS = ("cronos", "stable", "stable-testnet")
"""Chains whose block hash is CometBFT's: an operator configures them as `frontier`."""


@dataclass(frozen=True)
class Recorded:
    """One recorded block; read when a test needs it."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".json.gz")

    @property
    def record(self) -> dict[str, Any]:
        return corpus_files.load(self.path)

    @property
    def family(self) -> str:
        record = self.record
        return "frontier" if record["chain"] in NOT_KECCAK_CHAINS else corpus_files.family(record)


def corpus_blocks(*sets: str) -> list[Recorded]:
    return [Recorded(path) for path in corpus_files.files(*sets)]


FULL = corpus_blocks("full", "contiguous")


def request(
    block: dict[str, Any],
    receipts: list[dict[str, Any]] | None,
    *,
    family: str = "ethereum",
    chain_id: int = 1,
    anchored: bool = False,
) -> BuildRequest:
    return BuildRequest(
        family=family,
        chain_id=chain_id,
        anchored=anchored,
        height=None,
        block_hash=from_hex(block["hash"]),
        block_json=json.dumps(block).encode(),
        receipts_json=None if receipts is None else json.dumps(receipts).encode(),
    )


def built(entry: Recorded, *, anchored: bool = False) -> ProvableBlock:
    record = entry.record
    return build(
        request(
            record["block"],
            record.get("receipts"),
            family=entry.family,
            chain_id=record["chainId"] or 1,
            anchored=anchored,
        )
    )


def fixture(name: str) -> dict[str, Any]:
    return copy.deepcopy(corpus_files.fixtures()[name])


@pytest.mark.parametrize("entry", FULL, ids=lambda entry: entry.name)
def test_every_item_of_a_full_block_is_proven(entry: Recorded) -> None:
    block, given = built(entry), entry.record["block"]
    assert block.transactions_verdict is block.receipts_verdict is Verdict.PROVEN
    assert block.transaction_count == len(given["transactions"])
    assert keccak(block.header_rlp) == block.block_hash == from_hex(given["hash"])
    for index in range(block.transaction_count):
        sent = block.transaction_proof(index)
        assert sent.root == from_hex(given["transactionsRoot"])
        assert trie.verify(sent.root, sent.key, sent.nodes) == sent.value
        assert keccak(sent.value) == from_hex(given["transactions"][index]["hash"])
        kept = block.receipt_proof(index)
        assert kept.root == from_hex(given["receiptsRoot"])
        assert trie.verify(kept.root, kept.key, kept.nodes) == kept.value


@pytest.mark.parametrize("entry", FULL, ids=lambda entry: entry.name)
def test_logs_are_counted_over_the_proven_receipts(entry: Recorded) -> None:
    block = built(entry)
    in_block = 0
    for index, receipt in enumerate(entry.record["receipts"] or []):
        logs = receipt["logs"]
        encoded = logs_of_leaf(block.receipt_proof(index).value) if logs else []
        for in_receipt, (log, rlp_of_log) in enumerate(zip(logs, encoded, strict=True)):
            parsed = parse_log(rlp_of_log)
            assert parsed.address == from_hex(log["address"])
            assert parsed.topics == tuple(map(from_hex, log["topics"]))
            assert parsed.data == from_hex(log["data"])
            # A proof reads its whole receipt: of one with 10,000 logs, some.
            if len(logs) < 500 or in_receipt % 97 == 0 or in_receipt == len(logs) - 1:
                proof = block.log_proof_in_receipt(index, in_receipt)
                assert (proof.index_in_receipt, proof.index_in_block) == (in_receipt, in_block)
                assert (proof.rlp, proof.address) == (rlp_of_log, parsed.address)
                assert (proof.topics, proof.data) == (parsed.topics, parsed.data)
                if in_block % 17 == 0:
                    assert block.log_proof_in_block(in_block) == proof
            in_block += 1
    assert block.log_count == in_block
    if block.receipt_count:
        with pytest.raises(LogIndexOutOfBounds):
            block.log_proof_in_block(in_block)


@pytest.mark.parametrize("entry", FULL[::6], ids=lambda entry: entry.name)
def test_a_packed_block_is_the_same_block(entry: Recorded) -> None:
    block = built(entry, anchored=True)
    assert unpack(block.pack()) == block
    assert 0.5 * len(block.pack()) <= block.size_bytes <= len(block.pack()) + 4096


def test_unpack_refuses_what_is_no_block_and_other_versions() -> None:
    block = build(request(fixture("mixed3")["block"], fixture("mixed3")["receipts"]))
    for damaged in (b"", b"\x00", block.pack()[:-3], b"\x93\x01\x02\x03"):
        with pytest.raises(ValueError, match="not a packed block"):
            unpack(damaged)
    packed = bytearray(block.pack())
    at = packed.index(1)  # the version is the first field
    packed[at] = 2
    with pytest.raises(ValueError, match="encoder version"):
        unpack(bytes(packed))


@pytest.mark.parametrize("entry", corpus_blocks("contiguous")[::5], ids=lambda entry: entry.name)
def test_usc_leaves_take_senders_and_gas_from_what_is_committed(entry: Recorded) -> None:
    """A node that lies about `from` and `gasUsed`, which no root commits to, changes no leaf."""
    honest = built(entry, anchored=True)
    assert honest.leaves_verdict is Verdict.PROVEN
    record = entry.record
    block, receipts = record["block"], record["receipts"]
    for transaction in block["transactions"]:
        transaction["from"] = "0x" + "11" * 20
    for receipt in receipts or []:
        receipt["gasUsed"] = "0x1"
    lied = build(request(block, receipts, family=entry.family, chain_id=record["chainId"], anchored=True))
    assert lied == honest
    for index in range(honest.transaction_count):
        proof = honest.leaf_proof(index)
        assert merkle.verify(proof.root, proof.leaf, proof.siblings) == index


def test_usc_leaves_take_nothing_that_the_matching_encoding_left_out() -> None:
    """A node adds a status to receipts from before Byzantium: no root commits to it, so the leaf must not change."""
    record = corpus_files.recorded("full", "mainnet_1000002")
    honest = build(request(record["block"], record["receipts"], anchored=True))
    lied = [receipt | {"status": "0x0"} for receipt in record["receipts"]]
    assert build(request(record["block"], lied, anchored=True)) == honest
    assert honest.leaves_verdict is Verdict.PROVEN


@pytest.mark.parametrize("name", ["mixed3", "pre_byzantium_1", "legacy130", "empty"])
def test_B01_B05_fixture_roots_and_leaves(name: str) -> None:
    given = fixture(name)
    block = build(request(given["block"], given["receipts"]))
    assert block.receipts_verdict is Verdict.PROVEN
    for index, leaf in enumerate(given["expect"]["leaves"]):
        assert block.receipt_proof(index).value == from_hex(leaf)


def test_B03_node_counts_of_130_transactions() -> None:
    given = fixture("legacy130")
    block = build(request(given["block"], given["receipts"]))
    assert [len(block.transaction_proof(index).nodes) for index in (0, 127, 128, 129)] == [3, 3, 5, 5]


def test_B04_cumulative_gas_of_another_meaning_is_unmet() -> None:
    given = fixture("mixed3")
    for value in ("each", "total"):
        receipts = copy.deepcopy(given["receipts"])
        for receipt in receipts:
            receipt["cumulativeGasUsed"] = receipt["gasUsed"] if value == "each" else given["block"]["gasUsed"]
        block = build(request(given["block"], receipts))
        assert block.receipts_verdict is Verdict.UNMET
        assert not block.settled
        with pytest.raises(InconsistentSource, match=r"0x237512116f370a64.* rebuilt 0x"):
            block.receipt_proof(0)
        assert block.transaction_proof(0).value


def test_B06_both_root_and_status_are_decided_by_the_root() -> None:
    given = fixture("mixed3")
    for receipt in given["receipts"]:
        receipt["root"] = given["block"]["hash"]
    assert build(request(given["block"], given["receipts"])).receipts_verdict is Verdict.PROVEN
    before = fixture("pre_byzantium_1")
    for receipt in before["receipts"]:
        receipt["status"] = "0x1"
    assert build(request(before["block"], before["receipts"])).receipts_verdict is Verdict.PROVEN


def test_B07_deposit_receipts_after_canyon() -> None:
    given = fixture("op_post_canyon")
    block = build(request(given["block"], given["receipts"], family="op-stack", chain_id=10))
    assert block.receipt_proof(0).value == from_hex(given["expect"]["leaves"][0])
    for receipt in given["receipts"]:
        receipt.pop("depositNonce"), receipt.pop("depositReceiptVersion")
    stripped = build(request(given["block"], given["receipts"], family="op-stack", chain_id=10))
    assert stripped.receipts_verdict is Verdict.UNMET


def _polygon() -> tuple[dict[str, Any], list[dict[str, Any]], bytes]:
    given = fixture("polygon_state_sync_pre_madhugiri")
    return given["block"], given["receipts"], from_hex(given["block"]["transactions"][1]["hash"])


@pytest.mark.parametrize("dropped", ["neither", "transaction", "receipt"])
def test_B08_state_sync_pair_is_in_no_trie(dropped: str) -> None:
    block_json, receipts, phantom = _polygon()
    if dropped == "transaction":
        del block_json["transactions"][1]
    if dropped == "receipt":
        del receipts[1]
    block = build(request(block_json, receipts, family="polygon", chain_id=137))
    assert block.transaction_count == block.receipt_count == 1
    assert block.receipt_proof(0).value
    assert block.transaction_proof(0).value
    with pytest.raises(NotCommittedByHeader):
        block.index_of(phantom)
    with pytest.raises(TxIndexOutOfBounds):
        block.transaction_proof(1)


def test_B10_unknown_type_refuses_every_transaction_and_spares_the_receipts() -> None:
    record = corpus_files.recorded("full", "arbitrum-one_150000000")
    block = build(request(record["block"], record["receipts"], family="ethereum", chain_id=42161))
    assert block.settled
    for index in range(block.transaction_count):
        with pytest.raises(UnsupportedTransactionType, match="0x6a"):
            block.transaction_proof(index)
        assert block.receipt_proof(index).value


def test_B11_zero_receipts_root_is_a_lasting_property() -> None:
    given = fixture("zero_receipts_root")
    for receipts in (given["receipts"], None, []):
        block = build(request(given["block"], receipts))
        assert block.settled
        with pytest.raises(NotCommittedByHeader):
            block.receipt_proof(0)
        assert block.transaction_proof(0).value


def test_B02_header_over_a_known_other_encoding_is_permanent() -> None:
    given = fixture("mixed3")
    receipts = [decode_receipt(each, None) for each in decode_receipts(json.dumps(given["receipts"]).encode())]
    for _name, leaves in noncanonical_encodings(receipts):
        block_json = rehashed(given["block"], receiptsRoot="0x" + trie.build_ordered(leaves).root.hex())
        block = build(
            request(
                block_json,
                [
                    r
                    | {"blockHash": block_json["hash"], "logs": []}
                    | {"logs": [log | {"blockHash": block_json["hash"]} for log in r["logs"]]}
                    for r in given["receipts"]
                ],
            )
        )
        assert block.receipts_verdict is Verdict.NOT_COMMITTED
        assert block.settled
        assert block.transaction_proof(0).value


def rehashed(block: dict[str, Any], **changes: str) -> dict[str, Any]:
    """The block with other header fields and the hash that then follows; its transactions follow along."""

    changed = copy.deepcopy(block) | changes
    kept = hash_header(decode_block(json.dumps(block).encode()), "ethereum").rlp
    fields = rlp.decode(kept)
    order = {"transactionsRoot": 4, "receiptsRoot": 5}
    for name, value in changes.items():
        fields[order[name]] = from_hex(value)
    changed["hash"] = "0x" + keccak(rlp.encode(fields)).hex()
    for transaction in changed["transactions"]:
        transaction["blockHash"] = changed["hash"]
    return changed


def test_B01_roots_of_common_mistakes_are_never_served() -> None:
    given = fixture("mixed3")
    wrong = json.loads((FIXTURES / "mixed3_wrong_roots.json").read_text())
    roots = [value for value in _strings(wrong) if len(value) == 66]
    assert len(roots) >= 8
    for root in roots:
        for field in ("transactionsRoot", "receiptsRoot"):
            block_json = rehashed(given["block"], **{field: root})
            receipts = [
                receipt | {"blockHash": None, "logs": [log | {"blockHash": None} for log in receipt["logs"]]}
                for receipt in given["receipts"]
            ]
            block = build(request(block_json, receipts))
            with pytest.raises(ProofError):
                (block.transaction_proof if field == "transactionsRoot" else block.receipt_proof)(0)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for each in value for text in _strings(each)] if isinstance(value, list) else []


def test_B43_an_empty_block_proves_nothing() -> None:
    given = fixture("empty")
    block = build(request(given["block"], [], anchored=True))
    for cut in (block.transaction_proof, block.receipt_proof, block.leaf_proof, block.log_proof_in_block):
        with pytest.raises(EmptyBlockTxProof):
            cut(0)
    assert block.usc_root == bytes(32)


def test_B19_a_missing_receipt_is_broken_data() -> None:
    given = fixture("mixed3")
    for short in (given["receipts"][:2], []):
        block = build(request(given["block"], short))
        assert (block.transactions_verdict, block.receipts_verdict) == (Verdict.PROVEN, Verdict.BROKEN)
        assert block.broken_checks == ["count"]
        with pytest.raises(InconsistentSource, match="missing") as caught:
            block.receipt_proof(0)
        assert caught.value.extra == {"check": "count"}
    doubled = [*given["receipts"], given["receipts"][1]]
    assert build(request(given["block"], doubled)).receipts_verdict is Verdict.PROVEN


def test_B19_a_missing_transaction_is_broken_data_where_the_receipts_are_whole() -> None:
    given = fixture("mixed3")
    names = [each["hash"] for each in given["block"]["transactions"]]
    del given["block"]["transactions"][-1]
    block = build(request(given["block"], given["receipts"]))
    assert (block.transactions_verdict, block.receipts_verdict) == (Verdict.BROKEN, Verdict.PROVEN)
    with pytest.raises(InconsistentSource, match="3 receipts for 2 transactions"):
        block.transaction_proof(0)
    assert [block.receipt_proof(index).value for index in range(3)]
    assert block.transaction_hashes == b"".join(map(from_hex, names))
    assert block.proven_hashes == b""
    assert not block.settled


def test_B23_receipts_or_logs_of_another_block_are_refused() -> None:
    given = fixture("mixed3")
    other = "0x" + "ab" * 32
    foreign = copy.deepcopy(given["receipts"])
    foreign[0]["blockHash"] = other
    logs = copy.deepcopy(given["receipts"])
    logs[1]["logs"][0]["blockHash"] = other
    for receipts in (foreign, logs):
        block = build(request(given["block"], receipts))
        assert block.transactions_verdict is Verdict.PROVEN
        with pytest.raises(InconsistentSource, match="names 0xabab"):
            block.receipt_proof(0)
    given["block"]["transactions"][1]["blockHash"] = other
    block = build(request(given["block"], given["receipts"]))
    assert block.receipts_verdict is Verdict.PROVEN
    with pytest.raises(InconsistentSource, match="names 0xabab"):
        block.transaction_proof(0)
    with pytest.raises(ContentInvalid, match="names 0xabab"):
        build(request(given["block"], foreign))


def test_identity_a_valid_block_that_was_not_asked_for_is_refused() -> None:
    one, other = (corpus_files.recorded("full", name) for name in ("mainnet_1000002", "mainnet_1000004"))
    asked = request(one["block"], one["receipts"])
    swapped = request(other["block"], other["receipts"])
    for changes in ({"block_hash": asked.block_hash}, {"block_hash": None, "height": 1000002}):
        with pytest.raises(ContentInvalid, match="asked for"):
            build(BuildRequest(**{**{name: getattr(swapped, name) for name in swapped.__slots__}, **changes}))


def test_receipts_out_of_order_are_put_in_order() -> None:
    record = corpus_files.recorded("full", "mainnet_990003")
    shuffled = list(reversed(record["receipts"]))
    backwards = record["block"] | {"transactions": list(reversed(record["block"]["transactions"]))}
    assert build(request(backwards, shuffled)) == build(request(record["block"], record["receipts"]))


@pytest.mark.parametrize("entry", corpus_blocks("block-only"), ids=lambda entry: entry.name)
def test_a_block_without_receipts_still_proves_its_transactions(entry: Recorded) -> None:
    block = built(entry)
    assert block.transactions_verdict is Verdict.PROVEN
    assert not block.settled
    assert block.transaction_proof(0).value
    with pytest.raises(InconsistentSource):
        block.receipt_proof(0)


def test_B31_receipts_that_no_node_keeps_are_history() -> None:
    record = corpus_files.recorded("full", "mainnet_1000002")
    asked = request(record["block"], None)
    pruned = build(dataclasses.replace(asked, receipts_error="pruned", receipts_pruned=True))
    with pytest.raises(HistoryUnavailable, match="pruned"):
        pruned.receipt_proof(0)
    assert pruned.transaction_proof(0).value
    assert not pruned.settled


@pytest.mark.parametrize("entry", corpus_blocks("receipts-only"), ids=lambda entry: entry.name)
def test_receipts_without_transactions_are_proven_or_refused(entry: Recorded) -> None:
    try:
        block = built(entry)
    except ContentInvalid:
        assert not entry.record["block"].get("transactions")
        return
    with pytest.raises(ProofError):
        block.transaction_proof(0)
    if block.receipts_verdict is Verdict.PROVEN:
        proof = block.receipt_proof(0)
        assert trie.verify(proof.root, proof.key, proof.nodes) == proof.value


@pytest.mark.parametrize("entry", corpus_blocks("nonstandard"), ids=lambda entry: entry.name)
def test_nonstandard_blocks_are_proven_or_refused_for_good(entry: Recorded) -> None:
    try:
        block = built(entry)
    except HeaderHashUnsupported:
        assert entry.family == "frontier"
        return
    assert entry.family != "frontier"
    for cut in (block.transaction_proof, block.receipt_proof):
        try:
            proof = cut(0)
        except (UnsupportedTransactionType, NotCommittedByHeader):
            continue
        assert trie.verify(proof.root, proof.key, proof.nodes) == proof.value


@pytest.mark.parametrize("entry", corpus_blocks("negative"), ids=lambda entry: entry.name)
def test_mutated_blocks_are_refused(entry: Recorded) -> None:
    try:
        block = built(entry)
    except ContentInvalid:
        return
    with pytest.raises(UnsupportedBlockFormat):
        block.transaction_proof(0)
