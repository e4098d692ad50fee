"""Clients that generators make from the OpenAPI document, at work with the demo: one in Python, one in TypeScript."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.acceptance.openapi_examples import PARAMETERS, anchor_of
from tests.acceptance.server import Copath, running_demo
from tests.acceptance.waiting import until
from tests.oracles import node

CHAIN, KEY, TX_HASH = PARAMETERS["chain"], PARAMETERS["chain_key"], PARAMETERS["tx_hash"]
HEIGHT, TX_INDEX, LOG_INDEX = PARAMETERS["block"], PARAMETERS["tx_index"], PARAMETERS["log_index"]
HOLDS = {"valid": True, "reason": "Valid", "node": None}
VERDICTS = {
    **dict.fromkeys(("transaction", "receipt", "log", "usc", "batch", "split"), HOLDS),
    "uscAsItIs": {"valid": False, "reason": "AnchorMissing", "node": None},
    "absent": {"valid": True, "reason": "Absent", "node": 0},
}


@pytest.fixture(scope="module")
def demo() -> Iterator[Copath]:
    with running_demo() as running:
        until(
            lambda: running.get(f"/api/v1/attested-height/{KEY}").json["attestedHeight"] == 1000030,
            "the demo's anchors",
        )
        yield running


@pytest.fixture(scope="module")
def anchor(demo: Copath) -> dict[str, Any]:
    """The anchor that the usc proofs of the examples lead to."""
    return anchor_of(demo.get(f"/api/v1/proof-by-tx/{KEY}/{TX_HASH}").json)


def run(arguments: list[str], folder: Path) -> str:
    """What a program printed; it must end well."""
    search = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # generators look for formatters there
    )
    done = subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, "PATH": search, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def document_in(folder: Path, demo: Copath) -> Path:
    file = folder / "openapi.json"
    file.write_bytes(demo.get("/openapi.json").body)
    return file


@pytest.fixture(scope="module")
def python_client(demo: Copath, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The package that openapi-python-client made, imported."""
    if find_spec("openapi_python_client") is None:
        node.missing("openapi-python-client is not installed")
    folder = tmp_path_factory.mktemp("python")
    arguments = ["generate", "--path", str(document_in(folder, demo)), "--output-path", str(folder / "copath_client")]
    told = run(
        [sys.executable, "-m", "openapi_python_client", *arguments, "--meta", "none", "--fail-on-warning"], folder
    )
    assert "warning" not in told.lower()
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("copath_client")
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == "copath_client"]:
            del sys.modules[name]


