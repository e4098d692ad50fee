"""A node that serves the blocks of a situation literally, and does wrong what its faults say.

One server plays the nodes of many situations, each under a path of its own. A fault is an object: `path`, `method` (a name, a
list, or `*`), `match` (all of what it names must hold), `mode` and its `args`, and `count`: so many calls, then it is over.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.acceptance.judging import integer
from tests.scripted_node import HASH, QUANTITY

Json = Any
TAGS = ("latest", "pending", "safe", "finalized", "earliest")


class RpcError(Exception):
    """A JSON-RPC error of this node."""

    def __init__(self, code: Json, message: str, **more: Json) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, **more}


class WholeAnswer(Exception):
    """An HTTP response in place of the JSON-RPC one."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers


@dataclass
class Fault:
    """One thing a node does wrong."""

    method: str | list[str]
    mode: str
    args: Json
    match: Json
    left: int | None

    @classmethod
    def of(cls, told: Json) -> Fault:
        """From its object."""
        count = told.get("count")
        return cls(told["method"], told["mode"], told.get("args") or {}, told.get("match") or {}, count)

    def concerns(self, method: str, params: list[Json], height: int | None) -> bool:
        """Whether it is about this call."""
        if self.left == 0 or not (self.method in ("*", method) or method in self.method):
            return False
        facts = {
            "block": height,
            "full": len(params) > 1 and params[1] is True,
            "final": bool(params) and params[0] == "finalized",
            "safe": bool(params) and params[0] == "safe",
            "form": _form(params[0]) if params else None,
            "first_param": params[0] if params else None,
        }
        return all(facts[name] == wanted for name, wanted in self.match.items())


def _form(param: Json) -> str:
    if isinstance(param, dict):
        return "object"
    return "hash" if HASH.fullmatch(str(param)) else "tag" if param in TAGS else "number"


