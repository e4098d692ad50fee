"""The noted heights of one chain as closed intervals, one row each: what is done costs what is missing, not what is there."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BigInteger, bindparam, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.gaps import Heights

from .database import Database
from .schema import intervals

ROWS_AT_ONCE = 2000
"""Rows that are read in one go, between which others have their turn."""

_FEW = 1 << 20


class IntervalRows:
    """Used inside the transactions of the ledger, which hold the chain's row."""

    def __init__(self, database: Database, chain_key: int) -> None:
        self._database = database
        self._chain_key = chain_key
        self._mine = intervals.c.chain_key == chain_key

    async def read(self, link: AsyncConnection) -> tuple[tuple[int, int], ...]:
        """All of them, lowest first."""
        wanted = select(intervals.c.first, intervals.c.last).where(
            self._mine, intervals.c.last > bindparam("beyond", type_=BigInteger)
        )
        page = wanted.order_by(intervals.c.last).limit(ROWS_AT_ONCE)
        found: list[tuple[int, int]] = []
        while True:
            rows = (await link.execute(page, {"beyond": found[-1][1] if found else -1})).all()
            found += ((row.first, row.last) for row in rows)
            if len(rows) < ROWS_AT_ONCE:
                return tuple(found)

    async def change(
        self, link: AsyncConnection, first: int, last: int, *, taken_out: bool = False, put_in: Sequence[int] = ()
    ) -> None:
        """All heights of [first, last] are taken out, if so; then those of `put_in`, all of that range, are put in."""
        wanted = (
            select(intervals.c.first, intervals.c.last)
            .where(self._mine, intervals.c.last >= first - 1)
            .order_by(intervals.c.last)
        )
        if last - first < _FEW:  # no two of them touch: there are not more than that around the range
            wanted = wanted.limit((last - first) // 2 + 3)
        found = {(row.first, row.last) for row in await link.execute(wanted) if row.first <= last + 1}
        done = Heights(sorted(found))
        if taken_out:
            done.remove(first, last)
        for height in put_in:
            done.add(height, height)
        left = set(done)
        if gone := [{"gone": high} for _, high in sorted(found - left)]:
            ended = intervals.c.last == bindparam("gone", type_=BigInteger)
            await link.execute(delete(intervals).where(self._mine, ended), gone)
        if new := [{"chain_key": self._chain_key, "first": low, "last": high} for low, high in sorted(left - found)]:
            await link.execute(self._database.insert_into(intervals), new)
