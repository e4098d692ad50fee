"""How long a node may take before another is asked, and who is asked alone: U1-U16 with nodes that answer, hang and recover.

Time passes by hand: what is asserted of seconds holds on any machine.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.core.blocks import BlockBodies, BlockRef
from app.core.deadlines import deadline
from app.core.errors import ProofError, RequestTimeout
from app.core.routing import Part, RouteKind, RoutingRules
from tests.scripted_behaviours import Behaviour, answer, error, http, null
from tests.scripted_node import ScriptedNode
from tests.upstream.conftest import handed
from tests.upstream.crew import BY_NUMBER, CHAIN_ID, RECEIPTS, Crew, open_crew
from tests.upstream.in_process import NEVER, Timed

MILLION = BlockRef(height=1_000_000)
Record = dict[str, Any]


def two(million: Record) -> tuple[ScriptedNode, ScriptedNode]:
    return ScriptedNode.of_corpus(million), ScriptedNode.of_corpus(million)


def hangs_on(*methods: str, full: bool | None = None) -> Any:
    """A node that never answers these; with `full` only for blocks with, or without, their transactions."""

    def takes(method: str, params: list[Any]) -> float:
        which = full is None or method != BY_NUMBER or params[1] is full
        return NEVER if method in methods and which else 0.0

    return takes


# --- the exclusive grace --------------------------------------------------------------------------------------------


async def test_U1_a_fresh_miss_that_the_primary_serves_at_last_never_reaches_the_other(million: Record) -> None:
    async with open_crew(*two(million), derived=True) as crew:
        crew.nodes[0].script(BY_NUMBER, null(), null())
        bodies = await crew.upstream.fetch(MILLION, handed)
        assert bodies.upstream == "a"
        assert crew.asked[1] == 0
        assert crew.hits(BY_NUMBER)[0] == 3
        assert crew.clock.pauses == [0.15, 0.3]
        assert crew.upstream.crew.routes == {RouteKind.EXCLUSIVE: 1}


@pytest.mark.parametrize("why", ["deep", "stale", "undeclared"])
async def test_U2_without_a_reason_for_grace_the_first_miss_goes_to_the_other(million: Record, why: str) -> None:
    async with open_crew(*two(million), derived=why != "undeclared") as crew:
        if why == "deep":
            for evm in crew.evms:
                evm.state.note_head(1_000_257, crew.clock.now())
        elif why == "stale":
            crew.clock.at += 7.0
        crew.nodes[0].always(BY_NUMBER, null())
        assert (await crew.upstream.fetch(MILLION, handed)).upstream == "b"
        assert crew.clock.pauses == []
        assert crew.hits(BY_NUMBER) == [1, 1]


@pytest.mark.parametrize(
    "behaviour", [http(403), error(4444, "pruned"), answer({"number": "0xf4240"})], ids=["denied", "pruned", "broken"]
)
async def test_U3_what_waiting_does_not_mend_ends_the_grace_at_once(million: Record, behaviour: Behaviour) -> None:
    async with open_crew(*two(million), derived=True) as crew:
        crew.nodes[0].always(BY_NUMBER, behaviour)
        assert (await crew.upstream.fetch(MILLION, handed)).upstream == "b"
        assert crew.hits(BY_NUMBER) == [1, 1]
        assert crew.clock.pauses == []
        assert crew.upstream.crew.routes[RouteKind.EXCLUSIVE_BROKEN] == 1


async def test_row_03_U4_a_primary_that_accepts_and_hangs_costs_at_most_eight_and_a_half_seconds(
    million: Record,
) -> None:
    timed = Timed(*two(million), derived=True)
    await timed.greet()
    timed.transports[0].takes = hangs_on(BY_NUMBER)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    took_s = await timed.after(20.0, fetching)
    assert (await fetching).upstream == "b"
    assert 7.9 <= took_s <= 8.5
    assert timed.hits(BY_NUMBER) == [2, 1]
    assert timed.evms[0].state.breakers[Part.BLOCK]._failures_in_a_row == 2  # U13: a hang is the node's doing
    assert timed.upstream.crew.routes == {RouteKind.EXCLUSIVE: 1, RouteKind.EXCLUSIVE_EXPIRED: 1}


async def test_U4_five_hangs_open_the_breaker_and_then_nobody_waits(million: Record) -> None:
    timed = Timed(*two(million), derived=True)
    await timed.greet()
    timed.transports[0].takes = hangs_on(BY_NUMBER)
    waits = []
    for _ in range(4):
        for evm in timed.evms:
            evm.state.note_head(1_000_000, timed.clock.now())
        fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
        waits.append(round(await timed.after(20.0, fetching), 1))
    assert waits[0] == 8.0
    assert waits[-1] == 0.0
    assert timed.hits(BY_NUMBER)[0] == 5


async def test_U7_a_grace_that_ends_is_no_failure(million: Record) -> None:
    timed = Timed(*two(million), derived=True)
    await timed.greet()
    timed.transports[0].node.always(BY_NUMBER, null())
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    assert 5.0 <= await timed.after(20.0, fetching) <= 6.5
    assert (await fetching).upstream == "b"
    state = timed.evms[0].state
    assert [breaker._failures_in_a_row for breaker in state.breakers.values()] == [0, 0, 0]
    assert not any(transport.cancelled for transport in timed.transports)
    # U8: it was not passed over after its grace.
    assert timed.upstream.crew.routes[RouteKind.EXCLUSIVE_EXPIRED] == 1


async def test_U7_an_attempt_that_the_end_of_the_grace_cuts_short_is_nobodys_fault(million: Record) -> None:
    timed = Timed(*two(million), derived=True, rules=RoutingRules(grace_s=0.8))
    await timed.greet()
    timed.transports[0].takes = hangs_on(BY_NUMBER)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    await timed.after(20.0, fetching)
    assert (
        timed.evms[0].state.breakers[Part.BLOCK]._failures_in_a_row == 1
    )  # the cap, which is long enough, and no more


# --- turns ----------------------------------------------------------------------------------------------------------


async def test_U9_one_stall_cannot_use_up_the_deadline(million: Record) -> None:
    timed = Timed(*two(million))
    await timed.greet()
    timed.transports[0].takes = hangs_on(BY_NUMBER)
    deadline.set(timed.clock.now() + 10.0)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    assert await timed.after(20.0, fetching) == pytest.approx(5.0, abs=0.1)
    assert (await fetching).upstream == "b"


async def test_U9_an_attempt_never_takes_longer_than_is_configured(million: Record) -> None:
    timed = Timed(*two(million))
    await timed.greet()
    timed.transports[0].takes = hangs_on(BY_NUMBER)
    deadline.set(timed.clock.now() + 200.0)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    assert await timed.after(60.0, fetching) == pytest.approx(20.0, abs=0.1)


async def test_U9_the_last_node_has_all_that_is_left(million: Record) -> None:
    timed = Timed(*two(million))
    await timed.greet()
    timed.transports[0].takes = hangs_on(BY_NUMBER)
    timed.transports[1].takes = lambda method, params: 4.0 if method == BY_NUMBER else 0.0
    deadline.set(timed.clock.now() + 10.0)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    assert await timed.after(20.0, fetching) == pytest.approx(9.0, abs=0.1)
    assert (await fetching).upstream == "b"


async def test_U10_building_is_outside_every_limit_of_a_turn(million: Record) -> None:
    timed = Timed(*two(million))
    await timed.greet()

    async def slow(bodies: BlockBodies) -> str:
        await asyncio.sleep(30.0)
        return bodies.upstream

    deadline.set(timed.clock.now() + 40.0)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, slow))
    assert await timed.after(60.0, fetching) == pytest.approx(30.0, abs=0.1)
    assert await fetching == "a"
    assert timed.hits(BY_NUMBER) == [1, 0]


async def test_U11_near_the_deadline_pauses_shrink_and_then_it_is_given_up(million: Record) -> None:
    async with open_crew(*two(million)) as crew:
        for node in crew.nodes:
            node.always(BY_NUMBER, http(500))
        began_at = crew.clock.now()
        token = deadline.set(began_at + 0.3)
        try:
            with pytest.raises(Exception, match="HTTP 500"):
                await crew.upstream.fetch(MILLION, handed)
        finally:
            deadline.reset(token)
        assert crew.clock.now() - began_at <= 0.3
        assert crew.clock.pauses[-1] < 0.15


async def test_U12_a_primary_that_is_down_is_tried_once_in_its_time_whether_that_works_or_not(million: Record) -> None:
    async with open_crew(*two(million)) as crew:
        crew.nodes[0].always(BY_NUMBER, http(500))
        for _ in range(5):
            await crew.upstream.fetch(MILLION, handed)
        tried = []
        for _ in range(120):  # a second each
            before = crew.hits(BY_NUMBER)[0]
            await crew.upstream.fetch(MILLION, handed)
            tried.append(crew.hits(BY_NUMBER)[0] - before)
            crew.clock.at += 1.0
        assert [at for at, count in enumerate(tried) if count] == [5, 15, 35, 75]
        assert set(tried) == {0, 1}


async def test_U12_a_probe_that_nobody_waits_for_any_more_delays_the_next_and_no_more(million: Record) -> None:
    timed = Timed(*two(million))
    await timed.greet()
    timed.transports[0].node.always(BY_NUMBER, error(-32603, "no"))
    for _ in range(5):
        await timed.upstream.fetch(MILLION, handed)
    await timed.clock.advance(5.0)
    timed.transports[0].node.always(BY_NUMBER, None)
    timed.transports[0].takes = hangs_on(BY_NUMBER)
    probe = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    await timed.let(0.2)
    probe.cancel()
    await asyncio.wait([probe])
    timed.transports[0].takes = lambda method, params: 0.0
    assert (await timed.upstream.fetch(MILLION, handed)).upstream == "b"
    await timed.clock.advance(5.0)
    assert (await timed.upstream.fetch(MILLION, handed)).upstream == "a"


async def test_a_probe_takes_no_longer_than_the_cap(million: Record) -> None:
    timed = Timed(*two(million))
    await timed.greet()
    timed.transports[0].takes = hangs_on(BY_NUMBER)
    for _ in range(5):
        timed.evms[0].state.note_failure(Part.BLOCK, timed.clock.now())
    await timed.clock.advance(5.0)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    assert await timed.after(20.0, fetching) == pytest.approx(2.0, abs=0.1)
    assert (await fetching).upstream == "b"


async def test_U13_what_we_give_up_counts_for_nothing(million: Record) -> None:
    timed = Timed(*two(million))
    await timed.greet()
    timed.transports[0].takes = hangs_on(BY_NUMBER)
    for _ in range(20):
        fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
        await timed.let(0.1)
        fetching.cancel()
        await asyncio.wait([fetching])
        assert fetching.cancelled()
    state = timed.evms[0].state
    assert state.breakers[Part.BLOCK]._failures_in_a_row == 0
    assert Part.BLOCK not in state.latency_s
    assert timed.evms[0].connections_held == 0


async def test_U13_what_our_deadline_cuts_counts_for_nothing(million: Record) -> None:
    timed = Timed(*two(million))
    await timed.greet()
    for transport in timed.transports:
        transport.takes = hangs_on(BY_NUMBER)
    deadline.set(timed.clock.now() + 0.3)
    fetching = asyncio.ensure_future(timed.upstream.fetch(MILLION, handed))
    await timed.after(5.0, fetching)
    with pytest.raises(RequestTimeout):
        await fetching
    assert [evm.state.breakers[Part.BLOCK]._failures_in_a_row for evm in timed.evms] == [0, 0]


async def test_T4_a_cut_from_outside_is_passed_on_as_it_is(million: Record) -> None:
    timed = Timed(*two(million))
    await timed.greet()
    for transport in timed.transports:
        transport.takes = hangs_on(BY_NUMBER)

    async def cut() -> None:
        async with asyncio.timeout(1.0):
            await timed.upstream.fetch(MILLION, handed)

    cutting = asyncio.ensure_future(cut())
    await timed.after(5.0, cutting)
    with pytest.raises(TimeoutError):
        await cutting
    assert [evm.state.breakers[Part.BLOCK]._failures_in_a_row for evm in timed.evms] == [0, 0]


# --- reconnecting ---------------------------------------------------------------------------------------------------


async def test_U16_those_who_fail_together_reconnect_once_and_those_who_need_not_do_not_wait(million: Record) -> None:
    timed = Timed(*two(million))
    await timed.greet()
    for evm in timed.evms[:1]:
        evm.standing.verified_at = None  # as after a refused connection
    timed.transports[0].takes = hangs_on(CHAIN_ID)
    fetches = [asyncio.ensure_future(timed.upstream.fetch(MILLION, handed)) for _ in range(20)]
    done = asyncio.ensure_future(asyncio.wait(fetches))
    assert await timed.after(5.0, done) == 0.0
    assert {fetch.result().upstream for fetch in fetches} == {"b"}
    polls = [asyncio.ensure_future(timed.upstream.sightings("latest")) for _ in range(5)]
    assert await timed.after(10.0, asyncio.ensure_future(asyncio.wait(polls))) == pytest.approx(2.0, abs=0.1)
    assert timed.hits(CHAIN_ID)[0] == 1


async def test_U15_a_node_that_is_unreachable_at_the_start_is_a_warning_said_once(
    million: Record, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_crew(*two(million), greeted=False) as crew:
        await crew.nodes[1].stop()
        for _ in range(3):
            seen = await crew.upstream.sightings("latest")
            assert [sighting.upstream for sighting in seen] == ["a"]
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        told = [(record.getMessage(), record.__dict__["upstream"]) for record in warnings]
        assert told == [("upstream_unavailable", "b")]
        await crew.nodes[1].start()
        crew.clock.at += 5.0
        assert len(await crew.upstream.sightings("latest")) == 2


# --- retries --------------------------------------------------------------------------------------------------------


async def storm(crew: Crew, rounds: int, *, seconds: float) -> int:
    """So many fetches, evenly in so many seconds, side by side: the pauses of one take no time of the next. How many failed."""
    failed, began_at = 0, crew.clock.now()
    for number in range(rounds):
        crew.clock.at = began_at + number * seconds / rounds
        try:
            await crew.upstream.fetch(MILLION, handed)
        except ProofError:
            failed += 1
    return failed


class Flapping:
    """Every second answer is an error."""

    def __init__(self) -> None:
        self.number = 0

    def behaviour(self) -> Behaviour:
        def reply(node: ScriptedNode, call: Any) -> Any:
            self.number += 1
            if self.number % 2:
                return {"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32603, "message": "internal"}}
            return node.honest(call)

        return Behaviour("flapping", reply=reply)


async def test_row_27_B30_a_brown_out_of_one_node_costs_a_tenth_more_and_no_client_an_answer(million: Record) -> None:
    async with open_crew(*two(million)) as crew:
        crew.nodes[0].always(BY_NUMBER, Flapping().behaviour())
        assert await storm(crew, 1200, seconds=24.0) == 0
        blocks = sum(crew.hits(BY_NUMBER))
        assert blocks <= 1.1 * 1200
        crew.nodes[0].always(BY_NUMBER, None)
        crew.clock.at += 60.0
        await crew.upstream.sightings("latest")
        served = {(await crew.upstream.fetch(MILLION, handed)).upstream for _ in range(3)}
        assert served == {"a"}


async def test_row_27_when_both_flap_retries_stay_a_tenth_of_the_calls(million: Record) -> None:
    async with open_crew(*two(million)) as crew:
        for node in crew.nodes:
            node.always(BY_NUMBER, Flapping().behaviour())
        await storm(crew, 1000, seconds=10.0)
        retries = sum(crew.hits(BY_NUMBER)) - 1000
        budget = 0.1 * sum(crew.asked) + 30 + 3 * 10
        assert (
            retries <= budget + 2 * 3 * 6
        )  # sound nodes are always asked: until their breakers open, thrice in ten seconds
        assert crew.upstream.crew.budget.refused > 0


async def test_row_27_without_a_budget_nobody_is_asked_twice(million: Record) -> None:
    async with open_crew(*two(million)) as crew:
        for node in crew.nodes:
            node.always(BY_NUMBER, http(503))
        crew.upstream.crew.budget.tokens = 0.0
        crew.upstream.crew.budget.per_second = 0.0
        with pytest.raises(ProofError):
            await crew.upstream.fetch(MILLION, handed)
        assert crew.hits(BY_NUMBER) == [1, 1]  # a sound node is always asked
        assert crew.upstream.crew.budget.refused == 2


async def test_B30_one_question_costs_a_bounded_number_of_attempts(million: Record) -> None:
    async with open_crew(*two(million)) as crew:
        for node in crew.nodes:
            node.always("*", http(503))
        with pytest.raises(Exception, match="HTTP 503"):
            await crew.upstream.fetch(MILLION, handed)
        assert crew.hits(BY_NUMBER) == [3, 3]
        assert crew.hits(RECEIPTS) == [0, 0]
