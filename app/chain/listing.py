"""What a listing of chains says of one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .backfill import State
from .kinship import Kinship

if TYPE_CHECKING:
    from .chain import Chain

_UNUSED = {
    Kinship.FOREIGN: "the ledger remembers another chain under this key",
    Kinship.UNKNOWN: "the ledger remembers no block that the upstreams have: another chain, under this key?",
}


def listing_of(chain: Chain, upstreams: list[dict[str, object]]) -> dict[str, object]:
    """Heads, kinds, anchors and upstream states by name: whatever may be shown to anybody. No addresses."""
    heads = chain.head.heads
    return {
        "chainKey": chain.key,
        "name": chain.name,
        "chainId": None if chain.chain_id is None else str(chain.chain_id),
        "family": chain.family,
        "kinds": ["transaction", "receipt", "log", *(["usc"] if chain.anchors is not None else [])],
        "head": heads.head,
        "safe": heads.safe,
        "finalized": chain.head.final_to,
        "finalityBy": heads.said_by,
        "finalitySources": heads.sources,
        "headAgeSeconds": None if chain.head.age_s is None else round(chain.head.age_s, 1),
        "anchors": {
            "source": chain.anchor_source,
            "genesis": None if chain.anchors is None else chain.anchors.genesis,
            "attestedHeight": chain.attested_height,
            "checkpointHeight": None if chain.anchors is None else chain.anchors.checkpoint_height,
            **({} if chain.anchors is None else chain.anchors.state()),
            **({"note": "development: accepted by no chain"} if chain.anchor_source == "self" else {}),
            **({"stalled": chain.anchoring_stalled} if chain.anchoring_stalled else {}),
        },
        "backfill": _backfill_of(chain),
        "cache": {"blocks": chain.cache.entries, "bytes": chain.cache.size_bytes},
        "upstreams": upstreams,
        "servable": chain.servable,
        "saturated": chain.saturated,
        "reasons": list(chain.reasons),
    }


def _backfill_of(chain: Chain) -> dict[str, object]:
    """Which heights are filled ahead of requests, and how far that is."""
    backfill = chain.backfill
    if backfill is None or backfill.state is State.OFF:
        return {"state": State.OFF.value, "window": None, "remaining": 0, "lowest": None}
    window = backfill.window
    return {
        "state": backfill.state.value,
        "window": [window.low, window.high] if window.size else None,
        "remaining": backfill.remaining if window.size and backfill.state is not State.ELSEWHERE else None,
        "lowest": backfill.lowest,
        **({"error": backfill.last_error} if backfill.state is State.FAILING else {}),
    }


_WRONG = {
    "wrong-chain": "serves another chain",
    "denied": "refuses our credentials",
    "astray": "contradicts the others about what is final",
}


def upstream_reasons(upstreams: Iterable[Mapping[str, object]]) -> Iterable[str]:
    """What is wrong with the nodes that are not asked at the moment, by name and in words of a closed set."""
    for listed in upstreams:
        last = listed.get("lastError")
        what = last.get("what") if isinstance(last, Mapping) else None
        word = _WRONG.get(str(listed.get("state")))
        lost = listed.get("state") == "unverified" and (what or listed.get("head") is not None)
        if word is None and (lost or listed.get("breaker", "closed") != "closed"):
            word = f"fails: {what}" if what else "does not answer"
        if word is not None:
            yield f"upstream {listed['name']} {word}"


def reasons_of(chain: Chain, upstreams: Iterable[Mapping[str, object]]) -> tuple[str, ...]:
    """Why a chain is not, or not fully, servable. Stable words: no figures, no addresses."""
    found = []
    if chain.chain_id is None:
        found.append("chain id not known yet")
    found += chain.head.reasons
    found += upstream_reasons(upstreams)
    if chain.keeping is not None and (unused := _UNUSED.get(chain.keeping.kinship)):
        found.append(unused)
    if chain.anchors is not None and (how := chain.anchors.state().get("state", "ok")) != "ok":
        found.append(f"anchors are {how}")
    found += [f"background loop {loop.name} is down" for loop in chain.loops if not loop.up]
    return tuple(found)
