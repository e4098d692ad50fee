"""What a chain can say for sure without asking anybody: the choice of the lane, and refusals that no node has to be asked for."""

from __future__ import annotations

from app.core.blocks import BlockRef
from app.core.continuity import Bracket, not_ready
from app.core.errors import AttestationsMissing, BlockBeforeOrAtGenesis, ProofError, RpcUnavailable
from app.core.provable_block import ProvableBlock

from .cache import BlockCache
from .ports import Anchors
from .roots import Roots


class Known:
    """Reads the settled blocks and the anchors of one chain. No method waits, asks or counts."""

    def __init__(
        self,
        chain_key: int,
        name: str,
        cache: BlockCache[ProvableBlock],
        anchors: Anchors | None,
        roots: Roots,
        max_anchor_span: int = 10_000,
    ) -> None:
        """`max_anchor_span`: how far two anchors may lie apart for a proof between them."""
        self._max_anchor_span = max_anchor_span
        self._chain_key = chain_key
        self._name = name
        self._cache = cache
        self._anchors = anchors
        self._roots = roots

    def block(self, ref: BlockRef) -> ProvableBlock | None:
        """The settled block, if it is known to be canonical for good; None says nothing."""
        block_hash = ref.block_hash
        if block_hash is None:
            assert ref.height is not None
            block_hash = self._cache.hash_at(ref.height)
        block = None if block_hash is None else self._cache.peek(block_hash)
        if block is None or not self._cache.pin_is_final(block.height):
            return None
        return block if self._cache.hash_at(block.height) == block.block_hash else None

    def transaction(self, tx_hash: bytes) -> ProvableBlock | None:
        """The settled block that holds the transaction, if it is known to be canonical for good; None says nothing."""
        position = self._cache.position_of(tx_hash)
        return None if position is None else self.block(BlockRef(block_hash=position.block_hash))

    def require_anchored(self, lo: int, hi: int) -> None:
        """Whether usc proofs of [lo, hi] can be anchored. Raises `AttestationsMissing`, `BlockBeforeOrAtGenesis`,
        `BlockNotReady`, or `RpcUnavailable` while it could not be found out."""
        anchors = self._anchors
        if anchors is None:
            raise AttestationsMissing(f"attestations missing for chain {self._chain_key}")
        genesis, newest = anchors.genesis, anchors.attested_height
        if genesis is not None and lo <= genesis:
            raise BlockBeforeOrAtGenesis(
                f"Block {lo} is before or at attestation genesis block {genesis}. "
                f"The first block with a continuity proof is {genesis + 1}."
            )
        if newest is None and not anchors.heard:
            raise RpcUnavailable(f"the anchors of chain {self._chain_key} ({self._name}) could not be read yet")
        if newest is None:
            raise AttestationsMissing(f"attestations missing for chain {self._chain_key}")
        if hi > newest:
            raise not_ready(lo if lo > newest else hi, newest)

    def continuity(self, lo: int, hi: int) -> bool:
        """Whether every root between the anchors around [lo, hi] is at hand, or it is known that there are no such anchors."""
        try:
            self.require_anchored(lo, hi)
            assert self._anchors is not None
            bracket = self._anchors.bracket(lo, hi)
        except ProofError:
            return True
        if bracket is None:
            return False
        if bracket.upper - bracket.lower > self._max_anchor_span:
            return True
        return not self._roots.missing(bracket.lower + 1, bracket.upper)

    def require_near(self, bracket: Bracket) -> None:
        """Raises `AttestationsMissing` when the anchors lie further apart than a proof is made for: it would be as long."""
        span = bracket.upper - bracket.lower
        if span > self._max_anchor_span:
            raise AttestationsMissing(
                f"attestations missing for chain {self._chain_key}: the anchors around these blocks, at {bracket.lower} and at "
                f"{bracket.upper}, lie {span} blocks apart, and proofs are made of {self._max_anchor_span} at most"
            )
