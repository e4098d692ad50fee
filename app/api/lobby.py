"""What the doors need from the house behind them, written by the doors.

The lifespan puts the house into the ASGI state as `{"house": house}`; nothing here is global, and importing builds
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Protocol, cast

from app.core.admission import Door
from app.core.blocks import BlockRef, Located, Position
from app.core.bucket import Decision, Rate
from app.core.continuity import ContinuityProof
from app.core.finality import Finality, Level
from app.core.provable_block import ProvableBlock
from app.metrics import Metrics


class FoundBlock(Protocol):
    """A checked block, how final it is, and whether it was at hand. `index` is set when it was found by transaction
    hash."""

    @property
    def block(self) -> ProvableBlock: ...
    @property
    def finality(self) -> Finality: ...
    @property
    def cached(self) -> bool: ...
    @property
    def index(self) -> int | None: ...


class CutContinuity(Protocol):
    """A continuity proof, and the anchor it ends in."""

    @property
    def proof(self) -> ContinuityProof: ...
    @property
    def upper_height(self) -> int: ...
    @property
    def upper_digest(self) -> bytes: ...


class ChainFloor(Protocol):
    """One chain. Every method raises `ProofError` only."""

    @property
    def key(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def chain_id(self) -> int | None: ...
    @property
    def family(self) -> str: ...
    @property
    def anchors(self) -> object | None:
        """None for a chain without anchors: it has no usc proofs."""
        ...

    @property
    def anchor_source(self) -> str: ...
    @property
    def attested_height(self) -> int | None: ...
    @property
    def anchors_rest_s(self) -> float:
        """Seconds for which no anchor is to be expected; 0 when one may come at any time."""
        ...

    @property
    def full_word(self) -> tuple[str, int]:
        """`by` and `sources` of a finality that every configured upstream stands behind: the same on every replica."""
        ...

    @property
    def servable(self) -> bool:
        """Whether this chain can answer anything now. Known without asking anybody."""
        ...

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not, or not fully, servable; stable words without figures or addresses."""
        ...

    def status(self) -> dict[str, object]:
        """Heads, kinds, upstream states by name. Never an address."""
        ...

    async def block(self, ref: BlockRef, level: Level = Level.LATEST) -> FoundBlock: ...
    async def locate(self, tx_hash: bytes) -> Located:
        """Where a transaction is; no block is filled for it."""
        ...

    async def transaction(
        self,
        tx_hash: bytes,
        level: Level = Level.LATEST,
        decide: Callable[[int], None] | None = None,
        told: Position | None = None,
    ) -> FoundBlock:
        """`decide` may refuse the height before its block is filled; `told` is what `locate` said."""
        ...

    def require_anchored(self, lo: int, hi: int) -> None:
        """Raises `BlockBeforeOrAtGenesis`, `AttestationsMissing` or `BlockNotReady`. Asks no upstream."""
        ...

    async def continuity(self, lo: int, hi: int) -> CutContinuity: ...
    def peek_block(self, ref: BlockRef) -> ProvableBlock | None:
        """The block, if answering from it asks nobody; None says nothing. Neither counts nor waits, as all that peeks."""
        ...

    def peek_transaction(self, tx_hash: bytes) -> ProvableBlock | None:
        """The block that holds the transaction, if answering from it asks nobody; None says nothing."""
        ...

    def peek_continuity(self, lo: int, hi: int) -> bool:
        """Whether the continuity proof of [lo, hi], or its refusal, asks nobody."""
        ...


class Keys(Protocol):
    """The API keys that count."""

    @property
    def known(self) -> bool:
        """Whether they were read since the start."""
        ...

    @property
    def awaited(self) -> bool:
        """Whether nobody is served before they were."""
        ...

    def verified(self, key: str) -> str | None:
        """The id of a key that counts, from memory."""
        ...

    async def looked_up(self, key: str) -> str | None:
        """The same of one that may have been made a moment ago."""
        ...


class ConsumerRates(Protocol):
    """How often each consumer may ask."""

    @property
    def rate(self) -> Rate: ...
    def denial(self, consumer: str) -> Decision | None:
        """A refusal that is known without asking anybody."""
        ...

    async def take(self, consumer: str) -> Decision:
        """Decides on one request, and soon."""
        ...


class Lobby(Protocol):
    """The house, as far as the doors see into it."""

    @property
    def chains(self) -> Mapping[int, ChainFloor]:
        """By chain key, ascending."""
        ...

    @property
    def by_name(self) -> Mapping[str, ChainFloor]: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def started(self) -> bool: ...
    @property
    def draining(self) -> bool:
        """From the shutdown signal on: probes say no, while proofs are still served."""
        ...

    @property
    def closing(self) -> bool:
        """From the end of the lame duck on: nothing new is served."""
        ...

    @property
    def builder_healthy(self) -> bool: ...
    @property
    def started_at(self) -> float:
        """Wall-clock seconds."""
        ...

    @property
    def heartbeat_age_s(self) -> float:
        """Since the event loop's heartbeat last ran."""
        ...

    @property
    def door(self) -> Door:
        """Who is in."""
        ...

    @property
    def keys(self) -> Keys | None:
        """None: no keys are made or checked here."""
        ...

    @property
    def rates(self) -> ConsumerRates | None:
        """None: consumers have no rate."""
        ...

    @property
    def saturated(self) -> bool:
        """Whether this process has refused for some time without getting anything done: it should not be sent requests."""
        ...

    def now(self) -> float:
        """Monotonic seconds, on the clock of the deadlines."""
        ...

    @property
    def loop_lag_s(self) -> float:
        """How late that heartbeat was."""
        ...


def house_of(scope: MutableMapping[str, Any]) -> Lobby | None:
    """The house of a request scope; None before the lifespan has opened it."""
    state = scope.get("state")
    return None if state is None else cast("Lobby | None", state.get("house"))


def open_house_of(scope: MutableMapping[str, Any]) -> Lobby:
    """The house, where a route cannot answer without one."""
    house = house_of(scope)
    if house is None:
        raise RuntimeError("a request came in before the house was open")
    return house
