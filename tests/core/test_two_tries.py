"""What one trie of a block cannot give does not take the other along, and what a root decides is not asked before it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import rlp as oracle

from app.chain.witnessing import require_whole
from app.core import block_building, trie
from app.core.block_building import build
from app.core.errors import (
    ContentInvalid,
    Doubtful,
    InconsistentSource,
    NotCommittedByHeader,
    UnsupportedBlockFormat,
    UnsupportedTransactionType,
)
from app.core.hexadecimal import from_hex
from app.core.keccak import keccak
from app.core.provable_block import ZERO_HASH, BuildRequest, ProvableBlock, Verdict
from tests.acceptance.made_blocks import CHAIN_ID, OP_CHAIN_ID, every_type, op_deposit, rehash, small_chain
from tests.core.node_transactions import decode
from tests.corpus_files import fixtures, recorded

Record = dict[str, Any]
NOTHINGS = [None, "", "0x", "0x0", "0x" + "00" * 32, ...]
OTHER = "0x" + "ab" * 32


def built(
    record: Record, family: str = "ethereum", chain_id: int = CHAIN_ID, *, anchored: bool = False
) -> ProvableBlock:
    receipts = record["receipts"]
    return build(
        BuildRequest(
            family=family,
            chain_id=chain_id,
            anchored=anchored,
            height=None,
            block_hash=from_hex(record["block"]["hash"]),
            block_json=json.dumps(record["block"]).encode(),
            receipts_json=None if receipts is None else json.dumps(receipts).encode(),
        )
    )


def made() -> Record:
    """A block with one transaction of each Ethereum type, and logs."""
    return copy.deepcopy(small_chain(every_type())[1])


def op_stack(*deposits: int) -> Record:
    transactions = [*(op_deposit(number) for number in deposits), *every_type(OP_CHAIN_ID)[:3]]
    return copy.deepcopy(small_chain(transactions, OP_CHAIN_ID)[1])


def put(entry: Record, name: str, value: Any) -> None:
    if value is ...:
        entry.pop(name, None)
    else:
        entry[name] = value


def served(block: ProvableBlock) -> tuple[list[bytes], list[bytes]]:
    count = range(block.transaction_count)
    return [block.transaction_proof(at).value for at in count], [block.receipt_proof(at).value for at in count]


def require_same(told: Record, honest: Record, family: str = "ethereum", chain_id: int = CHAIN_ID) -> None:
    """Whatever was told badly, all of the block is proven, leaves included, as an honest node's is."""
    expected = built(honest, family, chain_id, anchored=True)
    assert expected.transactions_verdict is expected.receipts_verdict is expected.leaves_verdict is Verdict.PROVEN
    assert built(told, family, chain_id, anchored=True) == expected


# --- one trie without the other -------------------------------------------------------------------------------------


def _set(where: str, at: int, name: str, value: Any) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        entries = record["receipts"] if where == "receipts" else record["block"]["transactions"]
        if name == "":
            entries[at] = value
        else:
            put(entries[at], name, value)

    return change


def _unsigned(record: Record) -> None:
    for name in ("v", "r", "s", "yParity"):
        record["block"]["transactions"][0].pop(name, None)


UNREADABLE_TRANSACTIONS: dict[str, Callable[[Record], None]] = {
    "unsigned": _unsigned,
    "access-list-text": _set("transactions", 2, "accessList", "0x"),
    "access-list-number": _set("transactions", 2, "accessList", 7),
    "gas-object": _set("transactions", 1, "gas", {"hex": "0x1"}),
    "to-number": _set("transactions", 1, "to", 5),
    "to-short": _set("transactions", 1, "to", "0x12"),
    "input-odd": _set("transactions", 1, "input", "0x123"),
    "another-hash": _set("transactions", 1, "hash", OTHER),
    "hash-number": _set("transactions", 1, "hash", 7),
    "another-value": _set("transactions", 1, "value", "0x7777"),
    "another-block": _set("transactions", 1, "blockHash", OTHER),
    "block-hash-short": _set("transactions", 1, "blockHash", "0x12"),
    "null": _set("transactions", 1, "", None),
    "list": _set("transactions", 1, "", [1, 2]),
    "number": _set("transactions", 1, "", 7),
    "authorizations-text": _set("transactions", 4, "authorizationList", "0x"),
    "short-list": lambda record: record["block"]["transactions"].pop(),
    "no-list": lambda record: record["block"]["transactions"].clear(),
    "list-absent": lambda record: record["block"].pop("transactions"),
    "list-null": lambda record: record["block"].update(transactions=None),
    "list-text": lambda record: record["block"].update(transactions="0x"),
    "to-no-hex": _set("transactions", 1, "to", "0x" + "zz" * 20),
    "long-list": lambda record: record["block"]["transactions"].append(record["block"]["transactions"][0]),
    "foreign-entry": lambda record: record["block"]["transactions"].append(OTHER),
    "type-text": _set("transactions", 1, "type", "two"),
    "type-huge": _set("transactions", 1, "type", hex(2**300)),
}


