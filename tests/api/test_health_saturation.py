"""Saturation as load balancers and operators see it, over the whole application and real chains with a clock moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.errors import RpcUnavailable
from tests.api.exchanges import Asked, Exchange, asked
from tests.chain.recorded_chain import BUSY, FIRST, LAST, RecordedChain
from tests.fakes import Hold, settle

OK = (200, b'{"status":"ok"}')
SATURATED = (503, b'{"status":"unhealthy","reason":"saturated"}')


def at(height: int, chain: str = "sepolia") -> str:
    return f"/api/v1/proofs/{chain}/blocks/{height}/transactions/0"


async def seen(**rules: Any) -> RecordedChain:
    recorded = RecordedChain(**rules)
    await recorded.see(finalized=LAST)
    recorded.calls()
    return recorded


async def health(doors: Asked) -> tuple[int | None, bytes]:
    answer = await doors.ask("/health")
    return answer.status, answer.body


async def wedged(
    recorded: RecordedChain, doors: Asked, requests: int, chain: str = "sepolia"
) -> tuple[Hold, list[Exchange]]:
    """So many requests for different blocks, whose node does not answer."""
    held = recorded.upstream.hold("fetch")
    inside = [doors.ask(at(FIRST + n, chain)) for n in range(requests)]
    await held.reached()
    await settle(50)
    return held, inside


async def refused(doors: Asked, chain: str = "sepolia") -> str | None:
    answer = await doors.ask(at(BUSY, chain))
    assert answer.status == 503
    return answer.code


async def test_S1_without_traffic_nothing_is_saturated() -> None:
    async with asked(await seen(saturation_threshold_s=0), threshold_s=0) as doors:
        assert await health(doors) == OK
        assert doors.metric("saturated") == doors.metric("saturation_open_seconds") == 0


async def test_S1_at_threshold_0_one_refusal_is_enough() -> None:
    recorded = await seen()
    async with asked(recorded, process=1, chain=1, threshold_s=0) as doors:
        await wedged(recorded, doors, 1)
        assert await health(doors) == OK
        assert await refused(doors) == "Overloaded"
        assert await health(doors) == SATURATED


async def test_S1_S5_refusing_for_the_threshold_saturates_and_further_refusals_do_not_put_it_off() -> None:
    recorded = await seen()
    async with asked(recorded, process=1, chain=1, timeout_s=600, threshold_s=10) as doors:
        await wedged(recorded, doors, 1)
        for second in range(60):
            assert await refused(doors) == "Overloaded"
            assert await health(doors) == (OK if second < 10 else SATURATED)
            assert doors.metric("saturation_open_seconds", gate="http") == second
            assert doors.metric("saturated", gate="http") == (second >= 10)
            await doors.clock.advance(1)


async def test_S5_once_nobody_asks_any_more_it_recovers_by_time_alone() -> None:
    recorded = await seen()
    async with asked(recorded, process=1, chain=1, timeout_s=600, threshold_s=10, expiry_s=60) as doors:
        await wedged(recorded, doors, 1)
        await refused(doors)
        await doors.clock.advance(59.9)
        assert await health(doors) == SATURATED
        await doors.clock.advance(0.1)
        assert await health(doors) == OK


async def test_S2_a_place_taken_clears_although_its_work_is_long() -> None:
    recorded = await seen()
    async with asked(recorded, process=2, chain=2, threshold_s=0) as doors:
        _, inside = await wedged(recorded, doors, 2)
        await refused(doors)
        assert await health(doors) == SATURATED
        inside[0].hang_up()
        await settle()
        long = doors.ask(at(FIRST + 9))
        await settle()
        assert await health(doors) == OK
        assert long.status is None


@pytest.mark.parametrize("ends", ["success", "error", "hanging up", "deadline", "cancellation"])
@pytest.mark.parametrize("queue", [0, 1])
async def test_S3_when_all_work_has_ended_it_is_healthy_without_any_traffic(ends: str, queue: int) -> None:
    recorded = await seen(
        max_fills=1, max_queued_fills=queue, fill_deadline_s=30, saturation_threshold_s=0, saturation_expiry_s=1e9
    )
    limits = {"process": 2 + queue, "chain": 2 + queue, "threshold_s": 0, "expiry_s": 1e9}
    async with asked(recorded, timeout_s=30, **limits) as doors:
        held, inside = await wedged(recorded, doors, 1 + queue)
        assert (await doors.ask(at(FIRST + 8))).code == "ChainOverloaded"
        inside.append(doors.ask(at(FIRST)))
        await settle()
        assert await refused(doors) == "Overloaded"
        assert await health(doors) == SATURATED
        assert doors.metric("saturated", gate="sepolia") == 1
        match ends:
            case "error":
                recorded.upstream.fail("fetch", RpcUnavailable("down"), times=None)
            case "hanging up":
                for exchange in inside:
                    exchange.hang_up()
            case "deadline":
                await doors.clock.advance(30)
            case "cancellation":
                for exchange in inside:
                    exchange.task.cancel()
        await settle(50)
        held.release()
        await settle(100)
        await asyncio.gather(*(each.task for each in inside), return_exceptions=True)
        assert recorded.at_rest()
        assert await health(doors) == OK
        assert doors.metric("saturated") == doors.metric("saturation_open_seconds") == 0


async def test_S4_refusals_that_no_holder_will_clear_open_nothing() -> None:
    recorded = await seen(saturation_threshold_s=0)
    async with asked(recorded, threshold_s=0) as doors:
        await wedged(recorded, doors, 1)
        doors.house.close_doors()
        for path in (at(FIRST), "/api/v1/proofs/nowhere/receipts/1", "/api/v1/proofs/sepolia/receipts/zz", "/nothing"):
            assert (await doors.ask(path)).status in (400, 404, 503)
        doors.house.closing = False
        for path in ("/api/v1/proofs/sepolia/receipts/zz", at(LAST + 50)):
            assert (await doors.ask(path)).status in (400, 404)
        assert await health(doors) == OK
        assert doors.metric("saturation_open_seconds") == doors.metric("saturated") == 0


async def test_S6_the_body_is_constant_and_other_methods_fall_through() -> None:
    recorded = await seen()
    async with asked(recorded, process=1, chain=1, timeout_s=600, threshold_s=0) as doors:
        assert await health(doors) == OK
        await wedged(recorded, doors, 1)
        await refused(doors)
        for _ in range(3):
            assert await health(doors) == SATURATED
            await doors.clock.advance(7.5)
        assert (await doors.ask("/health", "POST")).status == 405
        head = await doors.ask("/health", "HEAD")
        assert (head.status, head.body) == (503, b"")
        doors.house.begin_draining()
        assert await health(doors) == (503, b'{"status":"unhealthy","reason":"draining"}')
        doors.house.started = False
        assert await health(doors) == (503, b'{"status":"unhealthy","reason":"starting"}')


# --- S7: one chain is not the process ---------------------------------------------------------------------------------


@pytest.fixture
async def two() -> AsyncIterator[tuple[Asked, RecordedChain, RecordedChain]]:
    """Two chains with two places and one permit each, and no queue, in a process with room for both."""
    rules: dict[str, Any] = {"max_fills": 1, "max_queued_fills": 0, "fill_deadline_s": 600}
    noisy = await seen(**rules)
    quiet = RecordedChain(key=8, name="quiet", clock=noisy.clock, metrics=noisy.metrics, **rules)
    await quiet.see(finalized=LAST)
    async with asked(noisy, quiet, process=8, chain=2, timeout_s=600) as doors:
        yield doors, noisy, quiet


async def listed(doors: Asked) -> dict[str, bool]:
    chains = (await doors.ask("/api/v1/chains")).json["chains"]
    return {chain["name"]: chain["saturated"] for chain in chains}


@pytest.mark.parametrize("gate", ["fills", "door"])
async def test_S7_one_saturated_chain_leaves_the_process_healthy_and_all_of_them_do_not(
    two: tuple[Asked, RecordedChain, RecordedChain], gate: str
) -> None:
    doors, noisy, quiet = two

    async def wedge(recorded: RecordedChain, name: str) -> list[Exchange]:
        _, inside = await wedged(recorded, doors, 1, name)
        if gate == "door":
            inside.append(doors.ask(at(FIRST, name)))
            await settle()
        answer = await doors.ask(at(BUSY, name))
        reason = "fill_queue_full" if gate == "fills" else None
        assert (answer.code, answer.json.get("reason")) == ("ChainOverloaded", reason)
        return inside

    first = await wedge(noisy, "sepolia")
    await doors.clock.advance(10)
    assert await listed(doors) == {"sepolia": True, "quiet": False}
    assert (await doors.ask("/api/v1/chains/sepolia")).json["saturated"] is True
    assert (doors.metric("saturated", gate="sepolia"), doors.metric("saturated", gate="http")) == (1, 0)
    assert doors.metric("saturation_open_seconds", gate="sepolia") == 10
    assert await health(doors) == OK
    second = await wedge(quiet, "quiet")
    assert await health(doors) == OK
    await doors.clock.advance(10)
    assert await listed(doors) == {"sepolia": True, "quiet": True}
    assert await health(doors) == SATURATED
    quiet.upstream.hold("fetch").release()
    for exchange in [*first, *second]:
        exchange.hang_up()
    await settle()
    assert (await listed(doors))["quiet"] is (gate == "fills")


async def test_S7_the_refused_who_leave_the_door_do_not_clear_the_fills(
    two: tuple[Asked, RecordedChain, RecordedChain],
) -> None:
    doors, noisy, _ = two
    await wedged(noisy, doors, 1)
    for second in range(20):
        assert await refused(doors) == "ChainOverloaded"
        assert noisy.chain.saturated is (second >= 10)
        await doors.clock.advance(1)


async def test_S7_who_only_leaves_the_line_does_not_clear_the_fills() -> None:
    recorded = await seen(max_fills=1, max_queued_fills=1, fill_deadline_s=600)
    async with asked(recorded, timeout_s=600) as doors:
        await wedged(recorded, doors, 2)
        assert await refused(doors) == "ChainOverloaded"
        await doors.clock.advance(10)
        doors.sent[1].hang_up()
        await settle()
        assert doors.metric("fill_waiting") == 0
        assert recorded.chain.saturated


async def test_S2_a_permit_that_goes_on_to_the_next_clears() -> None:
    recorded = await seen(max_fills=1, max_queued_fills=1, fill_deadline_s=600, saturation_threshold_s=0)
    async with asked(recorded, timeout_s=600) as doors:
        held, inside = await wedged(recorded, doors, 2)
        await refused(doors)
        assert recorded.chain.saturated
        recorded.upstream.hold("fetch")
        held.release()
        await settle(50)
        assert (inside[0].task.done(), inside[1].task.done()) == (True, False)
        assert not recorded.chain.saturated


async def test_a_process_that_serves_known_answers_is_worth_asking() -> None:
    recorded = await seen()
    known = "/api/v1/proofs/sepolia/blocks/175892/transactions/0"
    async with asked(recorded, process=1, chain=1, timeout_s=600) as doors:
        assert (await doors.ask(known)).status == 200
        await wedged(recorded, doors, 1)
        for _ in range(30):
            await refused(doors)
            assert (await doors.ask(known)).status == 200
            assert await health(doors) == OK
            await doors.clock.advance(1)
        assert doors.metric("saturated", gate="http") == 1
        for _ in range(10):
            await refused(doors)
            assert (await doors.ask("/api/v1/proofs/sepolia/receipts/zz")).status == 400  # no answer worth staying for
            await doors.clock.advance(1)
        assert await health(doors) == SATURATED


async def test_S8_health_waits_for_nothing() -> None:
    """Its coroutine runs to the end without being suspended once, whatever hangs."""
    recorded = await seen()
    async with asked(recorded, process=4, chain=4, threshold_s=0) as doors:
        for point in ("position", "name_of", "tagged", "chain_id"):
            recorded.upstream.hold(point)
        await wedged(recorded, doors, 4)
        await refused(doors)
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise AssertionError("the probe has no body to read")

        for path in ("/health", "/livez", "/readyz"):
            scope = {
                "type": "http",
                "method": "GET",
                "path": path,
                "raw_path": path.encode(),
                "query_string": b"",
                "root_path": "",
                "headers": [],
                "state": dict(doors.state),
            }
            with pytest.raises(StopIteration):
                doors.app(scope, receive, send).send(None)
        assert [message["status"] for message in sent if "status" in message] == [503, 200, 200]
