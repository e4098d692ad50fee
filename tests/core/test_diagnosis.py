"""The verdict on a proof: what is wrong with it is named, and nothing is called valid that the independent verifier refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import orjson
import pytest
import rlp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.api.verify import judge
from app.core import trie
from app.core.diagnosis import Diagnosis, diagnose
from app.core.proof_forms import MAX_BRACES, MAX_COMMAS, NotAProof, NotJson
from tests.checker.bodies import UscChain, as_bytes, big_block, block_of, hashed_to, keccak, to_hex, usc_chain
from tests.checker.mutations import mutations
from tests.corpus_files import VECTORS
from tests.oracles import damage

HEIGHT, DIGEST = usc_chain().anchor
ANCHOR = {"height": HEIGHT, "digest": to_hex(DIGEST)}


def verdict(body: object) -> Diagnosis:
    """Of both verifiers."""
    return judge(as_bytes(body))[0]


def failure(body: object) -> tuple[str, str | None]:
    found = verdict(body)
    assert not found.valid
    assert found.message
    return found.reason, found.field


def raw(root: bytes, key: bytes, value: bytes | None, nodes: Any) -> dict[str, Any]:
    return {
        "kind": "trie",
        "root": to_hex(root),
        "key": to_hex(key),
        "value": None if value is None else to_hex(value),
        "nodes": [to_hex(node) for node in nodes],
    }


def receipt_of(index: int) -> dict[str, Any]:
    return big_block().body("receipt", index)


def single(**changed: Any) -> dict[str, Any]:
    return usc_chain().single(9) | {"anchor": ANCHOR} | changed


def batch(**changed: Any) -> dict[str, Any]:
    return usc_chain().batch({103: [0, 9], 104: [], 107: [128]}) | {"anchor": ANCHOR} | changed


def split(**changed: Any) -> dict[str, Any]:
    """Three items in parts of two at most."""
    chain, frame = usc_chain(), {"chainKey": 7, "fromHeader": 103, "toHeader": 107, "split": 2}
    second = UscChain(107, chain.blocks[4:], digest_below(107)).batch({107: [128]})
    return frame | {"batches": [chain.batch({103: [0, 9]}), second], "anchor": ANCHOR} | changed


def digest_below(height: int) -> bytes:
    chain = usc_chain()
    return UscChain(chain.first, chain.blocks[: height - chain.first], chain.lower).anchor[1]


# --- what holds ---------------------------------------------------------------------------------------------------------

WHOLE: dict[str, Callable[[], dict[str, Any]]] = {
    "transaction": lambda: big_block().body("transaction", 17),
    "receipt": lambda: receipt_of(129),
    "log": lambda: big_block().body("log", 13, 4),
    "usc": single,
    "batch": batch,
    "split": split,
    "trie": lambda: raw(big_block().header[5], b"\x11", big_block().receipts[17], big_block().receipt_proofs[17]),
}
KINDS = pytest.mark.parametrize("kind", WHOLE)


@KINDS
def test_what_a_route_returned_is_valid_bare_and_wrapped(kind: str) -> None:
    body = WHOLE[kind]()
    assert (verdict(body).valid, verdict(body).reason) == (True, "Valid")
    assert verdict({"proof": body}).valid
    if "anchor" in body:
        assert verdict({"proof": {**body, "anchor": None}, "anchor": ANCHOR}).valid


def test_the_given_anchor_goes_before_the_one_in_the_body() -> None:
    body = as_bytes(single(anchor={"height": HEIGHT, "digest": "0x" + "11" * 32}))
    assert diagnose(body)[0].reason == "AnchorMismatch"
    assert diagnose(body, (HEIGHT, DIGEST))[0].valid


def test_an_anchor_may_be_written_as_strings() -> None:
    assert verdict(single(anchor={"height": str(HEIGHT), "digest": DIGEST.hex().upper()})).valid


def test_the_raw_form_may_be_spelt_as_one_likes() -> None:
    body = WHOLE["trie"]()
    body["root"] = body["root"].upper()
    body["value"] = body["value"].removeprefix("0x")
    assert verdict(body).valid


# --- what does not, natively --------------------------------------------------------------------------------------------

OTHER = "0x" + "11" * 32


@pytest.mark.parametrize(
    ("changed", "reason", "field"),
    [
        ({"blockHash": OTHER}, "HeaderHashMismatch", "headerRlp"),
        ({"blockNumber": 5}, "HeaderMismatch", "blockNumber"),
        ({"root": OTHER}, "HeaderMismatch", "root"),
        ({"transactionIndex": 128}, "KeyMismatch", "transactionIndex"),
        ({"key": "0x8180"}, "KeyMismatch", "key"),
        ({"key": "0x"}, "KeyMismatch", "key"),
        ({"value": "0x01"}, "ValueMismatch", "value"),
        ({"nodes": []}, "TruncatedProof", "nodes"),
        ({"encodings": {"nodes": "0x00"}}, "EncodingMismatch", "encodings.nodes"),
        ({"log": big_block().body("log", 13, 4)["log"]}, "LogMismatch", "log"),
        ({"kind": "log"}, "LogMismatch", "log"),
        ({"kind": "transaction"}, "HeaderMismatch", "root"),
        ({"kind": "block"}, "MalformedField", "kind"),
        ({"finality": {"level": "final", "by": "rpc-tag", "sources": 1}}, "MalformedField", "finality.level"),
        ({"unheard": 1}, "MalformedField", "unheard"),
    ],
)
def test_the_field_of_a_receipt_proof_that_is_wrong_is_named(changed: dict[str, Any], reason: str, field: str) -> None:
    assert failure(receipt_of(129) | changed) == (reason, field)


def test_the_transaction_hash_is_that_of_the_value() -> None:
    assert failure(big_block().body("transaction", 3) | {"transactionHash": OTHER}) == (
        "ValueMismatch",
        "transactionHash",
    )


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"indexInReceipt": 3}, "log.indexInReceipt"),
        ({"indexInReceipt": 77, "indexInBlock": 99}, "log.indexInReceipt"),
        ({"indexInBlock": 1}, "log.indexInBlock"),
        ({"rlp": "0xc0"}, "log.rlp"),
        ({"address": "0x" + "00" * 20}, "log.address"),
        ({"topics": []}, "log.topics[0]"),
        ({"data": "0xff"}, "log.data"),
    ],
)
def test_the_part_of_a_log_that_is_wrong_is_named(changed: dict[str, Any], field: str) -> None:
    body = big_block().body("log", 13, 4)
    body["log"] |= changed
    assert failure(body) == ("LogMismatch", field)


def test_it_is_told_what_was_expected() -> None:
    found = verdict(receipt_of(129) | {"transactionIndex": 128})
    assert (found.expected, found.found) == (129, 128)
    value = bytearray(big_block().receipts[129])
    value[40] ^= 1
    found = verdict(receipt_of(129) | {"value": to_hex(bytes(value))})
    assert found.reason == "ValueMismatch"
    assert "byte 40" in found.message
    assert len(str(found.expected)) < 100


def test_node_and_nibble_are_told() -> None:
    nodes = list(block_of(130).receipt_proofs[129])
    body = block_of(130).body("receipt", 129)
    for node, nibble in enumerate((0, 1, 2, 3, 4)):
        broken = [*nodes[:node], nodes[node][:-1] + bytes([nodes[node][-1] ^ 1]), *nodes[node + 1 :]]
        found = verdict(body | {"nodes": [to_hex(each) for each in broken]})
        assert found.reason == ("NodeHashMismatch" if node else "RootMismatch")
        assert (found.node, found.nibble) == (node, nibble)
        assert found.expected == to_hex(keccak(nodes[node]))
        assert found.found == to_hex(keccak(broken[node]))


def test_nodes_in_reverse_are_recognised() -> None:
    body = receipt_of(129)
    found = verdict(body | {"nodes": body["nodes"][::-1]})
    assert (found.reason, "from the root down" in found.message) == ("RootMismatch", True)


def test_embedded_nodes_are_not_listed_in_a_native_proof() -> None:
    trie_of_small = trie.build_ordered([b"a", b"b"])
    header = [*big_block().header[:5], trie_of_small.root, *big_block().header[6:]]
    encoded = bytes(rlp.encode(header))
    body = receipt_of(0) | {
        "headerRlp": to_hex(encoded),
        "blockHash": to_hex(keccak(encoded)),
        "root": to_hex(trie_of_small.root),
        "value": to_hex(b"a"),
        "nodes": [to_hex(node) for node in trie.prove(trie_of_small, 0)],
    }
    assert verdict(body).valid
    listed = [*body["nodes"], to_hex(rlp.encode([b"\x30", b"a"]))]
    assert verdict(raw(trie_of_small.root, b"\x80", b"a", [bytes.fromhex(node[2:]) for node in listed])).valid
    assert failure(body | {"nodes": listed}) == ("ExtraNodes", "nodes")


# --- tries --------------------------------------------------------------------------------------------------------------


def published() -> Iterator[Any]:
    for path in sorted((VECTORS / "mpt").glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for place, vector in enumerate(content.get("vectors", [content] if "nodes" in content else [])):
            vector = {"root": content.get("receiptsRoot"), **vector}
            yield pytest.param(vector, id=f"{path.stem}-{vector.get('name', place)}")


@pytest.mark.parametrize("vector", list(published()))
def test_published_proofs_get_the_published_verdict(vector: dict[str, Any]) -> None:
    body = {"kind": "trie", **{name: vector.get(name) for name in ("root", "key", "nodes")}}
    if vector.get("value") is None:  # of one that proves nothing, or that something is not there
        assert not verdict(body | {"value": "0x01"}).valid
        return
    assert verdict(body | {"value": vector["value"]}).valid == (not vector.get("expectError"))


def test_B42_absence_is_proven_or_it_is_not() -> None:
    packed = trie.build([(bytes([key, 7]), b"value %d" % key * 9) for key in range(0, 200, 3)])
    nodes = trie.prove(packed, 0)
    absent = raw(packed.root, b"\x00\x99", None, nodes)
    assert (verdict(absent).valid, verdict(absent).reason) == (True, "Absent")
    found = verdict(absent | {"value": "0x01"})
    assert (found.valid, found.reason, found.field) == (False, "Absent", "key")
    assert failure(absent | {"nodes": absent["nodes"][:-1]})[0] == "TruncatedProof"
    assert failure(absent | {"nodes": [*absent["nodes"], absent["nodes"][0]]})[0] == "KeyMismatch"
    there = raw(packed.root, b"\x00\x07", None, nodes)
    assert failure(there) == ("ValueMismatch", "value")


def test_of_an_empty_trie_everything_is_absent() -> None:
    found = verdict(raw(keccak(b"\x80"), b"a", None, []))
    assert (found.valid, found.reason) == (True, "Absent")
    assert failure(raw(keccak(b"\x80"), b"a", b"1", [])) == ("Absent", "key")
    assert failure(raw(keccak(b"\x80"), b"a", None, [b"\x80"]))[0] == "MalformedNode"
    assert failure(raw(keccak(b"a"), b"a", None, []))[0] == "TruncatedProof"


def test_a_key_that_is_hashed_in_its_trie_is_recognised() -> None:
    packed = trie.build([(keccak(b"account %d" % at), b"value %d" % at * 9) for at in range(20)])
    found = verdict(raw(packed.root, b"account 3", b"value 3" * 9, trie.prove(packed, 3)))
    assert (found.valid, "keccak(key)" in found.message) == (False, True)


@pytest.mark.parametrize("index", [0, 1, 127, 128, 129])
def test_damaged_nodes_are_never_valid_and_never_absent(index: int) -> None:
    block = block_of(130)
    nodes, root = block.receipt_proofs[index], block.header[5]
    for each in (*damage.drops(nodes), *damage.rearrangements(nodes, seed=index), *damage.flips(nodes, 60, seed=index)):
        for value in (block.receipts[index], None):
            found = verdict(raw(root, rlp.encode(index), value, each.nodes))
            assert not found.valid, each
            assert found.reason not in {"Absent", "Valid"}, each


# --- usc ----------------------------------------------------------------------------------------------------------------


def leaf_changed(**changed: Any) -> dict[str, Any]:
    body = batch()
    body["merkleProofs"]["103"]["9"] |= changed
    return body


@pytest.mark.parametrize(
    ("body", "reason", "field"),
    [
        (lambda: single(anchor=None), "AnchorMissing", "anchor"),
        (lambda: single(anchor=ANCHOR | {"digest": OTHER}), "AnchorMismatch", "continuityProof"),
        (lambda: single(anchor=ANCHOR | {"height": 5}), "AnchorMismatch", "continuityProof.roots"),
        (lambda: single(anchor=ANCHOR | {"height": -1}), "MalformedField", "anchor.height"),
        (lambda: single(anchor={"height": 5}), "MalformedField", "anchor.digest"),
        (lambda: single(txBytes="0x01"), "LeafMismatch", "txBytes"),
        (lambda: single(txBytes="0x"), "MalformedField", "txBytes"),
        (lambda: single(txIndex=8), "IndexMismatch", "txIndex"),
        (lambda: single(headerNumber=104), "AnchorMismatch", "continuityProof.roots"),
        (lambda: single(merkleProof=single()["merkleProof"] | {"root": OTHER}), "RootMismatch", "merkleProof.root"),
        (lambda: single(merkleProof=single()["merkleProof"] | {"siblings": []}), "LeafMismatch", "txBytes"),
        (
            lambda: single(merkleProof={"root": OTHER, "siblings": [{"hash": OTHER, "isLeft": False}] * 65}),
            "MalformedField",
            "merkleProof.siblings",
        ),
        (
            lambda: single(continuityProof=single()["continuityProof"] | {"roots": [OTHER]}),
            "ContinuityMismatch",
            "continuityProof.roots[0]",
        ),
        (
            lambda: single(continuityProof=single()["continuityProof"] | {"roots": []}),
            "ContinuityMismatch",
            "continuityProof.roots",
        ),
        (
            lambda: single(continuityProof=single()["continuityProof"] | {"lowerEndpointDigest": OTHER}),
            "AnchorMismatch",
            "continuityProof",
        ),
        (lambda: single(cached="no"), "MalformedField", "cached"),
        (lambda: leaf_changed(txBytes="0x01"), "LeafMismatch", "merkleProofs.103.9.txBytes"),
        (lambda: batch(toHeader=200), "ContinuityMismatch", "continuityProof.roots"),
        (lambda: batch(toHeader=100), "MalformedField", "toHeader"),
        (lambda: batch(toHeader=105), "MalformedField", "merkleProofs.107"),
        (lambda: batch(merkleProofs={"103": {}}), "MalformedField", "merkleProofs.103"),
        (lambda: batch(merkleProofs=dict([*batch()["merkleProofs"].items()][::-1])), "MalformedField", None),
    ],
)
def test_the_part_of_a_usc_proof_that_is_wrong_is_named(
    body: Callable[[], dict[str, Any]], reason: str, field: str | None
) -> None:
    found = failure(body())
    assert found[0] == reason
    assert field is None or found[1] == field


@pytest.mark.parametrize(
    ("body", "reason", "field"),
    [
        (lambda: split(batches=[]), "MalformedField", "batches"),
        (lambda: split(split=1), "MalformedField", "batches[0].merkleProofs"),
        (lambda: split(chainKey=8), "MalformedField", "batches[0].chainKey"),
        (lambda: split(toHeader=106), "MalformedField", "batches[1].fromHeader"),
        (lambda: split(anchor=None), "AnchorMissing", "anchor"),
        (lambda: split(anchor=ANCHOR | {"digest": OTHER}), "AnchorMismatch", "batches[0].continuityProof"),
        (
            lambda: split(batches=[split()["batches"][0], split()["batches"][1] | {"continuityProof": OTHER}]),
            "MalformedField",
            "batches[1].continuityProof",
        ),
    ],
)
def test_the_part_of_a_split_batch_that_is_wrong_is_named(
    body: Callable[[], dict[str, Any]], reason: str, field: str
) -> None:
    assert failure(body()) == (reason, field)


def test_another_index_in_a_batch_is_recognised() -> None:
    body = batch()
    body["merkleProofs"]["103"] = {"0": body["merkleProofs"]["103"]["0"], "8": body["merkleProofs"]["103"]["9"]}
    found = verdict(body)
    assert (found.reason, found.field, found.expected, found.found) == ("IndexMismatch", "merkleProofs.103.8", 9, 8)


# --- any body -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [None, 1, "proof", [], {}, {"proof": 1}, {"proof": []}, {"proof": {}}, {"kind": "tree"}, {"proof": {"proof": {}}}],
)
def test_what_has_the_form_of_no_proof_is_none(body: object) -> None:
    with pytest.raises(NotAProof):
        diagnose(as_bytes(body))


def test_a_body_of_more_values_than_any_proof_has_is_not_read() -> None:
    whole = single()
    longest = whole["continuityProof"] | {"roots": whole["continuityProof"]["roots"][:1] + [OTHER] * 30_000}
    assert failure(whole | {"continuityProof": longest})[0] == "AnchorMismatch"
    for value, count in ((b"[]", MAX_COMMAS), (b"{}", MAX_BRACES)):
        with pytest.raises(NotAProof):
            diagnose(b'{"kind": "trie", "nodes": [' + (value + b",") * count + value + b"]}")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b"{'a': 1}", b'{"a": 01}'])
def test_what_is_not_json_is_no_proof(text: bytes) -> None:
    with pytest.raises(NotJson):
        diagnose(text)


def test_a_name_given_twice_is_refused_wherever_it_stands() -> None:
    whole = as_bytes(receipt_of(3))
    for twice in (
        whole.replace(b'"level":', b'"level":"safe","level":'),
        b'{"proof":' + whole[:-1] + b',"key":"0x03"}}',
    ):
        found = diagnose(twice)[0]
        assert (found.valid, found.reason) == (False, "DuplicateField")


@pytest.mark.parametrize(
    "number", [b"-0", b"1.0", b"1e1", b"18446744073709551616", b"9" * 5000, b"-1", b"true", b"NaN"]
)
def test_B67_a_number_is_a_whole_one_of_64_bits(number: bytes) -> None:
    body = as_bytes(receipt_of(0)).replace(b'"transactionIndex":0', b'"transactionIndex":' + number)
    found = diagnose(body)[0]
    assert (found.reason, found.field) == ("MalformedField", "transactionIndex")


def test_B67_what_is_shown_survives_any_reader_of_json() -> None:
    found = verdict(single(txIndex=2**64 - 1))
    assert (found.reason, found.expected, found.found) == ("IndexMismatch", 9, "18446744073709551615")
    odd = b'{"kind": "trie", "root": "\\ud800", "key": "0x", "value": null, "nodes": [], "\\ud83d": 1}'
    assert json.loads(orjson.dumps(diagnose(odd)[0].as_json()))["reason"] == "MalformedField"
    assert orjson.dumps(diagnose(odd.replace(b'"\\ud83d": 1', b'"\\ud83d": 1, "\\ud83d": 2'))[0].as_json())


@KINDS
def test_whatever_is_changed_both_verifiers_agree_on_what_is_valid(kind: str) -> None:
    """`judge` raises where the second refuses what the first accepts."""
    body = WHOLE[kind]()
    for where, changed in mutations(body):
        with suppress(NotAProof):
            found = verdict(changed)
            assert found.message, where
            if found.valid:
                # What no root commits to, items left out of a batch, and other spellings of the raw form.
                unproven = where.startswith(
                    ("chain", "finality", "transactionHash", "log.indexInBlock", "cached", "txHash")
                )
                unproven |= (
                    where.startswith(("generatedAt", "toHeader", "anchor")) or where[0] == ":"
                )  # a field left out
                assert unproven or kind in ("batch", "split", "trie"), where


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("0x" + "ab" * 32),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=8), inside, max_size=4),
    max_leaves=20,
)


@KINDS
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_json_anywhere_gets_a_verdict(kind: str, data: st.DataObject) -> None:
    body = WHOLE[kind]()
    name = data.draw(st.sampled_from([*body, "proof", "extra"]))
    body[name] = data.draw(JSON)
    with suppress(NotAProof):
        verdict(body)


@settings(deadline=None, max_examples=150)
@given(body=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_no_proof_and_raise_nothing_else(body: bytes) -> None:
    with pytest.raises((NotAProof, NotJson)):
        diagnose(body)


SMALL = st.dictionaries(st.binary(min_size=1, max_size=3), st.binary(min_size=1, max_size=40), min_size=1, max_size=20)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SMALL, st.binary(min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_tries_of_any_shape_and_their_damages_get_one_verdict(
    items: dict[bytes, bytes], other: bytes, chance: Any
) -> None:
    packed = trie.build(list(items.items()))
    keys = list(items)
    for place, key in enumerate(keys):
        nodes = list(trie.prove(packed, place))
        assert verdict(raw(packed.root, key, items[key], nodes)).valid
        broken = bytearray(chance.choice(nodes))
        broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        # Under the root of the broken node, so that what is behind the hash is looked at too.
        verdict(raw(keccak(bytes(broken)), key, items[key], [bytes(broken), *nodes[1:]]))
        if other not in items:
            assert not verdict(raw(packed.root, other, b"1", nodes)).valid


def test_long_values_are_shown_short() -> None:
    big = receipt_of(0) | {"value": to_hex(hashed_to("long", 100_000))}
    assert len(json.dumps(verdict(big).as_json())) < 1000
