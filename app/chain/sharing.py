"""One fill per cold block for all replicas: whoever takes the lease of a block fills it, the others wait for what it leaves.

    take lease -- mine ----> fill, put it into the shared store, leave its hash in the lease
         |------- another's, still filling --> look again in a moment (an expired lease is free: its holder died)
         `------- another's, done -----------> read the block from the shared store

The lease is renewed until the block is where the others read it, so that the death of its holder costs them one lease time and no
more; a holder that lives and does not come to an end is waited for as long as `PATIENCE_S`. Without a database everybody fills
for himself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from app.core.blocks import BlockRef
from app.core.lasting import StoreUnavailable
from app.core.provable_block import ProvableBlock
from app.core.resting import asleep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .keeping import Keeping
    from .ports import Leases

log = logging.getLogger(__name__)

LEASE_S = 4.0
"""How long a fill is waited for after its holder was heard of last."""

RENEW_S = 1.0

LEFT_S = 30.0
"""How long the hash of a block that was filled is left for those who come late."""

LOOKS_S = (0.02, 0.05, 0.1, 0.2)
"""Between two looks at another's lease; the last of them again and again."""

PATIENCE_S = 10.0
"""How long others are waited for in all: one of them may hang, or one after the other fail, where one's own fill would not."""

WRITTEN_S = 4.0
"""How long a block that was filled is waited for to be in the shared store. A store that takes longer is as good as none."""

LAST_WORDS_S = 2.5
"""How long the end of the process waits for what is still to be left."""


class Sharing:
    """Owned by its chain. `pause` is a sleep that tests shorten."""

    def __init__(
        self,
        chain_key: int,
        leases: Leases,
        keeping: Keeping,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._chain_key = chain_key
        self._leases = leases
        self._keeping = keeping
        self._pause = pause
        self._leaving: set[asyncio.Task[None]] = set()
        self.waits = 0
        self.received = 0

    def __repr__(self) -> str:
        return f"<Sharing {self._chain_key} {self.waits} waits, {self.received} received>"

    @asynccontextmanager
    async def turn(self, ref: BlockRef) -> AsyncIterator[Turn]:
        """The block of another's fill, or the leave to fill it: `Turn.block` is None, and `Turn.done` is to be called with what
        came of it. Another's block was the one there when it was filled, and need not be any more."""
        name = f"fill:{self._chain_key}:{ref.height if ref.block_hash is None else ref.block_hash.hex()}"
        turn = await self._begin(name)
        renewing = asyncio.create_task(self._renew(name), name=f"lease:{name}") if turn.mine else None
        try:
            yield turn
        finally:
            if renewing is not None:
                self._later(self._leave(name, turn.filled, renewing))

    async def aclose(self) -> None:
        """Returns when what was filled has been left for the others, or could not be within moments."""
        if self._leaving:
            _, late = await asyncio.wait(self._leaving, timeout=LAST_WORDS_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _begin(self, name: str) -> Turn:
        looks, waited_s = 0, 0.0
        try:
            while True:
                lease = await self._leases.take(name, LEASE_S)
                if lease.note is not None:
                    block = await self._keeping.block(lease.note)
                    self.received += block is not None
                    return Turn(mine=False, block=block)
                if lease.mine:
                    return Turn(mine=True)
                if waited_s >= PATIENCE_S:
                    return Turn(mine=False)
                self.waits += looks == 0
                look_s = LOOKS_S[min(looks, len(LOOKS_S) - 1)]
                async with asleep():
                    await self._pause(look_s)
                looks, waited_s = looks + 1, waited_s + look_s
        except StoreUnavailable:
            return Turn(mine=False)

    async def _renew(self, name: str) -> None:
        while True:
            await self._pause(RENEW_S)
            try:
                await self._leases.take(name, LEASE_S)
            except StoreUnavailable:
                log.debug("lease_not_renewed", extra={"lease": name})

    async def _leave(self, name: str, block: ProvableBlock | None, renewing: asyncio.Task[None]) -> None:
        """After the fill: never on the way of whoever waits for it here."""
        try:
            shared = block is not None and block.settled and await self._written(block)
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})
        try:
            if shared and block is not None:
                await self._leases.leave(name, block.block_hash, LEFT_S)
            else:
                await self._leases.release(name)
        except StoreUnavailable:
            log.debug("lease_not_released", extra={"lease": name})

    async def _written(self, block: ProvableBlock) -> bool:
        try:
            async with asyncio.timeout(WRITTEN_S):
                return await self._keeping.put_through(block)
        except TimeoutError:
            return False

    def _later(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


class Turn:
    """What became of asking for a block's lease."""

    __slots__ = ("block", "filled", "mine")

    def __init__(self, *, mine: bool, block: ProvableBlock | None = None) -> None:
        self.mine = mine
        self.block = block
        self.filled: ProvableBlock | None = None

    def done(self, block: ProvableBlock) -> None:
        """The block was filled, and is left for the others."""
        self.filled = block
