"""The demo's node: it answers JSON-RPC from blocks shipped with the program, in process, and everything above it is unchanged.

It stands where the network would: below the HTTP client, as a transport.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

import httpx2
import msgspec

from app.core.hexadecimal import encode_quantity, parse_quantity

_BLOCKS = files("app.upstream") / "demo_blocks"

_TAGS = frozenset({"latest", "safe", "finalized"})

_NULL = msgspec.Raw(b"null")


class _AnswerError(Exception):
    """The call is answered with an error: code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


@lru_cache(maxsize=1)
def _index() -> dict[str, list[dict[str, Any]]]:
    index: dict[str, list[dict[str, Any]]] = json.loads((_BLOCKS / "index.json").read_text(encoding="utf-8"))
    return index


def demo_chains() -> list[dict[str, Any]]:
    """The chains of the demo, each as an entry of `chains` in a configuration."""
    return [
        {
            "chain_key": chain["chain_key"],
            "name": chain["name"],
            "chain_id": chain["chain_id"],
            "family": chain["family"],
            "eth_rpc_url": f"demo://{chain['name']}",
            "anchors": dict(chain["anchors"]),
            # Single blocks far apart are no range to fill.
            "cache": {"merkle_backfill_enabled": chain["anchors"]["source"] != "none"},
        }
        for chain in _index()["chains"]
    ]


def demo_heights(name: str) -> tuple[int, ...]:
    """The heights of the blocks of one chain, lowest first. Raises ValueError for a name that is none of the demo's."""
    return tuple(_chain(name)["heights"])


def demo_examples(*, first: bool = False) -> list[tuple[str, str]]:
    """Requests worth a try: what each shows, and its path. `first`: only those for somebody who has seen none yet."""
    examples = _index()["examples"]
    return [(each["shows"], each["path"]) for each in examples if each.get("first", False) or not first]


def demo_transport(name: str) -> httpx2.AsyncBaseTransport:
    """A node that has the blocks of the named chain. Takes the URL as well: `demo://mainnet-early`, `demo:mainnet-early`.

    Raises ValueError for a name that is none of the demo's.
    """
    return DemoTransport(_chain(name.removeprefix("demo:").strip("/"))["name"])


def _chain(name: str) -> dict[str, Any]:
    chains = {chain["name"]: chain for chain in _index()["chains"]}
    if name not in chains:
        raise ValueError(f"the demo has no chain of that name; it has {', '.join(chains)}")
    return chains[name]


@dataclass(frozen=True, slots=True)
class _Block:
    """One block as the answers that it gives."""

    full: msgspec.Raw
    with_hashes: msgspec.Raw
    receipts: msgspec.Raw | None


@dataclass(slots=True)
class _Ledger:
    """Every answer of one chain, by what is asked for."""

    chain_id: int
    by_height: dict[int, _Block] = field(default_factory=dict)
    by_hash: dict[str, _Block] = field(default_factory=dict)
    transactions: dict[str, msgspec.Raw] = field(default_factory=dict)
    receipts: dict[str, msgspec.Raw | None] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The highest block: the head, and final."""
        return max(self.by_height)

    def at(self, which: object) -> _Block | None:
        """The block that a tag or a number names."""
        if which in _TAGS:
            return self.by_height[self.last]
        try:
            height = parse_quantity(str(which))
        except ValueError:
            raise _AnswerError(-32602, "invalid argument 0: no block number") from None
        if height <= self.last and height not in self.by_height:
            raise _AnswerError(4444, "pruned history unavailable: not among the blocks of the demo")
        return self.by_height.get(height)


class DemoTransport(httpx2.AsyncBaseTransport):
    """Answers every POST itself. The blocks are read at the first one, in a thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ledger: _Ledger | None = None
        self._reading = asyncio.Lock()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """As httpx2 says."""
        posted = msgspec.json.decode(await request.aread())
        ledger = await self._read_ledger()
        if isinstance(posted, list):
            content = msgspec.json.encode([_answer(ledger, call) for call in posted])
        else:
            content = msgspec.json.encode(_answer(ledger, posted))
        return httpx2.Response(200, headers={"content-type": "application/json"}, stream=_Body(content))

    async def _read_ledger(self) -> _Ledger:
        if self._ledger is None:
            async with self._reading:
                if self._ledger is None:
                    self._ledger = await asyncio.to_thread(_read, self._name)
        return self._ledger


class _Body(httpx2.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


def _read(name: str) -> _Ledger:
    ledger = _Ledger(_chain(name)["chain_id"])
    text = gzip.decompress((_BLOCKS / f"{name}.jsonl.gz").read_bytes())
    for line in text.splitlines():
        record: dict[str, Any] = msgspec.json.decode(line)
        block, receipts = record["block"], record["receipts"]
        hashes = [entry["hash"] for entry in block["transactions"]]
        shown = _Block(
            full=_raw(block),
            with_hashes=_raw({**block, "transactions": hashes}),
            receipts=None if receipts is None else _raw(receipts),
        )
        ledger.by_height[parse_quantity(block["number"])] = shown
        ledger.by_hash[block["hash"].lower()] = shown
        for index, entry in enumerate(block["transactions"]):
            tx_hash = entry["hash"].lower()
            ledger.transactions[tx_hash] = _raw(entry)
            ledger.receipts[tx_hash] = None if receipts is None else _raw(receipts[index])
    return ledger


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _answer(ledger: _Ledger, call: dict[str, Any]) -> dict[str, object]:
    head: dict[str, object] = {"jsonrpc": "2.0", "id": call.get("id")}
    try:
        return {**head, "result": _result(ledger, call["method"], call["params"])}
    except _AnswerError as error:
        return {**head, "error": {"code": error.code, "message": error.message}}


def _result(ledger: _Ledger, method: str, params: Sequence[object]) -> object:
    match method, params:
        case "eth_chainId", []:
            return encode_quantity(ledger.chain_id)
        case "eth_blockNumber", []:
            return encode_quantity(ledger.last)
        case "eth_getBlockByNumber", [which, bool(full)]:
            return _shown(ledger.at(which), full)
        case "eth_getBlockByHash", [str(block_hash), bool(full)]:
            return _shown(ledger.by_hash.get(block_hash.lower()), full)
        case "eth_getBlockReceipts", [str(block_hash)] if len(block_hash) == 66:
            block = ledger.by_hash.get(block_hash.lower())
            return _NULL if block is None else _kept(block.receipts)
        case "eth_getTransactionByHash", [str(tx_hash)]:
            return ledger.transactions.get(tx_hash.lower(), _NULL)
        case "eth_getTransactionReceipt", [str(tx_hash)]:
            return _kept(ledger.receipts.get(tx_hash.lower(), _NULL))
    raise _AnswerError(-32601, f"the method {method} does not exist/is not available in this form")


def _shown(block: _Block | None, full: bool) -> msgspec.Raw:
    if block is None:
        return _NULL
    return block.full if full else block.with_hashes


def _kept(receipts: msgspec.Raw | None) -> msgspec.Raw:
    if receipts is None:
        raise _AnswerError(4444, "pruned history unavailable: these receipts were not recorded")
    return receipts
