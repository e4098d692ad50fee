"""The WebSocket side of a scripted node: the same blocks, behaviours and counts, over one connection that many calls share.

    async with ScriptedNode.of_corpus(...) as node, ScriptedWebSocket(node) as side:
        side.announce(height)
        await side.drop()

A behaviour that resets or closes ends the whole connection, as it would.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from http import HTTPStatus
from typing import Any, cast

from websockets.asyncio.server import Request, Response, Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.scripted_behaviours import failing, succeeding
from tests.scripted_node import Connection, ScriptedNode

Json = Any


class ScriptedWebSocket:
    """Attributes may be changed at any time."""

    def __init__(self, node: ScriptedNode, *, key: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.node = node
        self.key = key
        self._tls = tls
        self.subscribes = True
        """False: `eth_subscribe` is answered with -32601."""
        self.confirms = True
        """False: `eth_subscribe` is never answered."""
        self.refusal: tuple[int, dict[str, str]] | None = None
        """The status and headers that handshakes are refused with."""
        self.handshakes = 0
        self.headers: list[dict[str, str]] = []
        self.subscriptions: dict[str, ServerConnection] = {}
        self.connections: set[ServerConnection] = set()
        self.port = 0
        self._server: Server | None = None
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        return f"{'wss' if self._tls else 'ws'}://127.0.0.1:{self.port}/{self.key}"

    async def __aenter__(self) -> ScriptedWebSocket:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens; on the port it had before, when it was stopped in between."""
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self.port,
            ssl=self._tls,
            process_request=self._admit,
            ping_interval=None,
            compression=None,
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        """Refuses connections from now on and drops those it has."""
        if self._server is not None:
            await self.drop()
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def drop(self) -> None:
        """Every connection breaks off."""
        for connection in list(self.connections):
            connection.transport.abort()
        while self.connections:
            await self._changed.wait()

    async def hang_up(self, code: int = 1001) -> None:
        """Every connection is closed as is proper."""
        for connection in list(self.connections):
            await connection.close(code)
        while self.connections:
            await self._changed.wait()

    async def until_subscribed(self, count: int = 1) -> None:
        """Waits until there are so many subscriptions."""
        while len(self.subscriptions) < count:
            await self._changed.wait()

    async def until_unsubscribed(self) -> None:
        """Waits until there is no subscription."""
        while self.subscriptions:
            await self._changed.wait()

    async def until_gone(self) -> None:
        """Waits until nobody is connected."""
        while self.connections:
            await self._changed.wait()

    async def announce(self, height: int, block_hash: str | None = None) -> None:
        """The block at this height to every subscription."""
        found = block_hash or self.node.canonical[height]
        for name in list(self.subscriptions):
            await self.tell(event(name, hex(height), found))

    async def tell(self, message: Json) -> None:
        """Anything, to every connection."""
        text = message if isinstance(message, str) else json.dumps(message)
        for connection in list(self.connections):
            await connection.send(text)

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        self.handshakes += 1
        self.headers.append({name.lower(): value for name, value in request.headers.raw_items()})
        if self.refusal is not None:
            status, headers = self.refusal
            response = connection.respond(HTTPStatus(status), f"refused under {request.path}\n")
            for name, value in headers.items():
                response.headers[name] = value
            return response
        if request.path != f"/{self.key}":
            return connection.respond(HTTPStatus.NOT_FOUND, f"no such path as {request.path}\n")
        return None

    def _tell_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _serve(self, connection: ServerConnection) -> None:
        self.connections.add(connection)
        self._tell_waiting()
        try:
            async with asyncio.TaskGroup() as group:
                async for message in connection:
                    group.create_task(self._take(connection, json.loads(message)))
        except* ConnectionClosed:
            pass
        finally:
            self.connections.discard(connection)
            for name in [name for name, owner in self.subscriptions.items() if owner is connection]:
                del self.subscriptions[name]
            self._tell_waiting()

    async def _take(self, connection: ServerConnection, call: Json) -> None:
        side = _Side(connection)
        if isinstance(call, dict) and call["method"] in ("eth_subscribe", "eth_unsubscribe"):
            self.node._count(call)
            answer = self._subscribe(connection, call)
            if answer is not None:
                await side.respond_json(answer)
            return
        await self.node.handle(cast("Connection", side), call)

    def _subscribe(self, connection: ServerConnection, call: Json) -> Json | None:
        if not self.subscribes:
            return failing(call, -32601, "the method eth_subscribe does not exist/is not available")
        if not self.confirms:
            return None
        if call["method"] == "eth_unsubscribe":
            gone = self.subscriptions.pop(call["params"][0], None)
            asyncio.get_running_loop().call_soon(self._tell_waiting)
            return succeeding(call, gone is not None)
        assert call["params"] == ["newHeads"]
        name = hex(0xABC0 + self.node.hits["eth_subscribe"])
        self.subscriptions[name] = connection
        asyncio.get_running_loop().call_soon(self._tell_waiting)
        return succeeding(call, name)


class _Side:
    """What behaviours need of a `Connection`, over a message."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._parts: list[bytes] = []

    async def respond_json(self, body: Json) -> None:
        await self._connection.send(json.dumps(body))

    async def respond(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        await self._connection.send(body.decode("latin-1"))

    async def head(self, status: int, headers: dict[str, str]) -> None:
        return

    async def send(self, data: bytes) -> None:
        return

    async def until_gone(self) -> None:
        await self._connection.wait_closed()

    def close(self) -> None:
        self._connection.transport.close()

    def reset(self) -> None:
        self._connection.transport.abort()


def event(subscription: str, number: str, block_hash: str) -> Json:
    """A `newHeads` event."""
    head = {"number": number, "hash": block_hash, "parentHash": "0x" + "00" * 32, "logsBloom": "0x" + "00" * 256}
    params = {"subscription": subscription, "result": head}
    return {"jsonrpc": "2.0", "method": "eth_subscription", "params": params}
