"""All subscriptions of one chain as one: whether to wait for news rather than go and ask, and when there are some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from .evm import EvmNode


class Herald:
    """Over the nodes of which at least one has a subscription. Fits the chain's port of that name."""

    def __init__(self, nodes: Sequence[EvmNode], now: Callable[[], float]) -> None:
        self._nodes = nodes
        self._now = now
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Herald {'at work' if self.at_work else 'silent'}>"

    @classmethod
    def over(cls, nodes: Sequence[EvmNode], now: Callable[[], float]) -> Herald | None:
        """None where no node offers a subscription."""
        return cls(nodes, now) if any(node.subscription is not None for node in nodes) else None

    @property
    def at_work(self) -> bool:
        """Whether a node that is in use would say when its head moves."""
        now = self._now()
        return any(node.announces(now) for node in self._nodes)

    async def heard(self) -> None:
        """Returns when a node announced a block that it had not named when asked, or will announce nothing for now; at once where
        one did since the last return."""
        for node in self._nodes:
            if node.subscription is not None:
                node.subscription.begin(self._news.set)
        await self._news.wait()
        self._news.clear()

    def rest(self) -> None:
        """Ends the subscriptions, until somebody listens again."""
        for node in self._nodes:
            if node.subscription is not None:
                node.subscription.rest()
