"""Every upstream is down: what is known is served, what is not is refused quickly, and the chain stays ready."""

from __future__ import annotations

import pytest

from app.core.blocks import BlockRef
from app.core.errors import RpcUnavailable
from app.core.finality import Level
from tests.chain.recorded_chain import BUSY, LAST, RecordedChain, sepolia, tx_hashes


async def warmed() -> RecordedChain:
    """A chain whose block BUSY is settled and final, and whose nodes have all gone silent since."""
    made = RecordedChain()
    await made.see(finalized=LAST - 2)
    await made.at(BUSY)
    for point in ("fetch", "name_of", "tagged", "position"):
        made.upstream.fail(point, RpcUnavailable("every node is down"), times=None)
    made.calls()
    return made


async def test_row_28_what_is_settled_and_final_is_served_without_any_upstream() -> None:
    made = await warmed()
    for _ in range(50):
        assert (await made.at(BUSY, Level.FINALIZED)).height == BUSY
        for tx in tx_hashes(sepolia(BUSY)):
            found = await made.chain.transaction(tx)
            assert (found.block.height, found.cached) == (BUSY, True)
    assert made.calls() == {}


async def test_row_28_F3_what_is_not_known_is_refused_at_once_and_asked_for_twice_at_most() -> None:
    made = await warmed()
    for _ in range(50):
        with pytest.raises(RpcUnavailable) as caught:
            await made.chain.block(BlockRef(height=BUSY + 1))
        assert caught.value.retriable
    assert made.calls() == {"fetch": 2}
    made.clock.move(1.0)  # the memory of it is short
    made.upstream.heal()
    assert (await made.at(BUSY + 1)).height == BUSY + 1


async def test_row_28_the_chain_stays_servable_and_says_what_is_wrong() -> None:
    made = await warmed()
    made.clock.move(60.0)
    with pytest.raises(RpcUnavailable):
        await made.chain.head.poll()
    assert made.chain.servable
    assert not made.chain.saturated
    assert made.chain.reasons == ("head is stale",)
