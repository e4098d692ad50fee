"""Proofs that come in: a verdict on any of them, and what is wrong with those that do not hold.

To call a proof valid takes two: the diagnosis, which says where a proof fails, and the independent verifier, which shares no
code with it. One suffices to refuse. A proof that the first accepts and the second refuses is a fault of ours, and no verdict.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import logging

import orjson
from fastapi import FastAPI, Request
from starlette.responses import Response

from app import checker
from app.api.lobby import open_house_of
from app.api.schemas import Verdict
from app.api.verify_schemas import VERIFY_REQUEST
from app.api.visit import visit_of
from app.core.diagnosis import Diagnosis, diagnose
from app.core.errors import InvalidParameter, MalformedJson, Overloaded, SelfCheckFailed, UnsupportedMediaType
from app.core.proof_forms import NotAProof, NotJson, Statement
from app.metrics import NO_CHAIN

log = logging.getLogger(__name__)

PATH = "/api/v1/proofs/verify"

INLINE_BYTES = 16 * 1024
"""A body up to this size is judged on the event loop, whatever is in it within five milliseconds. Larger ones wait for the one
thread that judges: several would only take turns, and take them from everybody else."""

MAX_WAITING = 16
"""Large bodies that wait for it, the next one is refused."""


class Disagreement(Exception):
    """The independent verifier refused what the diagnosis found valid."""

    def __init__(self, statement: Statement, refused: checker.Refused) -> None:
        super().__init__(refused.reason)
        self.kind: str = statement.fields["kind"] if statement.kind in ("native", "trie") else "usc"
        self.reason = refused.reason
        self.field = refused.field


def judge(body: bytes, anchor: tuple[int, bytes] | None = None) -> tuple[Diagnosis, Statement | None]:
    """The verdict on a proof and what it states, `anchor` as in `diagnose`. Raises `NotJson`, `NotAProof` and `Disagreement`."""
    diagnosis, statement = diagnose(body, anchor)
    if diagnosis.valid:
        assert statement is not None, "what was not read is not valid"
        try:
            _second_opinion(statement)
        except checker.Refused as refused:
            raise Disagreement(statement, refused) from refused
    return diagnosis, statement


def _second_opinion(statement: Statement) -> None:
    claim = statement.fields
    if statement.kind == "native":
        checker.check_native(json.dumps(statement.said).encode(), {})
    elif (
        statement.kind == "trie" and claim["nodes"]
    ):  # where there is no node, the root alone tells that the trie is empty
        # A node below 32 bytes that is listed repeats what stands in its parent: some list all of them, some none, some a few.
        nodes = [node for place, node in enumerate(claim["nodes"]) if not place or len(node) >= 32]
        try:
            checker.check_trie(claim["root"], claim["key"], claim["value"], nodes, listed=False)
        except checker.Refused as refused:
            if claim["value"] is not None or refused.reason != "Absent":
                raise
    elif statement.kind in ("usc", "batch", "split"):
        assert statement.anchor is not None, "a usc proof without an anchor is not valid"
        check = checker.check_usc if statement.kind == "usc" else checker.check_usc_batch
        for part in statement.said.get("batches", [statement.said]):
            check(json.dumps(part).encode(), {}, statement.anchor)


def add_routes(app: FastAPI) -> None:
    """Registers the route, and gives the application the turn of its thread."""
    app.state.judging = _Turns()
    app.post(
        PATH,
        operation_id="verifyProof",
        summary="A verdict on any proof",
        tags=["verification"],
        responses={200: {"model": Verdict}},
        response_class=Response,
        openapi_extra={"requestBody": VERIFY_REQUEST},
    )(verify)


async def verify(request: Request) -> Response:
    """Whether a proof holds, and if not, what is wrong with it: which node, which nibble of the key, which field.

    The body is what a proof route returned, or `{"proof": that}`; a usc proof comes with the anchor that is trusted, as
    `"anchor": {"height", "digest"}`. Or it is the raw form of a trie proof, where the value null claims that the key is absent.
    Always 200 for what has the form of a proof.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType("the body must be application/json")
    body = await request.body()
    try:
        diagnosis, _ = judge(body) if len(body) <= INLINE_BYTES else await _in_turn(request, body)
    except NotJson as refused:
        raise MalformedJson("the request body is not JSON") from refused
    except NotAProof as refused:
        raise InvalidParameter(f"invalid parameter: {refused}") from refused
    except Disagreement as found:
        raise _failed(request, found) from found
    return Response(
        orjson.dumps(diagnosis.as_json()), headers={"Cache-Control": "no-store"}, media_type="application/json"
    )


class _Turns:
    """Of the thread that judges large bodies, and how many wait for one. The shortest body is next: it waits for one long one at
    most, and not for all that came before it."""

    def __init__(self) -> None:
        self.waiting = 0
        self._taken = False
        self._line: list[tuple[int, int, asyncio.Future[None]]] = []
        self._came = itertools.count()

    async def acquire(self, size: int) -> None:
        """Returns once it is the turn of a body of this size."""
        if not self._taken:
            self._taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._line, (size, next(self._came), turn))
        self.waiting += 1
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # given in the moment in which it was not wanted any more
                self.release()
            raise
        finally:
            self.waiting -= 1

    def release(self) -> None:
        """The turn goes to the next, if there is one."""
        while self._line:
            _, _, turn = heapq.heappop(self._line)
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False


async def _in_turn(request: Request, body: bytes) -> tuple[Diagnosis, Statement | None]:
    """Judges in a thread, one at a time. Who is cancelled does not stop the thread: its turn ends when it does.

    Raises `Overloaded` where too many wait."""
    turns: _Turns = request.app.state.judging
    if turns.waiting >= MAX_WAITING:
        raise Overloaded("too many large proofs are being verified; retry with back-off", reason="verify_queue")
    await turns.acquire(len(body))
    try:
        judging = asyncio.get_running_loop().run_in_executor(None, judge, body)
    except BaseException:
        turns.release()
        raise
    judging.add_done_callback(lambda _: turns.release())
    return await asyncio.shield(judging)


def _failed(request: Request, found: Disagreement) -> SelfCheckFailed:
    open_house_of(request.scope).metrics.selfcheck_failures_total.labels(NO_CHAIN, found.kind).inc()
    fields = {"reason": found.reason, "field": found.field, "request_id": visit_of(request.scope).request_id}
    log.error("selfcheck_failed", extra={"kind": found.kind, **fields})
    return SelfCheckFailed("two verifiers of ours disagree about this proof: there is no verdict")
