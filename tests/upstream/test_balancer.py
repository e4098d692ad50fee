"""One address with two nodes on different forks behind it, and fetches that are given up at random: no mix, and no lost slot."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.core.blocks import BlockRef
from app.core.errors import BlockNotOnSourceChain, InconsistentSource, RpcUnavailable
from app.core.hexadecimal import to_hex
from app.core.provable_block import ProvableBlock, Verdict
from app.core.routing import Part
from tests.acceptance.made_blocks import CHAIN_ID, Sent, block_hash, make_block
from tests.oracles import signing
from tests.oracles.signing import Account, Call
from tests.scripted_behaviours import held
from tests.scripted_node import ScriptedNode
from tests.upstream.crew import BY_NUMBER, RECEIPTS, Crew, open_crew

Record = dict[str, Any]
HEIGHT = 100


def fork(number: int, count: int) -> Record:
    """A block at HEIGHT like its rivals in everything but its transactions."""
    sender = Account.numbered(40 + number)
    sent = [
        Sent(signing.legacy(sender, Call(bytes([number]) * 20, value=at), CHAIN_ID), sender.address)
        for at in range(count)
    ]
    return make_block(HEIGHT, bytes(32), sent)


@dataclass(eq=False)
class Balancer(ScriptedNode):
    """Hands each call to one of several nodes."""

    backends: list[ScriptedNode] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def honest(self, call: Any) -> Any:
        return self.chance.choice(self.backends).honest(call)


def forked(count: int = 3) -> tuple[list[Record], Balancer]:
    """Two forks of as many transactions each, and a balancer over a node of each."""
    records = [fork(1, count), fork(2, count)]
    backends = []
    for record in records:
        backend = ScriptedNode(chain_id=CHAIN_ID)
        backend.add(record["block"], record["receipts"])
        backends.append(backend)
    return records, Balancer(chain_id=CHAIN_ID, backends=backends)


def is_one_of(block: ProvableBlock, records: list[Record]) -> bool:
    """Whether a block is one of these and nothing of the other."""
    (record,) = [record for record in records if block_hash(record) == block.block_hash]
    transactions = [entry["hash"] for entry in record["block"]["transactions"]]
    hashes = [to_hex(block.transaction_hash(at)) for at in range(block.transaction_count)]
    receipts_fit = (
        block.receipts_verdict is not Verdict.PROVEN
        or to_hex(block.receipt_proof(0).root) == record["block"]["receiptsRoot"]
    )
    return hashes == transactions and receipts_fit


@pytest.mark.parametrize("forms", [{"hash", "number", "object"}, {"number"}], ids=["by-hash", "by-number-only"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "one-by-one"])
@pytest.mark.parametrize("second", [True, False], ids=["two-addresses", "one-address"])
async def test_B23_row_17_block_and_receipts_of_different_forks_are_never_mixed(
    forms: set[str], whole: bool, second: bool
) -> None:
    records, balancer = forked()
    nodes: list[ScriptedNode] = [balancer]
    if second:
        nodes.append(forked()[1])
    for node in [*nodes, *(backend for each in nodes if isinstance(each, Balancer) for backend in each.backends)]:
        node.receipts_forms = forms
        node.unsupported = set() if whole else {RECEIPTS}
    async with open_crew(*nodes, chain_id=CHAIN_ID, greeted=False) as crew:
        served, whole_blocks = 0, 0
        for _ in range(60):
            crew.clock.at += 5.0
            try:
                block = await crew.fetch(BlockRef(height=HEIGHT))
            except (InconsistentSource, RpcUnavailable):
                continue
            assert is_one_of(block, records)
            served += 1
            whole_blocks += block.receipts_verdict is Verdict.PROVEN
        assert served > 10
        assert whole_blocks > 5


async def test_B23_a_block_asked_for_by_hash_is_that_block_or_none() -> None:
    records, balancer = forked()
    async with open_crew(balancer, chain_id=CHAIN_ID, greeted=False) as crew:
        served = 0
        for number in range(60):
            wanted = block_hash(records[number % 2])
            try:
                block = await crew.fetch(BlockRef(block_hash=wanted))
            except (InconsistentSource, RpcUnavailable, BlockNotOnSourceChain):
                continue
            assert block.block_hash == wanted
            assert is_one_of(block, records)
            served += 1
        assert served > 10


# --- what is given up -----------------------------------------------------------------------------------------------


async def churn(crew: Crew, rounds: int, chance: random.Random) -> int:
    """Fetches, 20 at a time, of which seven in ten are cancelled at some moment; how many were served."""
    served = 0
    for _ in range(rounds):
        fetches = [asyncio.create_task(crew.fetch(BlockRef(height=HEIGHT))) for _ in range(20)]
        for fetch in fetches:
            for _ in range(chance.randint(0, 12)):
                await asyncio.sleep(0)
            if chance.random() < 0.7:
                fetch.cancel()
        outcomes = await asyncio.gather(*fetches, return_exceptions=True)
        served += sum(isinstance(outcome, ProvableBlock) for outcome in outcomes)
        assert all(isinstance(outcome, ProvableBlock | asyncio.CancelledError) for outcome in outcomes)
    return served


@pytest.mark.parametrize("several", [1, 2])
async def test_B55_seven_of_ten_fetches_given_up_lose_no_connection(several: int) -> None:
    record = fork(1, 3)
    nodes = []
    for _ in range(several):
        node = ScriptedNode(chain_id=CHAIN_ID)
        node.add(record["block"], record["receipts"])
        nodes.append(node)
    async with open_crew(*nodes, chain_id=CHAIN_ID, max_connections=4) as crew:
        served = await churn(crew, 25, random.Random(3))
        assert served > 50
        assert [evm.connections_held for evm in crew.evms] == [0] * several
        assert [counts.pool_timeouts for counts in crew.counts] == [0] * several
        assert all(evm.state.breakers[part].opened_at is None for evm in crew.evms for part in evm.state.breakers)
        for _ in range(200):
            assert (await crew.fetch(BlockRef(height=HEIGHT))).receipts_verdict is Verdict.PROVEN
        assert all(node.open_connections <= 4 for node in crew.nodes)


async def test_B55_held_calls_that_are_given_up_free_their_connections_at_both_nodes() -> None:
    record = fork(1, 3)
    nodes = [ScriptedNode(chain_id=CHAIN_ID), ScriptedNode(chain_id=CHAIN_ID)]
    for node in nodes:
        node.add(record["block"], record["receipts"])
    async with open_crew(*nodes, chain_id=CHAIN_ID, max_connections=2) as crew:
        gate = asyncio.Event()
        crew.nodes[0].always(BY_NUMBER, held(gate))
        fetches = [asyncio.create_task(crew.fetch(BlockRef(height=HEIGHT))) for _ in range(2)]
        await crew.nodes[0].until(BY_NUMBER, 2)
        for fetch in fetches:
            fetch.cancel()
        await asyncio.wait(fetches)
        assert crew.evms[0].connections_held == 0
        gate.set()
        crew.nodes[0].always(BY_NUMBER, None)
        assert (await crew.fetch(BlockRef(height=HEIGHT))).block_hash == block_hash(record)


async def test_B56_a_connection_that_was_closed_while_idle_is_nobodys_failure() -> None:
    record = fork(1, 3)
    nodes = [ScriptedNode(chain_id=CHAIN_ID), ScriptedNode(chain_id=CHAIN_ID)]
    for node in nodes:
        node.add(record["block"], record["receipts"])
    async with open_crew(*nodes, chain_id=CHAIN_ID) as crew:
        for number in range(60):
            if number % 5 == 0:
                crew.nodes[0].tire_of_connections()
            elif number % 5 == 2:
                crew.nodes[0].close_idle()
            await crew.fetch(BlockRef(height=HEIGHT))
        assert crew.asked[1] == 0
        assert set(crew.judged) == {"a"}
        assert crew.evms[0].state.breakers[Part.LIGHT]._failures_in_a_row == 0
