"""That the metric of each alert moves when its situation occurs: in a real server here, or in the test that is named."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from app.chain.news import News
from app.metrics import Metrics
from app.upstream.counting import Counting
from app.upstream.evm import EvmNode
from app.upstream.faults import CallFailed
from app.upstream.posting import NodeLimits
from tests.chain.recorded_chain import BUSY, RecordedChain
from tests.chain.test_reorgs import Scene
from tests.chain.test_several_heads import Node, Watched
from tests.deploy import promql
from tests.scripted_behaviours import changed, hang, http
from tests.scripted_node import ScriptedNode
from tests.serving.process import PROOF, Program, configuration, running
from tests.serving.process import node as node_with_blocks

ROOT = Path(__file__).parent.parent.parent
BLOCK_METHODS = ("eth_getBlockByNumber", "eth_getBlockByHash")

SHOWN_HERE = {
    "CopathUnknownHeaderFields": "unknown_header_fields_total",
    "CopathUnsupportedTransactionType": "unsupported_transaction_type_total",
    "CopathRootMismatch": "root_mismatch_total",
    "CopathContentInvalid": "content_invalid_total",
    "CopathContentInvalidEverywhere": "content_invalid_total",
    "CopathFailingFast": "proof_outcome_total",
    "CopathFailingSlowly": "proof_outcome_total",
    "CopathChainUnreachable": "upstream_up",
    "CopathUpstreamDown": "upstream_up",
    "CopathHeadStale": "upstream_head_age_seconds",
    "CopathUpstreamThrottled": "upstream_requests_total",
    "CopathColdLaneFull": "admission_in_flight",
    "CopathBuilderDies": "builder_pool_breaks_total",
    "CopathStuckDraining": "draining",
    "CopathRestarting": "start_time_seconds",
    "CopathAbsent": "build_info",
    "CopathDown": "build_info",  # `up` is what Prometheus says of a scrape: it is answered
    "CopathFileDescriptors": "process_open_fds",
    "CopathPoolTooSmall": "upstream_pool_timeouts_total",
    "CopathDeepReorg": "reorg_depth_blocks",
    "CopathSourceDisagreement": "source_disagreement_total",
}
SHOWN_ELSEWHERE = {
    "CopathSelfCheckFailed": "tests/api/test_native.py::test_a_proof_that_the_verifier_refuses_is_never_sent",
    "CopathSaturated": "tests/api/test_health_saturation.py::"
    "test_S1_S5_refusing_for_the_threshold_saturates_and_further_refusals_do_not_put_it_off",
    "CopathFillQueueFull": "tests/api/test_admission.py::test_A9_the_reasons_are_told_apart",
    "CopathEventLoopLag": "tests/serving/test_probes.py::"
    "test_B59_a_process_that_stood_still_for_two_seconds_is_alive_and_says_so",
    "CopathTaskDown": "tests/chain/test_anchoring.py::test_B54_a_loop_that_dies_is_named_started_again_and_goes_on",
    "CopathUnhandledException": "tests/api/test_errors_everywhere.py::"
    "test_B72_a_fault_is_counted_logged_and_answered_without_its_text",
    "CopathUpstreamLagging": "tests/upstream/test_sightings.py::"
    "test_a_scrape_shows_heads_lags_breakers_cooldowns_and_routes",
    "CopathRetriesExhausted": "tests/upstream/test_sightings.py::"
    "test_a_scrape_shows_heads_lags_breakers_cooldowns_and_routes",
    "CopathSubscriptionDown": "tests/acceptance/test_announcing_node.py::"
    "test_blocks_are_served_as_they_are_announced_and_a_node_that_comes_back_is_listened_to_again",
    "CopathAnchorsStalled": "tests/chain/test_anchoring.py::"
    "test_a_block_that_cannot_be_anchored_stalls_above_the_ones_that_can",
    "CopathAnchorsUnread": "tests/acceptance/test_creditcoin.py::"
    "test_the_client_package_reads_the_same_anchors_from_both",
    "CopathAnchorsReverted": "tests/acceptance/test_reverted_attestations.py::"
    "test_nothing_reverted_is_served_once_it_was_seen_and_replicas_agree",
    "CopathBudgetNearlySpent": "tests/acceptance/test_money.py::"
    "test_cold_work_stops_at_its_share_of_the_day_and_what_is_known_is_served_on",
    "CopathBudgetExhausted": "tests/acceptance/test_money.py::"
    "test_cold_work_stops_at_its_share_of_the_day_and_what_is_known_is_served_on",
    "CopathBackfillStalled": "tests/chain/test_backfill.py::test_progress_is_shown",
    "CopathRateLimitsDegraded": "tests/acceptance/test_consumers.py::"
    "test_acceptance_e_whatever_becomes_of_the_database_proofs_are_served",
    "CopathLedgerDown": "tests/acceptance/test_fleet.py::test_proofs_are_served_whatever_becomes_of_the_database",
    "CopathLedgerDropping": "tests/acceptance/test_fleet.py::test_proofs_are_served_whatever_becomes_of_the_database",
    "CopathBlockStoreDown": "tests/store/test_blocks.py::test_whether_a_tier_works_can_be_seen",
    "CopathBlocksNotKept": "tests/store/test_blocks.py::"
    "test_putting_waits_for_nothing_and_what_finds_no_room_is_counted",
    "CopathBlockStoreDamaged": "tests/store/test_blocks.py::test_h_what_is_no_good_is_dropped_counted_and_never_served",
    "CopathBlockStoreForged": "tests/acceptance/test_second_level.py::test_h_corrupted_objects_are_never_served",
}


def test_every_alert_has_a_test_in_which_its_metric_moves() -> None:
    assert {*SHOWN_HERE, *SHOWN_ELSEWHERE} == {alert["alert"] for alert in promql.alerts()}
    assert not set(SHOWN_HERE) & set(SHOWN_ELSEWHERE)
    for alert in promql.alerts():
        name = alert["alert"]
        asked = {each.name.removeprefix("copath_") for each in promql.selectors(alert["expr"])}
        if name in SHOWN_HERE:
            recorded = {rule["record"]: rule["expr"] for rule in promql.rules() if "record" in rule}
            asked |= {
                each.name
                for one in asked | {f"copath:{each}" for each in asked}
                if one in recorded
                for each in promql.selectors(recorded[one])
            }
            asked = {each.removeprefix("copath_") for each in asked}
            assert name == "CopathDown" or any(each.startswith(SHOWN_HERE[name]) for each in asked), (name, asked)
            continue
        path, _, function = SHOWN_ELSEWHERE[name].partition("::")
        tree = ast.parse((ROOT / path).read_text())
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function in functions, f"{name}: {path} has no {function}"


# --- a server whose nodes are bad in one way each --------------------------------------------------------------------


def value(text: str, name: str, **labels: str) -> float:
    """The sum of the samples of a scrape that have these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def scrape(program: Program) -> str:
    return (await program.get("/metrics")).body.decode()


