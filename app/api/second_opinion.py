"""No proof leaves before the checker, which shares no code with the prover, accepted the exact bytes."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.types import Scope

from app import checker
from app.api import wire
from app.api.lobby import ChainFloor, CutContinuity, open_house_of
from app.api.visit import visit_of
from app.core.errors import SelfCheckFailed

log = logging.getLogger(__name__)


def require_native(scope: Scope, chain: ChainFloor, body: bytes, asked: Mapping[str, object]) -> None:
    """Raises `SelfCheckFailed` unless `body` proves exactly what was `asked` (names of body fields with their
    values)."""
    try:
        checker.check_native(body, asked)
    except checker.Refused as refused:
        raise _failed(scope, chain, str(asked["kind"]), refused) from refused


def require_usc(
    scope: Scope, chain: ChainFloor, body: bytes, asked: Mapping[str, object], continuity: CutContinuity
) -> None:
    """As `require_native`, for a usc body that must lead to the upper anchor of `continuity`."""
    try:
        checker.check_usc(body, asked, (continuity.upper_height, continuity.upper_digest))
    except checker.Refused as refused:
        raise _failed(scope, chain, wire.USC, refused) from refused


def _failed(scope: Scope, chain: ChainFloor, kind: str, refused: checker.Refused) -> SelfCheckFailed:
    open_house_of(scope).metrics.selfcheck_failures_total.labels(chain.name, kind).inc()
    log.error(
        "selfcheck_failed",
        extra={
            "chain": chain.name,
            "kind": kind,
            "reason": refused.reason,
            "field": refused.field,
            "request_id": visit_of(scope).request_id,
        },
    )
    return SelfCheckFailed("the independent verifier refused this proof; it was not sent")
