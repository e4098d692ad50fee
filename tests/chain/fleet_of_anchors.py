"""Replicas whose chains have anchors of our own making, in rows that they share, with leases on a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from app.anchors.ports import AnchorRow
from app.anchors.self_attested import SelfAttested
from app.core.lasting import StoreUnavailable
from app.store.memory_anchors import MemoryAnchorRows
from tests.chain.leased_rows import RowLeases, Rows
from tests.chain.recorded_chain import BUSY, LAST, RecordedChain
from tests.fakes import settle

OFFICE = "anchors:7"
INTERVAL, EVERY = 3, 2
GENESIS = BUSY - 9
"""Once BUSY is final there stand a genesis, a checkpoint and an attestation."""

TURNS = 400


class SharedRows(MemoryAnchorRows):
    """The rows of a fleet, with the heights that were read above."""

    def __init__(self, leases: Rows) -> None:
        super().__init__()
        self._leases = leases
        self.read_above: list[int] = []
        self.added: Counter[int] = Counter()

    async def load(self, above: int = -1) -> tuple[AnchorRow, ...]:
        self._require_up()
        self.read_above.append(above)
        return await super().load(above)

    async def claim_genesis(self, height: int) -> int:
        self._require_up()
        return await super().claim_genesis(height)

    async def add(self, rows: list[AnchorRow]) -> None:  # type: ignore[override]  # a narrower sequence
        self._require_up()
        self.added.update(row.height for row in rows)
        await super().add(rows)

    def _require_up(self) -> None:
        if self._leases.lost:
            raise StoreUnavailable("the database is gone")


class Fleet:
    def __init__(self) -> None:
        self.leases = Rows()
        self.rows = SharedRows(self.leases)
        self.replicas: list[RecordedChain] = []

    async def replica(self, name: str, *, finalized: int = BUSY, genesis: int = GENESIS) -> RecordedChain:
        anchors = await SelfAttested.opened(7, genesis, INTERVAL, EVERY, self.rows)
        clock, leases = self.leases.clock, RowLeases(self.leases, name)
        made = RecordedChain(GENESIS, LAST, anchors=anchors, clock=clock, leases=leases, anchor_interval=INTERVAL)
        made.chain.head._upstream = made.upstream  # each sees for itself where the nodes stand
        made.upstream.tags = {"latest": LAST, "safe": finalized, "finalized": finalized}
        self.replicas.append(made)
        return made

    def finalize(self, height: int) -> None:
        """The nodes of all have come that far."""
        for made in self.replicas:
            made.upstream.tags |= {"safe": height, "finalized": height}

    async def pass_by(self, seconds: float) -> None:
        """Time passes, half a second at a time."""
        for _ in range(round(2 * seconds)):
            await self.leases.clock.advance(0.5)
            await settle(50)
        await settle(TURNS)

    def attested(self) -> list[int | None]:
        return [made.attested() for made in self.replicas]

    def fetched(self) -> list[int]:
        return [made.upstream.hits["fetch"] for made in self.replicas]

    def stalled(self) -> list[str | None]:
        return [made.chain.anchoring_stalled for made in self.replicas]

    def holder(self) -> str | None:
        return self.leases.held.get(OFFICE, (None, 0.0, None))[0]


@contextlib.asynccontextmanager
async def running(*replicas: RecordedChain) -> AsyncIterator[list[asyncio.Task[None]]]:
    """In turn, so that it is known who comes into the office."""
    tasks = []
    for made in replicas:
        tasks.append(asyncio.create_task(made.chain.run()))
        await settle(TURNS)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for made in replicas:
            await made.chain.aclose()
