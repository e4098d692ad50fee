"""A node in a process of its own: serves one recorded block, the same for everybody, as fast as it can.

python -m bench.node NAME        prints its port
"""

from __future__ import annotations

import asyncio
import json
import sys

import msgspec

from tests import corpus_files


class Answers:
    """JSON-RPC answers of a chain whose only block is the recorded one."""

    def __init__(self, name: str) -> None:
        record = corpus_files.recorded("full", name)
        block = record["block"]
        self.block = json.dumps(block).encode()
        self.light = json.dumps(block | {"transactions": [entry["hash"] for entry in block["transactions"]]}).encode()
        self.receipts = json.dumps(record["receipts"]).encode()
        self.transactions = {entry["hash"]: json.dumps(entry).encode() for entry in block["transactions"]}
        self.chain_id, self.height = hex(record["chainId"]), block["number"]

    def result(self, method: str, params: list[object]) -> bytes:
        """The JSON text of one result."""
        if method == "eth_chainId":
            return json.dumps(self.chain_id).encode()
        if method == "eth_blockNumber":
            return json.dumps(self.height).encode()
        if method in ("eth_getBlockByNumber", "eth_getBlockByHash"):
            return self.block if params[1] else self.light
        if method == "eth_getBlockReceipts":
            return self.receipts
        if method == "eth_getTransactionByHash":
            return self.transactions.get(str(params[0]), b"null")
        return b"null"


async def serve(name: str) -> None:
    """Serves until killed."""
    answers = Answers(name)

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


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