async def until_scraped(program: Program, holds: Callable[[str], object], what: str) -> str:
    """The first scrape that is so."""
    async with asyncio.timeout(60):
        while not holds(text := await scrape(program)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
        return text
    raise AssertionError(what)


def another_type(block: Any) -> None:
    block["transactions"][0] = block["transactions"][0] | {"type": "0x7f"}


def unknown_fields(block: Any) -> None:
    block |= {"futureRoot": "0x" + "11" * 32, "gasUsed": "0x1"}


def another_header(block: Any) -> None:
    block["stateRoot"] = "0x" + "22" * 32


def other_receipts(receipts: Any) -> None:
    receipts[0]["cumulativeGasUsed"] = hex(int(receipts[0]["cumulativeGasUsed"], 16) + 1)


@asynccontextmanager
async def bad_nodes(folder: Path) -> AsyncIterator[tuple[Program, dict[str, ScriptedNode]]]:
    names = ("types", "fields", "roots", "header", "throttled", "dead")
    async with AsyncExitStack() as stack:
        nodes = {name: await stack.enter_async_context(node_with_blocks()) for name in names}
        for method in BLOCK_METHODS:
            nodes["types"].always(method, changed(lambda block: _if_full(block, another_type)))
            nodes["fields"].always(method, changed(lambda block: _if_full(block, unknown_fields)))
            nodes["header"].always(method, changed(lambda block: _if_full(block, another_header)))
        nodes["roots"].always("eth_getBlockReceipts", changed(other_receipts))
        nodes["throttled"].always("eth_getBlockReceipts", http(429))
        one = configuration("http://unused")["chains"][0]
        chains = [
            one | {"chain_key": key, "name": name, "eth_rpc_url": node.url}
            for key, (name, node) in enumerate(nodes.items(), 1)
        ]
        program = await stack.enter_async_context(running(folder, configuration("http://unused", chains=chains)))
        yield program, nodes


def _if_full(block: Any, change: Callable[[Any], None]) -> None:
    if block and block["transactions"] and isinstance(block["transactions"][0], dict):
        change(block)


async def test_what_nodes_do_wrong_moves_what_its_alert_reads(tmp_path: Path) -> None:
    async with bad_nodes(tmp_path) as (program, nodes):
        await until_scraped(program, lambda text: value(text, "copath_upstream_up", chain="dead") == 1, "it is up")
        await nodes["dead"].stop()
        before = await scrape(program)
        for name in nodes:
            await program.get(PROOF.replace("/chain/", f"/{name}/"))
        moved = {
            "copath_unsupported_transaction_type_total": {"chain": "types", "type": "0x7f"},
            "copath_unknown_header_fields_total": {"chain": "fields"},
            "copath_root_mismatch_total": {"chain": "roots", "trie": "receipts"},
            "copath_content_invalid_total": {"chain": "header", "check": "header_hash"},
            "copath_upstream_requests_total": {"chain": "throttled", "result": "rate_limited"},
            "copath_proof_outcome_total": {"chain": "dead", "outcome": "RpcUnavailable"},
        }
        after = await scrape(program)
        for name, labels in moved.items():
            assert value(before, name, **labels) == 0, name
            assert value(after, name, **labels) > 0, (name, program.said[-3000:])
        dead = {"chain": "dead"}
        await until_scraped(program, lambda text: value(text, "copath_upstream_up", **dead) == 0, "it is down")
        age = value(after, "copath_upstream_head_age_seconds", **dead)
        await until_scraped(
            program, lambda text: value(text, "copath_upstream_head_age_seconds", **dead) > age + 1, "its head ages"
        )


async def test_what_a_process_goes_through_moves_what_its_alert_reads(tmp_path: Path) -> None:
    limits = {"admission": {"max_in_flight_requests": 1, "max_in_flight_per_chain": 1, "request_timeout_secs": 20}}
    shutdown = {"lame_duck_secs": 20, "drain_secs": 20}
    async with (
        node_with_blocks() as node,
        running(tmp_path, configuration(node.url, **limits, shutdown=shutdown)) as program,
    ):
        first = await scrape(program)
        assert value(first, "copath_build_info") == 1
        assert value(first, "copath_start_time_seconds") > 1.6e9, "another start is another value"
        assert 0 < value(first, "process_open_fds") < value(first, "process_max_fds")
        assert value(first, "copath_builder_pool_breaks_total") == value(first, "copath_draining") == 0
        ours = program.process.pid
        for pid in program.family():
            if pid != ours and "resource_tracker" not in command_of(pid):
                os.kill(pid, signal.SIGKILL)
        await program.get(PROOF)
        await until_scraped(
            program, lambda text: value(text, "copath_builder_pool_breaks_total") > 0, "a builder was lost"
        )
        node.always("eth_getBlockReceipts", hang())
        line = await program.line()
        await line.send(PROOF.replace("blocks/2/transactions/1", "blocks/1/receipts/0"))
        full = {"scope": "global"}
        text = await until_scraped(
            program, lambda text: value(text, "copath_admission_in_flight", **full) == 1, "a place is taken"
        )
        assert value(text, "copath_admission_limit", **full) == 1
        program.signal(signal.SIGTERM)
        await until_scraped(program, lambda text: value(text, "copath_draining") == 1, "it drains")
        await line.close()


# --- a chain whose nodes disagree -------------------------------------------------------------------------------------


async def test_a_deep_reorganisation_is_one_above_the_bucket_that_its_alert_reads() -> None:
    scene = Scene(1)
    metrics = Metrics(CollectorRegistry())
    metrics.register_chain("main", 1, ["fake"])
    observed: list[int] = []
    news = News("main", metrics)
    scene.chain.head._on_traced = lambda reorg: (observed.append(reorg.depth), news.on_traced(reorg))[0]
    for _ in range(20):
        await scene.chain.head.poll()
        scene.upstream.extend(scene.upstream.head.height + 1, scene.upstream.head.height + 1)
        scene.clock.move(12.0)
    await scene.chain.head.poll()
    scene.upstream.reorg(12)
    scene.clock.move(12.0)
    await scene.chain.head.poll()
    assert observed == [12]
    assert metrics.registry.get_sample_value("copath_reorg_depth_blocks_count", {"chain": "main"}) == 1
    labels = {"chain": "main", "le": "8.0"}
    assert metrics.registry.get_sample_value("copath_reorg_depth_blocks_bucket", labels) == 0


async def test_nodes_that_contradict_each_other_are_counted() -> None:
    made = RecordedChain(BUSY, BUSY)
    assert made.metric("source_disagreement_total", chain="sepolia") == 0
    watched = Watched(a=Node(110, 95), b=Node(110, 95))
    watched.head._on_dispute = made.chain.head._on_dispute
    await watched.poll()
    watched.upstream.nodes["b"].fork, watched.upstream.nodes["b"].fork_at = 1, 97
    watched.upstream.nodes["a"].finalized, watched.upstream.nodes["b"].finalized = 100, 98
    for _ in range(3):
        await watched.poll(a=130, b=130)
    assert made.metric("source_disagreement_total", chain="sepolia") == 1


async def test_a_call_that_finds_no_connection_is_counted() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.register_chain("chain", 1, ["primary"])
    limits = NodeLimits(max_connections=1, pool_timeout_s=0.05)
    async with node_with_blocks() as node:
        counting = Counting(metrics, "chain", "primary")
        evm = EvmNode("primary", node.url, limits=limits, observer=counting, trust_env=False)
        try:
            await evm.verify_chain()
            node.always("eth_blockNumber", hang())
            slow = asyncio.create_task(evm.call("eth_blockNumber"))
            await node.until("eth_blockNumber")
            with pytest.raises(CallFailed):
                await evm.call("eth_blockNumber")
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
        finally:
            await evm.aclose()
    labels = {"chain": "chain", "upstream": "primary"}
    assert metrics.registry.get_sample_value("copath_upstream_pool_timeouts_total", labels) == 1
