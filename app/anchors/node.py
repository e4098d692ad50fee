"""Creditcoin nodes, asked by JSON-RPC over HTTP: few calls, small answers, each within a time.

Chains that name the same node share it, and one look at its head serves all that look at about the same time. Nothing that is
raised here carries the URL, or anything that the node said: both may hold secrets.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Callable
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2

from app.core.deadlines import capped_s
from app.core.hexadecimal import from_hex, parse_quantity, to_hex

MIN_USEFUL_S = 0.05
"""With less than this left of a request's deadline nothing is asked: the answer could not be used."""

MAX_ANSWER_BYTES = 1 << 20

AS_ONE_S = 1.0
"""For so long what the node said of its head, or that it said nothing, is told to whoever asks next."""

_HTTP_OF = {"ws": "http", "wss": "https"}


class NodeFailed(Exception):
    """The node gave no answer that can be used. `reason` is in our own words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _ConnectionLost(NodeFailed):
    """The connection broke off before an answer: it may have been an old one, which the node had closed already."""


class CreditcoinNode:
    """`aclose` it. Safe to be asked by many tasks at once."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 5.0,
        max_connections: int = 8,
        as_one_s: float = 0.0,
        transport: httpx2.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`url` is http(s)://, or the ws(s):// of a node that answers HTTP at the same place, as Creditcoin's do. `timeout_s` is
        for one call, from its start to the last byte of its answer; what is said about the head serves for `as_one_s`. Raises
        ValueError for anything else."""
        try:
            target = httpx2.URL(url)
        except (httpx2.InvalidURL, ValueError):
            raise ValueError("the URL of a Creditcoin node is not a URL") from None
        target = target.copy_with(scheme=_HTTP_OF.get(target.scheme, target.scheme))
        if target.scheme not in ("http", "https") or not target.host:
            raise ValueError("the URL of a Creditcoin node must be http(s):// or ws(s):// with a host")
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it tells every URL at INFO
        self._target = target
        self._timeout_s = timeout_s
        self._clock = clock
        self._ids = itertools.count(1)
        self._as_one_s = as_one_s
        self._looking = asyncio.Lock()
        self._seen: tuple[int | NodeFailed, float] | None = None  # the head, and when it was asked for
        self._client = httpx2.AsyncClient(
            transport=transport,
            limits=httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_connections),
            timeout=httpx2.Timeout(None, connect=timeout_s),
            headers={"content-type": "application/json", "accept": "application/json", "accept-encoding": "identity"},
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # none are kept
        )

    def __repr__(self) -> str:
        return f"<CreditcoinNode {self._target.scheme}://{self._target.host}>"

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._client.aclose()

    async def finalized_height(self) -> int:
        """The height of the newest block that Creditcoin finalized, for all who ask at the same time. Raises `NodeFailed`."""
        async with self._looking:
            if self._seen is None or self._clock() - self._seen[1] >= self._as_one_s:
                self._seen = await self._look(), self._clock()
            seen, _ = self._seen
        if isinstance(seen, NodeFailed):
            raise NodeFailed(seen.reason)
        return seen

    async def _look(self) -> int | NodeFailed:
        try:
            block = await self._ask("eth_getBlockByNumber", ["finalized", False])
            height = parse_quantity(block.get("number") if isinstance(block, dict) else None)
            return height if height >> 63 == 0 else NodeFailed("the node names a block that no chain comes to")
        except NodeFailed as failed:
            return failed
        except ValueError:
            return NodeFailed("the node does not say which block is finalized")

    async def call(self, address: str, data: bytes, height: int) -> bytes:
        """What the contract answers in the state after the block at `height`. Raises `NodeFailed`."""
        answer = await self._ask("eth_call", [{"to": address, "data": to_hex(data)}, hex(height)])
        try:
            return from_hex(answer if isinstance(answer, str) else "-")
        except ValueError:
            raise NodeFailed("the node answered a call with something else than bytes") from None

    async def _ask(self, method: str, params: list[object]) -> object:
        call_id = next(self._ids)
        body = json.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": params}).encode()
        limit_s = capped_s(self._timeout_s, self._clock())
        if limit_s < MIN_USEFUL_S:
            raise NodeFailed("the deadline left no time to ask the node")
        try:
            async with asyncio.timeout(limit_s):
                try:
                    answer = await self._post(body)
                except _ConnectionLost:
                    answer = await self._post(body)  # every call is a read
        except TimeoutError:
            raise NodeFailed(f"no answer within {limit_s:.3g} s") from None
        return _result(answer, call_id)

    async def _post(self, body: bytes) -> bytes:
        try:
            async with self._client.stream("POST", self._target, content=body) as response:
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise NodeFailed("the node sent a content coding that was not asked for")
                content = bytearray()
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > MAX_ANSWER_BYTES:
                        raise NodeFailed(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
                if response.status_code != 200:
                    raise NodeFailed(f"the node answered HTTP {response.status_code}")
                return bytes(content)
        except httpx2.ConnectError:
            raise NodeFailed("the node cannot be reached") from None
        except httpx2.TimeoutException:
            raise NodeFailed("no connection in time") from None
        except (httpx2.NetworkError, httpx2.RemoteProtocolError):
            raise _ConnectionLost("the connection broke off") from None
        except httpx2.HTTPError:
            raise NodeFailed("the request could not be sent") from None


class CreditcoinNodes:
    """Those of one process, by their URLs. Whoever makes it closes it."""

    def __init__(self) -> None:
        self._nodes: dict[str, CreditcoinNode] = {}

    def __repr__(self) -> str:
        return f"<CreditcoinNodes {len(self._nodes)}>"

    def of(self, url: str) -> CreditcoinNode:
        """The node there. Raises ValueError as `CreditcoinNode` does."""
        if url not in self._nodes:
            self._nodes[url] = CreditcoinNode(url, max_connections=16, as_one_s=AS_ONE_S)
        return self._nodes[url]

    async def aclose(self) -> None:
        """Closes every connection."""
        for node in self._nodes.values():
            await node.aclose()


def _result(body: bytes, call_id: int) -> object:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise NodeFailed("the node sent a body that is not JSON") from None
    if not isinstance(answer, dict):
        raise NodeFailed("the node sent JSON that is no JSON-RPC response")
    error = answer.get("error")
    if error is not None:
        code = error.get("code") if isinstance(error, dict) else None
        number = f" {code}" if type(code) is int else ""
        raise NodeFailed(f"the node answered with error{number}")
    if answer.get("id") != call_id or "result" not in answer:
        raise NodeFailed("the node sent JSON that is no response to the call")
    result: object = answer["result"]
    return result
