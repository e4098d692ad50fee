"""Heads that several nodes name: which one is published, and which one decides what is settled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.blocks import BlockName
from app.core.pace import Pace
from app.core.quorum import LEAD_BLOCKS, Choice, Steadiness, choose


def block(height: int) -> BlockName:
    return BlockName(height, height.to_bytes(32, "big"), bytes(32), 12 * height)


def chosen(*heights: int, frozen: tuple[str, ...] = (), floor: int | None = None) -> Choice:
    heads = {name: block(height) for name, height in zip("abcdef", heights, strict=False)}
    return choose(heads, frozen=frozen, floor=floor)


# --- who is followed, who has a say ---------------------------------------------------------------------------------


def test_the_lowest_head_decides_and_the_highest_exists() -> None:
    choice = chosen(100, 103, 101)
    assert (choice.heights, choice.lowest, choice.voters) == ((103, 101, 100), 100, frozenset("abc"))


def test_the_primary_is_followed_while_it_is_not_far_behind() -> None:
    assert chosen(100, 103).followed == block(100)
    assert chosen(100, 116).followed == block(100)
    assert chosen(100, 117).followed == block(117)


def test_D4_a_head_of_a_million_more_decides_nothing() -> None:
    assert chosen(100, 10**6).lowest == 100
    assert chosen(10**6, 100).lowest == 100


def test_a_head_that_stands_still_has_no_say_beside_one_ahead_of_it() -> None:
    assert chosen(50, 100, frozen=("a",)).lowest == 100
    assert chosen(100, 100, frozen=("a", "b")).voters == frozenset("ab")


def test_a_node_that_has_not_come_to_what_is_final_has_no_say() -> None:
    assert chosen(50, 100, floor=60).lowest == 100
    assert chosen(50, 55, floor=60).lowest == 50


# --- what is published ----------------------------------------------------------------------------------------------


def test_row_24_B25_jitter_does_not_lower_the_head() -> None:
    steady = Steadiness()
    series = (100, 101, 99, 101, 40, 102)
    assert [steady.observe([height], 1000.0 + at, reorged=False) for at, height in enumerate(series)] == [
        100,
        101,
        101,
        101,
        101,
        102,
    ]


def test_a_reorg_lowers_it_at_once_and_a_lower_head_that_stays_does_after_a_minute() -> None:
    steady = Steadiness()
    steady.observe([100], 0.0, reorged=False)
    assert steady.observe([98], 1.0, reorged=True) == 98
    assert [steady.observe([90], at, reorged=False) for at in (10.0, 40.0, 70.0, 70.1)] == [98, 98, 98, 90]


def test_a_lower_head_now_and_then_does_not_add_up() -> None:
    steady = Steadiness()
    steady.observe([100], 0.0, reorged=False)
    for at in range(1, 200, 2):
        assert steady.observe([90], float(at), reorged=False) == 100
        assert steady.observe([100], float(at + 1), reorged=False) == 100


def test_row_23_D4_a_head_far_above_the_last_is_not_published_the_first_time() -> None:
    steady = Steadiness()
    steady.observe([100], 0.0, reorged=False)
    assert steady.observe([10**6, 101], 2.0, reorged=False) == 101
    assert steady.observe([102, 101], 4.0, reorged=False) == 102
    assert steady.observe([10**6], 6.0, reorged=False) == 102
    assert steady.observe([10**6 + 1], 8.0, reorged=False) == 10**6 + 1


def test_a_chain_may_run_ahead_while_nobody_listens() -> None:
    steady = Steadiness()
    steady.observe([100], 0.0, reorged=False)
    assert steady.observe([100 + LEAD_BLOCKS], 1.0, reorged=False) == 100 + LEAD_BLOCKS
    assert steady.observe([100_000], 3600.0, reorged=False) == 356
    assert steady.observe([70_000], 3601.0, reorged=False) == 70_000


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 30), st.booleans()), min_size=1, max_size=40))
def test_one_head_never_carries_further_than_time_allows(rounds: list[tuple[int, float, bool]]) -> None:
    steady, now, before = Steadiness(), 0.0, None
    for height, seconds, reorged in rounds:
        now += seconds
        doubted, risen_at = steady.doubted, steady.risen_at
        head = steady.observe([height], now, reorged=reorged)
        if before is not None and not reorged and head > before:
            allowed = before + max(LEAD_BLOCKS, int(2 * (now - risen_at) / 0.1))
            assert head <= allowed or (doubted is not None and head >= doubted)
        before = head


# --- pace -----------------------------------------------------------------------------------------------------------


def test_the_pace_is_learned_from_blocks_and_forgotten_with_them() -> None:
    pace = Pace()
    assert pace.block_time_s is None
    for height, timestamp in ((10, 120), (10, 120), (11, 132), (13, 156)):
        pace.note(height, timestamp)
    assert pace.block_time_s == 12.0
    pace.note(12, 144)
    assert pace.block_time_s is None
