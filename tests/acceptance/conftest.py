"""Servers and judges that many tests share; one of each per test process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.acceptance.recorded_node import RecordedChain, RecordedNode, running_node
from tests.acceptance.server import Answer, Copath, chain, running_copath
from tests.corpus_files import family, files, label, load
from tests.oracles.sdk import Sdk

UNNAMED_CHAIN_ID = 4003
"""For recordings of development chains that do not say their chain id."""


@dataclass(frozen=True, slots=True)
class CorpusServer:
    """A Copath over recorded blocks: `keys` and `ids` by chain name, and the node behind it."""

    copath: Copath
    node: RecordedNode
    keys: dict[str, int]
    ids: dict[str, int]

    def get(self, path: str) -> Answer:
        """A GET below `/api/v1/proofs/`."""
        return self.copath.get(f"/api/v1/proofs/{path}")


@pytest.fixture(scope="session")
def node() -> Iterator[RecordedNode]:
    """A node that answers from recorded blocks; tests add chains to it under names of their own."""
    with running_node() as running:
        yield running


@pytest.fixture(scope="session")
def sdk() -> Iterator[Sdk]:
    """Creditcoin's client package."""
    with Sdk() as running:
        yield running


@pytest.fixture(scope="session")
def whole_blocks(node: RecordedNode) -> Iterator[CorpusServer]:
    """Every block that was recorded whole, each chain under its own name and family, without anchors."""
    keys: dict[str, int] = {}
    ids: dict[str, int] = {}
    chains = []
    for path in files("full", "contiguous"):
        record = load(path)
        name = record["chain"]
        if name not in keys:
            keys[name] = len(keys) + 1
            ids[name] = record["chainId"] or UNNAMED_CHAIN_ID
            node.chains[f"whole-{name}"] = RecordedChain(ids[name], [])
            chains.append(chain(keys[name], name, ids[name], node.url(f"whole-{name}"), family(record)))
        node.chains[f"whole-{name}"].add(record)
    with running_copath(*chains) as copath:
        yield CorpusServer(copath, node, keys, ids)


def pytest_report_header() -> str:
    """How much is recorded: a corpus that shrank would be seen."""
    return f"recorded whole blocks: {len({label(path) for path in files('full', 'contiguous')})}"
