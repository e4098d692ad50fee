"""`copath check` as its users run it: a process of its own, over nodes that are good, wrong, behind, lying, forked or gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import launching
from tests.chain.recorded_chain import FIRST, LAST, SEPOLIA, branch, forged, sepolia, with_unmet_receipts
from tests.corpus_files import recorded
from tests.scripted_behaviours import Behaviour, changed, error, http
from tests.scripted_node import ScriptedNode, closed_port
from tests.scripted_websocket import ScriptedWebSocket

KEY = "s3cretKeyOfTheNode0123"
BY_NUMBER, RECEIPTS, EACH = "eth_getBlockByNumber", "eth_getBlockReceipts", "eth_getTransactionReceipt"


@dataclass(frozen=True)
class Said:
    """What the program said, and how it ended."""

    code: int
    rows: dict[str, list[str]]
    """The lines of the table, by chain and upstream, cut where two blanks stand."""
    verdicts: list[str]
    complaints: list[str]


async def check(*arguments: str) -> Said:
    done = await asyncio.to_thread(launching.run, "check", *arguments)
    out, err = done.stdout, done.stderr
    for secret in (KEY, "http://", "127.0.0.1", "Traceback"):
        assert secret not in out + err
    table, verdicts = [], []
    for line in out.splitlines():
        (verdicts if ": can" in line else table).append(line.rstrip())
    cells = [[cell for cell in line.replace("  ", "\t").split("\t") if cell] for line in table[1:]]
    rows = {f"{row[0].strip()}/{row[1].strip()}": [cell.strip() for cell in row[2:]] for row in cells}
    return Said(done.returncode, rows, verdicts, err.splitlines())


class Scene:
    """Nodes of one recorded chain, and the configuration that names them a, b, ..."""

    def __init__(self, place: Path, stack: contextlib.AsyncExitStack) -> None:
        self._place = place
        self._stack = stack
        self.urls: list[str] = []
        self.chain: dict[str, Any] = {"chain_key": 2, "name": "sepolia", "chain_id": SEPOLIA}

    async def node(self, last: int = LAST, *, first: int = LAST - 19, **options: Any) -> ScriptedNode:
        key = f"{KEY}{len(self.urls)}"  # of one account a limit would hold for all
        node = ScriptedNode.of_corpus(*(sepolia(height) for height in range(first, last + 1)), key=key, **options)
        await self._stack.enter_async_context(node)
        self.urls.append(node.url)
        return node

    def gone(self) -> None:
        """A node that does not listen."""
        self.urls.append(f"http://127.0.0.1:{self._stack.enter_context(closed_port())}/{KEY}")

    async def check(self, *arguments: str, **upstream: Any) -> Said:
        nodes = [{"name": name, "url": url, **upstream} for name, url in zip("abcd", self.urls, strict=False)]
        config = self._place / "config.yaml"
        config.write_text(yaml.safe_dump({"build": {"processes": 0}, "chains": [{**self.chain, "upstreams": nodes}]}))
        return await check(str(config), *arguments)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with contextlib.AsyncExitStack() as stack:
        yield Scene(tmp_path, stack)


# --- what can be trusted --------------------------------------------------------------------------------------------


async def test_two_good_nodes_are_a_chain_that_can_be_trusted(scene: Scene) -> None:
    nodes = [await scene.node(), await scene.node()]
    said = await scene.check(units_per_second=100, units_per_day=1000, max_concurrent=3)
    assert (said.code, said.complaints) == (0, [])
    assert said.verdicts == ["sepolia: can be trusted: 40 blocks were rebuilt from 2 of 2 upstreams"]
    for name in ("sepolia/a", "sepolia/b"):
        chain_id, head, *rest = said.rows[name]
        assert (chain_id, head.split()[0]) == (f"{SEPOLIA} fits", str(LAST))
        assert rest == [
            *("0", str(LAST), "by block (hash)", "not needed", "3 at once, 100/s, 1000/day"),
            *("20/20", "20/20", "-", "ok"),
        ]
    for node in nodes:
        assert node.hits[RECEIPTS] == 20
        assert node.hits[BY_NUMBER] == 20 + 2, "each block once, the head and what is final"


async def test_a_node_that_announces_its_blocks_is_asked_whether_it_does(scene: Scene) -> None:
    node = await scene.node()
    async with ScriptedWebSocket(node, key=KEY) as side:
        said = await scene.check(ws_url=side.url)
        assert (said.code, said.complaints) == (0, [])
        assert node.hits["eth_subscribe"] == 1
        side.refusal = (403, {})
        said = await scene.check(ws_url=side.url)
        assert said.code == 0, "polled is as good"
        assert [line.partition(": it takes")[0] for line in said.complaints] == [
            "note: chain sepolia, upstream a: its blocks are not announced"
        ]


async def test_everything_goes_over_a_websocket_where_that_is_all_there_is(scene: Scene) -> None:
    node = await scene.node()
    async with ScriptedWebSocket(node, key=KEY) as side:
        scene.urls[:] = [side.url]
        said = await scene.check()
        assert (said.code, said.complaints) == (0, [])
        assert said.verdicts == ["sepolia: can be trusted: 20 blocks were rebuilt from its upstream"]
        assert node.hits[RECEIPTS] == 20


async def test_as_many_blocks_are_rebuilt_as_are_asked_for_with_leaves_where_there_are_anchors(scene: Scene) -> None:
    await scene.node()
    scene.chain["anchors"] = {"source": "self", "genesis": LAST - 5}
    said = await scene.check("--blocks", "7")
    assert said.code == 0
    assert said.rows["sepolia/a"][-4:] == ["7/7", "7/7", "7/7", "ok"]


async def test_what_the_configuration_says_in_vain_is_noted(scene: Scene) -> None:
    await scene.node()
    scene.chain["cache"] = {"block_cache_capacity": 10}
    said = await scene.check("--blocks", "1")
    assert said.code == 0
    assert "block_cache_capacity" in said.complaints[0]


async def test_without_the_tag_of_what_is_final_the_blocks_are_counted_down_from_the_head(scene: Scene) -> None:
    await scene.node(first=FIRST, tags={"latest"})
    scene.chain["finality"] = {"mode": "tag", "depth": 30}
    said = await scene.check()
    assert said.code == 0
    assert said.rows["sepolia/a"][3] == str(LAST - 30)


async def test_receipts_by_transaction_and_the_largest_batch_are_told(scene: Scene) -> None:
    block = recorded("full", "mainnet_17034869")
    node = ScriptedNode.of_corpus(block, key=KEY, unsupported={RECEIPTS}, batch_limit=30)
    await scene._stack.enter_async_context(node)
    scene.urls.append(node.url)
    scene.chain |= {"chain_id": None}
    said = await scene.check("--blocks", "1")
    assert said.code == 0
    assert said.rows["sepolia/a"][4:6] == ["by transaction", "23"]
    assert said.rows["sepolia/a"][0] == "1"


async def test_the_demo_can_be_trusted_and_tells_what_it_cannot_prove() -> None:
    said = await check()
    assert said.code == 0
    assert len(said.verdicts) == 8
    assert all("can be trusted" in verdict for verdict in said.verdicts)
    assert said.rows["sepolia/primary"][-4:] == ["20/20", "20/20", "20/20", "ok"]
    assert sorted(line.split(": ")[0] for line in said.complaints) == ["note", "note"]


async def test_one_chain_of_several_is_enough_where_it_is_named() -> None:
    for name in ("samples-ethereum", "11"):
        said = await check("--chain", name)
        assert (said.code, len(said.verdicts), list(said.rows)) == (0, 1, ["samples-ethereum/primary"])


# --- what cannot ----------------------------------------------------------------------------------------------------


async def test_B35_a_node_of_another_chain_is_a_failure_whoever_stands_beside_it(scene: Scene) -> None:
    await scene.node()
    (await scene.node()).chain_id = 1
    said = await scene.check()
    assert said.code == 1
    assert said.verdicts == ["sepolia: cannot be trusted"]
    assert (said.rows["sepolia/a"][-1], said.rows["sepolia/b"][-1]) == ("ok", "wrong chain")
    assert said.rows["sepolia/b"][0] == f"not {SEPOLIA}"
    assert said.complaints == [f"failure: chain sepolia, upstream b: the node serves chain 1, configured {SEPOLIA}"]


async def test_B35_nodes_of_different_chains_are_a_failure_where_no_chain_id_is_configured(scene: Scene) -> None:
    await scene.node()
    (await scene.node()).chain_id = 1
    scene.chain["chain_id"] = None
    said = await scene.check()
    assert said.code == 1
    assert said.complaints[0] == (f"failure: chain sepolia: its upstreams serve different chains: a {SEPOLIA}, b 1")


def _status_flipped(receipts: Any) -> None:
    receipts[-1]["status"] = "0x0" if receipts[-1]["status"] == "0x1" else "0x1"


def _gas_changed(block: Any) -> None:
    if len(block["transactions"]) and isinstance(block["transactions"][0], dict):
        block["transactions"][0]["gas"] = "0x5209"


@pytest.mark.parametrize(
    ("method", "lie", "word", "text"),
    [
        (
            RECEIPTS,
            changed(lambda all_: _status_flipped(all_) if all_ else None),
            "receipts: root not met",
            "receipts of ",
        ),
        (BY_NUMBER, changed(_gas_changed), "transactions: wrong data", "they cannot be read, or contradict"),
        (BY_NUMBER, changed(lambda block: block | {"gasUsed": "0x1"}), "wrong data", "header_hash: no known form"),
    ],
    ids=["a receipt", "a transaction", "the header"],
)
async def test_a_node_that_lies_is_a_failure_whoever_stands_beside_it(
    scene: Scene, method: str, lie: Behaviour, word: str, text: str
) -> None:
    await scene.node()
    (await scene.node()).always(method, lie)
    said = await scene.check()
    assert (said.code, said.verdicts) == (1, ["sepolia: cannot be trusted"])
    assert (said.rows["sepolia/a"][-1], said.rows["sepolia/b"][-1]) == ("ok", word)
    (line,) = said.complaints
    assert line.startswith("failure: chain sepolia, upstream b: ")
    assert text in line


async def test_one_bad_block_of_twenty_is_enough(scene: Scene) -> None:
    node = await scene.node()
    (height,) = [height for height in range(LAST - 19, LAST + 1) if sepolia(height)["receipts"]][:1]
    bad = with_unmet_receipts(sepolia(height))
    node.add(bad["block"], bad["receipts"])
    said = await scene.check()
    assert said.code == 1
    assert said.rows["sepolia/a"][-4:] == ["20/20", "19/20", "-", "receipts: root not met"]
    assert said.complaints == [
        "failure: chain sepolia, upstream a: receipts of 1 of 20 blocks: they do not come to the root in the block's header"
    ]


@pytest.mark.parametrize("count", [20, 1])
async def test_B11_headers_that_commit_to_no_receipts_are_a_failure_be_it_one_of_twenty(
    scene: Scene, count: int
) -> None:
    node = await scene.node()
    busy = [height for height in range(FIRST, LAST + 1) if sepolia(height)["receipts"]]
    bare = forged(sepolia(LAST), content=sepolia(busy[0]), receiptsRoot="0x" + "00" * 32)
    node.add(bare["block"], bare["receipts"])
    said = await scene.check("--blocks", str(count))
    assert said.code == 1
    assert said.rows["sepolia/a"][-4:] == [f"{count}/{count}", f"{count - 1}/{count}", "-", "receipts: not committed"]
    assert [line.split(": ")[0] for line in said.complaints] == ["failure"]


async def test_nodes_that_disagree_about_what_is_final_are_a_failure(scene: Scene) -> None:
    await scene.node()
    forked = await scene.node()
    for record in branch(LAST - 3, [sepolia(height) for height in range(LAST - 3, LAST + 1)]):
        forked.add(record["block"], record["receipts"])
    said = await scene.check()
    assert said.code == 1
    assert (said.rows["sepolia/a"][-1], said.rows["sepolia/b"][-1]) == ("ok", "ok"), "each by itself"
    (line,) = said.complaints
    assert line.startswith(
        f"failure: chain sepolia: its upstreams have different blocks at height {LAST}, final to all: a 0x"
    )


async def test_a_node_that_refuses_the_key_is_a_failure(scene: Scene) -> None:
    await scene.node()
    (await scene.node()).always("*", http(401, f"bad key {KEY}"))
    said = await scene.check()
    assert (said.code, said.rows["sepolia/b"][-1]) == (1, "denied")
    assert said.complaints == ["failure: chain sepolia, upstream b: the node answered HTTP 401"]


# --- what may pass --------------------------------------------------------------------------------------------------

Trouble = Callable[[Scene], Any]


async def _gone(scene: Scene) -> None:
    scene.gone()


async def _behind(scene: Scene) -> None:
    await scene.node(LAST - 40, first=FIRST)


async def _limited(scene: Scene) -> None:
    (await scene.node()).always("*", http(429, retry_after="30"))


async def _pruned(scene: Scene) -> None:
    (await scene.node()).always(RECEIPTS, error(4444, "pruned history unavailable"))


@pytest.mark.parametrize(
    ("trouble", "word", "text"),
    [
        (_gone, "unreachable", "the connection was refused"),
        (_behind, "40 blocks behind", f"it is 40 blocks behind the newest head, {LAST}"),
        (_limited, "limited", "HTTP 429"),
        (_pruned, "receipts: not given", "the node does not give them"),
    ],
    ids=["gone", "behind", "limited", "pruned"],
)
async def test_trouble_that_may_pass_is_a_warning_beside_a_good_node_and_a_failure_alone(
    scene: Scene, trouble: Trouble, word: str, text: str
) -> None:
    await trouble(scene)
    alone = None if trouble is _behind else await scene.check()
    await scene.node()
    beside = await scene.check()
    assert (beside.code, beside.rows["sepolia/a"][-1], beside.rows["sepolia/b"][-1]) == (0, word, "ok")
    assert beside.verdicts == ["sepolia: can be trusted: 20 blocks were rebuilt from 1 of 2 upstreams"]
    (line,) = beside.complaints
    assert line.startswith("warning: chain sepolia, upstream a: ")
    assert text in line
    if alone is not None:
        assert (alone.code, alone.verdicts) == (1, ["sepolia: cannot be trusted"])
        assert [each.split(": ")[0] for each in alone.complaints] == ["failure"]


async def test_a_chain_without_a_final_block_cannot_be_trusted_yet(scene: Scene) -> None:
    node = await scene.node(tags={"latest"})
    node.head = 3
    node.add(forged(sepolia(LAST), number="0x3")["block"], [])
    said = await scene.check()
    assert (said.code, said.rows["sepolia/a"][-1]) == (1, "nothing final")


async def test_blocks_without_a_transaction_prove_little_and_that_is_said(scene: Scene) -> None:
    empty = [height for height in range(FIRST, LAST) if not sepolia(height)["receipts"]]
    node = ScriptedNode.of_corpus(sepolia(empty[0]), key=KEY)
    await scene._stack.enter_async_context(node)
    scene.urls.append(node.url)
    said = await scene.check("--blocks", "1")
    assert said.code == 0
    assert said.complaints == [
        "note: chain sepolia, upstream a: no block of 1 holds a transaction: more of them would say more"
    ]


# --- how it is called -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--chain", "nowhere"), "--chain: no chain is called nowhere; there are mainnet-early,"),
        (("nothing-here.yaml",), "copath: "),
        (("--blocks", "0"), ""),
    ],
)
async def test_what_cannot_be_meant_is_said_in_one_line_with_exit_code_2(arguments: tuple[str, ...], line: str) -> None:
    said = await check(*arguments)
    assert (said.code, said.rows, said.verdicts) == (2, {}, [])
    assert said.complaints
    if line:
        (only,) = said.complaints
        assert only.startswith(line)


async def test_a_configuration_error_is_one_line_with_exit_code_2(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"chains:\n  - chain_key: 1\n    eth_rpc_url: https://node.example.org/{KEY}\n    colour: red\n")
    said = await check(str(config))
    assert said.code == 2
    (line,) = said.complaints
    assert "colour" in line
