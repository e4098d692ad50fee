"""A node that answers JSON-RPC from recorded blocks, over a real socket; it counts what it is asked and can be held up.

One server plays many chains, each under its own path, so that one Copath can be given all of them.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Record = dict[str, Any]
_QUANTITY = re.compile(r"0x(0|[1-9a-f][0-9a-f]*)")
_HASH = re.compile(r"0x[0-9a-f]{64}")
_NULL = b"null"


class Refusal(Exception):
    """A JSON-RPC error of this node."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def _integer(value: object) -> int:
    return int(value, 16) if isinstance(value, str) and value.startswith("0x") else int(str(value))


class RecordedChain:
    """The blocks of one chain. Everything that was asked is in `calls`; requests against the spelling rules of the
    execution APIs, and block data asked for by tag, are in `violations`."""

    def __init__(self, chain_id: int, records: Iterable[Record], heights: Iterable[int] | None = None) -> None:
        """`heights` says where the blocks are, whatever they say themselves: for blocks that lie about it."""
        self.chain_id = chain_id
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.violations: list[str] = []
        self.holds: dict[str, threading.Event] = {}
        self.answers: dict[str, Callable[[tuple[Any, ...]], Any]] = {}
        """Methods that a test answers itself; raise `Refusal` for an error."""
        self.pruned = False
        """Whether receipts that were not recorded are said to be pruned; otherwise the answer for them is null."""
        self.finalized: int | None = None
        """The height under `finalized` and `safe`; the head where it is None."""
        self._records: dict[str, Record] = {}
        self._blocks: dict[str, bytes] = {}
        self._receipts: dict[str, bytes] = {}
        self._canonical: dict[int, str] = {}
        self._positions: dict[str, tuple[str, int]] = {}
        self._lock = threading.Lock()
        if heights is None:
            for record in records:
                self.add(record)
        else:
            for record, height in zip(records, heights, strict=True):
                self.add(record, height)

    def add(self, record: Record, height: int | None = None) -> None:
        """Puts a block on the chain: the newest one given for a height is the canonical one."""
        block, receipts = record["block"], record.get("receipts")
        name = str(block["hash"]).lower()
        self._records[name] = record
        self._blocks[name] = json.dumps(block).encode()
        self._receipts[name] = _NULL if receipts is None else json.dumps(receipts).encode()
        self._canonical[_integer(block["number"]) if height is None else height] = name
        for index, transaction in enumerate(block.get("transactions") or []):
            tx_hash = transaction["hash"] if isinstance(transaction, dict) else transaction
            self._positions[str(tx_hash).lower()] = (name, index)
        for index, receipt in enumerate(receipts or []):
            self._positions.setdefault(receipt["transactionHash"].lower(), (name, index))

    @property
    def head(self) -> int:
        """The highest recorded height."""
        return max(self._canonical)

    def hits(self, *methods: str) -> int:
        """How often any of the methods was called; every call with no method given."""
        with self._lock:
            counts = Counter(method for method, _ in self.calls)
        return sum(counts.values()) if not methods else sum(counts[method] for method in methods)

    def block_fetches(self) -> int:
        """Calls that asked for a block with its transactions."""
        with self._lock:
            return sum(
                method in ("eth_getBlockByNumber", "eth_getBlockByHash") and params[1] is True
                for method, params in self.calls
            )

    @contextmanager
    def held(self, method: str) -> Iterator[threading.Event]:
        """While inside, answers to `method` wait until the event is set; leaving sets it."""
        gate = self.holds[method] = threading.Event()
        try:
            yield gate
        finally:
            gate.set()
            del self.holds[method]

    # --- answering --------------------------------------------------------------------------------------------------

    def answer(self, method: str, params: tuple[Any, ...]) -> bytes:
        """The JSON text of one result. Raises `Refusal`."""
        with self._lock:
            self.calls.append((method, params))
        gate = self.holds.get(method)
        if gate is not None:
            gate.wait(timeout=60)
        if method in self.answers:
            return json.dumps(self.answers[method](params)).encode()
        match method:
            case "eth_chainId":
                return json.dumps(hex(self.chain_id)).encode()
            case "net_version":
                return json.dumps(str(self.chain_id)).encode()
            case "eth_blockNumber":
                return json.dumps(hex(self.head)).encode()
            case "eth_syncing":
                return b"false"
            case "eth_getBlockByNumber":
                return self._block(self._at(params[0], whole=params[1]), whole=params[1])
            case "eth_getBlockByHash":
                return self._block(self._named(params[0]), whole=params[1])
            case "eth_getBlockReceipts":
                return self._block_receipts(params[0])
            case "eth_getTransactionByHash":
                return self._transaction(self._spelled_hash(params[0]))
            case "eth_getTransactionReceipt":
                return self._receipt(self._spelled_hash(params[0]))
            case _:
                raise Refusal(-32601, f"the method {method} does not exist/is not available")

    def _spelled_hash(self, value: Any) -> str:
        if not isinstance(value, str) or not _HASH.fullmatch(value):
            self.violations.append(f"a hash spelled {value!r}")
            raise Refusal(-32602, "invalid argument 0: hex string of another length")
        return value

    def _at(self, place: Any, *, whole: bool) -> str | None:
        if place in ("latest", "safe", "finalized", "pending", "earliest"):
            if whole:
                self.violations.append(f"block data under the tag {place!r}")
            if place == "earliest":
                return self._canonical.get(0)
            final = self.head if self.finalized is None else self.finalized
            return self._canonical.get(self.head if place in ("latest", "pending") else final)
        if not isinstance(place, str) or not _QUANTITY.fullmatch(place):
            self.violations.append(f"a quantity spelled {place!r}")
            raise Refusal(-32602, "invalid argument 0: hex number with leading zero digits")
        return self._canonical.get(int(place, 16))

    def _named(self, value: Any) -> str | None:
        name = self._spelled_hash(value)
        return name if name in self._blocks else None

    def _block(self, name: str | None, *, whole: bool) -> bytes:
        if name is None:
            return _NULL
        if whole:
            return self._blocks[name]
        block = dict(self._records[name]["block"])
        listed = block.get("transactions") or []
        block["transactions"] = [entry if isinstance(entry, str) else entry["hash"] for entry in listed]
        return json.dumps(block).encode()

    def _block_receipts(self, place: Any) -> bytes:
        if isinstance(place, dict):
            place = place.get("blockHash")
        name = self._named(place) if isinstance(place, str) and len(place) == 66 else self._at(place, whole=True)
        if name is not None and self.pruned and self._receipts[name] == _NULL:
            raise Refusal(4444, "pruned history unavailable")
        return _NULL if name is None else self._receipts[name]

    def _transaction(self, tx_hash: str) -> bytes:
        if tx_hash not in self._positions:
            return _NULL
        name, index = self._positions[tx_hash]
        block = self._records[name]["block"]
        listed = block.get("transactions") or []
        whole = dict(listed[index]) if index < len(listed) and isinstance(listed[index], dict) else {"hash": tx_hash}
        whole |= {
            "blockHash": block["hash"],
            "blockNumber": hex(_integer(block["number"])),
            "transactionIndex": hex(index),
        }
        return json.dumps(whole).encode()

    def _receipt(self, tx_hash: str) -> bytes:
        for receipt in (
            self._records[self._positions[tx_hash][0]].get("receipts") or [] if tx_hash in self._positions else []
        ):
            if receipt["transactionHash"].lower() == tx_hash:
                return json.dumps(receipt).encode()
        return _NULL


