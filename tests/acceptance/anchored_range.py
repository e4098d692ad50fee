"""A contiguous range of recorded blocks behind a server that anchors it itself, and what a single usc proof must say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.acceptance.judging import Record, to_bytes
from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.corpus_files import files, load
from tests.oracles.sdk import Sdk

KEY = 7
INTERVAL = 10


@dataclass(frozen=True, slots=True)
class Range:
    """A contiguous range of recorded blocks, by height, behind a server that anchors it itself."""

    copath: Copath
    sdk: Sdk
    key: int
    name: str
    records: dict[int, Record]
    roots: dict[int, bytes]
    digests: dict[int, bytes]

    @property
    def genesis(self) -> int:
        """The height that the anchors start at."""
        return min(self.records)

    @property
    def attested(self) -> int:
        """The highest height that an anchor can stand on."""
        return self.genesis + (max(self.records) - self.genesis) // INTERVAL * INTERVAL

    def provable(self) -> Iterator[tuple[int, int, Record]]:
        """(height, index, record) of every transaction between genesis and the last anchor."""
        for height, record in self.records.items():
            if self.genesis < height <= self.attested:
                for index in range(len(record["receipts"])):
                    yield height, index, record

    def empty(self) -> list[int]:
        """Heights of blocks without a transaction that an anchor covers."""
        heights = [height for height, record in self.records.items() if not record["receipts"]]
        return [height for height in heights if self.genesis < height <= self.attested]


def _records(name: str) -> dict[int, Record]:
    records = [load(path) for path in files("contiguous") if path.name.startswith(f"{name}_")]
    return {int(record["block"]["number"], 16): record for record in records}


@contextmanager
def anchored_range(name: str, node: RecordedNode, sdk: Sdk) -> Iterator[Range]:
    """One of the recorded ranges behind a running server, as soon as its last anchor stands."""
    records = _records(name)
    chain_id = next(iter(records.values()))["chainId"]
    node.chains[f"anchored-{name}"] = RecordedChain(chain_id, records.values())
    roots, digests = {}, {}
    previous = None
    for height, record in sorted(records.items()):
        roots[height] = sdk.root_of_block(record["block"]["transactions"], record["receipts"])
        previous = digests[height] = sdk.digest(height, roots[height], previous)
    anchors = {"source": "self", "genesis": min(records), "interval": INTERVAL, "checkpoint_every": 3}
    with running_copath(chain(KEY, name, chain_id, node.url(f"anchored-{name}"), anchors=anchors)) as copath:
        found = Range(copath, sdk, KEY, name, records, roots, digests)
        until(
            lambda: copath.get(f"/api/v1/attested-height/{KEY}").json["attestedHeight"] == found.attested,
            f"anchors up to {found.attested}",
        )
        yield found


def judge_single(anchored: Range, body: dict[str, Any], height: int, index: int, record: Record) -> int:
    """Asserts that a single proof is right; the height of the anchor that it ends in."""
    transaction, receipt = record["block"]["transactions"][index], record["receipts"][index]
    assert (body["chainKey"], body["headerNumber"], body["txIndex"]) == (KEY, height, index)
    assert body["txHash"] == transaction["hash"]
    assert to_bytes(body["txBytes"]) == anchored.sdk.leaf(transaction, receipt)
    roots = [to_bytes(root) for root in body["continuityProof"]["roots"]]
    upper = height + len(roots) - 1
    assert roots == [anchored.roots[place] for place in range(height, upper + 1)]
    assert to_bytes(body["continuityProof"]["lowerEndpointDigest"]) == anchored.digests[height - 1]
    root, upper_digest = anchored.sdk.recompute(body)
    assert root == to_bytes(body["merkleProof"]["root"]) == anchored.roots[height]
    assert upper_digest == anchored.digests[upper]
    assert (upper - anchored.genesis) % INTERVAL == 0
    place = sum(entry["isLeft"] << level for level, entry in enumerate(body["merkleProof"]["siblings"]))
    assert place == index
    return upper
