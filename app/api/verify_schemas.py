"""What may be sent to be verified, for the documentation: it is read by `core.proof_forms`."""

from __future__ import annotations

from typing import Any

from app.api.batch_schemas import UscBatch, UscSplitBatch
from app.api.schemas import Anchor, NativeProof, TrieProof, UscProof, schemas_of

_AT = "#/components/schemas/"
_USC = (UscProof, UscBatch, UscSplitBatch)


def _refs(*names: str) -> list[dict[str, str]]:
    return [{"$ref": _AT + name} for name in names]


def _anchored(name: str) -> dict[str, Any]:
    return {
        "description": f"{name}, with the anchor that is trusted.",
        "allOf": [
            {"$ref": _AT + name},
            {"type": "object", "required": ["anchor"], "properties": {"anchor": {"$ref": _AT + "Anchor"}}},
        ],
    }


def verify_schemas() -> dict[str, Any]:
    """The components that `VERIFY_REQUEST` refers to."""
    proofs = _refs(*(model.__name__ for model in (NativeProof, *_USC, TrieProof)))
    return {
        **schemas_of(NativeProof, *_USC, TrieProof, Anchor),
        **{f"Anchored{model.__name__}": _anchored(model.__name__) for model in _USC},
        "EnvelopedProof": {
            "description": "A proof in a field of its own, with the anchor that is trusted if it is a usc proof.",
            "type": "object",
            "required": ["proof"],
            "properties": {"proof": {"anyOf": proofs}, "anchor": {"$ref": _AT + "Anchor"}},
            "additionalProperties": False,
        },
    }


VERIFY_REQUEST: dict[str, Any] = {
    "required": True,
    "description": (
        "What a proof route returned, as it is or under `proof`; a usc proof with the `anchor` that is trusted; or the raw form "
        "of a trie proof, whose `value` null claims that the key is not in the trie."
    ),
    "content": {
        "application/json": {
            "schema": {
                "anyOf": _refs(
                    NativeProof.__name__,
                    *(f"Anchored{model.__name__}" for model in _USC),
                    *(model.__name__ for model in _USC),
                    TrieProof.__name__,
                    "EnvelopedProof",
                )
            }
        }
    },
}
