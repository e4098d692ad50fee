"""Long runs against nodes that fail: what a minute of it costs, loses and leaves behind. One module for each scenario."""

from __future__ import annotations

import importlib

SCENARIOS = ("churn", "brown_out")


def run() -> list[tuple[str, str, str]]:
    """Rows of the table, of every scenario."""
    rows = []
    for name in SCENARIOS:
        rows += importlib.import_module(f"bench.soak.{name}").run()
    return rows
