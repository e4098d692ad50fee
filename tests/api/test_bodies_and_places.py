"""A body before a place, a cold place before cold work, and a client that may leave at any moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.responses import Response

from app.api import request_bodies
from app.api import verify as verifying
from app.api.request_bodies import RequestBodies
from app.core.blocks import BlockRef
from app.core.errors import BodyTimeout, Overloaded
from tests.api.exchanges import Asked, asked, asked_of
from tests.api.test_admission import HEIGHTS, NONE_IN, at, nth, seen
from tests.api.test_consumers import Known, bearer, doors_of, settings_of
from tests.api.test_verify import JSON, LARGE, VERIFY
from tests.chain.recorded_chain import RecordedChain, hash_of, sepolia
from tests.fakes import settle

POSTS = (VERIFY, "/api/v1/proof-batch/7", "/api/v1/proof-batch-by-tx/7")


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", POSTS)
async def test_as_many_unfinished_bodies_as_there_are_places_keep_nobody_out(path: str) -> None:
    recorded = await seen()
    async with asked(recorded, warm=4, process=1, timeout_s=120) as doors:
        assert (await doors.ask(nth(0))).status == 200
        slow = [doors.ask(path, "POST", body=None, headers=JSON) for _ in range(40)]
        await settle()
        assert doors.in_flight == (40, 0, 0)
        assert (await doors.ask(nth(0))).status == 200
        assert (await doors.ask(nth(1))).status == 200
        assert (await doors.ask(VERIFY, "POST", body=b'{"kind": "trie"}', headers=JSON)).status == 200
        assert doors.metric("admission_rejected_total") == 0
        for each in slow:
            each.hang_up()
        await settle()
        assert doors.in_flight == NONE_IN
        assert doors.metric("proof_outcome_total", outcome="cancelled") == 40


async def test_a_body_that_takes_too_long_is_refused_and_its_connection_closed() -> None:
    async with asked(await seen(), timeout_s=120) as doors:
        slow = doors.ask(VERIFY, "POST", body=None, headers=JSON)
        await doors.clock.advance(request_bodies.WITHIN_S - 0.1)
        assert slow.status is None
        await doors.clock.advance(0.2)
        await slow
        assert (slow.status, slow.code, slow.json["retriable"]) == (408, "BodyTimeout", True)
        assert slow.headers["connection"] == "close"
        assert doors.metric("admission_rejected_total", reason="body_timeout") == 1
        assert doors.metric("proof_outcome_total", outcome="BodyTimeout") == 1
        assert doors.in_flight == NONE_IN


class Sender:
    """Messages of one request, each given once it is asked for."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = list(messages)

    async def __call__(self) -> Any:
        if not self._messages:
            await asyncio.Event().wait()
        return self._messages.pop(0)


