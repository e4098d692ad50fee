"""One field of what the node tells is changed: either the block is refused, or nothing that is served differs.

`from` and `gasUsed` stand in no trie: what is served of them must come from signatures and from cumulative values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.core.block_building import build
from app.core.errors import ContentInvalid, ProofError
from app.core.provable_block import BuildRequest, ProvableBlock, Verdict
from tests.acceptance.made_blocks import CHAIN_ID, OP_CHAIN_ID, every_type, op_deposit, small_chain
from tests.acceptance.mutation import MISSING, Mutation, Record, changes, paths, removals, value_at
from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Answer, Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.corpus_files import family, recorded

ETHEREUM = small_chain(every_type())
OP_STACK = small_chain([op_deposit(1), *every_type(OP_CHAIN_ID)[:3]], OP_CHAIN_ID)
HEIGHT = 2
PER_SERVER = 40


def _mutations(blocks: list[Record]) -> list[Mutation]:
    return list(changes(blocks[HEIGHT - 1]))


ALL = [(ETHEREUM, "ethereum", CHAIN_ID, one) for one in _mutations(ETHEREUM)]
ALL += [
    (OP_STACK, "op-stack", OP_CHAIN_ID, one)
    for one in _mutations(OP_STACK)
    if one.index == 0  # the deposit; the other types are those of the first chain
]
GROUPS = [ALL[start : start + PER_SERVER] for start in range(0, len(ALL), PER_SERVER)]


def test_every_field_has_its_turn() -> None:
    touched = {tuple(step for step in one.path if isinstance(step, str)) for *_, one in ALL}
    block, receipt = ETHEREUM[1]["block"], ETHEREUM[1]["receipts"][1]
    assert {("block", name) for name in block} <= touched
    for transaction in [*block["transactions"], OP_STACK[1]["block"]["transactions"][0]]:
        assert {("block", "transactions", name) for name in transaction} <= touched
    for name in (*receipt, *OP_STACK[1]["receipts"][0]):
        assert ("receipts", name) in touched
    for name in receipt["logs"][0]:
        assert ("receipts", "logs", name) in touched


# --- over HTTP ------------------------------------------------------------------------------------------------------


def _log_of(record: Record, index: int) -> int:
    """The block-wide number of a log of the receipt, or of the next one that has any."""
    return min(sum(len(receipt["logs"]) for receipt in record["receipts"][:index]), 5)


def _ways(key: int, record: Record, index: int) -> dict[str, str]:
    native = f"/api/v1/proofs/{key}/blocks/{HEIGHT}"
    return {
        "transaction": f"{native}/transactions/{index}",
        "receipt": f"{native}/receipts/{index}",
        "log": f"{native}/logs/{_log_of(record, index)}",
        "usc": f"/api/v1/proof/{key}/{HEIGHT}/{index}",
    }


def _said(answer: Answer) -> dict[str, Any]:
    """A body without what may differ between chains with the same block, and what it does not claim."""
    body = answer.json
    assert re.fullmatch("0x[0-9a-f]{64}", body.get("transactionHash", body.get("txHash"))), body
    unsaid = {"chainKey", "generatedAt", "cached"}
    if body.get("transactionHashBy") == "rpc":
        unsaid |= {"transactionHash", "transactionHashBy"}
    return {name: value for name, value in body.items() if name not in unsaid}


def _anchored(key: int, name: str, chain_id: int, url: str, family_name: str) -> dict[str, object]:
    anchors = {"source": "self", "genesis": 1, "interval": 1, "checkpoint_every": 1000}
    return chain(key, name, chain_id, url, family_name, anchors=anchors)


def _attested(copath: Copath, key: int) -> bool:
    height = copath.get(f"/api/v1/attested-height/{key}").json["attestedHeight"]
    return height is not None and height >= HEIGHT


@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_what_is_served_over_http_does_not_change(group: int, node: RecordedNode) -> None:
    chains: list[dict[str, object]] = []
    for key, (blocks, family_name, chain_id, mutation) in enumerate(GROUPS[group], start=1):
        name = f"changed-{group}-{key}"
        changed = [*blocks[: HEIGHT - 1], mutation.of(blocks[HEIGHT - 1]), *blocks[HEIGHT:]]
        node.chains[name] = RecordedChain(chain_id, changed, heights=range(1, len(changed) + 1))
        chains.append(_anchored(key, name, chain_id, node.url(name), family_name))
    whole = {}
    for key, (blocks, family_name, chain_id) in {
        901: (ETHEREUM, "ethereum", CHAIN_ID),
        902: (OP_STACK, "op-stack", OP_CHAIN_ID),
    }.items():
        node.chains[f"unchanged-{group}-{key}"] = RecordedChain(chain_id, blocks)
        chains.append(_anchored(key, f"unchanged-{key}", chain_id, node.url(f"unchanged-{group}-{key}"), family_name))
        whole[family_name] = key
    with running_copath(*chains) as copath:
        for key in whole.values():
            until(lambda key=key: _attested(copath, key), "the unchanged chain's anchors")
        for key, (blocks, family_name, _, mutation) in enumerate(GROUPS[group], start=1):
            record = blocks[HEIGHT - 1]
            index = mutation.index or 0
            expected = {kind: copath.get(way) for kind, way in _ways(whole[family_name], record, index).items()}
            assert {answer.status for answer in expected.values()} == {200}, expected
            answers = {kind: copath.get(way) for kind, way in _ways(key, record, index).items() if kind != "usc"}
            if answers["transaction"].status == answers["receipt"].status == 200:
                # Both tries are proven, so the leaves follow; unless the deposit's nonce, which no trie holds, is
                # told in two ways: then there is no leaf, no root, and so no anchor.
                usc = _ways(key, record, index)["usc"]
                if mutation.path[-1] == "nonce":
                    assert copath.get(usc).code in ("AttestationsMissing", "BlockNotReady", "InconsistentSource")
                else:
                    until(lambda usc=usc: copath.get(usc).status == 200, f"the leaf of {mutation}")
                answers["usc"] = copath.get(usc)
            for kind, answer in answers.items():
                if answer.status == 200:
                    said = _said(answer)
                    assert said == {name: _said(expected[kind])[name] for name in said}, (kind, str(mutation))
                    assert set(said) | {"transactionHash"} >= set(_said(expected[kind])), (kind, str(mutation))
                else:
                    assert answer.status in (404, 422, 503), (kind, str(mutation), answer.body[:300])


# --- in process, beyond single steps ----------------------------------------------------------------------------------

SMALL_RECORDED = [
    recorded("full", name)
    for name in (
        "arbitrum-one_150000000",
        "unichain-sepolia_35535698",
        "mainnet_1000023",
        "sepolia_175229",
        "sepolia_176160",
    )
]
SOURCES: list[tuple[Record, str, int]] = [
    (ETHEREUM[1], "ethereum", CHAIN_ID),
    (OP_STACK[1], "op-stack", OP_CHAIN_ID),
    *((record, family(record), record["chainId"]) for record in SMALL_RECORDED),
]


def _build(record: Record, family_name: str, chain_id: int, height: int) -> ProvableBlock:
    return build(
        BuildRequest(
            family=family_name,
            chain_id=chain_id,
            anchored=True,
            height=height,
            block_hash=None,
            block_json=json.dumps(record["block"]).encode() if "block" in record else b"null",
            receipts_json=json.dumps(record["receipts"]).encode() if "receipts" in record else None,
        )
    )


def _cuts(block: ProvableBlock, transactions: int, logs: int) -> dict[str, object]:
    """Everything that could be served of a block; a refusal is the None that stands for it."""
    cuts: dict[str, Callable[[], object]] = {"root": lambda: block.usc_root}
    for index in range(transactions):
        cuts[f"transaction {index}"] = lambda index=index: block.transaction_proof(index)
        cuts[f"receipt {index}"] = lambda index=index: block.receipt_proof(index)
        if block.transactions_verdict is Verdict.PROVEN:  # else the body says that the hash is the node's word
            cuts[f"hash {index}"] = lambda index=index: block.transaction_hash(index)
        cuts[f"leaf {index}"] = lambda index=index: block.leaf_proof(index)
    for number in range(logs):
        cuts[f"log {number}"] = lambda number=number: block.log_proof_in_block(number)
    served: dict[str, object] = {}
    for name, cut in cuts.items():
        try:
            served[name] = (block.header_rlp, block.block_hash, block.height, cut())
        except ProofError:
            served[name] = None
    return served


class Whole:
    """A block as it was told, and all that is served of it."""

    def __init__(self, record: Record, family_name: str, chain_id: int) -> None:
        self.record, self.family, self.chain_id = record, family_name, chain_id
        self.height = int(record["block"]["number"], 16)
        self.transactions = len(record["block"]["transactions"])
        self.logs = sum(len(receipt["logs"]) for receipt in record["receipts"])
        self.served = self.serve(record)
        assert all(value is not None for value in self.served.values()) or family_name == "arbitrum"

    def serve(self, record: Record) -> dict[str, object]:
        """What is served of a record; nothing where it is refused as a whole."""
        try:
            block = _build(record, self.family, self.chain_id, self.height)
        except (ContentInvalid, ProofError):
            return {}
        return _cuts(block, self.transactions, self.logs)

    def unchanged_or_refused(self, mutation: Mutation) -> None:
        """Asserts the one thing that this module is about."""
        served = self.serve(mutation.of(self.record))
        different = [name for name, value in served.items() if value is not None and value != self.served[name]]
        assert not different, str(mutation)


WHOLE = [Whole(*source) for source in SOURCES]


@pytest.mark.parametrize("whole", WHOLE, ids=lambda whole: f"{whole.family}-{whole.height}")
def test_each_field_changed_absent_or_null(whole: Whole) -> None:
    for mutation in [*changes(whole.record), *removals(whole.record)]:
        whole.unchanged_or_refused(mutation)


HEX = st.binary(max_size=40).map(lambda data: "0x" + data.hex())
QUANTITIES = st.one_of(st.integers(0, 300), st.integers(0, 2**256 - 1), st.sampled_from([2**53, 2**64, 2**128, 2**256]))
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    HEX,
    QUANTITIES.map(hex),
    QUANTITIES.map(str),
    QUANTITIES,
    st.lists(HEX, max_size=3),
    st.dictionaries(st.sampled_from(["address", "topics", "data", "hash", "r"]), HEX, max_size=3),
    st.just(MISSING),
)
PATHS = [list(paths(whole.record)) for whole in WHOLE]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[int, Mutation]:
    """A block and one field of it set to anything at all, or to what another field of the block says."""
    source = draw(st.integers(0, len(WHOLE) - 1))
    path = draw(st.sampled_from(PATHS[source]))
    if draw(st.booleans()):
        value = draw(ANYTHING)
        return source, Mutation(path, f"set to {value!r}", value)
    other = draw(st.sampled_from(PATHS[source]))
    return source, Mutation(path, f"set to {other}", value_at(WHOLE[source].record, other))


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(mutated())
@example((0, Mutation(("receipts", 1, "cumulativeGasUsed"), "set to a float", 61000.0)))
@example((0, Mutation(("block", "transactions", 1, "from"), "another sender", "0x" + "44" * 20)))
@example((0, Mutation(("receipts", 1, "gasUsed"), "another gas", "0x1")))
def test_any_field_set_to_anything(case: tuple[int, Mutation]) -> None:
    source, mutation = case
    WHOLE[source].unchanged_or_refused(mutation)


def test_the_sender_and_the_gas_in_a_leaf_are_not_the_nodes_word() -> None:
    whole = WHOLE[0]
    for path in (("block", "transactions", 1, "from"), ("receipts", 1, "from"), ("receipts", 1, "gasUsed")):
        old = value_at(whole.record, path)
        told = Mutation(path, "changed", "0x" + "44" * 20 if len(old) == 42 else "0x1")
        served = whole.serve(told.of(whole.record))
        assert served.get("leaf 1") in (None, whole.served["leaf 1"])
