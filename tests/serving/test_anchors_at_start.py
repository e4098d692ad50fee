"""Anchors that cannot be right keep a server from starting, with one line; those that cannot be read yet do not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from app.anchors.creditcoin import Creditcoin
from app.house import open_house
from app.settings import Settings
from tests.serving.process import Program, configuration, running, until
from tests.serving.test_start import CANARY, refusal

DEMO = "demo://sepolia"
FIRST = 175840


def anchored(**anchors: Any) -> dict[str, Any]:
    made = configuration(DEMO)
    made["chains"][0] |= {"chain_id": 11155111, "anchors": anchors}
    return made


async def anchored_up(copath: Program) -> dict[str, Any]:
    """What is listed of the anchors, once there is one."""
    async with asyncio.timeout(60):
        while True:
            listed: dict[str, Any] = (await copath.get("/api/v1/chains/1")).json["anchors"]
            if listed["attestedHeight"] is not None:
                return listed
            await asyncio.sleep(0.05)  # another process: there is nothing to wait on


async def test_a_file_of_anchors_that_is_not_right(tmp_path: Path) -> None:
    path = tmp_path / "anchors.csv"
    line = await refusal(tmp_path / "one", anchored(source="static", path=str(path)), 2)
    assert line == f"chain chain: anchors: {path}: cannot be read: No such file or directory"
    path.write_text("height,digest,kind\n7,0x12,attestation\n")
    line = await refusal(tmp_path / "other", anchored(source="static", path=str(path)), 2)
    assert line == f"chain chain: anchors: {path}: line 2: the digest must be 64 hex digits behind 0x"


async def test_another_genesis_than_the_one_that_is_kept(tmp_path: Path) -> None:
    kept = {"database_url": f"sqlite+aiosqlite:///{tmp_path / 'copath.db'}"}
    settings = {"source": "self", "interval": 5}
    async with running(tmp_path / "first", anchored(**settings, genesis=FIRST) | kept) as copath:
        await anchored_up(copath)
    line = await refusal(tmp_path / "second", anchored(**settings, genesis=FIRST + 1) | kept, 2)
    assert line == (
        f"chain chain: anchors: anchors.genesis is {FIRST + 1}, but the anchors that are kept of chain_key 1 start at {FIRST}"
    )
    async with running(tmp_path / "third", anchored(**settings, genesis=None) | kept) as copath:
        assert (await anchored_up(copath))["genesis"] == FIRST


async def test_a_creditcoin_that_is_not_there_yet(tmp_path: Path) -> None:
    url = f"ws://127.0.0.1:1/{CANARY}"
    async with running(tmp_path, anchored(source="creditcoin", url=url)) as copath:
        await until(lambda: copath.event("anchoring_stalled"), "it said so")
        listed = (await copath.get("/api/v1/chains/1")).json
        assert listed["anchors"] == {
            "source": "creditcoin",
            "genesis": None,
            "attestedHeight": None,
            "checkpointHeight": None,
            "state": "unread",
            "reason": "the node cannot be reached",
            "stalled": "RpcUnavailable",
        }
        assert "anchors are unread" in listed["reasons"]
        height = await copath.get("/api/v1/attested-height/1")
        assert (height.status, height.json) == (200, {"attestedHeight": None})
        proof = await copath.get(f"/api/v1/proof/1/{FIRST + 5}/0")
        assert (proof.status, proof.json["code"], proof.json["retriable"]) == (503, "RpcUnavailable", True)
        metrics = (await copath.get("/metrics")).body.decode()
        assert 'copath_anchor_polls_total{chain="chain",result="failed"}' in metrics
        assert CANARY not in copath.said + metrics + str(listed) + str(proof.json)


async def test_chains_that_name_the_same_creditcoin_share_its_node() -> None:
    config = anchored(source="creditcoin", url="http://127.0.0.1:1/one") | {"build": {"processes": 0}}
    (chain,) = config["chains"]
    elsewhere = {"source": "creditcoin", "url": "http://127.0.0.1:1/other"}
    config["chains"] += [chain | {"chain_key": 2, "name": "second"}]
    config["chains"] += [chain | {"chain_key": 3, "name": "third", "anchors": elsewhere}]
    async with open_house(Settings.model_validate(config), anchoring=False) as house:
        sources = [made.anchors for made in house.chains.values()]
        nodes = [source._node for source in sources if isinstance(source, Creditcoin)]
    assert [node is nodes[0] for node in nodes] == [True, True, False]
    assert all(node._client.is_closed for node in nodes)
