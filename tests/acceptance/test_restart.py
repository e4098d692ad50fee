"""What a server answered once it answers after a restart, however it ended: without fetching it again, and without any node."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from app.core.continuity import digest
from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Answer, Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.corpus_files import files, load

SEPOLIA = 11155111
RECORDS = {
    int(record["block"]["number"], 16): record
    for record in (load(path) for path in files("contiguous") if path.name.startswith("sepolia_"))
}
FIRST, LAST = min(RECORDS), max(RECORDS)
BUSY = max((record for record in RECORDS.values()), key=lambda record: len(record["receipts"]))
KILLS = 10
EVERY = ("eth_getBlockByNumber", "eth_getBlockByHash", "eth_getBlockReceipts", "eth_getTransactionByHash")


class Site:
    """A recorded node, and a place on the disk where servers come and go."""

    def __init__(self, node: RecordedNode, name: str, place: Path, *, backfill: bool = False) -> None:
        self.node = node.chains[name] = RecordedChain(SEPOLIA, RECORDS.values())
        self.name = name
        self.place = place
        self._configured = chain(
            7,
            name,
            SEPOLIA,
            node.url(name),
            cache={"merkle_backfill_enabled": backfill},
            anchors={"source": "self", "genesis": FIRST, "interval": 5, "checkpoint_every": 4},
        )

    @contextmanager
    def server(self) -> Iterator[Copath]:
        with running_copath(
            self._configured,
            database_url=f"sqlite+aiosqlite:///{self.place / 'kept.db'}",
            block_store_url=f"file:{self.place / 'blocks'}",
        ) as copath:
            yield copath

    @contextmanager
    def out(self) -> Iterator[None]:
        """The node answers nothing but errors."""
        before = dict(self.node.answers)

        def refuse(_: tuple[Any, ...]) -> Any:
            raise ConnectionError

        self.node.answers = dict.fromkeys((*EVERY, "eth_chainId", "eth_blockNumber"), refuse)
        try:
            yield
        finally:
            self.node.answers = before

    def paths(self) -> list[str]:
        tx_hash = BUSY["receipts"][1]["transactionHash"]
        block_hash, height = BUSY["block"]["hash"], int(BUSY["block"]["number"], 16)
        return [
            f"/api/v1/proofs/{self.name}/receipts/{tx_hash}",
            f"/api/v1/proofs/{self.name}/transactions/{tx_hash}",
            f"/api/v1/proofs/{self.name}/blocks/{block_hash}/receipts/0",
            f"/api/v1/proofs/{self.name}/blocks/{height}/receipts/0",
            f"/api/v1/proof-by-tx/7/{tx_hash}",
            f"/api/v1/proof/7/{height}/1",
        ]

    def anchored(self, copath: Copath) -> bool:
        return copath.get("/api/v1/attested-height/7").json["attestedHeight"] == FIRST + (LAST - FIRST) // 5 * 5

    def rows(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.place / "kept.db")) as link:
            return link.execute(query).fetchall()


def _without_time(answer: Answer) -> dict[str, Any]:
    return {name: value for name, value in answer.json.items() if name not in ("generatedAt", "cached")}


def _answers(copath: Copath, site: Site) -> list[dict[str, Any]]:
    answers = [copath.get(path) for path in site.paths()]
    assert [answer.status for answer in answers] == [200] * len(answers), [answer.body[:200] for answer in answers]
    return [_without_time(answer) for answer in answers]


def test_after_a_restart_nothing_is_fetched_again(node: RecordedNode, tmp_path: Path) -> None:
    site = Site(node, "restart", tmp_path)
    with site.server() as copath:
        until(lambda: site.anchored(copath), "every anchor")
        before = _answers(copath, site)
    site.node.calls.clear()
    with site.server() as copath:
        assert _answers(copath, site) == before
        assert site.node.block_fetches() == 0
        assert site.node.hits("eth_getBlockReceipts", "eth_getTransactionByHash") == 0


def test_after_a_restart_without_any_node_what_was_known_is_served(node: RecordedNode, tmp_path: Path) -> None:
    site = Site(node, "restart-alone", tmp_path)
    with site.server() as copath:
        until(lambda: site.anchored(copath), "every anchor")
        before = _answers(copath, site)
    with site.out(), site.server() as copath:
        assert _answers(copath, site) == before
        unknown = copath.get(f"/api/v1/proofs/{site.name}/receipts/0x{'12' * 32}")
        assert (unknown.status, unknown.code) == (503, "RpcUnavailable")


def test_a_damaged_entry_is_fetched_again_and_never_served(node: RecordedNode, tmp_path: Path) -> None:
    site = Site(node, "restart-damaged", tmp_path)
    with site.server() as copath:
        until(lambda: site.anchored(copath), "every anchor")
        before = _answers(copath, site)
    entries = [path for path in (tmp_path / "blocks").rglob("*") if path.is_file()]
    chance = random.Random(5)
    for path in entries:
        content = bytearray(path.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
    site.node.calls.clear()
    with site.server() as copath:
        assert _answers(copath, site) == before
        assert site.node.block_fetches() > 0


def kill_again_and_again(site: Site, kills: int, chance: random.Random) -> None:
    """Servers that come and are killed in the middle of what they do, and one that may end it: nothing that was kept is lost,
    nor contradicts what the node has."""
    anchors: dict[int, bytes] = {}
    noted: set[int] = set()
    for _ in range(kills):
        with site.server() as copath:
            wanted = site.node.hits() + chance.randrange(40)
            until(lambda wanted=wanted: site.node.hits() > wanted or site.anchored(copath), "some progress")
            copath.process.kill()
        for height, value in site.rows("SELECT height, digest FROM anchors"):
            assert anchors.setdefault(height, value) == value
        now = {height for (height,) in site.rows("SELECT height FROM blocks")}
        assert noted <= now, "a height that was noted is no longer"
        noted = now
    with site.server() as copath:
        until(lambda: site.anchored(copath), "every anchor")
        until(lambda: len(site.rows("SELECT height FROM blocks")) == len(RECORDS), "every block")
        _answers(copath, site)
    roots = dict(site.rows("SELECT height, root FROM roots"))
    chained = None
    kept = dict(site.rows("SELECT height, digest FROM anchors"))
    for height in range(FIRST, max(kept) + 1):
        chained = digest(height, roots[height], chained)
        assert kept.get(height, chained) == chained
    for height, block_hash in site.rows("SELECT height, block_hash FROM blocks"):
        assert f"0x{block_hash.hex()}" == RECORDS[height]["block"]["hash"]


def test_killed_at_any_moment_nothing_is_lost_or_contradicts(node: RecordedNode, tmp_path: Path) -> None:
    kill_again_and_again(Site(node, "restart-killed", tmp_path, backfill=True), KILLS, random.Random(1))
