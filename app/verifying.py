"""Proofs checked offline, with nothing but their own bytes and what their holder trusts."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape

from app.api.verify import Disagreement, judge
from app.core.diagnosis import Diagnosis
from app.core.hexadecimal import to_hex
from app.core.proof_forms import NotAProof, NotJson, Statement

_ANCHORED = ("usc", "batch", "split")


class AnchorWanted(Exception):
    """A usc proof was given and no anchor to check it under: one that is written beside it is not one that is trusted."""


class Outcome(enum.Enum):
    """What became of one proof."""

    HOLDS = enum.auto()
    REFUSED = enum.auto()
    UNCHECKED = enum.auto()
    """It is none, or what it would be checked under was not named, or there is no verdict."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What the holder of a proof goes by: the hash of a block, or an anchor (height, digest), or nothing."""

    block_hash: bytes | None = None
    anchor: tuple[int, bytes] | None = None


def verdict(body: bytes, trust: Trust) -> tuple[Diagnosis, str]:
    """What is found about a proof, and what a proof that holds says, in one line.

    Raises `NotJson`, `NotAProof`, `Disagreement` and `AnchorWanted`."""
    diagnosis, statement = judge(body, trust.anchor)
    if statement is None:
        return diagnosis, ""
    if statement.kind in _ANCHORED and trust.anchor is None:
        raise AnchorWanted
    if trust.block_hash is not None and statement.kind == "native":
        named = statement.fields["blockHash"]
        if named != trust.block_hash:
            message = "the proof is of another block than the one that you trust"
            expected, found = to_hex(trust.block_hash), to_hex(named)
            return Diagnosis("HeaderMismatch", message, field="blockHash", expected=expected, found=found), ""
    return diagnosis, _said(statement, diagnosis, trust)


def _said(statement: Statement, diagnosis: Diagnosis, trust: Trust) -> str:
    said = statement.said
    if statement.kind == "native":
        known = (
            "the block you named"
            if trust.block_hash is not None
            else "whether that block is canonical is yours to know"
        )
        what = f"{said['kind']} {said['transactionIndex']}"
        if said["kind"] == "log":
            what = f"log {said['log']['indexInReceipt']} of receipt {said['transactionIndex']}"
        return f"{what} is in block {said['blockNumber']} {said['blockHash']} ({known})"
    if statement.kind != "split":
        return diagnosis.message  # by position: no leaf is bound to the hash beside it
    assert trust.anchor is not None, "a usc proof needs an anchor"
    count = sum(len(by_index) for batch in said["batches"] for by_index in batch["merkleProofs"].values())
    blocks = f"the blocks {said['fromHeader']} to {said['toHeader']}"
    return f"{count} transactions of {blocks} are under the anchor at {trust.anchor[0]}"


def tell(body: bytes, name: str, trust: Trust) -> Outcome:
    """Prints the verdict on one proof, on standard output where it holds, else on standard error. `name` goes before it where it
    is not empty."""
    before = f"{name}: " if name else ""
    try:
        diagnosis, said = verdict(body, trust)
    except (NotJson, NotAProof) as refused:
        return _unchecked(f"{before}no proof: {refused}")
    except AnchorWanted:
        return _unchecked(f"{before}a usc proof needs --anchor-height and --anchor-digest: the anchor you trust")
    except Disagreement as found:
        return _unchecked(f"{before}no verdict: two verifiers of ours disagree about this proof ({found.reason})")
    if diagnosis.valid:
        Console(highlight=False, soft_wrap=True).print(f"{escape(before)}[green]valid[/green]: {escape(said)}")
        return Outcome.HOLDS
    where = f" in {diagnosis.field}" if diagnosis.field else ""
    _print(f"{before}refused: {diagnosis.reason}{where}", "red")
    for line in _details(diagnosis):
        _print(f"  {line}", "default")
    return Outcome.REFUSED


def _unchecked(line: str) -> Outcome:
    _print(line, "red")
    return Outcome.UNCHECKED


def _details(diagnosis: Diagnosis) -> Iterator[str]:
    yield diagnosis.message
    if diagnosis.node is not None:
        nibble = "" if diagnosis.nibble is None else f", {diagnosis.nibble} nibbles into the key"
        yield f"at node {diagnosis.node} from the root{nibble}"
    if diagnosis.expected is not None:
        yield f"expected  {diagnosis.expected}"
    if diagnosis.found is not None:
        yield f"found     {diagnosis.found}"


def _print(line: str, colour: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(line, style=colour, markup=False)
