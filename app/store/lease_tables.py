"""The tables by which replicas divide work and money among themselves.

leases      one row a thing that one of them does: who, and until when by the database's clock
spendings   one row an account and day: the units that were drawn from its budget
throughputs one row an account: the tokens of its units of a second, and until when its provider wants nothing to be asked for

Times are the database's, seconds since 1970.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, LargeBinary, String, Table

from app.store.schema import metadata

leases = Table(
    "leases",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("holder", String(32), nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("note", LargeBinary),
    Index("leases_by_end", "expires_at"),
    sqlite_with_rowid=False,
)

spendings = Table(
    "spendings",
    metadata,
    Column("account", String(32), primary_key=True),
    Column("day", BigInteger, primary_key=True, autoincrement=False),
    Column("units", Double, nullable=False),
    sqlite_with_rowid=False,
)

throughputs = Table(
    "throughputs",
    metadata,
    Column("account", String(32), primary_key=True),
    Column("tokens", Double, nullable=False),  # below 0: promised for later
    Column("refilled_at", Double, nullable=False),
    Column("granted", Double, nullable=False),  # by the last lease: only what a row holds can be returned
    Column("cooling_until", Double, nullable=False),
    sqlite_with_rowid=False,
)
