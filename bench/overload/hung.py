"""Every cold place taken by requests that wait for a node which never answers; what is known is asked for all the same."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.running import prober

from .load import Tally
from .site import COLD, NEWEST, TRANSACTIONS, Site, latencies_of, receipts_of, serving, tally_of

WARM_BLOCKS = 32
WARM_PER_S, COLD_PER_S = 1000, 50
SECONDS = 10.0
PLACES, CHAINS = 64, 2
"""The cold places that a process has by default, and of how many chains: each may take half of them."""
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Hung:
    """What was answered meanwhile: every probe with 200, or there would be nothing of this."""

    warm: Tally
    cold: Tally
    health: list[float]
    livez: list[float]

    @property
    def all_served(self) -> bool:
        """Whether every known answer was given."""
        return bool(self.warm.served) and not (self.warm.refused or self.warm.others or self.warm.unsent)


def known_answers_while_hung() -> Hung:
    """Takes about fifteen seconds."""
    # Within a second of refusing alone this server would call itself saturated: for nearly all of the time, that is.
    with serving(cache_bytes=2**28, chains=CHAINS, saturation={"threshold_secs": 1}) as site:
        heights = range(NEWEST - WARM_BLOCKS + 1, NEWEST + 1)
        for height in (
            *heights,
            *heights,
        ):  # a block that was read before it was known to be final is asked about once more
            assert site.copath.get(f"/api/v1/proofs/1/blocks/{height}/receipts/0").status == 200
        known = ("--heights", str(heights.start), str(heights.stop), "--items", str(TRANSACTIONS))
        with (
            _every_place_hung(site),
            prober(f"{site.copath.url}/health", SECONDS + 1, every_s=0.02) as health,
            prober(f"{site.copath.url}/livez", SECONDS + 1, every_s=0.01) as livez,
        ):
            cold = site.start_load(SECONDS, f"--rate={COLD_PER_S}", *receipts_of(1, 2), *COLD[:2], str(heights.start))
            warm = tally_of(site.start_load(SECONDS, f"--rate={WARM_PER_S}", *receipts_of(1), *known))
            return Hung(warm, tally_of(cold), latencies_of(health), latencies_of(livez))


@contextlib.contextmanager
def _every_place_hung(site: Site) -> Iterator[None]:
    site.tell_node("bench_hold", True)
    waiting = []
    try:
        for place in range(PLACES):
            path = f"/api/v1/proofs/{place % CHAINS + 1}/blocks/{NEWEST - WARM_BLOCKS - place}/receipts/0"
            connection = socket.create_connection(("127.0.0.1", site.copath.port))
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            waiting.append(connection)
        ends_at = time.monotonic() + PATIENCE_S
        while _taken(site) < PLACES and time.monotonic() < ends_at:
            time.sleep(0.05)
        assert _taken(site) == PLACES, "not every place is taken"
        yield
        assert _taken(site) == PLACES, "a place came free"
    finally:
        site.tell_node("bench_hold", False)
        for connection in waiting:
            connection.close()


def _taken(site: Site) -> float:
    return site.copath.metric("copath_admission_in_flight", scope="global")
