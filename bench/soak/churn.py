"""A minute of calls of which seven in ten are given up at random moments: connections lost, and whether the next calls succeed.

A connection that a cancelled call takes with it is gone for good in many a client. Over HTTP, and over one WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from app.core.blocks import BlockBodies, BlockRef
from app.upstream.evm import EvmNode
from app.upstream.failover import Failover
from app.upstream.posting import NodeLimits
from tests.corpus_files import recorded
from tests.scripted_behaviours import Behaviour
from tests.scripted_node import Connection, ScriptedNode
from tests.scripted_websocket import ScriptedWebSocket

SECONDS = 60.0
GIVEN_UP = 0.7
AT_ONCE = 24
"""Beside each other: more than there are connections."""

CONNECTIONS = 8
SLOWEST_S = 0.02
AFTERWARDS = 200

HEIGHT = BlockRef(height=1_000_000)


@dataclass(slots=True)
class Churn:
    """What one run came to."""

    fetches: int = 0
    given_up: int = 0
    failed: int = 0
    lost: int = 0
    """Connections, or places for calls, that nobody holds and that did not come back."""
    opened: int = 0
    served_afterwards: int = 0
    seconds: float = 0.0


def run() -> list[tuple[str, str, str]]:
    """Rows of the table."""
    rows = []
    for kind in ("http", "websocket"):
        found = asyncio.run(soak(SECONDS, websocket=kind == "websocket"))
        rows += [
            (
                f"{kind}: fetches in {found.seconds:.0f} s, {found.given_up:,} of them given up",
                f"{found.fetches:,}",
                "",
            ),
            (f"{kind}: connections lost", f"{found.lost}", "0 is right"),
            (f"{kind}: connections opened", f"{found.opened}", f"{found.opened / found.fetches:.3f}"),
            (f"{kind}: fetches that failed of those not given up", f"{found.failed}", "0 is right"),
            (f"{kind}: of the next {AFTERWARDS} fetches served", f"{found.served_afterwards}", "200 is right"),
        ]
    return rows


async def soak(seconds: float, *, websocket: bool, seed: int = 1) -> Churn:
    """Gives up seven fetches in ten for so long, and then sees what is left."""
    found, chance = Churn(), random.Random(seed)
    async with _opened(websocket=websocket, chance=chance) as (node, side, evm, upstream):
        began_at = time.monotonic()

        async def ask() -> None:
            while time.monotonic() - began_at < seconds:
                await _one(upstream, chance, found)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(ask())
        found.seconds = time.monotonic() - began_at
        found.opened = node.connections if side is None else side.handshakes
        found.lost = evm.connections_held + max(0, node.open_connections - CONNECTIONS)
        for _ in range(AFTERWARDS // AT_ONCE + 1):
            wanted = min(AT_ONCE, AFTERWARDS - found.served_afterwards)
            blocks = await asyncio.gather(*(upstream.fetch(HEIGHT, _whole) for _ in range(wanted)))
            found.served_afterwards += sum(blocks)
    return found


async def _one(upstream: Failover, chance: random.Random, found: Churn) -> None:
    fetch = asyncio.create_task(upstream.fetch(HEIGHT, _whole))
    found.fetches += 1
    if chance.random() < GIVEN_UP:
        await asyncio.wait([fetch], timeout=2 * SLOWEST_S * chance.random())
        found.given_up += fetch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        try:
            await fetch
        except Exception:  # noqa: BLE001 - whatever it is, it is counted
            found.failed += 1


async def _whole(bodies: BlockBodies) -> bool:
    return bodies.receipts_json is not None


@contextlib.asynccontextmanager
async def _opened(
    *, websocket: bool, chance: random.Random
) -> AsyncIterator[tuple[ScriptedNode, ScriptedWebSocket | None, EvmNode, Failover]]:
    async with contextlib.AsyncExitStack() as stack:
        node = await stack.enter_async_context(ScriptedNode.of_corpus(recorded("full", "mainnet_1000000")))
        node.always("*", _sometime(chance))
        side = await stack.enter_async_context(ScriptedWebSocket(node)) if websocket else None
        limits = NodeLimits(max_connections=CONNECTIONS, pool_timeout_s=30.0)
        evm = EvmNode("churned", node.url if side is None else side.url, chain_id=1, limits=limits, trust_env=False)
        upstream = Failover([evm])
        stack.push_async_callback(upstream.aclose)
        yield node, side, evm, upstream


def _sometime(chance: random.Random) -> Behaviour:
    async def act(node: ScriptedNode, connection: Connection, call: Any) -> None:
        await asyncio.sleep(SLOWEST_S * chance.random())
        await connection.respond_json(node.honest(call))

    return Behaviour("sometime", act=act)
