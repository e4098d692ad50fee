"""Native bodies: whole ones pass, and no field can be changed without being noticed."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
import rlp
from eth_abi import encode as abi_encode

from app.checker import Refused, check_native
from tests.checker.bodies import (
    ITEMS,
    SyntheticBlock,
    as_bytes,
    asked_of,
    big_block,
    block_of,
    hashed_to,
    keccak,
    log_of,
    receipt_leaf,
    to_hex,
)
from tests.checker.mutations import accepted
from tests.corpus_files import VECTORS
from tests.oracles import damage

KINDS = ("transaction", "receipt", "log")


def refusal(body: object, asked: Mapping[str, object] | None = None) -> Refused:
    with pytest.raises(Refused) as caught:
        check_native(body if isinstance(body, bytes) else as_bytes(body), asked or {})
    return caught.value


def changed(body: dict[str, Any], **fields: object) -> dict[str, Any]:
    """The body with some fields replaced; `log__rlp` reaches into the log."""
    other = copy.deepcopy(body)
    for name, value in fields.items():
        holder, _, inside = name.partition("__")
        if inside:
            other[holder][inside] = value
        else:
            other[name] = value
    return other


@pytest.mark.parametrize("index", [*range(20), 126, 127, 128, 129, 254, 255, 256, 257, ITEMS - 1])
def test_whole_bodies_are_accepted(index: int) -> None:
    block = big_block()
    bodies = [block.body("transaction", index), block.body("receipt", index)]
    bodies += [block.body("log", index, log) for log in range(len(block.logs[index]))]
    for body in bodies:
        check_native(as_bytes(body), asked_of(body))
        check_native(json.dumps(body, indent=2).encode(), {})


@pytest.mark.parametrize(("kind", "index"), [("transaction", 0), ("receipt", 128), ("receipt", 3), ("log", 13)])
def test_every_changed_field_is_refused(kind: str, index: int) -> None:
    block = big_block()
    body = block.body(kind, index, 4) if kind == "log" else block.body(kind, index)
    asked = asked_of(body)
    assert accepted(body, lambda other: check_native(other, asked)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_root_commits_to_is_all_that_must_be_asked(kind: str) -> None:
    """Without a question only these fields can change: their truth is not in the proof."""
    body = big_block().body(kind, 13)
    free = {"chainKey", "chainId", "finality", "transactionHash", "log.indexInBlock"}
    names = {place.partition(":")[0] for place in accepted(body, lambda other: check_native(other, {}))}
    assert "chainKey" in names
    assert {name if name in free else name.partition(".")[0] for name in names} <= free
    assert kind != "transaction" or "transactionHash" not in names


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_nodes_are_refused(kind: str) -> None:
    body = big_block().body(kind, 258)
    nodes = [bytes.fromhex(node[2:]) for node in body["nodes"]]
    for broken in (*damage.flips(nodes, 300, seed=1), *damage.damages(nodes, seed=2)):
        reason = refusal(changed(body, nodes=[to_hex(node) for node in broken.nodes])).reason
        assert reason in {"RootMismatch", "NodeHashMismatch", "TruncatedProof", "ExtraNodes"}, broken


def test_every_flipped_byte_of_the_header_is_refused() -> None:
    body = big_block().body("receipt", 1)
    header = bytes.fromhex(body["headerRlp"][2:])
    for at in range(len(header)):
        broken = header[:at] + bytes([header[at] ^ 1]) + header[at + 1 :]
        assert refusal(changed(body, headerRlp=to_hex(broken))).reason == "HeaderMismatch"


def test_the_reason_names_the_fault() -> None:
    block = big_block()
    receipt, log = block.body("receipt", 129), block.body("log", 13, 3)
    for body, reason, field in (
        (changed(receipt, blockHash=to_hex(bytes(32))), "HeaderMismatch", "blockHash"),
        (changed(receipt, blockNumber=5), "HeaderMismatch", "blockNumber"),
        (changed(receipt, root=to_hex(bytes(32))), "HeaderMismatch", "root"),
        (changed(receipt, kind="transaction"), "HeaderMismatch", "root"),
        (changed(receipt, transactionIndex=128), "KeyMismatch", "key"),
        (changed(receipt, key="0x8180"), "KeyMismatch", "key"),
        (changed(receipt, key="0x820081"), "KeyMismatch", "key"),
        (changed(receipt, value=to_hex(block.receipts[3])), "ValueMismatch", "value"),
        (changed(receipt, nodes=receipt["nodes"][:-1]), "TruncatedProof", "nodes"),
        (changed(receipt, nodes=[*receipt["nodes"], "0x"]), "ExtraNodes", "nodes"),
        (changed(receipt, nodes=receipt["nodes"][::-1]), "RootMismatch", "nodes"),
        (
            changed(block.body("transaction", 1), transactionHash=receipt["transactionHash"]),
            "ValueMismatch",
            "transactionHash",
        ),
        (changed(receipt, headerRlp="0xZZ"), "MalformedField", "headerRlp"),
        (changed(receipt, format="copath/2"), "MalformedField", "format"),
        (changed(receipt, extra=1), "MalformedField", "extra"),
        ({name: value for name, value in receipt.items() if name != "root"}, "MalformedField", "root"),
        (changed(receipt, log=log["log"]), "LogMismatch", "log"),
        (changed(log, kind="receipt"), "LogMismatch", "log"),
        (changed(receipt, kind="log"), "LogMismatch", "log"),
        (changed(log, log__indexInReceipt=1), "LogMismatch", "log.rlp"),
        (changed(log, log__indexInReceipt=2), "LogMismatch", "log.rlp"),
        (changed(log, log__indexInReceipt=6), "LogMismatch", "log.rlp"),
        (changed(log, log__indexInBlock=1), "LogMismatch", "log.indexInBlock"),
        (changed(log, log__address=to_hex(bytes(20))), "LogMismatch", "log.address"),
        (changed(log, log__topics=[]), "LogMismatch", "log.topics"),
        (changed(log, log__data="0x00"), "LogMismatch", "log.data"),
    ):
        found = refusal(body)
        assert (found.reason, found.field) == (reason, field)


def test_the_fault_shows_both_values() -> None:
    body = big_block().body("receipt", 5)
    found = refusal(changed(body, root=to_hex(bytes(32))))
    assert (found.expected, found.found) == (bytes.fromhex(body["root"][2:]), bytes(32))


def test_a_receipt_proof_is_no_transaction_proof() -> None:
    """One root of the header must not stand for the other, even where the hash is made to fit."""
    body = big_block().body("receipt", 5)
    forged = changed(body, kind="transaction", transactionHash=to_hex(keccak(bytes.fromhex(body["value"][2:]))))
    assert refusal(forged).reason == "HeaderMismatch"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chainKey", "8"),
        ("chainKey", 7),
        ("blockNumber", 19_999_999),
        ("blockNumber", "20000000"),
        ("blockNumber", 20_000_000.0),
        ("transactionIndex", True),
        ("kind", "log"),
        ("log.indexInReceipt", 0),
        ("finality.level", "finalized"),
        ("finality", None),
        ("finality.level.more", "safe"),
        ("nothing", 1),
    ],
)
def test_what_was_not_asked_is_refused(name: str, value: object) -> None:
    body = big_block().body("receipt", 1)
    found = refusal(body, {"chainKey": "7", name: value})
    assert (found.reason, found.field, found.expected) == ("NotWhatWasAsked", name, value)


def test_what_was_asked_is_compared_inside_objects_too() -> None:
    body = big_block().body("log", 13, 3)
    asked = {
        "log.indexInReceipt": 3,
        "log.address": body["log"]["address"],
        "finality": body["finality"],
        "kind": "log",
    }
    check_native(as_bytes(body), asked)


def wrapped(block: SyntheticBlock, *, context: bool) -> bytes:
    """The header as Tempo hashes it: fourth item of a list, perhaps with a consensus context after it."""
    lists: list[Any] = [b"\x01", b"\x02", b"", block.header]
    return bytes(rlp.encode([*lists, [b"\x05", bytes(32)]] if context else lists))


@pytest.mark.parametrize("context", [False, True])
def test_a_wrapped_header_is_read(context: bool) -> None:
    block = block_of(20)
    header = wrapped(block, context=context)
    body = changed(block.body("receipt", 7), headerRlp=to_hex(header), blockHash=to_hex(keccak(header)))
    check_native(as_bytes(body), {})
    assert refusal(changed(body, blockNumber=1)).field == "blockNumber"
    assert refusal(changed(body, blockHash=to_hex(keccak(block.header_rlp)))).field == "blockHash"
    assert refusal(changed(body, root=to_hex(block.header[4]))).field == "root"


@pytest.mark.parametrize("count", [0, 5, 14])
def test_a_list_too_short_for_a_header_is_refused(count: int) -> None:
    block = block_of(3)
    header = bytes(rlp.encode(block.header[:count]))
    body = changed(block.body("receipt", 1), headerRlp=to_hex(header), blockHash=to_hex(keccak(header)))
    assert (refusal(body).reason, refusal(body).field) == ("HeaderMismatch", "headerRlp")


@pytest.mark.parametrize("height", [0, 1, 127, 128, 255, 256, 2**53 - 1])
def test_heights_of_any_size(height: int) -> None:
    source = block_of(2)
    block = SyntheticBlock(source.transactions, source.receipts, source.logs, height)
    check_native(as_bytes(block.body("receipt", 1)), {"blockNumber": height})


def test_a_single_item_is_its_own_root() -> None:
    body = block_of(1).body("transaction", 0)
    assert len(body["nodes"]) == 1
    check_native(as_bytes(body), asked_of(body))


def test_embedded_leaves_need_no_node_of_their_own() -> None:
    """Leaves below 31 bytes: the trie embeds them."""
    values = [bytes([index]) * 3 for index in range(1, 20)]
    block = SyntheticBlock(values, values, [[] for _ in values])
    for index in range(len(values)):
        body = block.body("transaction", index)
        check_native(as_bytes(body), {})
        embedded = rlp.encode([b"\x20", values[index]])
        assert refusal(changed(body, nodes=[*body["nodes"], to_hex(embedded)])).reason == "ExtraNodes"


def block_with(leaf: bytes, logs: list[list[Any]]) -> SyntheticBlock:
    return SyntheticBlock([hashed_to("t", 200)], [leaf], [logs])


@pytest.mark.parametrize(
    "leaf",
    [
        b"\x02" * 40,
        b"\x02" + bytes(rlp.encode(hashed_to("no list", 60))),
        b"\x02" + bytes(rlp.encode([b"\x01", b"", hashed_to("bloom", 256)])),
        b"\x02" + bytes(rlp.encode([b"\x01", b"", hashed_to("bloom", 256), hashed_to("no list", 60)])),
        b"\x02" + bytes(rlp.encode([b"\x01", b"", hashed_to("bloom", 256), [log_of(1, 1)]])) + b"\0",
        b"\x02\x02" + bytes(rlp.encode([b"\x01", b"", hashed_to("bloom", 256), [log_of(1, 1)]])),
        b"\x82" + bytes(rlp.encode([b"\x01", b"", hashed_to("bloom", 256), [log_of(1, 1)]])),
        receipt_leaf(1, []),
    ],
    ids=range(8),
)
def test_a_log_of_something_that_is_no_receipt_is_refused(leaf: bytes) -> None:
    assert refusal(block_with(leaf, [log_of(1, 1)]).body("log", 0)).reason == "LogMismatch"


@pytest.mark.parametrize("index", range(5))
def test_logs_of_every_kind_of_receipt(index: int) -> None:
    logs = [log_of(index, place) for place in range(5)]
    block = block_with(receipt_leaf(index, logs), logs)
    for place in range(5):
        check_native(as_bytes(block.body("log", 0, place)), {"log.indexInReceipt": place})


@pytest.mark.parametrize("shape", ["address", "topic", "data", "short", "long", "topics"])
def test_a_log_of_another_structure_is_refused(shape: str) -> None:
    """The fields must be strings and a list of strings in the committed bytes, not merely have the same payload."""
    address, topics, data = hashed_to("a", 20), [hashed_to("t", 32)], rlp.encode(hashed_to("d", 9))
    claimed = [address, topics, data]
    committed: list[Any] = {
        "address": [[address[:1] * 20], topics, data],
        "topic": [address, [[hashed_to("t", 31)]], data],
        "data": [address, topics, [hashed_to("d", 9)]],
        "short": [address, topics],
        "long": [address, topics, data, b""],
        "topics": [address, rlp.encode(topics[0]), data],
    }[shape]
    block = block_with(receipt_leaf(1, [committed]), [claimed])
    body = block.body("log", 0)
    assert refusal(changed(body, log__rlp=to_hex(rlp.encode(committed)))).reason == "LogMismatch"
    assert refusal(body).reason == "LogMismatch"


def test_other_encodings_must_hold_the_nodes() -> None:
    body = big_block().body("receipt", 129)
    nodes = "".join(node[2:] for node in body["nodes"])
    check_native(as_bytes(changed(body, encodings={"polygon-exit": f"0xc0{nodes}00", "hashi": f"0x{nodes}"})), {})
    check_native(as_bytes(changed(body, encodings={})), {})
    found = refusal(changed(body, encodings={"hashi": f"0x{nodes}", "polygon-exit": f"0x{nodes[:-2]}"}))
    assert (found.reason, found.field) == ("EncodingMismatch", "encodings.polygon-exit")
    for broken in ({"hashi": nodes}, {"hashi": 1}, {"UPPER": f"0x{nodes}"}, {"": f"0x{nodes}"}, []):
        assert refusal(changed(body, encodings=broken)).reason == "MalformedField"


def test_the_nodes_as_a_contract_takes_them_are_exactly_the_nodes() -> None:
    body = big_block().body("receipt", 129)
    nodes = [bytes.fromhex(node[2:]) for node in body["nodes"]]
    encoded = abi_encode(["bytes[]"], [nodes])
    check_native(as_bytes(changed(body, encodings={"nodes": to_hex(encoded)})), {})
    for wrong in (encoded + bytes(32), abi_encode(["bytes[]"], [[*nodes, b""]]), encoded[32:], b"".join(nodes)):
        found = refusal(changed(body, encodings={"nodes": to_hex(wrong)}))
        assert (found.reason, found.field) == ("EncodingMismatch", "encodings.nodes")


def test_a_hash_on_a_nodes_word_may_be_said_and_nothing_else() -> None:
    body = big_block().body("receipt", 2)
    check_native(as_bytes(changed(body, transactionHashBy="rpc")), {"transactionHashBy": "rpc"})
    for other in ("RPC", "", "root", None, 1):
        assert refusal(changed(body, transactionHashBy=other)).reason == "MalformedField"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "NotAProof"),
        (b"\xff\xfe", "NotAProof"),
        (b"\xef\xbb\xbf{}", "NotAProof"),
        ('{"format":"copath/1"}'.encode("utf-16"), "NotAProof"),
        (b"{", "NotAProof"),
        (b"[" * 100_000, "NotAProof"),
        (b'{"a":' * 100_000, "NotAProof"),
        (b"[" * 100_000 + b"]" * 100_000, "NotAProof"),
        (b"{} {}", "NotAProof"),
        (b'{"format":"copath/1",}', "NotAProof"),
        (b"null", "MalformedField"),
        (b"[]", "MalformedField"),
        (b'"copath/1"', "MalformedField"),
        (b"NaN", "MalformedField"),
        (b"[-0]", "MalformedField"),
        (b"[1e3]", "MalformedField"),
        (b"[Infinity]", "MalformedField"),
        (b"9" * 10_000, "MalformedField"),
        (b"18446744073709551616", "MalformedField"),
        (b"{}", "MalformedField"),
        (b'{"\\ud800":1}', "MalformedField"),
        (b'{"format":"copath/1","format":"copath/1"}', "DuplicateField"),
        (b'{"finality":{"level":"safe","level":"safe"}}', "DuplicateField"),
    ],
    ids=range(23),
)
def test_what_is_no_body_at_all_is_refused(body: bytes, reason: str) -> None:
    found = refusal(body)
    assert found.reason == reason
    found.field.encode()  # can be shown, whatever was sent


def test_a_second_field_of_the_same_name_is_refused() -> None:
    body = big_block().body("receipt", 4)
    text = as_bytes(body)
    for name in body:
        again = text[:-1] + b"," + as_bytes({name: body[name]})[1:]
        assert refusal(again).reason == "DuplicateField"


@pytest.mark.parametrize(
    "text", ["0x", "0x1g", "0X11", "11", "0x1", "0xAA", " 0x11", "0x11 ", "0x1 1", "0x11\n", "0x\u0661\u0661", "0xzz"]
)
def test_one_spelling_of_bytes(text: str) -> None:
    body = big_block().body("log", 13, 2)
    for name in ("blockHash", "transactionHash", "headerRlp", "key", "value", "log__address", "log__data", "log__rlp"):
        assert refusal(changed(body, **{name: text})).reason != "NotAProof"
    assert refusal(changed(body, finality={"level": "safe", "by": text, "sources": 1})).reason == "MalformedField"
    assert refusal(changed(body, finality={"level": text, "by": "depth", "sources": 1})).reason == "MalformedField"


@pytest.mark.parametrize("text", ["", "07", "+7", "7 ", "7.0", "0x7", "\u0667", "-7", "1" * 21])
def test_one_spelling_of_chain_numbers(text: str) -> None:
    for name in ("chainKey", "chainId"):
        assert refusal(changed(big_block().body("receipt", 1), **{name: text})).field == name


def test_a_recorded_mainnet_log() -> None:
    """A real receipt with a real log, under a header made for its root."""
    for name in ("rainbow_pre_shapella_proof.json", "rainbow_post_shapella_proof.json"):
        vector = json.loads((VECTORS / "mpt" / name).read_text(encoding="utf-8"))
        block = block_of(1)
        block.header[5] = bytes.fromhex(vector["receiptsRoot"][2:])
        header = rlp.encode(block.header)
        address, topics, data = rlp.decode(bytes.fromhex(vector["log"][2:]))
        log = {"address": to_hex(address), "topics": [to_hex(topic) for topic in topics], "data": to_hex(data)}
        body = block.body("receipt", 0) | {
            "kind": "log",
            "headerRlp": to_hex(header),
            "blockHash": to_hex(keccak(header)),
            "transactionIndex": vector["index"],
            "root": vector["receiptsRoot"],
            **{field: vector[field] for field in ("key", "value", "nodes")},
            "log": log | {"indexInReceipt": vector["log_index"], "indexInBlock": 40, "rlp": vector["log"]},
        }
        check_native(as_bytes(body), {"transactionIndex": vector["index"]})
        assert refusal(changed(body, log__indexInReceipt=1)).reason == "LogMismatch"
