"""The anchors of one chain and one source in SQL, shared by every process that serves the chain."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BigInteger, bindparam, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.anchor_rows import ATTESTATION, CHECKPOINT, AnchorRow
from app.core.lasting import AnchorContradiction

from .database import Database
from .ledger import hold_chain
from .schema import LARGEST, anchors, geneses

LOAD_WITHIN_S = 10.0
"""For reading all anchors: when a source starts. Those that came since are read like anything else."""

ROWS_AT_ONCE = 1000
"""Rows that are read, or looked for, in one go."""


class SqlAnchorRows:
    """Fits the `AnchorRows` of the anchor sources."""

    def __init__(self, database: Database, chain_key: int, source: str) -> None:
        self._database = database
        self._chain_key = chain_key
        self._source = source
        self._mine = (anchors.c.chain_key == chain_key, anchors.c.source == source)

    def __repr__(self) -> str:
        return f"<SqlAnchorRows of chain {self._chain_key} by {self._source} in {self._database!r}>"

    async def load(self, above: int = -1) -> tuple[AnchorRow, ...]:
        """As the port says."""
        columns = (anchors.c.height, anchors.c.digest, anchors.c.kind)
        wanted = select(*columns).where(*self._mine, anchors.c.height > bindparam("beyond", type_=BigInteger))
        page = wanted.order_by(anchors.c.height).limit(ROWS_AT_ONCE)
        found: list[AnchorRow] = []
        within_s = LOAD_WITHIN_S if above < 0 else None
        async with self._database.reading(within_s, snapshot=True) as link:
            while True:
                rows = await link.execute(page, {"beyond": found[-1].height if found else above})
                before = len(found)
                found += (AnchorRow(*row) for row in rows)
                if len(found) - before < ROWS_AT_ONCE:
                    return tuple(found)

    async def claim_genesis(self, height: int) -> int:
        """As the port says. Raises `ValueError` for a height that no column holds."""
        _require_held(height)
        row = {"chain_key": self._chain_key, "source": self._source, "height": height}
        stands = select(geneses.c.height).where(
            geneses.c.chain_key == self._chain_key, geneses.c.source == self._source
        )
        async with self._database.writing(durable=True) as link:
            await link.execute(self._database.insert_into(geneses).on_conflict_do_nothing(), row)
            claimed: int = (await link.execute(stands)).scalar_one()
            return claimed

    async def add(self, rows: Sequence[AnchorRow]) -> None:
        """As the port says. Raises `ValueError` for a height that no column holds."""
        if not rows:
            return
        new = _without_contradiction(rows)
        async with self._database.writing(durable=True) as link:
            await hold_chain(self._database, link, self._chain_key)
            await self._require_agreement(link, new)
            put = self._database.insert_into(anchors)
            await link.execute(
                put.on_conflict_do_update(
                    index_elements=[anchors.c.chain_key, anchors.c.source, anchors.c.height],
                    set_={"kind": put.excluded.kind},
                    where=put.excluded.kind != ATTESTATION,  # a checkpoint is not attested to again
                ),
                [
                    {
                        "chain_key": self._chain_key,
                        "source": self._source,
                        "height": row.height,
                        "digest": row.digest,
                        "kind": row.kind,
                    }
                    for row in new.values()
                ],
            )
            newest = select(func.max(anchors.c.height)).where(*self._mine, anchors.c.kind == CHECKPOINT)
            await link.execute(
                delete(anchors).where(
                    *self._mine, anchors.c.kind == ATTESTATION, anchors.c.height <= newest.scalar_subquery()
                )
            )

    async def drop(self, rows: Sequence[AnchorRow], genesis: int | None) -> None:
        """As the port says."""
        known = [{"at": row.height, "known": row.digest} for row in rows]
        same = (anchors.c.height == bindparam("at", type_=BigInteger), anchors.c.digest == bindparam("known"))
        for start in range(0, len(known), ROWS_AT_ONCE):
            async with self._database.writing(durable=True) as link:
                await hold_chain(self._database, link, self._chain_key)
                await link.execute(delete(anchors).where(*self._mine, *same), known[start : start + ROWS_AT_ONCE])
        if genesis is not None:
            mine = (geneses.c.chain_key == self._chain_key, geneses.c.source == self._source)
            async with self._database.writing(durable=True) as link:
                await link.execute(delete(geneses).where(*mine, geneses.c.height == genesis))

    async def drop_above(self, height: int) -> None:
        """As the port says."""
        async with self._database.writing(durable=True) as link:
            await hold_chain(self._database, link, self._chain_key)
            await link.execute(delete(anchors).where(*self._mine, anchors.c.height > min(height, LARGEST)))

    async def _require_agreement(self, link: AsyncConnection, new: dict[int, AnchorRow]) -> None:
        heights = sorted(new)
        for start in range(0, len(heights), ROWS_AT_ONCE):
            part = heights[start : start + ROWS_AT_ONCE]
            there = select(anchors.c.height, anchors.c.digest).where(*self._mine, anchors.c.height.in_(part))
            for height, digest in await link.execute(there):
                if digest != new[height].digest:
                    raise AnchorContradiction(_contradiction(height, digest, new[height].digest))


def _without_contradiction(rows: Sequence[AnchorRow]) -> dict[int, AnchorRow]:
    by_height: dict[int, AnchorRow] = {}
    for row in rows:
        _require_held(row.height)
        if (other := by_height.get(row.height)) is not None and other.digest != row.digest:
            raise AnchorContradiction(_contradiction(row.height, other.digest, row.digest))
        by_height[row.height] = row
    return by_height


def _contradiction(height: int, standing: bytes, new: bytes) -> str:
    return f"height {height} is anchored with 0x{standing.hex()}, not with 0x{new.hex()}"


def _require_held(height: int) -> None:
    if not 0 <= height <= LARGEST:
        raise ValueError(f"height {height} is beyond what a ledger holds")
