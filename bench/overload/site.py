"""A server, the node that it reads from, and the load on it: each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from bench.running import node
from tests.acceptance.server import Copath, chain, running_copath

from .load import Tally

NAME, NEWEST, TRANSACTIONS = "mainnet_14764013", 14764013, 19
BLOCKS = 1024
LATENCY_MS, NEAR_MS = 100, 50
"""Of the node's answers: of one that is far, as those of providers are, and of one that is near."""
COLD = ("--heights", str(NEWEST - BLOCKS + 1), str(NEWEST + 1), "--items", str(TRANSACTIONS))
"""Options of a load that asks for every block that the node has, and for any of its receipts."""


@dataclass(frozen=True, slots=True)
class Site:
    """A running server and its node."""

    copath: Copath
    node_port: int

    def tell_node(self, method: str, value: object) -> None:
        """One of the methods that are no node's."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": [value]}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.node_port}/", body, timeout=10) as response:
            response.read()

    @property
    def cpu_s(self) -> float:
        """What the server's own process has used so far, its builder processes left out."""
        return self.copath.metric("process_cpu_seconds_total")

    def start_load(self, seconds: float, *options: str) -> subprocess.Popen[bytes]:
        """A load that runs; `tally_of` waits for its end."""
        command = [sys.executable, "-m", "bench.overload.load", str(self.copath.port), str(seconds), *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    def run_load(self, seconds: float, *options: str) -> Tally:
        """One run of the load."""
        return tally_of(self.start_load(seconds, *options))


@contextlib.contextmanager
def serving(*, cache_bytes: int, chains: int = 1, **settings: object) -> Iterator[Site]:
    """A server with the limits that it has by default. With a cache of one byte every request is cold."""
    with node(NAME, blocks=BLOCKS, latency_ms=LATENCY_MS) as port:
        cache = {"merkle_max_bytes": cache_bytes, "merkle_backfill_enabled": False}
        configured = [
            chain(key, f"chain-{key}", 1, f"http://127.0.0.1:{port}/{key}", cache=cache) for key in range(1, chains + 1)
        ]
        with running_copath(*configured, build={"processes": "auto"}, **settings) as copath:
            yield Site(copath, port)


def receipts_of(*keys: int) -> tuple[str, ...]:
    """The option of a load that names its paths: receipts by position, of these chains in turn."""
    return ("--path", *(f"/api/v1/proofs/{key}/blocks/{{height}}/receipts/{{item}}" for key in keys))


def tally_of(load: subprocess.Popen[bytes]) -> Tally:
    """What a load tells at its end."""
    output, _ = load.communicate()
    if load.returncode:
        raise RuntimeError("the load did not run to its end")
    return msgspec.json.decode(output, type=Tally)


def latencies_of(probe: subprocess.Popen[str]) -> list[float]:
    """What a prober measured, once its time is over. Every answer was a 200, or this raises."""
    output, _ = probe.communicate()
    if probe.returncode:
        raise RuntimeError("a probe was not answered with 200")
    return list(json.loads(output))
