"""What SQL remembers of one chain's final blocks: which heights are done, which block is there, what it holds, its usc root.

Every change holds the chain's row, so that several processes that note the same chain take turns and the intervals always say
what the blocks say. Blocks go in, and out, in transactions of bounded size: each whole block is done or not done, and a call
that failed is completed by making it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import (
    BigInteger,
    Integer,
    LargeBinary,
    Select,
    and_,
    bindparam,
    cast,
    delete,
    func,
    literal,
    not_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.blocks import Noted, Position

from .database import Database
from .interval_rows import IntervalRows
from .schema import LARGEST, blocks, chains, positions, roots

BLOCKS_AT_ONCE = 64
"""Heights that one transaction notes at most."""

FORGOTTEN_AT_ONCE = 16
"""Heights that one transaction forgets at most, however much their blocks hold."""

FORGET_WITHIN_S = 10.0
"""For each of those: nobody waits for it, and hashes of transactions lie all over their index."""

TRANSACTIONS_AT_ONCE = 10_000
"""Transactions of blocks that one transaction notes, unless a single block holds more."""

DONE_WITHIN_S = 10.0
"""For reading all intervals: once, when a chain starts."""


class SqlLedger:
    """Fits the chain's `Ledger`."""

    def __init__(self, database: Database, chain_key: int) -> None:
        self._database = database
        self._chain_key = chain_key
        self._intervals = IntervalRows(database, chain_key)

    def __repr__(self) -> str:
        return f"<SqlLedger of chain {self._chain_key} in {self._database!r}>"

    # --- reading ----------------------------------------------------------------------------------------------------

    async def done(self) -> tuple[tuple[int, int], ...]:
        """As the port says."""
        async with self._database.reading(DONE_WITHIN_S, snapshot=True) as link:
            return await self._intervals.read(link)

    async def hash_at(self, height: int) -> bytes | None:
        """As the port says."""
        if not 0 <= height <= LARGEST:
            return None
        wanted = select(blocks.c.block_hash).where(blocks.c.chain_key == self._chain_key, blocks.c.height == height)
        async with self._database.reading() as link:
            found: bytes | None = (await link.execute(wanted)).scalar_one_or_none()
            return found

    async def position(self, tx_hash: bytes) -> Position | None:
        """As the port says."""
        there = and_(blocks.c.chain_key == positions.c.chain_key, blocks.c.height == positions.c.height)
        wanted = (
            select(blocks.c.block_hash, positions.c.height, positions.c.position)
            .join_from(positions, blocks, there)
            .where(positions.c.chain_key == self._chain_key, positions.c.tx_hash == tx_hash)
        )
        async with self._database.reading() as link:
            found = (await link.execute(wanted)).one_or_none()
            return None if found is None else Position(*found)

    async def roots(self, first: int, last: int) -> tuple[tuple[int, bytes], ...]:
        """As the port says."""
        first, last = max(0, first), min(last, LARGEST)
        if first > last:
            return ()
        wanted = select(roots.c.height, roots.c.root).where(
            roots.c.chain_key == self._chain_key, roots.c.height.between(first, last)
        )
        async with self._database.reading() as link:
            found = await link.execute(wanted.order_by(roots.c.height))
            return tuple((height, root) for height, root in found)

    async def finalized(self) -> int | None:
        """As the port says."""
        async with self._database.reading() as link:
            found: int | None = (
                await link.execute(select(chains.c.finalized).where(chains.c.chain_key == self._chain_key))
            ).scalar_one_or_none()
            return found

    # --- writing ----------------------------------------------------------------------------------------------------

    async def note(self, noted: Sequence[Noted]) -> None:
        """As the port says. Raises `ValueError` for a height that no column holds."""
        for block in noted:
            if not 0 <= block.height <= LARGEST:
                raise ValueError(f"height {block.height} is beyond what a ledger holds")
        for part in _parts(sorted({block.height: block for block in noted}.values(), key=lambda block: block.height)):
            async with self._database.writing() as link:
                await self._note(link, part)

    async def note_finalized(self, height: int) -> None:
        """As the port says."""
        if not 0 <= height <= LARGEST:
            raise ValueError(f"height {height} is beyond what a ledger holds")
        async with self._database.writing() as link:
            await self._hold(link)
            higher = chains.c.finalized.is_(None) | (chains.c.finalized < height)
            await link.execute(
                update(chains).where(chains.c.chain_key == self._chain_key, higher).values(finalized=height)
            )

    async def forget_from(self, height: int) -> None:
        """As the port says; from above, so that what a failed call left is what was there before the reorg, only less of it."""
        while height <= LARGEST:
            async with self._database.writing(FORGET_WITHIN_S) as link:
                await self._hold(link)
                first = await self._start_from_above(link, height)
                for table in (positions, blocks, roots):
                    await link.execute(
                        delete(table).where(table.c.chain_key == self._chain_key, table.c.height >= first)
                    )
                await self._intervals.change(link, first, LARGEST, taken_out=True)
                if first <= height:
                    mine = chains.c.chain_key == self._chain_key
                    below = height - 1 if height else None
                    told = update(chains).where(mine, chains.c.finalized >= height)
                    await link.execute(told.values(finalized=below))
            if first <= height:
                return

    async def forget_below(self, height: int) -> None:
        """As the port says, from below. What somebody asked for stays."""
        height = min(height, LARGEST)
        while True:
            async with self._database.writing(FORGET_WITHIN_S) as link:
                floor = await self._hold(link)
                start = 0 if floor is None else floor
                if start >= height:
                    return
                end = await self._end_from_below(link, start, height)
                await self._forget_unasked(link, start, end)
                await link.execute(update(chains).where(chains.c.chain_key == self._chain_key).values(floor=end))
            if end >= height:
                return

    # --- inside a transaction -----------------------------------------------------------------------------------------

    async def _hold(self, link: AsyncConnection) -> int | None:
        """Takes the chain's row until the transaction ends. Returns the chain's floor."""
        return await hold_chain(self._database, link, self._chain_key)

    async def _note(self, link: AsyncConnection, part: Sequence[Noted]) -> None:
        key = self._chain_key
        floor = await self._hold(link)
        heights = [block.height for block in part]
        there = select(blocks.c.height, blocks.c.block_hash).where(
            blocks.c.chain_key == key, blocks.c.height.in_(heights)
        )
        standing = {row.height: row.block_hash for row in await link.execute(there)}
        others = [block for block in part if standing.get(block.height, b"") != block.block_hash]
        if others:
            await self._clear(link, [block.height for block in others])
        rows = [
            {"chain_key": key, "height": block.height, "block_hash": block.block_hash, "asked": block.asked}
            for block in part
        ]
        put = self._database.insert_into(blocks)
        await link.execute(
            put.on_conflict_do_update(
                index_elements=[blocks.c.chain_key, blocks.c.height],
                set_={"block_hash": put.excluded.block_hash, "asked": blocks.c.asked | put.excluded.asked},
            ),
            rows,
        )
        await self._put_positions(link, [block for block in part if block.transaction_hashes])
        await self._put_roots(link, [(block.height, block.usc_root) for block in part if block.usc_root is not None])
        await self._intervals.change(link, heights[0], heights[-1], put_in=heights)
        unasked = [block.height for block in part if not block.asked]
        if floor is not None and unasked and unasked[0] < floor:
            await link.execute(update(chains).where(chains.c.chain_key == key).values(floor=unasked[0]))

    async def _clear(self, link: AsyncConnection, heights: Sequence[int]) -> None:
        """What is known of other blocks at these heights."""
        for table in (positions, roots):
            await link.execute(delete(table).where(table.c.chain_key == self._chain_key, table.c.height.in_(heights)))

    async def _put_positions(self, link: AsyncConnection, part: Sequence[Noted]) -> None:
        if not part:
            return
        put = self._database.insert_into(positions).from_select(
            ["chain_key", "tx_hash", "height", "position"], _POSITIONS_OF_A_BLOCK
        )
        await link.execute(
            put.on_conflict_do_update(
                index_elements=[positions.c.chain_key, positions.c.tx_hash],
                set_={"height": put.excluded.height, "position": put.excluded.position},
            ),
            [
                {
                    "of_chain": self._chain_key,
                    "of_height": block.height,
                    "hashes": block.transaction_hashes,
                    "how_many": len(block.transaction_hashes) // 32,
                }
                for block in part
            ],
        )

    async def _put_roots(self, link: AsyncConnection, known: Sequence[tuple[int, bytes]]) -> None:
        if not known:
            return
        put = self._database.insert_into(roots)
        await link.execute(
            put.on_conflict_do_update(
                index_elements=[roots.c.chain_key, roots.c.height], set_={"root": put.excluded.root}
            ),
            [{"chain_key": self._chain_key, "height": height, "root": root} for height, root in known],
        )

    async def _forget_unasked(self, link: AsyncConnection, start: int, end: int) -> None:
        key = self._chain_key
        here = and_(blocks.c.chain_key == key, blocks.c.height >= start, blocks.c.height < end)
        unwanted = select(blocks.c.height).where(here, not_(blocks.c.asked))
        await link.execute(delete(positions).where(positions.c.chain_key == key, positions.c.height.in_(unwanted)))
        await link.execute(delete(blocks).where(here, not_(blocks.c.asked)))
        kept = (await link.execute(select(blocks.c.height).where(here).order_by(blocks.c.height))).scalars().all()
        await self._intervals.change(link, start, end - 1, taken_out=True, put_in=kept)

    async def _start_from_above(self, link: AsyncConnection, height: int) -> int:
        """The height from which on no more blocks are noted than one transaction forgets; `height` itself, or above it."""
        wanted = select(blocks.c.height).where(blocks.c.chain_key == self._chain_key, blocks.c.height >= height)
        beyond = await link.execute(wanted.order_by(blocks.c.height.desc()).offset(FORGOTTEN_AT_ONCE).limit(1))
        found: int | None = beyond.scalar_one_or_none()
        return height if found is None else found + 1

    async def _end_from_below(self, link: AsyncConnection, start: int, height: int) -> int:
        """The height below which no more are noted, from `start` on, than one transaction forgets; `height`, or below it."""
        wanted = select(blocks.c.height).where(
            blocks.c.chain_key == self._chain_key, blocks.c.height >= start, blocks.c.height < height
        )
        beyond = await link.execute(wanted.order_by(blocks.c.height).offset(FORGOTTEN_AT_ONCE).limit(1))
        found: int | None = beyond.scalar_one_or_none()
        return height if found is None else found


