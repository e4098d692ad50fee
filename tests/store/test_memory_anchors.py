"""Anchor rows in memory keep what their port promises."""

from __future__ import annotations

import pytest

from app.core.anchor_rows import ATTESTATION, CHECKPOINT, GENESIS, AnchorRow
from app.core.lasting import AnchorContradiction
from app.store.memory_anchors import MemoryAnchorRows


def row(height: int, kind: str = ATTESTATION, mark: int = 0) -> AnchorRow:
    return AnchorRow(height, bytes([mark]) * 32, kind)


async def heights(rows: MemoryAnchorRows) -> list[int]:
    return [each.height for each in await rows.load()]


async def test_the_first_claim_to_the_genesis_stands() -> None:
    rows = MemoryAnchorRows()
    assert [await rows.claim_genesis(height) for height in (5, 3, 9)] == [5, 5, 5]


async def test_a_checkpoint_retires_the_attestations_up_to_it_for_good() -> None:
    rows = MemoryAnchorRows()
    await rows.add([row(0, GENESIS), row(10), row(20)])
    await rows.add([row(10)])
    assert await heights(rows) == [0, 10, 20]
    assert await rows.load(above=0) == (row(10), row(20))
    await rows.add([row(30, CHECKPOINT), row(40)])
    assert await heights(rows) == [0, 30, 40]
    await rows.add([row(20), row(30)])
    assert [(each.height, each.kind) for each in await rows.load()] == [
        (0, GENESIS),
        (30, CHECKPOINT),
        (40, ATTESTATION),
    ]
    await rows.drop_above(30)
    assert await heights(rows) == [0, 30]


async def test_another_digest_is_refused_and_nothing_written() -> None:
    rows = MemoryAnchorRows()
    await rows.add([row(10)])
    with pytest.raises(AnchorContradiction):
        await rows.add([row(5), row(10, mark=1)])
    assert await rows.load() == (row(10),)
