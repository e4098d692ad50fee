"""Calls over one WebSocket: whose answer is whose, what bounds them, and what becomes of them when the connection ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.core.deadlines import deadline
from app.upstream import dialling, jsonrpc
from app.upstream.faults import CallFailed, Fault
from app.upstream.line import AGAIN_S, Line
from app.upstream.posting import NodeLimits
from app.upstream.underway import UnderWay
from tests.scripted_behaviours import answer, dropped, error, hang, hang_up, held, html, raw, reset
from tests.scripted_node import ScriptedNode, closed_port
from tests.scripted_websocket import ScriptedWebSocket
from tests.serving.conftest import make_certificate
from tests.upstream.conftest import WALL, HandClock

HEAD, CHAIN_ID = "eth_blockNumber", "eth_chainId"
CANARY = "canary-0123456789"


@dataclass
class Rested:
    """Rests last until the test says so, or a call comes."""

    asked: list[float] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self.gate.wait()


@dataclass
class Scene:
    node: ScriptedNode
    side: ScriptedWebSocket
    line: Line
    clock: HandClock
    rests: Rested
    lost: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    next_id: int = 0

    async def ask(self, method: str = HEAD, *params: Any, bulky: bool = False) -> bytes:
        self.next_id += 1
        call_id = self.next_id
        reply = await self.line.ask(jsonrpc.encode_request(call_id, method, params), (call_id,), bulky=bulky)
        return jsonrpc.decode_response(reply.body, call_id)

    async def batch(self, *methods: str) -> list[bytes | CallFailed]:
        first, self.next_id = self.next_id + 1, self.next_id + len(methods)
        content = jsonrpc.encode_batch(first, [(method, ()) for method in methods])
        reply = await self.line.ask(content, range(first, first + len(methods)), bulky=True)
        return jsonrpc.decode_batch(reply.body, first, len(methods))

    async def fault(self, method: str = HEAD, **options: Any) -> Fault:
        with pytest.raises(CallFailed) as failed:
            await self.ask(method, **options)
        return failed.value.fault


@contextlib.asynccontextmanager
async def opened(
    record: Any, *, key: str = "", headers: dict[str, str] | None = None, **limits: Any
) -> AsyncIterator[Scene]:
    async with ScriptedNode.of_corpus(record) as node, ScriptedWebSocket(node, key=key) as side:
        clock, rests = HandClock(), Rested()
        lost: list[float] = []
        busy: list[float] = []
        line = Line(
            side.url,
            headers,
            NodeLimits(**limits),
            clock=clock.now,
            wall_clock=lambda: WALL,
            pause=rests,
            chance=lambda: 0.5,
            trust_env=False,
            on_busy=lambda: busy.append(clock.at),
            on_lost=lambda: lost.append(clock.at),
        )
        try:
            yield Scene(node, side, line, clock, rests, lost, busy)
        finally:
            await line.aclose()


@pytest.fixture
async def scene(million: Any) -> AsyncIterator[Scene]:
    async with opened(million) as found:
        yield found


# --- answers --------------------------------------------------------------------------------------------------------


async def test_nothing_is_dialled_before_somebody_asks_and_then_once(scene: Scene) -> None:
    assert scene.side.handshakes == 0
    assert await asyncio.gather(*(scene.ask() for _ in range(10))) == [b'"0xf4240"'] * 10
    assert (scene.side.handshakes, scene.line.connections, scene.node.hits[HEAD]) == (1, 1, 10)


async def test_B28_answers_in_any_order_reach_who_asked(scene: Scene) -> None:
    gate = asyncio.Event()
    scene.node.script(HEAD, held(gate))
    first = asyncio.create_task(scene.ask(HEAD))
    await scene.node.until(HEAD)
    assert await scene.ask(CHAIN_ID) == b'"0x1"'
    assert not first.done()
    gate.set()
    assert await first == b'"0xf4240"'


async def test_B28_a_batch_is_one_message_beside_other_calls(scene: Scene) -> None:
    scene.node.batch_order = lambda answers: answers[::-1]
    batch, alone = await asyncio.gather(scene.batch(HEAD, CHAIN_ID, HEAD), scene.ask(CHAIN_ID))
    assert (batch, alone) == ([b'"0xf4240"', b'"0x1"', b'"0xf4240"'], b'"0x1"')
    assert scene.node.batch_sizes == [3]


async def test_B29_an_error_without_id_refuses_the_batch_and_nobody_else(scene: Scene) -> None:
    gate = asyncio.Event()
    scene.node.script(HEAD, held(gate))
    other = asyncio.create_task(scene.ask(HEAD))
    await scene.node.until(HEAD)
    scene.node.batches = False
    with pytest.raises(CallFailed) as refused:
        await scene.batch(CHAIN_ID, CHAIN_ID)
    assert refused.value.fault is Fault.TOO_BIG
    gate.set()
    assert await other == b'"0xf4240"'


async def test_row_06_a_limit_told_without_an_id_is_everybodys(scene: Scene) -> None:
    await scene.ask()
    scene.node.always(HEAD, hang())
    asked = [asyncio.create_task(scene.fault()) for _ in range(3)]
    await scene.node.until(HEAD, 4)
    await scene.side.tell({"jsonrpc": "2.0", "id": None, "error": {"code": 429, "message": "too many requests"}})
    assert await asyncio.gather(*asked) == [Fault.RATE_LIMITED] * 3


async def test_an_error_is_what_it_means_over_http_too(scene: Scene) -> None:
    scene.node.script(HEAD, error(-32601, "method not found"), error(-32005, "limit exceeded"))
    assert (await scene.fault(), await scene.fault()) == (Fault.METHOD_NOT_SUPPORTED, Fault.RATE_LIMITED)


@pytest.mark.parametrize(
    "nonsense", [html(), raw("invalid host specified"), raw("{}"), dropped()], ids=lambda each: each.name
)
async def test_B27_row_09_nonsense_fails_the_call_and_the_next_connection_serves(scene: Scene, nonsense: Any) -> None:
    scene.node.script(HEAD, nonsense)
    assert await scene.fault() is Fault.MALFORMED
    assert await scene.ask() == b'"0xf4240"'
    assert scene.side.handshakes == 2


# --- bounds ---------------------------------------------------------------------------------------------------------


async def test_no_more_calls_at_once_than_the_node_may_have(million: Any) -> None:
    async with opened(million, max_connections=2, pool_timeout_s=0.05) as scene:
        scene.node.always(HEAD, hang())
        asked = [asyncio.create_task(scene.ask()) for _ in range(2)]
        await scene.node.until(HEAD, 2)
        assert await scene.fault(CHAIN_ID) is Fault.POOL_BUSY
        assert (scene.node.hits[CHAIN_ID], scene.line.calls, len(scene.busy)) == (0, 2, 1)
        for each in asked:
            each.cancel()
        await asyncio.wait(asked)
        assert await scene.ask(CHAIN_ID) == b'"0x1"'
        assert scene.line.calls == 0


async def test_row_03_no_answer_in_time_is_the_nodes_fault_and_frees_the_place(million: Any) -> None:
    async with opened(million, max_connections=1, attempt_timeout_s=0.05) as scene:
        scene.node.script(HEAD, hang())
        assert await scene.fault() is Fault.ATTEMPT_TIMEOUT
        assert await scene.ask() == b'"0xf4240"'
        assert scene.side.handshakes == 1, "the others' calls over it are none the worse"


async def test_an_answer_that_comes_after_the_call_was_given_up_is_nobodys(million: Any) -> None:
    async with opened(million, attempt_timeout_s=0.05) as scene:
        gate = asyncio.Event()
        scene.node.script(HEAD, held(gate))
        assert await scene.fault() is Fault.ATTEMPT_TIMEOUT
        gate.set()
        assert await scene.ask(CHAIN_ID) == b'"0x1"'
        assert scene.side.handshakes == 1


async def test_the_deadline_cuts_a_call(scene: Scene) -> None:
    await scene.ask()
    scene.node.script(HEAD, hang())
    token = deadline.set(scene.clock.at + 0.15)
    try:
        assert await scene.fault() is Fault.DEADLINE
    finally:
        deadline.reset(token)


async def test_row_10_a_message_that_is_too_large_fails_the_large_call_alone(million: Any) -> None:
    async with opened(million, max_body_bytes=10_000) as scene:
        gate = asyncio.Event()
        scene.node.script(HEAD, held(gate))
        small = asyncio.create_task(scene.fault())
        await scene.node.until(HEAD)
        scene.node.script(CHAIN_ID, answer("0x" + "0" * 20_000))
        assert await scene.fault(CHAIN_ID, bulky=True) is Fault.BODY_TOO_LARGE
        assert await small is Fault.RESET
        assert await scene.ask() == b'"0xf4240"'


async def test_row_10_alone_it_can_only_be_that_call(million: Any) -> None:
    async with opened(million, max_body_bytes=10_000) as scene:
        scene.node.script(CHAIN_ID, answer("0x" + "0" * 20_000))
        assert await scene.fault(CHAIN_ID) is Fault.BODY_TOO_LARGE


async def test_B55_seven_of_ten_calls_given_up_lose_no_place(million: Any) -> None:
    async with opened(million, max_connections=10) as scene:
        chance = random.Random(3)

        async def one() -> None:
            asked = asyncio.create_task(scene.ask())
            if chance.random() < 0.7:
                for _ in range(chance.randrange(12)):
                    await asyncio.sleep(0)
                asked.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asked

        for _ in range(40):
            await asyncio.gather(*(one() for _ in range(25)))
        assert scene.line.calls == 0
        assert await asyncio.gather(*(scene.ask() for _ in range(200))) == [b'"0xf4240"'] * 200
        assert scene.side.handshakes == 1


# --- the end of a connection ----------------------------------------------------------------------------------------


async def test_row_02_a_connection_that_breaks_off_fails_every_call_once_and_the_next_are_served(scene: Scene) -> None:
    await scene.ask()
    scene.node.always(HEAD, hang())
    asked = [asyncio.create_task(scene.fault()) for _ in range(5)]
    await scene.node.until(HEAD, 6)
    await scene.side.drop()
    assert await asyncio.gather(*asked) == [Fault.RESET] * 5
    assert scene.line.calls == 0
    scene.node.always(HEAD, None)
    assert await asyncio.gather(*(scene.ask() for _ in range(5))) == [b'"0xf4240"'] * 5
    assert (scene.side.handshakes, scene.node.hits[HEAD]) == (2, 11), "one connection for all, and no call made twice"
    assert len(scene.lost) == 1


@pytest.mark.parametrize("ending", [reset(), hang_up()], ids=lambda each: each.name)
async def test_row_02_a_call_that_the_node_ends_the_connection_over(scene: Scene, ending: Any) -> None:
    scene.node.script(HEAD, ending)
    assert await scene.fault() is Fault.RESET
    assert await scene.ask() == b'"0xf4240"'


async def test_B56_a_connection_that_was_closed_while_idle_is_nobodys_failure(scene: Scene) -> None:
    for _ in range(3):
        assert await scene.ask() == b'"0xf4240"'
        await scene.side.hang_up()
    assert await scene.ask() == b'"0xf4240"'
    assert scene.side.handshakes == 4


async def test_B56_nor_is_one_that_is_found_dead_as_the_call_goes_out(scene: Scene) -> None:
    await scene.ask()
    connection = scene.line._connection
    assert connection is not None
    await connection.close()  # whoever reads from it has its turn on the loop only after the next call
    assert await scene.ask() == b'"0xf4240"'
    assert (scene.side.handshakes, scene.node.hits[HEAD]) == (2, 2)


async def test_row_01_refused_is_told_at_once_and_not_dialled_again_for_a_moment(million: Any) -> None:
    with closed_port() as port:
        clock, rests = HandClock(), Rested()
        line = Line(f"ws://127.0.0.1:{port}/", clock=clock.now, pause=rests, chance=lambda: 0.5, trust_env=False)
        try:
            for moved in (0.0, 0.0, AGAIN_S):
                clock.at += moved
                with pytest.raises(CallFailed) as failed:
                    await line.ask(b"{}", (1,))
                assert failed.value.fault is Fault.REFUSED
            assert rests.asked == [0.5, 1.0], "dialled twice: the rests grow"
        finally:
            await line.aclose()


async def test_the_rests_grow_and_a_call_does_not_wait_for_their_end(million: Any) -> None:
    async with opened(million) as scene:
        await scene.ask()
        await scene.side.stop()
        for _ in range(4):
            assert await scene.fault() is Fault.REFUSED
            scene.clock.at += AGAIN_S
        assert scene.rests.asked == [0.5, 1.0, 2.0, 4.0, 8.0]
        await scene.side.start()
        assert await scene.ask() == b'"0xf4240"', "although eight seconds of rest had only begun"


async def test_U16_callers_share_one_dialling_and_each_has_its_own_failure(million: Any) -> None:
    async with opened(million) as scene:
        scene.side.refusal = (503, {})
        failures = await asyncio.gather(*(scene.ask() for _ in range(20)), return_exceptions=True)
        assert scene.side.handshakes == 1
        assert {type(each) for each in failures} == {CallFailed}
        assert len({id(each) for each in failures}) == 20


@pytest.mark.parametrize(
    ("status", "headers", "fault", "wait_s"),
    [
        (401, {}, Fault.DENIED, None),
        (403, {}, Fault.DENIED, None),
        (429, {"Retry-After": "7"}, Fault.RATE_LIMITED, 7.0),
        (503, {}, Fault.HTTP_5XX, None),
        (404, {}, Fault.HTTP_4XX, None),
        (200, {}, Fault.MALFORMED, None),
        (307, {"Location": "ws://127.0.0.1:1/elsewhere"}, Fault.MALFORMED, None),
    ],
)
async def test_row_07_a_handshake_that_is_refused(
    million: Any, status: int, headers: dict[str, str], fault: Fault, wait_s: float | None
) -> None:
    async with opened(million) as scene:
        scene.side.refusal = (status, headers)
        with pytest.raises(CallFailed) as failed:
            await scene.ask()
        assert (failed.value.fault, failed.value.retry_after_s) == (fault, wait_s)
        assert scene.side.handshakes == 1, "no redirect is followed"
        if wait_s is not None:
            assert scene.rests.asked == [wait_s], "nor is it dialled before, for nobody's sake"


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", Fault.MALFORMED),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n", Fault.MALFORMED),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Fault.MALFORMED),
        (b"", Fault.RESET),
    ],
)
async def test_row_08_a_server_that_speaks_no_websocket(said: bytes, fault: Fault) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    line = Line(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", trust_env=False)
    try:
        with pytest.raises(CallFailed) as failed:
            await line.ask(b"{}", (1,))
        assert failed.value.fault is fault
    finally:
        await line.aclose()
        server.close()


async def test_a_node_behind_tls(million: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate.certificate, certificate.private_key)
    async with ScriptedNode.of_corpus(million) as node, ScriptedWebSocket(node, tls=tls) as side:
        line = Line(side.url, trust_env=False)
        content = jsonrpc.encode_request(1, HEAD, ())
        with pytest.raises(CallFailed) as failed:
            await line.ask(content, (1,))
        assert (failed.value.fault, side.handshakes) == (Fault.TLS, 0), "signed by nobody that is known"
        await line.aclose()
        monkeypatch.setattr(dialling, "tls_context", lambda _: certificate.client)
        line = Line(side.url, trust_env=False)
        assert jsonrpc.decode_response((await line.ask(content, (1,))).body, 1) == b'"0xf4240"'
        await line.aclose()


async def test_a_server_that_speaks_no_tls(scene: Scene) -> None:
    line = Line(scene.side.url.replace("ws://", "wss://"), trust_env=False)
    with pytest.raises(CallFailed) as failed:
        await line.ask(b"{}", (1,))
    assert failed.value.fault in (Fault.TLS, Fault.UNREACHABLE, Fault.RESET), "as it happens to hang up"
    await line.aclose()


async def test_a_server_that_accepts_and_says_nothing_is_given_up(million: Any) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    line = Line(f"ws://127.0.0.1:{port}/", limits=NodeLimits(connect_timeout_s=0.05), trust_env=False)
    try:
        with pytest.raises(CallFailed) as failed:
            await line.ask(b"{}", (1,))
        assert failed.value.fault is Fault.CONNECT_TIMEOUT
    finally:
        await line.aclose()
        server.close()


async def test_B54_a_fault_of_our_own_is_seen_and_does_not_end_the_line(scene: Scene) -> None:
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))

    class Broken:
        async def attend(self) -> None:
            raise RuntimeError("broken")

        def announced(self, event: object) -> None: ...

    scene.line.listener = Broken()
    with contextlib.suppress(CallFailed):
        await scene.ask()
    while not seen:  # noqa: ASYNC110 - a loop's handler has no event
        await asyncio.sleep(0)
    scene.line.listener = None
    assert await scene.ask() == b'"0xf4240"'
    assert "a fault of our own" in seen[0]["message"]


async def test_F11_nothing_is_left_behind_that_nobody_retrieved(million: Any) -> None:
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    async with opened(million) as scene:
        scene.node.always(HEAD, hang())
        asked = [asyncio.create_task(scene.ask()) for _ in range(4)]
        await scene.node.until(HEAD, 4)
        await scene.side.drop()
        await asyncio.wait(asked)
        assert {type(each.exception()) for each in asked} == {CallFailed}
        await scene.side.stop()
        await scene.fault()
    under_way = UnderWay()
    with under_way.expecting((1,), bulky=False):  # whoever asked is cancelled in the same turn of the loop
        under_way.fail(CallFailed(Fault.RESET, "the connection broke off"))
    del asked
    gc.collect()
    await asyncio.sleep(0)
    assert seen == []


# --- secrets --------------------------------------------------------------------------------------------------------


async def test_no_key_of_the_url_or_the_headers_is_shown(million: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    headers = {"Authorization": f"Bearer {CANARY}"}
    async with opened(million, key=f"v2/{CANARY}?token={CANARY}", headers=headers) as scene:
        assert await scene.ask() == b'"0xf4240"'
        assert scene.side.headers[-1]["authorization"] == f"Bearer {CANARY}"
        scene.side.refusal = (400, {})
        await scene.side.drop()
        with pytest.raises(CallFailed) as failed:
            await scene.ask()
        scene.side.refusal = (404, {})
        scene.clock.at += AGAIN_S
        with pytest.raises(CallFailed) as again:
            await scene.ask()
        assert "no such path" in again.value.excerpt or "refused under" in again.value.excerpt
        shown = [repr(failed.value), str(again.value), again.value.excerpt, repr(scene.line), repr(scene.line.address)]
        told = [record.getMessage() for record in caplog.records if not record.name.startswith("websockets.server")]
        assert CANARY not in "".join([*shown, *told])


@pytest.mark.parametrize("url", ["http://h", "ws://", "ws://h:x/" + CANARY, "wss:///" + CANARY])
def test_what_is_no_such_url_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="an upstream URL") as refused:
        Line(url)
    assert CANARY not in str(refused.value)
