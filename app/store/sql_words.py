"""What PostgreSQL and SQLite say differently, in statements that one question of several processes is decided by."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

WORDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "postgresql": MappingProxyType(
            {
                "clock": "CAST(extract(epoch FROM statement_timestamp()) AS double precision)",
                "clock_now": "CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
                "setting": "(SELECT set_config('synchronous_commit', 'off', true)) AS setting",
                "least": "LEAST",
                "greatest": "GREATEST",
                "bytes": "BYTEA",
            }
        ),
        "sqlite": MappingProxyType(
            {
                "clock": "((julianday('now') - 2440587.5) * 86400.0)",
                "clock_now": "((julianday('now') - 2440587.5) * 86400.0)",
                "setting": "(SELECT 1) AS setting",
                "least": "MIN",
                "greatest": "MAX",
                "bytes": "BLOB",
            }
        ),
    }
)
"""By dialect. `clock`: Unix seconds, the same throughout a statement; `clock_now`: at that very moment, as whoever waited for a
lock needs it. `setting`, in a FROM list: what a crash of the server undoes is no loss, so this transaction does not wait for its
disk; the statement itself says so, which takes no second one and outlives nothing behind a pooler."""
