"""A development chain that begins again under a running server: nothing of the dead chain leaves after one poll."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.chain.head import NEW_CHAIN
from app.chain.news import ANOTHER_CHAIN
from tests.acceptance.server import Answer, Client, Copath, chain, free_port, running_copath
from tests.acceptance.waiting import until
from tests.oracles import signing
from tests.oracles.anvil import CHAIN_ID, EMITTER_INIT, Anvil, running_anvil
from tests.oracles.signing import Account, Call
from tests.postgres import PostgresServer, postgres_server

__all__ = ["postgres_server"]

KEY = 6
DEPTH = 2
_accounts = itertools.count(1000)


class Swapped:
    """One address, at which one chain after another is to be had."""

    def __init__(self) -> None:
        self.port = free_port()
        self._life = ExitStack()
        self.anvil: Anvil
        self.blocks: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def begin(self, head: int, *options: str) -> None:
        """The node ends; another takes its place, with a chain of blocks of one transaction each up to `head`."""
        self._life.close()
        self.anvil = self._life.enter_context(running_anvil(*options, port=self.port))
        for _ in range(head):
            account = Account.numbered(next(_accounts))
            self.anvil.fund(account)
            self.anvil.send(signing.dynamic_fee(account, Call(None, data=EMITTER_INIT), CHAIN_ID))
            self.anvil.mine()
        self.blocks = [self.anvil.block(height) for height in range(1, head + 1)]

    def close(self) -> None:
        self._life.close()


@pytest.fixture
def node() -> Iterator[Swapped]:
    swapped = Swapped()
    try:
        yield swapped
    finally:
        swapped.close()


@contextmanager
def server(node: Swapped, place: Path | None, database: str | None = None) -> Iterator[Copath]:
    settings: dict[str, Any] = {}
    if database is not None:
        settings = {"database_url": database, "shutdown": {"lame_duck_secs": 0}}
    elif place is not None:
        settings = {
            "database_url": f"sqlite+aiosqlite:///{place / 'kept.db'}",
            "block_store_url": f"file:{place / 'blocks'}",
        }
    configured = chain(
        KEY,
        "anvil",
        CHAIN_ID,
        node.url,
        finality={"mode": "depth", "depth": DEPTH},
        anchors={"source": "self", "genesis": 1, "interval": 1, "checkpoint_every": 4},
    )
    with running_copath(configured, **settings) as copath:
        yield copath


def listed(copath: Copath) -> Any:
    return copath.get(f"/api/v1/chains/{KEY}").json


def ways(block: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Every route that a proof of this block may leave by."""
    height, tx_hash = int(block["number"], 16), block["transactions"][0]["hash"]
    base = f"/api/v1/proofs/{KEY}"
    for named in (height, block["hash"]):
        for kind in ("transactions", "receipts"):
            yield "GET", f"{base}/blocks/{named}/{kind}/0", None
    for kind in ("transactions", "receipts"):
        yield "GET", f"{base}/{kind}/{tx_hash}", None
    yield "GET", f"/api/v1/proof/{KEY}/{height}/0", None
    yield "GET", f"/api/v1/proof-by-tx/{KEY}/{tx_hash}", None
    yield "POST", f"/api/v1/proof-batch/{KEY}", [{"headerNumber": height, "txIndexes": [0]}]
    yield "POST", f"/api/v1/proof-batch-by-tx/{KEY}", [tx_hash]


def ask(client: Client, method: str, path: str, body: Any) -> Answer:
    return client.get(path) if method == "GET" else client.post(path, body)


def known(copath: Copath, blocks: list[dict[str, Any]]) -> dict[str, str]:
    """Asks for everything, so that it is kept; the entity tags of what was served, by path."""
    tags: dict[str, str] = {}
    for block in blocks:
        for method, path, body in ways(block):
            answer = ask(copath.client, method, path, body)
            if method == "GET" and "etag" in answer.headers:
                tags[path] = answer.headers["etag"]
    return tags


def require_dead(copath: Copath, blocks: list[dict[str, Any]], tags: dict[str, str]) -> None:
    """Nothing of these blocks leaves: neither their hashes and transactions, nor a word that they are what they were."""
    marks = {block["hash"] for block in blocks} | {block["transactions"][0]["hash"] for block in blocks}
    bare = {mark[2:] for mark in marks}
    for block in blocks:
        for method, path, body in ways(block):
            answer = ask(copath.client, method, path, body)
            if answer.status == 200 and not is_refusal(answer):
                text = answer.body.decode()
                assert not any(mark in text for mark in bare), (path, text[:300])
            else:
                assert answer.status != 500, (path, answer.body[:300])
            if path in tags:
                again = copath.client.send("GET", path, headers={"If-None-Match": tags[path]})
                assert again.status != 304, path


