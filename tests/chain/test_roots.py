"""Roots by height, in pages that come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.chain.roots import Roots


def root_of(height: int) -> bytes:
    return height.to_bytes(32, "big")


@given(st.lists(st.tuples(st.sampled_from(["note", "forget", "forget_from"]), st.integers(0, 1500)), max_size=60))
def test_as_a_dictionary_would(steps: list[tuple[str, int]]) -> None:
    roots, kept = Roots(), dict[int, bytes]()
    for step, height in steps:
        if step == "note":
            roots.note(height, root_of(height + 7))
            kept[height] = root_of(height + 7)
        elif step == "forget":
            roots.forget([height])
            kept.pop(height, None)
        else:
            roots.forget_from(height)
            kept = {at: root for at, root in kept.items() if at < height}
    assert {height: root for height in range(1501) if (root := roots.get(height)) is not None} == kept
    assert roots.missing(200, 600) == [height for height in range(200, 601) if height not in kept]


def test_all_or_none() -> None:
    roots = Roots()
    for height in range(250, 262):
        roots.note(height, root_of(height))
    assert roots.all(250, 261) == tuple(map(root_of, range(250, 262)))
    assert roots.all(249, 261) is None


def test_an_empty_block_has_a_root_of_zeros_and_is_known() -> None:
    roots = Roots()
    roots.note(5, bytes(32))
    assert roots.get(5) == bytes(32)
    assert roots.missing(5, 5) == []


def test_the_pages_are_bounded() -> None:
    roots = Roots(max_pages=2)
    for height in (0, 300, 600):
        roots.note(height, root_of(height))
    assert [roots.get(height) for height in (0, 300, 600)] == [None, root_of(300), root_of(600)]
