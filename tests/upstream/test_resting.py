"""Whoever pauses between two attempts holds no permit (P6), however many branches a fetch has parted into."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.chain.permits import Permits, PermitShift
from app.core.blocks import BlockBodies, BlockRef
from app.core.budget import FillBudget
from app.core.errors import RpcUnavailable
from app.core.hexadecimal import from_hex
from app.core.resting import shift
from app.upstream.retries import Patience
from tests.fakes import ManualClock, settle
from tests.scripted_behaviours import Behaviour, error, held, honest, http, null
from tests.upstream.conftest import Rig, handed

BY_NUMBER, BY_HASH, WHOLE = "eth_getBlockByNumber", "eth_getBlockByHash", "eth_getBlockReceipts"
EACH, HEAD = "eth_getTransactionReceipt", "eth_blockNumber"
BUSY = BlockRef(height=17_034_869)


class Watch:
    """The permit of a fetch, and whether it was held at each pause. `gate`, where it is not None, holds the pauses up."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.permits = Permits(FillBudget(1), ManualClock())
        self.held: list[bool] = []
        self.paused = asyncio.Event()
        self.gate: asyncio.Event | None = None
        rig.upstream.crew.patience = Patience(self._pause, rig.clock.now, lambda: 0.5)

    async def _pause(self, seconds: float) -> None:
        self.held.append(self.permits.budget.running() == 1)
        self.paused.set()
        if self.gate is not None:
            await self.gate.wait()
        await self.rig.clock.pause(seconds)

    async def fetch(self, ref: BlockRef) -> BlockBodies:
        async with self.holding():
            return await self.rig.upstream.fetch(ref, handed)

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        async with self.permits.hold() as permit:
            token = shift.set(PermitShift(permit))
            try:
                yield
                assert permit.held, "what was fetched is worked on"
            finally:
                shift.reset(token)


@pytest.fixture
def watch(busy_rig: Rig) -> Watch:
    return Watch(busy_rig)


PAUSES: dict[str, tuple[str, tuple[Behaviour, ...]]] = {
    "an error of the node": (BY_NUMBER, (http(502), http(502))),
    "a block that is null": (BY_NUMBER, (null(), null())),
    "receipts that are null": (WHOLE, (null(), null(), error(-32000, "header not found"))),
}


@pytest.mark.parametrize(("method", "answers"), PAUSES.values(), ids=PAUSES)
async def test_P6_a_fetch_that_pauses_holds_no_permit(
    watch: Watch, method: str, answers: tuple[Behaviour, ...]
) -> None:
    watch.rig.node.script(method, *answers)
    assert (await watch.fetch(BUSY)).receipts_json is not None
    assert watch.held == [False] * len(answers)
    assert watch.permits.budget.running() == 0


async def test_P6_a_fill_that_waits_for_a_rate_limit_holds_no_permit(watch: Watch) -> None:
    watch.rig.node.unsupported = {WHOLE}
    watch.rig.node.script(EACH, *[error(429, "limited")] * 2)
    watch.gate = asyncio.Event()
    fetching = asyncio.create_task(watch.fetch(BUSY))
    await watch.paused.wait()
    async with watch.permits.hold():  # somebody else's turn, within the pause
        watch.gate.set()
        await settle()
        assert not fetching.done()
    assert (await fetching).receipts_json is not None
    assert watch.held
    assert not any(watch.held)


async def test_P6_a_fetch_that_gives_up_gives_the_permit_back_once(watch: Watch) -> None:
    watch.rig.node.always(BY_NUMBER, http(502))
    with pytest.raises(RpcUnavailable):
        await watch.fetch(BUSY)
    assert watch.held == [False, False]
    assert watch.permits.budget.running() == 0


async def test_P6_while_the_block_is_on_its_way_a_pause_for_its_receipts_keeps_the_permit(
    watch: Watch, busy: dict[str, Any]
) -> None:
    gate = asyncio.Event()
    watch.rig.node.script(BY_HASH, held(gate))
    watch.rig.node.script(WHOLE, null(), null())
    watch.gate = asyncio.Event()
    fetching = asyncio.create_task(watch.fetch(BlockRef(block_hash=from_hex(busy["block"]["hash"]))))
    await watch.paused.wait()
    assert watch.permits.budget.running() == 1
    gate.set()
    async with watch.permits.hold():  # granted once the block is there, and only the pause is left
        assert not fetching.done()
    watch.gate.set()
    assert (await fetching).receipts_json is not None
    assert watch.held == [True, False]


async def test_P6_receipts_asked_for_one_by_one_keep_the_permit_until_all_that_are_left_pause(watch: Watch) -> None:
    gate = asyncio.Event()
    watch.rig.node.unsupported = {WHOLE}
    watch.rig.evm.capabilities.batch_limit = 1
    watch.rig.node.script(EACH, honest(), http(502), *[held(gate)] * 7)
    watch.gate = asyncio.Event()
    fetching = asyncio.create_task(watch.fetch(BUSY))
    await watch.paused.wait()
    assert watch.permits.budget.running() == 1
    gate.set()
    async with watch.permits.hold():  # granted once the others have asked for all the rest
        assert not fetching.done()
    watch.gate.set()
    assert (await fetching).receipts_json is not None
    assert watch.held == [True]
    assert watch.permits.budget.running() == 0


async def test_a_pause_of_work_that_holds_nothing_is_a_pause(watch: Watch) -> None:
    watch.rig.node.script(HEAD, http(502))
    watch.rig.node.script(BY_NUMBER, null())
    assert await watch.rig.upstream.name_of(17_034_869) is not None
    assert watch.rig.clock.pauses == [0.15, 0.2]
