"""The usc roots of a chain's heights, 32 bytes each, so that a digest chain over a hundred blocks costs no block fetch.

They are kept in pages of neighbouring heights: a bracket is one or two of them, and a page that nobody asked for lately goes.
A root is that of the block which was canonical when it was noted. It need not be right for ever: whoever makes a digest chain of
roots compares its end with an anchor.
"""

from __future__ import annotations

from collections.abc import Iterable

from cachetools import LRUCache

_HEIGHTS = 256
_ROOT = 32


class _Page:
    __slots__ = ("known", "roots")

    def __init__(self) -> None:
        self.known = bytearray(_HEIGHTS)
        self.roots = bytearray(_HEIGHTS * _ROOT)


class Roots:
    """Belongs to one event loop; no method awaits. `max_pages` pages of 256 heights, 8.4 kB each."""

    def __init__(self, max_pages: int = 4096) -> None:
        self._pages: LRUCache[int, _Page] = LRUCache(max_pages)

    def __repr__(self) -> str:
        return f"<Roots {sum(sum(page.known) for page in self._pages.values())} in {len(self._pages)} pages>"

    def note(self, height: int, root: bytes) -> None:
        """The root of the block now canonical at `height`."""
        number, at = divmod(height, _HEIGHTS)
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _Page()
        page.known[at] = 1
        page.roots[at * _ROOT : (at + 1) * _ROOT] = root

    def get(self, height: int) -> bytes | None:
        """The root at `height`, if it is known."""
        number, at = divmod(height, _HEIGHTS)
        page = self._pages.get(number)
        if page is None or not page.known[at]:
            return None
        return bytes(page.roots[at * _ROOT : (at + 1) * _ROOT])

    def missing(self, first: int, last: int) -> list[int]:
        """The heights of [first, last] whose root is not known, ascending."""
        found: list[int] = []
        for start in range(first - first % _HEIGHTS, last + 1, _HEIGHTS):
            page = self._pages.get(start // _HEIGHTS)
            low, high = max(first, start), min(last, start + _HEIGHTS - 1)
            if page is None:
                found += range(low, high + 1)
            elif not all(page.known[low - start : high - start + 1]):
                found += (height for height in range(low, high + 1) if not page.known[height - start])
        return found

    def all(self, first: int, last: int) -> tuple[bytes, ...] | None:
        """The roots of [first, last], where all of them are known."""
        found = []
        for height in range(first, last + 1):
            root = self.get(height)
            if root is None:
                return None
            found.append(root)
        return tuple(found)

    def forget(self, heights: Iterable[int]) -> None:
        """These may be those of other blocks."""
        for height in heights:
            number, at = divmod(height, _HEIGHTS)
            page = self._pages.get(number)
            if page is not None:
                page.known[at] = 0

    def forget_from(self, height: int) -> None:
        """A reorg: nothing is known from `height` on."""
        number, at = divmod(height, _HEIGHTS)
        for above in [page for page in self._pages if page > number]:
            del self._pages[above]
        page = self._pages.get(number)
        if page is not None:
            page.known[at:] = bytes(_HEIGHTS - at)
