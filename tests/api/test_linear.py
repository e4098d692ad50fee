"""Text and proofs from strangers: nothing that is read of them takes longer than in proportion to its length."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from app.api import conditional
from app.api.verify import judge
from app.checker import verifier
from app.core import rlp
from app.core.consumers import Proxies
from app.core.hexadecimal import to_hex
from app.core.keccak import keccak

KIB_64 = 64 * 1024
CPU_S = 2.0
"""What is measured takes milliseconds; where it grew with the square of the length it took ten seconds and more."""

SHAPES: dict[str, Callable[[int], str]] = {
    "spaces-then-mark": lambda size: "a" + " " * size + "!",
    "spaces": lambda size: " " * size,
    "tabs-around-semicolons": lambda size: "gzip" + "\t" * (size // 2) + ";" + "\t" * (size // 2) + "!",
    "weights": lambda size: "gzip;q=" + "0" * size,
    "commas": lambda size: "," * size,
    "offers": lambda size: "a;q=1," * (size // 6),
    "quotes": lambda size: '"' * size,
    "open-quote": lambda size: '"' + "a" * size,
    "tags": lambda size: 'W/"a", ' * (size // 7),
    "slashes": lambda size: "a/" * (size // 2),
    "semicolons": lambda size: "text/plain" + ";" * size,
    "equals": lambda size: "=" * size,
    "colons": lambda size: ":" * size,
    "digits": lambda size: "1" * size,
    "dots": lambda size: "1." * (size // 2),
    "brackets": lambda size: "[" * size,
    "prefixes": lambda size: "0x" * (size // 2),
}
NAMES = (
    "accept",
    "accept-encoding",
    "accept-language",
    "access-control-request-headers",
    "authorization",
    "content-type",
    "cookie",
    "forwarded",
    "if-match",
    "if-none-match",
    "origin",
    "range",
    "x-api-key",
    "x-forwarded-for",
    "x-request-id",
)


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_header_holds_up_the_loop(client: httpx2.AsyncClient, shape: str) -> None:
    hostile = SHAPES[shape](KIB_64)
    proof = "/api/v1/proofs/modern/blocks/19426587/receipts/3"
    for name in NAMES:
        for method, path in (
            ("GET", proof),
            ("GET", "/metrics"),
            ("OPTIONS", proof),
            ("POST", "/api/v1/proofs/verify"),
        ):
            started = time.process_time()
            answer = await client.request(method, path, headers={name: hostile})
            assert time.process_time() - started < CPU_S, (name, method, path)
            assert answer.status_code < 500


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_query_and_no_path_hold_up_the_loop(client: httpx2.AsyncClient, shape: str) -> None:
    hostile = SHAPES[shape](1500).replace("\t", " ")
    for path in (f"/api/v1/proofs/modern/transactions/{hostile}", f"/api/v1/proofs/{hostile}/blocks/1/receipts/1"):
        for query in ({}, {"finality": hostile}, {"encoding": hostile}, {"e": hostile}, {hostile: hostile[:100]}):
            started = time.process_time()
            answer = await client.get(path, params=query)
            assert time.process_time() - started < CPU_S, (path[:40], query.keys())
            assert answer.status_code < 500


@pytest.mark.parametrize("shape", SHAPES)
def test_the_readers_alone_are_linear(shape: str) -> None:
    hostile = SHAPES[shape](16 * KIB_64)
    started = time.process_time()
    conditional.takes_gzip([hostile, hostile])
    conditional.matches(conditional.Headers(raw=[(b"if-none-match", hostile.encode())]), '"a"')
    Proxies(["10.0.0.0/8"]).network_of("10.0.0.1", [hostile, hostile])
    assert time.process_time() - started < CPU_S


def test_offers_beyond_those_that_are_read_count_for_nothing() -> None:
    assert conditional.takes_gzip(["gzip"])
    assert not conditional.takes_gzip(["br," * 32 + "gzip"])


# --- bodies ---------------------------------------------------------------------------------------------------------------

MANY = 450_000
SMALL_LOG = rlp.encode([b"\x11" * 20, [], b""])
RECEIPT_HEAD = [rlp.encode(b"\x01"), rlp.encode(b"\x01"), rlp.encode(bytes(256))]


def listed(*items: bytes) -> bytes:
    return rlp.encode_list_of_encoded(items)


def native(kind: str, leaf: bytes, log: bytes | None = None, header: bytes = b"") -> dict[str, Any]:
    """A proof whose hashes are all right; only it is of nothing that a chain holds."""
    node = listed(rlp.encode(b"\x20\x80"), rlp.encode(leaf))
    root, none = keccak(node), bytes(32)
    roots = (root, none) if kind == "transaction" else (none, root)
    fields = [none, none, bytes(20), none, *roots, bytes(256), b"\x01", b"\x05", b"", b"", b"", b"", none, bytes(8)]
    encoded = listed(*[rlp.encode(each) for each in fields], header)
    body: dict[str, Any] = {
        "format": "copath/1",
        "kind": kind,
        "chainKey": "1",
        "chainId": "1",
        "blockNumber": 5,
        "blockHash": to_hex(keccak(encoded)),
        "headerRlp": to_hex(encoded),
        "finality": {"level": "latest", "by": "depth", "sources": 1},
        "transactionHash": to_hex(keccak(leaf)),
        "transactionIndex": 0,
        "root": to_hex(root),
        "key": "0x80",
        "value": to_hex(leaf),
        "nodes": [to_hex(node)],
    }
    if log is not None:
        bare = {"address": "0x" + "11" * 20, "topics": [], "data": "0x", "indexInReceipt": 0, "indexInBlock": 0}
        body["log"] = bare | {"rlp": to_hex(log)}
    return body


def trie(node: bytes) -> dict[str, Any]:
    return {"kind": "trie", "root": to_hex(keccak(node)), "key": "0x80", "value": "0x01", "nodes": [to_hex(node)]}


BODIES: dict[str, Callable[[], dict[str, Any]]] = {
    "a-header-of-many-fields": lambda: native("transaction", b"x" * 40, header=b"\x01" * 2 * MANY),
    "a-header-with-a-list-of-many": lambda: native("transaction", b"x" * 40, header=listed(b"\xc0" * MANY)),
    "a-receipt-of-many-fields": lambda: native("log", listed(b"\x01" * MANY), SMALL_LOG),
    "many-bytes-for-logs": lambda: native("log", listed(*RECEIPT_HEAD, listed(b"\x01" * MANY)), SMALL_LOG),
    "one-log-among-bytes": lambda: native("log", listed(*RECEIPT_HEAD, listed(SMALL_LOG, b"\x01" * MANY)), SMALL_LOG),
    "a-log-of-many-fields": lambda: native("log", listed(*RECEIPT_HEAD, listed(listed(b"\x01" * MANY))), SMALL_LOG),
    "a-node-of-many-items": lambda: trie(listed(b"\x01" * 2 * MANY)),
    "a-branch-with-a-list-of-many": lambda: trie(listed(listed(b"\x01" * 2 * MANY), b"\x80" * 16)),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_a_proof_is_made_of_is_counted_before_it_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(BODIES[name]()).encode()
    assert len(body) > 900_000
    read = 0
    header = rlp._header

    def counted(data: bytes, at: int, limit: int) -> tuple[bool, int, int]:
        nonlocal read
        read += 1
        return header(data, at, limit)

    monkeypatch.setattr(rlp, "_header", counted)
    assert not judge(body)[0].valid
    assert read < 45_000  # a twentieth of the items, and more than the logs that as many bytes could hold


@pytest.mark.parametrize("name", BODIES)
def test_the_second_verifier_counts_too(name: str) -> None:
    body = BODIES[name]()
    text, node = json.dumps(body).encode(), bytes.fromhex(body["nodes"][0][2:])
    is_trie = body["kind"] == "trie"
    started = time.process_time()
    with pytest.raises(verifier.Refused):
        verifier.check_trie(keccak(node), b"\x80", None, [node]) if is_trie else verifier.check_native(text, {})
    assert time.process_time() - started < 0.5


def test_as_many_logs_as_fit_are_read() -> None:
    logs = [rlp.encode([b"\x11" * 20, [], bytes([number % 128])]) for number in range(20_000)]
    body = native("log", listed(*RECEIPT_HEAD, listed(*logs)), logs[-1])
    body["log"] |= {"indexInReceipt": 19_999, "indexInBlock": 19_999, "data": to_hex(bytes([19_999 % 128]))}
    assert judge(json.dumps(body).encode())[0].valid
