"""What the configuration says of one chain, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FinalityRule:
    """`mode` is `tag` (the node's own tags, depth where it knows none) or `depth` (so many blocks below the head)."""

    mode: str = "tag"
    depth: int = 64


@dataclass(frozen=True, slots=True)
class ChainRules:
    """Sizes in bytes, times in seconds. `chain_id` None: as the upstream proves it."""

    key: int
    name: str
    chain_id: int | None
    family: str
    nodes: str = ""
    """Stands for the nodes, by name and address, without telling either: others may have other nodes of the same names."""
    anchor_source: str = "none"
    finality: FinalityRule = field(default_factory=FinalityRule)
    max_in_flight: int | None = 32
    max_fills: int = 16
    max_queued_fills: int = 64
    cache_bytes: int = 256 * 2**20
    backfill: bool = False
    retention_blocks: int | None = None
    anchor_interval: int = 10
    max_anchor_span: int = 10_000
    """How far the two anchors of a proof may lie apart."""
    anchoring: bool = True
    fill_deadline_s: float = 120.0
    min_useful_s: float = 0.5
    head_interval_s: float = 2.0
    saturation_threshold_s: float = 10.0
    saturation_expiry_s: float = 60.0
