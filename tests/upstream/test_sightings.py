"""Where several nodes stand: all are asked at once, none holds the others up, and a listing says how each fares."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from app.core.blocks import BlockRef, Sighting
from app.core.errors import RpcUnavailable
from app.core.hexadecimal import from_hex
from app.metrics import Metrics
from app.upstream.figures import UpstreamFigures
from tests.scripted_behaviours import answer, changed, error, http, null
from tests.scripted_node import ScriptedNode
from tests.upstream.conftest import handed
from tests.upstream.crew import BY_NUMBER, HEAD, Crew, open_crew
from tests.upstream.in_process import NEVER, Timed

Record = dict[str, Any]
MILLION = BlockRef(height=1_000_000)
HASH = from_hex("0x8e38b4dbf6b11fcc3b9dee84fb7986e29ca0a02cecd8977c161ff7333329681e")


def two(million: Record) -> tuple[ScriptedNode, ScriptedNode]:
    return ScriptedNode.of_corpus(million), ScriptedNode.of_corpus(million)


def seen(sightings: tuple[Sighting, ...]) -> dict[str, int | None]:
    return {each.upstream: None if each.block is None else each.block.height for each in sightings}


async def test_every_node_is_asked_once_for_where_it_stands(million: Record) -> None:
    async with open_crew(*two(million)) as crew:
        assert seen(await crew.upstream.sightings("latest")) == {"a": 1_000_000, "b": 1_000_000}
        assert crew.hits(BY_NUMBER) == [1, 1]
        assert crew.nodes[0].params[BY_NUMBER] == [["latest", False]]


async def test_B38_a_node_without_the_tag_has_none_and_one_without_an_answer_is_left_out(million: Record) -> None:
    async with open_crew(*two(million), ScriptedNode.of_corpus(million)) as crew:
        crew.nodes[0].script(BY_NUMBER, error(-32000, "safe block not found"))
        crew.nodes[1].script(BY_NUMBER, http(500))
        assert seen(await crew.upstream.sightings("safe")) == {"a": None, "c": 1_000_000}


@pytest.mark.parametrize("tag", ["latest", "safe", "finalized"])
async def test_D5_a_head_whose_header_does_not_hash_to_its_hash_is_nobodys_head(million: Record, tag: str) -> None:
    def lie(block: Any) -> None:
        block["number"] = hex(2_000_000)

    async with open_crew(*two(million), family="ethereum") as crew:
        crew.nodes[0].always(BY_NUMBER, changed(lie))
        assert seen(await crew.upstream.sightings(tag)) == {"b": 1_000_000}
        assert crew.counts[0].invalid == {"header_hash": 1}
        name = await crew.upstream.tagged(tag)
        assert name is not None
        assert name.height == 1_000_000
        assert crew.upstream.head == 1_000_000


async def test_a_head_whose_header_has_a_field_that_is_not_known_here_is_believed(million: Record) -> None:
    def fork(block: Any) -> None:
        block["newField"], block["gasUsed"] = "0x1", "0x1"

    async with open_crew(*two(million), family="ethereum") as crew:
        crew.nodes[0].always(BY_NUMBER, changed(fork))
        assert seen(await crew.upstream.sightings("latest")) == {"a": 1_000_000, "b": 1_000_000}


async def test_when_no_node_answers_it_is_said_why(million: Record) -> None:
    async with open_crew(*two(million)) as crew:
        for node in crew.nodes:
            node.always(BY_NUMBER, http(500))
        with pytest.raises(RpcUnavailable, match=r"upstream a: .* 500; upstream b: .* 500"):
            await crew.upstream.sightings("latest")


async def test_a_node_that_hangs_holds_the_others_up_for_two_seconds_at_most_and_soon_not_at_all(
    million: Record,
) -> None:
    timed = Timed(*two(million))
    await timed.greet()
    timed.transports[0].takes = lambda method, params: NEVER
    waits = []
    for _ in range(7):
        polling = asyncio.ensure_future(timed.upstream.sightings("latest"))
        waits.append(round(await timed.after(30.0, polling)))
        assert seen(await polling) == {"b": 1_000_000}
    assert waits == [2, 2, 2, 2, 2, 0, 0]


async def test_B25_the_head_of_a_node_is_the_highest_it_named_lately(million: Record) -> None:
    async with open_crew(*two(million)) as crew:
        heads = []
        for height in (100, 101, 99, 101, 40, 102):
            for node in crew.nodes:
                node.script(BY_NUMBER, answer({**million["block"], "number": hex(height)}))
            crew.evms[0].state.head = None if not heads else crew.evms[0].state.head
            await crew.upstream.sightings("latest")
            heads.append(crew.listed(0)["head"])
            assert crew.listed(0)["lag"] in (0, None)
        assert heads == [100, 101, 101, 101, 101, 102]


async def test_D5_the_head_is_that_of_a_block_that_was_returned_and_no_bare_counter(million: Record) -> None:
    async with open_crew(*two(million)) as crew:
        for node in crew.nodes:
            node.always(HEAD, answer("0x3b9aca00"))
        assert seen(await crew.upstream.sightings("latest")) == {"a": 1_000_000, "b": 1_000_000}
        assert crew.upstream.head == 1_000_000
        assert crew.hits(HEAD) == [0, 0]


async def test_names_are_asked_of_those_who_have_come_so_far(million: Record) -> None:
    async with open_crew(*two(million), ScriptedNode.of_corpus(million)) as crew:
        crew.evms[2].state.head = 999_000
        crew.nodes[1].always(BY_NUMBER, null())
        found = await crew.upstream.names_at(1_000_000)
        assert [(each.upstream, each.block and each.block.block_hash) for each in found] == [("a", HASH), ("b", None)]
        assert crew.hits(BY_NUMBER) == [1, 1, 0]


async def test_row_26_a_node_that_is_set_aside_is_asked_for_nothing_but_where_it_stands(million: Record) -> None:
    async with open_crew(*two(million)) as crew:
        crew.upstream.set_aside(["a"])
        assert crew.listed(0)["state"] == "astray"
        assert (await crew.upstream.fetch(MILLION, handed)).upstream == "b"
        assert crew.asked[0] == 0
        assert seen(await crew.upstream.sightings("latest")) == {"a": 1_000_000, "b": 1_000_000}
        crew.upstream.set_aside([])
        assert (await crew.upstream.fetch(MILLION, handed)).upstream == "a"


# --- what is shown --------------------------------------------------------------------------------------------------


async def test_a_listing_says_how_each_node_fares_and_never_where_it_is(million: Record) -> None:
    nodes = two(million)
    nodes[1].key = "SECRET"
    nodes[1].batch_limit = 7
    async with open_crew(*nodes, derived=True) as crew:
        crew.nodes[0].script(BY_NUMBER, http(429, retry_after="9"))
        await crew.upstream.fetch(MILLION, handed)
        for _ in range(3):
            crew.evms[1].state.note_head(1_000_000, crew.clock.now())
        first, second = crew.upstream.states()
    assert "SECRET" not in str((first, second))
    assert "127.0.0.1" not in str((first, second))
    assert (first["name"], first["state"], first["cooldownSeconds"], first["derivesFrom"]) == (
        "a",
        "limited",
        9.0,
        None,
    )
    assert (second["name"], second["state"], second["lag"], second["derivesFrom"]) == ("b", "ok", 0, "a")
    assert (second["head"], second["chainId"], second["breaker"], second["trusted"]) == (1_000_000, "1", "closed", True)
    assert second["capabilities"] == {
        "receipts": "by-block",
        "receiptsForm": "hash",
        "batchLimit": 100,
        "prunedBelow": None,
        "connections": 16,
        "bodyBytes": 32 * 2**20,
    }


def metric(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"copath_{name}", {"chain": "main", **labels})


async def test_a_scrape_shows_heads_lags_breakers_cooldowns_and_routes(million: Record) -> None:
    async with open_crew(*two(million)) as crew:
        metrics = Metrics(CollectorRegistry())
        metrics.register_chain("main", 1, ["a", "b"])
        figures = UpstreamFigures("main", crew.upstream, metrics)
        figures.publish()
        assert metric(metrics, "upstream_route_total", route="head_aware") == 0
        assert [metric(metrics, "upstream_up", upstream=name) for name in "ab"] == [1, 1]
        await shake(crew)
        figures.publish()
        figures.publish()  # counts what grew, and nothing twice
    assert [metric(metrics, "upstream_up", upstream=name) for name in "ab"] == [0, 0], "one cools down, one fails"
    assert metric(metrics, "upstream_head_block", upstream="a") == 1_000_004
    assert metric(metrics, "upstream_lag_blocks", upstream="a") == 0
    assert metric(metrics, "upstream_lag_blocks", upstream="b") == 4
    assert metric(metrics, "upstream_head_age_seconds", upstream="a") == 3
    assert metric(metrics, "upstream_breaker_state", upstream="b") == 2
    assert metric(metrics, "upstream_cooldown_seconds", upstream="a") == 27
    assert metric(metrics, "upstream_route_total", route="head_aware") == 1
    assert metric(metrics, "hedges_total", result="won") == 0
    assert metric(metrics, "retry_budget_exhausted_total") == 1


async def shake(crew: Crew) -> None:
    crew.nodes[0].script(BY_NUMBER, http(429, retry_after="30"))
    await crew.upstream.fetch(MILLION, handed)
    crew.evms[0].state.note_head(1_000_004, crew.clock.now())
    for _ in range(5):
        crew.evms[1].state.note_failure(next(iter(crew.evms[1].state.breakers)), crew.clock.now())
    crew.upstream.crew.budget.tokens = 0.0
    assert not crew.upstream.crew.budget.take(crew.clock.now())
    crew.clock.at += 3.0