@pytest.mark.parametrize("what", UNREADABLE_TRANSACTIONS)
def test_receipts_need_no_transaction_that_can_be_read(what: str) -> None:
    honest, told = made(), made()
    UNREADABLE_TRANSACTIONS[what](told)
    expected, block = built(honest), built(told)
    assert block.receipts_verdict is Verdict.PROVEN
    for index in range(len(honest["receipts"])):
        assert block.receipt_proof(index) == expected.receipt_proof(index)
    assert [block.log_proof_in_block(at) for at in range(block.log_count)] == [
        expected.log_proof_in_block(at) for at in range(expected.log_count)
    ]
    with pytest.raises(InconsistentSource):
        block.transaction_proof(0)
    assert not block.settled
    assert block.proven_hashes == b""


@pytest.mark.parametrize(
    "change",
    [
        _set("receipts", 1, "cumulativeGasUsed", None),
        _set("receipts", 1, "cumulativeGasUsed", ...),
        _set("receipts", 1, "cumulativeGasUsed", {}),
        _set("receipts", 1, "status", "well"),
        _set("receipts", 1, "status", ...),
        _set("receipts", 0, "logs", "0x"),
        _set("receipts", 0, "logs", [None]),
        _set("receipts", 0, "logs", [{"address": "0x12", "topics": [], "data": "0x"}]),
        _set("receipts", 1, "blockHash", OTHER),
        _set("receipts", 1, "blockHash", "0x12"),
        _set("receipts", 1, "", None),
        _set("receipts", 1, "", "0x"),
        lambda record: record["receipts"].pop(),
        lambda record: record["receipts"].clear(),
        lambda record: record.update(receipts={"error": "none"}),
        lambda record: record.update(receipts="0x"),
        lambda record: record.update(receipts=None),
    ],
)
def test_transactions_need_no_receipt_that_can_be_read(change: Callable[[Record], None]) -> None:
    honest, told = made(), made()
    change(told)
    expected, block = built(honest), built(told)
    assert block.transactions_verdict is Verdict.PROVEN
    for index in range(expected.transaction_count):
        assert block.transaction_proof(index) == expected.transaction_proof(index)
    with pytest.raises(InconsistentSource):
        block.receipt_proof(0)
    assert not block.settled


@pytest.mark.parametrize("what", UNREADABLE_TRANSACTIONS)
def test_data_of_which_nothing_can_be_proven_is_refused(what: str) -> None:
    told = made()
    UNREADABLE_TRANSACTIONS[what](told)
    told["receipts"][0]["status"] = "0x0"
    try:
        block = built(told)
    except ContentInvalid:
        return
    for cut in (block.transaction_proof, block.receipt_proof):
        with pytest.raises((InconsistentSource, UnsupportedBlockFormat)):
            cut(0)
    assert not block.settled


def test_a_receipt_of_an_unproven_transaction_has_the_name_that_the_node_gives_it() -> None:
    told = made()
    names = [each["hash"] for each in told["block"]["transactions"]]
    told["block"]["transactions"][2]["accessList"] = "0x"
    del told["block"]["transactions"][1]["hash"], told["block"]["transactions"][3]["hash"]
    del told["receipts"][3]["transactionHash"]
    block = built(told)
    assert [block.transaction_hash(at) for at in range(3)] == [from_hex(name) for name in names[:3]]
    assert block.transaction_hash(3) == ZERO_HASH
    assert block.index_of(from_hex(names[1])) == 1
    assert block.index_of(ZERO_HASH) is None


