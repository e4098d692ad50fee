"""Deadlines, over the whole application: who is told what when time runs out, and that no work is begun in vain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.responses import Response, StreamingResponse

from app.core.deadlines import deadline
from app.settings import SettingsError, load_settings
from tests.api.exchanges import asked, asked_of
from tests.chain.recorded_chain import BUSY, LAST, RecordedChain, sepolia
from tests.fakes import Hold, settle

NONE_IN = (0.0, 0.0, 0.0)
TX = sepolia(BUSY)["block"]["transactions"][0]["hash"]
HASH = sepolia(BUSY)["block"]["hash"]
BY_TX = f"/api/v1/proofs/sepolia/transactions/{TX}"
BY_HEIGHT = f"/api/v1/proofs/sepolia/blocks/{BUSY}/transactions/0"
BY_HASH = f"/api/v1/proofs/sepolia/blocks/{HASH}/transactions/0"
OTHER = "/api/v1/proofs/sepolia/blocks/175892/transactions/0"


async def seen(finalized: int = LAST, **rules: Any) -> RecordedChain:
    recorded = RecordedChain(**rules)
    await recorded.see(finalized=finalized)
    recorded.calls()
    return recorded


@pytest.mark.parametrize(
    ("path", "point", "stage"),
    [
        (BY_TX, "position", "resolve"),
        (BY_HASH, "height_of", "resolve"),
        (BY_TX, "fetch", "fetch"),
        (BY_HEIGHT, "fetch", "fetch"),
        (BY_HEIGHT, "build", "build"),
        (f"/api/v1/proofs/sepolia/blocks/{LAST + 1}/transactions/0", "tagged", "resolve"),
    ],
)
async def test_T3_A5_a_request_that_runs_out_of_time_is_told_at_which_stage(path: str, point: str, stage: str) -> None:
    recorded = await seen(finalized=BUSY - 1)
    async with asked(recorded, timeout_s=15) as doors:
        await doors.clock.advance(1)  # a head seen this moment is not asked for again
        held = (recorded.builder if point == "build" else recorded.upstream).hold(point)
        slow = doors.ask(path)
        await held.reached()
        await doors.clock.advance(14.9)
        assert slow.status is None
        await doors.clock.advance(0.1)
        await slow
        assert (slow.status, slow.code, slow.json["retriable"]) == (504, "RequestTimeout", True)
        assert slow.json["stage"] == stage
        assert 1 <= int(slow.headers["retry-after"]) <= 3
        assert doors.in_flight == NONE_IN
        assert doors.metric("admission_rejected_total", reason="timeout") == 1
        assert doors.metric("proof_outcome_total", outcome="RequestTimeout") == 1
        held.release()


async def test_T3_a_request_whose_body_never_comes_has_not_left_the_queue() -> None:
    routes = FastAPI(openapi_url=None)

    @routes.post("/api/v1/proofs/{chain}/read")
    async def read(body: dict[str, int]) -> Response:
        return Response(b"{}")

    async with asked_of(routes, await seen(), timeout_s=30) as doors:
        slow = doors.ask("/api/v1/proofs/sepolia/read", "POST", body=None)
        await doors.clock.advance(30)
        assert slow.task.done()
        assert (slow.status, slow.json["stage"]) == (504, "queue")
        assert doors.in_flight == NONE_IN


async def test_after_a_504_the_fill_goes_on_and_the_next_call_costs_nothing() -> None:
    recorded = await seen(fill_deadline_s=60)
    async with asked(recorded, timeout_s=30) as doors:
        held = recorded.upstream.hold("fetch")
        slow = doors.ask(BY_TX)
        await held.reached()
        await doors.clock.advance(30)
        assert (await slow).status == 504
        assert doors.metric("fill_running") == 1
        held.release()
        await settle()
        assert doors.metric("fill_running") == 0
        assert (await doors.ask(BY_TX)).status == 200
        assert recorded.calls() == {"position": 1, "fetch": 1, "build": 1}


async def test_a_fill_that_nobody_waits_for_ends_at_its_own_deadline() -> None:
    recorded = await seen(fill_deadline_s=45)
    async with asked(recorded, timeout_s=30) as doors:
        held = recorded.upstream.hold("fetch")
        slow = doors.ask(BY_TX)
        await held.reached()
        await doors.clock.advance(30)
        assert (await slow).status == 504
        await doors.clock.advance(15)
        assert recorded.at_rest()
        assert doors.metric("fill_total", result="timeout") == 1


# --- T1: nothing is begun whose end would come too late ---------------------------------------------------------------


async def test_T1_no_fill_is_begun_for_a_request_that_could_not_use_it() -> None:
    recorded = await seen(min_useful_s=0.5)
    async with asked(recorded, timeout_s=15) as doors:
        held = recorded.upstream.hold("position")
        late = doors.ask(BY_TX)
        await held.reached()
        await doors.clock.advance(14.6)
        held.release()
        await late
        assert (late.status, late.code, late.json["reason"]) == (503, "ChainOverloaded", "fill_wait_timeout")
        assert recorded.calls() == {"position": 1}


async def test_T1_who_waits_for_a_permit_is_sent_away_when_a_fill_could_no_longer_help() -> None:
    recorded = await seen(min_useful_s=0.5, max_fills=1, fill_deadline_s=120)
    async with asked(recorded, timeout_s=30) as doors:
        held = recorded.upstream.hold("fetch")
        doors.ask(OTHER)
        await held.reached()
        waiting = doors.ask(BY_HEIGHT)
        await doors.clock.advance(29.4)
        assert waiting.status is None
        await doors.clock.advance(0.1)
        await waiting
        assert (waiting.status, waiting.json["reason"]) == (503, "fill_wait_timeout")
        assert recorded.calls() == {"fetch": 1}
        held.release()


async def test_T1_no_name_is_looked_up_that_could_not_be_used() -> None:
    recorded = await seen(finalized=BUSY - 1, min_useful_s=0.5)
    await recorded.at(BUSY)
    recorded.calls()
    async with asked(recorded, timeout_s=0.4) as doors:
        for path in (BY_HASH, BY_HEIGHT, BY_TX):
            late = await doors.ask(path)
            assert (late.status, late.code, late.json["stage"]) == (504, "RequestTimeout", "resolve")
        assert recorded.calls() == {}


async def test_T1_no_height_is_looked_up_that_could_not_be_used() -> None:
    recorded = await seen(min_useful_s=0.5)
    async with asked(recorded, timeout_s=0.4) as doors:
        late = await doors.ask(BY_HASH)
        assert (late.status, late.json["stage"]) == (504, "resolve")
        assert recorded.calls() == {}


async def test_T1_the_head_is_not_asked_for_on_behalf_of_who_has_no_time_left() -> None:
    recorded = await seen(min_useful_s=0.5)
    async with asked(recorded, timeout_s=0.4) as doors:
        await doors.clock.advance(1)
        late = await doors.ask(BY_HEIGHT.replace(str(BUSY), str(LAST + 1)))
        assert (late.status, late.json["stage"]) == (504, "resolve")
        assert recorded.calls() == {}


async def test_T1_positions_are_not_looked_up_for_who_has_no_time_left() -> None:
    recorded = await seen(min_useful_s=0.5)
    async with asked(recorded, timeout_s=0.4) as doors:
        late = await doors.ask(BY_TX)
        assert (late.status, late.json["stage"]) == (504, "resolve")
        assert recorded.calls() == {}


async def test_T1_calls_run_under_the_deadline_of_their_fill_and_not_of_whoever_came_first() -> None:
    recorded = await seen(finalized=BUSY - 1, fill_deadline_s=60)
    told: dict[str, float | None] = {}
    at = recorded.upstream.at

    async def noting(point: str) -> None:
        told[point] = deadline.get()
        await at(point)

    recorded.upstream.at = noting  # type: ignore[method-assign]
    async with asked(recorded, timeout_s=30) as doors:
        now = doors.clock.now()
        assert (await doors.ask(BY_TX)).status == 200
        assert (await doors.ask(BY_HASH)).status == 200
    assert told["fetch"] == now + 60
    assert told["position"] == told["name_of"] == now + 20


# --- T2: what is configured fits together -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "too_long",
    [
        {"ROUTING__ATTEMPT_TIMEOUT_SECS": "31"},
        {"ROUTING__PRIMARY_GRACE_SECS": "29", "ROUTING__PRIMARY_RETRY_CAP_SECS": "2"},
    ],
)
def test_T2_stages_that_outlast_the_request_are_refused(too_long: Mapping[str, str]) -> None:
    environ = {
        "COPATH_CHAINS__1__ETH_RPC_URL": "http://node.example.org",
        "COPATH_ADMISSION__REQUEST_TIMEOUT_SECS": "30",
    }
    load_settings(None, environ)
    with pytest.raises(SettingsError, match="request_timeout_secs"):
        load_settings(None, environ | {f"COPATH_CHAINS__1__{name}": value for name, value in too_long.items()})


# --- T4: whose timeout it is ------------------------------------------------------------------------------------------


async def test_T4_the_timeout_of_a_route_is_its_own() -> None:
    routes = FastAPI(openapi_url=None)

    @routes.get("/api/v1/proofs/{chain}/patient")
    async def patient() -> Response:
        try:
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        except TimeoutError:
            return Response(b"in the end")
        raise AssertionError

    @routes.get("/api/v1/proofs/{chain}/careless")
    async def careless() -> Response:
        async with asyncio.timeout(5):
            await asyncio.Event().wait()
        raise AssertionError

    async with asked_of(routes, await seen(), timeout_s=30) as doors:
        both = [doors.ask(f"/api/v1/proofs/sepolia/{name}") for name in ("patient", "careless")]
        await doors.clock.advance(5)
        await asyncio.gather(*(each.task for each in both))
        assert [each.status for each in both] == [200, 500]
        assert doors.metric("admission_rejected_total") == 0
        assert doors.in_flight == NONE_IN


async def test_T4_a_cancellation_from_outside_goes_on() -> None:
    recorded = await seen()
    async with asked(recorded) as doors:
        held = recorded.upstream.hold("fetch")
        ended = doors.ask(BY_HEIGHT)
        await held.reached()
        ended.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended
        assert doors.in_flight == NONE_IN
        assert doors.metric("proof_outcome_total", outcome="cancelled") == 1
        held.release()


async def test_T4_a_cancellation_in_the_moment_of_the_deadline_goes_on() -> None:
    recorded = await seen()
    async with asked(recorded, timeout_s=30) as doors:
        held = recorded.upstream.hold("fetch")
        ended = doors.ask(BY_HEIGHT)
        await held.reached()
        doors.clock.move(30)
        await asyncio.sleep(0)
        ended.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended
        assert doors.in_flight == NONE_IN
        held.release()


# --- half an answer ---------------------------------------------------------------------------------------------------


async def test_an_answer_that_stalls_is_cut_at_the_deadline() -> None:
    stalled = Hold()
    routes = FastAPI(openapi_url=None)

    async def body() -> AsyncIterator[bytes]:
        yield b"half"
        await stalled.stop()

    @routes.get("/api/v1/proofs/{chain}/stalling")
    async def stalling() -> StreamingResponse:
        return StreamingResponse(body())

    async with asked_of(routes, await seen(), timeout_s=30) as doors:
        cut = doors.ask("/api/v1/proofs/sepolia/stalling")
        await stalled.reached()
        await doors.clock.advance(30)
        assert cut.task.done()
        assert (cut.status, cut.body, cut.answered.is_set()) == (200, b"half", False)
        assert doors.in_flight == NONE_IN
        assert doors.metric("admission_rejected_total", reason="timeout") == 1
        assert doors.metric("proof_outcome_total", outcome="RequestTimeout") == 1
        assert doors.metric("unhandled_exceptions_total") == 0


@pytest.mark.parametrize("warm", [False, True])
async def test_a_client_that_does_not_read_is_cut_at_the_deadline(warm: bool) -> None:
    recorded = await seen()
    async with asked(recorded, timeout_s=30) as doors:
        if warm:
            await doors.ask(BY_HEIGHT)
        slow = doors.ask(BY_HEIGHT)
        slow.unread = asyncio.Event()
        await settle(100)
        assert doors.in_flight == ((1, 0, 1) if warm else (1, 1, 0))
        await doors.clock.advance(30)
        assert slow.task.done()
        assert doors.in_flight == NONE_IN
