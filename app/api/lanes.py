"""Which way a proof request takes, decided from memory before anything is spent on it.

Warm: the answer is known, be it a proof or a refusal; nothing has to be asked for. Cold: it may cost a fill. A batch cannot be
judged before its body is read: it comes in by the warm lane, and its handler takes cold places once it knows how many blocks
are not at hand (`take_cold_places`). A route that is not known here is cold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.types import Scope

from app.api import inputs
from app.api.lobby import ChainFloor, open_house_of
from app.api.visit import Visit, visit_of
from app.core.admission import Lane, Shed
from app.core.blocks import BlockRef
from app.core.errors import ChainOverloaded, ConsumerConcurrency, Overloaded, ProofError
from app.core.provable_block import ProvableBlock

FULL = "too many proof requests in flight; retry with back-off"
WARM_FULL = "too many requests for known answers are in flight; retry with back-off"
HIS_SHARE = "too many of your requests are in flight: what room is left is for others; retry with back-off"

_ASKS_NOBODY = frozenset({"/api/v1/proofs/verify"})
_WEIGHED_BY_THEIR_HANDLERS = frozenset(
    {
        "/api/v1/proof-batch/{chain_key}",
        "/api/v1/proof-batch-by-tx/{chain_key}",
        "/api/v1/proofs/{chain}/multiproof",
        "/api/v1/proofs/{chain}/rpc",
    }
)


def lane_of(visit: Visit) -> Lane:
    """The lane of a request to a proof route. Asks nobody and counts nothing."""
    template = visit.template
    if template in _ASKS_NOBODY or template in _WEIGHED_BY_THEIR_HANDLERS:
        return Lane.WARM
    is_known = _KNOWN.get(template)
    if is_known is None or visit.chain is None:
        return Lane.COLD
    try:
        return Lane.WARM if is_known(visit.chain, visit.params) else Lane.COLD
    except ProofError:
        return Lane.WARM  # so the answer is known: the route will refuse in the same way


def hold_cold_places(scope: Scope, blocks: int) -> None:
    """As `take_cold_places`, of so many in all, with those that the request has already."""
    place = visit_of(scope).place
    take_cold_places(scope, blocks - (0 if place is None else place.cold))


def take_cold_places(scope: Scope, blocks: int) -> None:
    """For the handler of a batch, before anything is filled for it: so many more cold places, one for each distinct block that is
    not at hand, all or none, held until the last byte of the answer.

    Raises `Overloaded` or `ChainOverloaded`. Requires a request that came in through the door.
    """
    visit = visit_of(scope)
    assert visit.place is not None, "a batch was reached without passing the door"
    house = open_house_of(scope)
    shed = house.door.add(visit.place, blocks, house.now())
    if shed is not None:
        raise refusal_of(shed)


def refusal_of(shed: Shed) -> ProofError:
    """The error of a request that found no room."""
    match shed:
        case Shed.OVERLOADED:
            return Overloaded(FULL)
        case Shed.CHAIN_OVERLOADED:
            return ChainOverloaded(FULL)
        case Shed.WARM_LANE:
            return Overloaded(WARM_FULL, reason=shed.value)
        case Shed.CONSUMER:
            return ConsumerConcurrency(HIS_SHARE)


def _native_transaction(chain: ChainFloor, params: Mapping[str, str]) -> bool:
    return chain.peek_transaction(inputs.tx_hash(params["tx_hash"])) is not None


def _native_position(chain: ChainFloor, params: Mapping[str, str]) -> bool:
    return chain.peek_block(inputs.block_ref(params["block"])) is not None


def _usc_position(chain: ChainFloor, params: Mapping[str, str]) -> bool:
    height = inputs.u64_height("header_number", params["header_number"])
    chain.require_anchored(height, height)
    return _anchored(chain, chain.peek_block(BlockRef(height=height)))


def _usc_transaction(chain: ChainFloor, params: Mapping[str, str]) -> bool:
    tx_hash = inputs.tx_hash(params["tx_hash"])
    return chain.anchors is None or _anchored(chain, chain.peek_transaction(tx_hash))


def _anchored(chain: ChainFloor, block: ProvableBlock | None) -> bool:
    return block is not None and chain.peek_continuity(block.height, block.height)


_KNOWN: dict[str, Callable[[ChainFloor, Mapping[str, str]], bool]] = {
    "/api/v1/proof/{chain_key}/{header_number}/{tx_index}": _usc_position,
    "/api/v1/proof-by-tx/{chain_key}/{tx_hash}": _usc_transaction,
    "/api/v1/proofs/{chain}/transactions/{tx_hash}": _native_transaction,
    "/api/v1/proofs/{chain}/receipts/{tx_hash}": _native_transaction,
    "/api/v1/proofs/{chain}/logs/{tx_hash}/{log_index}": _native_transaction,
    "/api/v1/proofs/{chain}/blocks/{block}/transactions/{i}": _native_position,
    "/api/v1/proofs/{chain}/blocks/{block}/receipts/{i}": _native_position,
    "/api/v1/proofs/{chain}/blocks/{block}/logs/{i}": _native_position,
}