# --- types ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["0x55", "0x7f", "0x80", "0xff", 0xFF, hex(2**63)])
def test_a_type_that_only_a_transaction_names_is_refused_by_name_and_settles_nothing(type_: Any) -> None:
    told = made()
    told["block"]["transactions"][1]["type"] = type_
    block = built(told)
    assert block.transactions_verdict is Verdict.CLAIMED_TYPE
    number = type_ if isinstance(type_, int) else int(type_, 16)
    with pytest.raises(UnsupportedTransactionType, match=f"type {number:#x}$") as caught:
        block.transaction_proof(0)
    assert not caught.value.retriable
    assert not block.settled
    assert block.receipt_proof(1).value == built(made()).receipt_proof(1).value
    assert block.borne_out().transactions_verdict is Verdict.UNSUPPORTED_TYPE
    assert block.borne_out().settled


def test_a_type_that_the_receipts_commit_to_is_a_property_of_the_block() -> None:
    record = recorded("full", "arbitrum-one_150000000")
    block = built(record, "ethereum", 42161)
    assert (block.transactions_verdict, block.transactions_detail) == (Verdict.UNSUPPORTED_TYPE, "0x6a")
    assert block.settled
    # Whatever the node says of the transactions, or leaves out: the receipts tell.
    hidden = copy.deepcopy(record)
    hidden["block"]["transactions"][0]["type"] = "0x0"
    hidden["block"]["transactions"].pop()
    assert built(hidden, "ethereum", 42161).transactions_verdict is Verdict.UNSUPPORTED_TYPE
    # Without receipts it is the node's word.
    assert built(record | {"receipts": None}, "ethereum", 42161).transactions_verdict is Verdict.CLAIMED_TYPE


def test_a_transaction_that_no_node_lists_is_of_the_type_that_its_receipt_has() -> None:
    """Polygon since PIP-74: the receipts hold one of type 0x7f more than there are transactions."""
    envelopes, leaves = served(built(made()))
    told = made()
    told["receipts"].append({"type": "0x7f", "status": "0x1", "cumulativeGasUsed": "0x0", "transactionHash": OTHER})
    leaves.append(b"\x7f" + oracle.encode([1, 0, bytes(256), []]))
    block = built(_sealed(told, [*envelopes, b"\x7f\xc0"], leaves), "polygon")
    assert (block.transactions_verdict, block.transactions_detail) == (Verdict.UNSUPPORTED_TYPE, "0x7f")
    assert [block.receipt_proof(at).value for at in range(len(leaves))] == leaves
    assert block.index_of(from_hex(OTHER)) == len(envelopes)
    assert block.settled


def _misfit(record: Record, *names: str) -> Record:
    """The deposits as a chain writes them that hashes other fields."""
    for entry in record["block"]["transactions"]:
        if entry["type"] == "0x7e":
            entry["hash"] = "0x" + keccak(entry["hash"].encode()).hex()
            for name in names:
                entry.pop(name)
    by_place = record["block"]["transactions"]
    for place, receipt in enumerate(record["receipts"]):
        receipt["transactionHash"] = by_place[place]["hash"]
    return record


@pytest.mark.parametrize("absent", [(), ("sourceHash",), ("sourceHash", "isSystemTx", "mint")])
@pytest.mark.parametrize("deposits", [(1,), (1, 2)])
def test_a_codec_that_does_not_fit_is_of_an_unsupported_type_and_no_lie(
    deposits: tuple[int, ...], absent: tuple[str, ...]
) -> None:
    block = built(_misfit(op_stack(*deposits), *absent), "op-stack", OP_CHAIN_ID)
    assert (block.transactions_verdict, block.receipts_verdict) == (Verdict.CLAIMED_TYPE, Verdict.PROVEN)
    with pytest.raises(UnsupportedTransactionType, match="0x7e in this form") as caught:
        block.transaction_proof(1)
    assert not caught.value.retriable
    assert block.receipt_proof(0).value[0] == 0x7E
    assert not block.settled, "one node may have changed them all"


