"""Consumers: the keys that were made, and the buckets of who asked lately."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "consumer_keys",
        sa.Column("id", sa.String(12), primary_key=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger()),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "consumer_buckets",
        sa.Column("consumer", sa.String(32), primary_key=True),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("refilled_at", sa.Double(), nullable=False),
        sa.Column("granted", sa.Integer(), nullable=False),
        sqlite_with_rowid=False,
        # Rows are rewritten often and never moved: room for the next version beside each needs no vacuum.
        postgresql_with={"fillfactor": 50},
    )
