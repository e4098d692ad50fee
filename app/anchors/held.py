"""Anchors that are all in memory: what is asked of them is answered at once, by whichever source filled them."""

from __future__ import annotations

from app.core.continuity import Bracket, SortedMapping, choose_bracket


class HeldAnchors:
    """The reading half of the chain's `Anchors`. A source that keeps every anchor here fills both maps, and says what is the
    genesis, which is kept with the checkpoints: nothing retires it."""

    def __init__(self, chain_key: int, genesis: int | None) -> None:
        self._chain_key = chain_key
        self._genesis = genesis
        self._attestations = SortedMapping()
        self._checkpoints = SortedMapping()

    @property
    def genesis(self) -> int | None:
        """The lowest end of proofs; None while it is not known."""
        return self._genesis

    @property
    def attested_height(self) -> int | None:
        """The newest anchor of either kind; the genesis itself is one only once a block above it is anchored."""
        newest = [height for height in (self._attestations.newest, self._checkpoints.newest) if height is not None]
        return max(newest, default=None) if newest and max(newest) != self._genesis else None

    @property
    def checkpoint_height(self) -> int | None:
        """The newest checkpoint above the genesis."""
        newest = self._checkpoints.newest
        return None if newest == self._genesis else newest

    def bracket(self, lo: int, hi: int) -> Bracket:
        """The anchors around [lo, hi]; errors as `choose_bracket`."""
        return choose_bracket(self._attestations, self._checkpoints, lo, hi, chain_key=self._chain_key)

    async def find(self, lo: int, hi: int) -> Bracket:
        """As `bracket`: there is nobody to ask."""
        return self.bracket(lo, hi)

    def overtake(self, height: int) -> None:
        """Nothing: what others decided on stands until they take it back."""

    def contradicted(self, bracket: Bracket) -> None:
        """Nothing, as above."""

    def holds(self, bracket: Bracket) -> bool:
        """Whether both of its ends are still among the anchors: nothing retired one of them or took it back."""
        ends = ((bracket.lower, bracket.lower_digest), (bracket.upper, bracket.upper_digest))
        return all(value in (self._attestations.get(height), self._checkpoints.get(height)) for height, value in ends)
