"""Several scripted nodes behind one upstream, with one clock that is moved by hand."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.chain.witnessing import LASTING_ERRORS, refused, require_whole
from app.core.block_building import build
from app.core.blocks import BlockBodies, BlockRef
from app.core.provable_block import BuildRequest, ProvableBlock
from app.core.routing import RoutingRules
from app.upstream.evm import EvmNode
from app.upstream.failover import Failover
from app.upstream.posting import NodeLimits
from app.upstream.retries import Patience
from tests.scripted_node import ScriptedNode
from tests.upstream.conftest import WALL, Counts, HandClock

BY_NUMBER, BY_HASH, RECEIPTS = "eth_getBlockByNumber", "eth_getBlockByHash", "eth_getBlockReceipts"
HEAD, TX, TX_RECEIPT, CHAIN_ID = (
    "eth_blockNumber",
    "eth_getTransactionByHash",
    "eth_getTransactionReceipt",
    "eth_chainId",
)

NAMES = "abcdef"


@dataclass
class Crew:
    """The nodes a, b, c, ... in the order in which they are asked, and the upstream over them."""

    nodes: list[ScriptedNode]
    evms: list[EvmNode]
    counts: list[Counts]
    upstream: Failover
    clock: HandClock
    judged: list[str] = field(default_factory=list)
    """Whose bodies were checked, in order."""

    async def fetch(self, ref: BlockRef) -> ProvableBlock:
        """The block, checked as the chain checks it."""
        return await self.upstream.fetch(ref, self.accept)

    async def accept(self, bodies: BlockBodies) -> ProvableBlock:
        self.judged.append(bodies.upstream)
        request = BuildRequest(
            family="ethereum",
            chain_id=1,
            anchored=False,
            height=None,
            block_hash=None,
            block_json=bodies.block_json,
            receipts_json=bodies.receipts_json,
            receipts_error=bodies.receipts_error,
        )
        try:
            block = build(request)
        except LASTING_ERRORS as error:
            raise refused(error) from None
        require_whole(block)
        return block

    async def greet(self) -> None:
        """Every node proves its chain and names its head; then the counts begin."""
        await self.upstream.sightings("latest")
        for node in self.nodes:
            node.reset_counts()
        for counts in self.counts:
            counts.calls.clear()

    def hits(self, method: str) -> list[int]:
        """Calls of one method, by node."""
        return [node.hits[method] for node in self.nodes]

    @property
    def asked(self) -> list[int]:
        """Calls of any method, by node."""
        return [sum(node.hits.values()) for node in self.nodes]

    def limit(self, **limits: Any) -> None:
        """Other limits from now on, for tests in which real time has to pass: `NodeLimits` by name."""
        for evm in self.evms:
            evm._ways.poster.limits = replace(evm._ways.poster.limits, **limits)

    def listed(self, at: int) -> Mapping[str, object]:
        """What is said of a node in public."""
        return self.upstream.states()[at]


@contextlib.asynccontextmanager
async def open_crew(
    *nodes: ScriptedNode,
    rules: RoutingRules | None = None,
    derived: bool = False,
    urls: Sequence[str | None] = (),
    chain_id: int | None = 1,
    family: str | None = None,
    greeted: bool = True,
    **limits: Any,
) -> AsyncIterator[Crew]:
    """An upstream over nodes that are started here. `derived`: all but the first declare to derive from it. `urls` in place of
    the nodes' own. `greeted`: their heads are known and the counts begin after that."""
    clock = HandClock()
    async with contextlib.AsyncExitStack() as stack:
        evms, counts = [], []
        for at, node in enumerate(nodes):
            await stack.enter_async_context(node)
            counts.append(Counts())
            evms.append(
                EvmNode(
                    NAMES[at],
                    (urls[at] if at < len(urls) else None) or node.url,
                    chain_id=chain_id,
                    family=family,
                    derives_from="a" if derived and at else None,
                    limits=NodeLimits(**limits),
                    observer=counts[at],
                    clock=clock.now,
                    wall_clock=lambda: WALL,
                    trust_env=False,
                )
            )
        patience = Patience(clock.pause, clock.now, lambda: 0.5)
        crew = Crew(list(nodes), evms, counts, Failover(evms, rules=rules, patience=patience), clock)
        stack.push_async_callback(crew.upstream.aclose)
        if greeted:
            await crew.greet()
        yield crew
