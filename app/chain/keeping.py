"""What outlives the process: final blocks are noted in the ledger, checked blocks are put into the block store, both behind the
requests that brought them in; and what was kept is looked up before a node is asked for it.

    landed -> queue -> store.put(packed)       -> ledger.note(height, hash, transactions, root), where the height is final
    asked  <- reopened and checked <- store    <- where does this transaction stand, which block is final at this height?

Nothing here is needed to answer: a database or a store that cannot be had costs a bounded wait, once, and is then left alone for
a moment. What is read back is checked as if it came from a node.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence

from cachetools import LRUCache

from app.core.blocks import Noted, Position
from app.core.lasting import StoreUnavailable
from app.core.provable_block import ProvableBlock

from .asking import READ_LIMIT_S, Asking
from .cache import BlockCache
from .kept_blocks import KeptBlocks
from .kinship import Kin, Kinship, Nodes
from .ports import BlockStore, Builder, Clock, Ledger

log = logging.getLogger(__name__)

MAX_WAITING = 512
"""So many blocks may wait to be kept; beyond that the oldest are not."""

LOOK_EVERY_S = 10.0
"""A ledger that nobody asks anything is looked at so often: whether it is there is not to be found out by a request."""

LAST_FLUSH_S = 2.5
"""How long the end of the process waits for what is still to be kept."""


class Keeping:
    """Owned by its chain, which runs `run`. Fits the chain's `Ledger` for its backfill, whose notes are made once."""

    def __init__(
        self,
        chain: str,
        nodes: Nodes,
        ledger: Ledger,
        store: BlockStore | None,
        builder: Builder,
        cache: BlockCache[ProvableBlock],
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        *,
        head: Callable[[], int | None],
        chain_id: Callable[[], int | None] = lambda: None,
        anchored: bool = False,
        on_restored: Callable[[int], None] = lambda finalized: None,
        on_foreign: Callable[[], None] = lambda: None,
    ) -> None:
        """`head` is the newest height that nodes were heard to have. `on_restored` hears once which height was final when the
        ledger was last written to, `on_foreign` that this was another chain."""
        self._chain = chain
        self._ledger = ledger
        self._blocks = (
            None
            if store is None
            else KeptBlocks(chain, store, builder, cache, clock, jitter, chain_id=chain_id, anchored=anchored)
        )
        self._clock = clock
        self._waiting: deque[tuple[ProvableBlock | None, Noted | None]] = deque()
        self._notes: list[Noted] = []
        # What a reorg makes the ledger forget is not noted afterwards by who was about to.
        self._writing = asyncio.Lock()
        self._finalized: int | None = None
        self._wake = asyncio.Event()
        self._noted: LRUCache[int, bytes] = LRUCache(4096)
        self._on_restored = on_restored
        self._kin = Kin(chain, ledger, nodes, clock, head, on_foreign)
        self._asking = Asking(chain, ledger, self._kin, clock)
        self._restored = False
        self._doubted_from: int | None = None
        self._forgets_from: int | None = None
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<Keeping {self._chain} {len(self._waiting)} waiting, {self.dropped} dropped>"

    @property
    def waiting(self) -> int:
        """Blocks that are still to be kept."""
        return len(self._waiting)

    @property
    def kinship(self) -> Kinship:
        """Whether the ledger is that of this chain."""
        return self._kin.kinship

    @property
    def ledger_up(self) -> bool:
        """Whether the ledger answered when it was asked last, and is not that of another chain."""
        return self._asking.well and self.kinship is not Kinship.FOREIGN

    # --- what was kept ----------------------------------------------------------------------------------------------

    async def hash_at(self, height: int) -> bytes | None:
        """The final block at this height, if it was noted and the ledger can be had."""
        told = await self._asking.told(lambda: self._ledger.hash_at(height))
        return told if told is not None and await self._is_believed(height, told) else None

    async def position(self, tx_hash: bytes) -> Position | None:
        """Where a final block holds the transaction, likewise."""
        told = await self._asking.told(lambda: self._ledger.position(tx_hash))
        return told if told is not None and await self._is_believed(told.height, told.block_hash) else None

    async def roots(self, first: int, last: int) -> tuple[tuple[int, bytes], ...]:
        """The usc roots noted in [first, last], likewise."""
        told = await self._asking.told(lambda: self._ledger.roots(first, last)) or ()
        return tuple((height, root) for height, root in told if not self._is_doubted(height))

    async def block(self, block_hash: bytes) -> ProvableBlock | None:
        """The block that is kept under this hash, checked again and now in memory; None when there is none."""
        return None if self._blocks is None else await self._blocks.get(block_hash)

    def doubt_from(self, height: int) -> None:
        """A reorg reached into what was final. From `height` on nodes are asked, whatever the ledger says: it takes a while until
        it has forgotten, and other processes that have not seen the reorg write down what they had."""
        self._doubted_from = height if self._doubted_from is None else min(height, self._doubted_from)
        self._forgets_from = self._doubted_from
        self._strike(lambda noted: noted.height >= height)
        self._kin.doubt_from(height)
        self._wake.set()

    def withdraw(self, height: int, *, forget: bool) -> None:
        """From `height` on nothing is final any more. `forget`: nor was it, so that the ledger is not to say so either."""
        self._strike(lambda noted: noted.height >= height)
        if self._finalized is not None and self._finalized >= height:
            self._finalized = None
        self.reconsider()
        if forget:
            self._forgets_from = height if self._forgets_from is None else min(height, self._forgets_from)
            self._wake.set()

    def reconsider(self) -> None:
        """A node may have spoken of another chain: what was noted of late is compared again before it is believed, and what was
        about to be noted is not."""
        self._strike(lambda _: True)
        self._noted.clear()
        self._kin.reconsider()
        self._wake.set()

    def disown(self) -> None:
        """The nodes serve another chain than before: the ledger is of the one before until it is found to be of this one."""
        self.withdraw(0, forget=False)
        self._doubted_from = self._forgets_from = None
        self._kin.disown()

    async def _is_believed(self, height: int, block_hash: bytes) -> bool:
        """What this process noted it had from the nodes; of what others did the nodes are asked now and then."""
        if not self._is_doubted(height) and self._noted.get(height) != block_hash:
            return await self._kin.vouched(height, block_hash, READ_LIMIT_S) and not self._is_doubted(height)
        return not self._is_doubted(height)

    def _is_doubted(self, height: int) -> bool:
        return self._doubted_from is not None and height >= self._doubted_from

    @property
    def unheard(self) -> int:
        """How often the ledger could not be waited for, or was left alone for that."""
        return self._asking.unheard

    async def can_be_had(self) -> bool:
        """Whether the ledger can be had with more patience: for whom nobody else is there to ask."""
        return await self._asking.can_be_had()

    # --- what is to be kept -----------------------------------------------------------------------------------------

    def landed(self, block: ProvableBlock, noted: Noted | None) -> None:
        """A checked block came in; `noted` is what to write down where it is the one at its height for good."""
        if not block.settled or (noted is None and self._blocks is None):
            return
        self._queue(block, noted)

    def _queue(self, block: ProvableBlock | None, noted: Noted | None) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append((block, noted))
        self._wake.set()

    def noted(self, block: Noted) -> None:
        """A block that came in before turned out to be the one at its height for good."""
        if self._noted.get(block.height) != block.block_hash:
            self._queue(None, block)

    def became_final(self, height: int) -> None:
        """This height is final."""
        self._finalized = height
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            owing = bool(self._notes) or (self._finalized, self._forgets_from) != (None, None) or not self._restored
            silent_s = self._asking.silent_s
            try:
                async with asyncio.timeout(silent_s if owing and silent_s > 0 else LOOK_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                await self._asking.look()
            self._wake.clear()
            await self.flush()

    async def restore(self) -> None:
        """Takes up what was known when the ledger was last written to; later, if it cannot be had now."""
        if self._restored or self._asking.silent:
            return
        try:
            finalized = await self._ledger.finalized()
        except StoreUnavailable:
            self._asking.failed()
            return
        self._restored = True
        if finalized is not None:
            self._on_restored(finalized)

    async def aclose(self) -> None:
        """Ends the reads under way, and keeps what waits if that takes moments."""
        if self._blocks is not None:
            await self._blocks.aclose()
        try:
            async with asyncio.timeout(LAST_FLUSH_S):
                await self.flush()
        except TimeoutError:
            log.warning("ledger_not_flushed", extra={"chain": self._chain})

    async def flush(self) -> None:
        """Keeps what waits, as far as the ledger can be had now."""
        await self.restore()
        while self._waiting:
            block, noted = self._waiting.popleft()
            if noted is not None:
                self._notes.append(noted)
            if self._blocks is not None and block is not None:
                try:
                    await self._blocks.put(block)
                except asyncio.CancelledError:  # the end of the process flushes once more
                    self._waiting.appendleft((block, None))
                    raise
        self.dropped += max(0, len(self._notes) - MAX_WAITING)
        self._notes = self._notes[-MAX_WAITING:]
        if self._asking.silent:
            return
        finalized: int | None = None
        try:
            if await self._kin.found() is not Kinship.SAME:
                return
            if self._kin.replaced:
                self._forgets_from = 0
            elif self._kin.returned and self._finalized is not None:
                self._kin.returned, above = False, self._finalized + 1
                self._forgets_from = above if self._forgets_from is None else min(above, self._forgets_from)
            await self._forget_doubted()
            self._kin.replaced = False
            finalized, self._finalized = self._finalized, None
            await self._note_all()
            if finalized is not None:
                await self._ledger.note_finalized(finalized)
            self._asking.answered()
        except (StoreUnavailable, asyncio.CancelledError) as error:
            if self._finalized is None:
                self._finalized = finalized
            if isinstance(error, asyncio.CancelledError):
                raise
            self._asking.failed()

    async def _note_all(self) -> None:
        async with self._writing:
            notes, self._notes = self._notes, []
            try:
                await self._note_new(notes)
            except (StoreUnavailable, asyncio.CancelledError):
                self._notes = notes + self._notes
                raise

    async def put_through(self, block: ProvableBlock) -> bool:
        """Writes a block into the store. Whether others who share it can read it from now on."""
        return self._blocks is not None and await self._blocks.put_through(block)

    # --- the ledger, for whoever waits until it is done ----------------------------------------------------------------

    async def done(self) -> tuple[tuple[int, int], ...]:
        """As the ledger says."""
        if self.kinship is Kinship.FOREIGN:
            raise StoreUnavailable(self.kinship.value)
        return await self._ledger.done()

    async def finalized(self) -> int | None:
        """As the ledger says."""
        return await self._ledger.finalized()

    async def note(self, blocks: Sequence[Noted]) -> None:
        """As the ledger does, for those that were not noted just so before."""
        if await self._kin.found() is not Kinship.SAME:
            raise StoreUnavailable(self.kinship.value)
        async with self._writing:
            await self._note_new(blocks)

    async def _note_new(self, blocks: Sequence[Noted]) -> None:
        new = [block for block in blocks if self._noted.get(block.height) != (block.block_hash or b"")]
        if not new:
            return
        await self._ledger.note(new)
        for block in new:
            self._noted[block.height] = block.block_hash or b""

    async def forget_from(self, height: int) -> None:
        """As the ledger does; what waits from there on is not noted any more."""
        if self.kinship is Kinship.FOREIGN:
            return
        async with self._writing:
            self._noted.clear()
            self._strike(lambda noted: noted.height >= height)
            await self._ledger.forget_from(height)
            if self._forgets_from is not None and height <= self._forgets_from:
                self._forgets_from = None

    async def _forget_doubted(self) -> None:
        async with self._writing:
            height = self._forgets_from
            if height is not None:
                self._noted.clear()
                await self._ledger.forget_from(height)
                if self._forgets_from == height:
                    self._forgets_from = None

    async def forget_below(self, height: int) -> None:
        """As the ledger does; what waits below is not noted any more, but for what somebody asked for."""
        if await self._kin.found() is not Kinship.SAME:
            return
        async with self._writing:
            self._strike(lambda noted: noted.height < height and not noted.asked)
            await self._ledger.forget_below(height)

    def _strike(self, gone: Callable[[Noted], bool]) -> None:
        self._notes = [noted for noted in self._notes if not gone(noted)]
        self._waiting = deque(
            (block, None if noted is None or gone(noted) else noted) for block, noted in self._waiting
        )

    async def note_finalized(self, height: int) -> None:
        """As the ledger does."""
        await self._ledger.note_finalized(height)
