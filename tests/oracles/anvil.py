"""A real node: anvil, from its npm package, on a free port of the loopback address. It mines only when told to."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.oracles import signing
from tests.oracles.node import missing, require_packages
from tests.oracles.signing import Account, Call

CHAIN_ID = 31337
_LISTENING = re.compile(r"Listening on (127\.0\.0\.1:\d+)")

# Called without data it logs twice (two topics and a word of data; nothing at all), called with any it reverts.
_EMITTER = bytes.fromhex("36156008575f5ffd5b602a5f5233600160205fa25f5fa000")
# Copies the runtime code, which follows these ten bytes, and returns it.
EMITTER_INIT = bytes.fromhex(f"60{len(_EMITTER):02x}600a5f3960{len(_EMITTER):02x}5ff3") + _EMITTER


class RpcError(Exception):
    """The node answered with a JSON-RPC error."""


def _binary() -> Path:
    packages = require_packages()
    found = sorted((packages / "@foundry-rs").glob("anvil-*/bin/anvil*"))
    if not found:
        missing("anvil has no binary for this machine")
    return found[0]


class Anvil:
    """One running node."""

    def __init__(self, url: str, process_id: int) -> None:
        self.url = url
        self.process_id = process_id
        self._ids = itertools.count(1)

    def rpc(self, method: str, *params: object) -> Any:
        """One JSON-RPC call; its result. Raises `RpcError`."""
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": list(params)}
        message = urllib.request.Request(
            self.url, json.dumps(request).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(message, timeout=30) as response:
            answer = json.load(response)
        if "error" in answer:
            raise RpcError(f"{method}: {answer['error'].get('message')}")
        return answer["result"]

    def fund(self, *accounts: Account) -> None:
        """Gives each account 1000 ether."""
        for account in accounts:
            self.rpc("anvil_setBalance", "0x" + account.address.hex(), hex(1000 * 10**18))

    def send(self, raw: bytes) -> str:
        """Puts a signed transaction into the pool; its hash."""
        tx_hash: str = self.rpc("eth_sendRawTransaction", "0x" + raw.hex())
        return tx_hash

    def mine(self, blocks: int = 1) -> int:
        """Mines the whole pool into the next block, and `blocks - 1` empty ones after it; the head's height."""
        self.rpc("anvil_mine", hex(blocks))
        return self.height()

    def height(self) -> int:
        """The head's height."""
        return int(self.rpc("eth_blockNumber"), 16)

    def block(self, height: int) -> dict[str, Any]:
        """The block at a height, with whole transactions."""
        found: dict[str, Any] = self.rpc("eth_getBlockByNumber", hex(height), True)
        return found

    def receipts(self, height: int) -> list[dict[str, Any]]:
        """The receipts of the block at a height."""
        found: list[dict[str, Any]] = self.rpc("eth_getBlockReceipts", hex(height))
        return found

    def reorg(self, depth: int, transactions: Sequence[tuple[bytes, int]] = ()) -> None:
        """Replaces the newest `depth` blocks by others; each transaction goes into the new block of its offset."""
        pairs = [["0x" + raw.hex(), offset] for raw, offset in transactions]
        self.rpc("anvil_reorg", depth, pairs)

    def save(self, path: Path) -> None:
        """Writes its blocks and state where another node can start from, with `--load-state`."""
        dumped = bytes.fromhex(self.rpc("anvil_dumpState", True)[2:])
        path.write_bytes(gzip.decompress(dumped) if dumped[:2] == b"\x1f\x8b" else dumped)

    def mine_every_type(self, *, blobs: bool = False) -> int:
        """Mines one block with transactions of types 0 (both signings), 1, 2 and 4, with creates, a revert and logs;
        with `blobs` one of type 3 too. Returns its height."""
        alice, bob, carol = Account.numbered(1), Account.numbered(2), Account.numbered(3)
        for account in (alice, bob, carol):
            account.nonce = int(self.rpc("eth_getTransactionCount", "0x" + account.address.hex(), "latest"), 16)
        self.fund(alice, bob, carol)
        emitter = self._emitter(alice)
        to = b"\x11" * 20
        access = [(emitter, [bytes(32), b"\x01" * 32]), (to, [])]
        raws = [
            signing.legacy(alice, Call(to, value=7), CHAIN_ID),
            signing.legacy(alice, Call(emitter), None),
            signing.legacy(alice, Call(None, data=EMITTER_INIT), CHAIN_ID),
            signing.with_access_list(alice, Call(emitter), CHAIN_ID, access),
            signing.dynamic_fee(alice, Call(emitter, data=b"\x01"), CHAIN_ID),
            signing.dynamic_fee(alice, Call(to, value=1, data=b"\x00" * 70), CHAIN_ID, access),
            signing.dynamic_fee(bob, Call(None, data=EMITTER_INIT), CHAIN_ID),
        ]
        delegation = signing.authorization(carol, CHAIN_ID, emitter)
        raws.append(signing.set_code(bob, Call(carol.address), CHAIN_ID, [delegation], access))
        if blobs:
            raws.append(signing.blob(bob, Call(to), CHAIN_ID, blobs=2))
        hashes = [self.send(raw) for raw in raws]
        height = self.mine()
        mined = [transaction["hash"] for transaction in self.block(height)["transactions"]]
        if sorted(mined) != sorted(hashes):
            raise RuntimeError(f"sent {len(hashes)} transactions, {len(mined)} were mined")
        return height

    def _emitter(self, sender: Account) -> bytes:
        tx_hash = self.send(signing.dynamic_fee(sender, Call(None, data=EMITTER_INIT), CHAIN_ID))
        self.mine()
        return bytes.fromhex(self.rpc("eth_getTransactionReceipt", tx_hash)["contractAddress"][2:])


@contextmanager
def running_anvil(*options: str, hardfork: str = "prague", port: int = 0) -> Iterator[Anvil]:
    """A node for the length of a `with`, on a free port unless one is given; it is ended by its process id."""
    command = [str(_binary()), "--host", "127.0.0.1", "--port", str(port), "--no-mining", "--order", "fifo"]
    process = subprocess.Popen(
        [*command, "--hardfork", hardfork, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            listening = _LISTENING.search(line)
            if listening:
                break
        else:
            raise RuntimeError(f"anvil ended with {process.wait()}")
        # It logs every request: a full pipe would stop it.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield Anvil(f"http://{listening.group(1)}", process.pid)
    finally:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class MortalAnvil:
    """A node that can be killed, and started again where it was: same port, same blocks."""

    def __init__(self, folder: Path) -> None:
        self._saved = folder / "anvil.json"
        self._life = ExitStack()
        self.anvil: Anvil = self._life.enter_context(running_anvil())
        self.port = int(self.anvil.url.rsplit(":", 1)[1])

    def kill(self) -> None:
        self.anvil.save(self._saved)
        self._life.close()

    def restart(self) -> None:
        self.anvil = self._life.enter_context(running_anvil("--load-state", str(self._saved), port=self.port))

    def close(self) -> None:
        self._life.close()
