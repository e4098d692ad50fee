"""What is refused of a block on one node's word, and what that is worth with the words of the others.

What follows from a root that is met, or from a header alone, needs no second node. Every other refusal does: a node that changes
a transaction's type, or leaves one out, would otherwise deny the block to all callers for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.core.errors import (
    Doubtful,
    HeaderHashUnsupported,
    InconsistentSource,
    ProofError,
    UnsupportedBlockFormat,
    Witnesses,
)
from app.core.provable_block import ProvableBlock, Verdict

LASTING_ERRORS = (UnsupportedBlockFormat, HeaderHashUnsupported)
"""What building a block may refuse as a whole, for good."""

_CHECKS = {
    Verdict.UNSUPPORTED_TYPE: "{}_type",
    Verdict.CLAIMED_TYPE: "{}_type",
    Verdict.NOT_COMMITTED: "{}_not_committed",
    Verdict.UNMET: "{}_root",
    Verdict.BROKEN: "{}_broken",
}
"""Under which names a node is counted that was corrected by another; broken data under the name of the check that it failed."""

_NAMES = ("transactions", "receipts", "leaves")

_PASSING = {
    ("receipts", Verdict.UNMET),
    *((name, verdict) for name in _NAMES for verdict in (Verdict.UNAVAILABLE, Verdict.BROKEN)),
}
"""What no node says for good."""

_WRONG = frozenset({Verdict.UNMET, Verdict.BROKEN, Verdict.CLAIMED_TYPE})
"""Data that contradicts what the header commits to, or itself."""


def require_whole(block: ProvableBlock, settled_on: Callable[[Witnesses], None] = lambda _: None) -> None:
    """Raises `Doubtful` for a block of which another node may have more: a trie that is not proven and that the header alone does
    not rule out. `settled_on` hears how many nodes the block rests on in the end, if it refuses anything for good."""
    verdicts = _verdicts(block)
    refused = {name: verdict for name, verdict in verdicts.items() if not _is_certain(block, name)}
    if not refused:
        return
    lasting = {name: verdict for name, verdict in refused.items() if (name, verdict) not in _PASSING}
    worth = sum(2 * (each is Verdict.PROVEN) + (each in _WRONG) for each in verdicts.values())

    counted = [_CHECKS[each].format(name) for name, each in refused.items() if each in _CHECKS]

    def settle(witnesses: Witnesses) -> ProvableBlock:
        settled_on(witnesses)
        if witnesses is Witnesses.UNHEARD:
            return _without(block, lasting)
        return block.borne_out() if witnesses is Witnesses.SEVERAL else block

    def refuted_by(better: object) -> bool:
        if not isinstance(better, ProvableBlock) or better.block_hash != block.block_hash:
            return False
        proven = _verdicts(better) | {"leaves": better.leaves_verdict}
        return any(verdict in _CHECKS and proven[name] is Verdict.PROVEN for name, verdict in refused.items())

    raise Doubtful(
        block,
        worth,
        wrong=not _WRONG.isdisjoint(verdicts.values()),
        claims=frozenset(
            (block.block_hash, name, verdict, block.transaction_hashes) for name, verdict in lasting.items()
        ),
        settle=settle if lasting else None,
        refuted_by=refuted_by,
        check=next(iter([*block.broken_checks, *counted]), ""),
        singly=refused.get("receipts") in (Verdict.UNMET, Verdict.BROKEN),
    )


def refused(error: ProofError, settled_on: Callable[[Witnesses], None] = lambda _: None) -> Doubtful:
    """The refusal of a whole block, made of one node's data, as what another node may know better."""
    lasting = isinstance(error, LASTING_ERRORS)

    def settle(witnesses: Witnesses) -> ProofError:
        settled_on(witnesses)
        if witnesses is not Witnesses.UNHEARD:
            return error
        return InconsistentSource(f"{error.message}; that is the word of one upstream, and no other could be asked")

    return Doubtful(
        error,
        -1 if lasting else -2,
        claims=frozenset({("block", error.code)}) if lasting else frozenset(),
        settle=settle if lasting else None,
        refuted_by=lambda better: isinstance(better, ProvableBlock),
        check="header_fields" if isinstance(error, UnsupportedBlockFormat) else "build",
    )


def _verdicts(block: ProvableBlock) -> dict[str, Verdict]:
    """Of the tries; and of the leaves, where those are not as the tries make them."""
    verdicts = {"transactions": block.transactions_verdict, "receipts": block.receipts_verdict}
    if block.leaves_verdict is Verdict.BROKEN:
        verdicts["leaves"] = block.leaves_verdict
    return verdicts


def _is_certain(block: ProvableBlock, name: str) -> bool:
    """Whether the verdict follows from what the header commits to, whatever the node says."""
    verdict = _verdicts(block)[name]
    if verdict is Verdict.PROVEN:
        return True
    # That there are transactions is proven: what the receipts root is not, the header says.
    listed = block.transactions_verdict is Verdict.PROVEN and block.transaction_count > 0
    return name == "receipts" and verdict is Verdict.NOT_COMMITTED and listed


def _without(block: ProvableBlock, refusals: Mapping[str, Verdict]) -> ProvableBlock:
    """The block with what one node refuses as what is not known: a reason to ask again, and not to keep it."""
    details = {"transactions": block.transactions_detail, "receipts": block.receipts_detail}
    return block.unavailable(
        {
            name: f"one says {verdict} ({details[name]}), and no other could be asked"
            for name, verdict in refusals.items()
        }
    )
