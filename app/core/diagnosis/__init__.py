"""Why a proof fails: the first thing that does not hold on the way from what is trusted to what is claimed.

Pure and total: whatever bytes are given, the answer is a `Diagnosis`, or that they are no proof at all. What is said to be valid
here has still to be put to the independent verifier.
"""

from __future__ import annotations

from collections.abc import Callable

from app.core.proof_forms import Malformed, Statement, parse, read

from .anchored import batch_verdict, single_verdict, split_verdict
from .tries import native_verdict, trie_verdict
from .verdict import Diagnosis, Fault, Reason

__all__ = ["Diagnosis", "Reason", "diagnose"]

_JUDGES: dict[str, Callable[[Statement], Diagnosis]] = {
    "trie": trie_verdict,
    "native": native_verdict,
    "usc": single_verdict,
    "batch": batch_verdict,
    "split": split_verdict,
}


def diagnose(body: bytes, anchor: tuple[int, bytes] | None = None) -> tuple[Diagnosis, Statement | None]:
    """The verdict on a body as `proof_forms.read` knows them, and what it states (None where it could not be read). `anchor`, the
    trusted (height, digest), goes before one that the body names. Raises `NotJson` and `NotAProof`, nothing else."""
    try:
        statement = read(parse(body), anchor)
    except Malformed as broken:
        reason: Reason = "DuplicateField" if broken.reason == "DuplicateField" else "MalformedField"
        message = f"{broken.field} must be {broken.expected}"
        return Diagnosis(reason, message, field=broken.field, expected=broken.expected, found=broken.found), None
    try:
        return _JUDGES[statement.kind](statement), statement
    except Fault as fault:
        return fault.diagnosis, statement
