"""Blocks that lie, blocks of which only half was recorded, blocks of chains with rules of their own.

Each is either proven, and then outsiders agree, or refused with a code that says why; never a 500, never a wrong proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.conftest import UNNAMED_CHAIN_ID
from tests.acceptance.judging import Record, integer, judge, sampled, transaction_hashes
from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Answer, Copath, chain, running_copath
from tests.corpus_files import family, files, label, load

NEGATIVE = files("negative")
NONSTANDARD = files("nonstandard")
RECEIPTS_ONLY = files("receipts-only")
BLOCK_ONLY = files("block-only")

PERMANENT = {
    "EmptyBlockTxProof",
    "UnsupportedBlockFormat",
    "NotCommittedByHeader",
    "UnsupportedTransactionType",
    "HeaderHashUnsupported",
}
NOT_NOW = {"InconsistentSource", "RpcUnavailable"}


@dataclass(frozen=True, slots=True)
class OneBlockChains:
    """A server with one chain per file: no block hides behind another of the same hash."""

    copath: Copath
    keys: dict[str, int]
    ids: dict[str, int]

    def get(self, path: Path, way: str) -> Answer:
        """A GET below the chain of a file."""
        return self.copath.get(f"/api/v1/proofs/{self.keys[label(path)]}/{way}")


def _serving(node: RecordedNode, paths: list[Path]) -> Iterator[OneBlockChains]:
    keys, ids, chains = {}, {}, []
    for key, path in enumerate(paths, start=1):
        record = load(path)
        name = label(path)
        keys[name], ids[name] = key, record["chainId"] or UNNAMED_CHAIN_ID
        source = RecordedChain(ids[name], [record])
        source.pruned = True  # a node that answers null would be asked again and again before it is believed
        node.chains[f"odd-{name.replace('/', '-')}"] = source
        url = node.url(f"odd-{name.replace('/', '-')}")
        chains.append(chain(key, f"odd-{key}", ids[name], url, family(record)))
    with running_copath(*chains) as copath:
        yield OneBlockChains(copath, keys, ids)


@pytest.fixture(scope="module")
def lying(node: RecordedNode) -> Iterator[OneBlockChains]:
    yield from _serving(node, NEGATIVE)


@pytest.fixture(scope="module")
def odd(node: RecordedNode) -> Iterator[OneBlockChains]:
    yield from _serving(node, NONSTANDARD + RECEIPTS_ONLY + BLOCK_ONLY)


def _ways(record: Record, size: int = 10) -> Iterator[tuple[str, int, str]]:
    """(kind, index, path) of a sample of what could be asked about a block."""
    block_hash, height = record["block"]["hash"], integer(record["block"]["number"])
    hashes = transaction_hashes(record)
    for index in sampled(len(hashes), seed=8, size=size) or [0]:
        for kind in ("transaction", "receipt"):
            yield kind, index, f"blocks/{block_hash}/{kind}s/{index}"
            yield kind, index, f"blocks/{height}/{kind}s/{index}"
            if hashes:
                yield kind, index, f"{kind}s/{hashes[index]}"


def _refusal(answer: Answer, where: str) -> str:
    """The code of a refusal that keeps the rules."""
    body = answer.json
    assert answer.status in (404, 422, 503), (where, answer.status, body)
    assert body["retriable"] is (answer.status == 503), (where, body)
    assert ("retry-after" in answer.headers) is (answer.status == 503), (where, answer.headers)
    assert body["status"] == answer.status
    code: str = body["code"]
    return code


@pytest.mark.parametrize("path", NEGATIVE, ids=label)
def test_a_mutated_block_is_refused_whatever_is_asked_of_it(path: Path, lying: OneBlockChains) -> None:
    record = load(path)
    record["block"]["transactions"] = record["block"].get("transactions") or []
    record["block"]["transactions"] = [entry for entry in record["block"]["transactions"] if entry]
    ways = [way for _, _, way in _ways(record)]
    ways += [f"blocks/{record['block']['hash']}/logs/0", f"blocks/{integer(record['block']['number'])}/logs/0"]
    for way in ways:
        code = _refusal(lying.get(path, way), way)
        assert code in PERMANENT | NOT_NOW, (way, code)


@pytest.mark.parametrize("path", NONSTANDARD, ids=label)
def test_a_block_of_a_nonstandard_chain_is_proven_or_refused(path: Path, odd: OneBlockChains) -> None:
    record = load(path)
    identity = {"chain_key": odd.keys[label(path)], "chain_id": odd.ids[label(path)]}
    for kind, index, way in _ways(record):
        answer = odd.get(path, way)
        if answer.status == 200:
            judge(answer.body, record, kind, index, hash_by_node=True, **identity)
        else:
            assert _refusal(answer, way) in PERMANENT | NOT_NOW, way


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("bittensor-testnet_6646068", "transaction", "HeaderHashUnsupported"),
        ("bittensor-testnet_6646068", "receipt", "HeaderHashUnsupported"),
        ("lachesis-dev_10920", "receipt", "NotCommittedByHeader"),
    ],
)
def test_a_lasting_reason_is_named(name: str, kind: str, code: str, odd: OneBlockChains) -> None:
    path = next(path for path in NONSTANDARD if path.name.startswith(name))
    answer = odd.get(path, f"blocks/{load(path)['block']['hash']}/{kind}s/0")
    assert (answer.status, answer.code, answer.json["retriable"]) == (422, code, False)


@pytest.mark.parametrize("name", ["lachesis-dev_10920", "tempo-mainnet_20660166", "tempoModerato_6541"])
def test_what_its_header_commits_to_is_proven_on_a_nonstandard_chain(name: str, odd: OneBlockChains) -> None:
    path = next(path for path in NONSTANDARD if path.name.startswith(name))
    record = load(path)
    answer = odd.get(path, f"blocks/{record['block']['hash']}/transactions/0")
    assert answer.status == 200, answer.body[:300]
    judge(answer.body, record, "transaction", 0, chain_key=odd.keys[label(path)], chain_id=odd.ids[label(path)])


@pytest.mark.parametrize("path", RECEIPTS_ONLY, ids=label)
def test_receipts_are_proven_without_the_bodies_of_their_transactions(path: Path, odd: OneBlockChains) -> None:
    record = load(path)
    identity = {"chain_key": odd.keys[label(path)], "chain_id": odd.ids[label(path)]}
    proven = 0
    for kind, index, way in _ways(record):
        answer = odd.get(path, way)
        if answer.status == 200:
            judge(answer.body, record, kind, index, hash_by_node=True, **identity)
            assert kind == "receipt"
            proven += 1
        else:
            assert _refusal(answer, way) in PERMANENT | NOT_NOW, way
    # Two recordings have lost the list of transactions altogether: nothing then says how many receipts there must be.
    if record["block"].get("transactions"):
        assert proven > 0


@pytest.mark.parametrize("path", BLOCK_ONLY, ids=label)
def test_transactions_are_proven_without_their_receipts(path: Path, odd: OneBlockChains) -> None:
    record = load(path)
    identity = {"chain_key": odd.keys[label(path)], "chain_id": odd.ids[label(path)]}
    for kind, index, way in _ways(record):
        answer = odd.get(path, way)
        if kind == "transaction":
            assert answer.status == 200, (way, answer.body[:300])
            judge(answer.body, record, kind, index, **identity)
        else:
            assert _refusal(answer, way) in NOT_NOW | {"HistoryUnavailable"}, way
