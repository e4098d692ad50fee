"""A real node that is spoken to over a WebSocket: its blocks are served as they come, and it may go away and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.judging import judge, transaction_hashes
from tests.acceptance.server import Answer, Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.oracles.anvil import CHAIN_ID, Anvil, MortalAnvil
from tests.postgres import PostgresServer, postgres_server

__all__ = ["postgres_server"]

ONLY, BESIDE = 5, 6
"""Chain keys: everything over the WebSocket, or announcements alone."""

GET_BLOCK = "eth_getBlockByNumber"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MortalAnvil]:
    running = MortalAnvil(tmp_path)
    try:
        yield running
    finally:
        running.close()


def upstream(copath: Copath, key: int) -> dict[str, Any]:
    (listed,) = copath.get(f"/api/v1/chains/{key}").json["upstreams"]
    found: dict[str, Any] = listed
    return found


def wait_for(copath: Copath, what: str, value: object) -> None:
    for key in (ONLY, BESIDE):
        until(lambda key=key: upstream(copath, key)[what] == value, f"{what} of chain {key} to be {value}")


def prove_all(copath: Copath, anvil: Anvil, height: int) -> None:
    record = {"block": anvil.block(height), "receipts": anvil.receipts(height)}
    for key in (ONLY, BESIDE):
        for index, tx_hash in enumerate(transaction_hashes(record)):
            for kind in ("transaction", "receipt"):
                answer: Answer = copath.get(f"/api/v1/proofs/{key}/{kind}s/{tx_hash}")
                assert answer.status == 200, answer.body[:300]
                judge(answer.body, record, kind, index, chain_key=key, chain_id=CHAIN_ID)


def test_blocks_are_served_as_they_are_announced_and_a_node_that_comes_back_is_listened_to_again(
    node: MortalAnvil,
) -> None:
    over_ws = node.anvil.url.replace("http", "ws")
    beside = {"name": "primary", "url": node.anvil.url, "ws_url": over_ws}
    both = chain(BESIDE, "beside", CHAIN_ID, node.anvil.url)
    del both["eth_rpc_url"]
    with running_copath(chain(ONLY, "only", CHAIN_ID, over_ws), both | {"upstreams": [beside]}) as copath:
        wait_for(copath, "subscription", "live")
        height = node.anvil.mine_every_type()
        wait_for(copath, "head", height)
        prove_all(copath, node.anvil, height)
        for name in ("only", "beside"):
            assert copath.metric("copath_upstream_announcements_total", chain=name) >= 1
            assert copath.metric("copath_upstream_subscription_live", chain=name) == 1
            assert copath.metric("copath_upstream_connections_total", chain=name) == 1

        node.kill()
        wait_for(copath, "subscription", "down")
        assert copath.metric("copath_upstream_subscription_live") == 0
        record_way = f"/api/v1/proofs/{ONLY}/blocks/{height}/transactions/0"
        assert copath.get(record_way).status in (200, 503), "not final: nobody can be asked whether it still stands"

        node.restart()
        wait_for(copath, "subscription", "live")
        after = node.anvil.mine_every_type()
        wait_for(copath, "head", after)
        prove_all(copath, node.anvil, after)
        assert copath.metric("copath_upstream_connections_total", chain="only") == 2
        assert copath.metric("copath_unhandled_exceptions_total") == 0


def test_a_quiet_node_that_announces_is_hardly_asked(node: MortalAnvil) -> None:
    over_ws = node.anvil.url.replace("http", "ws")
    told, polled = chain(ONLY, "told", CHAIN_ID, over_ws), chain(BESIDE, "polled", CHAIN_ID, node.anvil.url)
    with running_copath(told, polled) as copath:
        until(lambda: upstream(copath, ONLY)["subscription"] == "live", "the subscription")

        def calls(name: str) -> float:
            return copath.metric("copath_upstream_requests_total", chain=name, method=GET_BLOCK)

        told_before, polled_before = calls("told"), calls("polled")
        until(lambda: calls("polled") - polled_before >= 6, "the other chain to be polled a few times")
        assert calls("told") - told_before <= 2
        node.anvil.mine()
        until(lambda: upstream(copath, ONLY)["head"] == node.anvil.height(), "the block that was announced")


def test_of_two_replicas_one_is_told_and_the_other_when_that_one_ends(
    node: MortalAnvil, postgres_server: PostgresServer
) -> None:
    database = asyncio.run(postgres_server.create())
    told = chain(ONLY, "told", CHAIN_ID, node.anvil.url.replace("http", "ws"))
    settings = {"database_url": postgres_server.url(database), "shutdown": {"lame_duck_secs": 0}}
    with running_copath(told, **settings) as first, running_copath(told, **settings) as second:

        def told_ones() -> list[Copath]:
            return [each for each in (first, second) if upstream(each, ONLY)["subscription"] == "live"]

        until(lambda: len(told_ones()) == 1, "one of them to be told")
        (listener,) = told_ones()
        (other,) = {first, second} - {listener}
        assert upstream(other, ONLY)["subscription"] == "off"
        for _ in range(2):
            node.anvil.mine()
            for each in (first, second):
                until(lambda each=each: upstream(each, ONLY)["head"] == node.anvil.height(), "the new block")
        assert other.metric("copath_upstream_announcements_total") == 0
        assert other.metric("copath_shared_head_polls_total", result="made") == 0
        listener.process.terminate()
        assert listener.process.wait(timeout=30) == 0
        until(lambda: upstream(other, ONLY)["subscription"] == "live", "the other to be told")
        node.anvil.mine()
        until(lambda: upstream(other, ONLY)["head"] == node.anvil.height(), "the block it is told of")
    asyncio.run(postgres_server.drop(database))
