"""The socket and what came through it: uvicorn's HTTP protocol without its server, which would own the signals and close the
socket before anybody was told."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import ssl
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from app.house import CannotStart
from app.serving.connection import Connection
from app.settings import Settings
from app.settings.models import TlsSettings

log = logging.getLogger(__name__)

_HANDSHAKE_S = 10.0
_TLS_GOODBYE_S = 2.0  # how long a connection that we close may take to say goodbye
_ACCEPT_BACKLOG = 2048
_CUT_S = 1.0
KEEP_ALIVE_S = 75

TURN_S = 0.02


def tls_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """None where TLS ends in front of this server. Raises `CannotStart`, without the places of the files."""
    if tls.certificate is None or tls.private_key is None:
        return None
    for name, path in (("tls.certificate", tls.certificate), ("tls.private_key", tls.private_key)):
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            raise CannotStart(f"{name} cannot be read: {error.strerror}", misconfigured=True) from None

    def no_passphrase() -> str:  # without it OpenSSL would ask the terminal
        raise CannotStart("tls.private_key is encrypted; it must not be", misconfigured=True)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.certificate, tls.private_key, no_passphrase)
    except ssl.SSLError as error:
        reason = (error.reason or "no PEM in it").lower().replace("_", " ")
        raise CannotStart(f"tls.certificate and tls.private_key cannot be used: {reason}", misconfigured=True) from None
    return context


class Listener:
    """One address, bound before anything else is started, listened on once there is somebody to answer."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        """Raises `CannotStart` when the TLS files cannot be used."""
        self.app = app
        self._host, self._port = settings.bind_host, settings.bind_port
        self._tls = tls_context(settings.tls)
        self._config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http=Connection,
            # Longer than proxies keep an idle connection (60 s as a rule): whoever closes first must not be us, or the proxy's
            # next request meets a closed socket.
            timeout_keep_alive=KEEP_ALIVE_S,
            # Whose X-Forwarded-For is believed is a setting, not a default of the server.
            proxy_headers=False,
        )
        self._config.load()
        self._connected = ServerState()
        self._app_state: dict[str, Any] = {}
        self._server: asyncio.Server | None = None

    @property
    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        """The event loop that suits the protocol; None for the default one."""
        return self._config.get_loop_factory()

    @property
    def url(self) -> str:
        """Where it listens, or will. Requires a bound address."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http{'s' if self._tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"

    async def bind(self) -> None:
        """Takes the address without listening on it. Raises `CannotStart`."""
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._protocol,
                self._host,
                self._port,
                ssl=self._tls,
                backlog=_ACCEPT_BACKLOG,
                start_serving=False,
                ssl_handshake_timeout=_HANDSHAKE_S if self._tls else None,
                ssl_shutdown_timeout=_TLS_GOODBYE_S if self._tls else None,
            )
        except (OSError, UnicodeError) as error:
            raise self._refusal(error) from None

    async def accept(self, app_state: dict[str, Any]) -> None:
        """Listens. Requires `bind`; raises `CannotStart`."""
        assert self._server is not None
        self._app_state.update(app_state)
        self._set_date()
        try:
            await self._server.start_serving()
        except OSError as error:
            raise self._refusal(error) from None

    async def keep_date(self) -> None:
        """The Date header, every second, until cancelled."""
        while True:
            self._set_date()
            await asyncio.sleep(1)

    def close(self) -> None:
        """Stops listening; connections stay. May be called again."""
        if self._server is not None:
            self._server.close()

    def dismiss(self) -> bool:
        """Closes idle connections, and busy ones after their answer; whether a connection or a request is left.

        Called again and again: a TLS handshake that was under way becomes a connection only later.
        """
        for connection in list(self._connected.connections):
            connection.shutdown()
        return bool(self._connected.connections or self._connected.tasks)

    async def cut(self) -> None:
        """Ends what is left: requests are told why, connections whose clients do not take that are dropped."""
        requests, connections = self._connected.tasks, self._connected.connections
        log.warning("drain_cut", extra={"requests": len(requests), "connections": len(connections)})
        for request in list(requests):
            request.cancel()
        ends_at = time.monotonic() + _CUT_S
        while self.dismiss() and time.monotonic() < ends_at:  # noqa: ASYNC110 - the protocol tells nobody when it is done
            await asyncio.sleep(TURN_S)
        for connection in list(connections):
            connection.transport.abort()

    def _protocol(self) -> asyncio.Protocol:
        return self._config.http_protocol_class(  # type: ignore[call-arg]  # typed as any protocol at all
            config=self._config, server_state=self._connected, app_state=self._app_state
        )

    def _set_date(self) -> None:
        self._connected.default_headers = [(b"date", formatdate(usegmt=True).encode())]

    def _refusal(self, error: OSError | UnicodeError) -> CannotStart:
        code = getattr(error, "errno", None)
        if isinstance(code, int) and code > 0:
            reason = os.strerror(code)
        else:  # the resolver's codes are its own
            reason = getattr(error, "strerror", None) or "no such address"
        return CannotStart(f"cannot listen on {self._host}:{self._port}: {reason}; {_way_out(code)}")


def _way_out(code: int | None) -> str:
    """What to change, and where."""
    if code == errno.EADDRINUSE:
        return "another port: --port, bind_port or COPATH_BIND_PORT, 0 for a free one"
    if code in (errno.EACCES, errno.EPERM):
        return "ports below 1024 take a privilege; another port: --port, bind_port or COPATH_BIND_PORT"
    return "an address of this host: --host, bind_host or COPATH_BIND_HOST"
