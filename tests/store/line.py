"""A line to a database that can be cut, or freeze, while somebody uses it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self


class Line:
    """Forwards connections of a port to a socket. Owned by the test that opens it."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._server: asyncio.Server | None = None
        self._pieces: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self.port = 0
        self.connections = 0
        self.slow_by_s = 0.0
        """How long every piece is held, in either direction."""

    async def __aenter__(self) -> Self:
        await self.restore()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut()

    async def restore(self) -> None:
        """It can be connected to, at the same port as before."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Every connection ends, and no new one is accepted."""
        self.thaw()
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()
        for piece in self._pieces:
            piece.cancel()
        await asyncio.gather(*self._pieces, return_exceptions=True)

    def freeze(self) -> None:
        """Connections are accepted and stand; nothing comes through any more."""
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_unix_connection(self._socket_path)
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            self._writers.add(sink)
            piece = asyncio.create_task(self._forward(source, sink))
            self._pieces.add(piece)
            piece.add_done_callback(self._pieces.discard)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await source.read(65536):
                await self._thawed.wait()
                if self.slow_by_s:
                    await asyncio.sleep(self.slow_by_s)
                sink.write(piece)
                await sink.drain()
        self._writers.discard(sink)
        sink.close()