async def hold_chain(database: Database, link: AsyncConnection, chain_key: int) -> int | None:
    """Takes the chain's row until the transaction ends, so that whoever changes what is kept of a chain takes turns. Returns the
    chain's floor."""
    held = select(chains.c.floor).where(chains.c.chain_key == chain_key).with_for_update()
    row = (await link.execute(held)).one_or_none()
    if row is None:
        await link.execute(database.insert_into(chains).on_conflict_do_nothing(), {"chain_key": chain_key})
        row = (await link.execute(held)).one()
    floor: int | None = row.floor
    return floor


def _parts(noted: Sequence[Noted]) -> Iterator[list[Noted]]:
    """Runs of blocks that one transaction notes."""
    part: list[Noted] = []
    size = 0
    for block in noted:
        transactions = len(block.transaction_hashes) // 32
        if part and (len(part) == BLOCKS_AT_ONCE or size + transactions > TRANSACTIONS_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(block)
        size += transactions
    if part:
        yield part


def _positions_of_a_block() -> Select[tuple[int, bytes, int, int]]:
    """Rows of `positions` from the joined hashes of one block: cut by the database, so that a block is one value to send however
    much it holds. Should a hash be there twice, its first place counts."""
    place = select(literal(0).label("place")).cte("places", recursive=True)
    place = place.union_all(select(place.c.place + 1).where(place.c.place + 1 < bindparam("how_many", type_=Integer)))
    cut = select(
        func.substr(bindparam("hashes", type_=LargeBinary), place.c.place * 32 + 1, 32, type_=LargeBinary).label(
            "tx_hash"
        ),
        place.c.place,
    ).subquery()
    return select(
        cast(bindparam("of_chain", type_=BigInteger), BigInteger),
        cut.c.tx_hash,
        cast(bindparam("of_height", type_=BigInteger), BigInteger),
        func.min(cut.c.place),
    ).group_by(cut.c.tx_hash)


_POSITIONS_OF_A_BLOCK = _positions_of_a_block()
