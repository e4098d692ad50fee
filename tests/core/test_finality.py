"""Heads under whatever nodes say: finalized never goes down, and no single lie makes a block final."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.finality import Finality, Heads, Level, observe

Said = tuple[int | None, int | None, int | None]
"""What one round heard: head, safe, finalized."""

heights = st.none() | st.integers(0, 400)


def by_tag(before: Heads, head: int | None, safe: int | None, finalized: int | None, depth: int = 64) -> Heads:
    return observe(before, head, safe, finalized, mode="tag", depth=depth)


def by_depth(before: Heads, head: int | None, depth: int = 64) -> Heads:
    return observe(before, head, None, None, mode="depth", depth=depth)


def heads(head: int | None, safe: int | None, finalized: int | None, by: str = "rpc-tag") -> Heads:
    return Heads(head, safe, finalized, by)


# --- levels ---------------------------------------------------------------------------------------------------------


def test_levels_are_ordered_by_rank_and_spelled_as_the_tags() -> None:
    assert [level.value for level in sorted(Level, key=lambda level: level.rank)] == ["latest", "safe", "finalized"]


@pytest.mark.parametrize(
    ("height", "level"),
    [
        (0, Level.FINALIZED),
        (90, Level.FINALIZED),
        (91, Level.SAFE),
        (95, Level.SAFE),
        (96, Level.LATEST),
        (101, Level.LATEST),
    ],
)
def test_a_height_has_the_strongest_level_that_covers_it(height: int, level: Level) -> None:
    assert heads(100, 95, 90).level_of(height) is level


def test_nothing_known_is_the_weakest_level() -> None:
    assert Heads().level_of(0) is Level.LATEST
    assert heads(100, None, 90).level_of(91) is Level.LATEST


def test_a_statement_says_on_whose_word_it_stands() -> None:
    assert heads(100, 95, 90, "depth").finality_of(93) == Finality(Level.SAFE, "depth", 1)


# --- tags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "known"),
    [
        pytest.param((100, 95, 90), heads(100, 95, 90), id="plain"),
        pytest.param((100, None, 90), heads(100, 90, 90), id="no-safe-tag"),
        pytest.param((100, 80, 90), heads(100, 90, 90), id="safe-below-finalized"),
        pytest.param((100, 105, 90), heads(100, 100, 90), id="safe-above-head"),
        pytest.param((100, 106, 105), heads(100, 100, 100), id="finalized-above-head"),
        pytest.param((0, 0, 0), heads(0, 0, 0), id="genesis-only"),
        pytest.param((None, None, 90), heads(None, 90, 90), id="no-head"),
    ],
)
def test_tags_become_ordered_heads(said: Said, known: Heads) -> None:
    assert by_tag(Heads(), *said) == known


def test_B38_a_node_without_the_finalized_tag_falls_back_to_the_depth() -> None:
    assert by_tag(Heads(), 100, None, None) == heads(100, 36, 36, "depth")
    assert by_tag(Heads(), 100, 70, None) == heads(100, 70, 36, "depth")


def test_B38_a_tag_that_is_missed_once_does_not_hand_over_to_the_depth() -> None:
    known = by_tag(Heads(), 200, 120, 100)
    assert by_tag(known, 201, None, None) == heads(201, 120, 100)
    assert by_tag(known, 201, 125, None) == heads(201, 125, 100)


def test_a_tag_takes_over_from_the_depth_once_it_has_passed_it() -> None:
    known = by_tag(Heads(), 100, None, None)
    assert by_tag(known, 101, 80, 70) == heads(101, 80, 70)


def test_a_tag_that_shows_less_takes_back_what_the_depth_called_final() -> None:
    known = by_tag(Heads(), 100, None, None)
    assert by_tag(known, 101, 40, 30) == heads(101, 40, 30)


def test_a_tag_that_has_no_block_yet_makes_nothing_final() -> None:
    def pending(before: Heads) -> Heads:
        return observe(before, 100, None, None, mode="tag", depth=10, tagless=False)

    assert pending(Heads()) == heads(100, None, None, "depth")
    assert pending(by_tag(Heads(), 99, None, None)) == heads(100, None, None, "depth")
    assert pending(by_tag(Heads(), 99, 60, 50)) == heads(100, 60, 50)


def test_B38_finalized_never_goes_down_when_the_tag_does() -> None:
    known = by_tag(Heads(), 100, 95, 90)
    assert by_tag(known, 100, 95, 50) == heads(100, 95, 90)
    assert by_tag(known, 100, 40, 30) == heads(100, 90, 90)


def test_a_finalized_tag_above_the_head_does_not_lower_what_was_published() -> None:
    known = by_tag(Heads(), 100, 95, 90)
    assert by_tag(known, 80, 95, 92) == heads(90, 90, 90)


def test_the_head_goes_down_with_a_reorg_but_not_below_finalized() -> None:
    known = by_tag(Heads(), 100, 95, 90)
    assert by_tag(known, 97, 95, 90).head == 97
    assert by_tag(known, 10, 9, 8) == heads(90, 90, 90)


def test_a_round_without_a_head_keeps_the_one_before() -> None:
    known = by_tag(Heads(), 100, 95, 90)
    assert by_tag(known, None, 96, 91) == heads(100, 96, 91)


# --- depth ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "depth", "known"),
    [
        (100, 64, heads(100, 36, 36, "depth")),
        (100, 0, heads(100, 100, 100, "depth")),
        (64, 64, heads(64, 0, 0, "depth")),
        (63, 64, heads(63, None, None, "depth")),
        (None, 64, heads(None, None, None, "rpc-tag")),
    ],
)
def test_B38_depth_counts_down_from_the_head(head: int | None, depth: int, known: Heads) -> None:
    assert by_depth(Heads(), head, depth) == known


def test_B38_depth_mode_does_not_listen_to_tags() -> None:
    assert observe(Heads(), 100, 99, 98, mode="depth", depth=10) == heads(100, 90, 90, "depth")


def test_depth_follows_the_head_up_and_never_down() -> None:
    finalized, known = [], Heads()
    for head in (100, 101, 99, 101, 40, 102):
        known = by_depth(known, head, 10)
        finalized.append(known.finalized)
    assert finalized == [90, 91, 91, 91, 91, 92]


@pytest.mark.parametrize("lie", [10**6, 10**9, 200])
def test_D4_a_head_that_lies_high_once_makes_nothing_final(lie: int) -> None:
    known = by_depth(by_depth(Heads(), 100), 100 + lie)
    assert known.finalized == 36
    known = by_depth(known, 101)
    assert (known.head, known.finalized) == (101, 37)


def test_D4_a_head_that_is_far_ahead_twice_is_believed() -> None:
    known = by_depth(by_depth(Heads(), 100), 5000)
    assert by_depth(known, 5001).finalized == 4937


# --- whatever is said -----------------------------------------------------------------------------------------------


def in_order(known: Heads) -> bool:
    stated = [height for height in (known.finalized, known.safe, known.head) if height is not None]
    return stated == sorted(stated)


@given(
    rounds=st.lists(st.tuples(heights, heights, heights), max_size=12),
    mode=st.sampled_from(["tag", "depth"]),
    depth=st.integers(0, 100),
)
def test_finalized_is_monotone_and_the_heads_are_ordered(rounds: list[Said], mode: str, depth: int) -> None:
    known = Heads()
    for said in rounds:
        before = known
        known = observe(known, *said, mode=mode, depth=depth)
        assert in_order(known)
        if before.finalized is not None and not (before.by == "depth" and known.by == "rpc-tag"):
            assert known.finalized is not None
            assert known.finalized >= before.finalized
        if said[0] is not None or before.head is not None:
            assert known.head is not None


@given(rounds=st.lists(st.tuples(heights, heights, heights), min_size=1, max_size=12), depth=st.integers(0, 100))
def test_nothing_is_final_that_was_above_every_head_and_tag_said_so_far(rounds: list[Said], depth: int) -> None:
    known: Heads = Heads()
    highest: dict[str, Any] = {"head": -1, "tag": -1}
    for head, safe, finalized in rounds:
        known = by_tag(known, head, safe, finalized, depth)
        highest["head"] = max(highest["head"], -1 if head is None else head)
        highest["tag"] = max(highest["tag"], -1 if finalized is None else finalized)
        if known.finalized is not None:
            assert known.finalized <= max(highest["head"] - depth, highest["tag"])