def test_the_python_client_fetches_batches_and_verifies(
    python_client: ModuleType, demo: Copath, anchor: dict[str, Any]
) -> None:
    client = python_client.Client(base_url=demo.url, httpx_args={"trust_env": False})
    models = importlib.import_module("copath_client.models")

    def ask(route: str, *arguments: Any, **more: Any) -> Any:
        module = importlib.import_module(f"copath_client.api.{route}")
        return module.sync(*arguments, client=client, **more)

    def verdict(body: Any) -> dict[str, Any]:
        told = ask("verification.verify_proof", body=body)
        assert isinstance(told, models.Verdict)
        return {"valid": told.valid, "reason": told.reason.value, "node": told.node}

    transaction = ask("native.get_transaction_proof", CHAIN, TX_HASH)
    receipt = ask("native.get_receipt_proof_at", CHAIN, HEIGHT, TX_INDEX)
    log = ask("native.get_log_proof", CHAIN, TX_HASH, LOG_INDEX)
    for proof, kind in ((transaction, "TRANSACTION"), (receipt, "RECEIPT"), (log, "LOG")):
        assert isinstance(proof, models.NativeProof)
        assert proof.kind is models.NativeProofKind[kind]
        assert (proof.chain_id, proof.chain_key, proof.block_number) == ("1", KEY, HEIGHT)
    assert isinstance(log.log, models.ProvenLog)

    usc = ask("usc.get_usc_proof", KEY, HEIGHT, TX_INDEX)
    assert isinstance(usc, models.UscProof)
    entries = [
        models.ProofQuery(header_number=HEIGHT, tx_indexes=[TX_INDEX]),
        models.ProofQuery(header_number=HEIGHT + 1),
    ]
    batch = ask("usc.get_usc_batch", KEY, body=entries)
    assert isinstance(batch, models.UscBatch)
    item = batch.merkle_proofs[str(HEIGHT)][str(TX_INDEX)]
    assert isinstance(item, models.UscBatchItem)
    assert item.tx_hash == TX_HASH
    split = ask("usc.get_usc_batch_by_transaction", KEY, body=[TX_HASH], split=10)
    assert isinstance(split, models.UscSplitBatch)

    trusted = models.Anchor.from_dict(anchor)
    trie = models.TrieProof(kind="trie", root=transaction.root, key="0x10", value=None, nodes=transaction.nodes[:1])
    assert {
        "transaction": verdict(transaction),
        "receipt": verdict(receipt),
        "log": verdict(models.EnvelopedProof(proof=log)),
        "usc": verdict(models.EnvelopedProof(proof=usc, anchor=trusted)),
        "uscAsItIs": verdict(usc),
        "batch": verdict(models.AnchoredUscBatch.from_dict({**batch.to_dict(), "anchor": anchor})),
        "split": verdict(models.EnvelopedProof(proof=split, anchor=trusted)),
        "absent": verdict(trie),
    } == VERDICTS

    missing = ask("native.get_receipt_proof", CHAIN, "00" * 32)
    assert isinstance(missing, models.TransactionNotFoundProblem)
    assert missing.code is models.TransactionNotFoundProblemCode.TXHASHNOTFOUND
    foreign = ask("usc.get_usc_proof_by_transaction", "99", TX_HASH)
    assert isinstance(foreign, models.BadUscTransactionError)
    assert (foreign.code.value, foreign.retriable) == ("InvalidChainKey", False)
    early = ask("usc.get_usc_batch", KEY, body=[models.ProofQuery(header_number=1)])
    assert isinstance(early, models.BadUscBatchError)
    assert early.code.value == "BlockBeforeOrAtGenesis"
    listed = ask("chains.list_chains")
    assert [chain.name for chain in listed.chains] == [
        each["name"] for each in demo.get("/api/v1/chains").json["chains"]
    ]


def test_the_python_client_reads_every_answer(python_client: ModuleType, demo: Copath) -> None:
    client = python_client.Client(base_url=demo.url, httpx_args={"trust_env": False})
    for route in ("get_liveness", "get_readiness", "get_health", "get_compat_health", "get_metrics"):
        assert importlib.import_module(f"copath_client.api.health.{route}").sync(client=client) is not None
    chain = importlib.import_module("copath_client.api.chains.get_chain").sync(CHAIN, client=client)
    assert chain.to_dict().keys() >= demo.get(f"/api/v1/chains/{CHAIN}").json.keys()


def test_the_typescript_client_compiles_fetches_batches_and_verifies(
    demo: Copath, anchor: dict[str, Any], tmp_path: Path
) -> None:
    modules = node.require_packages()
    (tmp_path / "node_modules").symlink_to(modules)
    told = run(
        ["node", str(modules / "openapi-typescript/bin/cli.js"), str(document_in(tmp_path, demo)), "-o", "api.ts"],
        tmp_path,
    )
    assert "warn" not in told.lower()
    (tmp_path / "client.ts").write_text((node.FOLDER / "client.ts").read_text())
    (tmp_path / "package.json").write_text(json.dumps({"type": "module"}))
    strict = {
        "strict": True,
        "exactOptionalPropertyTypes": True,
        "noUncheckedIndexedAccess": True,
        "target": "es2022",
        "module": "nodenext",
        "lib": ["es2022", "dom"],
        "types": [],
    }
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": strict, "files": ["client.ts"]}))
    run(["node", str(modules / "typescript/bin/tsc"), "--project", "."], tmp_path)
    question = {
        "baseUrl": demo.url,
        "chain": CHAIN,
        "chainKey": KEY,
        "txHash": TX_HASH,
        "height": HEIGHT,
        "txIndex": TX_INDEX,
        "logIndex": LOG_INDEX,
        "anchor": anchor,
    }
    answered = json.loads(run(["node", "client.js", json.dumps(question)], tmp_path))
    assert answered.pop("verdicts") == VERDICTS
    assert answered == {
        "chainId": "1",
        "blockNumber": HEIGHT,
        "level": "finalized",
        "topics": 4,
        "proven": TX_HASH,
        "pieces": 1,
        "finalized": 1000030,
        "chains": [each["name"] for each in demo.get("/api/v1/chains").json["chains"]],
        "errors": [[404, True, True], [400, "InvalidChainKey", False]],
    }
