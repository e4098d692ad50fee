"""POSTing bytes to one URL and getting bytes back, within a time, whatever the other side does.

Nothing that is raised here carries more of the URL than its scheme and host.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2

from .address import HTTP, Address
from .allowance import Allowance
from .bodies import ACCEPT_ENCODING, read_body
from .faults import CallFailed, Fault
from .observer import NoObserver, UpstreamObserver
from .secrecy import keep_urls_out_of_logs
from .statuses import failure_of_status

ERROR_BODY_CAP_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """What one node may cost us. Seconds and bytes."""

    attempt_timeout_s: float = 20.0
    """For one attempt from the first byte sent to the last received: a total, not per read. The wait for a free
    connection is not part of it."""
    connect_timeout_s: float = 5.0
    pool_timeout_s: float = 5.0
    max_connections: int = 16
    keepalive_expiry_s: float = 30.0
    max_body_bytes: int = 32 * 1024 * 1024


@dataclass(slots=True, eq=False)
class _Pool:
    """One httpx2 client and how many of our calls hold one of its connections."""

    client: httpx2.AsyncClient
    holding: int = 0
    retired: bool = False


@dataclass(slots=True)
class _Attempt:
    """Where one attempt has got to, told by httpcore's trace events."""

    pool: _Pool
    scope: asyncio.Timeout
    allowance: Allowance
    clock: Callable[[], float]
    acquired_at: float | None = None
    connected: bool = False
    responding: bool = False

    async def on_event(self, event: str, info: Mapping[str, object]) -> None:
        """The `trace` extension of httpcore: event names are `<part>.<step>.<started|complete|failed>`."""
        if event.endswith("connect_tcp.started"):
            self.connected = True
            self.acquire()
        elif event.endswith("send_request_headers.started"):
            self.acquire()
        elif event.endswith("receive_response_headers.complete"):
            self.responding = True

    def acquire(self) -> None:
        """A connection is ours: from here on the attempt's own time runs."""
        if self.acquired_at is not None:
            return
        self.acquired_at = self.clock()
        self.pool.holding += 1
        self.allowance.acquired(self.scope)

    def release(self) -> None:
        """The connection went back, or is gone."""
        if self.acquired_at is not None:
            self.pool.holding -= 1


@dataclass(slots=True)
class Reply:
    """A whole answer. `seconds` is without the wait for a connection."""

    body: bytes
    seconds: float


