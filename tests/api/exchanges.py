"""Requests straight into the ASGI application, from clients that can hang up, dawdle, or never read; and a house to ask.

Time is a chain's manual clock: nothing here waits for any.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.middleware import Middleware

from app.api.admission import Admission
from app.api.crossing import ChainCheck, Signpost
from app.api.guard import Guard, Limits
from app.api.lobby import Lobby
from app.api.observe import HttpMetrics, Observe
from app.api.visit import RouteTable
from app.asgi import create_app
from app.chain.figures import Figures
from app.core.admission import Door
from app.core.saturation import Gate, SaturationWindow
from app.house import House
from app.metrics import Metrics
from app.settings import ConsumerSettings, Settings
from app.settings.models import AdmissionSettings, CorsSettings
from tests.api.serving import lifespan
from tests.chain.recorded_chain import CorpusBuilder, RecordedChain
from tests.fakes import ManualClock, settle


class Exchange:
    """One request. Awaiting it waits for the end of the application's part; the client is seen as by a real server: what is
    sent to one that hung up vanishes, and once the answer is complete `receive` says that there is no more."""

    def __init__(
        self,
        app: Any,
        state: MutableMapping[str, Any],
        path: str,
        method: str = "GET",
        body: bytes | None = b"",
        headers: Iterable[tuple[bytes, bytes]] = (),
        client: str | None = None,
    ) -> None:
        """`body` None: announced, and never sent. `client`: the address that it comes from."""
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.answered = asyncio.Event()
        """Set with the last byte."""
        self.unread: asyncio.Event | None = None
        """While set and not yet triggered, the client reads nothing: sending waits."""
        self._requests = [] if body is None else [{"type": "http.request", "body": body, "more_body": False}]
        self._over = asyncio.Event()
        self._gone = False
        route, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": route,
            "raw_path": route.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"host", b"copath"), *headers],
            "client": None if client is None else (client, 4711),
            "server": ("copath", 80),
            "state": dict(state),
        }
        self.task = asyncio.get_running_loop().create_task(app(scope, self._receive, self._send))

    def __await__(self) -> Any:
        yield from self.task
        return self

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The code of an error body."""
        return self.json.get("code") if self.body else None

    def hang_up(self) -> None:
        """The client closes its connection."""
        self._gone = True
        self._over.set()
        if self.unread is not None:
            self.unread.set()

    async def _receive(self) -> Any:
        if self._requests and not self._gone:
            return self._requests.pop(0)
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.unread is not None:
            await self.unread.wait()
        if self._gone:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
            if not message.get("more_body", False):
                self.answered.set()
                self._over.set()


@dataclass
class Asked:
    """A running application and its house."""

    app: Any
    state: MutableMapping[str, Any]
    house: House
    clock: ManualClock
    sent: list[Exchange] = field(default_factory=list)

    def ask(self, path: str, method: str = "GET", **more: Any) -> Exchange:
        """Sends a request; nothing runs before the caller waits for something."""
        exchange = Exchange(self.app, self.state, path, method, **more)
        self.sent.append(exchange)
        return exchange

    def metric(self, name: str, /, **labels: str) -> float:
        """The sum of the samples of a metric whose labels include these, as a scrape shows them now."""
        self.house.metrics.exposition(None)
        return sum(
            sample.value
            for family in self.house.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"copath_{name}" and labels.items() <= sample.labels.items()
        )

    def series(self) -> int:
        """How many series a scrape shows."""
        self.house.metrics.exposition(None)
        return sum(len(family.samples) for family in self.house.metrics.registry.collect())

    @property
    def in_flight(self) -> tuple[float, float, float]:
        """Requests; places of the process; places of the warm lane."""
        return (
            self.metric("http_requests_in_flight"),
            self.metric("admission_in_flight", scope="global"),
            self.metric("admission_in_flight", scope="warm"),
        )


def house_of(
    chains: Sequence[RecordedChain],
    *,
    process: int | None = 64,
    chain: int | None = 32,
    warm: int | None = 256,
    threshold_s: float = 10.0,
    expiry_s: float = 60.0,
) -> House:
    """The house as it is, of these chains."""
    clock = chains[0].clock if chains else ManualClock().drive()
    metrics = chains[0].metrics if chains else Metrics(CollectorRegistry())

    def gate(limit: int | None) -> Gate:
        return Gate(limit, SaturationWindow(threshold_s, expiry_s))

    for each in chains:
        each.chain.load.door.limit = chain
        metrics.before_scrape(Figures(each.chain, metrics).publish)
    door = Door(gate(process), {each.chain.key: each.chain.load.door for each in chains}, gate(warm))
    house = House([each.chain for each in chains], CorpusBuilder(), metrics, door, clock)
    house.started = True
    return house


@asynccontextmanager
async def asked(
    *chains: RecordedChain,
    timeout_s: float = 30.0,
    max_batch_size: int = 10,
    max_batch_span: int = 1000,
    consumers: ConsumerSettings | None = None,
    **limits: Any,
) -> AsyncIterator[Asked]:
    """The whole application over these chains. Whatever is still under way at the end is cancelled."""
    house = house_of(chains, **limits)
    settings = Settings.model_construct(
        cors=CorsSettings(),
        admission=AdmissionSettings(request_timeout_secs=timeout_s),
        max_batch_size=max_batch_size,
        max_batch_span=max_batch_span,
        consumers=consumers or ConsumerSettings(),
    )

    @asynccontextmanager
    async def open_house(_: Settings) -> AsyncIterator[Lobby]:
        yield house

    app = create_app(settings, open_house)
    async with lifespan(app) as state:
        running = Asked(app, state, house, chains[0].clock)
        try:
            yield running
        finally:
            await _end(running)


@asynccontextmanager
async def asked_of(
    routes: FastAPI, *chains: RecordedChain, timeout_s: float = 30.0, **limits: Any
) -> AsyncIterator[Asked]:
    """Routes of a test behind the layers of the application, in their order."""
    house = house_of(chains, **limits)
    for layer in (
        Middleware(Signpost),
        Middleware(Admission, request_timeout_s=timeout_s),
        Middleware(ChainCheck),
        Middleware(Limits),
        Middleware(Guard),
    ):
        routes.add_middleware(layer.cls, *layer.args, **layer.kwargs)
    table = RouteTable(routes.routes)
    app = Observe(Guard(HttpMetrics(routes)), table)
    running = Asked(app, {"house": house}, house, chains[0].clock)
    try:
        yield running
    finally:
        await _end(running)


async def _end(running: Asked) -> None:
    for exchange in running.sent:
        exchange.task.cancel()
    await asyncio.gather(*(exchange.task for exchange in running.sent), return_exceptions=True)
    for chain in running.house.chains.values():
        await chain.aclose()
    await settle()
