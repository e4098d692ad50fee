"""The tables, as this version of the program reads and writes them. `migrations/` makes them; a test keeps the two in step.

    chains      one row a chain: its greatest final height; whoever changes what is noted of a chain holds this row
    blocks      one row a noted height: which block is final there
    intervals   the noted heights again, as closed intervals: to ask what is done costs what is missing, not what is there
    positions   one row a transaction of those blocks
    roots       32 bytes a height of an anchored chain; they outlast the blocks
    geneses     one row a chain and source of anchors: where its chain of digests starts
    anchors     what verifiers accept, by source

Chain keys and heights are BIGINT, hashes raw bytes. SQLite keeps each table in its primary key (WITHOUT ROWID): nothing is
stored twice, and rows of neighbouring heights lie together.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, LargeBinary, MetaData, String, Table

LARGEST = 2**63 - 1
"""The greatest chain key and height that a column holds. SQLite would round more to a float without a word."""

metadata = MetaData()


def _key(name: str) -> Column[int]:
    return Column(name, BigInteger, primary_key=True, autoincrement=False)


chains = Table(
    "chains",
    metadata,
    _key("chain_key"),
    Column("finalized", BigInteger),
    # Below it only blocks that somebody asked for are kept; whoever forgets more need not look there again.
    Column("floor", BigInteger),
    sqlite_with_rowid=False,
)

blocks = Table(
    "blocks",
    metadata,
    _key("chain_key"),
    _key("height"),
    Column("block_hash", LargeBinary(32)),  # null: refused for good
    Column("asked", Boolean, nullable=False),
    sqlite_with_rowid=False,
)

# By their last height: the intervals that touch a range are then the first ones from its start on.
intervals = Table(
    "intervals",
    metadata,
    _key("chain_key"),
    _key("last"),
    Column("first", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

positions = Table(
    "positions",
    metadata,
    _key("chain_key"),
    Column("tx_hash", LargeBinary(32), primary_key=True),
    Column("height", BigInteger, nullable=False),
    Column("position", Integer, nullable=False),
    Index(
        "positions_by_height", "chain_key", "height"
    ),  # to forget them; PostgreSQL stores equal keys of an index once
    sqlite_with_rowid=False,
)

roots = Table(
    "roots",
    metadata,
    _key("chain_key"),
    _key("height"),
    Column("root", LargeBinary(32), nullable=False),
    sqlite_with_rowid=False,
)

geneses = Table(
    "geneses",
    metadata,
    _key("chain_key"),
    Column("source", String(32), primary_key=True),
    Column("height", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

anchors = Table(
    "anchors",
    metadata,
    _key("chain_key"),
    Column("source", String(32), primary_key=True),
    _key("height"),
    Column("digest", LargeBinary(32), nullable=False),
    Column("kind", String(16), nullable=False),
    Index(
        "anchors_by_kind", "chain_key", "source", "kind", "height"
    ),  # to find the newest checkpoint, and what it retires
    sqlite_with_rowid=False,
)
