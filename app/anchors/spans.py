"""What is known of the anchors of others: spans between two of them with none in between, so far as was asked."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass, replace

from .chain_info import End


@dataclass(frozen=True, slots=True)
class Span:
    """Every height h with lower < h <= upper lies between these two anchors, and no other."""

    lower: End
    upper: End


class Spans:
    """At most `most` spans that do not overlap; the ones used least go first. Belongs to one event loop; nothing awaits."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._spans: OrderedDict[int, Span] = (
            OrderedDict()
        )  # by the height of the upper end, the one used last at the end
        self._uppers: list[int] = []
        self._standing: dict[tuple[int, bytes], End] = {}

    def __repr__(self) -> str:
        return f"<Spans {len(self._spans)}>"

    def __len__(self) -> int:
        return len(self._spans)

    def at(self, height: int) -> Span | None:
        """The span that `height` lies in."""
        place = bisect_left(self._uppers, height)
        if place == len(self._uppers):
            return None
        upper = self._uppers[place]
        span = self._spans[upper]
        if span.lower.height >= height:
            return None
        self._spans.move_to_end(upper)
        return span

    def stands(self, height: int, digest: bytes) -> bool:
        """Whether an end of a span that was put, and was not dropped since, is this one."""
        return (height, digest) in self._standing

    def ends(self) -> list[End]:
        """Every end, in no order that means anything."""
        return list(self._standing.values())

    def put(self, span: Span) -> None:
        """Requires lower < upper. What overlaps it is not so any more."""
        first = bisect_left(self._uppers, span.lower.height + 1)
        while first < len(self._uppers) and self._spans[self._uppers[first]].lower.height < span.upper.height:
            del self._spans[self._uppers.pop(first)]
        if len(self._spans) >= self._most:
            oldest, _ = self._spans.popitem(last=False)
            del self._uppers[bisect_left(self._uppers, oldest)]
        self._spans[span.upper.height] = span
        insort(self._uppers, span.upper.height)
        for end in (span.lower, span.upper):
            self._standing[end.height, end.digest] = end
        if len(self._standing) > 4 * self._most:  # ends of spans that had to go
            self._recount()

    def clear(self) -> None:
        """Nothing that is known needs to be so."""
        self._spans.clear()
        self._uppers.clear()
        self._standing.clear()

    def retire(self, checkpoint: End) -> None:
        """Attestations at and below the checkpoint are none any more; the one at its height is the checkpoint now."""
        kept = {}
        for upper, span in self._spans.items():
            ends = [checkpoint if end.height == checkpoint.height else end for end in (span.lower, span.upper)]
            if not any(end.is_attestation and end.height < checkpoint.height for end in ends):
                kept[upper] = replace(span, lower=ends[0], upper=ends[1])
        self._spans = OrderedDict(kept)
        self._uppers = sorted(kept)
        self._recount()

    def _recount(self) -> None:
        both = (end for span in self._spans.values() for end in (span.lower, span.upper))
        self._standing = {(end.height, end.digest): end for end in both}
