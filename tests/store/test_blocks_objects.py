"""The block store on a real server that speaks S3: shared by replicas, up, down, slow, and full of what is no good."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import obstore
import pytest
from moto.server import ThreadedMotoServer

from app.core.breaker import IN_A_ROW
from app.metrics import Metrics
from app.store.blocks import BlockStoreRules, PackedBlocks, open_block_store
from app.store.blocks_entry import EntryKey, encode_entry
from app.store.blocks_tiers import REQUESTS_AT_ONCE, ObjectTier, TierFailed, open_objects
from tests.fakes import ManualClock, settle

ONE, TWO = bytes([1]) * 32, bytes([2]) * 32
CANARY = "canary7f3a9secret"


def path(block_hash: bytes) -> str:
    return EntryKey(1, block_hash).path


class Bucket:
    """A bucket on a server of this process."""

    def __init__(self) -> None:
        self.port = 0
        self._server: ThreadedMotoServer | None = None
        self.start()

    def start(self) -> None:
        """At the same port as before, and empty."""
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port, verbose=False)
        self._server.start()
        self.port = self._server.get_host_and_port()[1]
        self.clear()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        self._server = None

    def clear(self) -> None:
        for method, where in (("POST", "moto-api/reset"), ("PUT", "bucket")):
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{where}", method=method)
            urllib.request.urlopen(request).close()

    @property
    def url(self) -> str:
        return f"s3://bucket/some/prefix?endpoint=http://127.0.0.1:{self.port}&region=us-east-1"


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    bucket = Bucket()
    yield bucket
    bucket.stop()


@pytest.fixture
def bucket(server: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "made-up")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    server.clear()
    return server


@asynccontextmanager
async def replica(url: str, local: Path | None, metrics: Metrics | None = None) -> AsyncIterator[PackedBlocks]:
    """A store of a process of its own."""
    rules = BlockStoreRules(url, None if local is None else str(local))
    store = open_block_store(rules, metrics or Metrics())
    try:
        yield store
    finally:
        await store.aclose()


def reads(metrics: Metrics, tier: str, result: str) -> float | None:
    labels = {"chain": "ethereum", "tier": tier, "result": result}
    return metrics.registry.get_sample_value("copath_block_store_reads_total", labels)


async def test_what_one_replica_puts_another_reads_and_keeps_at_hand(bucket: Bucket, tmp_path: Path) -> None:
    packed = random.Random(4).randbytes(300_000)
    async with replica(bucket.url, tmp_path / "first") as first:
        first.of(1, "ethereum").put(ONE, 5, packed)
    metrics = Metrics()
    async with replica(bucket.url, tmp_path / "second", metrics) as second:
        assert await second.of(1, "ethereum").get(ONE) == packed
        assert await second.of(1, "ethereum").get(TWO) is None
    assert (reads(metrics, "objects", "hit"), reads(metrics, "objects", "miss")) == (1, 1)
    async with replica(bucket.url, tmp_path / "second", metrics) as second:
        assert await second.of(1, "ethereum").get(ONE) == packed
    assert (reads(metrics, "directory", "hit"), reads(metrics, "objects", "hit")) == (1, 1)


async def test_without_a_directory_the_bucket_alone_is_read(bucket: Bucket) -> None:
    async with replica(bucket.url, None) as store:
        store.of(1, "ethereum").put(ONE, 5, b"packed")
    async with replica(bucket.url, None) as store:
        assert await store.of(1, "ethereum").get(ONE) == b"packed"
        await store.of(1, "ethereum").drop(ONE)
        assert await store.of(1, "ethereum").get(ONE) is None


async def test_objects_lie_under_the_prefix_and_name_chain_version_and_hash(bucket: Bucket) -> None:
    tier = open_objects(bucket.url)
    await tier.write(path(ONE), b"entry")
    root = obstore.store.from_url(
        "s3://bucket",
        config={"endpoint": f"http://127.0.0.1:{bucket.port}", "region": "us-east-1"},
        client_options={"allow_http": True},
    )
    listed = [each["path"] for each in obstore.list(root).collect()]
    assert listed == [f"some/prefix/{path(ONE)}"]


# --- what is no good ------------------------------------------------------------------------------------------------


def damaged(entry: bytes) -> Iterator[tuple[str, bytes]]:
    chance = random.Random(8)
    for _ in range(12):
        at = chance.randrange(len(entry))
        yield "damaged", entry[:at] + bytes((entry[at] ^ (1 << chance.randrange(8)),)) + entry[at + 1 :]
        yield "damaged", entry[:at]
    yield "damaged", entry + b"\x00"
    yield "foreign", encode_entry(EntryKey(1, TWO), 5, b"another block")
    yield "foreign", encode_entry(EntryKey(2, ONE), 5, b"of another chain")


async def test_h_corrupted_objects_are_never_served_and_go(bucket: Bucket) -> None:
    metrics = Metrics()
    tier = open_objects(bucket.url)
    counted = {"damaged": 0, "foreign": 0}
    async with replica(bucket.url, None, metrics) as store:
        for why, bad in damaged(encode_entry(EntryKey(1, ONE), 5, b"packed" * 50)):
            await tier.write(path(ONE), bad)
            assert await store.of(1, "ethereum").get(ONE) is None
            assert await tier.read(path(ONE)) is None
            counted[why] += 1
    assert (reads(metrics, "objects", "damaged"), reads(metrics, "objects", "foreign")) == tuple(counted.values())


async def test_h_a_corrupted_object_is_written_anew(bucket: Bucket, tmp_path: Path) -> None:
    tier = open_objects(bucket.url)
    await tier.write(path(ONE), b"no entry at all")
    async with replica(bucket.url, tmp_path) as store:
        assert await store.of(1, "ethereum").get(ONE) is None
        store.of(1, "ethereum").put(ONE, 5, b"packed")
    async with replica(bucket.url, None) as store:
        assert await store.of(1, "ethereum").get(ONE) == b"packed"


# --- down, slow, closed to us ---------------------------------------------------------------------------------------


async def test_a_server_that_is_down_is_as_good_as_empty_and_is_found_again(bucket: Bucket, tmp_path: Path) -> None:
    metrics, clock = Metrics(), ManualClock()
    store = PackedBlocks(metrics, None, open_objects(bucket.url), now=clock.now)
    chain = store.of(1, "ethereum")
    bucket.stop()
    try:
        for _ in range(IN_A_ROW + 1):
            assert await chain.get(ONE) is None
        assert (reads(metrics, "objects", "failed"), reads(metrics, "objects", "skipped")) == (IN_A_ROW, 1)
    finally:
        bucket.start()
    clock.move(60)
    await open_objects(bucket.url).write(path(ONE), encode_entry(EntryKey(1, ONE), 5, b"packed"))
    assert await chain.get(ONE) == b"packed"
    await store.aclose()


@asynccontextmanager
async def answering(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server that does with a connection what it is told to."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield f"s3://bucket?endpoint=http://127.0.0.1:{port}&region=us-east-1"
    finally:
        listening.close()


async def test_a_server_that_never_answers_is_not_waited_for(bucket: Bucket) -> None:
    end = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await end.wait()

    async with answering(silent) as url:
        tier = open_objects(url)
        tier.read_limit_s = tier.write_limit_s = 0.05
        metrics = Metrics()
        store = PackedBlocks(metrics, None, tier)
        assert await store.of(1, "ethereum").get(ONE) is None
        store.of(1, "ethereum").put(ONE, 5, b"packed")
        await store.aclose()
        assert reads(metrics, "objects", "timeout") == 1
        labels = {"chain": "ethereum", "tier": "objects", "result": "timeout"}
        assert metrics.registry.get_sample_value("copath_block_store_writes_total", labels) == 1
        end.set()


async def test_an_answer_that_stops_in_the_middle_is_no_entry(bucket: Bucket) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nETag: x\r\n\r\n"
        writer.write(head + b"the beginning")
        await writer.drain()

    async with answering(half) as url:
        tier = open_objects(url)
        with pytest.raises((TierFailed, TimeoutError)):
            await tier.read(path(ONE))


async def test_a_bucket_that_is_not_there_takes_nothing(bucket: Bucket) -> None:
    tier = open_objects(bucket.url.replace("s3://bucket", "s3://elsewhere"))
    assert await tier.read(path(ONE)) is None
    with pytest.raises(TierFailed, match="FileNotFoundError"):
        await tier.write(path(ONE), b"entry")


async def test_few_requests_are_under_way_at_once(bucket: Bucket) -> None:
    under_way, most = 0, 0
    enough = asyncio.Event()

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                under_way += 1
                most = max(most, under_way)
                if under_way == REQUESTS_AT_ONCE:
                    enough.set()
                await enough.wait()
                await settle()
                under_way -= 1
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()

    async with answering(count) as url:
        tier = open_objects(url)
        tier.read_limit_s = 30.0
        found = await asyncio.gather(*(tier.read(path(bytes([number]) * 32)) for number in range(3 * REQUESTS_AT_ONCE)))
    assert found == [None] * 3 * REQUESTS_AT_ONCE
    assert most == REQUESTS_AT_ONCE


async def test_a_refusal_is_told_by_its_kind(bucket: Bucket) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()

    async with answering(refuse) as url:
        with pytest.raises(TierFailed, match="PermissionDeniedError"):
            await open_objects(url).read(path(ONE))


async def test_an_object_that_claims_to_be_huge_is_not_read(bucket: Bucket) -> None:
    async def huge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\nETag: x\r\n"
        writer.write(head + b"Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n\r\n")
        await writer.drain()
        await reader.read()

    metrics = Metrics()
    async with answering(huge) as url:
        tier = open_objects(url)
        tier.read_limit_s = 0.3
        store = PackedBlocks(metrics, None, tier)
        assert await store.of(1, "ethereum").get(ONE) is None
        await store.aclose()
    assert reads(metrics, "objects", "damaged") == 1


# --- secrets --------------------------------------------------------------------------------------------------------


async def test_b_no_credential_appears_anywhere(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = open_block_store(BlockStoreRules(bucket.url, None), Metrics())
    bucket.stop()
    try:
        store.of(1, "ethereum").put(ONE, 5, b"packed")
        assert await store.of(1, "ethereum").get(TWO) is None
        await store.aclose()
    finally:
        bucket.start()
    ours = [record for record in caplog.records if record.name.startswith("app.")]
    assert ours
    shown = "".join(str(record.__dict__) for record in ours) + repr(store)
    for secret in (CANARY, str(bucket.port), "prefix", "made-up"):
        assert secret not in shown


@pytest.mark.parametrize("url", [f"s3://bucket?no_such_key={CANARY}", f"s3:///?secret_access_key={CANARY}", "az://x/y"])
def test_a_url_that_cannot_be_used_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ValueError, match="the object store cannot be used") as refused:
        open_objects(url)
    assert CANARY not in repr(refused.value)


def test_the_other_providers_are_opened_by_their_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_objects("gs://bucket/prefix"), ObjectTier)
    assert isinstance(open_objects("az://container/prefix?account_name=account"), ObjectTier)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert isinstance(open_objects("az://container/prefix"), ObjectTier)
