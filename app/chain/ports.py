"""What a chain needs from the rest of the house, written by the chain, with the guarantees it relies on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from app.core.blocks import BlockBodies, BlockName, BlockRef, Noted, Position, Sighting
from app.core.continuity import Bracket
from app.core.leases import Lease
from app.core.provable_block import BuildRequest, ProvableBlock

__all__ = [
    "Anchors",
    "BlockBodies",
    "BlockName",
    "BlockRef",
    "BlockStore",
    "Builder",
    "Clock",
    "Herald",
    "Leases",
    "Ledger",
    "Noted",
    "Position",
    "Upstream",
    "Watched",
]

T = TypeVar("T")


class Herald(Protocol):
    """Nodes that say by themselves when their head moves. What they say is a reason to ask, and is not believed."""

    @property
    def at_work(self) -> bool:
        """Whether at least one node would say so now: as long as it says nothing, asking is hardly worth a call."""
        ...

    async def heard(self) -> None:
        """Returns when there is a reason to ask, which may be that no more will be said; at once where one came up since the last
        return. Only ever awaited by one at a time."""
        ...

    def rest(self) -> None:
        """Nobody listens any more, until `heard` is awaited again: whatever is still said is paid for in vain."""
        ...


class Watched(Protocol):
    """What following the head of a chain asks of its nodes: a part of `Upstream`, with its guarantees."""

    @property
    def herald(self) -> Herald | None: ...
    async def sightings(self, tag: str) -> tuple[Sighting, ...]: ...
    async def names_at(self, height: int) -> tuple[Sighting, ...]: ...
    async def name_of(self, height: int) -> BlockName | None: ...
    def set_aside(self, names: Iterable[str]) -> None: ...
    def doubt_chain(self) -> None: ...


class Upstream(Protocol):
    """The nodes of one chain. Retries transient errors and changes nodes by itself; every method raises `ProofError` only
    (`RpcUnavailable`, `InconsistentSource`, `BlockNotOnSourceChain`, `HistoryUnavailable`, `UpstreamBudgetExhausted`).
    Cancelling a call frees its connection. Every call ends within the deadline in force or within its own limits."""

    async def fetch(self, ref: BlockRef, accept: Callable[[BlockBodies], Awaitable[T]]) -> T:
        """Block and receipts (receipts always by hash), handed to `accept`; when that raises `ContentInvalid` the next node is
        asked, and `InconsistentSource` is raised when none is left. Returns what `accept` returned. When it raises `Doubtful` the
        other nodes are asked too, and the best value that was doubtful is returned if none of them has better.
        Raises `BlockNotOnSourceChain` when a node that has the height said that there is no such block."""
        ...

    async def name_of(self, height: int) -> BlockName | None:
        """The block now canonical at `height`; None when a node whose head is known to be at or above it has none there."""
        ...

    async def height_of(self, block_hash: bytes) -> int | None:
        """Where the nodes say that the block of this hash is, canonical or not; None when they answered that they know none."""
        ...

    async def tagged(self, tag: str) -> BlockName | None:
        """The block under `latest`, `safe` or `finalized`, of the first node that knows the tag; None when none does."""
        ...

    async def sightings(self, tag: str) -> tuple[Sighting, ...]:
        """What each node, the primary first, has under `latest`, `safe` or `finalized`: None for one that does not know the
        tag. Nodes that cannot be asked are left out; raises only when that is all of them."""
        ...

    async def names_at(self, height: int) -> tuple[Sighting, ...]:
        """What each node has at `height`: None for one that has none although its head is above. Nodes that cannot be asked,
        or have not come so far, are left out. Never raises `ProofError`."""
        ...

    def set_aside(self, names: Iterable[str]) -> None:
        """From now on these nodes, and no others, are asked for nothing but where they stand: they contradict the rest."""
        ...

    def doubt_chain(self) -> None:
        """Each node is asked for its chain id again before it is asked for anything else: it may serve another chain by now."""
        ...

    @property
    def herald(self) -> Herald | None:
        """Of those nodes that announce their heads; None where none offers to."""
        ...

    def note_heads(self, sightings: Sequence[Sighting]) -> None:
        """These blocks were shown as their heads by nodes of these names, to another process, a moment ago."""
        ...

    @property
    def known_chain_id(self) -> int | None:
        """The chain id that the nodes proved to serve, or the configured one; None while neither is known."""
        ...

    async def chain_id(self) -> int:
        """The chain id, asked for when it is not known yet. Raises `RpcUnavailable`."""
        ...

    def states(self) -> list[dict[str, object]]:
        """Each node by name with what is known of it, for listings. Never an address."""
        ...

    async def position(self, tx_hash: bytes, refuted: Collection[Position] = ()) -> Position | None:
        """Where the transaction is; None when the nodes answered that they know none; raises `TxNotMined` when it is pending.
        Nodes that say what is `refuted` are not believed, and come last for a while."""
        ...


class Builder(Protocol):
    """Turns bodies into a checked block, off the event loop. Raises `ContentInvalid` or `ProofError` of the block.
    A caller that is cancelled does not stop the work; whoever holds a permit for it waits for it."""

    @property
    def healthy(self) -> bool:
        """False once it broke down too often lately to be trusted."""
        ...

    @property
    def waiting(self) -> int:
        """Builds that have not begun yet."""
        ...

    async def build(self, request: BuildRequest) -> ProvableBlock: ...

    async def reopen(self, packed: bytes, block_hash: bytes) -> ProvableBlock:
        """A block that was packed before, checked as if it were new: the header hashes to `block_hash`, each tree is rebuilt
        from its leaves. Raises `ContentInvalid` when any of it does not agree."""
        ...


class Anchors(Protocol):
    """Where (height, digest) pairs that verifiers accept come from. `None` stands for a chain without any."""

    @property
    def genesis(self) -> int | None:
        """The attestation genesis: heights at or below it are never served."""
        ...

    @property
    def attested_height(self) -> int | None:
        """The newest anchored height, or None while there is none."""
        ...

    @property
    def checkpoint_height(self) -> int | None:
        """The newest checkpoint, or None while there is none."""
        ...

    @property
    def poll_interval_s(self) -> float | None:
        """How often `advance` is to be called although the finalized height stands still; None: never."""
        ...

    @property
    def heard(self) -> bool:
        """Whether their source was ever read: until then nothing is known, not even that there are none."""
        ...

    def state(self) -> Mapping[str, object]:
        """How reading the source goes, for listings: `state`, `ageSeconds`, `reason`, as far as there is anything to say."""
        ...

    def bracket(self, lo: int, hi: int) -> Bracket | None:
        """The anchors around [lo, hi], from memory; None when they have to be asked for. Raises `AttestationsMissing`,
        `BlockNotReady` or `Internal` (a hole)."""
        ...

    async def find(self, lo: int, hi: int) -> Bracket:
        """The anchors around [lo, hi], asked for where they are not known. Raises what `bracket` raises, and `RpcUnavailable`."""
        ...

    def holds(self, bracket: Bracket) -> bool:
        """Whether both of its anchors still stand. Asked in the last step before a proof is made of it."""
        ...

    def overtake(self, height: int) -> None:
        """Blocks from `height` on, which were final, were replaced: anchors of our own making there are none any more."""
        ...

    def contradicted(self, bracket: Bracket) -> None:
        """The blocks of the chain do not lead from the one anchor to the other: of our own making the upper one is none."""
        ...

    async def advance(self, finalized: int | None, root_at: Callable[[int], Awaitable[bytes]]) -> None:
        """Called by the chain whenever its finalized height moved, or it is time to poll; `root_at` yields the usc root of a
        finalized height. `finalized` None: no anchor is to be made here, those that other processes made are taken up."""
        ...


class Ledger(Protocol):
    """What is remembered of one chain's final blocks, if possible for longer than the process lives. Each call is one
    transaction: done or not done, whatever happens meanwhile. Raises `StoreUnavailable`, within seconds; it never hangs."""

    async def done(self) -> tuple[tuple[int, int], ...]:
        """The heights that were noted and not forgotten, as closed intervals, lowest first."""
        ...

    async def note(self, blocks: Sequence[Noted]) -> None:
        """These heights are done. Noting twice changes nothing; another block at a height that was noted takes its place."""
        ...

    async def hash_at(self, height: int) -> bytes | None:
        """The block that was noted there."""
        ...

    async def position(self, tx_hash: bytes) -> Position | None:
        """Where a noted block holds the transaction."""
        ...

    async def roots(self, first: int, last: int) -> tuple[tuple[int, bytes], ...]:
        """The usc roots that were noted in [first, last], ascending, by height."""
        ...

    async def finalized(self) -> int | None:
        """The greatest height that was told to be final, and not forgotten since."""
        ...

    async def note_finalized(self, height: int) -> None:
        """`height` is final. A lower one than before changes nothing."""
        ...

    async def forget_from(self, height: int) -> None:
        """A reorg: nothing is known of heights from `height` on, nor that they are final."""
        ...

    async def forget_below(self, height: int) -> None:
        """Nothing below `height` is wanted any more but its usc root."""
        ...


class BlockStore(Protocol):
    """Where one chain's checked blocks are kept for longer than the process lives, or for others to read. Never raises."""

    async def get(self, block_hash: bytes) -> bytes | None:
        """What was put under this hash, to the byte; None when there is nothing, it was damaged, or it cannot be had now."""
        ...

    def put(self, block_hash: bytes, height: int, packed: bytes) -> None:
        """Takes a packed block for writing. Waits for nothing; what finds no room is dropped, and counted."""
        ...

    async def put_through(self, block_hash: bytes, height: int, packed: bytes) -> bool:
        """Writes a packed block, or waits until it is written. Whether it is where others who share this store read it."""
        ...

    async def drop(self, block_hash: bytes) -> None:
        """What is kept under this hash turned out to be no such block."""
        ...


class Leases(Protocol):
    """Things that one of several processes does, by rows that expire on one clock for all. Raises `StoreUnavailable`."""

    async def take(self, name: str, for_s: float) -> Lease:
        """The lease of `name`: ours for `for_s` seconds if it was free, had expired, or was ours; else as it stands."""
        ...

    async def look(self, name: str) -> Lease | None:
        """The lease as it stands; None when nobody holds it."""
        ...

    async def leave(self, name: str, note: bytes, for_s: float) -> None:
        """What we hold is done: `note` stands there for `for_s` seconds, and nobody takes the lease meanwhile."""
        ...

    async def post(self, name: str, note: bytes, for_s: float) -> None:
        """As `leave`, whoever holds it: what is known for sure needs no lease."""
        ...

    async def release(self, name: str) -> None:
        """What we hold is given back, undone."""
        ...


class Clock(Protocol):
    """Monotonic seconds. Tests move it by hand."""

    def now(self) -> float: ...
