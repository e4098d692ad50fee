"""`copath check` tells the truth about two real nodes: in step, one behind, one forked, one gone, one back without its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from tests.oracles import signing
from tests.oracles.anvil import CHAIN_ID, Anvil, running_anvil
from tests.oracles.signing import Account, Call
from tests.test_check import Said, check

DEPTH = 2


@pytest.fixture
def anvils() -> Iterator[tuple[Anvil, Anvil]]:
    """Two nodes that share 20 blocks, some of them with transactions of every type."""
    with running_anvil() as one, running_anvil() as other:
        for _ in range(3):
            one.mine_every_type()
        one.mine(20 - one.height())
        share(one, other)
        yield one, other


def share(one: Anvil, other: Anvil) -> None:
    """The other node gets the blocks of the one."""
    other.rpc("anvil_loadState", one.rpc("anvil_dumpState"))
    assert other.block(other.height())["hash"] == one.block(one.height())["hash"]


def pay(anvil: Anvil, value: int) -> None:
    """One transaction that no other node has, and blocks on top of its own."""
    payer = Account.numbered(7)
    anvil.fund(payer)
    payer.nonce = int(anvil.rpc("eth_getTransactionCount", "0x" + payer.address.hex(), "latest"), 16)
    anvil.send(signing.dynamic_fee(payer, Call(b"\x22" * 20, value=value), CHAIN_ID))
    anvil.mine(1 + DEPTH)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


async def checked(place: Path, *urls: str) -> Said:
    write(place, urls)
    return await check(str(place))


def write(place: Path, urls: Sequence[str]) -> None:
    upstreams = [{"name": name, "url": url} for name, url in zip("ab", urls, strict=False)]
    chain = {"chain_key": 5, "name": "anvil", "chain_id": CHAIN_ID, "upstreams": upstreams}
    chain |= {"finality": {"mode": "depth", "depth": DEPTH}}
    place.write_text(yaml.safe_dump({"build": {"processes": 0}, "chains": [chain]}))


def words(said: Said) -> list[str]:
    return [said.rows[f"anvil/{name}"][-1] for name in "ab" if f"anvil/{name}" in said.rows]


async def test_two_nodes_in_step_can_be_trusted(place: Path, anvils: tuple[Anvil, Anvil]) -> None:
    said = await checked(place, *(anvil.url for anvil in anvils))
    assert (said.code, words(said), said.complaints) == (0, ["ok", "ok"], [])
    assert said.verdicts == ["anvil: can be trusted: 38 blocks were rebuilt from 2 of 2 upstreams"]
    assert said.rows["anvil/a"][2:4] == ["0", "18"]


async def test_a_node_that_stays_behind_is_named_and_the_other_is_enough(
    place: Path, anvils: tuple[Anvil, Anvil]
) -> None:
    anvils[0].mine(17)
    said = await checked(place, *(anvil.url for anvil in anvils))
    assert (said.code, words(said)) == (0, ["ok", "17 blocks behind"])
    assert [line.split(": ")[0] for line in said.complaints] == ["warning", "note"], "its newest blocks are empty"
    share(*anvils)
    assert words(await checked(place, *(anvil.url for anvil in anvils))) == ["ok", "ok"]


async def test_nodes_that_went_separate_ways_below_what_is_final_cannot_be_trusted(
    place: Path, anvils: tuple[Anvil, Anvil]
) -> None:
    for value, anvil in enumerate(anvils, 1):
        pay(anvil, value)
    said = await checked(place, *(anvil.url for anvil in anvils))
    assert (said.code, words(said)) == (1, ["ok", "ok"])
    (line,) = said.complaints
    assert "different blocks at height 21, final to all" in line
    for anvil in anvils:
        assert anvil.block(21)["hash"] in line
    assert (await checked(place, anvils[0].url)).code == 0, "each by itself is a chain"


async def test_a_node_that_is_gone_and_one_that_comes_back_empty_are_told_apart(
    place: Path, anvils: tuple[Anvil, Anvil]
) -> None:
    with running_anvil() as mortal:
        url = mortal.url
    said = await checked(place, anvils[0].url, url)
    assert (said.code, words(said)) == (0, ["ok", "unreachable"])
    with running_anvil() as reborn:
        said = await checked(place, anvils[0].url, reborn.url)
    assert said.code == 0
    assert words(said)[0] == "ok"
    assert any("20 blocks behind" in line for line in said.complaints)
    said = await checked(place, url)
    assert (said.code, words(said)) == (1, ["unreachable"])
