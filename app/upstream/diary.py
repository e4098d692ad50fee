"""What is written down about the calls to one node: each kind of failure once a minute, and when it is left alone."""

from __future__ import annotations

import logging

from app.core.routing import NodeState
from app.core.seldom import Seldom, Told

from .faults import ANSWERED, CallFailed, Fault

logger = logging.getLogger("copath.upstream")


class Diary:
    """Of one node, by its name. Failures come in thousands; lines must not."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seldom = Seldom()
        self._told = Told()

    def __repr__(self) -> str:
        return f"<Diary of {self._name}>"

    def failed(self, method: str, failure: CallFailed, now: float) -> None:
        """A call came to nothing; what the node said of it has no secrets in it any more."""
        if failure.fault is Fault.DENIED:
            if self._seldom.due(failure.fault, now) is not None:
                logger.error("upstream %s refuses us: %s", self._name, failure.message)
        elif failure.excerpt:
            line = "upstream %s, %s: %s: %s"
            if failure.fault in ANSWERED or (untold := self._seldom.due(failure.fault, now)) is None:
                logger.debug(line, self._name, method, failure, failure.excerpt)
            else:
                more = f" (and {untold} more since this was said last)" if untold else ""
                logger.warning(line + "%s", self._name, method, failure, failure.excerpt, more)

    def stands(self, state: NodeState, now: float) -> None:
        """After a call: whether the node is left alone now is said when it changes, at most once a minute."""
        opened = any(breaker.opened_at is not None for breaker in state.breakers.values())
        if self._told.changed("opened", opened, now):
            what = "is left alone for a while, since calls to it fail" if opened else "is asked as before"
            logger.info("upstream %s %s", self._name, what)