def test_one_deposit_that_fails_beside_one_that_holds_is_broken_data() -> None:
    told = op_stack(1, 2)
    told["block"]["transactions"][0]["value"] = "0x77"
    block = built(told, "op-stack", OP_CHAIN_ID)
    assert (block.transactions_verdict, block.receipts_verdict) == (Verdict.BROKEN, Verdict.PROVEN)
    assert block.broken_checks == ["transaction_hash"]
    without_receipts = _misfit(op_stack(1))
    without_receipts["receipts"][0]["status"] = "0x0"
    with pytest.raises(ContentInvalid):
        built(without_receipts, "op-stack", OP_CHAIN_ID)


def test_of_a_type_that_every_chain_has_one_that_fails_says_nothing_and_all_of_several_do() -> None:
    several = copy.deepcopy(recorded("full", "mainnet_990003"))
    for entry in several["block"]["transactions"]:
        entry["hash"] = "0x" + keccak(entry["hash"].encode()).hex()
    assert built(several).transactions_verdict is Verdict.CLAIMED_TYPE
    once = copy.deepcopy(recorded("full", "mainnet_990003"))
    once["block"]["transactions"][0]["hash"] = OTHER
    assert built(once).transactions_verdict is Verdict.BROKEN
    assert built(several).receipt_proof(0) == built(once).receipt_proof(0)


def test_the_nonce_of_a_deposit_settles_nothing() -> None:
    told = op_stack(1)
    told["block"]["transactions"][0]["nonce"] = "0x7777"
    block = built(told, "op-stack", OP_CHAIN_ID, anchored=True)
    assert block.transactions_verdict is block.receipts_verdict is Verdict.PROVEN
    assert block.leaves_verdict is Verdict.BROKEN
    assert not block.settled
    with pytest.raises(InconsistentSource, match="nonce"):
        block.leaf_proof(0)
    with pytest.raises(Doubtful) as caught:
        require_whole(block)
    assert (caught.value.wrong, caught.value.check, caught.value.claims) == (True, "deposit_nonce", frozenset())
    honest = built(op_stack(1), "op-stack", OP_CHAIN_ID, anchored=True)
    assert served(block) == served(honest)
    assert honest.settled
    assert caught.value.refuted_by(honest)


def test_a_transaction_that_one_node_adds_to_an_empty_block_is_doubted() -> None:
    empty = copy.deepcopy(fixtures()["empty"])
    record = {"block": empty["block"], "receipts": []}
    record["block"]["transactions"] = [made()["block"]["transactions"][0] | {"blockHash": None}]
    block = built(record)
    assert block.transactions_verdict is Verdict.NOT_COMMITTED
    with pytest.raises(NotCommittedByHeader):
        block.transaction_proof(0)
    with pytest.raises(Doubtful):
        require_whole(block)


# --- what follows from proven data ----------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", NOTHINGS)
def test_nothing_is_spelled_in_many_ways(nothing: Any) -> None:
    told = made()
    for entry in told["block"]["transactions"]:
        for name in ("blockHash", "hash", "transactionIndex", "blockNumber"):
            put(entry, name, nothing)
    for receipt in told["receipts"]:
        for name in (
            "blockHash",
            "transactionHash",
            "transactionIndex",
            "logsBloom",
            "type",
            "contractAddress",
            "root",
        ):
            put(receipt, name, nothing)
        for log in receipt["logs"]:
            for name in ("blockHash", "transactionHash", "transactionIndex", "logIndex"):
                put(log, name, nothing)
    require_same(told, made())


@pytest.mark.parametrize("type_", ["0x0", "0x1", "0x2", "0x3", "0x4", ..., None, "", "0x7f", "0xff", "legacy", {}, 2])
def test_a_receipt_has_the_type_of_its_transaction(type_: Any) -> None:
    told = made()
    for receipt in told["receipts"]:
        put(receipt, "type", type_)
    require_same(told, made())
    for receipt in told["receipts"]:
        receipt["logsBloom"] = "0x" + "00" * 256
    require_same(told, made())


@pytest.mark.parametrize("bloom", ["0x" + "00" * 256, "0x0", "0x", None, ..., "0x" + "ff" * 256, "0x12", 0, [], "none"])
def test_a_bloom_is_a_function_of_the_logs(bloom: Any) -> None:
    told = made()
    for receipt in told["receipts"]:
        put(receipt, "logsBloom", bloom)
    require_same(told, made())


def _index(entries: list[Record], how: Callable[[int], Any]) -> None:
    for place, entry in enumerate(entries):
        put(entry, "transactionIndex", how(place))


