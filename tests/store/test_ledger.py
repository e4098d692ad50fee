"""What is noted of a chain is what is found again: the same on every kind of database."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from app.core.blocks import Noted, Position
from app.store.database import Database
from app.store.ledger import FORGOTTEN_AT_ONCE, SqlLedger
from app.store.schema import LARGEST, blocks, intervals, positions, roots
from tests.chain.kept import KeptLedger

KEY = 7


def hash_of(*parts: int) -> bytes:
    return b"".join(part.to_bytes(8) for part in parts).rjust(32, b"\xee")


def noted(height: int, transactions: int = 0, *, branch: int = 0, root: bool = False, asked: bool = False) -> Noted:
    return Noted(
        height,
        hash_of(branch, height),
        b"".join(hash_of(branch, height, index) for index in range(transactions)),
        hash_of(99, branch, height) if root else None,
        asked,
    )


@pytest.fixture
def ledger(database: Database) -> SqlLedger:
    return SqlLedger(database, KEY)


async def count(database: Database, table: object) -> int:
    async with database.reading() as link:
        return (await link.execute(select(func.count()).select_from(table))).scalar_one()  # type: ignore[arg-type]


async def test_nothing_is_known_of_a_chain_that_nothing_was_noted_of(ledger: SqlLedger) -> None:
    assert await ledger.done() == ()
    assert await ledger.hash_at(5) is None
    assert await ledger.position(hash_of(1)) is None
    assert await ledger.roots(0, 10) == ()
    assert await ledger.finalized() is None


async def test_what_was_noted_is_found(ledger: SqlLedger) -> None:
    block = noted(100, 3, root=True)
    await ledger.note([block, noted(101), noted(103, 1)])
    assert await ledger.done() == ((100, 101), (103, 103))
    assert await ledger.hash_at(100) == block.block_hash
    assert await ledger.hash_at(102) is None
    for index in range(3):
        assert await ledger.position(hash_of(0, 100, index)) == Position(hash_of(0, 100), 100, index)
    assert await ledger.roots(0, 200) == ((100, hash_of(99, 0, 100)),)


async def test_a_refused_block_is_done_and_holds_nothing(ledger: SqlLedger) -> None:
    await ledger.note([Noted(5, None)])
    assert await ledger.done() == ((5, 5),)
    assert await ledger.hash_at(5) is None


async def test_noting_twice_changes_nothing(ledger: SqlLedger, database: Database) -> None:
    block = noted(100, 3, root=True)
    for _ in range(2):
        await ledger.note([block, noted(101, 1)])
    assert await count(database, blocks) == 2
    assert await count(database, positions) == 4
    assert await count(database, roots) == 1
    assert await ledger.done() == ((100, 101),)


async def test_another_block_takes_the_place_with_all_that_was_known(ledger: SqlLedger) -> None:
    await ledger.note([noted(100, 3, root=True), noted(101, 1, root=True)])
    await ledger.note([noted(100, 1, branch=1)])
    assert await ledger.hash_at(100) == hash_of(1, 100)
    assert await ledger.position(hash_of(0, 100, 2)) is None
    assert await ledger.position(hash_of(1, 100, 0)) == Position(hash_of(1, 100), 100, 0)
    assert await ledger.roots(100, 101) == ((101, hash_of(99, 0, 101)),)


async def test_a_transaction_that_moved_is_where_it_was_noted_last(ledger: SqlLedger) -> None:
    moved = hash_of(1, 2, 3)
    await ledger.note([Noted(100, hash_of(0, 100), moved)])
    await ledger.note([Noted(101, hash_of(1, 101), hash_of(4) + moved)])
    await ledger.note([noted(100, branch=1)])
    assert await ledger.position(moved) == Position(hash_of(1, 101), 101, 1)


async def test_a_hash_that_a_block_has_twice_is_noted_once(ledger: SqlLedger) -> None:
    await ledger.note([Noted(1, hash_of(1), hash_of(2) + hash_of(3) + hash_of(2))])
    assert await ledger.position(hash_of(2)) == Position(hash_of(1), 1, 0)


async def test_chains_do_not_know_of_each_other(ledger: SqlLedger, database: Database) -> None:
    other = SqlLedger(database, KEY + 1)
    await ledger.note([noted(100, 1, root=True)])
    await other.note([noted(100, 1, branch=1, root=True), noted(101)])
    await other.note_finalized(7)
    await other.forget_from(101)
    assert await ledger.hash_at(100) == hash_of(0, 100)
    assert await ledger.position(hash_of(1, 100, 0)) is None
    assert await ledger.finalized() is None
    await ledger.forget_from(0)
    assert await other.done() == ((100, 100),)
    assert await other.roots(0, 200) == ((100, hash_of(99, 1, 100)),)


async def test_what_is_forgotten_is_not_final_any_more_either(ledger: SqlLedger) -> None:
    await ledger.note([noted(height, 1) for height in range(10)])
    await ledger.note_finalized(9)
    told = []
    for height in (10, 7, 8, 0):
        await ledger.forget_from(height)
        told.append(await ledger.finalized())
    assert told == [9, 6, 6, None]
    await ledger.note_finalized(3)
    assert await ledger.finalized() == 3


async def test_a_reorg_forgets_all_from_there_on(ledger: SqlLedger, database: Database) -> None:
    many = 6 * FORGOTTEN_AT_ONCE + 10
    await ledger.note([noted(height, 1, root=True) for height in range(many)])
    await ledger.forget_from(7)
    assert await ledger.done() == ((0, 6),)
    assert await ledger.hash_at(7) is None
    assert await ledger.position(hash_of(0, 7, 0)) is None
    assert len(await ledger.roots(0, many)) == 7
    assert await count(database, positions) == 7


async def test_what_is_behind_the_window_goes_but_for_roots_and_what_was_asked_for(
    ledger: SqlLedger, database: Database
) -> None:
    many = 6 * FORGOTTEN_AT_ONCE + 10
    await ledger.note([noted(height, 1, root=True, asked=height in (3, 4, 90)) for height in range(many)])
    await ledger.forget_below(many - 5)
    assert await ledger.done() == ((3, 4), (90, 90), (many - 5, many - 1))
    assert await ledger.hash_at(2) is None
    assert await ledger.position(hash_of(0, 2, 0)) is None
    assert await ledger.position(hash_of(0, 90, 0)) == Position(hash_of(0, 90), 90, 0)
    assert len(await ledger.roots(0, many)) == many
    assert await count(database, positions) == 8


async def test_what_is_noted_behind_the_window_is_forgotten_the_next_time(ledger: SqlLedger) -> None:
    await ledger.note([noted(height) for height in range(20)])
    await ledger.forget_below(10)
    await ledger.note([noted(4), noted(6, asked=True)])
    assert await ledger.done() == ((4, 4), (6, 6), (10, 19))
    await ledger.forget_below(11)
    assert await ledger.done() == ((6, 6), (11, 19))


async def test_asked_for_once_is_asked_for(ledger: SqlLedger) -> None:
    await ledger.note([noted(4)])
    await ledger.note([noted(4, asked=True)])
    await ledger.note([noted(4)])
    await ledger.forget_below(9)
    assert await ledger.done() == ((4, 4),)


async def test_the_finalized_height_never_goes_down(ledger: SqlLedger) -> None:
    for height, stands in ((10, 10), (9, 10), (12, 12)):
        await ledger.note_finalized(height)
        assert await ledger.finalized() == stands


async def test_the_greatest_height_and_key_are_kept_to_the_last_digit(database: Database) -> None:
    ledger = SqlLedger(database, LARGEST)
    await ledger.note([noted(LARGEST, 1, root=True), noted(LARGEST - 1)])
    await ledger.note_finalized(LARGEST)
    assert await ledger.done() == ((LARGEST - 1, LARGEST),)
    assert await ledger.position(hash_of(0, LARGEST, 0)) == Position(hash_of(0, LARGEST), LARGEST, 0)
    assert await ledger.roots(LARGEST, LARGEST + 1) == ((LARGEST, hash_of(99, 0, LARGEST)),)
    assert await ledger.finalized() == LARGEST
    await ledger.forget_below(LARGEST)
    assert await ledger.done() == ((LARGEST, LARGEST),)
    await ledger.forget_from(LARGEST)
    assert await ledger.done() == ()


async def test_beyond_it_nothing_is_asked_of_the_database(ledger: SqlLedger) -> None:
    assert await ledger.hash_at(LARGEST + 1) is None
    assert await ledger.roots(LARGEST + 1, LARGEST + 2) == ()
    with pytest.raises(ValueError, match="beyond what a ledger holds"):
        await ledger.note([Noted(LARGEST + 1, hash_of(1))])
    with pytest.raises(ValueError, match="beyond what a ledger holds"):
        await ledger.note_finalized(LARGEST + 1)
    await ledger.forget_from(LARGEST + 1)
    await ledger.forget_below(LARGEST + 1)


HEIGHT = st.integers(0, 30)
BLOCK = st.builds(  # whose hash says what it holds
    lambda height, branch, asked: noted(height, (height + branch) % 3, branch=branch, root=branch == 0, asked=asked),
    HEIGHT,
    st.integers(0, 1),
    st.booleans(),
) | st.builds(Noted, HEIGHT, st.none())
STEP = st.one_of(
    st.tuples(st.just("note"), st.lists(BLOCK, min_size=1, max_size=5, unique_by=lambda block: block.height)),
    st.tuples(st.just("forget_from"), HEIGHT),
    st.tuples(st.just("forget_below"), HEIGHT),
    st.tuples(st.just("note_finalized"), HEIGHT),
)


@given(steps=st.lists(STEP, max_size=12))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_after_any_steps_it_says_what_the_obvious_ledger_says(
    database: Database, steps: Sequence[tuple[str, object]]
) -> None:
    ledger, obvious = SqlLedger(database, KEY), KeptLedger()
    await ledger.forget_from(0)
    await ledger.forget_below(31)
    async with database.writing() as link:
        await link.exec_driver_sql("DELETE FROM chains")
    for name, given_to in steps:
        if name == "note":
            blocks_noted = [
                Noted(
                    each.height,
                    each.block_hash,
                    each.transaction_hashes,
                    each.usc_root,
                    each.asked or (each.height in obvious.blocks and obvious.blocks[each.height].asked),
                )
                for each in given_to  # type: ignore[attr-defined]
            ]
            await ledger.note(given_to)  # type: ignore[arg-type]
            await obvious.note(blocks_noted)
        else:
            await getattr(ledger, name)(given_to)
            await getattr(obvious, name)(given_to)
        assert await ledger.done() == await obvious.done()
    for height in range(31):
        assert await ledger.hash_at(height) == await obvious.hash_at(height)
        for branch in range(2):
            tx_hash = hash_of(branch, height, 0)
            assert await ledger.position(tx_hash) == await obvious.position(tx_hash)
    assert await ledger.finalized() == await obvious.finalized()
    assert await count(database, intervals) == len(await obvious.done())
