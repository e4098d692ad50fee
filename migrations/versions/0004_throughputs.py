"""Throughputs: the units of a second that all processes share, one row an account."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "throughputs",
        sa.Column("account", sa.String(32), primary_key=True),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("refilled_at", sa.Double(), nullable=False),
        sa.Column("granted", sa.Double(), nullable=False),
        sa.Column("cooling_until", sa.Double(), nullable=False),
        sqlite_with_rowid=False,
        # Rewritten often and never moved: room for the next version beside each row needs no vacuum.
        postgresql_with={"fillfactor": 50},
    )
