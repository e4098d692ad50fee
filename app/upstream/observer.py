"""What somebody who counts wants to hear about one node. Every argument is from a closed set or a number."""

from __future__ import annotations

from typing import Protocol


class UpstreamObserver(Protocol):
    """Called synchronously, between awaits: must be quick and must not raise."""

    def on_call(self, method: str, result: str, seconds: float) -> None:
        """One call ended.

        `result` is one of ok, not_found, timeout, transport, http_4xx, http_5xx, rate_limited, invalid, cancelled.
        `seconds` is without the wait for a free connection. A batch is one call.
        """

    def on_content_invalid(self, check: str) -> None:
        """What the node sent failed a check."""

    def on_pool_timeout(self) -> None:
        """No connection of ours came free in time. Not the node's fault."""

    def on_batch_limit(self, size: int) -> None:
        """The largest batch that the node is now believed to take."""


class NoObserver:
    """Nobody counts."""

    def on_call(self, method: str, result: str, seconds: float) -> None: ...

    def on_content_invalid(self, check: str) -> None: ...

    def on_pool_timeout(self) -> None: ...

    def on_batch_limit(self, size: int) -> None: ...
