"""A server whose node is paid for: what it refuses when, and what it goes on serving."""

from __future__ import annotations

from typing import Any

from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.corpus_files import files, load

SEPOLIA = 11155111
RECORDS = [load(path) for path in files("contiguous") if path.name.startswith("sepolia_")]
LAST = max(int(record["block"]["number"], 16) for record in RECORDS)
RECEIPTS = "eth_getBlockReceipts"
PRICES = {"eth_chainId": 0, "eth_blockNumber": 0, "eth_getBlockByNumber": 0, RECEIPTS: 10}


def paid(node: RecordedNode, name: str, units_per_day: int, **cache: object) -> tuple[RecordedChain, dict[str, object]]:
    """A node, and the configuration of a chain that may spend so many units a day on blocks at ten each."""
    made = node.chains[name] = RecordedChain(SEPOLIA, RECORDS)
    upstream = {"name": "rented", "url": node.url(name), "price": PRICES, "units_per_day": units_per_day}
    configured = chain(7, name, SEPOLIA, node.url(name), upstreams=[upstream], cache=cache)
    del configured["eth_rpc_url"]
    return made, configured


def proof(name: str, height: int) -> str:
    """The first receipt of that block; where it is empty, that is known only once it was fetched."""
    return f"/api/v1/proofs/{name}/blocks/{height}/receipts/0"


def listed(copath: Copath, name: str) -> dict[str, Any]:
    return copath.get(f"/api/v1/chains/{name}").json  # type: ignore[no-any-return]


def wait_for_finality(copath: Copath, name: str) -> None:
    until(lambda: listed(copath, name)["finalized"] == LAST, "what is final to be known")


def test_cold_work_stops_at_its_share_of_the_day_and_what_is_known_is_served_on(node: RecordedNode) -> None:
    name = "paid-for"
    made, configured = paid(node, name, 100, merkle_backfill_enabled=False)
    with running_copath(configured) as copath:
        wait_for_finality(copath, name)
        first = [copath.get(proof(name, LAST - offset)).status for offset in range(9)]
        assert set(first) <= {200, 422}, first
        for height in (LAST - 9, LAST - 10):
            refused = copath.get(proof(name, height))
            assert (refused.status, refused.code) == (503, "UpstreamBudgetExhausted"), refused.body
            assert refused.json["retriable"] is True
            assert 1 <= int(refused.headers["retry-after"]) <= 3610, "an hour, spread over callers"
            assert refused.headers["cache-control"] == "no-store"
        assert [copath.get(proof(name, LAST - offset)).status for offset in range(9)] == first, "known already"
        assert made.hits(RECEIPTS) == 9
        (rented,) = listed(copath, name)["upstreams"]
        assert (rented["name"], rented["budgetUsed"]) == ("rented", 0.9)
        assert copath.metric("copath_upstream_units_total", chain=name, purpose="request") == 90
        assert copath.metric("copath_upstream_budget_used_ratio", chain=name, upstream="rented") == 0.9
        assert copath.metric("copath_admission_rejected_total", reason="upstream_budget") == 2
        assert (copath.get("/readyz").status, copath.get("/health").status) == (200, 200)


def test_backfill_stops_first_and_leaves_the_rest_to_requests(node: RecordedNode) -> None:
    name = "paid-for-backfill"
    made, configured = paid(node, name, 200, merkle_backfill_enabled=True, merkle_retention_blocks=40)
    with running_copath(configured) as copath:
        until(lambda: listed(copath, name)["backfill"]["state"] == "out of budget", "backfill to run out of units")
        until(lambda: listed(copath, name)["backfill"]["remaining"] == 40 - 16, "what was paid for to be filled")
        assert copath.metric("copath_upstream_units_total", chain=name, purpose="backfill") == 160
        assert copath.get(proof(name, LAST - 39)).status in (200, 422)
        assert copath.get(proof(name, LAST - 38)).status in (200, 422)
        refused = copath.get(proof(name, LAST - 37))
        assert refused.code == "UpstreamBudgetExhausted"
        assert copath.metric("copath_upstream_units_total", chain=name) == 180
        assert made.hits(RECEIPTS) == 18
