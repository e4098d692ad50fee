"""Answers in gzip: for whom, which ones, and under which tag."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api import conditional
from app.api.compression import ASIDE_BYTES, Compression
from app.api.conditional import MIN_BYTES
from tests.api.exchanges import Exchange

NATIVE = "/api/v1/proofs/modern/blocks/19426587/receipts/3"
USC = "/api/v1/proof/2/1000004/0"
GZIP = {"Accept-Encoding": "gzip"}
JSON = (b"content-type", b"application/json")


@pytest.mark.parametrize(
    ("lines", "taken"),
    [
        ([], False),
        ([""], False),
        (["gzip"], True),
        (["GZIP"], True),
        (["x-gzip"], True),
        (["gzip, deflate, br, zstd"], True),
        (["br;q=1.0, gzip;q=0.8, *;q=0.1"], True),
        (["br", "gzip"], True),
        (["*"], True),
        (["gzip;q=0"], False),
        (["gzip; q=0.000"], False),
        (["gzip;q=0, *"], False),
        (["*;q=0"], False),
        (["identity"], False),
        (["identity;q=0.5, gzip;q=0.4"], False),
        (["gzip;q=0.001"], True),
        (["br"], False),
        (["gzipped"], False),
        (["gzip;q=2"], False),
        (["gzip;level=1"], False),
    ],
)
def test_who_takes_gzip(lines: list[str], taken: bool) -> None:
    assert conditional.takes_gzip(lines) is taken


@given(st.lists(st.text(max_size=40), max_size=3))
def test_any_header_is_read(lines: list[str]) -> None:
    assert conditional.takes_gzip(lines) in (True, False)


@pytest.mark.parametrize("path", [NATIVE, USC, "/metrics", "/openapi.json"])
async def test_the_same_answer_smaller(client: httpx2.AsyncClient, path: str) -> None:
    async with client.stream("GET", path, headers=GZIP) as packed:
        raw = b"".join([piece async for piece in packed.aiter_raw()])
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) == len(raw)
    assert packed.headers["vary"].lower().count("accept-encoding") == 1
    plain = await client.get(path)
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == packed.headers["vary"]
    assert len(raw) < len(plain.content) * 0.7
    if path in (NATIVE, "/openapi.json"):
        assert gzip.decompress(raw) == plain.content
        async with client.stream("GET", path, headers=GZIP) as again:
            assert b"".join([piece async for piece in again.aiter_raw()]) == raw


async def test_B65_head_tells_what_get_would_send(client: httpx2.AsyncClient) -> None:
    got, headed = [await client.request(method, NATIVE, headers=GZIP) for method in ("GET", "HEAD")]
    assert headed.headers["content-encoding"] == "gzip"
    assert {**headed.headers, "x-request-id": ""} == {**got.headers, "x-request-id": ""}


async def test_B70_each_encoding_has_its_own_strong_tag(client: httpx2.AsyncClient) -> None:
    plain, packed = await client.get(NATIVE), await client.get(NATIVE, headers=GZIP)
    tags = plain.headers["etag"], packed.headers["etag"]
    assert tags[1] == f'{tags[0][:-1]}-gzip"'
    for accepted, tag, other in (("identity", *tags), ("gzip", *tags[::-1])):
        for method in ("GET", "HEAD"):
            headers = {"Accept-Encoding": accepted, "If-None-Match": tag}
            same = await client.request(method, NATIVE, headers=headers)
            assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
            assert "content-encoding" not in same.headers
            assert same.headers["vary"] == plain.headers["vary"]
        changed = await client.get(NATIVE, headers={"Accept-Encoding": accepted, "If-None-Match": other})
        assert (changed.status_code, changed.headers["etag"]) == (200, tag)


async def test_B70_a_weak_tag_is_of_all_encodings(client: httpx2.AsyncClient) -> None:
    plain, packed = await client.get(USC), await client.get(USC, headers=GZIP)
    assert packed.headers["content-encoding"] == "gzip"
    assert plain.headers["etag"] == packed.headers["etag"]
    same = await client.get(USC, headers={**GZIP, "If-None-Match": plain.headers["etag"]})
    assert same.status_code == 304


@pytest.mark.parametrize("path", ["/livez", "/nothing", "/docs/favicon.png", "/docs/swagger-ui-bundle.js"])
async def test_what_is_short_packed_or_an_error_leaves_as_it_is(client: httpx2.AsyncClient, path: str) -> None:
    packed, plain = await client.get(path, headers=GZIP), await client.get(path)
    assert "content-encoding" not in packed.headers
    assert packed.headers.get("etag") == plain.headers.get("etag")
    assert packed.headers["content-length"] == plain.headers["content-length"]


# --- the layer by itself ------------------------------------------------------------------------------------------------


def answering(pieces: Sequence[bytes], *headers: tuple[bytes, bytes], status: int = 200, length: bool = True) -> Any:
    size = [(b"content-length", str(sum(map(len, pieces))).encode())] if length else []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [JSON, *size, *headers]})
        for place, piece in enumerate(pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": place + 1 < len(pieces)})

    return app


async def sent(app: Any, accepted: str = "gzip") -> Exchange:
    exchange = Exchange(Compression(app), {}, "/", headers=[(b"accept-encoding", accepted.encode())])
    await exchange
    return exchange


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=5), st.booleans())
async def test_however_it_is_cut_it_is_the_same_body(sizes: list[int], length: bool) -> None:
    pieces = [random.Random(size).randbytes(size) for size in sizes]
    exchange = await sent(answering(pieces, length=length))
    whole = b"".join(pieces)
    if "content-encoding" in exchange.headers:
        assert gzip.decompress(exchange.body) == whole
        assert exchange.headers.get("content-length") in ((str(len(exchange.body)),) if len(pieces) == 1 else (None,))
    else:
        assert exchange.body == whole
        assert len(whole) < MIN_BYTES


async def test_pieces_are_not_gathered() -> None:
    """What was sent is out before the next piece is asked for: no more than a piece is held."""
    sizes: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [JSON]})
        for place in range(20):
            await send(
                {"type": "http.response.body", "body": random.Random(place).randbytes(50_000), "more_body": place < 19}
            )
            sizes.append(len(exchange.body))

    exchange = Exchange(Compression(app), {}, "/", headers=[(b"accept-encoding", b"gzip")])
    await exchange
    assert sizes[5] < sizes[-2] < sizes[-1]


@pytest.mark.parametrize(
    ("headers", "status"),
    [([(b"content-encoding", b"br")], 200), ([], 206), ([], 404), ([], 304), ([(b"content-type", b"image/png")], 200)],
)
async def test_what_is_encoded_or_partial_is_let_through(headers: list[tuple[bytes, bytes]], status: int) -> None:
    exchange = await sent(answering([b"a" * 5000], *headers, status=status))
    assert exchange.body == b"a" * 5000
    assert exchange.headers.get("content-encoding") != "gzip"
    assert exchange.headers["content-length"] == "5000"


async def test_large_bodies_are_packed_beside_the_loop() -> None:
    body = bytes(range(256)) * (40 * ASIDE_BYTES // 256)
    task = asyncio.ensure_future(sent(answering([body])))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 20
    assert gzip.decompress((await task).body) == body


async def test_an_answer_that_never_begins_raises_what_it_raised() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [JSON]})
        raise RuntimeError("half way")

    exchange = Exchange(Compression(app), {}, "/", headers=[(b"accept-encoding", b"gzip")])
    with pytest.raises(RuntimeError, match="half way"):
        await exchange
    assert exchange.status is None  # so that whoever catches it can still answer
