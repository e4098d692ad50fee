"""Many ask for one cold block at once: it is fetched once, built once, and whoever leaves takes nothing from the others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.made_blocks import CHAIN_ID, every_type, small_chain
from tests.acceptance.recorded_node import RecordedChain, RecordedNode
from tests.acceptance.server import Answer, Client, Copath, chain, running_copath
from tests.acceptance.waiting import until

BLOCKS = small_chain(every_type())
BLOCK = BLOCKS[1]["block"]
TX_HASH = BLOCK["transactions"][4]["hash"]
# Each chain holds the same blocks, and each question below finds its own chain's block cold.
QUESTIONS = {
    "by-number": "/api/v1/proofs/{name}/blocks/2/transactions/4",
    "by-hash": f"/api/v1/proofs/{{name}}/blocks/{BLOCK['hash']}/receipts/4",
    "by-transaction": f"/api/v1/proofs/{{name}}/transactions/{TX_HASH}",
    "log": f"/api/v1/proofs/{{name}}/logs/{TX_HASH}/0",
}
CROWDS = ("first-leaves", "poison", "spellings", "next")


@pytest.fixture(scope="module")
def chains(node: RecordedNode) -> dict[str, RecordedChain]:
    names = [f"cold-{name}" for name in (*QUESTIONS, *CROWDS)]
    node.chains |= {name: RecordedChain(CHAIN_ID, BLOCKS) for name in names}
    return {name.removeprefix("cold-"): node.chains[name] for name in names}


@pytest.fixture(scope="module")
def copath(node: RecordedNode, chains: dict[str, RecordedChain]) -> Iterator[Copath]:
    configured = [
        chain(key, f"cold-{name}", CHAIN_ID, node.url(f"cold-{name}")) for key, name in enumerate(chains, start=1)
    ]
    admission = {"max_in_flight_requests": 128, "max_in_flight_per_chain": 64, "request_timeout_secs": 60}
    with running_copath(*configured, admission=admission) as running:
        yield running


def _in_flight(copath: Copath) -> int:
    return int(copath.metric("copath_http_requests_in_flight"))


def _fetched_once(copath: Copath, chains: dict[str, RecordedChain], name: str) -> None:
    assert chains[name].block_fetches() == 1
    assert chains[name].hits("eth_getBlockReceipts") == 1
    assert chains[name].hits("eth_getTransactionReceipt") == 0
    assert copath.metric("copath_merkle_build_duration_seconds_count", chain=f"cold-{name}") == 1
    assert copath.metric("copath_fill_total", chain=f"cold-{name}") == 1
    assert chains[name].violations == []


def _ask_together(copath: Copath, held: RecordedChain, paths: list[str]) -> list[Answer]:
    """Sends all, keeps the node silent about receipts until every request is in, and then lets go."""

    def ask(path: str) -> Answer:
        client = Client(copath.port)
        try:
            return client.get(path)
        finally:
            client.close()

    with held.held("eth_getBlockReceipts") as gate, ThreadPoolExecutor(len(paths)) as pool:
        answers = [pool.submit(ask, path) for path in paths]
        try:
            until(lambda: _in_flight(copath) >= len(paths), f"{len(paths)} requests in flight")
        finally:
            gate.set()
        return [answer.result() for answer in answers]


@pytest.mark.parametrize("question", QUESTIONS)
def test_F1_32_identical_cold_requests_cost_one_fetch_and_one_build(
    question: str, copath: Copath, chains: dict[str, RecordedChain]
) -> None:
    path = QUESTIONS[question].format(name=f"cold-{question}")
    answers = _ask_together(copath, chains[question], [path] * 32)
    assert {answer.status for answer in answers} == {200}, {answer.body[:300] for answer in answers}
    assert len({answer.body for answer in answers}) == 1
    _fetched_once(copath, chains, question)
    assert copath.get(path).body == answers[0].body
    _fetched_once(copath, chains, question)


def test_B73_four_spellings_of_a_hash_are_one_block_and_one_answer(
    copath: Copath, chains: dict[str, RecordedChain]
) -> None:
    digits = TX_HASH[2:]
    spellings = [f"0x{digits}", f"0x{digits.upper()}", f"0X{digits.upper()}", digits]
    answers = _ask_together(
        copath,
        chains["spellings"],
        [f"/api/v1/proofs/cold-spellings/transactions/{spelling}" for spelling in spellings],
    )
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in answers}) == 1
    assert len({answer.headers["etag"] for answer in answers}) == 1
    assert answers[0].json["transactionHash"] == TX_HASH
    blocks = [BLOCK["hash"], BLOCK["hash"].upper().replace("0X", "0x"), BLOCK["hash"][2:], "2", "0x2"]
    bodies = {copath.get(f"/api/v1/proofs/cold-spellings/blocks/{block}/transactions/4").body for block in blocks}
    assert bodies == {answers[0].body}
    _fetched_once(copath, chains, "spellings")


class Caller:
    """A client that can hang up while it waits."""

    def __init__(self, port: int, path: str) -> None:
        self.answer: bytes | None = None
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: copath\r\nConnection: close\r\n\r\n".encode())
        self._reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        received = b""
        while chunk := self._socket.recv(65536):
            received += chunk
        self.answer = received

    def hang_up(self) -> None:
        """Leaves without an answer."""
        self._socket.close()

    def listen(self) -> bytes:
        """The whole answer."""
        self._reader.start()
        self._reader.join(timeout=60)
        self._socket.close()
        assert self.answer is not None, "no answer"
        return self.answer


def test_B51_the_first_caller_and_half_of_the_others_leave_and_the_rest_are_served(
    copath: Copath, chains: dict[str, RecordedChain]
) -> None:
    held = chains["first-leaves"]
    path = "/api/v1/proofs/cold-first-leaves/blocks/2/transactions/4"
    before = _in_flight(copath)
    with held.held("eth_getBlockReceipts") as gate:
        first = Caller(copath.port, path)
        until(lambda: held.hits("eth_getBlockReceipts") == 1, "the first caller's fill")
        others = [Caller(copath.port, path) for _ in range(49)]
        until(lambda: _in_flight(copath) == before + 50, "50 callers in flight")
        for caller in [first, *others[:24]]:
            caller.hang_up()
        until(lambda: _in_flight(copath) == before + 25, "25 callers gone")
        gate.set()
        answers = [caller.listen() for caller in others[24:]]
    assert len(answers) == 25
    assert {answer.split(b"\r\n", 1)[0] for answer in answers} == {b"HTTP/1.1 200 OK"}
    _fetched_once(copath, chains, "first-leaves")
    until(lambda: _in_flight(copath) == before, "nobody in flight")


def test_F4_when_everybody_leaves_the_fill_ends_by_itself_and_the_next_caller_is_served(
    copath: Copath, chains: dict[str, RecordedChain]
) -> None:
    held = chains["next"]
    path = "/api/v1/proofs/cold-next/blocks/2/transactions/4"
    with held.held("eth_getBlockReceipts") as gate:
        callers = [Caller(copath.port, path) for _ in range(5)]
        until(lambda: held.hits("eth_getBlockReceipts") == 1, "the fill")
        until(lambda: _in_flight(copath) >= 5, "5 callers in flight")
        for caller in callers:
            caller.hang_up()
        until(lambda: _in_flight(copath) == 0, "everybody gone")
        gate.set()
    until(lambda: copath.metric("copath_fill_total", chain="cold-next") == 1, "the end of the fill")
    assert copath.get(path).status == 200
    _fetched_once(copath, chains, "next")


def test_B55_callers_that_hang_up_in_numbers_leave_the_way_to_the_node_whole(
    copath: Copath, chains: dict[str, RecordedChain]
) -> None:
    held = chains["poison"]
    unknown = [f"/api/v1/proofs/cold-poison/transactions/0x{number:064x}" for number in range(1, 121)]
    with held.held("eth_getTransactionByHash") as gate:
        callers = [Caller(copath.port, path) for path in unknown]
        until(lambda: _in_flight(copath) >= len(callers) - 56 or held.hits("eth_getTransactionByHash") > 8, "callers")
        for caller in callers:
            caller.hang_up()
        until(lambda: _in_flight(copath) == 0, "everybody gone")
        gate.set()
    for index in range(7):
        for kind in ("transactions", "receipts"):
            answer = copath.get(f"/api/v1/proofs/cold-poison/{kind}/{BLOCK['transactions'][index]['hash']}")
            assert answer.status == 200, answer.body[:300]
    _fetched_once(copath, chains, "poison")
