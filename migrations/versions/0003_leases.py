"""Leases: who of several replicas does what is to be done once, and what was left behind; shares of budgets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("holder", sa.String(32), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("note", sa.LargeBinary()),
        sqlite_with_rowid=False,
    )
    op.create_index("leases_by_end", "leases", ["expires_at"])
    op.create_table(
        "spendings",
        sa.Column("account", sa.String(32), primary_key=True),
        sa.Column("day", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("units", sa.Double(), nullable=False),
        sqlite_with_rowid=False,
    )
