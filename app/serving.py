"""Running the application: behind a socket until a signal comes, or for one request without any socket."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Sequence
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from app.asgi import create_app
from app.house import House, demo_examples, open_house, watch_loop
from app.settings import Settings

log = logging.getLogger(__name__)

_READY_WAIT_S = 30.0


class Server(uvicorn.Server):
    """uvicorn, which says where it listens once it really does, and what the demo has to show."""

    def __init__(self, settings: Settings, *, is_demo: bool) -> None:
        certificate, key = settings.tls.certificate, settings.tls.private_key
        super().__init__(
            uvicorn.Config(
                create_app(settings, open_house),
                host=settings.bind_host,
                port=settings.bind_port,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
                ws="none",
                ssl_certfile=None if certificate is None else str(certificate),
                ssl_keyfile=None if key is None else str(key),
                timeout_graceful_shutdown=int(settings.drain_secs),
            )
        )
        self._is_demo = is_demo

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's; then the lines for whoever reads the terminal."""
        await super().startup(sockets)
        if not self.started:
            return
        house: House = self.lifespan.state["house"]
        watch_loop(house)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        scheme = "http" if self.config.ssl_certfile is None else "https"
        base = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        log.info("listening", extra={"host": host, "port": port})
        if self._is_demo:
            await _until_anchored(house)
            sys.stdout.write(_invitation(base))
            sys.stdout.flush()


def serve(settings: Settings, *, is_demo: bool) -> int:
    """Serves until a signal ends it; the exit code of the process."""
    server = Server(settings, is_demo=is_demo)
    server.run()
    return 0 if server.started else 1


async def _until_anchored(house: House) -> None:
    """The demo's anchors take a moment: its examples should work when they are shown."""
    try:
        async with asyncio.timeout(_READY_WAIT_S):
            for chain in house.chains.values():
                await chain.anchored.wait()
    except TimeoutError:
        log.warning("anchors are still being made")


def _invitation(base: str) -> str:
    lines = [f"Copath serves its demo on {base} (documentation: {base}/docs). Try:", ""]
    for shows, path in demo_examples():
        lines += [f"  # {shows}", f"  curl -s '{base}{path}'", ""]
    return "\n".join(lines) + "\n"


async def ask_once(settings: Settings, path: str, *, anchored: bool = False) -> tuple[int, bytes]:
    """Status and body of one GET, answered by the whole application without a socket; `anchored` waits for anchors first."""
    app = create_app(settings, open_house)
    state: dict[str, Any] = {}
    events: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def tell(message: Any) -> None:
        if not started.done():
            started.set_result(message["type"])

    async with asyncio.TaskGroup() as group:
        group.create_task(_lifespan(app, state, events, tell))
        await events.put({"type": "lifespan.startup"})
        try:
            if await started != "lifespan.startup.complete":
                raise RuntimeError("the application did not start")
            if anchored:
                await _until_anchored(state["house"])
            return await _get(app, path, state)
        finally:
            await events.put({"type": "lifespan.shutdown"})


async def _lifespan(app: ASGIApp, state: dict[str, Any], events: asyncio.Queue[dict[str, str]], tell: Any) -> None:
    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}, events.get, tell)


async def _get(app: ASGIApp, path: str, state: dict[str, Any]) -> tuple[int, bytes]:
    route, _, query = path.partition("?")
    messages: Sequence[dict[str, Any]] = [{"type": "http.request", "body": b"", "more_body": False}]
    incoming = iter(messages)
    status, body = 0, b""

    async def receive() -> Any:
        message = next(incoming, None)
        if message is None:
            await asyncio.Event().wait()
        return message

    async def send(message: Any) -> None:
        nonlocal status, body
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            body += message.get("body", b"")

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": route,
        "raw_path": route.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": None,
        "server": ("localhost", 80),
        "state": dict(state),
    }
    await app(scope, receive, send)
    return status, body