@dataclass
class PlayedNode:
    """The blocks of one node, its faults, and what it was asked."""

    chain_id: int
    blocks: list[Json]
    head: int | None = None
    final: int | None = None
    faults: list[Fault] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    headers: list[dict[str, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, told: Json, faults: list[Json]) -> PlayedNode:
        """From the `upstream` entry of a situation and the faults of its path."""
        played = [Fault.of(each) for each in faults]
        return cls(told["chainId"], told["blocks"], told.get("head"), told.get("fin"), played)

    def _heights(self) -> dict[int, Json]:
        return {_height_of(entry): entry for entry in self.blocks}

    def respond(self, posted: Json, headers: Mapping[str, str]) -> tuple[int, bytes, Mapping[str, str]]:
        """One HTTP exchange: a call or a batch."""
        with self._lock:
            self.headers.append({name.lower(): value for name, value in headers.items()})
        try:
            answers = [self._one(call) for call in posted] if isinstance(posted, list) else self._one(posted)
        except WholeAnswer as whole:
            return whole.status, whole.body, whole.headers
        return 200, json.dumps(answers).encode(), {"Content-Type": "application/json"}

    def _one(self, call: Json) -> Json:
        method, params = call["method"], call.get("params", [])
        answer: Json = {"jsonrpc": "2.0", "id": call["id"]}
        with self._lock:
            self.hits[method] += 1
            height = self._height(method, params)
            active = [fault for fault in self.faults if fault.concerns(method, params, height)]
            for fault in active:
                if fault.left is not None:
                    fault.left -= 1
        try:
            for fault in active:
                self._before(fault)
            answer["result"] = self._changed(self._result(method, params), active)
        except RpcError as refusal:
            answer["error"] = refusal.error
        for fault in active:
            if fault.mode == "string_id":
                answer["id"] = str(answer["id"])
            elif fault.mode == "id":
                answer["id"] = fault.args["value"]
            elif fault.mode == "envelope":
                answer.update(fault.args)
        return answer

    @staticmethod
    def _before(fault: Fault) -> None:
        match fault.mode:
            case "status":
                args = fault.args
                body = args.get("body", "")
                headers = {"Content-Type": args.get("ctype", "application/json"), **args.get("headers", {})}
                raise WholeAnswer(args["status"], body.encode(), headers)
            case "error":
                raise RpcError(**{"code": None, "message": "", **fault.args})
            case "delay":
                time.sleep(fault.args["seconds"])

    @staticmethod
    def _changed(result: Json, active: list[Fault]) -> Json:
        for fault in active:
            match fault.mode:
                case "null":
                    result = None
                case "result":
                    result = copy.deepcopy(fault.args["value"])
                case "mutate" if result is not None:
                    result = copy.deepcopy(result)
                    for change in fault.args.get("many", [fault.args]):
                        mutate(result, change)
        return result

    def _height(self, method: str, params: list[Json]) -> int | None:
        """The height that a call is about, if it is about one."""
        if not params:
            return None
        which = params[0]["blockHash"] if isinstance(params[0], dict) else params[0]
        if method in ("eth_getTransactionReceipt", "eth_getTransactionByHash"):
            found = self._entry_of_transaction(which)
        elif method.startswith("eth_getBlock"):
            found = self._entry(which) if which not in TAGS else None
        else:
            return None
        return None if found is None else _height_of(found)

    def _entry(self, which: Json) -> Json:
        heights = self._heights()
        if which in TAGS:
            last = max(heights) if self.head is None else self.head
            final = last if self.final is None else self.final
            named = {"latest": last, "pending": last, "safe": final, "finalized": final, "earliest": min(heights)}
            return heights.get(named[which])
        if HASH.fullmatch(str(which)):
            return next((entry for entry in self.blocks if entry["block"].get("hash") == which), None)
        if QUANTITY.fullmatch(str(which)):
            return heights.get(int(which, 16))
        raise RpcError(-32602, "invalid argument 0: json: cannot unmarshal")

    def _entry_of_transaction(self, tx_hash: Json) -> Json:
        for entry in self.blocks:
            if tx_hash in _hashes(entry["block"]):
                return entry
        return None

    def _result(self, method: str, params: list[Json]) -> Json:
        match method, params:
            case "eth_chainId", []:
                return hex(self.chain_id)
            case "net_version", []:
                return str(self.chain_id)
            case "eth_syncing", []:
                return False
            case "web3_clientVersion", []:
                return "played/1"
            case "eth_blockNumber", []:
                return hex(max(self._heights()) if self.head is None else self.head)
            case (("eth_getBlockByNumber" | "eth_getBlockByHash"), [which, bool(full)]):
                entry = self._entry(which)
                if entry is None or full:
                    return entry and entry["block"]
                return {**entry["block"], "transactions": _hashes(entry["block"])}
            case "eth_getBlockReceipts", [which]:
                entry = self._entry(which["blockHash"] if isinstance(which, dict) else which)
                return entry and entry["receipts"]
            case "eth_getTransactionReceipt", [tx_hash]:
                entry = self._entry_of_transaction(tx_hash)
                if entry is None:
                    return None
                listed = [each for each in entry["receipts"] or [] if isinstance(each, dict)]
                return next((each for each in listed if each.get("transactionHash") == tx_hash), None)
            case "eth_getTransactionByHash", [tx_hash]:
                entry = self._entry_of_transaction(tx_hash)
                if entry is None:
                    return None
                index = _hashes(entry["block"]).index(tx_hash)
                found = entry["block"]["transactions"][index]
                told = found if isinstance(found, dict) else {"hash": tx_hash}
                place = {"blockHash": entry["block"].get("hash"), "blockNumber": hex(_height_of(entry))}
                return {**place, "transactionIndex": hex(index), **told}
        raise RpcError(-32601, f"the method {method} does not exist/is not available")


def _height_of(entry: Json) -> int:
    """Where the node has a block: by its number, unless `at` says so for one that lies about it."""
    return entry["at"] if "at" in entry else integer(entry["block"]["number"])


def _hashes(block: Json) -> list[Json]:
    """What a block without whole transactions lists."""
    listed = block.get("transactions") or []
    return [each.get("hash") if isinstance(each, dict) else each for each in listed]


def mutate(result: Json, change: Json) -> None:
    """Changes one place in an answer: `path`, then `value`, `delete`, `rename` (to another name) or `insert`."""
    *way, last = change["path"]
    for step in way:
        result = result[step]
    if change.get("delete"):
        del result[last]
    elif "rename" in change:
        result[change["rename"]] = result.pop(last)
    elif change.get("insert"):
        result.insert(last, change["value"])
    else:
        result[last] = change["value"]


class PlayedNodes:
    """The socket: `url(path)` is the endpoint of one node."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.nodes: dict[str, PlayedNode] = {}

    def url(self, path: str) -> str:
        """The endpoint of one node."""
        return f"http://127.0.0.1:{self.port}/{path}"


@contextmanager
def played_nodes() -> Iterator[PlayedNodes]:
    """The server on a free port of the loopback address, for the length of a `with`."""

    class Exchange(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet: otherwise the second waits for the delayed acknowledgement of the first
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            posted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            node = server.nodes[self.path.strip("/")]
            status, body, headers = node.respond(posted, dict(self.headers.items()))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """The default writes every request to stderr."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *_: object) -> None:
            """A peer that went away is of no interest."""

    listening = Server(("127.0.0.1", 0), Exchange)
    server = PlayedNodes(listening.server_address[1])
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()
