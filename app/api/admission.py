"""Admission: who may ask for a proof now, for how long, and what is given back when the last byte has left.

    ARRIVED --draining or no room--> refused at once, holding nothing
       `-- admitted --+-- answer fully sent ------------> gives its place back
                      |-- deadline, nothing sent yet ---> 504, gives it back
                      |-- deadline, headers sent -------> the connection is cut, gives it back
                      `-- client hung up ---------------> the route is cancelled, gives it back

Pure ASGI. A route that is cancelled leaves the fill that it waited for to whoever else waits, and to the cache.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.lanes import lane_of, refusal_of
from app.api.lobby import Lobby, open_house_of
from app.api.refusing import Refusals
from app.api.visit import Visit, visit_of
from app.core.admission import Lane, Place, Shed
from app.core.deadlines import Trail, deadline, trail
from app.core.errors import Draining, ProofError, RequestTimeout


class Admission:
    """ASGI layer around the proof routes. Everything else passes untouched: probes, metrics, listings, unknown paths."""

    def __init__(self, app: ASGIApp, request_timeout_s: float) -> None:
        """`request_timeout_s`: from arrival to the last byte."""
        self.app = app
        self._timeout_s = request_timeout_s
        self._refusals = Refusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = visit_of(scope)
        if scope["type"] != "http" or not visit.controlled:
            await self.app(scope, receive, send)
            return
        house = open_house_of(scope)
        try:
            if house.closing:
                raise Draining("this server is shutting down; ask another one")
            place = visit.place = _admitted(house, visit)
            try:
                await self._serve(scope, receive, send, house, visit, place)
            finally:
                _give_back(house, visit, place)
        except ProofError as refusal:
            self._refusals.note(house, visit, refusal)
            raise

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, house: Lobby, visit: Visit, place: Place
    ) -> None:
        outgoing = _Outgoing(send, house, visit, place)
        incoming = None
        here = Trail()
        ends_at = deadline.set(house.now() + self._timeout_s)
        told = trail.set(here)
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                if place.lane is Lane.WARM and visit.method in ("GET", "HEAD"):
                    await self.app(scope, receive, outgoing.send)  # it waits for nobody
                else:
                    incoming = _Incoming(receive)
                    await self._attended(scope, incoming, outgoing, limit)
        except TimeoutError:
            if not limit.expired():
                raise
            if incoming is not None and incoming.gone:
                visit.outcome = "cancelled"
            elif outgoing.started:
                # Half an answer is out: returning without the rest of it makes the server cut the connection.
                visit.outcome = RequestTimeout.code
                self._refusals.note(house, visit, RequestTimeout("the answer was cut off"))
            else:
                raise RequestTimeout("proof request exceeded the server's deadline", stage=here.stage) from None
        finally:
            trail.reset(told)
            deadline.reset(ends_at)
            if here.joined and visit.cache == "miss":
                visit.cache = "joined"

    async def _attended(self, scope: Scope, incoming: _Incoming, outgoing: _Outgoing, limit: asyncio.Timeout) -> None:
        """Runs the routes while watching the client, whose hanging up cancels them as the deadline would."""

        def hung_up() -> bool:
            if outgoing.completed or limit.expired():
                return False
            limit.reschedule(asyncio.get_running_loop().time())
            return True

        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(incoming.watch(hung_up))
            try:
                await self.app(scope, incoming.receive, outgoing.send)
            except Exception as error:  # noqa: BLE001 - raised again below: the group would wrap it
                failure = error
            finally:
                watch.cancel()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # or its traceback would hold the frame that holds it


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


class _Incoming:
    """What the client sends, read ahead of the routes so that its hanging up is seen while they work."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: deque[Message] = deque()
        self._failure: ProofError | None = None
        self._ended = False
        self._news = asyncio.Event()
        self.gone = False
        """Whether the client hung up before it had its answer."""

    async def watch(self, hung_up: Callable[[], bool]) -> None:
        """Until the client leaves: then `hung_up` is called, and says whether that was too early. What is read ahead is bounded
        by the size that a body may have."""
        whole = False
        try:
            while (message := await self._receive())["type"] != "http.disconnect":
                if whole:
                    return  # a server that says nothing of its clients: there is nothing to watch
                whole = not message.get("more_body", False)
                self._messages.append(message)
                self._news.set()
            self.gone = hung_up()
        except ProofError as refusal:  # too large a body: said to whoever reads it
            self._failure = refusal
        self._ended = True
        self._news.set()

    async def receive(self) -> Message:
        """For the routes."""
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return {"type": "http.disconnect"}
            self._news.clear()
            await self._news.wait()
        return self._messages.popleft()
