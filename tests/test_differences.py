"""The page of differences from the reference server: each is held by a test that exists, and no code of ours is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from app.api.problems import PROBLEMS
from app.metrics import Metrics
from app.settings import load_settings

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "differences.md").read_text()
HEADS = ("what", "---")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
DIFFERENCES = [row for row in ROWS if row[0] not in HEADS]

REFERENCE_CODES = {
    "InvalidChainKey",
    "InvalidParameter",
    "BlockBeforeOrAtGenesis",
    "TxIndexOutOfBounds",
    "EmptyProofQueries",
    "TooManyProofQueries",
    "TooManyTxQueriesInProofQuery",
    "EmptyTxHashes",
    "TooManyTxHashes",
    "BatchSpanTooLarge",
    "AttestationsMissing",
    "TxHashNotFound",
    "BlockNotOnSourceChain",
    "BlockNotReady",
    "EmptyBlockTxProof",
    "UnsupportedBlockFormat",
    "Overloaded",
    "ChainOverloaded",
    "RequestTimeout",
    "RpcUnavailable",
    "MerkleError",
    "Internal",
}
ELSEWHERE = {"NotFinalized", "LogIndexOutOfBounds", "Unauthorized", "ConsumerRateLimited", "ConsumerConcurrency"}
"""Codes of the native routes, and of keys and quotas."""


def test_the_page_is_found() -> None:
    assert "(docs/differences.md)" in (ROOT / "README.md").read_text()
    assert len(DIFFERENCES) > 30


@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: row[0][:60])
def test_a_difference_is_held_by_a_test(row: list[str]) -> None:
    what, _, ours, named = row
    if not named:
        assert what == "never raised", "only what does not exist needs no test"
        return
    for each in named.split(", "):
        path, _, name = each.strip("`").partition("::")
        functions = {
            node.name
            for node in ast.walk(ast.parse((ROOT / path).read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert not name or name in functions
    assert ours


def test_every_code_of_ours_is_on_the_page() -> None:
    (codes,) = [row for row in DIFFERENCES if row[0] == "codes"]
    assert set(re.findall(r"`(\w+)`", codes[2])) == set(PROBLEMS) - REFERENCE_CODES - ELSEWHERE


def test_the_codes_of_the_reference_server_exist() -> None:
    assert set(PROBLEMS) >= REFERENCE_CODES


def test_the_page_names_the_metrics_that_are_computed() -> None:
    metrics = Metrics(compat_names=True)
    metrics.register_chain("ethereum", 1, ["primary"])
    metrics.chain_attested_head.labels("ethereum").set(1)
    served = set(re.findall(r"^# TYPE (proof_gen_\w+) ", metrics.exposition(None)[0].decode(), re.MULTILINE))
    (computed,) = [row for row in DIFFERENCES if row[0] == "computed"]
    (absent,) = [row for row in DIFFERENCES if row[0] == "not there"]
    assert set(re.findall(r"`(proof_gen_\w+)`", computed[1])) == served
    for name in re.findall(r"`(proof_gen_\w+)", absent[1]):
        assert not any(each.startswith(name) for each in served), name


def test_variables_of_the_reference_server_that_have_no_use_here_change_nothing() -> None:
    chosen = {"COPATH_CHAINS__1__ETH_RPC_URL": "https://node.example.org"}
    idle = {"CC3_KEY": "k", "ARCHIVER_URL": "http://h", "BLOCK_CONFIRMATION_DEPTH": "3", "CHAIN_KEY": "2"}
    assert load_settings(None, {**chosen, **idle}).settings == load_settings(None, chosen).settings
