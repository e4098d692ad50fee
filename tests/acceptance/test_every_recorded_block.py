"""Every transaction and every receipt of every block recorded whole is proven over HTTP, and outsiders agree."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from app.checker import Refused, check_native
from app.core import trie
from app.core.trie import InvalidProof
from tests.acceptance.conftest import CorpusServer
from tests.acceptance.judging import Record, TrieProof, integer, judge, sampled, to_bytes, transaction_hashes
from tests.corpus_files import files, label, load
from tests.oracles import damage, trie_library
from tests.oracles.solidity import verify_trie_proof

BLOCKS = files("full", "contiguous")
FILLED = [path for path in BLOCKS if load(path)["block"]["transactions"]]
KINDS = ("transaction", "receipt")
# Twenty proofs of which every byte is flipped: short and long, typed and not, with and without an extension node.
EVERY_BYTE = [
    (name, kind, index)
    for name, indexes in {
        "full/mainnet_22869878": (0, 127, 300),
        "full/mainnet_1000023": (0, 6),
        "full/arbitrum-one_150000000": (0, 4),
        "full/unichain-sepolia_35535698": (0,),
        "full/polygon_50000000": (255,),
        "contiguous/sepolia_175903": (0,),
    }.items()
    for index in indexes
    for kind in KINDS
]


def _asked(record: Record, kind: str, index: int) -> dict[str, object]:
    return {"kind": kind, "transactionHash": transaction_hashes(record)[index], "transactionIndex": index}


def _with(fields: dict[str, Any], **changes: object) -> bytes:
    return json.dumps({**fields, **changes}, separators=(",", ":")).encode()


@pytest.mark.parametrize("path", BLOCKS, ids=label)
def test_all_transactions_and_receipts(path: Path, whole_blocks: CorpusServer) -> None:
    record = load(path)
    name, block_hash = record["chain"], record["block"]["hash"]
    identity = {"chain_key": whole_blocks.keys[name], "chain_id": whole_blocks.ids[name]}
    hashes = transaction_hashes(record)
    if not hashes:
        for items in ("transactions", "receipts", "logs"):
            refused = whole_blocks.get(f"{name}/blocks/{block_hash}/{items}/0")
            assert (refused.status, refused.code) == (422, "EmptyBlockTxProof")
        return
    for index, tx_hash in enumerate(hashes):
        # The two ways to a proof take turns: by the transaction's hash, by its position.
        by_hash, by_place = KINDS if index % 2 else reversed(KINDS)
        for kind, way in (
            (by_hash, f"{by_hash}s/{tx_hash}"),
            (by_place, f"blocks/{block_hash}/{by_place}s/{index}"),
        ):
            answer = whole_blocks.get(f"{name}/{way}")
            assert answer.status == 200, (way, answer.body[:300])
            judge(answer.body, record, kind, index, **identity)
            check_native(answer.body, _asked(record, kind, index))


@pytest.mark.parametrize("path", FILLED, ids=label)
def test_every_way_to_one_proof_gives_the_same_bytes(path: Path, whole_blocks: CorpusServer) -> None:
    record = load(path)
    name, block = record["chain"], record["block"]
    hashes = transaction_hashes(record)
    for index in sampled(len(hashes), seed=5, size=4):
        for kind in KINDS:
            bodies = {
                whole_blocks.get(f"{name}/{way}").body
                for way in (
                    f"{kind}s/{hashes[index]}",
                    f"blocks/{block['hash']}/{kind}s/{index}",
                    f"blocks/{integer(block['number'])}/{kind}s/{index}",
                )
            }
            assert len(bodies) == 1


@pytest.mark.parametrize("path", FILLED, ids=label)
def test_logs_by_both_of_their_numbers(path: Path, whole_blocks: CorpusServer) -> None:
    record = load(path)
    name, block_hash = record["chain"], record["block"]["hash"]
    identity = {"chain_key": whole_blocks.keys[name], "chain_id": whole_blocks.ids[name]}
    places = [
        (index, in_receipt)
        for index, receipt in enumerate(record["receipts"])
        for in_receipt in range(len(receipt["logs"]))
    ]
    for in_block in sampled(len(places), seed=6, size=4):
        index, in_receipt = places[in_block]
        tx_hash = transaction_hashes(record)[index]
        answers = [
            whole_blocks.get(f"{name}/{way}")
            for way in (
                f"logs/{tx_hash}/{in_receipt}",
                f"logs/{tx_hash}/{in_receipt}?index=receipt",
                f"logs/{tx_hash}/{in_block}?index=block",
                f"blocks/{block_hash}/logs/{in_block}",
            )
        ]
        assert {answer.status for answer in answers} == {200}, [answer.body[:300] for answer in answers]
        assert len({answer.body for answer in answers}) == 1
        judge(answers[0].body, record, "log", index, allow=("log",), **identity)
        check_native(answers[0].body, _asked(record, "log", index) | {"log.indexInBlock": in_block})
    beyond = whole_blocks.get(f"{name}/blocks/{block_hash}/logs/{len(places)}")
    assert (beyond.status, beyond.code) == (404, "LogIndexOutOfBounds")


def test_the_sample_that_is_damaged_is_large_enough() -> None:
    sizes = [len(sampled(len(load(path)["block"]["transactions"]), seed=7, size=10)) for path in FILLED]
    assert len(KINDS) * sum(sizes) >= 600


@pytest.mark.parametrize("path", FILLED, ids=label)
def test_damaged_proofs_are_refused_by_all(path: Path, whole_blocks: CorpusServer) -> None:
    record = load(path)
    for index in sampled(len(record["block"]["transactions"]), seed=7, size=10):
        for kind in KINDS:
            fields = whole_blocks.get(f"{record['chain']}/blocks/{record['block']['hash']}/{kind}s/{index}").json
            proof, asked = TrieProof.of(fields), _asked(record, kind, index)
            check_native(_with(fields), asked)  # so that what is refused below is refused for the damage alone
            damaged = damage.damages(proof.nodes, seed=index)
            assert len(damaged) >= 20
            for one in damaged:
                _refused_by_all(fields, proof, one, asked)
            _other_fields_damaged(fields, asked)


@pytest.mark.parametrize(("name", "kind", "index"), EVERY_BYTE, ids=lambda value: str(value))
def test_every_byte_of_a_proof_matters(name: str, kind: str, index: int, whole_blocks: CorpusServer) -> None:
    record = load(next(path for path in FILLED if label(path) == name))
    fields = whole_blocks.get(f"{record['chain']}/blocks/{record['block']['hash']}/{kind}s/{index}").json
    proof, asked = TrieProof.of(fields), _asked(record, kind, index)
    for one in damage.flip_every_byte(proof.nodes):
        _refused_by_all(fields, proof, one, asked)


def _refused_by_all(fields: dict[str, Any], proof: TrieProof, one: damage.Damaged, asked: dict[str, object]) -> None:
    with pytest.raises(Refused):
        check_native(_with(fields, nodes=["0x" + node.hex() for node in one.nodes]), asked)
    with suppress(InvalidProof):
        assert trie.verify(proof.root, proof.key, one.nodes) != proof.value, one
    assert not verify_trie_proof(proof.root, proof.key, proof.value, one.nodes), one
    if one.kind in ("flip", "drop"):
        assert not trie_library.accepts(proof.root, proof.key, proof.value, one.nodes), one


def _other_fields_damaged(fields: dict[str, Any], asked: dict[str, object]) -> None:
    for name in ("headerRlp", "blockHash", "root", "key", "value", "transactionHash"):
        broken = bytearray(to_bytes(fields[name]))
        broken[len(broken) // 2] ^= 0x10
        with pytest.raises(Refused):
            check_native(_with(fields, **{name: "0x" + broken.hex()}), asked)
    for name in ("blockNumber", "transactionIndex"):
        with pytest.raises(Refused):
            check_native(_with(fields, **{name: fields[name] + 1}), asked)
    other = {"transaction": "receipt", "receipt": "transaction"}[fields["kind"]]
    with pytest.raises(Refused):
        check_native(_with(fields, kind=other), {})
