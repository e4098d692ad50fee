"""A node that does what a test tells it: a real HTTP server on 127.0.0.1, honest JSON-RPC until scripted otherwise.

    async with ScriptedNode.of_corpus(recorded("full", "mainnet_1000000")) as node:
        node.script("eth_getBlockReceipts", null(), error(-32005, "rate limit"), reset())
        ...
        assert node.hits["eth_getBlockReceipts"] == 4

Each method has a queue of behaviours; a call takes the next one, and an empty queue means the honest answer (or what
`always` says). Everything that arrived is counted. Quantities and hashes must be spelled exactly: a node that takes
`0x07` hides bugs. The behaviours are in `tests/scripted_behaviours.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.scripted_behaviours import Behaviour, failing, honest, succeeding

Json = Any

QUANTITY = re.compile(r"0x(0|[1-9a-f][0-9a-f]*)")
HASH = re.compile(r"0x[0-9a-f]{64}")


# --- the node -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ScriptedNode:
    """The blocks it knows, how it behaves, and what it was asked. Attributes may be changed at any time."""

    chain_id: int = 1
    unsupported: set[str] = field(default_factory=set)
    """Methods answered with -32601."""
    receipts_forms: set[str] = field(default_factory=lambda: {"hash", "object", "number"})
    """Spellings of the block that `eth_getBlockReceipts` takes."""
    tags: set[str] = field(default_factory=lambda: {"latest", "safe", "finalized", "earliest"})
    head: int | None = None
    """What the node says its head is; None: the highest canonical block."""
    safe: int | None = None
    finalized: int | None = None
    batches: bool = True
    batch_limit: int | None = None
    """More calls than this in one batch are refused as a whole."""
    batch_cut: int | None = None
    """Only so many calls of a batch are answered; the rest carry -32003."""
    batch_order: Callable[[list[Json]], list[Json]] = field(default=lambda answers: answers)
    key: str = ""
    """A path that the URL carries and that must match."""

    hits: Counter[str] = field(default_factory=Counter)
    """Calls by method; calls inside a batch count too."""
    params: dict[str, list[Json]] = field(default_factory=lambda: defaultdict(list))
    headers: list[dict[str, str]] = field(default_factory=list)
    posts: int = 0
    batch_sizes: list[int] = field(default_factory=list)
    connections: int = 0
    open_connections: int = 0
    sent_bytes: int = 0

    canonical: dict[int, str] = field(default_factory=dict)
    blocks: dict[str, Json] = field(default_factory=dict)
    receipts: dict[str, list[Json] | None] = field(default_factory=dict)
    pending: dict[str, Json] = field(default_factory=dict)

    _queues: dict[str, deque[Behaviour]] = field(default_factory=lambda: defaultdict(deque))
    _standing: dict[str, Behaviour] = field(default_factory=dict)
    _arrivals: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _connections: set[Connection] = field(default_factory=set)
    port: int = 0

    # --- its blocks -------------------------------------------------------------------------------------------------

    @classmethod
    def of_corpus(cls, *records: Json, **options: Any) -> ScriptedNode:
        """A node that has the recorded blocks; its chain id is theirs."""
        node = cls(chain_id=records[0]["chainId"] if records else 1, **options)
        for record in records:
            node.add(record["block"], record.get("receipts"))
        return node

    def add(self, block: Json, receipts: list[Json] | None, *, canonical: bool = True) -> None:
        """One more block, by default in place of the canonical one at its height. No receipts: it keeps none."""
        block_hash = block["hash"].lower()
        self.blocks[block_hash] = block
        self.receipts[block_hash] = receipts
        if canonical:
            self.canonical[_int(block["number"])] = block_hash

    def forget(self, height: int) -> None:
        """No block at this height, and none by its hash."""
        block_hash = self.canonical.pop(height)
        del self.blocks[block_hash], self.receipts[block_hash]

    @property
    def head_height(self) -> int:
        """What `eth_blockNumber` says."""
        return self.head if self.head is not None else max(self.canonical, default=0)

    # --- its behaviour ----------------------------------------------------------------------------------------------

    def script(self, method: str, *behaviours: Behaviour) -> None:
        """The next calls of `method` meet these, one each, in order. `*` is any method without a queue of its own."""
        self._queues[method].extend(behaviours)

    def always(self, method: str, behaviour: Behaviour | None) -> None:
        """Every call of `method` meets this once its queue is empty; None: honest again. `*` as in `script`."""
        if behaviour is None:
            self._standing.pop(method, None)
        else:
            self._standing[method] = behaviour

    def scripted_left(self, method: str) -> int:
        """Behaviours that no call has taken yet."""
        return len(self._queues[method])

    def _next(self, method: str) -> Behaviour:
        for name in (method, "*"):
            if self._queues.get(name):
                return self._queues[name].popleft()
        return self._standing.get(method) or self._standing.get("*") or honest()

    # --- its life ---------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where it listens, its key included."""
        return f"http://127.0.0.1:{self.port}/{self.key}"

    async def __aenter__(self) -> ScriptedNode:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        """Listens; on the port it had before, when it was stopped in between."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port or self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuses connections from now on and drops those it has."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, method: str, hits: int = 1) -> None:
        """Waits until so many calls of `method` have arrived."""
        while self.hits[method] < hits:
            await self._arrivals.wait()

    def close_idle(self) -> None:
        """Closes every connection on which no call is being served."""
        for connection in list(self._connections):
            if not connection.busy:
                connection.close()

    def tire_of_connections(self) -> None:
        """Every connection that is open now is closed when the next call comes over it, without an answer."""
        for connection in self._connections:
            connection.tired = True

    def reset_counts(self) -> None:
        """Forgets what arrived so far."""
        self.hits.clear()
        self.params.clear()
        self.headers.clear()
        self.batch_sizes.clear()
        self.posts = self.connections = self.sent_bytes = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = Connection(self, reader, writer)
        self.connections += 1
        self.open_connections += 1
        self._tasks.add(task)
        self._connections.add(connection)
        try:
            await connection.serve()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open_connections -= 1
            self._tasks.discard(task)
            self._connections.discard(connection)
            connection.close()

    # --- calls ------------------------------------------------------------------------------------------------------

    async def handle(self, connection: Connection, posted: Json) -> None:
        """One POST: a call or a batch."""
        self.posts += 1
        if isinstance(posted, list):
            await connection.respond_json(self._batch(posted))
            return
        self._count(posted)
        behaviour = self._next(posted["method"])
        if behaviour.act is not None:
            await behaviour.act(self, connection, posted)
        else:
            assert behaviour.reply is not None
            reply = behaviour.reply(self, posted)
            await (connection.respond(200, b"", {}) if reply is None else connection.respond_json(reply))

    def _count(self, call: Json) -> None:
        self.hits[call["method"]] += 1
        self.params[call["method"]].append(call["params"])
        self._arrivals.set()
        self._arrivals = asyncio.Event()

    def _batch(self, calls: list[Json]) -> Json:
        self.batch_sizes.append(len(calls))
        if not self.batches:
            return {
                "jsonrpc": "2.0",
                "id": None,
                "error": {"code": -32600, "message": "batch requests are not allowed"},
            }
        if self.batch_limit is not None and len(calls) > self.batch_limit:
            return {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "batch too large"}}
        answers = []
        for at, call in enumerate(calls):
            self._count(call)
            if self.batch_cut is not None and at >= self.batch_cut:
                answers.append(failing(call, -32003, "response too large"))
                continue
            behaviour = self._next(call["method"])
            if behaviour.reply is None:
                raise AssertionError(f"{behaviour.name} cannot be scripted inside a batch")
            reply = behaviour.reply(self, call)
            if reply is not None:
                answers.append(reply)
        return self.batch_order(answers)

    def honest(self, call: Json) -> Json:
        """What a good node answers."""
        method, params = call["method"], call["params"]
        if method in self.unsupported:
            return failing(call, -32601, f"the method {method} does not exist/is not available")
        try:
            return succeeding(call, self._result_of(method, params))
        except _BadParamsError as refusal:
            return failing(call, -32602, str(refusal))
        except _NoTagError:
            return failing(call, -32000, "unknown block")

    def _result_of(self, method: str, params: list[Json]) -> Json:
        match method, params:
            case "eth_chainId", []:
                return hex(self.chain_id)
            case "eth_blockNumber", []:
                return hex(self.head_height)
            case "eth_getBlockByNumber", [which, bool(full)]:
                return self._shown(self._hash_of(which), full)
            case "eth_getBlockByHash", [which, bool(full)]:
                return self._shown(_exact_hash(which), full)
            case "eth_getBlockReceipts", [which]:
                return self.receipts.get(self._receipts_block(which) or "")
            case "eth_getTransactionByHash", [tx_hash]:
                return self._transaction(_exact_hash(tx_hash))
            case "eth_getTransactionReceipt", [tx_hash]:
                return self._receipt(_exact_hash(tx_hash))
        raise _BadParamsError(f"invalid argument 0: {method} with {len(params)} parameters")

    def _hash_of(self, which: Json) -> str | None:
        if isinstance(which, str) and which in ("latest", "safe", "finalized", "earliest", "pending"):
            if which not in self.tags:
                raise _NoTagError
            last = self.head_height
            heights = {"latest": last, "safe": self.safe, "finalized": self.finalized, "earliest": min(self.canonical)}
            wanted = heights.get(which)
            return self.canonical.get(last if wanted is None else wanted)
        if not (isinstance(which, str) and QUANTITY.fullmatch(which)):
            raise _BadParamsError("invalid argument 0: hex number with leading zero digits")
        return self.canonical.get(int(which, 16))

    def _receipts_block(self, which: Json) -> str | None:
        form = "object" if isinstance(which, dict) else "hash" if HASH.fullmatch(str(which)) else "number"
        if form not in self.receipts_forms:
            raise _BadParamsError("invalid argument 0: json: cannot unmarshal")
        if form == "object":
            return _exact_hash(which["blockHash"])
        return _exact_hash(which) if form == "hash" else self._hash_of(which)

    def _shown(self, block_hash: str | None, full: bool) -> Json:
        block = self.blocks.get(block_hash or "")
        if block is None:
            return None
        entries = list(self._entries(block))
        return {**block, "transactions": entries if full else [entry["hash"] for entry in entries]}

    def _entries(self, block: Json) -> Iterator[Json]:
        for index, entry in enumerate(block.get("transactions") or []):
            shown = {"hash": entry} if isinstance(entry, str) else dict(entry)
            shown.setdefault("blockHash", block["hash"])
            shown.setdefault("blockNumber", hex(_int(block["number"])))
            shown.setdefault("transactionIndex", hex(index))
            yield shown

    def _transaction(self, tx_hash: str) -> Json:
        if tx_hash in self.pending:
            return self.pending[tx_hash]
        for block_hash in self.canonical.values():
            for entry in self._entries(self.blocks[block_hash]):
                if entry["hash"].lower() == tx_hash:
                    return entry
        return None

    def _receipt(self, tx_hash: str) -> Json:
        for block_hash in self.canonical.values():
            for receipt in self.receipts[block_hash] or []:
                if receipt["transactionHash"].lower() == tx_hash:
                    return receipt
        return None


class _BadParamsError(Exception):
    pass


class _NoTagError(Exception):
    pass


def _exact_hash(text: Json) -> str:
    if not (isinstance(text, str) and HASH.fullmatch(text)):
        raise _BadParamsError("invalid argument 0: hex string of another length")
    return text


def _int(quantity: Json) -> int:
    return int(quantity, 16) if isinstance(quantity, str) and quantity.startswith("0x") else int(quantity)


@dataclass(eq=False)
class Connection:
    """One connection, HTTP/1.1 with keep-alive, by hand: only so can it misbehave."""

    node: ScriptedNode
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    busy: bool = False
    tired: bool = False

    async def serve(self) -> None:
        while not self.writer.is_closing():
            head = await self.reader.readexactly(1)
            if head == b"\x16":
                # A TLS handshake meets a server without TLS.
                await self.respond(400, b"", {})
                return
            head += await self.reader.readuntil(b"\r\n\r\n")
            self.busy = True
            request_line, *lines = head.decode("latin-1").split("\r\n")
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            self.node.headers.append(headers)
            if self.tired:
                self.node.posts += 1
                return
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
            _, target, _ = request_line.split(" ")
            if target != f"/{self.node.key}":
                await self.respond(404, b"no such path", {})
            else:
                await self.node.handle(self, json.loads(body))
            self.busy = False

    async def respond_json(self, body: Json) -> None:
        await self.respond(200, json.dumps(body).encode(), {"content-type": "application/json"})

    async def respond(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        await self.head(status, {"content-length": str(len(body)), **headers})
        await self.send(body)

    async def head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        await self.send("\r\n".join(lines).encode())

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.node.sent_bytes += len(data)

    async def until_gone(self) -> None:
        while await self.reader.read(65536):
            pass

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        opened: socket.socket = self.writer.get_extra_info("socket")
        # Linger for zero seconds: the close becomes a reset.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port of this machine on which nobody listens, and nobody can start to."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
