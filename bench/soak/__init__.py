"""Long runs in which nodes fail or servers are killed: what that costs, loses and leaves. One module for each scenario."""

from __future__ import annotations

import importlib

SCENARIOS = ("churn", "brown_out", "kills", "outage")


def run() -> list[tuple[str, str, str]]:
    """Rows of the table, of every scenario."""
    rows = []
    for name in SCENARIOS:
        rows += importlib.import_module(f"bench.soak.{name}").run()
    return rows
