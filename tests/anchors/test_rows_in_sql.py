"""The sources of anchors over the rows of a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sha3

from app.anchors.self_attested import SelfAttested
from app.anchors.static import Static
from app.core.anchor_rows import ATTESTATION, GENESIS, AnchorRow
from app.core.lasting import AnchorContradiction
from app.store.anchor_rows import SqlAnchorRows
from app.store.database import Database, open_database
from app.store.migrating import make_ready

KEY = 7


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(f"sqlite+aiosqlite:///{tmp_path}/copath.db") as opened:
        await make_ready(opened)
        yield opened


async def root_at(height: int) -> bytes:
    return bytes(sha3.keccak_256(f"root of {height}".encode()).digest())


async def other_root_at(height: int) -> bytes:
    return await root_at(height + 1000)


async def test_anchors_of_our_own_survive_and_are_the_same_everywhere(database: Database) -> None:
    rows = SqlAnchorRows(database, KEY, "self")
    one, other = [await SelfAttested.opened(KEY, None, 5, 3, rows) for _ in range(2)]
    await one.advance(100, root_at)
    await other.advance(107, root_at)
    await one.advance(131, root_at)
    await other.advance(131, root_at)
    third = await SelfAttested.opened(KEY, 100, 5, 3, rows)
    straight = SelfAttested(KEY, 100, 5, 3)
    await straight.advance(131, root_at)
    for height in range(101, 131):
        expected = straight.bracket(height, height)
        assert [each.bracket(height, height) for each in (one, other, third)] == [expected] * 3
    with pytest.raises(AnchorContradiction, match="start at 100"):
        await SelfAttested.opened(KEY, 99, 5, 3, rows)


async def test_a_replica_that_reads_other_blocks_contradicts_and_writes_nothing(database: Database) -> None:
    rows = SqlAnchorRows(database, KEY, "self")
    one, other = [await SelfAttested.opened(KEY, 0, 5, 100, rows) for _ in range(2)]
    await one.advance(40, root_at)
    kept = await rows.load()
    with pytest.raises(AnchorContradiction):
        await other.advance(40, other_root_at)
    assert other.attested_height is None
    assert await rows.load() == kept


async def test_static_anchors_are_the_rows_of_their_own_source(database: Database) -> None:
    static, own = SqlAnchorRows(database, KEY, "static"), SqlAnchorRows(database, KEY, "self")
    await own.add([AnchorRow(1, bytes(32), GENESIS), AnchorRow(99, bytes(32), ATTESTATION)])
    anchors = await Static.of_rows(KEY, static)
    assert (anchors.heard, anchors.attested_height) == (True, None)
    await static.add([AnchorRow(10, b"\1" * 32, GENESIS), AnchorRow(20, b"\2" * 32, ATTESTATION)])
    await anchors.advance(None, root_at)
    bracket = anchors.bracket(11, 20)
    assert (anchors.genesis, bracket.lower, bracket.upper, bracket.upper_digest) == (10, 10, 20, b"\2" * 32)
