"""One WebSocket to one node: calls go out over it and are answered in any order, and the node may say something by itself.

    (nobody asked yet) --a call--> DIALLING --handshake--> OPEN --the connection ends--> every call under way fails, once
                                    ^   `--refused--> RESTING --a call, or the rest is over--> DIALLING

The rests grow while nothing works, with chance in them; a call does not wait for their end. One task does all of it. Nothing that
is raised here carries more of the URL than its scheme and host.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from app.core.purpose import Errand, Purpose, errand

from .address import WEBSOCKET, Address
from .allowance import Allowance
from .decoding import decoded
from .dialling import dial
from .faults import CallFailed, Fault
from .messages import Announced, Answer, Nonsense, read_message
from .posting import NodeLimits, Reply
from .underway import UnderWay

AGAIN_S = 0.25
"""A node that could not be reached is not dialled again sooner than that, whoever asks."""

FIRST_REST_S, LONGEST_REST_S = 0.5, 60.0

HELD_S = 30.0
"""A connection that lasted so long was a good one: what ends it begins the rests anew."""

YIELD_EVERY = 32
"""Messages after which others have their turn on the event loop, however many more there are."""

TOO_BIG_CODE = 1009
"""The closing code for a message that is larger than we take (RFC 6455, 7.4.1)."""


class Listener(Protocol):
    """Who wants to hear what the node says by itself."""

    async def attend(self) -> None:
        """Runs beside every connection, from when it is open until it ends."""
        ...

    def announced(self, event: Announced) -> None:
        """Called between awaits."""
        ...


class Line:
    """The WebSocket side of one node. `aclose` it. Nothing is dialled before somebody asks."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        limits: NodeLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        trust_env: bool = True,
        on_busy: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_busy`: no place for a call came free in time. `on_lost`: a connection ended, and who answers at that address next
        may be another node. Raises `ValueError` for what is no such URL."""
        self.address = Address.of(url, headers or {}, WEBSOCKET)
        self.limits = limits or NodeLimits()
        self.listener: Listener | None = None
        self.failure: CallFailed | None = None
        """Why there is no connection; None while there is one, or before the first."""
        self.connections = 0
        """How many were opened."""
        self._headers = dict(headers or {})
        self._clock = clock
        self._wall_clock = wall_clock
        self._pause = pause
        self._chance = chance
        self._trust_env = trust_env
        self._on_busy = on_busy
        self._on_lost = on_lost
        self._places = asyncio.Semaphore(self.limits.max_connections)
        self._under_way = UnderWay()
        self._task: asyncio.Task[None] | None = None
        self._connection: ClientConnection | None = None
        self._opening: asyncio.Future[ClientConnection] | None = None
        self._refused_at: float | None = None
        self._wanted = asyncio.Event()

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        return f"<Line {self.address.origin} {state}, {len(self._under_way)} calls of {self.limits.max_connections}>"

    @property
    def open(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._connection is not None

    @property
    def calls(self) -> int:
        """Calls that wait for their answer at this moment."""
        return len(self._under_way)

    def begin(self) -> None:
        """Dials, unless that was begun long ago, and keeps the connection up from now on."""
        if self._task is None:
            context = contextvars.Context()  # the deadline of whoever came first is not everybody's
            context.run(errand.set, Errand(Purpose.HEAD))
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name=f"line-{self.address.origin}", context=context)

    def drop(self) -> None:
        """Gives up the connection, if there is one, for another."""
        if self._connection is not None:
            self._connection.transport.abort()

    async def aclose(self) -> None:
        """Ends the connection; calls under way fail."""
        if self._connection is not None:
            await self._connection.close()  # within `CLOSE_WITHIN_S`
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # --- calls ------------------------------------------------------------------------------------------------------

    async def ask(self, content: bytes, ids: Sequence[int], *, bulky: bool = False) -> Reply:
        """One attempt: what came back for this call, or this batch, of these ids. `bulky`: the answer may be large.

        Raises `CallFailed`. A connection that turns out dead as the call goes out is no failure of the node: another one is
        tried.
        """
        allowance = Allowance.now(self.limits.attempt_timeout_s, self._clock())
        scope = allowance.scope(self.limits.pool_timeout_s + self.limits.connect_timeout_s)
        begun_at: float | None = None
        try:
            async with scope, self._place():
                for last in (False, True):
                    connection = await self._connected()
                    begun_at = self._clock()
                    allowance.acquired(scope)
                    with self._under_way.expecting(ids, bulky=bulky) as call:
                        try:
                            await connection.send(content.decode())
                        except ConnectionClosed:
                            if last:
                                raise CallFailed(Fault.RESET, "the connection broke off") from None
                            if self._connection is connection:
                                self._connection = None  # whoever reads from it has not noticed yet
                            continue
                        body = await call.answer
                    return Reply(body, self._clock() - begun_at)
        except TimeoutError:
            if not scope.expired():
                raise
            raise allowance.cut(acquired=begun_at is not None) from None
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.limits.pool_timeout_s) as scope:
                await self._places.acquire()
        except TimeoutError:
            if not scope.expired():
                raise
            self._on_busy()
            raise CallFailed(Fault.POOL_BUSY, "no connection came free in time") from None
        try:
            yield
        finally:
            self._places.release()

    async def _connected(self) -> ClientConnection:
        self.begin()
        if self._connection is not None:
            return self._connection
        if self._refused_at is not None and self._clock() - self._refused_at < AGAIN_S and self.failure is not None:
            raise self.failure.again()
        self._wanted.set()
        try:
            return await asyncio.shield(self._awaited())
        except CallFailed as failure:
            raise failure.again() from None  # each caller's own, with its own traceback

    def _awaited(self) -> asyncio.Future[ClientConnection]:
        """What the next dialling comes to."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
        return self._opening

    # --- the connection ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        rest_s = FIRST_REST_S
        try:
            while True:
                self._wanted.clear()
                began_at = self._clock()
                failure = await self._session_or_fault()
                if self._clock() - began_at >= HELD_S:
                    rest_s = FIRST_REST_S
                await self._rest(max(rest_s * (0.5 + self._chance()), failure.retry_after_s or 0.0))
                rest_s = min(2 * rest_s, LONGEST_REST_S)
        finally:
            gone = CallFailed(Fault.UNREACHABLE, "the connection was given up")
            self._refuse(gone)
            self._under_way.fail(gone)

    async def _rest(self, seconds: float) -> None:
        """For so long, or until somebody asks."""
        async with asyncio.TaskGroup() as group:
            resting = group.create_task(_run(lambda: self._pause(seconds)))
            wanting = group.create_task(self._asked())
            await asyncio.wait({resting, wanting}, return_when=asyncio.FIRST_COMPLETED)
            resting.cancel()
            wanting.cancel()

    async def _asked(self) -> None:
        await self._wanted.wait()

    async def _session_or_fault(self) -> CallFailed:
        try:
            return await self._session()
        except Exception as fault:  # noqa: BLE001 - a fault of our own must be seen, and must not end what dials
            message = "a connection to an upstream ended by a fault of our own"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": fault})
            return CallFailed(Fault.RESET, "the connection was given up")

    async def _session(self) -> CallFailed:
        """One connection from the dialling to the end, and why it ended."""
        try:
            connection = await dial(self.address, self._headers, self.limits, self._trust_env, self._wall_clock)
        except CallFailed as failure:
            failure.excerpt = self.address.scrub(failure.excerpt)
            self._refused_at = self._clock()
            self._refuse(failure)
            return failure
        self.connections += 1
        self._connection, self._refused_at, self.failure = connection, None, None
        self._awaited().set_result(connection)
        self._opening = None
        ended = CallFailed(Fault.RESET, "the connection broke off")
        try:
            ended = await self._serve(connection)
        finally:
            self._connection = None
            connection.transport.abort()
            self.failure = ended
            self._under_way.fail(ended)
            self._on_lost()
        return ended

    def _refuse(self, failure: CallFailed) -> None:
        """Those who wait for a connection get none."""
        self.failure = failure
        if self._opening is not None:
            self._opening.set_exception(failure)
            self._opening.exception()  # those who wait have it; that nobody does is no fault
            self._opening = None

    async def _serve(self, connection: ClientConnection) -> CallFailed:
        """Hands on what arrives until the connection ends, and says why it did."""
        async with asyncio.TaskGroup() as group:
            attending = None
            if self.listener is not None:
                attending = group.create_task(self.listener.attend(), name=f"listener-{self.address.origin}")
            failure = await self._read(connection)
            if attending is not None:
                attending.cancel()
        return failure

    async def _read(self, connection: ClientConnection) -> CallFailed:
        read = 0
        while True:
            try:
                message = await connection.recv(decode=False)
            except ConnectionClosed as closed:
                return _why(closed)
            assert isinstance(message, bytes)
            try:
                await self._take(message)
            except Nonsense:
                return CallFailed(Fault.MALFORMED, "the node sent what is no JSON-RPC message")
            read += 1
            if read % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _take(self, message: bytes) -> None:
        found = await decoded(read_message, message)
        if isinstance(found, Answer):
            self._under_way.settle(found, message)
        elif found is not None and self.listener is not None:
            self.listener.announced(found)


def _why(closed: ConnectionClosed) -> CallFailed:
    if closed.sent is not None and closed.sent.code == TOO_BIG_CODE:
        return CallFailed(Fault.BODY_TOO_LARGE, "the node sent a message that is too large")
    return CallFailed(Fault.RESET, "the connection broke off")


async def _run(pause: Callable[[], Awaitable[None]]) -> None:
    await pause()
