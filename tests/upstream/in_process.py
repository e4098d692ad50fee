"""Nodes in this process, below the HTTP client, that take as long as they are told by a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2

from app.core.routing import RoutingRules
from app.upstream.evm import EvmNode
from app.upstream.failover import Failover
from app.upstream.posting import NodeLimits
from app.upstream.retries import Patience
from tests.fakes import ManualClock, settle
from tests.scripted_node import ScriptedNode

NEVER = 10**9
"""Seconds after which nobody waits any more."""


class InProcess(httpx2.AsyncBaseTransport):
    """A node as a transport. `takes` says how long a call takes, by its method and its parameters."""

    def __init__(
        self, node: ScriptedNode, takes: Callable[[str, list[Any]], float] = lambda method, params: 0.0
    ) -> None:
        self.node = node
        self.takes = takes
        self.cancelled: Counter[str] = Counter()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        call = json.loads(await request.aread())
        # What httpcore tells of a connection: from here on the attempt's own time runs.
        await request.extensions["trace"]("http11.send_request_headers.started", {})
        self.node._count(call)
        seconds = self.takes(call["method"], call["params"])
        if seconds:
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.cancelled[call["method"]] += 1
                raise
        behaviour = self.node._next(call["method"])
        assert behaviour.reply is not None
        body = json.dumps(behaviour.reply(self.node, call)).encode()
        return httpx2.Response(200, headers={"content-type": "application/json"}, stream=Body(body))


class Body(httpx2.AsyncByteStream):
    """A body that is there already."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


class Timed:
    """An upstream over nodes in this process, under a clock that moves when the test says so."""

    def __init__(self, *nodes: ScriptedNode, rules: RoutingRules | None = None, derived: bool = False) -> None:
        self.clock = ManualClock().drive()
        self.transports = [InProcess(node) for node in nodes]
        self.evms = [
            EvmNode(
                name,
                "http://in-process",
                chain_id=1,
                derives_from="a" if derived and name != "a" else None,
                limits=NodeLimits(),
                transport=transport,
                clock=self.clock.now,
            )
            for name, transport in zip("abcdef", self.transports, strict=False)
        ]
        patience = Patience(asyncio.sleep, self.clock.now, lambda: 0.5)
        self.upstream = Failover(self.evms, rules=rules, patience=patience)

    async def let(self, seconds: float) -> None:
        """Time passes, and whatever happens meanwhile."""
        await settle(200)
        for _ in range(round(seconds / 0.05)):
            await self.clock.advance(0.05)
            await settle(100)

    async def after(self, seconds: float, waiting: asyncio.Future[Any]) -> float:
        """How many seconds it takes, of so many at most, until `waiting` is done."""
        began_at = self.clock.now()
        await settle(200)
        while not waiting.done():
            assert self.clock.now() - began_at < seconds, f"not within {seconds} s"
            await self.let(0.05)
        return self.clock.now() - began_at

    def hits(self, method: str) -> list[int]:
        """Calls of one method, by node."""
        return [transport.node.hits[method] for transport in self.transports]

    async def greet(self) -> None:
        """Every node proves its chain and names its head; then the counts begin."""
        await self.upstream.sightings("latest")
        for transport in self.transports:
            transport.node.reset_counts()
