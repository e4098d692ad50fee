"""Peppers: under which each key was made, as a fingerprint; null for keys that were made before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("consumer_keys", sa.Column("pepper", sa.LargeBinary(8)))
