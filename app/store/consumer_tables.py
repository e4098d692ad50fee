"""The tables that are kept of consumers, as this version of the program reads and writes them.

    consumer_keys     one row a key that was ever made: a keyed hash of it, never the key
    consumer_buckets  one row a consumer that asked lately, by a keyed hash of who it is; a row that is gone is a full bucket

Times are the database's, seconds since 1970.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Integer, LargeBinary, String, Table

from app.store.schema import metadata

consumer_keys = Table(
    "consumer_keys",
    metadata,
    Column("id", String(12), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False),
    Column("name", String(64), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
    Column(
        "pepper", LargeBinary(8)
    ),  # the fingerprint of that under which it was made; null: made before there were any
    sqlite_with_rowid=False,
)

consumer_buckets = Table(
    "consumer_buckets",
    metadata,
    Column("consumer", String(32), primary_key=True),
    Column("tokens", Double, nullable=False),
    Column("refilled_at", Double, nullable=False),
    Column("granted", Integer, nullable=False),  # by the last take: only what a row holds can be returned
    sqlite_with_rowid=False,
)
