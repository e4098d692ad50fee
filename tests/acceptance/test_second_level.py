"""Blocks that replicas share through an object store: fetched once for all of them, and believed by none."""

from __future__ import annotations

import random
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

from app.store.blocks_entry import EntryKey, decode_entry, encode_entry
from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.corpus_files import files, load

SEPOLIA = 11155111
RECORDS = [load(path) for path in files("contiguous") if path.name.startswith("sepolia_")]
BUSY = sorted(RECORDS, key=lambda record: -len(record["receipts"]))[:6]
KEY = 7


class Fleet:
    """A recorded node, a bucket, and replicas that come and go, each with a disk of its own."""

    def __init__(self, node: RecordedNode, name: str, bucket: str, endpoint: str, place: Path) -> None:
        self.node = node.chains[name] = RecordedChain(SEPOLIA, RECORDS)
        self.name = name
        self.bucket = S3Store(
            bucket, endpoint=endpoint, region="us-east-1", client_options={"allow_http": True}, prefix="blocks"
        )
        self._url = f"s3://{bucket}/blocks?endpoint={endpoint}&region=us-east-1"
        self._place = place
        self._configured = chain(KEY, name, SEPOLIA, node.url(name))

    @contextmanager
    def replica(self, number: int) -> Iterator[Copath]:
        place = self._place / str(number)
        place.mkdir(exist_ok=True)
        with running_copath(
            self._configured,
            database_url=f"sqlite+aiosqlite:///{place / 'kept.db'}",
            block_store_url=self._url,
            block_store={"local_path": str(place / "blocks")},
        ) as copath:
            yield copath

    def answers(self, copath: Copath) -> list[dict[str, Any]]:
        found = []
        for record in BUSY:
            block_hash = record["block"]["hash"]
            answer = copath.get(f"/api/v1/proofs/{self.name}/blocks/{block_hash}/receipts/0")
            assert answer.status == 200, answer.body[:200]
            found.append(answer.json)
        return found

    def entry_keys(self) -> list[EntryKey]:
        return [EntryKey(KEY, bytes.fromhex(record["block"]["hash"][2:])) for record in BUSY]

    def held(self) -> set[str]:
        return {each["path"] for each in obstore.list(self.bucket).collect()}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def fleet(
    node: RecordedNode, endpoint: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Fleet:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "made-up")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up-too")
    name = f"level-{abs(hash(request.node.name)) % 10**6}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()
    return Fleet(node, name, name, endpoint, tmp_path)


def test_what_one_replica_fetched_another_serves_without_a_fetch(fleet: Fleet) -> None:
    with fleet.replica(1) as first:
        before = fleet.answers(first)
        until(lambda: fleet.held() == {key.path for key in fleet.entry_keys()}, "every block in the bucket")
    fleet.node.calls.clear()
    with fleet.replica(2) as second:
        assert fleet.answers(second) == before
        assert fleet.node.block_fetches() == 0
        assert fleet.node.hits("eth_getBlockReceipts") == 0
        assert second.metric("copath_block_store_reads_total", tier="objects", result="hit") == len(BUSY)
        until(
            lambda: second.metric("copath_block_store_writes_total", tier="directory", result="ok") == len(BUSY),
            "every block in its own directory",
        )


def test_h_corrupted_objects_are_never_served(fleet: Fleet) -> None:
    with fleet.replica(1) as first:
        before = fleet.answers(first)
        until(lambda: fleet.held() == {key.path for key in fleet.entry_keys()}, "every block in the bucket")
    chance = random.Random(9)
    keys = fleet.entry_keys()
    entries = [bytes(obstore.get(fleet.bucket, key.path).bytes()) for key in keys]
    packed = [decode_entry(key, entry) for key, entry in zip(keys, entries, strict=True)]

    def flipped(data: bytes) -> bytes:
        at = chance.randrange(len(data))
        return data[:at] + bytes((data[at] ^ (1 << chance.randrange(8)),)) + data[at + 1 :]

    forged = [
        flipped(entries[0]),
        entries[1][: chance.randrange(len(entries[1]))],
        entries[3],  # another block's entry under this hash
        encode_entry(keys[3], 1, packed[4]),  # another block under this hash, and the checksum is right
        encode_entry(keys[4], 1, flipped(packed[4])),  # this block with one bit changed, and the checksum is right
        b"",
    ]
    for key, bad in zip(keys, forged, strict=True):
        obstore.put(fleet.bucket, key.path, bad)
    fleet.node.calls.clear()
    with fleet.replica(2) as second:
        assert fleet.answers(second) == before
        assert fleet.node.hits("eth_getBlockReceipts") == len(BUSY)
        assert second.metric("copath_block_store_reads_total", tier="objects", result="damaged") == 3
        assert second.metric("copath_block_store_reads_total", tier="objects", result="foreign") == 1
        assert second.metric("copath_block_store_disproved_total") == 2
        until(
            lambda: second.metric("copath_block_store_writes_total", tier="objects", result="ok") == len(BUSY),
            "every block written anew",
        )
    assert [decode_entry(key, bytes(obstore.get(fleet.bucket, key.path).bytes())) for key in keys] == packed
