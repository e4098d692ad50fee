"""What outlives the process: written behind requests, looked up before a node is asked, and never needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from app.anchors.self_attested import SelfAttested
from app.chain.asking import HOPELESS_S, PATIENCE_S, READ_LIMIT_S
from app.chain.continuing import Continuity
from app.chain.head import IN_DOUBT
from app.chain.keeping import LOOK_EVERY_S, Keeping
from app.chain.kinship import FOREIGN_AGAIN_S, Kinship
from app.chain.rules import FinalityRule
from app.core.blocks import BlockName, BlockRef, Noted
from app.core.errors import ProofError, RpcUnavailable, UpstreamBudgetExhausted
from app.core.finality import Level
from app.core.provable_block import ProvableBlock
from app.core.purpose import Purpose
from tests.chain.kept import KeptBlocks, KeptLedger
from tests.chain.recorded_chain import BUSY, FIRST, LAST, RecordedChain, branch, hash_of, name_of, sepolia, tx_hashes
from tests.fakes import Hold, settle

HASH = hash_of(sepolia(BUSY))
TX = tx_hashes(sepolia(BUSY))[1]


async def by_tx(recorded: RecordedChain) -> ProvableBlock:
    return (await recorded.chain.transaction(TX)).block


class Site:
    """A ledger and a store that outlive the chains over them."""

    def __init__(self) -> None:
        self.ledger = KeptLedger()
        self.store = KeptBlocks()

    def chain(self, **rules: object) -> RecordedChain:
        return RecordedChain(ledger=self.ledger, store=self.store, **rules)

    async def in_use(self) -> tuple[RecordedChain, Keeping]:
        """A chain that has seen everything to be final, and what it keeps here."""
        recorded = self.chain()
        await recorded.see(LAST, finalized=LAST)
        assert recorded.chain.keeping is not None
        await recorded.chain.keeping.flush()
        return recorded, recorded.chain.keeping

    async def after(self, *, finalized: int = LAST) -> None:
        """One life of a chain in which the busy block was asked for."""
        recorded = self.chain()
        await recorded.see(finalized=finalized)
        await recorded.at(BUSY)
        assert recorded.chain.keeping is not None
        await recorded.chain.keeping.flush()


async def test_a_final_block_is_kept_and_noted() -> None:
    site = Site()
    await site.after()
    assert site.ledger.final == LAST
    assert site.ledger.blocks[BUSY].block_hash == HASH
    assert site.ledger.blocks[BUSY].asked
    assert list(site.store.blocks) == [HASH]


async def test_a_block_that_may_be_replaced_is_kept_by_its_hash_alone() -> None:
    site = Site()
    await site.after(finalized=BUSY - 1)
    assert site.ledger.blocks == {}
    assert list(site.store.blocks) == [HASH]


async def test_after_a_restart_what_was_served_is_served_without_any_node() -> None:
    site = Site()
    await site.after()
    for ask in (
        lambda recorded: recorded.at(BUSY),
        lambda recorded: recorded.by_hash(HASH),
        lambda recorded: by_tx(recorded),
    ):
        recorded = site.chain()
        for call in ("fetch", "name_of", "position", "tagged"):
            recorded.upstream.fail(call, RpcUnavailable("every node is gone"), times=None)
        await recorded.chain.restore()
        block = await ask(recorded)
        assert block.block_hash == HASH
        assert recorded.calls() == {}


NODES = ("fetch", "name_of", "position", "tagged", "height_of")

ASKED: dict[str, Callable[[RecordedChain], Awaitable[ProvableBlock]]] = {
    "height": lambda recorded: recorded.at(BUSY),
    "hash": lambda recorded: recorded.by_hash(HASH),
    "transaction": lambda recorded: by_tx(recorded),
}


async def slow_ledger(site: Site, call: str) -> tuple[RecordedChain, Hold]:
    """After a restart without a node, with a ledger that keeps who asks waiting."""
    await site.after()
    recorded = site.chain()
    for each in NODES:
        recorded.upstream.fail(each, RpcUnavailable("every node is gone"), times=None)
    await recorded.chain.restore()
    return recorded, site.ledger.hold(call)


@pytest.mark.parametrize("way", ASKED)
async def test_without_a_node_a_ledger_that_is_slow_is_waited_for(way: str) -> None:
    site = Site()
    recorded, holding = await slow_ledger(site, "position" if way == "transaction" else "hash_at")
    asked = [asyncio.create_task(ASKED[way](recorded)) for _ in range(8)]
    await holding.reached()
    site.ledger.unhold()
    patient = site.ledger.hold("finalized")
    await recorded.clock.advance(READ_LIMIT_S)
    await patient.reached()
    await recorded.clock.advance(PATIENCE_S / 2)
    assert not any(each.done() for each in asked)
    patient.release()
    assert {(await each).block_hash for each in asked} == {HASH}
    assert site.ledger.calls["finalized"] == 3, "in each life once, and once for all who wait"


async def test_without_a_node_and_a_ledger_nobody_waits_again_for_a_while() -> None:
    site = Site()
    recorded, holding = await slow_ledger(site, "hash_at")
    site.ledger.hold("finalized")
    for patience_s in (PATIENCE_S, 0.0):
        asked = asyncio.create_task(recorded.at(BUSY))
        await holding.reached()
        await recorded.clock.advance(READ_LIMIT_S)
        await recorded.clock.advance(patience_s)
        await settle()
        assert asked.done()
        with pytest.raises(RpcUnavailable):
            await asked
    assert site.ledger.calls["finalized"] == 3
    await recorded.clock.advance(HOPELESS_S)
    site.ledger.unhold()
    assert (await recorded.at(BUSY)).block_hash == HASH


async def test_a_ledger_that_says_that_it_has_nothing_is_not_asked_twice() -> None:
    site = Site()
    await site.after()
    recorded = site.chain()
    recorded.upstream.fail("fetch", RpcUnavailable("every node is gone"), times=None)
    await recorded.chain.restore()
    site.ledger.calls.clear()
    with pytest.raises(RpcUnavailable):
        await recorded.at(BUSY - 1)
    assert site.ledger.calls == {"hash_at": 1}


async def test_who_was_not_heard_asks_again_although_another_found_the_ledger_well_meanwhile() -> None:
    site = Site()
    recorded, holding = await slow_ledger(site, "hash_at")
    failing = recorded.upstream.hold("fetch")
    first = asyncio.create_task(recorded.at(BUSY))
    await holding.reached()
    await recorded.clock.advance(READ_LIMIT_S)
    await failing.reached()
    site.ledger.unhold()
    assert recorded.chain.keeping is not None
    assert await recorded.chain.keeping.can_be_had()
    failing.release()
    assert (await first).block_hash == HASH


async def test_with_patience_the_answer_itself_may_take_its_time() -> None:
    site = Site()
    recorded, holding = await slow_ledger(site, "hash_at")
    asked = asyncio.create_task(recorded.at(BUSY))
    await holding.reached()
    again = site.ledger.hold("hash_at")
    await recorded.clock.advance(READ_LIMIT_S)
    await again.reached()
    await recorded.clock.advance(PATIENCE_S / 2)
    assert not asked.done()
    again.release()
    assert (await asked).block_hash == HASH


async def test_many_who_ask_after_a_restart_read_the_store_once() -> None:
    site = Site()
    await site.after()
    recorded = site.chain()
    await recorded.chain.restore()
    blocks = await asyncio.gather(*(recorded.at(BUSY) for _ in range(32)))
    assert {block.block_hash for block in blocks} == {HASH}
    assert site.store.reads == 1
    assert recorded.calls() == {}


async def test_a_kept_block_counts_as_cached() -> None:
    site = Site()
    await site.after()
    recorded = site.chain()
    await recorded.chain.restore()
    found = await recorded.chain.transaction(TX)
    assert found.cached


async def test_a_block_kept_before_it_was_final_is_served_once_a_node_says_that_it_still_stands() -> None:
    site = Site()
    await site.after(finalized=BUSY - 1)
    recorded = site.chain()
    await recorded.see(finalized=BUSY - 1)
    recorded.calls()
    assert (await by_tx(recorded)).block_hash == HASH
    assert recorded.calls().get("fetch", 0) == 0


async def test_a_kept_block_that_is_no_such_block_is_dropped_and_fetched_again() -> None:
    site = Site()
    await site.after()
    site.store.blocks[HASH] = b"something else"
    recorded = site.chain()
    await recorded.chain.restore()
    assert (await recorded.at(BUSY)).block_hash == HASH
    assert recorded.calls()["fetch"] == 1
    assert recorded.chain.keeping is not None
    await recorded.chain.keeping.flush()
    assert site.store.blocks[HASH] != b"something else"


async def test_a_lost_ledger_costs_one_question_and_then_none_for_a_moment() -> None:
    site = Site()
    site.ledger.lost = True
    recorded = site.chain()
    await recorded.chain.restore()
    await recorded.see(finalized=LAST)
    asked = site.ledger.calls.total()
    for height in (BUSY, BUSY - 1, BUSY - 2):
        await recorded.at(height)
    assert site.ledger.calls.total() == asked  # silent since the first failure
    site.ledger.lost = False
    recorded.clock.move(60)
    await recorded.at(BUSY - 3)
    assert site.ledger.calls["hash_at"] == 1


async def test_what_could_not_be_noted_is_noted_when_the_ledger_is_back() -> None:
    site = Site()
    recorded = site.chain()
    await recorded.see(finalized=LAST)
    await recorded.at(BUSY)
    site.ledger.lost = True
    keeping = recorded.chain.keeping
    assert keeping is not None
    for pause_s in (1.0, 2.0, 4.0):
        await keeping.flush()
        calls = site.ledger.calls.total()
        await keeping.flush()
        assert site.ledger.calls.total() == calls, "it is left alone for a moment"
        assert list(site.store.blocks) == [HASH], "the store does not wait for it"
        recorded.clock.move(pause_s)
    site.ledger.lost = False
    await keeping.flush()
    assert site.ledger.blocks[BUSY].block_hash == HASH
    assert site.ledger.final == LAST


async def test_what_waits_is_bounded_while_nothing_can_be_kept() -> None:
    site = Site()
    recorded = site.chain()
    await recorded.see(finalized=LAST)
    block = await recorded.at(BUSY)
    keeping = recorded.chain.keeping
    assert keeping is not None
    for _ in range(2000):
        keeping.landed(block, None)
    assert keeping.waiting == 512
    assert keeping.dropped == 2000 + 1 - 512


async def test_warm_answers_ask_neither_ledger_nor_store() -> None:
    site = Site()
    recorded = site.chain()
    await recorded.see(finalized=LAST)
    await recorded.at(BUSY)
    calls, reads = site.ledger.calls.total(), site.store.reads
    for _ in range(5):
        await recorded.at(BUSY)
        await by_tx(recorded)
        await recorded.by_hash(HASH)
    assert (site.ledger.calls.total(), site.store.reads) == (calls, reads)


async def test_noted_once_however_often_it_is_seen() -> None:
    site = Site()
    await site.after()
    recorded = site.chain()
    await recorded.see(finalized=LAST)
    for _ in range(3):
        await recorded.at(BUSY)
        await recorded.by_hash(HASH)
    assert recorded.chain.keeping is not None
    noted = site.ledger.calls["note"]
    await recorded.chain.keeping.flush()
    assert site.ledger.calls["note"] <= noted + 1


@pytest.mark.parametrize("interval", [10])
async def test_roots_come_from_the_ledger_after_a_restart(interval: int) -> None:
    site = Site()
    first = BUSY - 3
    anchors = SelfAttested(7, first - 20, interval, 10)
    recorded = site.chain(first=first - 20, anchors=anchors)
    await recorded.see(finalized=LAST)
    await anchors.advance(LAST, recorded.chain._root_ahead)
    await recorded.chain.continuity(BUSY, BUSY)
    assert recorded.chain.keeping is not None
    await recorded.chain.keeping.flush()
    again = site.chain(first=first - 20, anchors=anchors)
    await again.chain.restore()
    await again.see(finalized=LAST)
    assert again.chain.keeping is not None
    await again.chain.keeping.flush()
    again.calls()
    assert await again.chain.continuity(BUSY, BUSY) == await recorded.chain.continuity(BUSY, BUSY)
    assert again.calls() == {}
    assert site.ledger.calls["roots"] == 1


async def test_roots_that_lead_to_another_digest_are_not_believed_twice() -> None:
    site = Site()
    anchors = SelfAttested(7, BUSY - 20, 10, 10)
    recorded = site.chain(first=BUSY - 20, anchors=anchors)
    await recorded.see(finalized=LAST)
    await anchors.advance(LAST, recorded.chain._root_ahead)
    right = await recorded.chain.continuity(BUSY, BUSY)
    recorded.chain.roots.note(BUSY, b"\x11" * 32)
    assert await recorded.chain.continuity(BUSY, BUSY) == right


async def test_a_wrong_root_beside_one_that_is_missing_is_not_believed_twice_either() -> None:
    recorded, right = await _anchored()
    recorded.chain.roots.note(BUSY, b"\x11" * 32)
    recorded.chain.roots.forget([BUSY - 1])
    assert await recorded.chain.continuity(BUSY, BUSY) == right


async def test_roots_that_are_forgotten_while_others_are_gathered_are_gathered_too() -> None:
    recorded, right = await _anchored()
    recorded.chain.roots.forget([BUSY])
    recorded.chain.cache.drop(HASH)
    fetching = recorded.upstream.hold("fetch")
    asked = asyncio.create_task(recorded.chain.continuity(BUSY, BUSY))
    await fetching.reached()
    recorded.chain.roots.forget_from(0)
    fetching.release()
    assert await asked == right


async def _anchored() -> tuple[RecordedChain, Continuity]:
    """A chain without a ledger, with anchors on both sides of the busy block, and the right proof."""
    anchors = SelfAttested(7, BUSY - 20, 10, 10)
    recorded = RecordedChain(first=BUSY - 20, anchors=anchors)
    await recorded.see(finalized=LAST)
    await anchors.advance(LAST, recorded.chain._root_ahead)
    return recorded, await recorded.chain.continuity(BUSY, BUSY)


# --- another chain under the same key -------------------------------------------------------------------------------


async def test_a_ledger_of_another_chain_is_neither_believed_nor_changed() -> None:
    site = Site()
    site.ledger.final = LAST
    site.ledger.blocks = {
        height: Noted(height, height.to_bytes(32, "big"), b"\x22" * 32) for height in range(BUSY - 3, BUSY + 3)
    }
    before = dict(site.ledger.blocks)
    recorded = site.chain()
    await recorded.chain.restore()
    assert recorded.chain.head.heads.finalized == LAST
    await recorded.see(LAST, finalized=BUSY - 5)
    keeping = recorded.chain.keeping
    assert keeping is not None
    await keeping.flush()
    assert keeping.kinship is Kinship.FOREIGN
    await recorded.see(LAST, finalized=BUSY - 5)
    assert recorded.chain.head.heads.finalized == BUSY - 5
    assert (await recorded.at(BUSY)).block_hash == HASH
    assert (await recorded.at(BUSY - 5)).block_hash == hash_of(sepolia(BUSY - 5))
    recorded.chain._on_reorg(BUSY - 5)
    await keeping.forget_from(0)
    await keeping.forget_below(LAST)
    await keeping.flush()
    assert site.ledger.blocks == before
    assert "the ledger remembers another chain under this key" in recorded.chain.reasons


async def test_a_ledger_that_one_wrong_answer_disowned_is_believed_again() -> None:
    site = Site()
    await site.after()
    recorded = site.chain()
    await recorded.chain.restore()
    honest = recorded.upstream.canonical
    recorded.upstream.canonical = {**honest, BUSY: name_of(branch(BUSY, [sepolia(BUSY - 1)])[0])}
    await recorded.see(LAST, finalized=LAST)
    keeping = recorded.chain.keeping
    assert keeping is not None
    await keeping.flush()
    assert keeping.kinship is Kinship.FOREIGN
    recorded.upstream.canonical = honest
    await recorded.see(LAST, finalized=LAST)
    await keeping.flush()
    assert keeping.kinship is Kinship.FOREIGN, "not asked again and again"
    recorded.clock.move(FOREIGN_AGAIN_S)
    await keeping.flush()
    assert keeping.kinship is Kinship.SAME
    await recorded.see(LAST, finalized=LAST)
    recorded.calls()
    assert (await recorded.at(BUSY)).block_hash == HASH
    assert recorded.calls() == {}
    assert recorded.chain.reasons == ()


async def test_a_ledger_that_is_of_another_chain_once_more_is_emptied_and_used_again() -> None:
    site = Site()
    site.ledger.blocks = {BUSY: Noted(BUSY, bytes(32), b"\x22" * 32)}
    recorded = site.chain()
    await recorded.see(LAST, finalized=LAST)
    keeping = recorded.chain.keeping
    assert keeping is not None
    for _ in range(3):
        await keeping.flush()
        assert keeping.kinship is Kinship.FOREIGN
        recorded.clock.move(FOREIGN_AGAIN_S / 4)
    assert (await recorded.at(BUSY)).block_hash == HASH
    assert site.ledger.blocks.keys() == {BUSY}
    recorded.clock.move(FOREIGN_AGAIN_S)
    await recorded.see(LAST, finalized=LAST)
    await keeping.flush()
    assert (keeping.kinship, site.ledger.blocks) == (Kinship.SAME, {})
    await recorded.see(LAST, finalized=LAST)
    await by_tx(recorded)
    await keeping.flush()
    assert site.ledger.blocks[BUSY].block_hash == HASH
    assert recorded.chain.reasons == ()


def other_chain(recorded: RecordedChain) -> None:
    """The nodes have other blocks at every height, down to the genesis."""
    blocks = [sepolia(height) for height in range(FIRST + 1, LAST + 1)]
    recorded.reorg(branch(FIRST + 1, blocks))
    recorded.upstream.canonical[FIRST] = BlockName(FIRST, b"\x66" * 32, bytes(32), 0)
    recorded.upstream.canonical[0] = BlockName(0, b"\x77" * 32, bytes(32), 0)


async def with_a_genesis(site: Site) -> RecordedChain:
    recorded = site.chain()
    recorded.upstream.canonical[0] = BlockName(0, b"\x11" * 32, bytes(32), 0)
    await recorded.see(LAST, finalized=LAST)
    return recorded


async def test_an_address_that_leads_to_another_chain_for_a_while_leaves_nothing_of_it_nor_costs_the_ledger() -> None:
    site = Site()
    await site.after()
    recorded = await with_a_genesis(site)
    keeping, ours = recorded.chain.keeping, dict(recorded.upstream.canonical)
    positions, kept = dict(recorded.upstream.positions), dict(site.ledger.blocks)
    assert keeping is not None
    await keeping.flush()
    assert (await recorded.at(BUSY)).block_hash == HASH
    other_chain(recorded)
    await recorded.see(LAST, finalized=LAST)
    assert keeping.kinship is Kinship.FOREIGN
    for height in (BUSY, BUSY - 1):
        assert (await recorded.at(height)).block_hash == recorded.upstream.canonical[height].block_hash
    recorded.clock.move(15)
    await keeping.flush()
    assert site.ledger.blocks == kept, "nothing of the other chain is noted, and nothing is forgotten"
    recorded.upstream.canonical, recorded.upstream.positions = ours, positions
    await recorded.see(LAST, finalized=LAST)
    for height in (BUSY, BUSY - 1):
        found = await recorded.chain.block(BlockRef(height=height))
        assert (found.block.block_hash, found.finality.level) == (hash_of(sepolia(height)), Level.FINALIZED)
    assert (await by_tx(recorded)).block_hash == HASH
    await keeping.flush()
    assert keeping.kinship is Kinship.SAME
    again = site.chain()
    await again.chain.restore()
    await again.see(LAST, finalized=LAST)
    assert (await again.at(BUSY - 1)).block_hash == hash_of(sepolia(BUSY - 1))


async def test_what_was_noted_of_a_chain_that_was_there_for_a_while_is_not_believed_after_a_restart() -> None:
    """Killed while the address led to another chain, of which one block was noted: the ledger holds blocks of two."""
    site = Site()
    await site.after()
    dead = branch(BUSY - 1, [sepolia(BUSY)])[0]
    site.ledger.blocks[BUSY - 1] = Noted(BUSY - 1, hash_of(dead), tx_hashes(sepolia(BUSY - 1))[0])
    recorded = site.chain()
    await recorded.chain.restore()
    await recorded.see(LAST, finalized=LAST)
    assert (await recorded.at(BUSY)).block_hash == HASH
    assert (await recorded.at(BUSY - 1)).block_hash == hash_of(sepolia(BUSY - 1))
    keeping = recorded.chain.keeping
    assert keeping is not None
    assert keeping.kinship is Kinship.SAME
    await keeping.flush()
    assert site.ledger.blocks[BUSY - 1].block_hash == hash_of(sepolia(BUSY - 1)), "the right one took its place"


async def test_a_chain_that_began_again_has_the_ledger_for_itself_after_a_while() -> None:
    site = Site()
    await site.after()
    recorded = await with_a_genesis(site)
    keeping = recorded.chain.keeping
    assert keeping is not None
    await keeping.flush()
    other_chain(recorded)
    await recorded.see(LAST, finalized=LAST)
    for _ in range(4):
        recorded.clock.move(FOREIGN_AGAIN_S / 2)
        await recorded.see(LAST, finalized=LAST)
        await keeping.flush()
    assert (keeping.kinship, recorded.chain.reasons) == (Kinship.SAME, ())
    assert HASH not in {block.block_hash for block in site.ledger.blocks.values()}
    await recorded.at(BUSY)
    await keeping.flush()
    assert site.ledger.blocks[BUSY].block_hash == recorded.upstream.canonical[BUSY].block_hash


async def test_what_the_depth_said_too_early_is_taken_out_of_the_ledger_too() -> None:
    site = Site()
    recorded = site.chain(finality=FinalityRule("tag", 1))
    recorded.upstream.tagless = True
    await recorded.see(BUSY + 2)
    keeping = recorded.chain.keeping
    assert keeping is not None
    await recorded.at(BUSY)
    await keeping.flush()
    assert (site.ledger.final, set(site.ledger.blocks)) == (BUSY + 1, {BUSY})
    recorded.upstream.tagless = False
    await recorded.see(BUSY + 2, finalized=BUSY - 2)
    found = await recorded.chain.block(BlockRef(height=BUSY))
    assert found.finality.level is Level.LATEST
    assert recorded.chain.peek_block(BlockRef(height=BUSY)) is None
    await keeping.flush()
    assert (site.ledger.final, set(site.ledger.blocks)) == (BUSY - 2, set())


async def test_while_it_is_in_doubt_which_chain_it_is_nothing_known_is_served_and_no_absence_is_told() -> None:
    site = Site()
    recorded = site.chain()
    await recorded.see(LAST, finalized=LAST)
    assert (await by_tx(recorded)).block_hash == HASH
    for height in [height for height in recorded.upstream.canonical if height > FIRST + 2]:
        del recorded.upstream.canonical[height]
    positions, recorded.upstream.positions = recorded.upstream.positions, {}
    await recorded.see(FIRST + 2, finalized=FIRST)
    assert IN_DOUBT in recorded.chain.reasons
    assert recorded.chain.peek_block(BlockRef(height=BUSY)) is None
    with pytest.raises(RpcUnavailable):
        await by_tx(recorded)
    for ask in (lambda: recorded.at(BUSY), lambda: recorded.by_hash(HASH)):
        with pytest.raises(ProofError) as refused:
            await ask()
        assert refused.value.retriable
    for height in range(FIRST + 3, LAST + 1):
        recorded.put(sepolia(height))
    recorded.upstream.positions = positions
    await recorded.see(LAST, finalized=LAST)
    assert (await by_tx(recorded)).block_hash == HASH
    assert recorded.chain.reasons == ()


async def test_a_ledger_that_shares_no_height_with_the_nodes_yet_waits() -> None:
    site = Site()
    await site.after()
    recorded = site.chain(last=BUSY - 1)
    await recorded.see(BUSY - 1, finalized=BUSY - 5)
    keeping = recorded.chain.keeping
    assert keeping is not None
    await keeping.flush()
    assert keeping.kinship is Kinship.UNKNOWN
    assert any("no block that the upstreams have" in reason for reason in recorded.chain.reasons)
    assert await keeping.hash_at(BUSY) is None
    recorded.put(sepolia(BUSY))
    await recorded.see(BUSY, finalized=BUSY)
    recorded.clock.move(60)
    await keeping.flush()
    assert keeping.kinship is Kinship.SAME
    assert not any("no block that the upstreams have" in reason for reason in recorded.chain.reasons)
    assert await keeping.hash_at(BUSY) == HASH


@pytest.mark.parametrize("error", [RpcUnavailable("down"), UpstreamBudgetExhausted("spent")])
async def test_a_ledger_is_believed_while_nobody_can_be_asked_whose_it_is(error: ProofError) -> None:
    site = Site()
    await site.after()
    recorded = site.chain()
    await recorded.chain.restore()
    await recorded.see(LAST, finalized=LAST)
    for call in ("fetch", "name_of", "position"):
        recorded.upstream.fail(call, error, times=None)
    keeping = recorded.chain.keeping
    assert keeping is not None
    await keeping.flush()
    assert (await recorded.at(BUSY)).block_hash == HASH
    assert (await by_tx(recorded)).block_hash == HASH
    assert keeping.kinship is Kinship.UNSEEN
    assert {each.purpose for each in recorded.upstream.errands["name_of"]} == {Purpose.HEAD}
    asked = recorded.upstream.hits["name_of"]
    assert await keeping.hash_at(BUSY) == HASH
    assert recorded.upstream.hits["name_of"] == asked, "nobody is asked again at once"
    recorded.upstream.hold("name_of")
    recorded.clock.move(60)
    reading = asyncio.create_task(keeping.hash_at(BUSY))
    await recorded.clock.advance(READ_LIMIT_S)
    assert await reading == HASH, "nor is anybody waited for"
    recorded.upstream.unhold()
    noted = site.ledger.calls["note"]
    keeping.noted(Noted(BUSY - 1, hash_of(sepolia(BUSY - 1))))
    await keeping.flush()
    assert site.ledger.calls["note"] == noted, "nothing is written meanwhile"
    recorded.upstream.heal()
    await keeping.flush()
    assert keeping.kinship is Kinship.SAME


async def test_a_kept_block_of_another_chain_id_is_not_served() -> None:
    site = Site()
    await site.after()
    recorded = site.chain(chain_id=5)
    await recorded.chain.restore()
    assert recorded.chain.keeping is not None
    assert await recorded.chain.keeping.block(HASH) is None
    assert HASH in site.store.blocks, "it may be what another chain needs"


async def test_a_block_kept_without_leaves_is_fetched_again_once_the_chain_has_anchors() -> None:
    site = Site()
    await site.after()
    recorded = site.chain(anchors=SelfAttested(7, BUSY - 20, 10, 10))
    await recorded.chain.restore()
    assert recorded.chain.keeping is not None
    assert await recorded.chain.keeping.block(HASH) is None
    await recorded.see(finalized=LAST)
    assert (await recorded.at(BUSY)).usc_root
    assert recorded.calls()["fetch"] == 1
    await recorded.chain.keeping.flush()
    again = site.chain(anchors=SelfAttested(7, BUSY - 20, 10, 10))
    await again.chain.restore()
    assert (await again.at(BUSY)).usc_root
    assert again.calls() == {}


async def test_a_ledger_of_another_chain_is_found_out_before_anything_of_it_is_believed() -> None:
    site = Site()
    other = site.chain()
    fork = branch(BUSY, [sepolia(BUSY), sepolia(BUSY - 2)])
    other.reorg(fork)
    await other.see(BUSY + 1, finalized=BUSY)
    await other.at(BUSY)
    assert other.chain.keeping is not None
    await other.chain.keeping.flush()
    assert site.ledger.blocks[BUSY].block_hash == hash_of(fork[0])
    for ask in (lambda recorded: recorded.at(BUSY), by_tx):
        recorded = site.chain()
        await recorded.chain.restore()
        await recorded.see(LAST, finalized=BUSY)
        assert (await ask(recorded)).block_hash == HASH
        assert recorded.chain.keeping is not None
        assert recorded.chain.keeping.kinship is Kinship.FOREIGN


async def test_a_block_of_another_chain_that_is_noted_later_is_not_believed() -> None:
    """The ledger was empty when it was looked at, or knew only what both chains have: the other chain may be a fork."""
    for shared in ({}, {BUSY - 3: Noted(BUSY - 3, hash_of(sepolia(BUSY - 3)))}):
        for ask in (lambda recorded: recorded.at(BUSY), by_tx):
            site = Site()
            site.ledger.blocks = dict(shared)
            recorded = site.chain()
            await recorded.see(LAST, finalized=BUSY)
            keeping = recorded.chain.keeping
            assert keeping is not None
            await keeping.flush()
            assert keeping.kinship is Kinship.SAME
            other = branch(BUSY, [sepolia(BUSY), sepolia(BUSY - 2)])[0]
            await site.ledger.note([Noted(BUSY, hash_of(other), TX)])
            site.store.blocks[hash_of(other)] = b"whatever"
            assert (await ask(recorded)).block_hash == HASH
            assert keeping.kinship is Kinship.FOREIGN
            await keeping.flush()
            assert site.ledger.blocks[BUSY].block_hash == hash_of(other), "it is left to whose it is"


async def test_what_others_noted_is_compared_once_at_each_height() -> None:
    """A ledger may hold blocks of two chains: one that both have says nothing of those below."""
    site = Site()
    recorded, keeping = await site.in_use()
    await site.ledger.note([Noted(height, hash_of(sepolia(height))) for height in range(BUSY - 3, BUSY + 1)])
    asked = recorded.upstream.hits["name_of"]
    told = await asyncio.gather(*(keeping.hash_at(BUSY) for _ in range(9)))
    assert told == [HASH] * 9
    assert recorded.upstream.hits["name_of"] == asked + 1
    for _ in range(3):
        assert await keeping.hash_at(BUSY - 3) == hash_of(sepolia(BUSY - 3))
    assert recorded.upstream.hits["name_of"] == asked + 2
    await site.ledger.note([Noted(BUSY + 1, b"\x33" * 32)])
    recorded.upstream.fail("name_of", RpcUnavailable("down"))
    assert await keeping.hash_at(BUSY + 1) == b"\x33" * 32, "nobody can be asked"
    recorded.clock.move(60)
    assert await keeping.hash_at(BUSY + 1) is None


# --- a reorg of what was final --------------------------------------------------------------------------------------


async def test_what_a_deep_reorg_replaced_is_not_believed_although_the_ledger_still_says_so() -> None:
    site = Site()
    await site.after(finalized=BUSY)
    recorded = site.chain()
    await recorded.see(BUSY + 1, finalized=BUSY)
    assert (await recorded.at(BUSY)).block_hash == HASH
    keeping = recorded.chain.keeping
    assert keeping is not None
    fork = branch(BUSY, [sepolia(BUSY - 1), sepolia(BUSY - 2)])
    recorded.reorg(fork)
    await recorded.see(BUSY + 1, finalized=BUSY)
    assert site.ledger.blocks[BUSY].block_hash == HASH, "it has not forgotten yet"
    assert (await recorded.at(BUSY)).block_hash == hash_of(fork[0])
    assert await keeping.position(TX) is None
    await keeping.forget_from(BUSY)
    await site.ledger.note([Noted(BUSY, HASH, TX)])  # by another process, which has not seen the reorg
    recorded.chain.cache.unpin_from(0)
    assert (await recorded.at(BUSY)).block_hash == hash_of(fork[0])


async def test_the_ledger_forgets_what_a_deep_reorg_replaced_although_nothing_is_filled_ahead() -> None:
    site = Site()
    await site.after(finalized=BUSY)
    recorded = site.chain()
    await recorded.see(BUSY + 1, finalized=BUSY)
    assert (await recorded.at(BUSY)).block_hash == HASH
    for height in (BUSY - 1, BUSY - 2):
        assert (await recorded.at(height)).block_hash == hash_of(sepolia(height))
    assert recorded.chain.keeping is not None
    await recorded.chain.keeping.flush()
    fork = branch(BUSY - 1, [sepolia(BUSY - 3), sepolia(BUSY - 4), sepolia(BUSY - 5)])
    recorded.reorg(fork)
    await recorded.see(BUSY + 1, finalized=BUSY)
    assert (await recorded.at(BUSY)).block_hash == hash_of(fork[1])
    keeping = recorded.chain.keeping
    assert keeping is not None
    await keeping.flush()
    noted = {height: block.block_hash for height, block in site.ledger.blocks.items()}
    assert noted == {BUSY - 2: hash_of(sepolia(BUSY - 2)), BUSY: hash_of(fork[1])}


async def test_what_is_read_while_a_deep_reorg_comes_is_not_believed() -> None:
    site = Site()
    await site.after(finalized=BUSY)
    recorded = site.chain()
    await recorded.see(finalized=BUSY)
    keeping = recorded.chain.keeping
    assert keeping is not None
    await keeping.flush()
    read = site.ledger.hold("hash_at")
    asked = asyncio.create_task(keeping.hash_at(BUSY))
    await read.reached()
    recorded.chain._on_reorg(BUSY)
    read.release()
    assert await asked is None


# --- the end of the process -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["note", "note_finalized", "done"])
async def test_what_is_being_noted_when_the_process_ends_is_noted_in_the_end(call: str) -> None:
    site = Site()
    recorded = site.chain()
    await recorded.see(finalized=LAST)
    await recorded.at(BUSY)
    keeping = recorded.chain.keeping
    assert keeping is not None
    keeping._kin.kinship = Kinship.UNSEEN
    writing = site.ledger.hold(call)
    running = asyncio.create_task(keeping.run())
    await writing.reached()
    running.cancel()
    await asyncio.wait({running})
    site.ledger.unhold()
    await keeping.aclose()
    assert site.ledger.blocks[BUSY].block_hash == HASH
    assert site.ledger.final == LAST
    assert list(site.store.blocks) == [HASH]


async def test_a_ledger_that_nobody_asks_anything_is_known_to_be_gone_and_back() -> None:
    site = Site()
    recorded, keeping = await site.in_use()
    running = asyncio.create_task(keeping.run())
    try:
        for gone in (True, False):
            site.ledger.lost = gone
            await recorded.clock.advance(LOOK_EVERY_S)
            assert keeping.ledger_up is not gone
        before = site.ledger.calls.total()
        await recorded.clock.advance(LOOK_EVERY_S / 2)
        assert site.ledger.calls.total() == before, "looked at, and not stared at"
    finally:
        running.cancel()
        await asyncio.wait({running})
