"""A node in a process of its own: one recorded block, and as many more of the same transactions below it as are asked for.

python -m bench.node NAME [--blocks N] [--latency-ms N]        prints its port

The blocks below differ from the recorded one in their number alone, and so in their hash: what it takes to check one of them is
what it takes to check the recorded one. NAME is that of a recorded block, or `made-N` for a made one of N transactions. Two
methods are no node's: `bench_hold` [true|false] leaves every call unanswered until it is taken back, `bench_latency` [ms] changes
the latency.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys

import msgspec
import uvloop

from app.core.keccak import keccak
from bench.made import made
from tests import corpus_files
from tests.acceptance.made_blocks import header_rlp


class Answers:
    """JSON-RPC answers of a chain whose newest block, final already, is the recorded one."""

    def __init__(self, name: str, blocks: int = 1) -> None:
        kind, _, transactions = name.partition("-")
        record = made(int(transactions)) if kind == "made" else corpus_files.recorded("full", name)
        block = record["block"]
        self.block = json.dumps(block).encode()
        self.light = json.dumps(block | {"transactions": [entry["hash"] for entry in block["transactions"]]}).encode()
        self.receipts = json.dumps(record["receipts"]).encode()
        self.transactions = {entry["hash"]: json.dumps(entry).encode() for entry in block["transactions"]}
        self.chain_id, self.height = hex(record["chainId"]), int(block["number"], 16)
        self.hashes = {height: _hash_at(block, height) for height in range(self.height - blocks + 1, self.height + 1)}
        self.heights = {block_hash: height for height, block_hash in self.hashes.items()}

    def result(self, method: str, params: list[object]) -> bytes:
        """The JSON text of one result."""
        if method == "eth_chainId":
            return json.dumps(self.chain_id).encode()
        if method == "eth_blockNumber":
            return json.dumps(hex(self.height)).encode()
        if method in ("eth_getBlockByNumber", "eth_getBlockByHash"):
            return self._told(self.block if params[1] else self.light, params[0])
        if method == "eth_getBlockReceipts":
            return self._told(self.receipts, params[0])
        if method == "eth_getTransactionByHash":
            return self.transactions.get(str(params[0]), b"null")
        return b"null"

    def _told(self, text: bytes, which: object) -> bytes:
        """`text`, of the recorded block, as it reads for the block that `which` names: a tag, a number or a hash."""
        named = str(which.get("blockHash") or which.get("blockNumber")) if isinstance(which, dict) else str(which)
        height = self.heights.get(named)
        if height is None:
            height = int(named, 16) if named.startswith("0x") else self.height
        if height == self.height:
            return text
        block_hash = self.hashes.get(height)
        if block_hash is None:
            return b"null"
        text = text.replace(self.hashes[self.height].encode(), block_hash.encode())
        return text.replace(b'"%b"' % hex(self.height).encode(), b'"%b"' % hex(height).encode())


def _hash_at(block: dict[str, str], height: int) -> str:
    if height == int(block["number"], 16):
        return block["hash"]
    return "0x" + keccak(header_rlp(block | {"number": hex(height)})).hex()


class Temper:
    """How the node answers: after which latency, give or take a half, or not at all."""

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s
        self._chance = random.Random(3)
        self._willing = asyncio.Event()
        self._willing.set()

    async def pass_by(self, method: str, params: list[object]) -> None:
        """Returns once the call is to be answered."""
        if method == "bench_hold":
            (self._willing.clear if params[0] else self._willing.set)()
        elif method == "bench_latency":
            self.latency_s = float(str(params[0])) / 1000
        else:
            if self.latency_s:
                # Were it always the same, calls that began together would end together for ever.
                await asyncio.sleep(self.latency_s * self._chance.uniform(0.5, 1.5))
            await self._willing.wait()


async def serve(name: str, blocks: int, latency_s: float) -> None:
    """Serves until killed."""
    answers, temper = Answers(name, blocks), Temper(latency_s)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                call = msgspec.json.decode(await reader.readexactly(size))
                await temper.pass_by(call["method"], call["params"])
                body = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (
                    call["id"],
                    answers.result(call["method"], call["params"]),
                )
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                    + body
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--blocks", type=int, default=1)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    chosen = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(chosen.name, chosen.blocks, chosen.latency_ms / 1000))


if __name__ == "__main__":
    main()
