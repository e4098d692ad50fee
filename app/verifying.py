"""Proofs checked offline, with nothing but their own bytes and what their holder trusts."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape

from app.api.verify import Disagreement, judge
from app.core.diagnosis import Diagnosis, Reason
from app.core.hexadecimal import to_hex
from app.core.proof_forms import NotAProof, NotJson, Statement

_ANCHORED = ("usc", "batch", "split")

BLOCK_HASH, ANCHOR, ROOT = "--block-hash", "--anchor-height", "--root"
_WORDS = {BLOCK_HASH: "block", ROOT: "root"}
_APPLY_TO = {
    "native": frozenset({BLOCK_HASH, ROOT}),
    "trie": frozenset({ROOT}),
    "usc": frozenset({ANCHOR}),
    "batch": frozenset({ANCHOR}),
    "split": frozenset({ANCHOR}),
}
_KINDS = {
    "native": "a native proof",
    "trie": "a raw trie proof",
    "usc": "a usc proof",
    "batch": "a batch of usc proofs",
    "split": "a batch of usc proofs",
}
_WANTS = {
    "native": "name the block hash that you trust, as --block-hash",
    "trie": "it names no block, only the root of a trie; name the root that you trust, as --root",
    "usc": "it names no block hash; name the anchor that you trust, as --anchor-height and --anchor-digest",
    "batch": "it names no block hash; name the anchor that you trust, as --anchor-height and --anchor-digest",
    "split": "it names no block hash; name the anchor that you trust, as --anchor-height and --anchor-digest",
}


class AnchorWanted(Exception):
    """A usc proof was given and no anchor to check it under: one that is written beside it is not one that is trusted."""


class TrustNotApplied(Exception):
    """Something was named to go by, and nothing of it can be applied to this kind of proof."""

    def __init__(self, named: Iterable[str], kind: str) -> None:
        flags = " and ".join(sorted(named))
        super().__init__(f"{flags} cannot be applied to {_KINDS[kind]}: {_WANTS[kind]}")


class Outcome(enum.Enum):
    """What became of one proof."""

    HOLDS = enum.auto()
    REFUSED = enum.auto()
    UNCHECKED = enum.auto()
    """It is none, or what it would be checked under was not named, or there is no verdict."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What the holder of a proof goes by: the hash of a block, an anchor (height, digest), the root of a trie, or nothing.

    `used` collects the flags that a proof was held against, of all proofs that were."""

    block_hash: bytes | None = None
    anchor: tuple[int, bytes] | None = None
    root: bytes | None = None
    used: set[str] = field(default_factory=set, compare=False)

    @property
    def named(self) -> frozenset[str]:
        """The flags that were given."""
        given = {BLOCK_HASH: self.block_hash, ANCHOR: self.anchor, ROOT: self.root}
        return frozenset(flag for flag, value in given.items() if value is not None)

    @property
    def unused(self) -> frozenset[str]:
        """The flags that no proof was held against."""
        return self.named - self.used

    def applied_to(self, kind: str) -> frozenset[str]:
        """The flags that say something of a kind of proof. Raises `TrustNotApplied` where flags were given and none does."""
        applied = self.named & _APPLY_TO[kind]
        if self.named and not applied:
            raise TrustNotApplied(self.named, kind)
        return applied


def verdict(body: bytes, trust: Trust) -> tuple[Diagnosis, str]:
    """What is found about a proof, and what a proof that holds says, in one line.

    Raises `NotJson`, `NotAProof`, `Disagreement`, `AnchorWanted` and `TrustNotApplied`."""
    diagnosis, statement = judge(body, trust.anchor)
    if statement is None:
        return diagnosis, ""
    if statement.kind in _ANCHORED and trust.anchor is None:
        raise AnchorWanted
    if not diagnosis.valid:
        return diagnosis, ""
    applied = trust.applied_to(statement.kind)
    trust.used.update(applied)
    questions: tuple[tuple[str, Reason, str, bytes | None], ...] = (
        (BLOCK_HASH, "HeaderMismatch", "blockHash", trust.block_hash),
        (ROOT, "RootMismatch", "root", trust.root),
    )
    for flag, reason, name, trusted in questions:
        if flag in applied and statement.fields[name] != trusted:
            message = f"the proof is of another {_WORDS[flag]} than the one that you trust"
            expected, found = to_hex(trusted or b""), to_hex(statement.fields[name])
            return Diagnosis(reason, message, field=name, expected=expected, found=found), ""
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
    if statement.kind == "trie":
        known = "the root you named" if trust.root is not None else "whether that root is one to trust is yours to know"
        return f"{diagnosis.message}, whose root is {to_hex(statement.fields['root'])} ({known})"
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
    except TrustNotApplied as unapplied:
        return _unchecked(f"{before}not checked: {unapplied}")
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
