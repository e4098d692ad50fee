"""How a block is named, and what an upstream hands over about it: the words that the chain and its upstreams share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockRef:
    """One block, by height or by hash: exactly one of the two is set."""

    height: int | None = None
    block_hash: bytes | None = None

    def __post_init__(self) -> None:
        if (self.height is None) == (self.block_hash is None):
            raise ValueError("a block is named by its height or by its hash")


@dataclass(frozen=True, slots=True)
class BlockBodies:
    """The JSON texts of one block and of its receipts, as one upstream sent them; nothing in them is checked yet.

    `receipts_json` is None when the upstream has no receipts to give; `receipts_error` then says why, in words fit for a
    client.
    """

    upstream: str
    block_json: bytes
    receipts_json: bytes | None
    receipts_error: str | None = None
    receipts_pruned: bool = False
    """Whether the upstream had receipts once and keeps them no longer."""


@dataclass(frozen=True, slots=True)
class BlockName:
    """Height, hash and parent hash of a block that an upstream returned (a block, not a bare counter)."""

    height: int
    block_hash: bytes
    parent_hash: bytes
    timestamp: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """The block that one upstream, by name, showed when all were asked; None: it answered that it has none.

    `tagless`: what it was asked for is a tag that it does not know at all, which is more than to have no such block yet.
    """

    upstream: str
    block: BlockName | None
    tagless: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """Where an upstream says a transaction is. To be believed only once the block was rebuilt."""

    block_hash: bytes
    height: int
    index: int


@dataclass(frozen=True, slots=True)
class Located:
    """Where a transaction is, before its block is filled. `sure`: the block was rebuilt, or no other node could say otherwise."""

    position: Position
    sure: bool


@dataclass(frozen=True, slots=True)
class Noted:
    """What a ledger is told of one finalized height.

    `block_hash` None: the block there was refused for good, and holds no transactions to speak of. `transaction_hashes` are 32
    bytes each, in order, joined; `usc_root` is that of an anchored chain. `asked`: somebody asked for this block, which is kept
    when the window of the backfill has left it behind.
    """

    height: int
    block_hash: bytes | None
    transaction_hashes: bytes = b""
    usc_root: bytes | None = None
    asked: bool = False
