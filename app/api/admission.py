"""Admission: who may ask for a proof now, for how long, and what is given back when the last byte has left.

    ARRIVED --draining or no room--> refused at once, holding nothing
       |-- body not whole, in time and in size ---> refused, holding nothing
       `-- admitted --+-- answer fully sent ------------> gives its place back
                      |-- deadline, nothing sent yet ---> 504, gives it back
                      |-- deadline, headers sent -------> the connection is cut, gives it back
                      `-- client hung up ---------------> the route is cancelled, gives it back

Pure ASGI. A route that is cancelled leaves the fill that it waited for to whoever else waits, and to the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api import request_bodies
from app.api.lanes import lane_of, refusal_of
from app.api.lobby import Lobby, open_house_of
from app.api.refusing import Refusals
from app.api.visit import Visit, visit_of
from app.core.admission import Place, Shed
from app.core.cold_work import cold_place
from app.core.deadlines import Trail, deadline, trail
from app.core.errors import BodyTimeout, Draining, ProofError, RequestTimeout

_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class Admission:
    """ASGI layer around the proof routes. Everything else passes untouched: probes, metrics, listings, unknown paths."""

    def __init__(self, app: ASGIApp, request_timeout_s: float) -> None:
        """`request_timeout_s`: from arrival to the last byte."""
        self.app = app
        self._timeout_s = request_timeout_s
        self._refusals = Refusals()
        self._bodies = request_bodies.RequestBodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = visit_of(scope)
        if scope["type"] != "http" or not visit.controlled:
            await self.app(scope, receive, send)
            return
        house = open_house_of(scope)
        try:
            if house.closing:
                raise Draining("this server is shutting down; ask another one")
            ends_at = house.now() + self._timeout_s
            if visit.method in _WITHOUT_BODY:
                await self._enter(scope, _Client(receive), send, house, visit, ends_at)
                return
            async with self._whole_body(receive) as body:
                if body is None:
                    visit.outcome = "cancelled"
                else:
                    await self._enter(scope, _Client(receive, body), send, house, visit, ends_at)
        except ProofError as refusal:
            if isinstance(refusal, BodyTimeout):
                visit.fields = (*visit.fields, (b"connection", b"close"))  # what is left of the body is not read
            self._refusals.note(house, visit, refusal)
            raise

    @asynccontextmanager
    async def _whole_body(self, receive: Receive) -> AsyncIterator[bytes | None]:
        within_s = min(self._timeout_s, request_bodies.WITHIN_S)
        try:
            async with self._bodies.whole(receive, within_s) as body:
                yield body
        except BodyTimeout:
            if within_s < self._timeout_s:
                raise
            raise RequestTimeout("proof request exceeded the server's deadline", stage=Trail().stage) from None

    async def _enter(
        self, scope: Scope, client: _Client, send: Send, house: Lobby, visit: Visit, ends_at: float
    ) -> None:
        place = visit.place = _admitted(house, visit)
        try:
            await self._serve(scope, client, send, house, visit, place, ends_at)
        finally:
            _give_back(house, visit, place)

    async def _serve(
        self, scope: Scope, client: _Client, send: Send, house: Lobby, visit: Visit, place: Place, ends_at: float
    ) -> None:
        outgoing = _Outgoing(send, house, visit, place)
        here = Trail()
        until = deadline.set(ends_at)
        told = trail.set(here)
        entitled = cold_place.set(lambda: _take_cold_place(house, place))
        try:
            async with asyncio.timeout(ends_at - house.now()) as limit:
                await self._attended(scope, client, outgoing, limit)
        except TimeoutError:
            if not limit.expired():
                raise
            if client.gone:
                visit.outcome = "cancelled"
            elif outgoing.started:
                # Half an answer is out: returning without the rest of it makes the server cut the connection.
                visit.outcome = RequestTimeout.code
                self._refusals.note(house, visit, RequestTimeout("the answer was cut off"))
            else:
                raise RequestTimeout("proof request exceeded the server's deadline", stage=here.stage) from None
        finally:
            cold_place.reset(entitled)
            trail.reset(told)
            deadline.reset(until)
            if here.joined and visit.cache == "miss":
                visit.cache = "joined"

    async def _attended(self, scope: Scope, client: _Client, outgoing: _Outgoing, limit: asyncio.Timeout) -> None:
        """Runs the routes while watching the client, whose hanging up cancels them as the deadline would.

        The watch begins once the routes wait for something: most answers from memory never do."""

        def hung_up() -> bool:
            if outgoing.completed or limit.expired():
                return False
            limit.reschedule(asyncio.get_running_loop().time())
            return True

        watch: asyncio.Task[None] | None = None

        def begin() -> None:
            nonlocal watch
            watch = group.create_task(client.watch(hung_up))

        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            waits = asyncio.get_running_loop().call_soon(begin)
            try:
                await self.app(scope, client.receive, outgoing.send)
            except Exception as error:  # noqa: BLE001 - raised again below: the group would wrap it
                failure = error
            finally:
                waits.cancel()
                if watch is not None:
                    watch.cancel()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # or its traceback would hold the frame that holds it


def _take_cold_place(house: Lobby, place: Place) -> None:
    """For a request of the warm lane that needs more than was at hand. Work that outlives its request needs none."""
    if place.cold or place.left:
        return
    shed = house.door.add(place, 1, house.now())
    if shed is not None:
        raise refusal_of(shed)


def _admitted(house: Lobby, visit: Visit) -> Place:
    chain = visit.chain
    outcome = house.door.enter(lane_of(visit), None if chain is None else chain.key, house.now(), visit.consumer)
    if isinstance(outcome, Shed):
        raise refusal_of(outcome)
    return outcome


def _give_back(house: Lobby, visit: Visit, place: Place) -> None:
    """For the first time at the last byte, whatever the routes still do; the second time it changes nothing."""
    served = visit.status is not None and visit.status < 400
    house.door.leave(place, house.now(), served=served)


class _Outgoing:
    """The answer on its way out. With its last byte the place is given back: who has the whole answer may ask again."""

    def __init__(self, send: Send, house: Lobby, visit: Visit, place: Place) -> None:
        self._send = send
        self._house = house
        self._visit = visit
        self._place = place
        self.started = False
        self.completed = False

    async def send(self, message: Message) -> None:
        self.started = True
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.completed = True
            _give_back(self._house, self._visit, self._place)


class _Client:
    """The other end of a request: its body, which was read already, and whether it still waits for the answer."""

    def __init__(self, receive: Receive, body: bytes = b"") -> None:
        self._receive = receive
        self._body: bytes | None = body
        self._left = asyncio.Event()
        self.gone = False
        """Whether the client hung up before it had its answer."""

    async def watch(self, hung_up: Callable[[], bool]) -> None:
        """Until the client leaves: then `hung_up` is called, and says whether that was too early."""
        told = False
        try:
            while (message := await self._receive())["type"] != "http.disconnect":
                if told and not message.get("body"):
                    return  # a server that says nothing of its clients: there is nothing to watch
                told = not message.get("more_body", False)
            self.gone = hung_up()
        except ProofError:
            return  # a body of a request that has none, and too large at that: it is not read
        self._left.set()

    async def receive(self) -> Message:
        """For the routes."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}