@pytest.mark.parametrize(
    "how",
    [
        lambda place: 0,
        lambda place: place + 1,
        lambda place: 7 - place,
        lambda place: 2 * place,
        lambda place: hex(place ^ 1),
        lambda place: "first",
        lambda place: hex(2**70),
        lambda place: None if place % 2 else place,
    ],
)
@pytest.mark.parametrize("where", ["transactions", "receipts", "both"])
def test_a_list_in_order_needs_no_indexes(how: Callable[[int], Any], where: str) -> None:
    told = made()
    if where != "receipts":
        _index(told["block"]["transactions"], how)
    if where != "transactions":
        _index(told["receipts"], how)
    require_same(told, made())


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("first", [0, 1, 100])
def test_a_list_out_of_order_is_read_by_its_indexes(first: int, named: bool) -> None:
    told = made()
    for entries in (told["block"]["transactions"], told["receipts"]):
        _index(entries, lambda place: hex(place + first))
        entries.insert(0, entries.pop())
    if not named:
        for receipt in told["receipts"]:
            del receipt["transactionHash"]
    require_same(told, made())


def test_receipts_that_all_name_one_transaction_are_told_by_their_order() -> None:
    told = made()
    for receipt in told["receipts"]:
        receipt["transactionHash"] = told["receipts"][0]["transactionHash"]
    require_same(told, made())
    told["receipts"].reverse()
    require_same(told, made())  # their indexes are right
    for receipt in told["receipts"]:
        receipt["transactionHash"] = OTHER
    require_same(told, made())


def test_receipts_that_are_swapped_are_told_by_their_names() -> None:
    told = made()
    told["receipts"].reverse()
    _index(told["receipts"], lambda place: place)
    require_same(told, made())


