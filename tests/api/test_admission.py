"""Admission, over the whole application and a real chain whose node can be held: who comes in, what it holds, when it goes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.responses import Response, StreamingResponse

from app.api.lanes import take_cold_places
from app.core.errors import RpcUnavailable
from app.metrics.labels import METHODS
from app.settings import SettingsError, load_settings
from app.settings.models import AdmissionSettings
from tests.api.exchanges import Asked, Exchange, asked, asked_of
from tests.chain.recorded_chain import BUSY, FIRST, LAST, RecordedChain, sepolia
from tests.fakes import settle

NONE_IN = (0.0, 0.0, 0.0)
PROBES = ("/livez", "/readyz", "/health", "/metrics", "/api/v1/health")
NEVER_LIMITED = (
    *PROBES,
    "/openapi.json",
    "/docs",
    "/api/v1/chains",
    "/api/v1/chains/sepolia",
    "/api/v1/attested-height/7",
)

HEIGHTS = sorted(
    set(range(FIRST, LAST + 1)) - {BUSY}, key=lambda height: -len(sepolia(height)["block"]["transactions"])
)
"""Those of blocks with transactions first: nine of them."""


def tx_hash(height: int = BUSY, index: int = 0) -> str:
    found: str = sepolia(height)["block"]["transactions"][index]["hash"]
    return found


def by_tx(height: int = BUSY, chain: str = "sepolia") -> str:
    return f"/api/v1/proofs/{chain}/transactions/{tx_hash(height)}"


def at(height: int, chain: str = "sepolia") -> str:
    return f"/api/v1/proofs/{chain}/blocks/{height}/transactions/0"


def nth(n: int, chain: str = "sepolia") -> str:
    return at(HEIGHTS[n], chain)


async def seen(**rules: Any) -> RecordedChain:
    """A chain that knows its head and that everything is final."""
    recorded = RecordedChain(**rules)
    await recorded.see(finalized=LAST)
    recorded.calls()
    return recorded


async def ended(exchanges: list[Exchange]) -> Counter[tuple[int | None, str | None]]:
    """How many ended in which way."""
    await asyncio.gather(*(each.task for each in exchanges))
    return Counter((each.status, each.code if each.status != 200 else None) for each in exchanges)


# --- A1 to A3: who gets in --------------------------------------------------------------------------------------------


async def test_A1_of_32_at_once_8_are_served_24_refused_and_the_retries_cost_nothing() -> None:
    recorded = await seen()
    async with asked(recorded, process=8, chain=8) as doors:
        position, fetch = recorded.upstream.hold("position"), recorded.upstream.hold("fetch")
        crowd = [doors.ask(by_tx()) for _ in range(32)]
        await position.reached()
        await settle()
        assert Counter(each.status for each in crowd) == {None: 8, 503: 24}
        position.release()
        await fetch.reached()
        fetch.release()
        assert await ended(crowd) == {(200, None): 8, (503, "Overloaded"): 24}
        for refused in (each for each in crowd if each.status == 503):
            assert refused.json["retriable"] is True
            assert 1 <= int(refused.headers["retry-after"]) <= 3
        assert recorded.calls() == {"position": 1, "fetch": 1, "build": 1}
        for _ in range(24):
            assert (await doors.ask(by_tx())).status == 200
        assert recorded.calls() == {}
        assert doors.in_flight == NONE_IN


async def test_A2_a_refused_request_asks_nobody_anything() -> None:
    recorded = await seen()
    async with asked(recorded, process=2, chain=2) as doors:
        held = recorded.upstream.hold("fetch")
        inside = [doors.ask(nth(n)) for n in range(2)]
        await held.reached()
        await settle()
        cost = recorded.calls()
        lookups = recorded.chain.cache.hits + recorded.chain.cache.misses
        assert await ended([doors.ask(nth(10 + n)) for n in range(20)]) == {(503, "Overloaded"): 20}
        assert await ended([doors.ask(by_tx(BUSY)) for n in range(20)]) == {(503, "Overloaded"): 20}
        assert recorded.calls() == {}
        assert recorded.chain.cache.hits + recorded.chain.cache.misses == lookups
        assert cost["fetch"] == 2
        held.release()
        assert await ended(inside) == {(200, None): 2}


async def test_A3_a_full_chain_keeps_no_other_chain_out() -> None:
    noisy = await seen()
    quiet = RecordedChain(key=8, name="quiet", clock=noisy.clock, metrics=noisy.metrics)
    await quiet.see(finalized=LAST)
    async with asked(noisy, quiet, process=3, chain=2) as doors:
        held = noisy.upstream.hold("fetch")
        inside = [doors.ask(nth(n)) for n in range(2)]
        await held.reached()
        await settle()
        # One place of the process is left. The refused come in crowds just before, and never take it.
        for n in range(5):
            burst = [doors.ask(nth(10 + more)) for more in range(20)]
            other = await doors.ask(nth(n, "quiet"))
            assert other.status == 200
            assert await ended(burst) == {(503, "ChainOverloaded"): 20}
        assert doors.metric("admission_rejected_total", reason="chain_overloaded") == 100
        assert doors.metric("admission_rejected_total", reason="overloaded") == 0
        held.release()
        assert await ended(inside) == {(200, None): 2}
        assert doors.in_flight == NONE_IN


async def test_what_cannot_be_meant_is_answered_before_the_door() -> None:
    recorded = await seen()
    async with asked(recorded, process=1, chain=1) as doors:
        held = recorded.upstream.hold("fetch")
        doors.ask(nth(0))
        await held.reached()
        for path, method, status in (
            ("/api/v1/proofs/nowhere/blocks/1/transactions/0", "GET", 400),
            ("/api/v1/proof/99/1/0", "GET", 400),
            ("/api/v1/proofs/sepolia/nothing", "GET", 404),
            (nth(0), "POST", 405),
            (nth(0), "OPTIONS", 204),
            ("/api/v1/proofs/sepolia/blocks/x/transactions/0", "GET", 400),
            ("/api/v1/proofs/sepolia/transactions/0x12", "GET", 400),
            ("/api/v1/proof/7/1/0", "GET", 404),  # no anchors
            (f"/api/v1/proof-by-tx/7/{tx_hash()}", "GET", 404),
        ):
            assert (await doors.ask(path, method)).status == status, path
        assert (await doors.ask(nth(1))).status == 503
        held.release()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_A4_with_the_only_place_taken_everything_but_proofs_answers(method: str) -> None:
    recorded = await seen()
    async with asked(recorded, process=1, chain=1, warm=1) as doors:
        held = recorded.upstream.hold("fetch")
        slow = doors.ask(nth(0))
        await held.reached()
        for path in NEVER_LIMITED:
            assert (await doors.ask(path, method)).status == 200, path
        assert (await doors.ask(nth(1), method)).status == 503
        held.release()
        assert (await slow).status == 200


# --- A6 to A8: what is held, and for how long -------------------------------------------------------------------------


class Streamed:
    """A proof route whose answer comes in pieces, each when the test says so."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.routes = FastAPI(openapi_url=None)
        self.routes.get("/api/v1/proofs/{chain}/streamed")(self.answer)

    async def answer(self, request: Request) -> StreamingResponse:
        return StreamingResponse(self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        while (piece := await self.pieces.get()) is not None:
            yield piece


async def test_A6_a_place_is_held_until_the_last_byte() -> None:
    streamed = Streamed()
    async with asked_of(streamed.routes, await seen()) as doors:
        exchange = doors.ask("/api/v1/proofs/sepolia/streamed")
        for piece in (b"a", b"b", b"c"):
            streamed.pieces.put_nowait(piece)
            await settle()
            assert exchange.body.endswith(piece)
            assert doors.in_flight == (1, 1, 0)
        streamed.pieces.put_nowait(None)
        await exchange
        assert (exchange.body, doors.in_flight) == (b"abc", NONE_IN)


async def test_A6_a_client_that_reads_slowly_holds_its_place() -> None:
    recorded = await seen()
    async with asked(recorded) as doors:
        exchange = doors.ask(nth(0))
        exchange.unread = asyncio.Event()
        await settle(100)
        assert doors.in_flight == (1, 1, 0)
        exchange.unread.set()
        assert (await exchange).status == 200
        assert doors.in_flight == NONE_IN


async def test_A6_whoever_has_the_whole_answer_may_ask_again_at_once() -> None:
    """Before anything else runs: a client with one connection would otherwise meet its own place."""
    recorded = await seen()
    async with asked(recorded, process=1, chain=1) as doors:
        for n in range(9):
            exchange = doors.ask(nth(n))
            await exchange.answered.wait()
            assert doors.house.door.process.taken == 0


async def test_A7_who_hangs_up_gives_its_place_back_and_takes_nothing_from_the_others() -> None:
    recorded = await seen()
    async with asked(recorded, process=2, chain=2) as doors:
        held = recorded.upstream.hold("fetch")
        leaving, staying = doors.ask(nth(0)), doors.ask(nth(0))
        await held.reached()
        await settle()
        leaving.hang_up()
        await settle()
        assert leaving.task.done()
        assert doors.in_flight == (1, 1, 0)
        late = doors.ask(nth(0))
        await settle()
        held.release()
        assert await ended([staying, late]) == {(200, None): 2}
        assert recorded.calls() == {"fetch": 1, "build": 1}
        assert doors.metric("proof_outcome_total", outcome="cancelled") == 1
        assert doors.metric("http_requests_total", status_class="error") == 1


async def test_A7_when_the_only_client_hangs_up_the_fill_lands_in_the_cache() -> None:
    recorded = await seen()
    async with asked(recorded) as doors:
        held = recorded.upstream.hold("fetch")
        only = doors.ask(nth(0))
        await held.reached()
        only.hang_up()
        await settle()
        assert doors.in_flight == NONE_IN
        held.release()
        await settle()
        assert (await doors.ask(nth(0))).status == 200
        assert recorded.calls() == {"fetch": 1, "build": 1}


async def test_A7_a_client_that_hangs_up_in_the_middle_of_the_answer_gives_its_place_back() -> None:
    streamed = Streamed()
    async with asked_of(streamed.routes, await seen()) as doors:
        exchange = doors.ask("/api/v1/proofs/sepolia/streamed")
        streamed.pieces.put_nowait(b"a")
        await settle()
        exchange.hang_up()
        await settle()
        assert exchange.task.done()
        assert doors.in_flight == NONE_IN
        assert doors.metric("proof_outcome_total", outcome="cancelled") == 1


async def test_A7_one_that_hangs_up_while_it_waits_for_a_permit_leaves_the_queue() -> None:
    recorded = await seen(max_fills=1)
    async with asked(recorded) as doors:
        held = recorded.upstream.hold("fetch")
        first, queued = doors.ask(nth(0)), doors.ask(nth(1))
        await held.reached()
        await settle()
        assert doors.metric("fill_waiting", **{"class": "request"}) == 1
        queued.hang_up()
        await settle()
        assert doors.metric("fill_waiting", **{"class": "request"}) == 0
        held.release()
        assert (await first).status == 200
        assert recorded.at_rest()


async def test_A8_after_a_thousand_requests_that_ended_in_every_way_nothing_is_held() -> None:
    chance = random.Random(8)
    recorded = await seen(max_fills=4, max_queued_fills=2)
    async with asked(recorded, process=10, chain=10, warm=20, timeout_s=30) as doors:
        alive: list[Exchange] = []
        for _ in range(1000):
            match chance.randrange(6):
                case 0:
                    recorded.upstream.fail(chance.choice(["fetch", "position"]), RpcUnavailable("down"))
                case 1 if alive:
                    alive.pop(chance.randrange(len(alive))).hang_up()
                case 2 if alive:
                    alive.pop(chance.randrange(len(alive))).task.cancel()
                case 3:
                    await doors.clock.advance(chance.choice([0.1, 5.0, 31.0]))
                    await recorded.see(finalized=LAST)
                case _:
                    recorded.chain.cache.drop(bytes.fromhex(sepolia(FIRST)["block"]["hash"][2:]))
            hold = recorded.upstream.hold("fetch")
            height = chance.randint(FIRST, LAST)
            alive.append(doors.ask(chance.choice([at(height), by_tx(BUSY), at(LAST + 5)])))
            await settle(chance.randrange(12))
            if chance.random() < 0.5:
                hold.release()
            gates = (doors.house.door.process, doors.house.door.chains[7], doors.house.door.warm)
            assert all(0 <= gate.taken <= (gate.limit or 0) for gate in gates)
        for point in ("fetch", "position", "name_of"):
            recorded.upstream.hold(point).release()
        await doors.clock.advance(31.0)
        await doors.clock.advance(200.0)
        await asyncio.gather(*(each.task for each in doors.sent), return_exceptions=True)
        assert doors.in_flight == NONE_IN
        assert doors.metric("admission_in_flight") == 0
        assert recorded.at_rest()
        requests = doors.metric("http_requests_total")
        assert requests == doors.metric("proof_outcome_total") == 1000
        outcomes = {
            sample.labels["outcome"]
            for family in doors.house.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "copath_proof_outcome_total" and sample.value
        }
        assert outcomes >= {
            "served",
            "cancelled",
            "RequestTimeout",
            "RpcUnavailable",
            "BlockNotOnSourceChain",
            "Overloaded",
            "ChainOverloaded",
        }


# --- A9, A11: what the refused are told, and what is noted ------------------------------------------------------------


@pytest.fixture
async def full() -> AsyncIterator[Asked]:
    """A door with its only cold place taken, for good."""
    recorded = await seen()
    async with asked(recorded, process=1, chain=1) as doors:
        held = recorded.upstream.hold("fetch")
        doors.ask(nth(0))
        await held.reached()
        yield doors


async def test_A9_refusals_are_counted_once_each_and_logged_once_a_second(
    full: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            await ended([full.ask(nth(1)) for _ in range(50)])
            await full.clock.advance(0.5)
    lines = [record for record in caplog.records if record.name == "app.api.refusing"]
    told = [(line.reason, line.suppressed, line.chain) for line in lines]  # type: ignore[attr-defined]
    assert told == [("overloaded", 0, "sepolia"), ("overloaded", 99, "sepolia")]
    ends = [record for record in caplog.records if record.name == "copath.access"]
    assert [end.request_id for end in ends] == [line.request_id for line in lines]  # type: ignore[attr-defined]
    assert full.metric("admission_rejected_total", reason="overloaded") == 150
    assert full.metric("admission_rejected_total") == 150
    assert full.metric("proof_outcome_total", outcome="Overloaded") == 150


async def test_A9_the_reasons_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    recorded = await seen(max_fills=1, max_queued_fills=1)
    async with asked(recorded, process=8, chain=6, timeout_s=30) as doors:
        held = recorded.upstream.hold("fetch")
        with caplog.at_level(logging.INFO, logger="app.api.refusing"):
            doors.ask(nth(0))
            await held.reached()
            doors.ask(nth(1))
            await settle()
            queue_full = await doors.ask(nth(2))
            assert (queue_full.code, queue_full.json["reason"]) == ("ChainOverloaded", "fill_queue_full")
            for _ in range(4):
                doors.ask(nth(0))
            await settle()
            assert (await doors.ask(nth(3))).code == "ChainOverloaded"
            await doors.clock.advance(29.6)
            await doors.clock.advance(0.5)
        reasons = ("overloaded", "chain_overloaded", "fill_queue_full", "fill_wait_timeout", "timeout")
        counted = {reason: doors.metric("admission_rejected_total", reason=reason) for reason in reasons}
        assert counted == {
            "overloaded": 0,
            "chain_overloaded": 1,
            "fill_queue_full": 1,
            "fill_wait_timeout": 1,
            "timeout": 5,
        }
        assert doors.metric("admission_rejected_total") == 8
        lines = [record for record in caplog.records if record.name == "app.api.refusing"]
        assert Counter(line.reason for line in lines) == dict.fromkeys(reasons[1:], 1)  # type: ignore[attr-defined]


async def test_A11_the_refused_are_told_to_come_back_at_different_times(full: Asked) -> None:
    crowd = [full.ask(nth(1)) for _ in range(60)]
    await ended(crowd)
    waits = Counter(each.headers["retry-after"] for each in crowd)
    assert set(waits) == {"1", "2", "3"}


async def test_refusals_wear_the_shape_of_their_route(full: Asked) -> None:
    refused = await full.ask(nth(1), headers=[(b"origin", b"https://example.org")])
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["access-control-allow-origin"] == "*"
    assert (refused.json["status"], refused.json["code"]) == (503, "Overloaded")
    assert refused.json["message"] == "too many proof requests in flight; retry with back-off"


# --- A10: what a batch weighs -----------------------------------------------------------------------------------------


def batches(hold: asyncio.Event) -> FastAPI:
    """A batch route: it is told how many blocks are not at hand, and works until the hold is released."""
    routes = FastAPI(openapi_url=None)

    @routes.post("/api/v1/proof-batch/{chain_key}")
    async def batch(request: Request) -> Response:
        take_cold_places(request.scope, int(await request.body()))
        await hold.wait()
        return Response(b"{}")

    return routes


async def test_A10_a_batch_takes_a_place_for_every_block_that_is_not_at_hand() -> None:
    hold = asyncio.Event()
    async with asked_of(batches(hold), await seen(), process=8, chain=6) as doors:
        path = "/api/v1/proof-batch/7"
        first = doors.ask(path, "POST", body=b"4")
        await settle()
        assert doors.in_flight == (1, 4, 1)
        assert doors.metric("admission_in_flight", scope="chain", chain="sepolia") == 4
        refused = await doors.ask(path, "POST", body=b"3")
        assert (refused.status, refused.code) == (503, "ChainOverloaded")
        assert doors.metric("admission_rejected_total", reason="chain_overloaded") == 1
        fitting, known = doors.ask(path, "POST", body=b"2"), doors.ask(path, "POST", body=b"0")
        await settle()
        assert doors.in_flight == (3, 6, 3)
        hold.set()
        assert await ended([first, fitting, known]) == {(200, None): 3}
        assert doors.in_flight == NONE_IN


async def test_A10_known_answers_in_a_batch_are_not_refused_for_cold_load() -> None:
    hold = asyncio.Event()
    async with asked_of(batches(hold), await seen(), process=2, chain=2) as doors:
        path = "/api/v1/proof-batch/7"
        doors.ask(path, "POST", body=b"10")
        await settle()
        assert doors.in_flight == (1, 2, 1)
        known = doors.ask(path, "POST", body=b"0")
        await settle()
        assert known.status is None
        hold.set()
        assert (await known).status == 200


async def test_A7_a_batch_whose_client_hangs_up_gives_everything_back() -> None:
    hold = asyncio.Event()
    async with asked_of(batches(hold), await seen(), process=8, chain=6) as doors:
        batch = doors.ask("/api/v1/proof-batch/7", "POST", body=b"4")
        await settle()
        batch.hang_up()
        await settle()
        assert batch.task.done()
        assert doors.in_flight == NONE_IN


async def test_A7_a_batch_whose_body_never_comes_holds_no_cold_place() -> None:
    async with asked_of(batches(asyncio.Event()), await seen(), timeout_s=30) as doors:
        batch = doors.ask("/api/v1/proof-batch/7", "POST", body=None)
        await settle()
        assert doors.in_flight == (1, 0, 0)
        await doors.clock.advance(30)
        await batch
        assert (batch.status, batch.code) == (504, "RequestTimeout")
        assert doors.in_flight == NONE_IN


async def test_a_body_that_is_too_large_is_refused_behind_the_door_too() -> None:
    async with asked_of(batches(asyncio.Event()), await seen()) as doors:
        batch = await doors.ask("/api/v1/proof-batch/7", "POST", body=b"1" * (2 * 2**20 + 1))
        assert (batch.status, batch.code) == (413, "PayloadTooLarge")
        assert doors.in_flight == NONE_IN


# --- A12: limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["MAX_IN_FLIGHT_REQUESTS", "MAX_IN_FLIGHT_PER_CHAIN", "MAX_WARM_IN_FLIGHT"])
def test_A12_a_limit_of_0_is_refused(limit: str) -> None:
    chain = {"COPATH_CHAINS__1__ETH_RPC_URL": "http://node.example.org"}
    with pytest.raises(SettingsError):
        load_settings(None, {**chain, f"COPATH_ADMISSION__{limit}": "0"})


async def test_A12_no_limit_is_null() -> None:
    unlimited = AdmissionSettings(max_in_flight_requests=None, max_in_flight_per_chain=None, max_warm_in_flight=None)
    recorded = await seen(max_queued_fills=10_000)
    limits = {"process": unlimited.max_in_flight_requests, "chain": unlimited.max_in_flight_per_chain, "warm": None}
    async with asked(recorded, **limits) as doors:
        held = recorded.upstream.hold("fetch")
        crowd = [doors.ask(nth(0)) for _ in range(500)]
        await held.reached()
        await settle()
        assert doors.in_flight == (500, 500, 0)
        assert doors.metric("admission_limit", scope="global") == float("inf")
        held.release()
        assert await ended(crowd) == {(200, None): 500}


# --- two lanes --------------------------------------------------------------------------------------------------------


async def hung(doors: Asked, recorded: RecordedChain, places: int) -> None:
    """Every cold place is taken by a request whose fill never ends."""
    for point in ("fetch", "position", "name_of", "tagged"):
        recorded.upstream.hold(point)
    for n in range(places):
        doors.ask(nth(n))
    await settle(100)
    assert doors.house.door.process.taken == places


async def test_with_every_cold_place_hung_a_thousand_known_answers_are_served() -> None:
    recorded = await seen()
    async with asked(recorded, process=8, chain=8, warm=4) as doors:
        block_hash = sepolia(BUSY)["block"]["hash"]
        known = (
            by_tx(),
            at(BUSY),
            f"/api/v1/proofs/7/receipts/{tx_hash(BUSY, 1)}",
            f"/api/v1/proofs/sepolia/blocks/{block_hash}/receipts/2",
            f"/api/v1/proofs/sepolia/blocks/{hex(BUSY)}/transactions/1?finality=finalized&e=1",
        )
        for path in known:
            assert (await doors.ask(path)).status == 200
        await hung(doors, recorded, 8)
        assert (await doors.ask(nth(20))).code == "Overloaded"
        recorded.calls()
        for round_ in range(200):
            for path in known:
                assert (await doors.ask(path)).status == 200
            if round_ % 10 == 0:
                assert (await doors.ask(nth(20))).code == "Overloaded"
                await doors.clock.advance(1.0)
                assert (await doors.ask("/health")).status == 200
        assert recorded.calls() == {}
        assert doors.in_flight == (8, 8, 0)


async def test_a_block_that_may_still_be_replaced_takes_the_cold_lane() -> None:
    recorded = RecordedChain()
    await recorded.see(finalized=BUSY - 1)
    async with asked(recorded, process=1, chain=1) as doors:
        for path in (at(BUSY), by_tx()):
            assert (await doors.ask(path)).status == 200
        await hung(doors, recorded, 1)
        for path in (at(BUSY), by_tx()):
            assert (await doors.ask(path)).code == "Overloaded"


async def test_choosing_the_lane_counts_nothing() -> None:
    recorded = await seen()
    async with asked(recorded) as doors:
        await doors.ask(at(BUSY))
        cache = recorded.chain.cache
        before = (cache.hits, cache.misses)
        await doors.ask(at(BUSY))
        assert (cache.hits, cache.misses) == (before[0] + 1, before[1])


async def test_the_warm_lane_has_a_cap_of_its_own_whose_overflow_opens_no_window() -> None:
    recorded = await seen()
    async with asked(recorded, process=8, chain=8, warm=2, threshold_s=0) as doors:
        await doors.ask(at(BUSY))
        slow = [doors.ask(at(BUSY)) for _ in range(2)]
        for exchange in slow:
            exchange.unread = asyncio.Event()
        await settle()
        assert doors.in_flight == (2, 0, 2)
        refused = await doors.ask(at(BUSY))
        assert (refused.status, refused.code) == (503, "Overloaded")
        assert doors.metric("saturated") == 0
        assert (await doors.ask("/health")).status == 200
        assert (await doors.ask(nth(0))).status == 200
        for exchange in slow:
            exchange.hang_up()
        await asyncio.gather(*(each.task for each in slow))
        assert doors.in_flight == NONE_IN


# --- going away -------------------------------------------------------------------------------------------------------


async def test_while_draining_proofs_are_served_and_connections_closed() -> None:
    recorded = await seen()
    async with asked(recorded) as doors:
        assert "connection" not in (await doors.ask(nth(0))).headers
        doors.house.begin_draining()
        for path, status in ((nth(0), 200), (nth(1), 200), (at(LAST + 5), 404)):
            answer = await doors.ask(path)
            assert (answer.status, answer.headers["connection"]) == (status, "close")


async def test_once_closing_new_proofs_are_refused_and_those_in_flight_end() -> None:
    recorded = await seen()
    async with asked(recorded) as doors:
        held = recorded.upstream.hold("fetch")
        inside = doors.ask(nth(0))
        await held.reached()
        doors.house.begin_draining()
        doors.house.close_doors()
        refused = doors.ask(nth(0), headers=[(b"origin", b"https://example.org")])
        await settle()
        assert refused.task.done()
        assert (refused.status, refused.code, refused.json["retriable"]) == (503, "Draining", True)
        assert 1 <= int(refused.headers["retry-after"]) <= 3
        assert refused.headers["connection"] == "close"
        assert refused.headers["access-control-allow-origin"] == "*"
        assert doors.metric("admission_rejected_total", reason="draining") == 1
        assert doors.metric("saturated") == doors.metric("saturation_open_seconds") == 0
        for path in ("/livez", "/metrics", "/api/v1/chains", "/api/v1/health"):
            assert (await doors.ask(path)).status == 200
        held.release()
        assert (await inside).status == 200


# --- what a fault leaves ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "status"),
    [(lambda: RuntimeError("a fault"), 500), (lambda: TimeoutError(), 500), (lambda: RpcUnavailable("down"), 503)],
)
async def test_G2_a_route_that_fails_gives_its_place_back(failure: Callable[[], Exception], status: int) -> None:
    routes = FastAPI(openapi_url=None)

    @routes.get("/api/v1/proofs/{chain}/failing")
    async def failing() -> Response:
        raise failure()

    async with asked_of(routes, await seen()) as doors:
        answer = await doors.ask("/api/v1/proofs/sepolia/failing")
        assert answer.status == status
        assert doors.in_flight == NONE_IN
        assert doors.metric("admission_rejected_total") == 0


class Plausible(dict[str, str]):
    """A value for every parameter of a route template."""

    def __missing__(self, name: str) -> str:
        return {"chain": "sepolia", "chain_key": "7"}.get(name, "1")


async def test_B63_twenty_thousand_random_paths_and_methods_add_next_to_no_series() -> None:
    chance = random.Random(63)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789-_/"
    recorded = await seen()
    async with asked(recorded, process=4, chain=4) as doors:

        def path() -> str:
            junk = "".join(chance.choices(letters, k=chance.randint(1, 30)))
            number = chance.getrandbits(64)
            return chance.choice(
                [
                    f"/{junk}",
                    f"/api/v1/{junk}",
                    f"/api/v1/proofs/{junk}/transactions/{number:064x}",
                    f"/api/v1/proofs/sepolia/transactions/{number:064x}",
                    f"/api/v1/proofs/sepolia/blocks/{number}/receipts/{junk}",
                    f"/api/v1/proof/{number}/{junk}/0",
                    f"/api/v1/proof-by-tx/7/{junk}",
                ]
            )

        def method() -> str:
            return chance.choice(["GET", "HEAD", "POST", "OPTIONS", "BREW", "".join(chance.choices(letters[:26], k=6))])

        templates = [sign.template.format_map(Plausible()) for sign in doors.app.table.signs] + ["/nothing"]
        for template in templates:
            for known in METHODS:
                await doors.ask(template, known)
        before = doors.series()
        for _ in range(200):
            await asyncio.gather(*(doors.ask(path(), method()).task for _ in range(100)))
            doors.sent.clear()
        assert doors.metric("http_requests_total") > 20_000
        assert doors.series() - before <= 5
        assert doors.in_flight == NONE_IN
