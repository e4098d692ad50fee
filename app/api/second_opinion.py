"""No proof leaves before the checker, which shares no code with the prover, accepted the exact bytes.

The checker is a function of these bytes and of what they are to prove: what it accepted it would accept again. So a native proof
is not put to it a second time while it is remembered, byte for byte and with the same question. No usc proof is remembered: each
of them bears the time of its making.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b

from starlette.applications import Starlette
from starlette.types import Scope

from app import checker
from app.api import wire
from app.api.lobby import ChainFloor, CutContinuity, open_house_of
from app.api.visit import visit_of
from app.core.errors import SelfCheckFailed

log = logging.getLogger(__name__)


REMEMBERED = 8192
"""Accepted answers, about 150 bytes each."""


class Accepted:
    """What the checker accepted lately, by digest; what was not asked for longest is forgotten first."""

    def __init__(self, entries: int = REMEMBERED) -> None:
        self._entries = entries
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, digest: bytes) -> bool:
        if digest not in self._digests:
            return False
        self._digests.move_to_end(digest)
        return True

    def add(self, digest: bytes) -> None:
        """Remembers it, at the price of another where there is no room."""
        self._digests[digest] = None
        if len(self._digests) > self._entries:
            self._digests.popitem(last=False)


def remember(app: Starlette) -> None:
    """Gives an application, whose answers are judged here, its memory."""
    app.state.accepted = Accepted()


def require_native(scope: Scope, chain: ChainFloor, body: bytes, asked: Mapping[str, object]) -> None:
    """Raises `SelfCheckFailed` unless `body` proves exactly what was `asked` (names of body fields with their
    values)."""
    accepted: Accepted = scope["app"].state.accepted
    digest = _digest(body, asked)
    if digest in accepted:
        return
    try:
        checker.check_native(body, asked)
    except checker.Refused as refused:
        raise _failed(scope, chain, str(asked["kind"]), refused) from refused
    accepted.add(digest)


def require_usc(
    scope: Scope, chain: ChainFloor, body: bytes, asked: Mapping[str, object], continuity: CutContinuity
) -> None:
    """As `require_native`, for a usc body that must lead to the upper anchor of `continuity`."""
    try:
        checker.check_usc(body, asked, (continuity.upper_height, continuity.upper_digest))
    except checker.Refused as refused:
        raise _failed(scope, chain, wire.USC, refused) from refused


def require_usc_batch(
    scope: Scope, chain: ChainFloor, body: bytes, asked: Mapping[str, object], continuity: CutContinuity
) -> None:
    """As `require_usc`, for a batch."""
    try:
        checker.check_usc_batch(body, asked, (continuity.upper_height, continuity.upper_digest))
    except checker.Refused as refused:
        raise _failed(scope, chain, wire.USC, refused) from refused


def _digest(body: bytes, asked: Mapping[str, object]) -> bytes:
    """Of both that the checker is given. `asked` holds texts and numbers, which are told apart by how they are written."""
    question = blake2b(repr(sorted(asked.items())).encode()).digest()
    return blake2b(body, digest_size=32, key=question).digest()


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
