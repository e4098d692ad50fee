"""Spans between anchors, against a list of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.anchors.chain_info import End
from app.anchors.spans import Span, Spans


def end(height: int, *, attestation: bool = True) -> End:
    return End(height, height.to_bytes(32, "big"), attestation)


def span(lower: int, upper: int) -> Span:
    return Span(end(lower), end(upper))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), max_size=30), st.integers(1, 6))
def test_a_height_is_found_in_the_span_put_last_that_it_lies_in(puts: list[tuple[int, int]], most: int) -> None:
    spans, expected = Spans(most), list[Span]()
    for lower, length in puts:
        one = span(lower, lower + length)
        spans.put(one)
        overlapping = [each for each in expected if each.lower.height < lower + length and each.upper.height > lower]
        expected = [each for each in expected if each not in overlapping]
        expected = expected[len(expected) - most + 1 :] if len(expected) >= most else expected
        expected.append(one)
        assert len(spans) == len(expected) <= most
        assert all(spans.stands(each.height, each.digest) for each in (one.lower, one.upper))
    for height in range(52):
        # Each look-up counts as use: from here on only the content matters.
        found = [each for each in expected if each.lower.height < height <= each.upper.height]
        assert spans.at(height) == (found[0] if found else None)


def test_the_one_that_was_asked_for_least_lately_goes_first() -> None:
    spans = Spans(2)
    spans.put(span(0, 10))
    spans.put(span(10, 20))
    assert spans.at(5) == span(0, 10)
    spans.put(span(20, 30))
    assert (spans.at(5), spans.at(15), spans.at(25)) == (span(0, 10), None, span(20, 30))


def test_ends_that_had_to_go_are_not_kept_for_ever() -> None:
    spans = Spans(2)
    for lower in range(0, 1000, 10):
        spans.put(span(lower, lower + 10))
        assert len(spans.ends()) <= 8
    assert spans.stands(1000, (1000).to_bytes(32, "big"))
    assert not spans.stands(500, (500).to_bytes(32, "big"))


def test_a_checkpoint_retires_what_is_below_and_takes_the_place_of_what_was_there() -> None:
    spans, checkpoint = Spans(), end(20, attestation=False)
    old = Span(end(0, attestation=False), end(5, attestation=False))
    for each in (old, span(5, 10), span(10, 20), span(20, 30), span(30, 40)):
        spans.put(each)
    spans.retire(checkpoint)
    assert [spans.at(height) for height in (3, 7, 15)] == [old, None, None]
    assert spans.at(25) == Span(checkpoint, end(30))
    assert spans.at(35) == span(30, 40)
    assert not spans.stands(10, end(10).digest)
    assert spans.stands(20, end(20).digest)
    spans.clear()
    assert (len(spans), spans.at(25), spans.ends()) == (0, None, [])
