"""What is said of the requests that are refused before any work: each is counted, some are logged."""

from __future__ import annotations

import logging

from app.api.lobby import Lobby
from app.api.visit import Visit
from app.core.errors import (
    BodyTimeout,
    ChainOverloaded,
    ConsumerConcurrency,
    ConsumerRateLimited,
    Draining,
    Overloaded,
    ProofError,
    RequestTimeout,
    Unauthorized,
    UpstreamBudgetExhausted,
)

log = logging.getLogger(__name__)

LOG_EVERY_S = 1.0
"""A refusal is logged at most this often for each reason, and those between have no line of their end either: writing one takes
longer than refusing, and the log must not become a load of its own."""

_REASONS: dict[type[ProofError], str] = {
    Overloaded: "overloaded",
    ChainOverloaded: "chain_overloaded",
    RequestTimeout: "timeout",
    BodyTimeout: "body_timeout",
    Draining: "draining",
    ConsumerRateLimited: "consumer_rate",
    ConsumerConcurrency: "consumer_concurrency",
    Unauthorized: "unauthorized",
    UpstreamBudgetExhausted: "upstream_budget",
}


class Refusals:
    """Of one layer. At most one line a second for each reason, with how many were left out since the last one."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}

    def note(self, house: Lobby, visit: Visit, refusal: ProofError) -> None:
        """Counts a refusal, once, and logs some of them."""
        reason = _REASONS.get(type(refusal))
        if reason is None:
            return
        if isinstance(refusal, Overloaded | ChainOverloaded):
            reason = str(
                refusal.extra.get("reason", reason)
            )  # what else than the cold lane is full, or cannot be asked
        house.metrics.admission_rejected_total.labels(reason).inc()
        visit.hushed = not self._logged(reason, visit, house.now()) and not isinstance(refusal, RequestTimeout)

    def _logged(self, reason: str, visit: Visit, now: float) -> bool:
        logged_at, suppressed = self._last.get(reason, (None, 0))
        if logged_at is not None and now - logged_at < LOG_EVERY_S:
            self._last[reason] = (logged_at, suppressed + 1)
            return False
        self._last[reason] = (now, 0)
        line: dict[str, object] = {"reason": reason, "suppressed": suppressed, "request_id": visit.request_id}
        if visit.chain is not None:
            line["chain"] = visit.chain.name
        if visit.key_id is not None:
            line["key_id"] = visit.key_id
        log.warning("refused", extra=line)
        return True
