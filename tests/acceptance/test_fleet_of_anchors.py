"""Two servers on one PostgreSQL make the anchors of a chain once, and the one that is left goes on from the last of them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.sepolia_range import FIRST, RECORDS, SEPOLIA
from tests.acceptance.server import Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.postgres import PostgresServer, postgres_server

__all__ = ["postgres_server"]

INTERVAL = 5
LOST_ABOVE = FIRST + 32
"""At first the node has lost the receipts above; the newest anchor is two below."""

ANCHORED = [height for height in RECORDS if (height - FIRST) % INTERVAL == 0]


class Node:
    """Counts which blocks it gives, and which it cannot."""

    def __init__(self, played: RecordedChain) -> None:
        self._played = played
        self._heights = {record["block"]["hash"]: height for height, record in RECORDS.items()}
        self.given: Counter[int] = Counter()
        self.lost_above: int | None = LOST_ABOVE
        played.answers["eth_getBlockReceipts"] = self._receipts

    def _receipts(self, params: tuple[Any, ...]) -> Any:
        height = self._heights[params[0]]
        if self.lost_above is not None and height > self.lost_above:
            raise ConnectionError
        self.given[height] += 1
        return RECORDS[height]["receipts"]


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    name = asyncio.run(postgres_server.create())
    yield name
    asyncio.run(postgres_server.drop(name))


def attested(copath: Copath) -> int | None:
    height: int | None = copath.get("/api/v1/attested-height/7").json["attestedHeight"]
    return height


def filled(copath: Copath) -> float:
    """Blocks that were fetched, for anchors alone: nobody asked for any."""
    return copath.metric("copath_fill_total", chain="anchored", result="ok", **{"class": "backfill"})


async def holder_is_dead(server: PostgresServer, database: str) -> None:
    """A lease time passes."""
    connection: asyncpg.Connection = await server.connect(database)
    try:
        await connection.execute("UPDATE leases SET expires_at = 0 WHERE name = 'anchors:7'")
    finally:
        await connection.close()


def test_one_of_two_anchors_and_the_other_goes_on_when_it_is_killed(
    node: RecordedNode, tmp_path: Path, database: str, postgres_server: PostgresServer
) -> None:
    played = node.chains["anchored"] = RecordedChain(SEPOLIA, RECORDS.values())
    source = Node(played)
    anchors = {"source": "self", "genesis": FIRST, "interval": INTERVAL, "checkpoint_every": 3}
    config = chain(7, "anchored", SEPOLIA, node.url("anchored"), anchors=anchors)
    settings: dict[str, object] = {
        "database_url": postgres_server.url(database),
        "block_store_url": f"file:{tmp_path}",
        "block_store": {"shared": True},
    }
    before = max(height for height in ANCHORED if height <= LOST_ABOVE)
    proven = (
        f"/api/v1/proof/7/{max(height for height in RECORDS if height <= before and RECORDS[height]['receipts'])}/0"
    )
    with running_copath(config, **settings) as maker, running_copath(config, **settings) as other:
        for copath in (maker, other):
            until(lambda copath=copath: attested(copath) == before, "what can be anchored")
        assert (filled(other), set(source.given.values())) == (0, {1})
        bodies = [json.loads(copath.get(proven).body) for copath in (maker, other)]
        assert bodies[0]["continuityProof"] == bodies[1]["continuityProof"]
        assert filled(other) == 0
        until(lambda: maker.get("/api/v1/chains/7").json["anchors"].get("stalled") == "RpcUnavailable", "its trouble")
        assert "stalled" not in other.get("/api/v1/chains/7").json["anchors"], (
            "it makes none, and none for less than a minute"
        )
        maker.process.kill()
        maker.process.wait()
        source.lost_above = None
        asyncio.run(holder_is_dead(postgres_server, database))
        until(lambda: attested(other) == max(ANCHORED), "who goes on")
        assert [source.given[height] for height in range(FIRST, before + 1)] == [1] * (before - FIRST + 1)
        assert other.get(proven).status == 200
