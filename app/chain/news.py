"""What the head of a chain saw and somebody should know of: counted, and told where it must not go unnoticed."""

from __future__ import annotations

import logging

from app.metrics import Metrics

from .reorgs import Reorg

log = logging.getLogger(__name__)

ANOTHER_CHAIN = "another_chain_at_the_upstreams"
"""The event of the log when what was final is on no chain any more: nothing that was kept of it is used."""


class News:
    """Of one chain, by its name."""

    def __init__(self, chain: str, metrics: Metrics) -> None:
        self._chain = chain
        self._metrics = metrics

    def on_traced(self, reorg: Reorg) -> None:
        """A reorganisation was followed to where it began."""
        self._metrics.reorgs_total.labels(self._chain).inc()
        self._metrics.reorg_depth_blocks.labels(self._chain).observe(reorg.depth)
        if reorg.undoes_final and reorg.began_at == 0:
            log.error(ANOTHER_CHAIN, extra={"chain": self._chain})
        elif reorg.undoes_final:
            log.error(
                "reorg_below_finalized",
                extra={"chain": self._chain, "height": reorg.began_at, "depth": reorg.depth},
            )

    def on_dispute(self, upstreams: frozenset[str]) -> None:
        """These upstreams came to contradict each other about what is final."""
        self._metrics.source_disagreement_total.labels(self._chain).inc()
        log.error(
            "upstreams_contradict_each_other",
            extra={"chain": self._chain, "upstreams": sorted(upstreams)},
        )
