"""One table, one body: every code has a status, and body, status and Retry-After never contradict each other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.responses import Response

from app.api import problems
from app.api.visit import RouteSign, Visit, begin
from app.core import errors
from app.core.errors import ProofError
from app.metrics import OUTCOMES

COMPATIBLE = "/api/v1/proof-by-tx/{chain_key}/{tx_hash}"
NATIVE = "/api/v1/proofs/{chain}/receipts/{tx_hash}"


def every_error(kind: type[ProofError] = ProofError) -> Iterator[type[ProofError]]:
    for sub in kind.__subclasses__():
        if sub.__module__ == errors.__name__:
            yield sub
        yield from every_error(sub)


EVERY_ERROR = sorted(every_error(), key=lambda kind: kind.code)


def answered(refusal: ProofError, template: str | None = NATIVE, request_id: str = "id-1") -> tuple[Response, Any]:
    scope: dict[str, Any] = {"type": "http"}
    sign = None if template is None else RouteSign(template, frozenset({"GET", "HEAD"}))
    begin(scope, Visit(request_id, "GET", sign))
    response = problems.answer(scope, refusal)
    return response, json.loads(bytes(response.body))


def test_every_error_has_its_own_code_a_status_and_an_outcome_label() -> None:
    codes = [kind.code for kind in EVERY_ERROR]
    assert len(set(codes)) == len(codes) > 40
    assert set(problems.PROBLEMS) == set(codes)
    assert set(codes) <= set(OUTCOMES)
    for kind in EVERY_ERROR:
        assert kind.code == kind.__name__


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=lambda kind: kind.code)
def test_B72_B47_body_status_and_retry_after_agree(kind: type[ProofError]) -> None:
    response, body = answered(kind("what happened"))
    assert body["code"] == kind.code
    assert body["message"] == body["detail"] == "what happened"
    assert body["retriable"] is kind.retriable
    assert body["status"] == response.status_code == problems.PROBLEMS[kind.code].status
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["content-type"] == "application/problem+json"
    assert ("retry-after" in response.headers) is body["retriable"]
    if response.status_code in (429, 503, 504):
        assert body["retriable"]
    if response.status_code in (400, 401, 405, 413, 415, 500):
        assert not body["retriable"]


@pytest.mark.parametrize(
    ("kind", "status", "retriable"),
    [
        (errors.NotFinalized, 409, True),
        (errors.TxNotMined, 404, True),
        (errors.TxHashNotFound, 404, False),
        (errors.LogIndexOutOfBounds, 404, False),
        (errors.TxIndexOutOfBounds, 400, False),
        (errors.AttestationsMissing, 404, False),
        (errors.BlockNotOnSourceChain, 404, True),
        (errors.BlockNotReady, 422, True),
        (errors.EmptyBlockTxProof, 422, False),
        (errors.UnsupportedBlockFormat, 422, False),
        (errors.NotCommittedByHeader, 422, False),
        (errors.UnsupportedTransactionType, 422, False),
        (errors.HeaderHashUnsupported, 422, False),
        (errors.HistoryUnavailable, 422, False),
        (errors.InconsistentSource, 503, True),
        (errors.RpcUnavailable, 503, True),
        (errors.UpstreamBudgetExhausted, 503, True),
        (errors.Overloaded, 503, True),
        (errors.ChainOverloaded, 503, True),
        (errors.Draining, 503, True),
        (errors.RequestTimeout, 504, True),
        (errors.ConsumerRateLimited, 429, True),
        (errors.ConsumerConcurrency, 429, True),
        (errors.Unauthorized, 401, False),
        (errors.SelfCheckFailed, 500, False),
        (errors.MerkleError, 500, False),
        (errors.Internal, 500, False),
        (errors.NotFound, 404, False),
        (errors.MethodNotAllowed, 405, False),
        (errors.PayloadTooLarge, 413, False),
        (errors.UnsupportedMediaType, 415, False),
        (errors.MalformedJson, 400, False),
        (errors.InvalidChainKey, 400, False),
        (errors.InvalidParameter, 400, False),
        (errors.BlockBeforeOrAtGenesis, 400, False),
        (errors.EmptyProofQueries, 400, False),
        (errors.TooManyProofQueries, 400, False),
        (errors.TooManyTxQueriesInProofQuery, 400, False),
        (errors.EmptyTxHashes, 400, False),
        (errors.TooManyTxHashes, 400, False),
        (errors.BatchSpanTooLarge, 400, False),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_statuses_are_part_of_the_contract(kind: type[ProofError], status: int, retriable: bool) -> None:
    assert (problems.PROBLEMS[kind.code].status, kind.retriable) == (status, retriable)


def test_compatible_routes_get_the_reference_servers_body_and_nothing_else() -> None:
    refusal = errors.BlockNotReady("not yet", block_number=7, last_attested_block=5)
    response, body = answered(refusal, COMPATIBLE)
    assert response.headers["content-type"] == "application/json"
    assert list(body.items()) == [
        ("code", "BlockNotReady"),
        ("message", "not yet"),
        ("retriable", True),
        ("block_number", 7),
        ("last_attested_block", 5),
    ]


@pytest.mark.parametrize("template", [NATIVE, None])
def test_everything_else_gets_a_problem_document(template: str | None) -> None:
    response, body = answered(errors.TxHashNotFound("no"), template, request_id="a/b?ü".encode().decode("latin-1"))
    assert response.headers["content-type"] == "application/problem+json"
    assert body["type"] == "urn:copath:problem:TxHashNotFound"
    assert body["title"] == "Transaction not found"
    assert re.fullmatch(r"urn:copath:request:[A-Za-z0-9%._~-]+", body["instance"])


def test_extra_fields_never_replace_those_of_the_contract() -> None:
    _, body = answered(errors.Internal("real", code="forged", status=200, retriable=True, stage="kept"))
    assert (body["code"], body["status"], body["retriable"], body["stage"]) == ("Internal", 500, False, "kept")


def test_retry_after_is_a_whole_number_of_seconds_with_jitter_or_the_computed_wait() -> None:
    guessed = {answered(errors.Overloaded("full"))[0].headers["retry-after"] for _ in range(200)}
    assert guessed == {"1", "2", "3"}
    for wait_s, header in ((0.0, "1"), (0.2, "1"), (1.0, "1"), (1.2, "2"), (41.0, "41")):
        response, _ = answered(errors.UpstreamBudgetExhausted("spent", retry_after_s=wait_s))
        assert response.headers["retry-after"] == header
    assert "retry-after" not in answered(errors.Internal("no", retry_after_s=3.0))[0].headers
