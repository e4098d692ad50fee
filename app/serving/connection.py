"""One client's connection: uvicorn's HTTP protocol, with bounds on what a client may send before anything of ours sees it.

The parser keeps whatever a client sends until a part of it is complete; without bounds one connection could hold any amount of
memory and, silent, a file descriptor for ever.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import resource
import time
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger(__name__)

HEAD_MAX_BYTES = 64 * 1024
"""Request line, headers and trailers of one request."""

MESSAGE_MAX_BYTES = 4 * 1024 * 1024
"""One request as it comes over the wire: twice the largest body, for those that send it in tiny chunks."""

HEAD_MAX_FIELDS = 256
"""Header fields of one request: every layer walks through all of them."""

PIPELINE_MAX = 32
"""Requests that may wait behind one another on a connection."""

HEAD_WITHIN_S = 20.0
"""From the first byte of a request to the end of its headers."""

REST_WITHIN_S = 20.0
"""From an answer to the end of the request that it is for: a refusal may leave before the whole body came."""

SILENT_FOR_S = 75.0
"""A connection that never sent a byte; proxies open some in advance."""

SPARE_DESCRIPTORS = 128
"""Left for upstreams, files and pipes when connections are counted."""


_HOST = re.compile(rb"[\w.~%!$&'()*+,;=:\[\]-]*", re.ASCII)
"""`uri-host [":" port]` (RFC 9110, 7.2), as far as its characters go; empty where the target has no authority."""


def most_connections() -> int:
    """As many as there are file descriptors for, less some to spare."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_000_000 if soft == resource.RLIM_INFINITY else max(32, soft - SPARE_DESCRIPTORS)


_OFFER_HEADERS = (b"upgrade", b"http2-settings")
"""The header fields of an offer to change the protocol, which `Connection` names too (RFC 9110, 7.8)."""


class _RefusedError(Exception):
    """Raised out of a parser callback: the rest is not read."""


class Connection(HttpToolsProtocol):
    """As its base; a request beyond the bounds is refused, and the connection closed."""

    limit = most_connections()
    _refused_at = float("-inf")

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._message_bytes = 0
        self._head_done = False
        self._message_done = True
        self._without_host = False
        self._too_many_fields = False
        self._head_without_offer: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base
        super().connection_made(transport)
        if len(self.connections) > self.limit:
            self._say_full()
            transport.abort()
            return
        self._wait(SILENT_FOR_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._message_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self.transport.is_closing():
            return
        head_is_long = not self._head_done and self._message_bytes > HEAD_MAX_BYTES
        if head_is_long or self._message_bytes > MESSAGE_MAX_BYTES:
            self._refuse(413, "PayloadTooLarge", "the request is larger than this server reads")
        elif len(self.pipeline) > PIPELINE_MAX:
            self._refuse(400, "InvalidParameter", f"more than {PIPELINE_MAX} requests in a row on one connection")

    def _parse(self, data: bytes) -> None:
        """Feeds the parser. A request that offers another protocol is read again from its head, without the offer.

        The parser ends such a request with its headers and leaves the body to the other protocol. A server may ignore an offer
        (RFC 9110, 7.8), and then the body is the request's own.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offered:
                head, self._head_without_offer = self._head_without_offer, None
                if head is None:
                    self.send_400_response("a tunnel was asked for")
                    return
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as the base does
                data = head + data[offered.args[0] :]
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return

    # --- called by the parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes, self._head_done, self._message_done = 0, False, False
        self._wait(HEAD_WITHIN_S)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        self._too_many_fields = len(self.headers) >= HEAD_MAX_FIELDS
        if self._head_bytes > HEAD_MAX_BYTES or self._too_many_fields:
            raise _RefusedError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._head_without_offer = self._without_offer()
            return
        self._stop_waiting()
        self._head_done = True
        if not self._names_its_host():
            self._without_host = True
            raise _RefusedError
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._head_without_offer is not None:
            return
        self._message_done = True
        if self.cycle.response_complete:
            self._stop_waiting()
        # What came behind it in the same read belongs to the next request, which may be as large.
        self._message_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._message_done and self.cycle.response_complete and not self.transport.is_closing():
            self._wait(REST_WITHIN_S)

    def send_400_response(self, msg: str) -> None:
        """For what is no HTTP, and for what a callback refused: the one error body, as everywhere."""
        if self._head_bytes > HEAD_MAX_BYTES:
            self._refuse(413, "PayloadTooLarge", f"the headers are larger than {HEAD_MAX_BYTES} bytes")
        elif self._too_many_fields:
            self._refuse(413, "PayloadTooLarge", f"a request has at most {HEAD_MAX_FIELDS} header fields")
        elif self._without_host:
            self._refuse(400, "InvalidParameter", "a request names its host, once, in a Host header")
        else:
            self._refuse(400, "InvalidParameter", "the request is not HTTP/1.1 as this server reads it")

    def _without_offer(self) -> bytes:
        """The head that is being parsed, as it would be without the offer of another protocol."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name in _OFFER_HEADERS:
                continue
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(option for option in options if option and option.lower() not in _OFFER_HEADERS)
                if not value:
                    continue
            lines.append(b"%b: %b\r\n" % (name, value))
        return b"".join([*lines, b"\r\n"])

    def _names_its_host(self) -> bool:
        """RFC 9112, 3.2: exactly one valid Host, or none in HTTP/1.0, which does not know it."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) == 1:
            return _HOST.fullmatch(hosts[0]) is not None
        return not hosts and self.parser.get_http_version() == "1.0"

    # --- bounds -----------------------------------------------------------------------------------------------------

    def _refuse(self, status: int, code: str, message: str) -> None:
        reason = {400: b"Bad Request", 413: b"Content Too Large"}[status]
        body = json.dumps({"code": code, "message": message, "retriable": False}).encode()
        cycle = getattr(self, "cycle", None)
        if cycle is None or cycle.response_complete or not cycle.response_started:  # not into the middle of an answer
            self.transport.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncache-control: no-store\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (status, reason, len(body), body)
            )
        self._stop_waiting()
        self.pipeline.clear()
        self.transport.close()

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.abort()

    def _say_full(self) -> None:
        now = time.monotonic()
        if now - Connection._refused_at >= 1.0:
            Connection._refused_at = now
            log.error("connections_full", extra={"limit": self.limit})