def is_refusal(answer: Answer) -> bool:
    """Whether a batch answered with codes for each of its items, which may name what was asked for."""
    body = answer.json
    told = json.dumps(body)
    return '"headerRlp"' not in told and '"txBytes"' not in told and '"nodes"' not in told and '"result"' not in told


def require_alive(copath: Copath, block: dict[str, Any]) -> None:
    path = f"/api/v1/proofs/{KEY}/transactions/{block['transactions'][0]['hash']}"
    until(lambda: copath.get(path).status == 200, "the new chain to be served")
    assert copath.get(path).json["blockHash"] == block["hash"]


def said(copath: Copath) -> int:
    """How often the log says that the chain is another."""
    return copath.log.read_text().count(ANOTHER_CHAIN)


OLD = 8
HEADS = [4, 7, 8, 9, 16]
"""Of the new chain: far below the old head, just below it, at it, just above it, and far above it."""


@pytest.mark.parametrize("kept", [False, True], ids=["in-memory", "with-a-ledger"])
def test_a_node_that_begins_again_under_a_running_server(kept: bool, node: Swapped, tmp_path: Path) -> None:
    node.begin(OLD)
    swaps = 0
    with server(node, tmp_path if kept else None) as copath:
        for head in (*HEADS, *HEADS):
            until(lambda: listed(copath)["anchors"]["attestedHeight"], "an anchor")
            dead, tags = node.blocks, known(copath, node.blocks)
            node.begin(head)
            swaps += 1
            until(lambda: said(copath) == swaps, "the new chain to be seen")  # noqa: B023 - called at once
            assert NEW_CHAIN in copath.get("/readyz").json["chains"]["anvil"]["reasons"]
            require_dead(copath, dead, tags)
            require_alive(copath, node.blocks[-1])
            assert said(copath) == swaps


@pytest.mark.parametrize("head", [3, 8, 16])
def test_a_node_that_begins_again_while_the_server_is_down(head: int, node: Swapped, tmp_path: Path) -> None:
    node.begin(OLD)
    with server(node, tmp_path) as copath:
        until(lambda: listed(copath)["anchors"]["attestedHeight"] == OLD - DEPTH, "an anchor")
        dead, tags = node.blocks, known(copath, node.blocks)
    node.begin(head)
    with server(node, tmp_path) as copath:
        until(lambda: listed(copath)["head"] is not None, "a head")
        require_dead(copath, dead, tags)
        require_alive(copath, node.blocks[-1])
        require_dead(copath, dead, tags)


def test_two_replicas_on_one_database_know_of_it_both(
    node: Swapped, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    name = asyncio.run(postgres_server.create())
    url = postgres_server.url(name)
    node.begin(OLD)
    with server(node, None, url) as first, server(node, None, url) as second:
        both = (first, second)
        for swaps, head in enumerate((4, 16), 1):
            for copath in both:
                until(lambda copath=copath: listed(copath)["anchors"]["attestedHeight"], "an anchor")
            dead, tags = node.blocks, [known(copath, node.blocks) for copath in both]
            node.begin(head)
            for copath in both:
                until(lambda copath=copath, swaps=swaps: said(copath) == swaps, "the new chain to be seen")
            for copath, known_tags in zip(both, tags, strict=True):
                require_dead(copath, dead, known_tags)
                require_alive(copath, node.blocks[-1])
    asyncio.run(postgres_server.drop(name))


def test_an_address_that_leads_to_another_chain_and_back_leaves_nothing_of_that_one(
    node: Swapped, tmp_path: Path
) -> None:
    node.begin(OLD)
    ours, saved = node.blocks, tmp_path / "saved.json"
    with server(node, tmp_path) as copath:
        until(lambda: listed(copath)["finalized"] == OLD - DEPTH, "what is final")
        known(copath, ours)
        node.anvil.save(saved)
        node.begin(16)
        other = node.blocks
        until(lambda: said(copath) == 1, "the other chain to be seen")
        tags = known(copath, other)
        node.begin(0, "--load-state", str(saved))
        until(lambda: said(copath) == 2, "the first one to be seen again")
        require_dead(copath, other, tags)
        require_alive(copath, ours[0])
        until(lambda: listed(copath)["finalized"] == OLD - DEPTH, "what is final there")
    with server(node, tmp_path) as copath:
        until(lambda: listed(copath)["finalized"] == OLD - DEPTH, "what is final there")
        require_dead(copath, other, tags)
        for block in ours[: OLD - DEPTH]:
            answer = copath.get(f"/api/v1/proofs/{KEY}/blocks/{int(block['number'], 16)}/receipts/0")
            assert (answer.status, answer.json["blockHash"]) == (200, block["hash"])
            assert answer.json["finality"]["level"] == "finalized"
