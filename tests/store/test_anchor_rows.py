"""Anchors that are kept in SQL: none lost, none contradicted, the same on every kind of database."""

from __future__ import annotations

import asyncio

import pytest

from app.core.anchor_rows import ATTESTATION, CHECKPOINT, GENESIS, AnchorRow
from app.core.lasting import AnchorContradiction
from app.store.anchor_rows import ROWS_AT_ONCE, SqlAnchorRows
from app.store.database import Database
from app.store.schema import LARGEST

KEY = 7


def anchor(height: int, kind: str = ATTESTATION, digest: int = 0) -> AnchorRow:
    return AnchorRow(height, (height * 100 + digest).to_bytes(32), kind)


@pytest.fixture
def rows(database: Database) -> SqlAnchorRows:
    return SqlAnchorRows(database, KEY, "self")


async def test_what_was_added_is_loaded_in_order(rows: SqlAnchorRows) -> None:
    assert await rows.load() == ()
    await rows.add([anchor(30), anchor(10, GENESIS), anchor(20)])
    assert await rows.load() == (anchor(10, GENESIS), anchor(20), anchor(30))


async def test_what_came_since_is_loaded_alone(rows: SqlAnchorRows) -> None:
    await rows.add([anchor(0, GENESIS), anchor(10), anchor(20), anchor(30)])
    assert await rows.load(above=10) == (anchor(20), anchor(30))
    await rows.add([anchor(40, CHECKPOINT), anchor(50)])
    assert await rows.load(above=30) == (anchor(40, CHECKPOINT), anchor(50))
    assert await rows.load(above=50) == ()


async def test_adding_again_changes_nothing(rows: SqlAnchorRows) -> None:
    for _ in range(2):
        await rows.add([anchor(10), anchor(20)])
    await rows.add([])
    assert await rows.load() == (anchor(10), anchor(20))


async def test_a_checkpoint_retires_attestations_at_and_below_it(rows: SqlAnchorRows) -> None:
    await rows.add([anchor(0, GENESIS), anchor(10), anchor(20), anchor(30)])
    await rows.add([anchor(20, CHECKPOINT)])
    assert await rows.load() == (anchor(0, GENESIS), anchor(20, CHECKPOINT), anchor(30))
    await rows.add([anchor(10), anchor(20), anchor(40)])
    assert await rows.load() == (anchor(0, GENESIS), anchor(20, CHECKPOINT), anchor(30), anchor(40))


async def test_another_digest_is_a_contradiction_and_nothing_is_written(rows: SqlAnchorRows) -> None:
    await rows.add([anchor(10)])
    with pytest.raises(AnchorContradiction, match="height 10 is anchored with 0x"):
        await rows.add([anchor(5), anchor(10, digest=1), anchor(20, CHECKPOINT)])
    with pytest.raises(AnchorContradiction, match="height 30 is anchored with 0x"):
        await rows.add([anchor(30), anchor(30, digest=1)])
    assert await rows.load() == (anchor(10),)


async def test_a_checkpoint_with_another_digest_is_one_too(rows: SqlAnchorRows) -> None:
    await rows.add([anchor(10), anchor(20)])
    with pytest.raises(AnchorContradiction):
        await rows.add([anchor(20, CHECKPOINT, digest=1)])
    assert await rows.load() == (anchor(10), anchor(20))


async def test_a_revert_drops_what_is_above(rows: SqlAnchorRows) -> None:
    await rows.add([anchor(10, CHECKPOINT), anchor(20), anchor(30)])
    await rows.drop_above(20)
    assert await rows.load() == (anchor(10, CHECKPOINT), anchor(20))
    await rows.add([anchor(30, digest=1)])
    assert await rows.load() == (anchor(10, CHECKPOINT), anchor(20), anchor(30, digest=1))


async def test_what_was_overtaken_is_dropped_by_its_digest_and_what_others_made_since_stays(
    rows: SqlAnchorRows,
) -> None:
    await rows.claim_genesis(5)
    await rows.add([anchor(10, CHECKPOINT), anchor(20), anchor(30, digest=1)])
    await rows.drop([anchor(20), anchor(30), anchor(40)], None)
    assert await rows.load() == (anchor(10, CHECKPOINT), anchor(30, digest=1))
    assert await rows.claim_genesis(6) == 5
    await rows.drop([], 6)  # which is not the one that stands
    assert await rows.claim_genesis(6) == 5
    await rows.drop([anchor(10, CHECKPOINT)], 5)
    assert await rows.claim_genesis(6) == 6
    assert await rows.load() == (anchor(30, digest=1),)


async def test_chains_and_sources_do_not_know_of_each_other(rows: SqlAnchorRows, database: Database) -> None:
    others = (SqlAnchorRows(database, KEY + 1, "self"), SqlAnchorRows(database, KEY, "creditcoin"))
    await rows.add([anchor(10)])
    for other in others:
        await other.add([anchor(10, digest=1), anchor(20, CHECKPOINT)])
        assert await other.claim_genesis(3) == 3
        await other.drop_above(-1)
    assert await rows.load() == (anchor(10),)
    assert await rows.claim_genesis(4) == 4


async def test_the_first_claim_of_a_genesis_wins_for_ever(rows: SqlAnchorRows, database: Database) -> None:
    claims = [SqlAnchorRows(database, KEY, "self").claim_genesis(height) for height in range(100, 106)]
    standing = set(await asyncio.gather(*claims))
    assert len(standing) == 1
    await rows.drop_above(-1)
    assert {await rows.claim_genesis(1)} == standing


async def test_more_than_one_page_of_them(rows: SqlAnchorRows) -> None:
    many = tuple(anchor(height) for height in range(2 * ROWS_AT_ONCE + 1))
    await rows.add(many)
    assert await rows.load() == many
    assert await rows.load(above=ROWS_AT_ONCE // 2) == many[ROWS_AT_ONCE // 2 + 1 :]
    with pytest.raises(AnchorContradiction):
        await rows.add([*many[:-1], anchor(2 * ROWS_AT_ONCE, digest=1)])


async def test_the_greatest_height_is_kept_to_the_last_digit(rows: SqlAnchorRows) -> None:
    greatest = AnchorRow(LARGEST, b"\x01" * 32, ATTESTATION)
    await rows.add([greatest])
    assert await rows.load() == (greatest,)
    assert await rows.claim_genesis(LARGEST) == LARGEST
    await rows.drop_above(LARGEST + 1)
    assert await rows.load() == (greatest,)
    with pytest.raises(ValueError, match="beyond what a ledger holds"):
        await rows.add([AnchorRow(LARGEST + 1, b"\x01" * 32, ATTESTATION)])
    with pytest.raises(ValueError, match="beyond what a ledger holds"):
        await rows.claim_genesis(LARGEST + 1)
