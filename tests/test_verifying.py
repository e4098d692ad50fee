"""What is said of a proof that holds: only what it proves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli import program
from app.verifying import Trust, verdict
from tests.checker.bodies import big_block, usc_chain


def test_a_usc_proof_is_named_by_what_its_leaf_is_bound_to_and_not_by_the_hash_beside_it() -> None:
    chain = usc_chain()
    body = chain.single(9)
    for stated in ("0x" + "66" * 32, None):
        beside = {name: value for name, value in (body | {"txHash": stated}).items() if value is not None}
        diagnosis, said = verdict(json.dumps(beside).encode(), Trust(anchor=chain.anchor))
        assert diagnosis.valid
        height, anchored = body["headerNumber"], chain.anchor[0]
        assert said == f"transaction 9 of block {height} is under the anchor at {anchored}"


def test_a_log_is_named_by_its_place_in_its_receipt_and_the_receipt_by_its_own() -> None:
    body = big_block().body("log", 13, 4)
    diagnosis, said = verdict(json.dumps(body).encode(), Trust())
    assert diagnosis.message.startswith("log 4 of receipt 13 stands in block ")
    assert said.startswith(f"log 4 of receipt 13 is in block {body['blockNumber']} ")


# --- trust that is named is used ------------------------------------------------------------------------------------------

NATIVE = big_block().body("receipt", 13)
RAW = {"kind": "trie", **{name: NATIVE[name] for name in ("root", "key", "value", "nodes")}}
CHAIN = usc_chain()
FILES = {
    "native": NATIVE,
    "wrapped": {"proof": NATIVE},
    "trie": RAW,
    "usc": CHAIN.single(9),
    "batch": CHAIN.batch({103: [0, 9]}),
}
BLOCK = ("--block-hash", NATIVE["blockHash"])
ROOT = ("--root", NATIVE["root"])
ANCHOR = ("--anchor-height", str(CHAIN.anchor[0]), "--anchor-digest", "0x" + CHAIN.anchor[1].hex())
OTHER = "0x" + "11" * 32


def verified(tmp_path: Path, *kinds: str, under: Sequence[str]) -> Any:
    paths = []
    for kind in kinds:
        paths.append(tmp_path / f"{kind}.json")
        paths[-1].write_text(json.dumps(FILES[kind]))
    return CliRunner().invoke(program, ["verify", *map(str, paths), *under])


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    ("under", "holds"),
    [
        (BLOCK, {"native", "wrapped"}),
        (ROOT, {"native", "wrapped", "trie"}),
        (ANCHOR, {"usc", "batch"}),
        ((*BLOCK, *ROOT), {"native", "wrapped"}),
        ((*BLOCK, *ANCHOR), set()),
        ((*ROOT, *ANCHOR), set()),
        ((), {"native", "wrapped", "trie"}),
    ],
    ids=["block", "root", "anchor", "block-root", "block-anchor", "root-anchor", "nothing"],
)
def test_every_kind_of_file_with_every_kind_of_trust(
    tmp_path: Path, kind: str, under: tuple[str, ...], holds: set[str]
) -> None:
    done = verified(tmp_path, kind, under=under)
    assert done.exit_code == (0 if kind in holds else 2), done.stderr
    if kind not in holds:
        assert done.stderr.count("\n") == 1
        assert "--" in done.stderr, "it says what to name instead, or what was named for nothing"


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    ("under", "kinds"),
    [
        (("--block-hash", OTHER), {"native", "wrapped"}),
        (("--root", OTHER), {"native", "wrapped", "trie"}),
        (("--anchor-height", ANCHOR[1], "--anchor-digest", OTHER), {"usc", "batch"}),
        (("--anchor-height", "1", "--anchor-digest", ANCHOR[3]), {"usc", "batch"}),
    ],
    ids=["block", "root", "digest", "height"],
)
def test_another_trust_refuses_what_it_applies_to(
    tmp_path: Path, kind: str, under: tuple[str, ...], kinds: set[str]
) -> None:
    done = verified(tmp_path, kind, under=under)
    assert done.exit_code == (1 if kind in kinds else 2)
    assert done.stdout == ""


def test_files_of_several_kinds_are_each_held_against_what_applies(tmp_path: Path) -> None:
    assert verified(tmp_path, "native", "usc", "batch", under=(*BLOCK, *ANCHOR)).exit_code == 0
    assert verified(tmp_path, "native", "trie", under=(*BLOCK, *ROOT)).exit_code == 0
    mixed = verified(tmp_path, "native", "trie", under=BLOCK)
    assert mixed.exit_code == 2
    assert "native.json: valid" in mixed.stdout
    assert "trie.json: not checked: --block-hash cannot be applied to a raw trie proof" in mixed.stderr


def test_a_proof_that_does_not_hold_is_refused_whatever_was_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(RAW | {"value": "0x00"}))
    assert CliRunner().invoke(program, ["verify", str(broken), *BLOCK]).exit_code == 1
