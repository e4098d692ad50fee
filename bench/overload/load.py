"""The load, from a process of its own, over raw sockets to the loopback address.

python -m bench.overload.load PORT SECONDS (--rate N | --clients N) --path TEMPLATE... [more]        prints a JSON tally

`--rate` is an open loop: arrivals are random (exponential gaps) and wait for nobody, as those of the world. `--clients` is a
closed one: so many clients, each of whom asks again as soon as it has its answer. Both end: by time, and by how many
connections may be open at once.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import cast

import msgspec
import uvloop

MAX_CONNECTIONS = 1500
GRACE_S = 10.0
"""For answers that are still due when the time is over."""


class Tally(msgspec.Struct):
    """What came of the requests that were sent in the measured time. Seconds."""

    seconds: float
    served: list[float] = []
    """Latency of each 200."""
    refused: list[float] = []
    """Latency of each 503."""
    others: dict[str, int] = {}
    """Any other answer by status, and `lost` for none at all."""
    served_in_time: int = 0
    """200s that arrived within the measured time, whenever they were asked for: the goodput."""
    late: list[float] = []
    """How much later than planned a request was written: of an open loop, the error of this instrument."""
    unsent: int = 0
    """Requests for which no connection was left."""


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request on it."""

    def __init__(self, idle: list[Connection]) -> None:
        self._idle = idle
        self._transport: asyncio.Transport | None = None
        self._waiting: bytes | None = None
        self._done: Callable[[int], None] | None = None
        self._got = bytearray()
        self._whole = 0

    def ask(self, request: bytes, done: Callable[[int], None]) -> None:
        """Sends a request; `done` gets the status, or 0 when the connection ended."""
        self._done = done
        if self._transport is None:
            self._waiting = request
        else:
            self._transport.write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        if self._waiting is not None:
            transport.write(self._waiting)
            self._waiting = None

    def data_received(self, data: bytes) -> None:
        self._got += data
        if not self._whole:
            end = self._got.find(b"\r\n\r\n")
            if end < 0:
                return
            at = self._got.index(b"content-length: ", 0, end) + 16
            self._whole = end + 4 + int(self._got[at : self._got.index(b"\r", at)])
        if len(self._got) >= self._whole:
            status = int(self._got[9:12])
            self._got.clear()
            self._whole = 0
            self._idle.append(self)
            self._finish(status)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        self._finish(0)

    def _finish(self, status: int) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(status)


class Load:
    """One run. Latency is from the write of a request to the last byte of its answer."""

    def __init__(self, port: int, seconds: float, warm_up_s: float, paths: Iterator[str], header: str = "") -> None:
        """`header` is one more line of each request, without its end."""
        self._port = port
        self._paths = paths
        self._header = f"{header}\r\n".encode() if header else b""
        self._starts_at = time.perf_counter() + warm_up_s
        self._ends_at = self._starts_at + seconds
        self._idle: list[Connection] = []
        self._opened = 0
        self._in_flight = 0
        self._tasks: set[asyncio.Task[object]] = set()
        self.tally = Tally(seconds)

    async def open_loop(self, rate: float) -> Tally:
        """`rate` requests a second on average, whatever comes of them."""
        chance = random.Random(1)
        due = time.perf_counter()
        while due < self._ends_at:
            now = time.perf_counter()
            if now < due:
                await asyncio.sleep(due - now)
            while due <= time.perf_counter():
                self._ask(due)
                due += chance.expovariate(rate)
        return await self._settled()

    async def closed_loop(self, clients: int) -> Tally:
        """So many clients, each with one request in flight at all times."""

        def again() -> None:
            if time.perf_counter() < self._ends_at:
                self._ask(None, again)

        for _ in range(clients):
            again()
        await asyncio.sleep(self._ends_at - time.perf_counter())
        return await self._settled()

    def _ask(self, due: float | None, then: Callable[[], None] = lambda: None) -> None:
        sent_at = time.perf_counter()
        counts = self._starts_at <= sent_at < self._ends_at
        if not self._idle and self._opened >= MAX_CONNECTIONS:
            self.tally.unsent += counts
            return
        if counts and due is not None:
            self.tally.late.append(sent_at - due)

        def done(status: int) -> None:
            now = time.perf_counter()
            self._in_flight -= 1
            if status == 200 and self._starts_at <= now < self._ends_at:
                self.tally.served_in_time += 1
            if counts:
                self._count(status, now - sent_at)
            then()

        self._in_flight += 1
        self._connection().ask(
            b"GET %b HTTP/1.1\r\nhost: localhost\r\n%b\r\n" % (next(self._paths).encode(), self._header),
            done,
        )

    def _count(self, status: int, latency_s: float) -> None:
        if status == 200:
            self.tally.served.append(latency_s)
        elif status == 503:
            self.tally.refused.append(latency_s)
        else:
            name = str(status) if status else "lost"
            self.tally.others[name] = self.tally.others.get(name, 0) + 1

    def _connection(self) -> Connection:
        if self._idle:
            return self._idle.pop()
        self._opened += 1
        connection = Connection(self._idle)
        task: asyncio.Task[object] = asyncio.ensure_future(
            asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", self._port)
        )
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._opened_or_lost(task, connection))
        return connection

    def _opened_or_lost(self, task: asyncio.Task[object], connection: Connection) -> None:
        self._tasks.discard(task)
        if task.exception() is not None:
            connection.connection_lost(None)

    async def _settled(self) -> Tally:
        ends_at = time.perf_counter() + GRACE_S
        while self._in_flight and time.perf_counter() < ends_at:  # noqa: ASYNC110 - answers come by callback
            await asyncio.sleep(0.01)
        if self._in_flight:
            self.tally.others["unanswered"] = self._in_flight
        return self.tally


def paths_of(templates: list[str], heights: range, items: int) -> Iterator[str]:
    """The templates in turn, their `{height}` and `{item}` filled in: every height once in a random order, then again."""
    chance = random.Random(2)
    for height in itertools.cycle(chance.sample(heights, len(heights))):
        for template in templates:
            yield template.format(height=height, item=chance.randrange(items))


def main() -> None:
    """Reads the command line, runs, prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("seconds", type=float)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--rate", type=float)
    kind.add_argument("--clients", type=int)
    parser.add_argument("--path", nargs="+", required=True)
    parser.add_argument("--heights", type=int, nargs=2, default=(0, 1))
    parser.add_argument("--items", type=int, default=1)
    parser.add_argument("--warm-up", type=float, default=1.0)
    parser.add_argument("--header", default="")
    chosen = parser.parse_args()

    async def run() -> Tally:
        paths = paths_of(chosen.path, range(*chosen.heights), chosen.items)
        load = Load(chosen.port, chosen.seconds, chosen.warm_up, paths, chosen.header)
        return await (load.closed_loop(chosen.clients) if chosen.clients else load.open_loop(chosen.rate))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.buffer.write(msgspec.json.encode(runner.run(run())))


if __name__ == "__main__":
    main()
