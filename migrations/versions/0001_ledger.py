"""The ledger: chains, the blocks noted of each, where their transactions are, usc roots, anchors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "chains",
        sa.Column("chain_key", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("finalized", sa.BigInteger()),
        sa.Column("floor", sa.BigInteger()),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "blocks",
        sa.Column("chain_key", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("height", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("block_hash", sa.LargeBinary(32)),
        sa.Column("asked", sa.Boolean(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "intervals",
        sa.Column("chain_key", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("last", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "positions",
        sa.Column("chain_key", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("tx_hash", sa.LargeBinary(32), primary_key=True),
        sa.Column("height", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("positions_by_height", "positions", ["chain_key", "height"])
    op.create_table(
        "roots",
        sa.Column("chain_key", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("height", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("root", sa.LargeBinary(32), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "geneses",
        sa.Column("chain_key", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("source", sa.String(32), primary_key=True),
        sa.Column("height", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "anchors",
        sa.Column("chain_key", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("source", sa.String(32), primary_key=True),
        sa.Column("height", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("anchors_by_kind", "anchors", ["chain_key", "source", "kind", "height"])
