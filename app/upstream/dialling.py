"""Opening a WebSocket to a node, and what it means where that fails."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Mapping

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

from .address import Address
from .faults import CallFailed, Fault
from .posting import NodeLimits, tls_context
from .statuses import failure_of_status

PING_EVERY_S, PONG_WITHIN_S = 20.0, 30.0
"""What keeps idle connections open on the way, and tells those that are dead."""

CLOSE_WITHIN_S = 1.0

QUEUED_MESSAGES = 4
"""Whole messages read ahead of whoever takes them; beyond that the node is left to wait."""

_silent = logging.getLogger("copath.upstream.websockets")
"""The library logs request lines and headers, which hold keys: it logs into this, and this nowhere, whatever the log level."""
_silent.setLevel(logging.CRITICAL + 1)


class _Connect(connect):
    """Follows no redirect: a key goes to the host that it was configured for."""

    def process_redirect(self, exc: Exception) -> Exception:
        """As the library says."""
        return exc


async def dial(
    address: Address, headers: Mapping[str, str], limits: NodeLimits, trust_env: bool, wall_clock: Callable[[], float]
) -> ClientConnection:
    """An open connection, without compression: a message takes as much as it says. Raises `CallFailed`."""
    secure = address.url.scheme == "wss"
    try:
        return await _Connect(
            str(address.url),
            ssl=tls_context(trust_env) if secure else None,
            additional_headers=dict(headers),
            compression=None,
            proxy=True if trust_env else None,
            open_timeout=limits.connect_timeout_s,
            ping_interval=PING_EVERY_S,
            ping_timeout=PONG_WITHIN_S,
            close_timeout=CLOSE_WITHIN_S,
            max_size=limits.max_body_bytes,
            max_queue=QUEUED_MESSAGES,
            logger=_silent,
        )
    except InvalidStatus as refused:
        response = refused.response
        raise failure_of_status(
            response.status_code, response.headers.get("retry-after"), bytes(response.body or b""), wall_clock()
        ) from None
    except TimeoutError:
        raise CallFailed(Fault.CONNECT_TIMEOUT, "no connection in time") from None
    except ssl.SSLError:
        raise CallFailed(Fault.TLS, "the TLS handshake failed") from None
    except socket.gaierror:
        raise CallFailed(Fault.DNS, "the host name does not resolve") from None
    except ConnectionRefusedError:
        raise CallFailed(Fault.REFUSED, "the connection was refused") from None
    except InvalidHandshake as error:
        if isinstance(error.__cause__, EOFError):
            raise CallFailed(Fault.RESET, "the connection broke off") from None
        raise CallFailed(Fault.MALFORMED, "the node answered with what is no WebSocket handshake") from None
    except (OSError, EOFError, InvalidURI):
        raise CallFailed(Fault.UNREACHABLE, "the host cannot be reached") from None
