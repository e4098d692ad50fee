"""Keys and passwords that the configuration holds are in nothing that leaves the process, whatever goes wrong.

One chain for each way in which a node can fail; every URL and header carries the canaries.
"""

from __future__ import annotations

import asyncio
import base64
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.made_blocks import CHAIN_ID
from tests.scripted_behaviours import (
    Behaviour,
    answer,
    drip,
    error,
    hang,
    hang_up,
    honest,
    html,
    http,
    null,
    raw,
    reset,
    truncated,
    wrong_id,
)
from tests.scripted_node import ScriptedNode
from tests.serving.process import BLOCKS, Program, configuration, node, running

PATH = "v3/CANARYKEY?k=CANARYQ"
HEADERS = {"X-Api-Key": "CANARYHEADER", "X-Project": "CANARYPROJECT"}
ECHO = "no access for CANARYKEY: POST http://user:CANARYPW@127.0.0.1/v3/CANARYKEY?k=CANARYQ (CANARYHEADER)"

FAILURES: dict[str, Callable[[ScriptedNode], None]] = {}


def failing(name: str, behaviour: Behaviour, method: str = "*") -> None:
    FAILURES[name] = lambda node: node.always(method, behaviour)


for status in (301, 400, 401, 402, 403, 404, 413, 429, 500, 502, 503):
    failing(f"http-{status}", http(status, ECHO, location=f"http://127.0.0.1:1/{PATH}"))
failing("retry-later", http(429, ECHO, retry_after="1"))
failing("html", html(200, f"<html>{ECHO}</html>"))
failing("html-error", html(502, f"<html>{ECHO}</html>"))
failing("rpc-error", error(-32000, ECHO, data=ECHO))
failing("rpc-limit", error(-32005, f"rate limit: {ECHO}"))
failing("rpc-denied", error(-32001, f"unauthorized: {ECHO}"))
failing("rpc-unsupported", error(-32601, f"the method is not available: {ECHO}"))
failing("no-json", raw(f"{{{ECHO}"))
failing("no-gzip", raw(ECHO, content_encoding="gzip"))
failing("another-type", answer(ECHO))
failing("wrong-id", wrong_id())
failing("null", null())
failing("hang", hang())
failing("drip", drip(0.5))
failing("hang-up", hang_up())
failing("reset", reset())
failing("reset-half-way", reset(40))
failing("truncated", truncated())
failing("wrong-chain", answer("0x1"), "eth_chainId")
failing("receipts-fail", error(-32000, ECHO), "eth_getBlockReceipts")
failing("receipts-wrong", answer([{"transactionHash": ECHO}]), "eth_getBlockReceipts")
failing("block-wrong", answer({"number": "0x2", "hash": ECHO}), "eth_getBlockByNumber")
FAILURES["well"] = lambda node: node.always("*", honest())

REFUSED = "refused"
NO_TLS = "no-tls"
NO_NAME = "no-name"


def url(port: int, scheme: str = "http", host: str = "127.0.0.1") -> str:
    return f"{scheme}://user:CANARYPW@{host}:{port}/{PATH}"


@pytest.fixture
async def nodes() -> AsyncIterator[dict[str, ScriptedNode]]:
    async with AsyncExitStack() as stack:
        started = {name: await stack.enter_async_context(node(key=PATH)) for name in FAILURES}
        for name, fail in FAILURES.items():
            fail(started[name])
        yield started


def chain(key: int, name: str, address: str) -> dict[str, Any]:
    return {
        "chain_key": key,
        "name": name,
        "chain_id": None if name == "wrong-chain" and key % 2 else CHAIN_ID,
        "upstreams": [{"name": "own", "url": address, "headers": HEADERS}],
        "routing": {"attempt_timeout_secs": 0.5, "primary_grace_secs": 0.2, "primary_retry_cap_secs": 0.2},
        "anchors": {"source": "self", "genesis": 1},
    }


async def everything(program: Program, name: str, key: int) -> bytes:
    """What the server says of one chain, to whatever question."""
    block = BLOCKS[1]["block"]
    transaction = block["transactions"][1]["hash"]
    paths = [
        f"/api/v1/proofs/{name}/blocks/2/transactions/1",
        f"/api/v1/proofs/{name}/blocks/{block['hash']}/receipts/1",
        f"/api/v1/proofs/{name}/transactions/{transaction}",
        f"/api/v1/proofs/{name}/receipts/{transaction}",
        f"/api/v1/proofs/{name}/logs/{transaction}/0",
        f"/api/v1/proof/{key}/2/1",
        f"/api/v1/proof-by-tx/{key}/{transaction}",
        f"/api/v1/attested-height/{key}",
        f"/api/v1/chains/{name}",
    ]
    replies = await asyncio.gather(*(program.get(path) for path in paths))
    return b"\n".join(str(dict(reply.headers)).encode() + reply.body for reply in replies)


async def test_no_secret_of_the_configuration_leaves_the_process(
    nodes: dict[str, ScriptedNode], tmp_path: Path
) -> None:
    addresses = {name: url(running_node.port) for name, running_node in nodes.items()}
    addresses |= {
        REFUSED: url(1),
        NO_TLS: url(nodes["well"].port, "https"),
        NO_NAME: url(80, host="no.such.host.invalid"),
    }
    settings = configuration(
        "",
        chains=[chain(key, name, address) for key, (name, address) in enumerate(addresses.items(), 1)],
        logging={"level": "debug"},
        admission={"request_timeout_secs": 1.5},
    )
    async with running(tmp_path, settings) as program:
        heard = []
        chains = list(enumerate(addresses, 1))
        for few in (chains[at : at + 6] for at in range(0, len(chains), 6)):
            heard += await asyncio.gather(*(everything(program, name, key) for key, name in few))
        for path in ("/readyz", "/health", "/livez", "/api/v1/health", "/api/v1/chains", "/metrics", "/openapi.json"):
            reply = await program.get(path)
            heard.append(str(dict(reply.headers)).encode() + reply.body)
        program.signal(signal.SIGTERM)
        assert await program.ended() == 0
        said = b"\n".join(heard).decode(errors="replace") + program.said
    for name, running_node in nodes.items():
        sent = running_node.headers[0]
        assert sent["x-api-key"] == "CANARYHEADER", name
        assert base64.b64decode(sent["authorization"].removeprefix("Basic ")) == b"user:CANARYPW", name
    assert {event["event"] for event in program.events} >= {"config_resolved", "listening", "request"}
    lines = [line for line in said.splitlines() if "CANARY" in line]
    assert lines == []
    assert base64.b64encode(b"user:CANARYPW").decode() not in said
    for status_of_all in ("RpcUnavailable", "http_5xx", "http_4xx", "timeout", "transport", "rate_limited"):
        assert status_of_all in said, "the failures were met"