@dataclass(slots=True, eq=False)
class Poster:
    """The HTTP side of one node. `aclose` it."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    limits: NodeLimits = field(default_factory=NodeLimits)
    transport: httpx2.AsyncBaseTransport | None = None
    observer: UpstreamObserver = field(default_factory=NoObserver)
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    trust_env: bool = True
    address: Address = field(init=False)
    _pool: _Pool = field(init=False)
    _fresh: _Pool = field(init=False)
    _retired: list[_Pool] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.transport is not None:
            # Nothing is dialled: the address only has to be one that an HTTP client takes.
            self.url = "http://in-process"
        self.address = Address.of(self.url, self.headers, HTTP)
        keep_urls_out_of_logs()
        self._pool = self._open(self.limits.max_connections)
        self._fresh = self._open(0)

    def __repr__(self) -> str:
        return f"<Poster {self.address.origin} holding {self._pool.holding} of {self.limits.max_connections}>"

    @property
    def connections_held(self) -> int:
        """Connections that calls of ours hold at this moment."""
        return self._pool.holding + self._fresh.holding + sum(pool.holding for pool in self._retired)

    async def aclose(self) -> None:
        """Closes every connection."""
        for pool in (self._pool, self._fresh, *self._retired):
            await pool.client.aclose()

    async def post(self, content: bytes) -> Reply:
        """One attempt. Raises `CallFailed`; never anything of httpx2.

        A connection kept alive may turn out dead only when it is used: that is answered with one more attempt on a new
        connection at once, since every call here is a read, and is no failure of the node.
        """
        try:
            return await self._attempt(self._pool, content)
        except _StaleConnectionError:
            return await self._attempt(self._fresh, content)

    async def _attempt(self, pool: _Pool, content: bytes) -> Reply:
        allowance = Allowance.now(self.limits.attempt_timeout_s, self.clock())
        # Until a connection is ours the wait for one is allowed for as well; httpx2 bounds that part by itself.
        scope = allowance.scope(self.limits.pool_timeout_s)
        attempt = _Attempt(pool, scope, allowance, self.clock)
        started = self.clock()
        try:
            async with scope:
                body = await self._exchange(attempt, content)
        except TimeoutError:
            if not scope.expired():
                raise
            raise allowance.cut(acquired=attempt.acquired_at is not None) from None
        except httpx2.PoolTimeout:
            self.observer.on_pool_timeout()
            await self._replace_if_orphaned(pool)
            raise CallFailed(Fault.POOL_BUSY, "no connection came free in time") from None
        except httpx2.HTTPError as error:
            failure = _transport_failure(error)
            stale = failure.fault is Fault.RESET and not attempt.connected and not attempt.responding
            if stale and attempt.acquired_at is not None:
                raise _StaleConnectionError from None
            raise failure from None
        finally:
            attempt.release()
            if pool.retired and not pool.holding:
                await self._close_retired(pool)
        ended = self.clock()
        return Reply(body, ended - (started if attempt.acquired_at is None else attempt.acquired_at))

    async def _exchange(self, attempt: _Attempt, content: bytes) -> bytes:
        request = attempt.pool.client.build_request(
            "POST", self.address.url, content=content, extensions={"trace": attempt.on_event}, timeout=self._timeouts()
        )
        response = await attempt.pool.client.send(request, stream=True)
        try:
            if response.status_code == 200:
                return await read_body(response, self.limits.max_body_bytes)
            raise await self._status_failure(response)
        finally:
            await response.aclose()

    async def _status_failure(self, response: httpx2.Response) -> CallFailed:
        try:
            body = await read_body(response, ERROR_BODY_CAP_BYTES)
        except (CallFailed, httpx2.HTTPError):
            body = b""
        return failure_of_status(response.status_code, response.headers.get("retry-after"), body, self.wall_clock())

    def _timeouts(self) -> httpx2.Timeout:
        limits = self.limits
        return httpx2.Timeout(None, connect=limits.connect_timeout_s, pool=limits.pool_timeout_s)

    def _open(self, keepalive_connections: int) -> _Pool:
        limits = httpx2.Limits(
            max_connections=self.limits.max_connections,
            max_keepalive_connections=keepalive_connections,
            keepalive_expiry=self.limits.keepalive_expiry_s,
        )
        headers = {"content-type": "application/json", "accept": "application/json", "accept-encoding": ACCEPT_ENCODING}
        return _Pool(
            httpx2.AsyncClient(
                verify=tls_context(self.trust_env),
                limits=limits,
                transport=self.transport,
                headers={**headers, **self.headers},
                trust_env=self.trust_env,
                follow_redirects=False,
                cookies=no_cookies(),
            )
        )

    async def _replace_if_orphaned(self, pool: _Pool) -> None:
        """A full pool of which calls hold fewer connections has lost some to cancellations: a new one takes over."""
        if pool is not self._pool or pool.holding >= self.limits.max_connections:
            return
        self._pool = self._open(self.limits.max_connections)
        pool.retired = True
        self._retired.append(pool)
        if not pool.holding:
            await self._close_retired(pool)

    async def _close_retired(self, pool: _Pool) -> None:
        if pool in self._retired:
            self._retired.remove(pool)
            await pool.client.aclose()


class _StaleConnectionError(Exception):
    """A connection that was kept alive turned out to be closed by the other side."""


def _transport_failure(error: httpx2.HTTPError) -> CallFailed:
    """The one table from httpx2's exceptions to ours. The texts are ours: theirs may quote addresses."""
    causes = list(_causes(error))
    if isinstance(error, httpx2.ConnectTimeout):
        return CallFailed(Fault.CONNECT_TIMEOUT, "no connection in time")
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return CallFailed(Fault.TLS, "the TLS handshake failed")
    if isinstance(error, httpx2.ConnectError):
        if any(isinstance(cause, socket.gaierror) for cause in causes):
            return CallFailed(Fault.DNS, "the host name does not resolve")
        if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
            return CallFailed(Fault.REFUSED, "the connection was refused")
        return CallFailed(Fault.UNREACHABLE, "the host cannot be reached")
    if isinstance(error, httpx2.TimeoutException):
        return CallFailed(Fault.ATTEMPT_TIMEOUT, "no answer in time")
    if isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError):
        return CallFailed(Fault.RESET, "the connection broke off")
    return CallFailed(Fault.UNREACHABLE, "the request could not be sent")


def no_cookies() -> CookieJar:
    """A jar that takes none: nothing that a node sets is kept, or sent back."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))


@lru_cache
def tls_context(trust_env: bool) -> ssl.SSLContext:
    # Loading the trusted roots takes tens of milliseconds: once per process is enough.
    return httpx2.create_ssl_context(trust_env=trust_env)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from _causes(member)
        error = error.__cause__ or error.__context__
