"""What may be said of a node to anybody: by name, never by address."""

from __future__ import annotations

from app.core.routing import Part

from .evm import EvmNode


def listing_of(node: EvmNode, now: float, frontier: int | None) -> dict[str, object]:
    """How the node stands, how far it is behind `frontier`, what it takes, and what was learned about it."""
    state, capabilities = node.observed(now), node.capabilities
    error = state.last_error
    latency_s = state.latency_s.get(Part.BLOCK, state.latency_s.get(Part.LIGHT))
    cooling_s = max(0.0, (state.cooling_until or 0.0) - now)
    return {
        "name": node.name,
        "state": "astray" if state.astray else node.standing.word(now),
        "derivesFrom": state.derives_from,
        "chainId": None if node.standing.chain_id is None else str(node.standing.chain_id),
        "head": state.head,
        "headAgeSeconds": None if state.head is None else round(now - state.head_at, 1),
        "lag": lag_of(state.head, frontier),
        "latencyMs": None if latency_s is None else round(1000 * latency_s, 1),
        "breaker": state.breaker_state(now).name.lower().replace("_", "-"),
        "cooldownSeconds": round(cooling_s, 1),
        "subscription": None if node.subscription is None else node.subscription.word(now),
        "trusted": not state.distrusted(now),
        "lastError": None if error is None else {"what": error.what, "ageSeconds": round(max(0.0, now - error.at), 1)},
        "budgetUsed": None if node.purse.account.units_per_day is None else round(node.purse.spent_share, 4),
        "capabilities": {
            "receipts": "by-block" if capabilities.block_receipts else "by-transaction",
            "receiptsForm": capabilities.receipts_form.value if capabilities.block_receipts else None,
            "batchLimit": capabilities.batch_limit,
            "prunedBelow": state.pruned_below or None,
            "connections": node.limits.max_connections,
            "bodyBytes": node.limits.max_body_bytes,
        },
    }


def lag_of(head: int | None, frontier: int | None) -> int | None:
    """How many blocks a head is behind the frontier: 0 for one that is beyond it, None while either is unknown."""
    return None if head is None or frontier is None else max(0, frontier - head)
