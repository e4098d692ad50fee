"""Creditcoin's client package `@gluwa/cc-next-query-builder` in a Node process: the usc family's outside judge."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.oracles.node import require_packages

_PROGRAM = Path(__file__).with_suffix(".mjs")


class SdkError(Exception):
    """The package threw."""


def _hex(data: bytes) -> str:
    return "0x" + data.hex()


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


class Sdk:
    """One Node process. Use it as a context manager: leaving it ends the process. Safe to call from several threads."""

    def __init__(self) -> None:
        require_packages()
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            ["node", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process: its input closes, and it leaves by itself; it is killed, by its id, if it does not."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def call(self, name: str, **arguments: object) -> Any:
        """Calls one function of `sdk.mjs`. Raises `SdkError` with the text that the package threw."""
        with self._lock:
            request_id = next(self._ids)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps({"id": request_id, "call": name, "with": arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the node process ended with {self._process.poll()}")
        outcome = json.loads(line)
        if outcome["id"] != request_id:
            raise RuntimeError("an answer to another request")
        if "error" in outcome:
            raise SdkError(outcome["error"])
        return outcome.get("answer")

    def leaf(self, transaction: Mapping[str, object], receipt: Mapping[str, object]) -> bytes:
        """The leaf bytes of a transaction and its receipt, both as a node spells them in JSON."""
        return _bytes(self.call("leaf", transaction=transaction, receipt=receipt))

    def root_of_block(
        self, transactions: Sequence[Mapping[str, object]], receipts: Sequence[Mapping[str, object]]
    ) -> bytes:
        """The root over a whole block, both lists in index order and as a node spells them."""
        return _bytes(self.call("rootOfBlock", transactions=transactions, receipts=receipts))

    def tree(self, leaves: Sequence[bytes]) -> tuple[bytes, list[list[tuple[bytes, bool]]]]:
        """The root over leaf bytes and, for each leaf, its siblings as (hash, is_left)."""
        answer = self.call("tree", leaves=[_hex(leaf) for leaf in leaves])
        proofs = [[(_bytes(entry["hash"]), entry["isLeft"]) for entry in proof] for proof in answer["proofs"]]
        return _bytes(answer["root"]), proofs

    def root(self, leaves: Sequence[bytes]) -> bytes:
        """The root over leaf bytes; 32 zero bytes over none."""
        return _bytes(self.call("root", leaves=[_hex(leaf) for leaf in leaves]))

    def digest(self, height: int, root: bytes, previous: bytes | None) -> bytes:
        """The continuity digest of a height."""
        return _bytes(
            self.call("digest", height=height, root=_hex(root), previous=None if previous is None else _hex(previous))
        )

    def recompute(self, body: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """From a single proof as the server sent it: the root its siblings give, the digest its roots end in."""
        answer = self.call(
            "recompute",
            txBytes=body["txBytes"],
            merkleProof=body["merkleProof"],
            continuityProof=body["continuityProof"],
            height=body["headerNumber"],
        )
        return _bytes(answer["root"]), _bytes(answer["upperDigest"])

    def generate_proof(self, chain_key: int, url: str, tx_hash: bytes, *, timeout_ms: int = 5000) -> dict[str, Any]:
        """What `ProverAPIProofGenerator.generateProof` makes of a running server: {"success", "data" or "error"}."""
        answer: dict[str, Any] = self.call(
            "generateProof", chainKey=chain_key, url=url, txHash=_hex(tx_hash), timeoutMs=timeout_ms
        )
        return answer

    def generate_raw(self, chain_key: int, source: str, creditcoin: str, tx_hash: bytes) -> dict[str, Any]:
        """What `RawProofGenerator.generateProof` makes of a node of the source chain and one of Creditcoin, without a server."""
        answer: dict[str, Any] = self.call(
            "generateRaw", chainKey=chain_key, source=source, creditcoin=creditcoin, txHash=_hex(tx_hash)
        )
        return answer

    def round_trip(self, text: str) -> tuple[Any, list[str]]:
        """A JSON text after JavaScript read and wrote it again, and the numbers in it that JavaScript cannot hold."""
        answer = self.call("roundTrip", text=text)
        return json.loads(answer["text"]), list(answer["unsafe"])
