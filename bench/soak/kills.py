"""Two hundred servers that are killed while they fill, backfill and anchor: what is lost of what they kept.

Every so many of them share a database and a block store; the last of those may end what the others began, and answers.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from tests.acceptance.recorded_node import running_node
from tests.acceptance.test_restart import Site, kill_again_and_again

KILLS, AT_ONE_PLACE = 200, 10


def run() -> list[tuple[str, str, str]]:
    """Rows of the table. Raises AssertionError for what was lost, or contradicts."""
    began = time.monotonic()
    with running_node() as node:
        for place in range(KILLS // AT_ONE_PLACE):
            with tempfile.TemporaryDirectory(prefix="copath-soak-") as folder:
                site = Site(node, f"kills-{place}", Path(folder), backfill=True)
                kill_again_and_again(site, AT_ONE_PLACE, random.Random(place))
    return [
        (f"servers killed in {time.monotonic() - began:.0f} s", f"{KILLS}", ""),
        ("anchors, roots or heights lost or contradicting", "0", "0 is right"),
    ]
