"""Whether a node that promised to say when its head moves can be relied on to say so.

    (no subscription) --begin--> LIVE --a poll shows what was not announced--> for LATE_S still LIVE --> SILENT
                                   ^------------- an announcement that keeps up <------------------------|
    SILENT for SILENT_S: to be subscribed anew

What is announced is never believed: it only says that asking is worth a call. Synchronous; `now` is an argument.
"""

from __future__ import annotations

SILENT_S = 90.0
"""A subscription that missed a block and has been silent for so long is given up for another."""

LATE_S = 5.0
"""An announcement may come so much later than a poll that happened to be made in between."""


class Watch:
    """The subscription of one node. Owned by the node; every change happens between awaits."""

    __slots__ = ("_overtaken_at", "_seen", "_since", "heard_at")

    def __init__(self) -> None:
        self._since: float | None = None
        self._overtaken_at: float | None = None
        self._seen: tuple[int, bytes] | None = None
        self.heard_at: float | None = None
        """When the node last announced a block that was not below what it had named when asked."""

    def __repr__(self) -> str:
        return f"<Watch since {self._since}, heard {self.heard_at}, overtaken {self._overtaken_at}>"

    def begin(self, now: float) -> None:
        """The node confirmed a subscription."""
        self._since, self._overtaken_at, self._seen = now, None, None

    def end(self) -> None:
        """The subscription is over."""
        self._since = None

    def hear(self, height: int, block_hash: bytes, now: float) -> bool:
        """The node announced a block. Whether that is one which it had not named when asked: worth asking."""
        if self._seen is None or height >= self._seen[0]:
            self.heard_at, self._overtaken_at = now, None
        return (height, block_hash) != self._seen

    def see(self, height: int, block_hash: bytes, now: float) -> None:
        """The node, asked for its head, named this block."""
        before, self._seen = self._seen, (height, block_hash)
        if before is not None and before != self._seen and self._overtaken_at is None:
            self._overtaken_at = now

    def live(self, now: float) -> bool:
        """Whether silence means that the head stands still."""
        late = self._overtaken_at is not None and now - self._overtaken_at > LATE_S
        return self._since is not None and not late

    def silent(self, now: float) -> bool:
        """Whether the head moved on long ago and the subscription said nothing of it."""
        if self._since is None or self.live(now):
            return False
        return now - max(self._since, self.heard_at or self._since) >= SILENT_S
