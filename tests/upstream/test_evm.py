"""One node over real HTTP: every fault is typed, bounded in time and bytes, and blamed on whom it belongs to."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import threading
from email.utils import formatdate
from typing import Any

import pytest

from app.core.deadlines import deadline
from app.upstream.decoding import decoded
from app.upstream.evm import EvmNode
from app.upstream.faults import CallFailed, Fault
from app.upstream.posting import NodeLimits
from tests.corpus_files import recorded
from tests.scripted_behaviours import (
    Behaviour,
    answer,
    drip,
    error,
    gzip_bomb,
    gzipped,
    hang,
    hang_up,
    held,
    html,
    http,
    huge,
    late,
    raw,
    reset,
    truncated,
    without_id,
    wrong_id,
)
from tests.scripted_node import ScriptedNode, closed_port
from tests.upstream.conftest import WALL, Rig, open_rig

HEAD = "eth_blockNumber"


async def failure_of(rig: Rig, method: str = HEAD) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        await rig.evm.call(method)
    return caught.value


async def test_a_result_comes_back_as_its_text_and_is_counted(rig: Rig) -> None:
    assert await rig.evm.call(HEAD) == b'"0xf4240"'
    assert rig.counts.calls == {("eth_chainId", "ok"): 1, (HEAD, "ok"): 1}


async def test_null_is_counted_as_not_found(rig: Rig) -> None:
    assert await rig.evm.call("eth_getBlockByNumber", ["0x1", False]) == b"null"
    assert rig.counts.results("eth_getBlockByNumber") == {"not_found": 1}


async def test_connections_are_kept_alive(rig: Rig) -> None:
    for _ in range(10):
        await rig.evm.call(HEAD)
    assert rig.node.connections == 1


async def test_configured_headers_are_sent(million: dict[str, Any]) -> None:
    async with ScriptedNode.of_corpus(million) as node, open_rig(node, headers={"x-token": "s3cret-token"}) as rig:
        await rig.evm.call(HEAD)
        assert {sent["x-token"] for sent in node.headers} == {"s3cret-token"}
        assert {sent["content-type"] for sent in node.headers} == {"application/json"}


# --- connections ----------------------------------------------------------------------------------------------------


async def test_row_01_a_refused_connection_is_named_so() -> None:
    with closed_port() as port:
        async with open_rig(ScriptedNode(), url=f"http://127.0.0.1:{port}/KEY") as rig:
            failure = await failure_of(rig)
            assert failure.fault is Fault.REFUSED
            assert rig.counts.calls == {("eth_chainId", "transport"): 1}


async def test_an_unresolvable_host_is_named_so() -> None:
    async with open_rig(ScriptedNode(), url="http://copath-test.invalid/KEY") as rig:
        assert (await failure_of(rig)).fault is Fault.DNS


async def test_a_failed_tls_handshake_is_named_so(rig: Rig) -> None:
    # The scripted node speaks no TLS.
    async with open_rig(ScriptedNode(), url=rig.node.url.replace("http:", "https:")) as tls_rig:
        assert (await failure_of(tls_rig)).fault is Fault.TLS


@pytest.mark.parametrize("behaviour", [reset(after_bytes=20), truncated()])
async def test_row_02_a_response_that_breaks_off_is_discarded(rig: Rig, behaviour: Behaviour) -> None:
    rig.node.script(HEAD, behaviour)
    assert (await failure_of(rig)).fault is Fault.RESET
    assert rig.counts.results(HEAD) == {"transport": 1}
    assert await rig.evm.call(HEAD) == b'"0xf4240"'


async def test_row_03_a_node_that_never_answers_costs_one_attempt_timeout(rig: Rig) -> None:
    await rig.evm.verify_chain()
    rig.limit(attempt_timeout_s=0.1)
    rig.node.script(HEAD, hang())
    assert (await failure_of(rig)).fault is Fault.ATTEMPT_TIMEOUT
    assert rig.counts.results(HEAD) == {"timeout": 1}
    assert rig.evm.connections_held == 0


async def test_row_04_a_slow_drip_meets_the_total_timeout(rig: Rig) -> None:
    # No single read takes long: only a limit on the whole attempt can end this.
    await rig.evm.verify_chain()
    rig.limit(attempt_timeout_s=0.25)
    rig.node.script("eth_getBlockByNumber", drip(0.01))
    with pytest.raises(CallFailed) as caught:
        await rig.evm.call("eth_getBlockByNumber", ["0xf4240", True])
    assert caught.value.fault is Fault.ATTEMPT_TIMEOUT


async def test_the_deadline_in_force_cuts_a_call_and_the_node_is_not_blamed(rig: Rig) -> None:
    await rig.evm.verify_chain()
    rig.node.script(HEAD, hang())
    token = deadline.set(rig.clock.now() + 0.15)
    try:
        failure = await failure_of(rig)
    finally:
        deadline.reset(token)
    assert failure.fault is Fault.DEADLINE
    assert rig.counts.results(HEAD) == {"cancelled": 1}


async def test_no_call_starts_when_the_deadline_leaves_no_use_for_it(rig: Rig) -> None:
    await rig.evm.verify_chain()
    token = deadline.set(rig.clock.now() + 0.01)
    try:
        assert (await failure_of(rig)).fault is Fault.DEADLINE
    finally:
        deadline.reset(token)
    assert rig.node.hits[HEAD] == 0


async def test_a_cancelled_call_frees_its_connection_and_is_counted_as_such(rig: Rig) -> None:
    await rig.evm.verify_chain()
    gate = asyncio.Event()
    rig.node.script(HEAD, held(gate))
    call = asyncio.ensure_future(rig.evm.call(HEAD))
    await rig.node.until(HEAD)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert rig.counts.results(HEAD) == {"cancelled": 1}
    assert rig.evm.connections_held == 0


# --- B56: connections that died while they were idle ----------------------------------------------------------------


async def test_B56_a_dead_kept_alive_connection_is_one_retry_and_no_failure(rig: Rig) -> None:
    await rig.evm.call(HEAD)
    for _ in range(5):
        rig.node.script(HEAD, hang_up())
        assert await rig.evm.call(HEAD) == b'"0xf4240"'
        await rig.evm.call(HEAD)
    assert rig.counts.results(HEAD) == {"ok": 11}
    assert rig.node.hits[HEAD] == 16


async def test_B56_the_retry_is_made_once_and_on_a_new_connection(rig: Rig) -> None:
    await rig.evm.call(HEAD)
    before = rig.node.connections
    rig.node.script(HEAD, hang_up(), hang_up(), hang_up())
    assert (await failure_of(rig)).fault is Fault.RESET
    assert rig.node.connections == before + 1
    assert rig.node.scripted_left(HEAD) == 1


async def test_B56_one_retry_is_enough_however_many_idle_connections_are_dead(rig: Rig) -> None:
    gate = asyncio.Event()
    await rig.evm.verify_chain()
    rig.node.script(HEAD, *[held(gate)] * 4)
    calls = [asyncio.ensure_future(rig.evm.call(HEAD)) for _ in range(4)]
    await rig.node.until(HEAD, 4)
    gate.set()
    await asyncio.gather(*calls)
    rig.node.tire_of_connections()
    posts = rig.node.posts
    assert await rig.evm.call(HEAD) == b'"0xf4240"'
    assert rig.node.posts == posts + 2


async def test_B56_connections_closed_while_idle_are_never_noticed(rig: Rig) -> None:
    for _ in range(20):
        await rig.evm.call(HEAD)
        rig.node.close_idle()
    assert rig.counts.results(HEAD) == {"ok": 20}


async def test_a_new_connection_that_dies_is_a_failure(rig: Rig) -> None:
    rig.node.script("eth_chainId", hang_up())
    assert (await failure_of(rig)).fault is Fault.RESET
    assert rig.node.hits["eth_chainId"] == 1


# --- B53, B55: cancellation and the pool ----------------------------------------------------------------------------


async def test_B55_a_pool_full_of_slow_calls_is_not_the_nodes_fault(million: dict[str, Any]) -> None:
    async with (
        ScriptedNode.of_corpus(million) as node,
        open_rig(node, max_connections=2, pool_timeout_s=0.05) as rig,
    ):
        await rig.evm.verify_chain()
        gate = asyncio.Event()
        node.script(HEAD, held(gate), held(gate))
        slow = [asyncio.ensure_future(rig.evm.call(HEAD)) for _ in range(2)]
        await node.until(HEAD, 2)
        assert (await failure_of(rig)).fault is Fault.POOL_BUSY
        assert rig.counts.pool_timeouts == 1
        assert "timeout" not in rig.counts.results(HEAD)
        gate.set()
        assert await asyncio.gather(*slow) == [b'"0xf4240"'] * 2
        assert await rig.evm.call(HEAD) == b'"0xf4240"'


async def test_the_wait_for_a_connection_is_not_the_nodes_latency(million: dict[str, Any]) -> None:
    async with ScriptedNode.of_corpus(million) as node, open_rig(node, max_connections=1) as rig:
        await rig.evm.verify_chain()
        rig.counts.seconds.clear()
        gate = asyncio.Event()
        node.script(HEAD, held(gate))
        calls = [asyncio.ensure_future(rig.evm.call(HEAD)) for _ in range(2)]
        await node.until(HEAD)
        rig.clock.at += 30.0
        gate.set()
        await asyncio.gather(*calls)
        assert sorted(rig.counts.seconds) == [0.0, 30.0]


async def test_B53_B55_churn_of_cancelled_and_timed_out_calls_leaves_the_pool_whole(million: dict[str, Any]) -> None:
    async with (
        ScriptedNode.of_corpus(million) as node,
        open_rig(node, max_connections=4, pool_timeout_s=0.5) as rig,
    ):
        await rig.evm.verify_chain()
        rig.limit(attempt_timeout_s=0.02)
        # The time-out is the node's latency: every call may end either way.
        node.always(HEAD, late(0.02))

        async def churn(turns: int) -> None:
            for turn in range(turns):
                call = asyncio.ensure_future(rig.evm.call(HEAD))
                if turn % 3 == 0:
                    for _ in range(turn % 7):
                        await asyncio.sleep(0)
                    call.cancel()
                await asyncio.wait([call])
                assert call.cancelled() or call.exception() is None or isinstance(call.exception(), CallFailed)

        await asyncio.gather(*(churn(40) for _ in range(8)))
        assert rig.evm.connections_held == 0
        node.always(HEAD, None)
        rig.limit(attempt_timeout_s=20.0, pool_timeout_s=20.0)
        answers = await asyncio.gather(*(rig.evm.call(HEAD) for _ in range(100)), return_exceptions=True)
        assert answers == [b'"0xf4240"'] * 100
        assert node.open_connections <= 8


async def test_B55_a_pool_that_lost_its_connections_is_replaced(million: dict[str, Any]) -> None:
    async with (
        ScriptedNode.of_corpus(million) as node,
        open_rig(node, max_connections=1, pool_timeout_s=0.05) as rig,
    ):
        await rig.evm.verify_chain()
        poster = rig.evm._ways.poster
        # What an orphaned slot looks like from outside: the pool is full and no call of ours holds a connection.
        client = poster._pool.client
        request = client.build_request("POST", node.url, content=_call(HEAD))
        orphan = await client.send(request, stream=True)
        assert (await failure_of(rig)).fault is Fault.POOL_BUSY
        assert await rig.evm.call(HEAD) == b'"0xf4240"'
        assert client.is_closed
        await orphan.aclose()


def _call(method: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": []}).encode()


# --- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "behaviour",
    [
        raw("invalid host specified"),
        html(),
        raw(b""),
        raw("{}"),
        raw('{"jsonrpc":"2.0","result":"0x1"}'),
        wrong_id(),
        without_id(),
        raw('[{"jsonrpc":"2.0","id":2,"result":"0x1"}]'),
        raw('{"jsonrpc":"2.0","id":2,"result":' + "[" * 50_000),
    ],
    ids=["text", "html", "empty", "no-fields", "no-id", "wrong-id", "without-id", "array", "deep"],
)
async def test_B27_row_09_what_is_no_answer_is_typed_and_counted(rig: Rig, behaviour: Behaviour) -> None:
    rig.node.script(HEAD, behaviour)
    failure = await failure_of(rig)
    assert failure.fault is Fault.MALFORMED
    assert len(failure.excerpt) <= 120
    assert rig.counts.results(HEAD) == {"invalid": 1}
    assert await rig.evm.call(HEAD) == b'"0xf4240"'


@pytest.mark.parametrize(
    "behaviour",
    [huge(), huge(chunked=True), gzip_bomb(1 << 27)],
    ids=["declared", "chunked", "gzip-bomb"],
)
async def test_row_10_a_body_beyond_the_cap_is_cut_off(million: dict[str, Any], behaviour: Behaviour) -> None:
    cap = 4 * 1024 * 1024
    async with ScriptedNode.of_corpus(million) as node, open_rig(node, max_body_bytes=cap) as rig:
        await rig.evm.verify_chain()
        node.script(HEAD, behaviour)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert (await failure_of(rig)).fault is Fault.BODY_TOO_LARGE
        grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        assert grown_bytes < 64 * 1024 * 1024
        assert await rig.evm.call(HEAD) == b'"0xf4240"'


async def test_a_body_declared_too_large_is_not_read(rig: Rig) -> None:
    await rig.evm.verify_chain()
    rig.node.script(HEAD, huge(1 << 30))
    assert (await failure_of(rig)).fault is Fault.BODY_TOO_LARGE
    # Less than the cap: what went out is what the sockets' buffers took.
    assert rig.node.sent_bytes < 16 * 1024 * 1024


async def test_a_compressed_body_is_inflated(rig: Rig) -> None:
    rig.node.script("eth_getBlockByNumber", gzipped())
    block = json.loads(await rig.evm.call("eth_getBlockByNumber", ["0xf4240", True]))
    assert block["number"] == "0xf4240"


@pytest.mark.parametrize(
    ("coding", "fault"),
    [("gzip", Fault.MALFORMED), ("br", Fault.MALFORMED), ("zstd", Fault.MALFORMED)],
)
async def test_a_broken_or_unasked_coding_is_malformed(rig: Rig, coding: str, fault: Fault) -> None:
    rig.node.script(HEAD, raw(b"not compressed at all", content_encoding=coding))
    assert (await failure_of(rig)).fault is fault


@pytest.mark.parametrize(("size_bytes", "on_the_loop"), [(1000, True), (1 << 20, True), ((1 << 20) + 1, False)])
async def test_B59_a_large_answer_is_decoded_off_the_loop(size_bytes: int, on_the_loop: bool) -> None:
    decoding_thread = await decoded(lambda raw: threading.get_ident(), bytes(size_bytes))
    assert (decoding_thread == threading.get_ident()) is on_the_loop


async def test_an_answer_of_megabytes_comes_back_whole(rig: Rig) -> None:
    text = "0x" + "ab" * (2 * 1024 * 1024)
    rig.node.script(HEAD, answer(text))
    assert await rig.evm.call(HEAD) == f'"{text}"'.encode()


# --- statuses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "fault", "result"),
    [
        (400, "bad", Fault.HTTP_4XX, "http_4xx"),
        (404, "<html>", Fault.HTTP_4XX, "http_4xx"),
        (408, "", Fault.RESET, "transport"),
        (413, "", Fault.TOO_BIG, "invalid"),
        (500, "oops", Fault.HTTP_5XX, "http_5xx"),
        (502, "<html>502</html>", Fault.HTTP_5XX, "http_5xx"),
        (503, "busy", Fault.HTTP_5XX, "http_5xx"),
        (302, "", Fault.MALFORMED, "invalid"),
        (200, "", Fault.MALFORMED, "invalid"),
        (429, "<html>limited</html>", Fault.RATE_LIMITED, "rate_limited"),
        (400, '{"id":null,"error":{"code":-32000,"message":"header not found"}}', Fault.NOT_FOUND, "not_found"),
        (500, '{"error":{"code":-32601,"message":"x"}}', Fault.METHOD_NOT_SUPPORTED, "invalid"),
        (403, '{"error":{"code":-32601,"message":"x"}}', Fault.METHOD_NOT_SUPPORTED, "invalid"),
        (403, '{"error":{"code":-32000,"message":"bad key"}}', Fault.DENIED, "http_4xx"),
    ],
)
async def test_row_08_statuses_are_told_apart(rig: Rig, status: int, body: str, fault: Fault, result: str) -> None:
    await rig.evm.verify_chain()
    rig.node.script(HEAD, http(status, body))
    assert (await failure_of(rig)).fault is fault
    assert rig.counts.results(HEAD) == {result: 1}


@pytest.mark.parametrize("status", [401, 402, 403])
async def test_row_07_a_node_that_denies_us_is_left_alone(rig: Rig, status: int) -> None:
    await rig.evm.verify_chain()
    rig.node.always("*", http(status, "no"))
    for _ in range(10):
        assert (await failure_of(rig)).fault is Fault.DENIED
    assert rig.node.hits[HEAD] == 1
    assert not rig.evm.standing.up


async def test_log_lines_tell_nodes_of_one_name_apart_by_their_chains(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    node = EvmNode("primary", rig.node.url, chain_id=5, chain="sepolia", trust_env=False)
    try:
        with pytest.raises(CallFailed):
            await node.verify_chain()
    finally:
        await node.aclose()
    (record,) = caplog.records
    told = (record.getMessage(), record.__dict__["upstream"], record.__dict__["chain"])
    assert told == ("upstream_wrong_chain", "primary", "sepolia")


async def test_a_node_counts_as_up_from_its_first_answer_on(rig: Rig) -> None:
    assert not rig.evm.answers(rig.clock.at)
    await rig.evm.call(HEAD)
    assert rig.evm.answers(rig.clock.at)
    rig.node.script(HEAD, http(401))
    await failure_of(rig)
    assert not rig.evm.answers(rig.clock.at)


async def test_row_07_a_denied_node_is_tried_once_a_minute_and_comes_back(rig: Rig) -> None:
    await rig.evm.verify_chain()
    rig.node.script(HEAD, http(401), http(401))
    await failure_of(rig)
    rig.clock.at += 60.0
    await failure_of(rig)
    await failure_of(rig)
    assert rig.node.hits[HEAD] == 2
    rig.clock.at += 60.0
    await rig.evm.call(HEAD)
    assert rig.evm.standing.up


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [("3", 3.0), (formatdate(WALL + 7, usegmt=True), 7.0), (None, 1.0), ("999999", 60.0), ("0", 1.0), ("soon", 1.0)],
)
async def test_row_05_a_limit_cools_the_node_down(rig: Rig, header: str | None, wait_s: float) -> None:
    await rig.evm.verify_chain()
    rig.node.script(HEAD, http(429, "", **({} if header is None else {"retry_after": header})))
    assert (await failure_of(rig)).retry_after_s == wait_s
    rig.clock.at += wait_s - 0.25
    second = await failure_of(rig)
    assert second.fault is Fault.RATE_LIMITED
    assert second.retry_after_s == pytest.approx(0.25)
    assert rig.node.hits[HEAD] == 1
    rig.clock.at += 0.25
    assert await rig.evm.call(HEAD) == b'"0xf4240"'


@pytest.mark.parametrize(
    "behaviour",
    [error(-32005, "limit"), error(-32000, "rate limit exceeded"), http(503, "", retry_after="2")],
)
async def test_row_06_every_spelling_of_a_limit_is_one(rig: Rig, behaviour: Behaviour) -> None:
    await rig.evm.verify_chain()
    rig.node.script(HEAD, behaviour)
    assert (await failure_of(rig)).fault is Fault.RATE_LIMITED
    assert (await failure_of(rig)).fault is Fault.RATE_LIMITED
    assert rig.node.hits[HEAD] == 1


async def test_limits_in_a_row_without_a_wait_last_longer_each_time(rig: Rig) -> None:
    await rig.evm.verify_chain()
    rig.node.always(HEAD, http(429))
    waits = []
    for _ in range(9):
        failure = await failure_of(rig)
        assert failure.retry_after_s is not None
        waits.append(failure.retry_after_s)
        rig.clock.at += failure.retry_after_s
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


# --- B35: which chain -----------------------------------------------------------------------------------------------


async def test_B35_row_11_a_node_of_another_chain_is_asked_for_nothing_else(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.node.chain_id = 5
    failure = await failure_of(rig)
    assert failure.fault is Fault.WRONG_CHAIN
    assert failure.message == "the node serves chain 5, configured 1"
    for _ in range(5):
        await failure_of(rig)
    assert rig.node.hits == {"eth_chainId": 1}
    assert not rig.evm.standing.up
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_B35_the_chain_is_asked_for_again_and_an_endpoint_may_switch_both_ways(rig: Rig) -> None:
    await rig.evm.call(HEAD)
    await rig.evm.call(HEAD)
    assert rig.node.hits["eth_chainId"] == 1
    rig.node.chain_id = 5
    rig.clock.at += 300.0
    assert (await failure_of(rig)).fault is Fault.WRONG_CHAIN
    assert rig.node.hits[HEAD] == 2
    rig.node.chain_id = 1
    rig.clock.at += 60.0
    await rig.evm.call(HEAD)
    assert rig.evm.standing.up


async def test_B35_after_a_lost_connection_the_chain_is_asked_for_again(rig: Rig) -> None:
    await rig.evm.call(HEAD)
    await rig.node.stop()
    assert (await failure_of(rig)).fault is Fault.REFUSED
    rig.node.chain_id = 5
    await rig.node.start()
    assert (await failure_of(rig)).fault is Fault.WRONG_CHAIN
    assert rig.node.hits[HEAD] == 1


async def test_B35_a_chain_id_that_is_not_configured_is_learned_once(million: dict[str, Any]) -> None:
    async with ScriptedNode.of_corpus(million) as node, open_rig(node, chain_id=None) as rig:
        assert rig.evm.chain_id is None
        await rig.evm.call(HEAD)
        assert rig.evm.chain_id == 1
        node.chain_id = 5
        rig.clock.at += 300.0
        assert (await failure_of(rig)).fault is Fault.WRONG_CHAIN
        assert rig.evm.chain_id == 1


async def test_U16_callers_share_one_chain_check_and_none_can_cancel_it(rig: Rig) -> None:
    gate = asyncio.Event()
    rig.node.script("eth_chainId", held(gate))
    calls = [asyncio.ensure_future(rig.evm.call(HEAD)) for _ in range(20)]
    await rig.node.until("eth_chainId")
    calls[0].cancel()
    gate.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == [b'"0xf4240"'] * 19
    assert rig.node.hits["eth_chainId"] == 1


async def test_U16_the_chain_check_outlives_the_deadline_of_the_caller_that_came_first(rig: Rig) -> None:
    gate = asyncio.Event()
    rig.node.script("eth_chainId", held(gate))
    token = deadline.set(rig.clock.now() + 0.15)
    try:
        first = asyncio.ensure_future(rig.evm.call(HEAD))
    finally:
        deadline.reset(token)
    second = asyncio.ensure_future(rig.evm.call(HEAD))
    with pytest.raises(CallFailed) as caught:
        await first
    assert caught.value.fault is Fault.DEADLINE
    gate.set()
    assert await second == b'"0xf4240"'
    assert rig.node.hits["eth_chainId"] == 1


async def test_U16_callers_share_the_failure_of_a_chain_check(rig: Rig) -> None:
    rig.node.always("eth_chainId", http(500))
    outcomes = await asyncio.gather(*(rig.evm.call(HEAD) for _ in range(20)), return_exceptions=True)
    assert all(isinstance(outcome, CallFailed) and outcome.fault is Fault.HTTP_5XX for outcome in outcomes)
    assert len({id(outcome) for outcome in outcomes}) == 20
    assert rig.node.hits["eth_chainId"] == 1


@pytest.mark.parametrize("chain", ["0xzz", None, [], 1.5, -1])
async def test_a_chain_id_that_is_no_number_is_malformed(rig: Rig, chain: object) -> None:
    rig.node.script("eth_chainId", answer(chain))
    assert (await failure_of(rig)).fault is Fault.MALFORMED


# --- secrets --------------------------------------------------------------------------------------------------------

CANARIES = ("CANARY-path-key", "CANARY-query-key", "CANARY-user", "CANARY-password", "CANARY-token")


@pytest.mark.parametrize(
    "behaviour",
    [
        raw("Cannot POST /CANARY-path-key?k=CANARY-query-key"),
        html(502, "<html>CANARY-path-key CANARY-token</html>"),
        http(401, "bad user CANARY-user:CANARY-password"),
        error(-32000, "https://x/CANARY-path-key said no"),
        error(-32005, "project CANARY-path-key is over its limit"),
        http(429, "CANARY-path-key"),
        reset(),
        truncated(),
        hang(),
    ],
)
async def test_nothing_of_the_url_but_its_origin_is_ever_shown(
    behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with ScriptedNode(key="CANARY-path-key?k=CANARY-query-key") as node:
        url = node.url.replace("//", "//CANARY-user:CANARY-password@")
        headers = {"authorization": "Bearer CANARY-token"}
        async with open_rig(node, url=url, headers=headers, attempt_timeout_s=0.15) as rig:
            node.always("*", behaviour)
            failure = await failure_of(rig)
            shown = [
                repr(failure),
                str(failure),
                failure.excerpt,
                repr(rig.evm),
                repr(rig.evm._ways.poster),
                caplog.text,
            ]
            shown += [str(record.__dict__) for record in caplog.records if record.name.startswith(("copath", "httpx"))]
            assert node.posts
            for canary in CANARIES:
                assert canary not in "\n".join(shown)


async def test_secrets_stay_out_of_failures_without_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with closed_port() as port:
        async with open_rig(ScriptedNode(), url=f"http://CANARY-user:p@127.0.0.1:{port}/CANARY-path-key?k=v") as rig:
            failure = await failure_of(rig)
            chain: BaseException | None = failure
            while chain is not None:
                assert "CANARY" not in f"{chain!r}{chain}"
                chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
            assert "CANARY" not in caplog.text


@pytest.mark.parametrize("url", ["ftp://host/KEY", "not a url KEY", "http:///KEY", "http://[KEY", "KEY"])
def test_a_url_that_is_none_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(ValueError, match="upstream URL") as caught:
        EvmNode("a", url)
    assert "KEY" not in str(caught.value)


async def test_batches_are_matched_by_id(rig: Rig) -> None:
    rig.node.batch_order = lambda answers: answers[::-1]
    calls = [("eth_getBlockByNumber", ["0xf4240", False]), (HEAD, []), ("eth_nonsense", [])]
    block, head, unknown = await rig.evm.batch(calls)
    assert isinstance(block, bytes)
    assert json.loads(block)["number"] == "0xf4240"
    assert head == b'"0xf4240"'
    assert isinstance(unknown, CallFailed)


def test_limits_have_sane_defaults() -> None:
    limits = NodeLimits()
    assert limits.max_body_bytes == 32 * 1024 * 1024
    assert limits.connect_timeout_s < limits.attempt_timeout_s


def test_the_fixture_block_is_the_one_the_tests_name() -> None:
    assert recorded("full", "mainnet_1000000")["block"]["number"] == "0xf4240"
