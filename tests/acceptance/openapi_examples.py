"""The examples of the OpenAPI document, as the demo answers them. `python -m tests.acceptance.openapi_examples` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import app.api
from app.core.continuity import digest
from app.core.hexadecimal import to_hex
from tests.acceptance.judging import to_bytes
from tests.acceptance.server import Copath, running_demo
from tests.acceptance.waiting import until

FILE = Path(app.api.__path__[0]) / "examples.json"

PARAMETERS: dict[str, Any] = {
    "chain": "mainnet-early",
    "chain_key": "1",
    "tx_hash": "0x0bb157f90f918fad96d6954d9e620a4aa490da57a66303a6b41e855fd0f19a59",
    "log_index": 0,
    "block": 1000023,
    "header_number": 1000023,
    "tx_index": 1,
    "i": 1,
    "finality": "finalized",
    "index": "receipt",
    "e": "1",
}
_POSITIONS = [{"headerNumber": 1000023, "txIndexes": [1]}, {"headerNumber": 1000024}]
_CHANGING = ("cached", "generatedAt", "headAgeSeconds", "cache", "upstreams")
"""Fields of which no two answers need be alike."""


def made(demo: Copath) -> dict[str, Any]:
    """All of them. `operations`: which each operation shows, of requests and of answers."""
    chain, tx_hash, block = (PARAMETERS[name] for name in ("chain", "tx_hash", "block"))
    native = f"/api/v1/proofs/{chain}"
    key = PARAMETERS["chain_key"]
    until(lambda: demo.get(f"/api/v1/chains/{chain}").json["backfill"]["state"] == "caught up", "the demo's blocks")
    until(lambda: demo.get(f"/api/v1/attested-height/{key}").json["attestedHeight"] == 1000030, "the demo's anchors")
    examples: dict[str, Any] = {}
    operations: dict[str, dict[str, list[str]]] = {}

    def add(name: str, summary: str, value: Any) -> Any:
        examples[name] = {"summary": summary, "value": value}
        return value

    def show(operation: str, *answers: str, requests: tuple[str, ...] = ()) -> None:
        operations[operation] = {"requests": list(requests), "responses": list(answers)}

    transaction = add("TransactionProof", "A transaction", _get(demo, f"{native}/transactions/{tx_hash}"))
    add("ReceiptProof", "A receipt", _get(demo, f"{native}/receipts/{tx_hash}"))
    add("LogProof", "A log", _get(demo, f"{native}/logs/{tx_hash}/{PARAMETERS['log_index']}"))
    add("LogProofAt", "A log", _get(demo, f"{native}/blocks/{block}/logs/{PARAMETERS['i']}"))
    for kind in ("Transaction", "Receipt", "Log"):
        show(f"get{kind}Proof", f"{kind}Proof")
        show(f"get{kind}ProofAt", f"{kind}Proof" if kind != "Log" else "LogProofAt")

    usc = add("UscProof", "A transaction with its receipt", _get(demo, f"/api/v1/proof-by-tx/{key}/{tx_hash}"))
    show("getUscProof", "UscProof")
    show("getUscProofByTransaction", "UscProof")
    for operation, path, body in (
        ("getUscBatch", f"/api/v1/proof-batch/{key}", add("Positions", "One transaction, and roots alone", _POSITIONS)),
        ("getUscBatchByTransaction", f"/api/v1/proof-batch-by-tx/{key}", add("Hashes", "One transaction", [tx_hash])),
    ):
        batch, split = (
            ("UscBatch", "UscSplitBatch") if operation == "getUscBatch" else ("UscBatchOfHashes", "UscSplitOfHashes")
        )
        add(batch, "Under one continuity proof", _post(demo, path, body))
        add(split, "With split=10", _post(demo, f"{path}?split=10", body))
        show(operation, batch, split, requests=("Positions" if operation == "getUscBatch" else "Hashes",))

    requests = {
        "Native": ("A proof as a native route returned it", transaction),
        "Usc": ("A usc proof with the anchor that is trusted", {"proof": usc, "anchor": anchor_of(usc)}),
        "UscAsItIs": ("A usc proof under no anchor: there is none that is trusted", usc),
        "Trie": (
            "A trie of one item",
            {
                "kind": "trie",
                "root": "0x0934a6a4a84a455b46bf2e427c90fbc07dbce3fd6fe5b9213cc6cd7c8030792c",
                "key": "0x80",
                "value": "0x61",
                "nodes": ["0xc482208061"],
            },
        ),
        "TrieAbsent": (
            "A key that is not in the trie",
            {
                "kind": "trie",
                "root": transaction["root"],
                "key": "0x10",
                "value": None,
                "nodes": transaction["nodes"][:1],
            },
        ),
    }
    for name, (summary, value) in requests.items():
        add(name, summary, value)
        add(f"VerdictOn{name}", summary, _post(demo, "/api/v1/proofs/verify", value))
    show("verifyProof", *(f"VerdictOn{name}" for name in requests), requests=tuple(requests))

    for operation, name, path in (
        ("getChain", "Chain", f"/api/v1/chains/{chain}"),
        ("getAttestedHeight", "AttestedHeight", f"/api/v1/attested-height/{key}"),
        ("getHealth", "Healthy", "/health"),
        ("getLiveness", "Alive", "/livez"),
    ):
        add(name, "Of the demo", _get(demo, path))
        show(operation, name)
    return {"parameters": PARAMETERS, "operations": operations, "examples": examples}


def settled(value: Any) -> Any:
    """A value without what is never twice the same."""
    if isinstance(value, list):
        return [settled(item) for item in value]
    if isinstance(value, dict):
        return {name: settled(item) for name, item in value.items() if name not in _CHANGING}
    return value


def anchor_of(usc: dict[str, Any]) -> dict[str, Any]:
    """Where the digest chain of a proof ends. A caller would know it from elsewhere."""
    proof = usc["continuityProof"]
    reached = to_bytes(proof["lowerEndpointDigest"])
    height = usc["headerNumber"] - 1
    for root in proof["roots"]:
        height += 1
        reached = digest(height, to_bytes(root), reached)
    return {"height": height, "digest": to_hex(reached)}


def _get(demo: Copath, path: str) -> Any:
    answer = demo.get(path)
    assert answer.status == 200, (path, answer.body[:300])
    return answer.json


def _post(demo: Copath, path: str, body: Any) -> Any:
    answer = demo.post(path, body)
    assert answer.status == 200, (path, answer.body[:300])
    return answer.json


if __name__ == "__main__":
    with running_demo() as running:
        FILE.write_text(json.dumps(made(running), indent=1) + "\n")
