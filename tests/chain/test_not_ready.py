"""A height that no anchor covers yet: who asks for it is told when to ask again, by the pace of the anchors of late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from app.anchors.self_attested import SelfAttested
from app.core.errors import BlockNotReady
from tests.chain.recorded_chain import FIRST, RecordedChain


async def attesting(recorded: RecordedChain, anchors: SelfAttested, heights: range, every_s: float) -> None:
    """The chain becomes final height by height, and whatever can be anchored is."""
    for height in heights:
        await recorded.see(height, finalized=height)
        await anchors.advance(height, root_of(recorded))
        recorded.clock.move(every_s)


def root_of(recorded: RecordedChain) -> Callable[[int], Awaitable[bytes]]:
    async def root_at(height: int) -> bytes:
        return (await recorded.at(height)).usc_root

    return root_at


def wait_s(recorded: RecordedChain, height: int) -> float | None:
    with pytest.raises(BlockNotReady) as caught:
        recorded.chain.require_anchored(height, height)
    assert caught.value.extra == {"block_number": height, "last_attested_block": recorded.attested()}
    return caught.value.retry_after_s


async def test_B47_the_wait_for_an_anchor_follows_the_pace_of_the_anchors() -> None:
    anchors = SelfAttested(7, FIRST, 4, 100)
    recorded = RecordedChain(anchors=anchors)
    await attesting(recorded, anchors, range(FIRST, FIRST + 8), 12.0)
    assert wait_s(recorded, FIRST + 5) is None, "of one move nobody knows how long the next takes"
    await attesting(recorded, anchors, range(FIRST + 8, FIRST + 18), 12.0)
    # Anchors at every fourth height of 12 s each. The last one was seen with the head after it, 12 s ago.
    assert recorded.attested() == FIRST + 16
    assert wait_s(recorded, FIRST + 17) == pytest.approx(48.0 - 12.0)
    assert wait_s(recorded, FIRST + 20) == pytest.approx(48.0 - 12.0)
    assert wait_s(recorded, FIRST + 21) == pytest.approx(96.0 - 12.0)
    recorded.clock.move(36.0)
    assert wait_s(recorded, FIRST + 17) is None, "it is late: any moment now"
