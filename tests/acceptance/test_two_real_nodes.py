"""Two real nodes with a shared past behind one chain: one lags, is killed, comes back, is reorged, and nobody notices."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.judging import Record, judge
from tests.acceptance.server import Answer, Client, Copath, chain, running_copath
from tests.acceptance.waiting import until
from tests.oracles import signing
from tests.oracles.anvil import CHAIN_ID, EMITTER_INIT, Anvil, MortalAnvil, running_anvil
from tests.oracles.signing import Account, Call

KEY = 6
IDENTITY = {"chain_key": KEY, "chain_id": CHAIN_ID}
SHARED = 24
"""Heights that both nodes have for good."""

CLIENTS = 4


def record(anvil: Anvil, height: int) -> Record:
    return {"block": anvil.block(height), "receipts": anvil.receipts(height)}


def send(anvil: Anvil, number: int) -> None:
    account = Account.numbered(number)
    anvil.fund(account)
    anvil.send(signing.dynamic_fee(account, Call(None, data=EMITTER_INIT), CHAIN_ID))


class Load:
    """Clients that ask for transactions of some blocks, all the while."""

    def __init__(self, copath: Copath, records: Sequence[Record]) -> None:
        self._copath = copath
        self._records = records
        self._stop = threading.Event()
        self.answers: list[tuple[Record, Answer]] = []
        self.faults: list[BaseException] = []

    def _run(self, seed: int) -> None:
        client, chance = Client(self._copath.port), random.Random(seed)
        try:
            while not self._stop.is_set():
                wanted = chance.choice(self._records)
                height = int(wanted["block"]["number"], 16)
                way = chance.choice(
                    [
                        f"blocks/{height}/transactions/0",
                        f"blocks/{height}/receipts/0",
                        f"blocks/{wanted['block']['hash']}/transactions/0",
                        f"transactions/{wanted['block']['transactions'][0]['hash']}",
                    ]
                )
                self.answers.append((wanted, client.get(f"/api/v1/proofs/{KEY}/{way}")))
        except BaseException as fault:  # noqa: BLE001 - told by the test, not by its thread
            self.faults.append(fault)
        finally:
            client.close()

    @contextmanager
    def running(self) -> Iterator[Load]:
        threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        assert self.faults == []

    def wait(self, more: int) -> None:
        """Until so many more answers came."""
        target = len(self.answers) + more
        until(lambda: len(self.answers) >= target or self.faults, "answers")

    def judge(self) -> None:
        """Every answer is a proof of the block that was asked about."""
        for number, (wanted, answer) in enumerate(self.answers):
            assert answer.status == 200, (number, wanted["block"]["number"], answer.body[:300])
            assert answer.json["blockHash"] == wanted["block"]["hash"]
        for wanted, answer in itertools.islice(self.answers, 0, None, max(1, len(self.answers) // 40)):
            judge(answer.body, wanted, answer.json["kind"], 0, **IDENTITY)


def upstream(copath: Copath, name: str) -> dict[str, Any]:
    listed = copath.get(f"/api/v1/chains/{KEY}").json["upstreams"]
    found: dict[str, Any] = next(each for each in listed if each["name"] == name)
    return found


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[MortalAnvil]:
    node = MortalAnvil(tmp_path)
    try:
        for number in range(1, SHARED + 1):
            send(node.anvil, 100 + number)
            node.anvil.mine()
        yield node
    finally:
        node.close()


@pytest.mark.parametrize("scheme", ["http", "ws"])
def test_nobody_notices_while_one_node_of_two_lags_dies_comes_back_and_is_reorged(
    primary: MortalAnvil, tmp_path: Path, scheme: str
) -> None:
    primary.anvil.save(tmp_path / "shared.json")
    cache = {"merkle_backfill_enabled": False, "merkle_max_bytes": "64KiB"}  # next to nothing is answered from memory
    with running_anvil("--load-state", str(tmp_path / "shared.json")) as second:
        shared = [record(primary.anvil, height) for height in range(1, SHARED + 1)]
        assert second.block(SHARED)["hash"] == shared[-1]["block"]["hash"]
        first_url, second_url = (url.replace("http", scheme) for url in (primary.anvil.url, second.url))
        configured = chain(KEY, "anvil", CHAIN_ID, first_url, eth_rpc_fallback_urls=[second_url], cache=cache)
        with running_copath(configured) as copath:
            # Both are well.
            with Load(copath, shared).running() as load:
                load.wait(60)
            load.judge()

            # The second lags: what only the first has is served all the same.
            for number in range(8):
                send(primary.anvil, 200 + number)
                primary.anvil.mine()
            until(lambda: (upstream(copath, "fallback-1")["lag"] or 0) == 8, "the lag to be seen")
            newer = [record(primary.anvil, height) for height in range(SHARED + 1, SHARED + 9)]
            with Load(copath, [*shared, *newer]).running() as load:
                load.wait(60)
            load.judge()

            # The first is killed, and comes back, while clients ask for what both have.
            with Load(copath, shared).running() as load:
                load.wait(30)
                primary.kill()
                load.wait(150)
                assert upstream(copath, "primary")["state"] == "unverified"
                primary.restart()
                until(lambda: upstream(copath, "primary")["state"] == "ok", "the first to be back")
                load.wait(60)
            load.judge()
            if scheme == "http":
                assert copath.metric("copath_upstream_requests_total", upstream="primary", result="transport") > 0
            else:  # that the line broke off is known without a call
                assert copath.metric("copath_upstream_connections_total", upstream="primary") > 1

            # The first is reorged above what both have: each answer is a block of before or of after, and whole.
            with Load(copath, [*shared, *newer]).running() as load:
                load.wait(30)
                primary.anvil.reorg(6)
                load.wait(90)
            after = [record(primary.anvil, height) for height in range(SHARED + 1, SHARED + 9)]
            by_hash = {each["block"]["hash"]: each for each in [*shared, *newer, *after]}
            for wanted, answer in load.answers:
                if answer.status == 200:
                    assert answer.json["blockNumber"] == int(wanted["block"]["number"], 16)
                    judge(answer.body, by_hash[answer.json["blockHash"]], answer.json["kind"], 0, **IDENTITY)
                else:  # not there any more, or replaced by a block without transactions; never our fault
                    assert answer.status in (404, 409, 503) or answer.code == "EmptyBlockTxProof", answer.body[:300]
                    assert int(wanted["block"]["number"], 16) > SHARED
