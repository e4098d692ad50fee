"""What is not a question gets a code and a status at once: the node is not asked. Every error has one shape."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.judging import COMPATIBLE, NATIVE, judge_error
from tests.acceptance.made_blocks import CHAIN_ID, every_type, small_chain
from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Copath, chain, running_copath
from tests.acceptance.waiting import until

BLOCKS = small_chain(every_type())
BLOCK = BLOCKS[1]["block"]
HASH = BLOCK["transactions"][0]["hash"]
ASKED_FOR_PROOFS = ("eth_getTransactionByHash", "eth_getTransactionReceipt", "eth_getBlockReceipts")


@pytest.fixture(scope="module")
def source(node: RecordedNode) -> RecordedChain:
    node.chains["input"] = RecordedChain(CHAIN_ID, BLOCKS)
    return node.chains["input"]


@pytest.fixture(scope="module")
def copath(node: RecordedNode, source: RecordedChain) -> Iterator[Copath]:
    # The second chain has anchors of its own; its backfill asks a node of its own.
    node.chains["input-anchored"] = RecordedChain(CHAIN_ID, BLOCKS)
    anchors = {"source": "self", "genesis": 1, "interval": 1, "checkpoint_every": 1000}
    with running_copath(
        chain(2, "input", CHAIN_ID, node.url("input")),
        chain(11, "anchored", CHAIN_ID, node.url("input-anchored"), anchors=anchors),
    ) as running:
        yield running


BAD_HASHES = {
    "63 digits": "0x" + "a" * 63,
    "65 digits": "0x" + "a" * 65,
    "no hex": "0x" + "g" * 64,
    "a space before": "%20" + HASH,
    "a space inside": HASH[:30] + "%20" + HASH[31:],
    "a newline after": HASH + "%0A",
    "arabic digits": "0x" + "%D9%A1" * 64,
    "full-width digits": "0x" + "%EF%BC%91" * 64,
    "a prefix alone": "0x",
    "underscores": "0x" + "1_" * 32,
    "a plus sign": "+" + "a" * 63,
    "a NUL": "0x" + "a" * 63 + "%00",
}
BAD_BLOCKS = {
    "negative": "-1",
    "an exponent": "1e3",
    "a fraction": "1.5",
    "2^64": str(2**64),
    "2^53": str(2**53),
    "2^53 in hex": hex(2**53),
    "a sign": "+1",
    "a tag": "latest",
    "a space": "%201",
    "arabic digits": "%D9%A1",
    "hex without digits": "0x",
    "an underscore": "1_000",
    "63 hex digits": "0x" + "a" * 63,
    "65 hex digits": "a" * 65,
}
BAD_INDEXES = {
    "negative": "-1",
    "an exponent": "1e0",
    "text": "first",
    "2^64": str(2**64),
    "2^53": str(2**53),
    "a space": "%200",
    "arabic digits": "%D9%A0",
    "hex text": "zz",
}


def _native_cases() -> Iterator[tuple[str, str, int, str]]:
    for what, value in BAD_HASHES.items():
        for kind in ("transactions", "receipts", "logs"):
            tail = "/0" if kind == "logs" else ""
            yield f"{kind} hash: {what}", f"proofs/2/{kind}/{value}{tail}", 400, "InvalidParameter"
    for what, value in BAD_BLOCKS.items():
        yield f"block: {what}", f"proofs/2/blocks/{value}/transactions/0", 400, "InvalidParameter"
    for what, value in BAD_INDEXES.items():
        for kind in ("transactions", "receipts", "logs"):
            yield f"{kind} index: {what}", f"proofs/2/blocks/2/{kind}/{value}", 400, "InvalidParameter"
        yield f"log index: {what}", f"proofs/2/logs/{HASH}/{value}", 400, "InvalidParameter"
    yield "unknown finality", f"proofs/2/transactions/{HASH}?finality=certain", 400, "InvalidParameter"
    yield "unknown encoding", f"proofs/2/transactions/{HASH}?encoding=braille", 400, "InvalidParameter"
    yield "unknown log numbering", f"proofs/2/logs/{HASH}/0?index=chain", 400, "InvalidParameter"
    for name in ("9", "no-such-chain"):
        yield f"chain {name}", f"proofs/{name}/transactions/{HASH}", 400, "InvalidChainKey"
    yield "a great chain key", f"proofs/{2**64}/transactions/{HASH}", 400, "InvalidParameter"
    yield "no such route", f"proofs/2/uncles/{HASH}", 404, "NotFound"


def _compatible_cases() -> Iterator[tuple[str, str, int, str]]:
    yield "a height in words", "proof/NOT/0/0", 400, "InvalidParameter"
    yield "a negative height", "proof/2/-4/0", 400, "InvalidParameter"
    yield "a negative index", "proof/2/4/-1", 400, "InvalidParameter"
    yield "a height of 2^64", f"proof/2/{2**64}/0", 400, "InvalidParameter"
    yield "a fraction", "proof/2/1.5/0", 400, "InvalidParameter"
    yield "a chain in words", f"proof-by-tx/NOT/{HASH}", 400, "InvalidParameter"
    yield "no hash", "proof-by-tx/2/0xUNEXPECTED", 400, "InvalidParameter"
    for what, value in BAD_HASHES.items():
        yield f"hash: {what}", f"proof-by-tx/2/{value}", 400, "InvalidParameter"
    yield "an unconfigured chain", "proof/3/1/0", 400, "InvalidChainKey"
    yield "an unconfigured chain by hash", f"proof-by-tx/3/{HASH}", 400, "InvalidChainKey"
    yield "an unconfigured chain's height", "attested-height/3", 400, "InvalidChainKey"
    yield "a chain in words' height", "attested-height/NOT", 400, "InvalidParameter"


@pytest.fixture
def unasked(source: RecordedChain) -> Iterator[None]:
    """The node is asked for no block and no transaction while the test runs."""
    before = (source.block_fetches(), source.hits(*ASKED_FOR_PROOFS))
    yield
    assert (source.block_fetches(), source.hits(*ASKED_FOR_PROOFS)) == before


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize(("what", "path", "status", "code"), [*_native_cases()], ids=lambda value: str(value)[:40])
def test_B73_native_input(what: str, path: str, status: int, code: str, copath: Copath) -> None:
    judge_error(copath.get(f"/api/v1/{path}"), status, code, NATIVE)


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize(("what", "path", "status", "code"), [*_compatible_cases()], ids=lambda value: str(value)[:40])
def test_B73_compatible_input(what: str, path: str, status: int, code: str, copath: Copath) -> None:
    judge_error(copath.get(f"/api/v1/{path}"), status, code, COMPATIBLE)


def test_an_unconfigured_chain_is_named_with_those_that_are(copath: Copath) -> None:
    assert copath.get("/api/v1/proof/3/1/0").json["message"] == "Chain key not configured: 3 (allowed: [2, 11])"
    not_hex = copath.get("/api/v1/proof-by-tx/2/0xabcd")
    assert not_hex.json["message"] == "invalid parameter: tx_hash must be 32 bytes, got 2"


# --- methods and paths ------------------------------------------------------------------------------------------------


def _gets() -> list[str]:
    native = "/api/v1/proofs/2"
    return [
        "/",
        "/livez",
        "/readyz",
        "/health",
        "/metrics",
        "/openapi.json",
        "/docs",
        "/api/swagger",
        "/api/swagger/",
        "/api/swagger/openapi.json",
        "/api/v1/health",
        "/api/v1/chains",
        "/api/v1/chains/2",
        "/api/v1/chains/input",
        "/api/v1/attested-height/2",
        "/api/v1/proof/11/2/0",
        f"/api/v1/proof-by-tx/11/{HASH}",
        f"{native}/transactions/{HASH}",
        f"{native}/receipts/{HASH}",
        f"{native}/logs/{BLOCK['transactions'][1]['hash']}/0",
        f"{native}/blocks/2/transactions/0",
        f"{native}/blocks/2/receipts/0",
        f"{native}/blocks/{BLOCK['hash']}/logs/0",
    ]


# They say when they were made, or count what has happened.
CHANGING = {"/livez", "/readyz", "/health", "/metrics", "/api/v1/health", "/api/v1/chains"}


@pytest.mark.parametrize("path", _gets())
def test_B65_head_is_get_without_the_body(path: str, copath: Copath) -> None:
    until(lambda: copath.get("/api/v1/attested-height/11").json["attestedHeight"] == 3, "anchors")
    got = copath.get(path)
    assert got.status < 400, (path, got.status, got.body[:300])
    head = copath.client.send("HEAD", path)
    assert head.status == got.status
    assert head.body == b""
    for name in ("content-type", "etag", "cache-control", "location", "content-location", "content-length"):
        if name == "content-length" and (path in CHANGING or "generatedAt" in got.body.decode(errors="replace")):
            continue
        assert head.headers.get(name) == got.headers.get(name), name


@pytest.mark.parametrize("path", _gets())
def test_B65_another_method_is_told_which_there_are(path: str, copath: Copath) -> None:
    for method in ("DELETE", "PUT", "PATCH"):
        refused = copath.client.send(method, path)
        assert refused.status == 405
        assert {"GET", "HEAD"} <= {allowed.strip() for allowed in refused.headers["allow"].split(",")}
        compatible = path.startswith(("/api/v1/proof/", "/api/v1/proof-", "/api/v1/attested", "/api/v1/health"))
        media_type = refused.headers["content-type"].split(";")[0] if not compatible else COMPATIBLE
        judge_error(refused, 405, "MethodNotAllowed", media_type)
        assert media_type in (NATIVE, COMPATIBLE)
    options = copath.client.send("OPTIONS", path)
    assert options.status in (200, 204)
    assert "GET" in options.headers["allow"]


@pytest.mark.parametrize("path", ["/nothing", "/api", "/api/v1/nothing", "/api/v2/proof/2/1/0", "/livez/", "//"])
def test_B72_an_unknown_path(path: str, copath: Copath) -> None:
    judge_error(copath.get(path), 404, "NotFound", NATIVE)
    head = copath.client.send("HEAD", path)
    assert (head.status, head.body) == (404, b"")


def test_every_error_carries_cors_and_a_request_id(copath: Copath) -> None:
    origin = {"Origin": "https://example.org"}
    for path in ("/nothing", "/api/v1/proofs/2/transactions/0x", "/api/v1/proof/3/1/0", "/livez"):
        answer = copath.client.send("GET", path, headers=origin)
        assert answer.headers["access-control-allow-origin"] == "*"
        exposed = {name.strip().lower() for name in answer.headers["access-control-expose-headers"].split(",")}
        assert {"etag", "retry-after", "x-request-id"} <= exposed
        assert answer.headers["x-request-id"]
