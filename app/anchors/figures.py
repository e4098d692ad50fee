"""How reading the anchors of one chain from Creditcoin goes, as metrics, brought up to date when somebody reads them."""

from __future__ import annotations

from app.metrics import Growing, Metrics

from .creditcoin import Creditcoin


class AnchorFigures:
    """Owned by whoever owns the anchors. `publish` asks nobody and waits for nothing."""

    def __init__(self, chain: str, anchors: Creditcoin, metrics: Metrics) -> None:
        self._chain = chain
        self._anchors = anchors
        self._metrics = metrics
        self._growing = Growing()

    def publish(self) -> None:
        """Brings the metrics up to date."""
        metrics, anchors = self._metrics, self._anchors
        metrics.anchor_age_seconds.labels(self._chain).set(anchors.age_s)
        for result, count in anchors.polls.items():
            self._growing.tell(metrics.anchor_polls_total, (self._chain, result), count)
        self._growing.tell(metrics.anchor_reverts_total, (self._chain,), anchors.reverts)
