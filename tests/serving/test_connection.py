"""What one connection may cost: raw clients that send too much, too slowly, or nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from app.serving import connection
from app.serving.connection import Connection


class Bounded(Connection):
    """The class under test, with times that a test can wait for."""


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", http=Bounded)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: Bounded(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    yield server.sockets[0].getsockname()[1]
    server.close()
    for each in list(state.connections):
        each.transport.abort()


async def exchange(port: int, *parts: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.ensure_future(reader.read(-1))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
    except ConnectionError:
        pass
    try:
        async with asyncio.timeout(20):
            return await answer
    except ConnectionError:
        return b"reset"
    finally:
        writer.close()


def code_of(answer: bytes) -> str:
    return json.loads(answer.rpartition(b"\r\n\r\n")[2])["code"]


async def test_an_ordinary_request_and_a_large_body_pass(port: int) -> None:
    body = b"x" * (2 * 1024 * 1024)
    answer = await exchange(
        port, b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body), body
    )
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"ok")


async def test_headers_without_end_are_refused(port: int) -> None:
    answer = await exchange(port, b"GET / HTTP/1.1\r\nhost: a\r\n", *[b"x: b\r\n" * 2000] * 50)
    assert answer == b"reset" or code_of(answer) == "PayloadTooLarge"


async def test_one_header_without_end_is_refused(port: int) -> None:
    answer = await exchange(port, b"GET / HTTP/1.1\r\nx: ", *[b"y" * 65536] * 40)
    assert answer == b"reset" or code_of(answer) == "PayloadTooLarge"


async def test_a_whole_head_that_is_too_large_is_refused(port: int) -> None:
    answer = await exchange(port, b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n")
    assert code_of(answer) == "PayloadTooLarge"


async def test_trailers_without_end_are_refused(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    answer = await exchange(port, head, *[b"x: b\r\n" * 2000] * 50)
    assert answer == b"reset" or b"PayloadTooLarge" in answer


async def test_a_chunked_body_without_end_is_refused(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = await exchange(port, head, *[b"10000\r\n" + b"x" * 65536 + b"\r\n"] * 80)
    assert answer == b"reset" or b"PayloadTooLarge" in answer


async def test_requests_in_a_row_are_bounded(port: int) -> None:
    answer = await exchange(port, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 5000)
    assert answer.count(b"HTTP/1.1 200") < 100


async def test_what_is_no_http_gets_the_one_error_body(port: int) -> None:
    answer = await exchange(port, b"BREW / TEA\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert code_of(answer) == "InvalidParameter"


NO_ONE_HOST = {
    "none": (b"1.1", b""),
    "two": (b"1.1", b"host: a\r\nhost: a\r\n"),
    "two in 1.0": (b"1.0", b"Host: a\r\nHOST: b\r\n"),
    "no host": (b"1.1", b"host: a/b\r\n"),
    "two in one": (b"1.1", b"host: a b\r\n"),
}


@pytest.mark.parametrize("case", NO_ONE_HOST)
async def test_a_request_that_does_not_name_its_host_once_is_refused(port: int, case: str) -> None:
    """RFC 9112, 3.2."""
    version, headers = NO_ONE_HOST[case]
    answer = await exchange(port, b"GET / HTTP/%b\r\nx: y\r\n%b\r\n" % (version, headers))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json\r\n" in answer
    assert b"connection: close\r\n" in answer
    body = json.loads(answer.rpartition(b"\r\n\r\n")[2])
    assert (body["code"], body["retriable"]) == ("InvalidParameter", False)
    assert "Host" in body["message"]


@pytest.mark.parametrize(
    ("version", "headers"),
    [
        (b"1.0", b""),
        (b"1.1", b"host:\r\nconnection: close\r\n"),
        (b"1.1", b"Host: [::1]:3100\r\nconnection: close\r\n"),
        (b"1.1", b"HOST: proofs.example.org:443\r\nconnection: close\r\n"),
    ],
)
async def test_a_host_may_be_empty_and_older_clients_name_none(port: int, version: bytes, headers: bytes) -> None:
    answer = await exchange(port, b"GET / HTTP/%b\r\n%b\r\n" % (version, headers))
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("sent", [b"", b"GET / HT"])
async def test_silence_and_half_a_head_end_in_time(port: int, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connection, "SILENT_FOR_S", 0.2)
    monkeypatch.setattr(connection, "HEAD_WITHIN_S", 0.2)
    assert await exchange(port, sent) in (b"", b"reset")


async def test_connections_beyond_the_descriptors_are_closed_at_once(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bounded, "limit", 1)
    first = await asyncio.open_connection("127.0.0.1", port)
    first[1].write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert (await first[0].readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    assert await exchange(port, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n") in (b"", b"reset")
    first[1].close()


# --- offers of another protocol -------------------------------------------------------------------------------------------

OFFERS = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n",
    "h2c-in-two-lines": b"Connection: upgrade\r\nUpgrade: h2c\r\nConnection: http2-settings\r\nHTTP2-Settings: AAE\r\n",
    "a-list": b"Connection: keep-alive, Upgrade, HTTP2-Settings\r\nUpgrade: h2c, HTTP/2.0\r\nHTTP2-Settings: AAE\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    "tls": b"Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n",
    "unknown": b"Connection: UPGRADE\r\nUpgrade: \x7e\x7e\r\n",
}
SHAPES = {
    "length": (b"Content-Length: 12\r\n", [b"\r\nhello, world"]),
    "length-in-segments": (b"Content-Length: 12\r\n", [b"\r", b"\nhel", b"lo, wor", b"ld"]),
    "later": (b"Content-Length: 12\r\n", [b"\r\n", b"hello, world"]),
    "chunked": (b"Transfer-Encoding: chunked\r\n", [b"\r\n5\r\nhello\r\n", b"7\r\n, world\r\n0\r\n\r\n"]),
    "expect": (b"Expect: 100-continue\r\nContent-Length: 12\r\n", [b"\r\n", b"hello, world"]),
    "empty": (b"Content-Length: 0\r\n", [b"\r\n"]),
    "none": (b"", [b"\r\n"]),
}


@pytest.fixture
async def echo(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """Answers every request with its body and the names of its header fields."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        names = b" ".join(name for name, _ in scope["headers"])
        answer = b"%b %b [%b] %b;" % (scope["method"].encode(), scope["path"].encode(), body, names)
        length = (b"content-length", b"%d" % len(answer))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": answer})

    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", http=Bounded)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: Bounded(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    yield server.sockets[0].getsockname()[1]
    server.close()
    for each in list(state.connections):
        each.transport.abort()


