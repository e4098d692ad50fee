"""What a real server says of itself, whatever its clients, its node and its event loop do."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.scripted_behaviours import hang
from tests.scripted_node import ScriptedNode
from tests.serving.process import PROOF, Program, configuration, running, until

PROBES = ("/livez", "/readyz", "/health", "/metrics", "/api/v1/health", "/api/v1/chains")
CROWD = 500


async def test_B58_idle_connections_and_hung_requests_do_not_turn_probes_away(
    node: ScriptedNode, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * CROWD:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4 * CROWD, hard), hard))
    settings = {"admission": {"max_in_flight_requests": 4, "max_in_flight_per_chain": 4, "request_timeout_secs": 20}}
    async with running(tmp_path, configuration(node.url, **settings)) as program:
        crowd = [await program.line() for _ in range(CROWD)]
        for line in crowd[::10]:
            assert (await line.get("/livez")).status == 200
        node.always("eth_getBlockReceipts", hang())
        hung = [await program.line() for _ in range(4)]
        for line in hung:
            await line.send(PROOF)
        await node.until("eth_getBlockReceipts")
        for path in PROBES:
            asked = time.monotonic()
            assert (await program.get(path)).status == 200, path
            assert time.monotonic() - asked < 1, path
        for line in (*crowd, *hung):
            await line.close()


async def test_B59_a_process_that_stood_still_for_two_seconds_is_alive_and_says_so(
    node: ScriptedNode, tmp_path: Path
) -> None:
    async with running(tmp_path, configuration(node.url)) as program:
        line = await program.line()
        assert (await line.get("/livez")).status == 200
        os.kill(program.process.pid, signal.SIGSTOP)
        await asyncio.sleep(2)
        await line.send("/livez")  # the first thing that it finds when it goes on
        os.kill(program.process.pid, signal.SIGCONT)
        assert (await line.reply()).status == 200
        metrics = (await program.get("/metrics")).body.decode()
        buckets = dict(
            sample.rsplit(" ", 1)
            for sample in metrics.splitlines()
            if sample.startswith("copath_event_loop_lag_seconds")
        )
        within_a_second = float(buckets['copath_event_loop_lag_seconds_bucket{le="1.0"}'])
        assert float(buckets["copath_event_loop_lag_seconds_count"]) > within_a_second


async def test_B68_readiness_follows_the_node_and_liveness_does_not(node: ScriptedNode, tmp_path: Path) -> None:
    await node.stop()
    async with running(tmp_path, configuration(node.url)) as program:
        ready, alive = await program.get("/readyz"), await program.get("/livez")
        assert (ready.status, alive.status) == (503, 200)
        assert ready.json["reasons"][-2:] == ["no chain is servable", "chain: no head seen yet"]
        await node.start()
        await program.ready()


async def test_lines_that_are_written_for_a_request_carry_its_id(node: ScriptedNode, tmp_path: Path) -> None:
    talkative = """
import logging
from app.chain.chain import Chain

block = Chain.block

async def told(self, *arguments, **more):
    logging.getLogger("app.chain.chain").info("looking")
    return await block(self, *arguments, **more)

Chain.block = told
"""
    async with running(tmp_path, configuration(node.url), prelude=talkative) as program:
        reply = await program.get(PROOF)
        assert reply.status == 200
        looking = await until(lambda: program.event("looking"), "it was told")
        assert looking is not None
        assert looking["request_id"] == reply.headers["x-request-id"]


async def test_what_starting_made_is_not_walked_for_garbage_again(node: ScriptedNode, tmp_path: Path) -> None:
    tell = """
import gc

freeze = gc.freeze

def told():
    freeze()
    print("spared", gc.get_freeze_count(), flush=True)

gc.freeze = told
"""
    async with running(tmp_path, configuration(node.url), prelude=tell) as program:
        assert (await program.get(PROOF)).status == 200
        imported, started = (int(line.split()[-1]) for line in program.out.read_text().splitlines())
    assert imported > 10_000  # the objects of a program of this size
    assert started - imported > 1_000  # and of a server that listens


async def test_a_node_that_is_gone_or_wrong_is_shown_over_http(node: ScriptedNode, tmp_path: Path) -> None:
    wrong = ScriptedNode()
    wrong.chain_id = node.chain_id + 1
    async with wrong, running(tmp_path, configuration(node.url)) as single:
        await until_told(single, lambda body: body["eth_rpc_connected"] is True and body["ready"])
        await node.stop()
        body = await until_told(single, lambda body: body["eth_rpc_connected"] is False)
        said = body["chains"]["chain"]["reasons"]
        assert [reason for reason in said if reason.startswith("upstream primary ")], said
        compat = (await single.get("/api/v1/health")).json
        assert (compat["status"], compat["eth_rpc_connected"], compat["cc3_rpc_connected"]) == ("degraded", False, None)
        assert node.url not in (await single.get("/readyz")).body.decode()
        await node.start()
        body = await until_told(single, lambda body: body["eth_rpc_connected"] is True)
        assert not any("upstream" in reason for reason in body["chains"]["chain"]["reasons"])
        other = configuration(wrong.url)
        async with running(tmp_path / "other", other) as misled:
            reason = "chain: upstream primary serves another chain"
            body = await until_told(misled, lambda body: reason in body["reasons"])
            assert (body["ready"], body["eth_rpc_connected"]) == (False, False)


async def until_told(program: Program, holds: Callable[[Any], object]) -> Any:
    """The first readiness that is so."""
    async with asyncio.timeout(60):
        while not holds(body := (await program.get("/readyz")).json):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
        return body
