"""The digest chain that ties a block's binary-tree root to an anchor, and the choice of the anchors around a range.

    digest(n) = keccak( n as 8 bytes big endian || root(n), 32 bytes || digest(n-1), 32 bytes )

An anchor is a height whose digest a verifier already accepts. A proof for heights lo..hi lies in a bracket

      lower            lo                    hi            upper
    --- A --- o --- o --- o --- o --- o --- o --- o --- o --- A ---
              |<-------------- hashed and compared ---------->|
                          |<-- roots handed to the verifier ->|

with lower < lo and hi <= upper. Anchors come in two kinds: attestations (dense, retired by a checkpoint above them) and
checkpoints (sparse, kept). Source: the Creditcoin universal smart contract (USC) verifier and its proof server.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.core.errors import AttestationsMissing, BlockNotReady, Internal
from app.core.keccak import keccak

ATTESTATION = "attestation"
CHECKPOINT = "checkpoint"
CHECKPOINT_THEN_ATTESTATION = "mixed_cp_lower_att_upper"
ATTESTATION_THEN_CHECKPOINT = "mixed_att_lower_cp_upper"


class SortedMapping(Mapping[int, bytes]):
    """Height -> digest, iterated in ascending order of height; the nearest height on either side is found by bisection.

    Heights mostly arrive in ascending order, which costs an append; any other order costs a shift.
    """

    __slots__ = ("_digests", "_heights")

    def __init__(self, entries: Mapping[int, bytes] | Iterable[tuple[int, bytes]] = ()) -> None:
        self._digests: dict[int, bytes] = dict(entries)
        self._heights: list[int] = sorted(self._digests)

    def __getitem__(self, height: int) -> bytes:
        return self._digests[height]

    def __iter__(self) -> Iterator[int]:
        return iter(self._heights)

    def __len__(self) -> int:
        return len(self._heights)

    def __repr__(self) -> str:
        span = f", {self._heights[0]}..{self._heights[-1]}" if self._heights else ""
        return f"<{type(self).__name__} {len(self._heights)} anchors{span}>"

    @property
    def newest(self) -> int | None:
        """The greatest height, None when empty."""
        return self._heights[-1] if self._heights else None

    def put(self, height: int, digest: bytes) -> None:
        """Set the digest of `height`, replacing an earlier one."""
        if height not in self._digests:
            self._heights.insert(bisect_left(self._heights, height), height)
        self._digests[height] = digest

    def drop_up_to(self, height: int) -> None:
        """Forget every height <= `height`; a `height` below the first one forgets nothing."""
        self._drop(0, bisect_right(self._heights, height))

    def drop_above(self, height: int) -> None:
        """Forget every height > `height`."""
        self._drop(bisect_right(self._heights, height), len(self._heights))

    def _drop(self, start: int, stop: int) -> None:
        for height in self._heights[start:stop]:
            del self._digests[height]
        del self._heights[start:stop]

    def below(self, height: int) -> int | None:
        """The greatest height strictly below `height`."""
        at = bisect_left(self._heights, height)
        return self._heights[at - 1] if at else None

    def at_or_above(self, height: int) -> int | None:
        """The smallest height that is not below `height`."""
        at = bisect_left(self._heights, height)
        return self._heights[at] if at < len(self._heights) else None


@dataclass(frozen=True, slots=True)
class Bracket:
    """Two anchors around a range: lower < every height of the range <= upper. `source` names the kinds of the two."""

    source: str
    lower: int
    lower_digest: bytes
    upper: int
    upper_digest: bytes


@dataclass(frozen=True, slots=True)
class ContinuityProof:
    """`roots[k]` is the root of height lo + k, up to the upper anchor; the digest is that of height lo - 1."""

    lower_endpoint_digest: bytes
    roots: tuple[bytes, ...]


def digest(height: int, root: bytes, previous: bytes | None) -> bytes:
    """The digest of one height over the one below it. The first of a chain has none below: it hashes 40 bytes, no more.

    Requires 0 <= height < 2**64 and 32-byte `root` and `previous`; ValueError otherwise.
    """
    if not 0 <= height < 1 << 64:
        raise ValueError(f"height {height} does not fit 64 bits")
    if len(root) != 32:
        raise ValueError(f"root of {len(root)} bytes at height {height}")
    if previous is None:
        return keccak(height.to_bytes(8, "big") + root)
    if len(previous) != 32:
        raise ValueError(f"previous digest of {len(previous)} bytes at height {height}")
    return keccak(height.to_bytes(8, "big") + root + previous)


def choose_bracket(
    attestations: SortedMapping, checkpoints: SortedMapping, lo: int, hi: int, *, chain_key: int | str
) -> Bracket:
    """The anchors around [lo, hi]: both attestations, else both checkpoints, else checkpoint below and attestation
    above, else attestation below and checkpoint above. The first complete pair wins, even where a later one would be
    tighter.

    The mixed pairs exist because a checkpoint retires the attestations up to it: the interval that follows it has no
    attestation below, and the one before it may have none above. Requires lo <= hi.

    Raises `AttestationsMissing` when there is no anchor at all, `BlockNotReady` when none is at or above `hi`, and
    `Internal` when one is above but none below (a hole in the anchors). `chain_key` only names the chain in the
    message.
    """
    if lo > hi:
        raise ValueError(f"the range {lo}..{hi} is empty")
    for source, below, above in (
        (ATTESTATION, attestations, attestations),
        (CHECKPOINT, checkpoints, checkpoints),
        (CHECKPOINT_THEN_ATTESTATION, checkpoints, attestations),
        (ATTESTATION_THEN_CHECKPOINT, attestations, checkpoints),
    ):
        lower, upper = below.below(lo), above.at_or_above(hi)
        if lower is not None and upper is not None:
            return Bracket(source, lower, below[lower], upper, above[upper])

    newest = max((height for height in (attestations.newest, checkpoints.newest) if height is not None), default=None)
    if newest is None:
        raise AttestationsMissing(f"attestations missing for chain {chain_key}")
    if newest < hi:
        raise not_ready(hi, newest)
    raise Internal(
        f"internal error: no anchor below block {lo} of chain {chain_key}, though block {newest} is anchored: "
        "the anchors known here begin too late"
    )


def starting_at(proof: ContinuityProof, lo: int, start: int) -> ContinuityProof:
    """The part of a proof that begins at `lo` which begins at `start`: it ends in the same anchor. Requires lo <= start, and a
    root for every height in between; ValueError otherwise."""
    if not lo <= start < lo + len(proof.roots):
        raise ValueError(f"no proof of {len(proof.roots)} roots from {lo} holds one that begins at {start}")
    below = proof.lower_endpoint_digest
    for height, root in enumerate(proof.roots[: start - lo], lo):
        below = digest(height, root, below)
    return ContinuityProof(below, proof.roots[start - lo :])


def not_ready(height: int, newest: int) -> BlockNotReady:
    """The refusal of a height above the newest anchor, in the words that clients of the USC proof server know."""
    return BlockNotReady(
        f"The continuity proof cannot be created because block {height} is not attested to yet. "
        f"Last attested block: {newest}",
        block_number=height,
        last_attested_block=newest,
    )


def cut(bracket: Bracket, roots: Sequence[bytes], lo: int) -> ContinuityProof:
    """The continuity proof that starts at `lo`, from the roots of lower+1..upper in ascending order, one per height.

    Every digest of the bracket is recomputed from the lower anchor's, and the last must equal the upper anchor's: a
    root that is missing, misplaced or of another fork is found here. Requires lower < lo <= upper. Raises `Internal`
    when any of this does not hold.
    """
    lower, upper = bracket.lower, bracket.upper
    if not lower < lo <= upper:
        raise Internal(f"internal error: block {lo} lies outside the anchors {lower}..{upper}")
    if len(roots) != upper - lower:
        raise Internal(
            f"internal error: {len(roots)} roots for the {upper - lower} blocks {lower + 1}..{upper}: "
            "the range is not contiguous"
        )
    try:
        digests = [bracket.lower_digest]
        for height, root in enumerate(roots, lower + 1):
            digests.append(digest(height, root, digests[-1]))
    except ValueError as malformed:
        raise Internal(f"internal error: {malformed}") from malformed
    if digests[-1] != bracket.upper_digest:
        raise Internal(
            f"internal error: the digest of block {upper} is 0x{digests[-1].hex()}, its anchor says "
            f"0x{bracket.upper_digest.hex()}: some block of {lower + 1}..{upper} is not the attested one"
        )
    return ContinuityProof(digests[lo - 1 - lower], tuple(roots[lo - 1 - lower :]))
