"""What a scripted node can be told to do with a call."""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.scripted_node import Connection, ScriptedNode

Json = Any


@dataclass(frozen=True)
class Behaviour:
    """What the node does with one call. `reply` works inside a batch too; `act` needs the connection for itself."""

    name: str
    reply: Callable[[ScriptedNode, Json], Json] | None = None
    act: Callable[[ScriptedNode, Connection, Json], Awaitable[None]] | None = None


def answer(result: Json) -> Behaviour:
    """This result."""
    return Behaviour("answer", reply=lambda node, call: succeeding(call, result))


def changed(change: Callable[[Json], Json | None]) -> Behaviour:
    """The honest result after `change`, which may edit it in place or return another."""

    def reply(node: ScriptedNode, call: Json) -> Json:
        honest = node.honest(call)
        if "result" in honest:
            honest = copy.deepcopy(honest)
            replaced = change(honest["result"])
            if replaced is not None:
                honest["result"] = replaced
        return honest

    return Behaviour("changed", reply=reply)


def honest() -> Behaviour:
    """The honest answer, where the queue goes on afterwards."""
    return Behaviour("honest", reply=lambda node, call: node.honest(call))


def null() -> Behaviour:
    """`null`."""
    return answer(None)


def error(code: int | str | None, message: str, **more: Json) -> Behaviour:
    """A JSON-RPC error in a 200."""
    return Behaviour("error", reply=lambda node, call: failing(call, code, message, **more))


def without_id() -> Behaviour:
    """The honest answer, its id left out."""
    return Behaviour("without_id", reply=lambda node, call: {k: v for k, v in node.honest(call).items() if k != "id"})


def wrong_id() -> Behaviour:
    """The honest answer under another id."""
    return Behaviour("wrong_id", reply=lambda node, call: {**node.honest(call), "id": 10**9})


def dropped() -> Behaviour:
    """In a batch: no answer to this call. Alone: an empty body."""
    return Behaviour("dropped", reply=lambda node, call: None)


def raw(body: bytes | str, *, status: int = 200, content_type: str = "application/json", **headers: str) -> Behaviour:
    """These bytes. Header names take `_` for `-`."""
    sent = body.encode() if isinstance(body, str) else body
    fields = {"content-type": content_type, **{name.replace("_", "-"): value for name, value in headers.items()}}

    async def act(node: ScriptedNode, connection: Connection, call: Json) -> None:
        await connection.respond(status, sent, fields)

    return Behaviour("raw", act=act)


def http(status: int, body: bytes | str = b"", **headers: str) -> Behaviour:
    """An HTTP error."""
    return raw(body, status=status, content_type="text/plain", **headers)


def html(status: int = 200, text: str = "<html><body>502 Bad Gateway</body></html>") -> Behaviour:
    """A page made for people."""
    return raw(text, status=status, content_type="text/html")


def hang() -> Behaviour:
    """Nothing at all, until the caller or the node goes away."""

    async def act(node: ScriptedNode, connection: Connection, call: Json) -> None:
        await connection.until_gone()

    return Behaviour("hang", act=act)


def held(gate: asyncio.Event) -> Behaviour:
    """The honest answer once `gate` is set."""

    async def act(node: ScriptedNode, connection: Connection, call: Json) -> None:
        await gate.wait()
        await connection.respond_json(node.honest(call))

    return Behaviour("held", act=act)


def late(delay_s: float) -> Behaviour:
    """The honest answer after a while, for the tests that are about time."""

    async def act(node: ScriptedNode, connection: Connection, call: Json) -> None:
        await asyncio.sleep(delay_s)
        await connection.respond_json(node.honest(call))

    return Behaviour("late", act=act)


def drip(every_s: float = 0.01) -> Behaviour:
    """The honest answer, one byte at a time: no single read is ever slow."""

    async def act(node: ScriptedNode, connection: Connection, call: Json) -> None:
        body = json.dumps(node.honest(call)).encode()
        await connection.head(200, {"content-length": str(len(body)), "content-type": "application/json"})
        for at in range(len(body)):
            await connection.send(body[at : at + 1])
            await asyncio.sleep(every_s)

    return Behaviour("drip", act=act)


def reset(after_bytes: int = 0) -> Behaviour:
    """A TCP reset, after so many bytes of the honest answer."""

    async def act(node: ScriptedNode, connection: Connection, call: Json) -> None:
        if after_bytes:
            body = json.dumps(node.honest(call)).encode()
            await connection.head(200, {"content-length": str(len(body)), "content-type": "application/json"})
            await connection.send(body[:after_bytes])
        connection.reset()

    return Behaviour("reset", act=act)


def hang_up() -> Behaviour:
    """The connection is closed without a byte, as a server does with an idle one it is tired of."""

    async def act(node: ScriptedNode, connection: Connection, call: Json) -> None:
        connection.close()

    return Behaviour("hang_up", act=act)


def truncated() -> Behaviour:
    """Half of the honest answer under the full Content-Length, then the end."""

    async def act(node: ScriptedNode, connection: Connection, call: Json) -> None:
        body = json.dumps(node.honest(call)).encode()
        await connection.head(200, {"content-length": str(len(body)), "content-type": "application/json"})
        await connection.send(body[: len(body) // 2])
        connection.close()

    return Behaviour("truncated", act=act)


def huge(declared_bytes: int = 1 << 30, *, chunked: bool = False, piece_bytes: int = 64 * 1024) -> Behaviour:
    """A body without end: declared in full, or in chunks without length. `node.sent_bytes` tells how much went out."""

    async def act(node: ScriptedNode, connection: Connection, call: Json) -> None:
        length = {"transfer-encoding": "chunked"} if chunked else {"content-length": str(declared_bytes)}
        await connection.head(200, {**length, "content-type": "application/json"})
        piece = b"[" * piece_bytes
        framed = f"{len(piece):x}\r\n".encode() + piece + b"\r\n" if chunked else piece
        sent = 0
        while sent < declared_bytes:
            await connection.send(framed)
            sent += piece_bytes

    return Behaviour("huge", act=act)


def gzip_bomb(inflated_bytes: int = 1 << 30) -> Behaviour:
    """A small body that inflates to a large one."""

    async def act(node: ScriptedNode, connection: Connection, call: Json) -> None:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        piece = b" " * (1 << 20)
        body = b"".join(packer.compress(piece) for _ in range(inflated_bytes >> 20)) + packer.flush()
        await connection.respond(200, body, {"content-encoding": "gzip", "content-type": "application/json"})

    return Behaviour("gzip_bomb", act=act)


def gzipped() -> Behaviour:
    """The honest answer, compressed."""

    async def act(node: ScriptedNode, connection: Connection, call: Json) -> None:
        body = gzip.compress(json.dumps(node.honest(call)).encode())
        await connection.respond(200, body, {"content-encoding": "gzip", "content-type": "application/json"})

    return Behaviour("gzipped", act=act)


def succeeding(call: Json, result: Json) -> Json:
    """The response object of a result."""
    return {"jsonrpc": "2.0", "id": call.get("id"), "result": result}


def failing(call: Json, code: int | str | None, message: str, **more: Json) -> Json:
    """The response object of an error."""
    return {"jsonrpc": "2.0", "id": call.get("id"), "error": {"code": code, "message": message, **more}}
