"""What a chain knows without asking anybody: enough to choose a lane by, and never more than a later answer would bear out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.anchors.self_attested import SelfAttested
from app.core.blocks import BlockRef
from app.core.errors import AttestationsMissing, BlockBeforeOrAtGenesis, BlockNotReady, ProofError
from tests.chain.recorded_chain import BUSY, FIRST, LAST, RecordedChain, hash_of, sepolia, tx_hashes

HASH = hash_of(sepolia(BUSY))
TX = tx_hashes(sepolia(BUSY))[1]

PEEKS: list[Callable[[RecordedChain], object]] = [
    lambda recorded: recorded.chain.peek_block(BlockRef(height=BUSY)),
    lambda recorded: recorded.chain.peek_block(BlockRef(block_hash=HASH)),
    lambda recorded: recorded.chain.peek_transaction(TX),
]


async def filled(finalized: int = LAST) -> RecordedChain:
    recorded = RecordedChain()
    await recorded.see(finalized=finalized)
    await recorded.at(BUSY)
    recorded.calls()
    return recorded


@pytest.mark.parametrize("peek", PEEKS)
async def test_a_final_block_at_hand_is_known_by_every_name(peek: Callable[[RecordedChain], object]) -> None:
    recorded = await filled()
    block = peek(recorded)
    assert block is not None
    assert block is recorded.chain.cache.peek(HASH)


@pytest.mark.parametrize("peek", PEEKS)
async def test_peeking_asks_nobody_and_counts_nothing(peek: Callable[[RecordedChain], object]) -> None:
    recorded = await filled()
    cache = recorded.chain.cache
    before = (cache.hits, cache.misses)
    for _ in range(10):
        peek(recorded)
    assert (cache.hits, cache.misses) == before
    assert recorded.calls() == {}


@pytest.mark.parametrize("peek", PEEKS)
async def test_a_block_that_may_be_replaced_is_not_known(peek: Callable[[RecordedChain], object]) -> None:
    assert peek(await filled(finalized=BUSY - 1)) is None


@pytest.mark.parametrize("peek", PEEKS)
async def test_a_block_that_was_let_go_is_not_known(peek: Callable[[RecordedChain], object]) -> None:
    recorded = await filled()
    recorded.chain.cache.drop(HASH)
    assert peek(recorded) is None


@pytest.mark.parametrize("peek", PEEKS)
async def test_nothing_is_known_of_what_was_never_asked_for(peek: Callable[[RecordedChain], object]) -> None:
    recorded = RecordedChain()
    await recorded.see(finalized=LAST)
    assert peek(recorded) is None


async def test_a_block_of_a_fork_is_not_known_although_its_height_is_final() -> None:
    recorded = await filled()
    recorded.chain.cache.unpin(BUSY)
    recorded.chain.cache.pin(BUSY, b"\1" * 32, final=True)
    assert [peek(recorded) for peek in PEEKS] == [None, None, None]


# --- anchors ----------------------------------------------------------------------------------------------------------


async def anchored() -> RecordedChain:
    """Anchored every ten heights up to FIRST + 50, whose roots are known."""
    anchors = SelfAttested(7, FIRST, 10, 10)
    recorded = RecordedChain(anchors=anchors)
    await recorded.see(finalized=LAST)

    async def root_at(height: int) -> bytes:
        return (await recorded.at(height)).usc_root

    await anchors.advance(FIRST + 55, root_at)
    recorded.calls()
    return recorded


@pytest.mark.parametrize(
    ("height", "refusal"),
    [(FIRST, BlockBeforeOrAtGenesis), (FIRST - 1, BlockBeforeOrAtGenesis), (FIRST + 51, BlockNotReady)],
)
async def test_what_can_have_no_anchor_is_known_to_be_refused(height: int, refusal: type[ProofError]) -> None:
    recorded = await anchored()
    with pytest.raises(refusal):
        recorded.chain.require_anchored(height, height)
    assert recorded.chain.peek_continuity(height, height)
    assert recorded.calls() == {}


async def test_a_continuity_proof_is_known_while_all_its_roots_are() -> None:
    recorded = await anchored()
    assert recorded.chain.peek_continuity(FIRST + 1, FIRST + 50)
    recorded.chain.roots.forget([FIRST + 7])
    assert not recorded.chain.peek_continuity(FIRST + 1, FIRST + 50)


async def test_without_anchors_every_refusal_is_known() -> None:
    recorded = RecordedChain()
    with pytest.raises(AttestationsMissing):
        recorded.chain.require_anchored(BUSY, BUSY)
    assert recorded.chain.peek_continuity(BUSY, BUSY)