async def in_segments(port: int, *parts: bytes) -> bytes:
    """As `exchange`, every part in a segment of its own: the next one leaves once the loop has read the one before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            for _ in range(20):
                await asyncio.sleep(0)
        async with asyncio.timeout(20):
            return await reader.read(-1)
    finally:
        writer.close()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("method", [b"POST", b"GET"])
async def test_an_offer_of_another_protocol_changes_nothing(echo: int, method: bytes, offer: str, shape: str) -> None:
    framing, rest = SHAPES[shape]
    head = method + b" /p?q=1 HTTP/1.1\r\nHost: a\r\n" + OFFERS[offer] + framing
    again = b"GET /again HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    answer = await in_segments(echo, head + rest[0], *rest[1:], again)
    body = b"" if shape in ("empty", "none") else b"hello, world"
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b"HTTP/1.1 100") == (shape == "expect")
    assert method + b" /p [" + body + b"]" in answer
    assert b"GET /again []" in answer
    first = answer[answer.index(b"[" + body + b"]") : answer.index(b";")]
    assert b"upgrade" not in first
    assert b"http2-settings" not in first


async def test_offers_in_a_row_in_one_segment_are_each_answered(echo: int) -> None:
    one = b"POST /%d HTTP/1.1\r\nHost: a\r\n" + OFFERS["h2c"] + b"Content-Length: 2\r\n\r\nab"
    last = b"GET /last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    answer = await exchange(echo, b"".join(one % number for number in range(5)) + last)
    assert [b"POST /%d [ab]" % number in answer for number in range(5)] == [True] * 5
    assert b"GET /last []" in answer


async def test_what_an_offer_is_wrapped_around_is_still_refused(echo: int) -> None:
    both = b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    for request in (
        b"POST / HTTP/1.1\r\nHost: a\r\n" + OFFERS["h2c"] + both,
        b"POST / HTTP/1.1\r\n" + OFFERS["h2c"] + b"Content-Length: 0\r\n\r\n",
        b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n" + OFFERS["h2c"] + b"\r\n",
    ):
        answer = await exchange(echo, request)
        assert answer.startswith(b"HTTP/1.1 400"), request
        assert code_of(answer) == "InvalidParameter"


async def test_header_fields_are_counted(port: int) -> None:
    ends = b"connection: close\r\ncontent-length: 0\r\n\r\n"
    answer = await exchange(port, b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x:\r\n" * 253 + ends)
    assert answer.startswith(b"HTTP/1.1 200")
    answer = await exchange(port, b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x:\r\n" * 254 + ends)
    assert code_of(answer) == "PayloadTooLarge"


async def test_a_body_that_does_not_come_after_its_answer_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"no"})

    monkeypatch.setattr(connection, "REST_WITHIN_S", 0.1)
    config = uvicorn.Config(hasty, log_config=None, lifespan="off", ws="none", http=Bounded, timeout_keep_alive=3600)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: Bounded(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    answer = await exchange(port, b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nab")
    assert answer.startswith(b"HTTP/1.1 401")
    assert not state.connections
    # One whose body comes is kept.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nab")
    await reader.readuntil(b"\r\n\r\nno")
    writer.write(b"cde")
    await asyncio.sleep(0.3)
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert (await reader.read(-1)).startswith(b"HTTP/1.1 401")
    writer.close()
    server.close()


async def test_an_offer_may_come_in_any_two_segments(echo: int) -> None:
    whole = (
        b"POST /p HTTP/1.1\r\nHost: a\r\n"
        + OFFERS["h2c"]
        + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        + b"GET /again HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    )
    for at in range(1, len(whole), 3):
        answer = await in_segments(echo, whole[:at], whole[at:])
        assert b"POST /p [hello]" in answer, at
        assert b"GET /again []" in answer, at
