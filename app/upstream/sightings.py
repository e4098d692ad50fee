"""What nodes showed another process counts as if they had shown it here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.core.blocks import Sighting

from .evm import EvmNode


def note_heads(nodes: Iterable[EvmNode], sightings: Sequence[Sighting], now: float) -> None:
    """These blocks are the heads of the nodes of these names."""
    shown = {sighting.upstream: sighting.block for sighting in sightings}
    for node in nodes:
        block = shown.get(node.name)
        if block is not None:
            node.state.note_head(block.height, now, block.timestamp)
