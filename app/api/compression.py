"""Answers in gzip, for whoever takes it: proofs are hex, which is half as long at once, and shorter where nodes repeat.

One function decides, from the request, the media type and the length alone, so that whoever names an answer by an ETag knows how
it will leave: the same bytes in two encodings are two representations, with two strong tags (RFC 9110, 8.8.3.3).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.conditional import takes_gzip, varies

ASIDE_BYTES = 64 * 1024
"""Up to this size a piece is compressed on the event loop, in a millisecond or less; zlib lets others run meanwhile."""

_LEVEL = 6
_GZIP_WINDOW = (
    31  # zlib's name for a gzip frame around its largest window; the frame tells no time, so equal in gives equal out
)


class Compression:
    """ASGI layer around the routes: what they answer in plain leaves in gzip where the client takes it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            accepted = [value.decode("latin-1") for name, value in scope["headers"] if name == b"accept-encoding"]
            send = _Outgoing(send, gzip=bool(accepted) and takes_gzip(accepted)).send
        await self.app(scope, receive, send)


class _Outgoing:
    """One answer. Its head waits for the first piece of the body, for the length that the answer will have."""

    def __init__(self, send: Send, *, gzip: bool) -> None:
        self._send = send
        self._gzip = gzip
        self._head: Message | None = None
        self._packer: zlib._Compress | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if not _is_open_to_coding(message):
                await self._send(message)
            else:
                message = {**message, "headers": _with_vary(message["headers"])}
                if self._gzip:
                    self._head = message
                else:
                    await self._send(message)
        elif message["type"] == "http.response.body" and self._head is not None:
            await self._begin(self._head, message)
        elif message["type"] == "http.response.body" and self._packer is not None:
            await self._send({**message, "body": await self._packed(message)})
        else:
            await self._send(message)

    async def _begin(self, head: Message, message: Message) -> None:
        self._head = None
        self._packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        body = await self._packed(message)
        headers = MutableHeaders(raw=head["headers"])
        headers["Content-Encoding"] = "gzip"
        if message.get("more_body", False):
            del headers["Content-Length"]
        else:
            headers["Content-Length"] = str(len(body))
        await self._send(head)
        await self._send({**message, "body": body})

    async def _packed(self, message: Message) -> bytes:
        packer, plain, last = self._packer, message.get("body", b""), not message.get("more_body", False)
        assert packer is not None, "nothing is packed before the head"

        def pack() -> bytes:
            packed = packer.compress(plain)
            return packed + packer.flush() if last else packed

        return pack() if len(plain) <= ASIDE_BYTES else await asyncio.to_thread(pack)


def _is_open_to_coding(head: Message) -> bool:
    """Whether this is a whole answer with a body, not encoded yet, of a kind and length that is worth it."""
    if head["status"] != 200:
        return False
    media_type, size = "", None
    for name, value in head.get("headers", ()):
        if name == b"content-type":
            media_type = value.decode("latin-1")
        elif name == b"content-length":
            size = int(value)
        elif name == b"content-encoding":
            return False
    return varies(media_type, size)


def _with_vary(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    listed = list(headers)
    if not any(name == b"vary" and b"accept-encoding" in value.lower() for name, value in listed):
        MutableHeaders(raw=listed).add_vary_header("Accept-Encoding")
    return listed