def part(size: int, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": bytes(size), "more_body": more}


async def test_all_large_bodies_together_are_bounded_and_small_ones_are_not() -> None:
    bodies = RequestBodies(most_bytes=100, free_bytes=10)
    async with bodies.whole(Sender(part(60), part(40, more=False)), 10) as first:
        assert (len(first or b""), bodies.held_bytes) == (100, 90)
        for _ in range(3):
            async with bodies.whole(Sender(part(10, more=False)), 10) as small:
                assert (len(small or b""), bodies.held_bytes) == (10, 90)
        with pytest.raises(Overloaded) as refused:
            async with bodies.whole(Sender(part(15), part(6), part(1, more=False)), 10):
                pass
        assert refused.value.extra == {"reason": "bodies"}
        assert bodies.held_bytes == 90
    assert bodies.held_bytes == 0


async def test_what_a_body_took_is_given_back_however_it_ends() -> None:
    bodies = RequestBodies(most_bytes=100, free_bytes=0)
    async with bodies.whole(Sender(part(50), {"type": "http.disconnect"}), 10) as gone:
        assert gone is None
    with pytest.raises(BodyTimeout):
        async with bodies.whole(Sender(part(50)), 0):
            pass
    reading = asyncio.ensure_future(_read(bodies))
    await settle()
    assert bodies.held_bytes == 50
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert bodies.held_bytes == 0


async def _read(bodies: RequestBodies) -> None:
    async with bodies.whole(Sender(part(50)), 10):
        pass


# --- cold places ------------------------------------------------------------------------------------------------------


def forgetful(recorded: RecordedChain, height: int) -> FastAPI:
    """A route that came in by the warm lane, and whose block is gone by the time that it reads it."""
    routes = FastAPI(openapi_url=None)

    @routes.post("/api/v1/proofs/{chain}/multiproof")
    async def read(request: Request) -> Response:
        recorded.chain.cache.drop(hash_of(sepolia(height)))
        found = await recorded.chain.block(BlockRef(height=height))
        return Response(str(found.block.height).encode())

    return routes


async def test_a_warm_request_takes_a_cold_place_before_it_fetches() -> None:
    recorded = await seen()
    await recorded.chain.block(BlockRef(height=HEIGHTS[0]))
    recorded.calls()
    async with asked_of(forgetful(recorded, HEIGHTS[0]), recorded, process=2, chain=2) as doors:
        held = recorded.upstream.hold("fetch")
        reading = doors.ask("/api/v1/proofs/sepolia/multiproof", "POST")
        await held.reached()
        await settle()
        assert doors.in_flight == (1, 1, 1)
        held.release()
        assert (await reading).status == 200
        assert recorded.calls() == {"fetch": 1, "build": 1}
        assert doors.in_flight == NONE_IN


async def test_a_warm_request_without_a_cold_place_to_take_fetches_nothing() -> None:
    recorded = await seen()
    await recorded.chain.block(BlockRef(height=HEIGHTS[0]))
    async with asked_of(forgetful(recorded, HEIGHTS[0]), recorded, process=1, chain=1) as doors:
        assert doors.house.door.process.has_room()
        doors.house.door.process.enter()
        recorded.calls()
        refused = await doors.ask("/api/v1/proofs/sepolia/multiproof", "POST")
        assert (refused.status, refused.code) == (503, "Overloaded")
        assert doors.metric("admission_rejected_total", reason="overloaded") == 1
        assert recorded.calls() == {}


async def test_a_block_evicted_while_a_rate_was_asked_for_is_filled_in_the_cold_lane_only() -> None:
    recorded = await seen()
    async with doors_of(settings_of((1000.0, 1000)), recorded, process=1, chain=1) as (doors, buckets):
        assert (await doors.ask(nth(0))).status == 200
        recorded.calls()
        taken = buckets.hold("take")
        late, gone = (doors.ask(nth(0), client=f"192.0.2.{n}") for n in range(2))
        await taken.reached()
        await settle()
        assert doors.in_flight == (2, 0, 2)
        recorded.chain.cache.drop(hash_of(sepolia(HEIGHTS[0])))
        held = recorded.upstream.hold("fetch")
        taken.release()
        await held.reached()
        await settle()
        # One of them has the one cold place, and the other was refused; nobody fetches without a place.
        assert sorted([late.status or 0, gone.status or 0]) == [0, 503]
        assert doors.in_flight == (1, 1, 1)
        held.release()
        await asyncio.gather(late.task, gone.task)
        assert recorded.calls()["fetch"] == 1
        assert doors.in_flight == NONE_IN


# --- hanging up -------------------------------------------------------------------------------------------------------


async def test_a_warm_request_that_waits_ends_when_its_client_leaves() -> None:
    recorded = await seen()
    async with doors_of(settings_of((1000.0, 1000)), recorded) as (doors, buckets):
        assert (await doors.ask(nth(0))).status == 200
        buckets.hold("take")
        waits = doors.ask(nth(0), client="192.0.2.1")
        await settle()
        assert doors.in_flight == (1, 0, 1)
        waits.hang_up()
        await settle()
        assert waits.task.done()
        assert doors.in_flight == NONE_IN
        assert doors.metric("proof_outcome_total", outcome="cancelled") == 1


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_cold_request_ends_when_its_client_leaves(method: str) -> None:
    recorded = await seen()
    async with asked(recorded) as doors:
        held = recorded.upstream.hold("fetch")
        waits = doors.ask(nth(0), method)
        await held.reached()
        await settle()
        assert doors.in_flight == (1, 1, 0)
        waits.hang_up()
        await settle()
        assert waits.task.done()
        assert doors.in_flight == NONE_IN


async def test_who_leaves_while_a_proof_is_judged_or_waits_for_that_leaves_at_once() -> None:
    async with asked(await seen()) as doors:
        large = [doors.ask(VERIFY, "POST", body=LARGE, headers=JSON) for _ in range(3)]
        for _ in range(10):
            await asyncio.sleep(0)
        for each in large:
            each.hang_up()
        await asyncio.gather(*(each.task for each in large))
        assert [each.status for each in large] == [None] * 3
        assert doors.in_flight == NONE_IN


async def test_who_leaves_in_the_middle_of_an_answer_is_not_waited_for() -> None:
    recorded = await seen()
    async with asked(recorded) as doors:
        assert (await doors.ask(nth(0))).status == 200
        reads_nothing = doors.ask(nth(0))
        reads_nothing.unread = asyncio.Event()
        await settle()
        assert doors.in_flight == (1, 0, 1)
        reads_nothing.hang_up()
        await settle()
        assert reads_nothing.task.done()
        assert doors.in_flight == NONE_IN


# --- refusals that are not about cold load ----------------------------------------------------------------------------


async def test_a_full_warm_lane_has_a_reason_of_its_own() -> None:
    recorded = await seen()
    async with asked(recorded, warm=1) as doors:
        assert (await doors.ask(nth(0))).status == 200
        stays = doors.ask(nth(0))
        stays.unread = asyncio.Event()
        await settle()
        refused = await doors.ask(nth(0))
        assert (refused.status, refused.code, refused.json["reason"]) == (503, "Overloaded", "warm_lane")
        assert _reasons(doors) == {"warm_lane": 1}
        assert (await doors.ask(at(HEIGHTS[1]))).status == 200
        stays.unread.set()
        await stays


async def test_a_full_verify_queue_has_a_reason_of_its_own() -> None:
    async with asked(await seen()) as doors:
        large = [doors.ask(VERIFY, "POST", body=LARGE, headers=JSON) for _ in range(verifying.MAX_WAITING + 4)]
        answers = [await each for each in large]
        refused = [each for each in answers if each.status == 503]
        assert refused
        assert {each.json["reason"] for each in refused} == {"verify_queue"}
        assert _reasons(doors) == {"verify_queue": len(refused)}


async def test_keys_that_cannot_be_checked_have_a_reason_of_their_own() -> None:
    chosen = settings_of(api_keys_required=True)
    async with doors_of(chosen, keys=Known(known=False)) as (doors, _):
        key = f"copath_0123456789ab_{'5e' * 32}"
        refused = await doors.ask(nth(0), headers=bearer(key))
        assert (refused.status, refused.code, refused.json["reason"]) == (503, "Overloaded", "keys")
        assert _reasons(doors) == {"keys": 1}


@pytest.mark.parametrize("reason", ["builder_lost", "builder_hung"])
async def test_a_builder_that_fails_has_a_reason_of_its_own(reason: str) -> None:
    recorded = await seen()
    async with asked(recorded) as doors:
        recorded.builder.fail("build", Overloaded("the block builder failed; retry", reason=reason))
        refused = await doors.ask(nth(0))
        assert (refused.status, refused.code, refused.json["reason"]) == (503, "Overloaded", reason)
        assert _reasons(doors) == {reason: 1}


def _reasons(doors: Asked) -> dict[str, float]:
    doors.house.metrics.exposition(None)
    return {
        sample.labels["reason"]: sample.value
        for family in doors.house.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "copath_admission_rejected_total" and sample.value
    }