class RecordedNode:
    """The socket: `url(name)` is the endpoint of the chain of that name."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.chains: dict[str, RecordedChain] = {}

    def url(self, name: str) -> str:
        """The endpoint of one chain."""
        return f"http://127.0.0.1:{self.port}/{name}"

    def respond(self, path: str, body: bytes) -> bytes:
        """One HTTP exchange: single calls and batches."""
        chain = self.chains[path.strip("/")]
        request = json.loads(body)
        if isinstance(request, list):
            return b"[" + b",".join(self._one(chain, call) for call in request) + b"]"
        return self._one(chain, request)

    def _one(self, chain: RecordedChain, call: dict[str, Any]) -> bytes:
        head = b'{"jsonrpc":"2.0","id":' + json.dumps(call["id"]).encode()
        try:
            return head + b',"result":' + chain.answer(call["method"], tuple(call.get("params", ()))) + b"}"
        except Refusal as refusal:
            return head + b',"error":' + json.dumps({"code": refusal.code, "message": refusal.message}).encode() + b"}"


@contextmanager
def running_node() -> Iterator[RecordedNode]:
    """A node on a free port of the loopback address, for the length of a `with`."""

    class Exchange(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Without these an answer of two packets waits for the peer's delayed acknowledgement.
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = node.respond(self.path, body)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """The default writes every request to stderr."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *_: object) -> None:
            """A peer that went away is no news here."""

    server = Server(("127.0.0.1", 0), Exchange)
    node = RecordedNode(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield node
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
