"""Thirty attestations are reverted while clients ask: what was anchored there is served no more once that was seen, whoever is
asked, and not before Creditcoin attests it again."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.acceptance.played_creditcoin import PlayedCreditcoin, Source, played_creditcoin, source_chain
from tests.acceptance.server import Answer, Client, Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.oracles.anvil import CHAIN_ID
from tests.oracles.sdk import Sdk

KEY = 4
GENESIS, REVERTED_TO, TOP = 3, 12, 46
ONCE = [height for height in range(GENESIS, TOP + 1) if height not in range(31, 35)]
AGAIN = list(range(15, TOP, 5))
"""What is attested at first, and, above the height that is reverted to, afterwards."""

HEIGHTS = range(GENESIS + 1, TOP + 1)
CLIENTS = 4


def upper_of(body: dict[str, Any]) -> int:
    """The height of the anchor that a body ends in."""
    lowest: int = body["fromHeader"] if "fromHeader" in body else body["headerNumber"]
    return lowest + len(body["continuityProof"]["roots"]) - 1


def ask(client: Client, height: int, way: str) -> Answer:
    if way == "batch":
        items = [{"headerNumber": each, "txIndexes": [0]} for each in (max(GENESIS + 1, height - 4), height)]
        return client.post(f"/api/v1/proof-batch/{KEY}", items)
    return client.get(f"/api/v1/proof/{KEY}/{height}/0")


def attested(copath: Copath) -> int | None:
    height: int | None = copath.get(f"/api/v1/attested-height/{KEY}").json["attestedHeight"]
    return height


def answers(copath: Copath) -> list[tuple[int, int, object]]:
    """To every height, as a single proof and as the end of a batch, without what tells one process or moment from another."""
    found = []
    for height in HEIGHTS:
        for way in ("single", "batch"):
            answer = ask(copath.client, height, way)
            body = {name: value for name, value in answer.json.items() if name not in ("generatedAt", "cached")}
            found.append((height, answer.status, body))
    return found


@dataclass
class Asked:
    began_at: float
    height: int
    answer: Answer


class Load:
    """Clients that ask for all heights, all the while."""

    def __init__(self, copath: Copath) -> None:
        self._copath = copath
        self._stop = threading.Event()
        self.asked: list[Asked] = []
        self.faults: list[BaseException] = []

    def _run(self, seed: int) -> None:
        client, chance = Client(self._copath.port), random.Random(seed)
        try:
            while not self._stop.is_set():
                height, began_at = chance.choice(HEIGHTS), time.monotonic()
                self.asked.append(Asked(began_at, height, ask(client, height, chance.choice(["single", "batch"]))))
        except BaseException as fault:  # noqa: BLE001 - told by the test, not by its thread
            self.faults.append(fault)
        finally:
            client.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        assert self.faults == []

    def wait(self, more: int) -> None:
        """Until so many more answers came."""
        target = len(self.asked) + more
        until(lambda: len(self.asked) >= target or self.faults, "answers")


@dataclass(frozen=True)
class Scene:
    source: Source
    creditcoin: PlayedCreditcoin

    def attest(self, heights: list[int]) -> None:
        self.creditcoin.attest(KEY, {height: self.source.digests[height] for height in heights})

    @contextmanager
    def replica(self) -> Iterator[Copath]:
        """One more process, with what it keeps to itself, as soon as it has read the anchors."""
        configured = chain(
            KEY,
            "source",
            CHAIN_ID,
            self.source.anvil.url,
            anchors={"source": "creditcoin", "url": self.creditcoin.url},
            finality={"mode": "depth", "depth": 2},
        )
        with running_copath(configured) as copath:
            until(lambda: attested(copath) is not None, "the anchors to be read")
            yield copath


@pytest.fixture
def scene(sdk: Sdk) -> Iterator[Scene]:
    with source_chain(sdk, GENESIS) as source, played_creditcoin(sdk) as creditcoin:
        source.mine(TOP + 3)
        made = Scene(source, creditcoin)
        creditcoin.support(KEY, GENESIS)
        made.attest(ONCE)
        creditcoin.checkpoint(KEY, GENESIS)
        yield made


def test_nothing_reverted_is_served_once_it_was_seen_and_replicas_agree(scene: Scene) -> None:
    assert sum(height > REVERTED_TO for height in ONCE) == 30
    with scene.replica() as copath:
        assert attested(copath) == TOP
        load = Load(copath)
        with load.running():
            load.wait(200)
            scene.creditcoin.revert(KEY, REVERTED_TO)
            until(lambda: attested(copath) == REVERTED_TO, "the revert to be seen")
            seen_at = time.monotonic()
            with scene.replica() as other:  # started while the first is asked
                load.wait(200)
                reverted, elsewhere = answers(copath), answers(other)
        assert {each.answer.status for each in load.asked} == {200, 422}
        after = [each for each in load.asked if each.began_at > seen_at]
        assert len(after) > 100
        for each in after:
            if each.height > REVERTED_TO:
                assert (each.answer.status, each.answer.code) == (422, "BlockNotReady")
                assert each.answer.json["last_attested_block"] == REVERTED_TO
            else:
                assert each.answer.status == 200, each.answer.body[:300]
                assert upper_of(each.answer.json) <= REVERTED_TO
        served = [upper_of(each.answer.json) for each in load.asked if each.answer.status == 200]
        assert max(served) == TOP
        assert reverted == elsewhere
        assert copath.metric("copath_anchor_reverts_total", chain="source") == 1

        with scene.replica() as other:
            scene.attest(AGAIN)
            for each_copath in (copath, other):
                until(
                    lambda each_copath=each_copath: attested(each_copath) == AGAIN[-1], "the anchors to be read again"
                )
            again = answers(copath)
            assert again == answers(other)
        for height, status, body in again:
            assert (status == 200) == (height <= AGAIN[-1])
            if status == 200:
                assert isinstance(body, dict)
                assert upper_of(body) in [*range(GENESIS, REVERTED_TO + 1), *AGAIN]
                assert scene.creditcoin.accepts(body), height


def test_a_proof_that_was_begun_before_the_revert_does_not_leave_after_it(scene: Scene) -> None:
    with scene.replica() as copath, ThreadPoolExecutor(2) as clients:
        # The block itself is at hand: what the two wait for is the others on the way from its anchor to the next.
        assert copath.get(f"/api/v1/proofs/{KEY}/blocks/32/receipts/0").status == 200
        os.kill(scene.source.anvil.process_id, signal.SIGSTOP)
        try:
            single, batch = Client(copath.port), Client(copath.port)
            begun = [clients.submit(ask, single, 32, "single"), clients.submit(ask, batch, 36, "batch")]
            until(lambda: copath.metric("copath_fill_running", chain="source") >= 4, "fills of the other blocks")
            scene.creditcoin.revert(KEY, REVERTED_TO)
            until(lambda: attested(copath) == REVERTED_TO, "the revert to be seen")
            assert not any(each.done() for each in begun)
        finally:
            os.kill(scene.source.anvil.process_id, signal.SIGCONT)
        for each in begun:
            answer = each.result()
            assert (answer.status, answer.code) == (422, "BlockNotReady"), answer.body[:300]
            assert answer.json["last_attested_block"] == REVERTED_TO
        single.close()
        batch.close()