@pytest.mark.parametrize("which", [[0], [1, 3], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("nothing", NOTHINGS)
def test_a_transaction_without_its_hash_has_that_of_its_envelope(which: list[int], nothing: Any) -> None:
    told = made()
    for at in which:
        put(told["block"]["transactions"][at], "hash", nothing)
    require_same(told, made())


def test_a_transaction_without_its_hash_that_was_changed_meets_no_root() -> None:
    told = made()
    del told["block"]["transactions"][1]["hash"]
    told["block"]["transactions"][1]["value"] = "0x7777"
    block = built(told)
    assert (block.transactions_verdict, block.receipts_verdict) == (Verdict.UNMET, Verdict.PROVEN)


def _legacy(v: int, chain_id: int | None) -> tuple[Record, bytes]:
    fields = [9, 20, 21000, b"\x11" * 20, 1, b"\x12", v, 5, 6]
    envelope = oracle.encode(fields)
    told = {
        "hash": "0x" + keccak(envelope).hex(),
        "nonce": "0x9",
        "gasPrice": "0x14",
        "gas": "0x5208",
        "to": "0x" + "11" * 20,
        "value": "0x1",
        "input": "0x12",
        "r": "0x5",
        "s": "0x6",
        "type": "0x0",
    }
    if chain_id is not None:
        told["chainId"] = hex(chain_id)
    return told, envelope


@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("hashed", ["parity", "before", "configured", "own"])
@pytest.mark.parametrize("told", ["parity", "before", "configured", "yParity"])
def test_a_legacy_v_is_the_one_of_the_few_that_meets_the_hash(hashed: str, told: str, parity: int) -> None:
    values = {"parity": parity, "before": 27 + parity, "configured": 37 + parity, "own": 2 * 77 + 35 + parity}
    entry, envelope = _legacy(values[hashed], 77 if hashed == "own" else None)
    entry |= {"yParity": hex(parity)} if told == "yParity" else {"v": hex(values[told])}
    assert decode(entry, "ethereum", 1).envelope == envelope
    for other in (
        {"v": hex(1 - parity)},
        {"v": hex(28 - parity)},
        {"v": None, "yParity": hex(1 - parity)},
        {"v": None},
    ):
        assert decode(entry | other, "ethereum", 1).envelope == envelope
    with pytest.raises(ContentInvalid):
        decode(entry | {"s": "0x7"}, "ethereum", 1)


@pytest.mark.parametrize("told", ["0x" + "5e" * 20, "0x" + "00" * 20, "0x", "0x0", None, ""])
def test_a_creation_is_to_nobody_whatever_is_shown_there(told: Any) -> None:
    entry, _ = _legacy(27, None)
    envelope = oracle.encode([9, 20, 21000, b"", 1, b"\x12", 27, 5, 6])
    entry |= {"v": "0x1b", "to": told, "hash": "0x" + keccak(envelope).hex()}
    decoded = decode(entry, "ethereum", 1)
    assert (decoded.envelope, decoded.to) == (envelope, b"")


@pytest.mark.parametrize("name", ["nonce", "value", "gasPrice"])
@pytest.mark.parametrize("nothing", [None, "", "0x", "0x0", 0, ...])
def test_a_number_of_zero_may_be_left_out(name: str, nothing: Any) -> None:
    entry, _ = _legacy(27, None)
    places = {"nonce": 0, "value": 4, "gasPrice": 1}
    fields: list[Any] = [9, 20, 21000, b"\x11" * 20, 1, b"\x12", 27, 5, 6]
    fields[places[name]] = 0
    entry |= {"v": "0x1b", "hash": "0x" + keccak(oracle.encode(fields)).hex()}
    put(entry, name, nothing)
    assert decode(entry, "ethereum", 1).envelope == oracle.encode(fields)


def _sealed(record: Record, envelopes: list[bytes], leaves: list[bytes]) -> Record:
    """The block with the roots of these leaves."""
    record["block"] |= {
        "transactionsRoot": "0x" + trie.build_ordered(envelopes).root.hex(),
        "receiptsRoot": "0x" + trie.build_ordered(leaves).root.hex(),
    }
    return rehash(record)


def _twice() -> Record:
    """A block that holds one transaction twice, as some chains' system transactions are."""
    record = made()
    transactions, receipts = record["block"]["transactions"], record["receipts"]
    transactions[1] = dict(transactions[0])
    receipts[1]["transactionHash"] = transactions[0]["hash"]
    receipts[1]["type"] = receipts[0]["type"]
    return record


def test_a_transaction_that_stands_in_the_block_twice_has_both_its_receipts() -> None:
    record = _twice()
    envelopes, leaves = served(built(made()))
    envelopes[1] = envelopes[0]
    leaves[1] = leaves[1][1:] if leaves[1][0] < 0xC0 else leaves[1]
    kind = int(record["receipts"][0]["type"], 16)
    leaves[1] = bytes((kind,)) + leaves[1] if kind else leaves[1]
    block = built(_sealed(record, envelopes, leaves))
    assert served(block) == (envelopes, leaves)
    assert block.index_of(from_hex(record["block"]["transactions"][0]["hash"])) == 0


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_the_roots_that_are_tried_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0
    build_ordered = trie.build_ordered

    def counted(values: Any) -> trie.PackedTrie:
        nonlocal tries
        tries += 1
        return build_ordered(values)

    told = made()
    for place, receipt in enumerate(told["receipts"]):
        receipt |= {"type": hex(place), "logsBloom": "0x" + "01" * 256, "transactionIndex": hex(9 - place)}
        receipt |= {"status": "0x0", "root": OTHER, "transactionHash": OTHER}
    _index(told["block"]["transactions"], lambda place: 9 - place)
    for entry in told["block"]["transactions"]:
        entry |= {"value": "0x77"}
        del entry["hash"]
    monkeypatch.setattr(trie, "build_ordered", counted)
    with suppress(ContentInvalid):
        assert built(told).transactions_verdict is not Verdict.PROVEN
    assert 8 < tries <= 64
    tries = 0
    built(made())
    assert tries == 3, "each trie once, and the withdrawals"


def test_spellings_are_tried_on_for_some_transactions_that_fail_and_not_for_a_whole_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    derived = []
    alternatives = block_building.alternatives

    def noted(*args: Any, derive: bool) -> Any:
        derived.append(derive)
        return alternatives(*args, derive=derive)

    monkeypatch.setattr(block_building, "alternatives", noted)
    told = copy.deepcopy(recorded("full", "mainnet_990003"))
    (entry, *_) = told["block"]["transactions"]
    told["block"]["transactions"] = [entry | {"value": "0x7777"}] * 40
    built(told)
    assert derived == [True] * block_building.MAX_FRUITLESS + [False] * (40 - block_building.MAX_FRUITLESS)
