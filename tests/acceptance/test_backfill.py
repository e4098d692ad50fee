"""A server that fills the finalized blocks by itself, beside requests: each block once, requests first, in plain sight."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import launching
from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.sepolia_range import FIRST, LAST, RECORDS, SEPOLIA, WITH_TRANSACTIONS
from tests.acceptance.server import Client, Copath, chain, running_copath
from tests.acceptance.waiting import until

COUNT = len(RECORDS)
RECEIPTS = "eth_getBlockReceipts"


class Recorded:
    """The recorded range under a name of its own, and the configuration of a chain that backfills it."""

    def __init__(
        self, node: RecordedNode, name: str, *, retention: int | None = COUNT, max_bytes: int = 2**24, **more: object
    ) -> None:
        self.name = name
        self.node = node.chains[name] = RecordedChain(SEPOLIA, RECORDS.values())
        cache = {
            "merkle_retention_blocks": retention,
            "merkle_max_bytes": max_bytes,
            "max_concurrent_block_fills": 4,
        }
        self.configured = chain(7, name, SEPOLIA, node.url(name), cache=cache, **more)

    def fetched(self) -> Counter[int]:
        """How often each block was fetched, by height."""
        return Counter(int(params[0], 16) for method, params in self.node.calls if params[-1:] == (True,) and method)

    def listed(self, copath: Copath) -> dict[str, Any]:
        """What the listing says of the backfill."""
        return copath.get(f"/api/v1/chains/{self.name}").json["backfill"]  # type: ignore[no-any-return]

    def sees(self, copath: Copath, finalized: int) -> bool:
        """Whether the window ends there."""
        return (self.listed(copath)["window"] or [0])[-1] == finalized  # type: ignore[no-any-return]

    def caught_up(self, copath: Copath) -> bool:
        """Whether nothing is left to fill."""
        return self.listed(copath)["state"] == "caught up"

    def fills(self, copath: Copath, kind: str) -> float:
        """Fills of one class that came to a block."""
        return copath.metric("copath_fill_total", chain=self.name, result="ok", **{"class": kind})


@pytest.fixture
def held_receipts() -> Iterator[threading.Event]:
    """Set at the latest when the test ends: nothing stays behind in the node."""
    gate = threading.Event()
    yield gate
    gate.set()


def test_B48_a_range_is_filled_in_the_background_while_cold_requests_are_served_and_no_block_is_fetched_twice(
    node: RecordedNode,
) -> None:
    recorded = Recorded(node, "backfill-beside-requests")
    with running_copath(recorded.configured) as copath:

        def ask(height: int) -> int:
            client = Client(copath.port)
            try:
                return client.get(f"/api/v1/proofs/{recorded.name}/blocks/{height}/transactions/0").status
            finally:
                client.close()

        with ThreadPoolExecutor(4) as pool:  # from the other end than backfill, until the two meet
            assert set(pool.map(ask, WITH_TRANSACTIONS)) == {200}
        until(lambda: recorded.caught_up(copath), "the whole range")
        assert recorded.fetched() == dict.fromkeys(RECORDS, 1)
        assert recorded.node.hits(RECEIPTS) == COUNT
        by_request, by_backfill = recorded.fills(copath, "request"), recorded.fills(copath, "backfill")
        assert by_request + by_backfill == COUNT
        assert by_backfill > 0
        assert recorded.listed(copath) == {
            "state": "caught up",
            "window": [FIRST, LAST],
            "remaining": 0,
            "lowest": FIRST,
        }
        assert copath.metric("copath_backfill_remaining_blocks", chain=recorded.name) == 0
        assert copath.metric("copath_backfill_lowest_height", chain=recorded.name) == FIRST
        assert copath.metric("copath_block_cache_entries", chain=recorded.name) == COUNT
        before = recorded.node.hits()
        for height in WITH_TRANSACTIONS:
            assert copath.get(f"/api/v1/proofs/{recorded.name}/blocks/{height}/receipts/0").status == 200
        assert recorded.node.hits() - before <= 3, "only the head is asked for"
        assert recorded.node.violations == []


def test_P2_a_cold_request_is_answered_while_every_fill_of_backfill_hangs(
    node: RecordedNode, held_receipts: threading.Event
) -> None:
    recorded = Recorded(node, "backfill-hangs")
    wanted = WITH_TRANSACTIONS[0]
    heights = {record["block"]["hash"]: height for height, record in RECORDS.items()}

    def answer(params: tuple[Any, ...]) -> Any:
        height = heights[params[0]]
        if height != wanted and height < LAST - 20:  # by then it does more than one at a time
            held_receipts.wait(timeout=60)
        return RECORDS[height]["receipts"]

    recorded.node.answers[RECEIPTS] = answer
    with running_copath(recorded.configured) as copath:
        until(lambda: recorded.listed(copath)["remaining"] == COUNT - 21, "the blocks that are answered")
        until(lambda: copath.metric("copath_fill_running", **{"class": "backfill"}) > 0, "a fill that hangs")
        assert copath.get(f"/api/v1/proofs/{recorded.name}/blocks/{wanted}/transactions/0").status == 200
        assert copath.metric("copath_fill_running", **{"class": "backfill"}) > 0, "it was answered beside it"
        listed = recorded.listed(copath)
        assert (listed["state"], listed["remaining"]) == ("filling", COUNT - 21)
        assert copath.get("/readyz").status == 200
        held_receipts.set()
        until(lambda: recorded.caught_up(copath), "the whole range")
    assert recorded.fetched() == dict.fromkeys(RECORDS, 1)


def test_P7_only_what_is_final_is_filled_and_more_as_it_becomes_final(node: RecordedNode) -> None:
    recorded = Recorded(node, "backfill-follows", retention=21)
    recorded.node.finalized = FIRST + 20
    with running_copath(recorded.configured) as copath:
        until(lambda: recorded.caught_up(copath), "what is final")
        assert recorded.fetched() == dict.fromkeys(range(FIRST, FIRST + 21), 1)
        recorded.node.finalized = FIRST + 25
        until(partial(recorded.sees, copath, FIRST + 25), "the next finalized height")
        until(lambda: recorded.caught_up(copath), "what became final")
        assert recorded.fetched() == dict.fromkeys(range(FIRST, FIRST + 26), 1)


def test_anchors_and_backfill_fetch_each_block_once(node: RecordedNode) -> None:
    anchors = {"source": "self", "genesis": FIRST, "interval": 10, "checkpoint_every": 3}
    recorded = Recorded(node, "backfill-anchored", anchors=anchors)
    with running_copath(recorded.configured) as copath:
        until(lambda: recorded.caught_up(copath), "the whole range")
        until(lambda: copath.get("/api/v1/attested-height/7").json["attestedHeight"] == FIRST + 60, "the last anchor")
        assert recorded.fetched() == dict.fromkeys(RECORDS, 1)


def test_B48_a_budget_of_bytes_holds_while_the_window_moves_on_and_no_block_is_fetched_twice(
    node: RecordedNode,
) -> None:
    recorded = Recorded(node, "backfill-in-little-room", retention=None, max_bytes=160_000)
    recorded.node.finalized = FIRST + 40
    with running_copath(recorded.configured) as copath:
        for finalized in (FIRST + 40, FIRST + 50, LAST):
            recorded.node.finalized = finalized
            until(partial(recorded.sees, copath, finalized), "the next finalized height")
            until(lambda: recorded.caught_up(copath), "what became final")
            low, high = recorded.listed(copath)["window"]
            assert FIRST < low < high == finalized
            assert 0 < copath.metric("copath_block_cache_bytes", chain=recorded.name) <= 160_000
        assert max(recorded.fetched().values()) == 1
        assert copath.metric("copath_block_cache_evictions_total", chain=recorded.name, reason="retention") > 0


# --- the command ----------------------------------------------------------------------------------------------------


def backfill(place: Path, recorded: Recorded, first: int, last: int) -> subprocess.CompletedProcess[str]:
    kept = {"database_url": f"sqlite+aiosqlite:///{place / 'copath.db'}", "block_store_url": None}
    config = {**kept, "build": {"processes": 1}, "chains": [recorded.configured]}
    (place / "config.yaml").write_text(yaml.safe_dump(config))
    command = ["backfill", "--config", str(place / "config.yaml"), "--chain", recorded.name]
    return launching.run(*command, "--from", str(first), "--to", str(last))


def test_the_command_fills_a_range_once_and_sums_it_up(node: RecordedNode, tmp_path: Path) -> None:
    recorded = Recorded(node, "backfill-command")
    done = backfill(tmp_path, recorded, FIRST + 10, FIRST + 29)
    assert done.returncode == 0, done
    assert done.stdout.startswith("filled 20, known 0, refused 0, failed 0 of 20 blocks in ")
    assert "20/20" in done.stderr
    assert recorded.fetched() == dict.fromkeys(range(FIRST + 10, FIRST + 30), 1)


def test_the_command_says_what_is_refused_and_why(node: RecordedNode, tmp_path: Path) -> None:
    recorded = Recorded(node, "backfill-command-refused")
    strange = RECORDS[FIRST + 1]["block"] | {"futureRoot": "0x" + "11" * 32, "hash": "0x" + "22" * 32}
    recorded.node.add({"block": strange, "receipts": RECORDS[FIRST + 1]["receipts"]})
    done = backfill(tmp_path, recorded, FIRST, FIRST + 2)
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, [f"UnsupportedBlockFormat: {FIRST + 1}"]), done
    assert done.stdout.startswith("filled 2, known 0, refused 1, failed 0 of 3 blocks")


def test_the_command_refuses_what_is_not_final(node: RecordedNode, tmp_path: Path) -> None:
    recorded = Recorded(node, "backfill-command-early")
    recorded.node.finalized = FIRST + 5
    done = backfill(tmp_path, recorded, FIRST, FIRST + 6)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"block {FIRST + 6} is not finalized" in done.stderr
    assert recorded.fetched() == {}
