"""What is written down about the calls to one node: each kind of failure once a minute, and when it is left alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from traceback import extract_tb

from app.core.routing import NodeState
from app.core.seldom import Seldom, Told

from .faults import ANSWERED, CallFailed, Fault

logger = logging.getLogger("copath.upstream")


class Diary:
    """Of one node. Failures come in thousands; lines must not. `facts` name it in each line."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        self._facts = facts
        self._seldom = Seldom()
        self._told = Told()

    def __repr__(self) -> str:
        return f"<Diary of {self._facts}>"

    def failed(self, method: str, failure: CallFailed, now: float) -> None:
        """A call came to nothing; what the node said of it has no secrets in it any more."""
        if failure.fault is Fault.DENIED:
            if self._seldom.due(failure.fault, now) is not None:
                logger.error("upstream_denied", extra={**self._facts, "detail": failure.message})
        elif failure.excerpt:
            facts = {**self._facts, "method": method, "detail": str(failure), "excerpt": failure.excerpt}
            answered = failure.fault in ANSWERED and not failure.denied
            if answered or (untold := self._seldom.due(failure.fault, now)) is None:
                logger.debug("upstream_call_failed", extra=facts)
            else:
                logger.warning("upstream_call_failed", extra={**facts, "suppressed": untold})

    def crashed(self, fault: Exception, now: float) -> None:
        """Handling an answer failed in a way that nobody foresaw: the stack once a minute for each kind."""
        if self._seldom.due(("crashed", type(fault)), now) is not None:
            # Without its message, which may quote what the node sent.
            frames = [f"{each.filename}:{each.lineno} {each.name}" for each in extract_tb(fault.__traceback__)]
            facts = {**self._facts, "type": type(fault).__qualname__, "stack_frames": frames}
            logger.error("upstream_answer_unhandled", extra=facts)

    def stands(self, state: NodeState, now: float) -> None:
        """After a call: whether the node is left alone now is said when it changes, at most once a minute."""
        opened = any(breaker.opened_at is not None for breaker in state.breakers.values())
        if self._told.changed("opened", opened, now):
            logger.info("upstream_breaker_opened" if opened else "upstream_breaker_closed", extra=self._facts)
