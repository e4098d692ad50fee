"""Continuity proofs where blocks and anchors do not fit each other, or lie too far apart."""

from __future__ import annotations

import pytest

from app.anchors.self_attested import SelfAttested
from app.core.anchor_rows import AnchorRow
from app.core.continuity import Bracket, SortedMapping, digest
from app.core.errors import AttestationsMissing, InconsistentSource
from app.store.memory_anchors import MemoryAnchorRows
from tests.api.long_bracket import GENESIS, UPPER, GivenAnchors, cold_chain, roots
from tests.chain.recorded_chain import BUSY, LAST, RecordedChain


async def test_blocks_that_do_not_meet_their_anchors_are_no_fault_of_ours_and_may_be_asked_for_again() -> None:
    recorded = await cold_chain(roots())
    anchors = recorded.chain.anchors
    assert isinstance(anchors, GivenAnchors)
    anchors._anchors = SortedMapping({GENESIS: bytes(32), UPPER: b"\x11" * 32})
    with pytest.raises(InconsistentSource) as refused:
        await recorded.chain.continuity(GENESIS + 1, GENESIS + 1)
    assert refused.value.retriable
    assert f"{GENESIS}" in refused.value.message


@pytest.mark.parametrize("upper", [GENESIS + 10_001, GENESIS + 10**9, 2**63 - 1, 2**64 - 1])
async def test_anchors_that_lie_too_far_apart_are_refused_before_anything_is_counted(upper: int) -> None:
    recorded = await cold_chain()
    anchors = recorded.chain.anchors
    assert isinstance(anchors, GivenAnchors)
    anchors._anchors = SortedMapping({GENESIS: bytes(32), upper: b"\x11" * 32})
    anchors.attested_height = upper
    assert recorded.chain.peek_continuity(GENESIS + 1, GENESIS + 1)
    recorded.calls()
    with pytest.raises(AttestationsMissing) as refused:
        await recorded.chain.continuity(GENESIS + 1, GENESIS + 1)
    assert f"lie {upper - GENESIS} blocks apart" in refused.value.message
    assert recorded.calls() == {}


async def test_anchors_of_our_own_making_that_the_blocks_do_not_meet_are_made_again() -> None:
    rows = MemoryAnchorRows()
    await rows.claim_genesis(BUSY - 20)
    await rows.add([AnchorRow(BUSY - 20, b"\x01" * 32, "genesis"), AnchorRow(BUSY + 10, b"\x02" * 32, "attestation")])
    anchors = await SelfAttested.opened(7, BUSY - 20, 10, 10, rows)
    recorded = RecordedChain(first=BUSY - 20, anchors=anchors)
    await recorded.see(finalized=LAST)
    with pytest.raises(InconsistentSource):
        await recorded.chain.continuity(BUSY, BUSY)
    anchors.overtake(0)  # as when the head finds another chain
    await anchors.advance(LAST, recorded.chain._root_ahead)
    assert (await recorded.chain.continuity(BUSY, BUSY)).upper_height >= BUSY
    told = {row.height: row.digest for row in await rows.load()}
    assert b"\x01" * 32 not in told.values()
    assert b"\x02" * 32 not in told.values()


async def test_a_chain_that_begins_again_takes_its_genesis_along() -> None:
    """Of anchors without a configured genesis, which begin at the first height that was ever final."""
    rows, told = MemoryAnchorRows(), {height: height.to_bytes(32, "big") for height in range(100)}

    async def root_at(height: int) -> bytes:
        return told[height]

    anchors = await SelfAttested.opened(7, None, 5, 10, rows)
    await anchors.advance(50, root_at)
    await anchors.advance(70, root_at)
    assert (anchors.genesis, anchors.attested_height) == (50, 70)
    anchors.overtake(0)
    assert anchors.attested_height is None
    await anchors.advance(3, root_at)
    await anchors.advance(9, root_at)
    assert (anchors.genesis, anchors.attested_height) == (3, 8)
    assert [row.height for row in await rows.load()] == [3, 8]
    assert (await anchors.find(4, 4)).lower_digest == digest(3, told[3], None)


async def test_an_overtaken_part_is_made_again_and_what_is_below_stands() -> None:
    rows, forks = MemoryAnchorRows(), dict.fromkeys(range(100), 0)

    async def root_at(height: int) -> bytes:
        return bytes([forks[height]]) + height.to_bytes(31, "big")

    anchors = await SelfAttested.opened(7, 0, 5, 3, rows)
    await anchors.advance(40, root_at)
    before = await anchors.find(28, 28)
    for height in range(29, 100):
        forks[height] = 1
    anchors.overtake(29)
    assert anchors.holds(await anchors.find(14, 14))
    assert not anchors.holds(before)
    await anchors.advance(40, root_at)
    again = await SelfAttested.opened(7, 0, 5, 3, MemoryAnchorRows())
    await again.advance(40, root_at)
    for height in range(1, 40):
        ours, fresh = await anchors.find(height, height), await again.find(height, height)
        assert isinstance(ours, Bracket)
        assert ours.upper_digest == fresh.upper_digest
