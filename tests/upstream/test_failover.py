"""Several nodes behind one upstream, each misbehaving in its way: who is asked, who is not, and what the client gets.

The names carry the rows of the table of failure modes (`row_NN`), the checks of data (D1-D3) and the cases (B20-B37). Results
alone prove little here: every test counts what arrived at each node.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from app.core.blocks import BlockRef
from app.core.breaker import BreakerState
from app.core.deadlines import deadline
from app.core.errors import (
    BlockNotOnSourceChain,
    HistoryUnavailable,
    InconsistentSource,
    ProofError,
    RequestTimeout,
    RpcUnavailable,
    TxNotMined,
)
from app.core.hexadecimal import from_hex, to_hex
from app.core.provable_block import Verdict
from app.core.routing import Part
from tests.corpus_files import recorded
from tests.scripted_behaviours import (
    Behaviour,
    answer,
    changed,
    drip,
    error,
    gzip_bomb,
    hang,
    html,
    http,
    huge,
    null,
    raw,
    reset,
    truncated,
    without_id,
    wrong_id,
)
from tests.scripted_node import ScriptedNode, closed_port
from tests.upstream.crew import BY_HASH, BY_NUMBER, CHAIN_ID, HEAD, RECEIPTS, TX, TX_RECEIPT, Crew, open_crew

MILLION = BlockRef(height=1_000_000)
BUSY = BlockRef(height=17_034_869)
Record = dict[str, Any]


@pytest.fixture
async def crew(million: Record) -> AsyncIterator[Crew]:
    """Two nodes that have mainnet block 1 000 000, which is their head."""
    async with open_crew(ScriptedNode.of_corpus(million), ScriptedNode.of_corpus(million)) as opened:
        yield opened


@pytest.fixture
async def busy_crew(busy: Record) -> AsyncIterator[Crew]:
    """Two nodes that have mainnet block 17 034 869, with 93 transactions, which is their head."""
    async with open_crew(ScriptedNode.of_corpus(busy), ScriptedNode.of_corpus(busy)) as opened:
        yield opened


def is_whole(block: Any) -> bool:
    return bool(block.transactions_verdict is Verdict.PROVEN and block.receipts_verdict is Verdict.PROVEN)


async def serves_from_b(crew: Crew, ref: BlockRef = MILLION) -> None:
    """The block comes whole and from the second node alone, which is asked for it once."""
    before = crew.hits(RECEIPTS)[1]
    assert is_whole(await crew.fetch(ref))
    assert crew.judged[-1] == "b"
    assert crew.hits(RECEIPTS)[1] == before + 1


# --- a good primary is enough ---------------------------------------------------------------------------------------


async def test_a_good_primary_is_the_only_one_that_is_asked(crew: Crew) -> None:
    assert is_whole(await crew.fetch(MILLION))
    await crew.upstream.name_of(1_000_000)
    await crew.upstream.position(from_hex("0xea1093d492a1dcb1bef708f771a99a96ff05dcab81ca76c31940300177fcf49f"))
    assert crew.asked[1] == 0
    assert crew.hits(BY_NUMBER)[0] == 2


async def test_block_and_receipts_come_from_one_node_the_receipts_by_hash(crew: Crew) -> None:
    crew.nodes[0].script(RECEIPTS, http(500))
    await serves_from_b(crew)
    assert crew.hits(BY_NUMBER) == [1, 1]
    assert crew.nodes[1].params[RECEIPTS] == [["0x8e38b4dbf6b11fcc3b9dee84fb7986e29ca0a02cecd8977c161ff7333329681e"]]


# --- the connection -------------------------------------------------------------------------------------------------


async def test_row_01_U3_a_refused_connection_costs_no_time_and_opens_the_breaker_after_five(million: Record) -> None:
    with closed_port() as port:
        nodes = ScriptedNode.of_corpus(million), ScriptedNode.of_corpus(million)
        async with open_crew(*nodes, urls=[f"http://127.0.0.1:{port}/K"]) as crew:
            for number in range(1, 6):
                await serves_from_b(crew)
                assert crew.clock.pauses == []
                assert crew.hits(BY_NUMBER)[1] == number
            # Not verified, it is asked after the others, and so by the polls alone.
            for _ in range(5):
                await crew.upstream.sightings("latest")
            assert crew.evms[0].state.breaker_state(crew.clock.now()) is BreakerState.OPEN
            refused = crew.counts[0].results(CHAIN_ID)["transport"]
            await crew.upstream.sightings("latest")
            assert crew.counts[0].results(CHAIN_ID)["transport"] == refused


@pytest.mark.parametrize("behaviour", [reset(after_bytes=100), truncated(), reset()], ids=lambda b: b.name)
async def test_row_02_a_connection_that_breaks_off_costs_one_turn(crew: Crew, behaviour: Behaviour) -> None:
    crew.nodes[0].always(BY_NUMBER, behaviour)
    await serves_from_b(crew)
    assert crew.judged == ["b"]
    assert crew.hits(BY_NUMBER)[1] == 1


async def test_row_03_U13_a_node_that_hangs_is_left_after_its_attempt_and_opens_its_breaker(crew: Crew) -> None:
    crew.limit(attempt_timeout_s=0.05)
    crew.nodes[0].always(BY_NUMBER, hang())
    for _ in range(5):
        await serves_from_b(crew)
    assert crew.hits(BY_NUMBER)[0] == 5
    await serves_from_b(crew)
    assert crew.hits(BY_NUMBER) == [5, 6]
    assert crew.evms[0].connections_held == 0
    assert crew.counts[0].results(BY_NUMBER) == {"timeout": 5}
    assert crew.evms[0].state.breakers[Part.LIGHT].opened_at is None


async def test_row_04_a_node_that_drips_is_left_though_no_read_is_slow(crew: Crew) -> None:
    crew.limit(attempt_timeout_s=0.1)
    crew.nodes[0].always(BY_NUMBER, drip(0.005))
    await serves_from_b(crew)
    assert crew.counts[0].results(BY_NUMBER) == {"timeout": 1}


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "cooldown_s"),
    [
        (http(429, retry_after="3"), 3.0),
        (http(429, retry_after="Tue, 14 Nov 2023 22:13:25 GMT"), 5.0),
        (http(429), 1.0),
        (http(429, retry_after="999999"), 60.0),
        (error(-32005, "daily request count exceeded"), 1.0),
        (error(-32000, "Your app has exceeded its compute units per second capacity"), 1.0),
    ],
)
async def test_row_05_06_U14_B30_a_limit_is_a_cooldown_and_no_failure(
    crew: Crew, behaviour: Behaviour, cooldown_s: float
) -> None:
    crew.nodes[0].script(BY_NUMBER, behaviour)
    for _ in range(4):
        await serves_from_b(crew)
    crew.clock.at += cooldown_s - 0.01
    await serves_from_b(crew)
    assert crew.hits(BY_NUMBER)[0] == 1
    assert crew.evms[0].state.breaker_state(crew.clock.now()) is BreakerState.CLOSED
    assert crew.listed(0)["cooldownSeconds"] == pytest.approx(0.0, abs=0.02)
    crew.clock.at += 0.01
    await crew.fetch(MILLION)
    assert (crew.judged[-1], crew.hits(BY_NUMBER)[0]) == ("a", 2)


async def test_U14_any_number_of_limits_is_no_failure(crew: Crew) -> None:
    crew.nodes[0].always(BY_NUMBER, http(429, retry_after="2"))
    for number in range(1, 25):
        await serves_from_b(crew)
        crew.clock.at += 2.0
        assert crew.hits(BY_NUMBER)[0] == number
    assert crew.evms[0].state.breaker_state(crew.clock.now()) is BreakerState.CLOSED


async def test_U14_when_all_are_cooling_the_client_hears_the_shortest_wait_and_nobody_is_asked(crew: Crew) -> None:
    crew.nodes[0].script(BY_NUMBER, http(429, retry_after="30"))
    crew.nodes[1].script(BY_NUMBER, http(429, retry_after="9"))
    for _ in range(3):
        with pytest.raises(RpcUnavailable) as caught:
            await crew.fetch(MILLION)
        assert caught.value.retry_after_s == 9.0
    assert crew.hits(BY_NUMBER) == [1, 1]
    assert crew.clock.pauses == []


@pytest.mark.parametrize("status", [401, 402, 403])
async def test_row_07_a_node_that_refuses_us_is_out_after_one_call(crew: Crew, status: int) -> None:
    crew.nodes[0].always("*", http(status, "pay first"))
    for _ in range(10):
        await serves_from_b(crew)
    assert crew.asked[0] == 1
    assert crew.listed(0)["state"] == "denied"


@pytest.mark.parametrize("status", [400, 404, 410])
async def test_row_07_an_address_where_no_node_is_is_soon_not_asked_any_more(crew: Crew, status: int) -> None:
    crew.nodes[0].always("*", http(status, "no such page"))
    for _ in range(10):
        await serves_from_b(crew)
    assert crew.asked[0] == 5


# --- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "behaviour",
    [
        html(),
        html(502),
        raw("invalid host specified"),
        raw(b""),
        raw("{}"),
        raw("[]"),
        raw('{"jsonrpc":"2.0","id":1,"result":' + "[" * 5000 + "]" * 5000 + "}"),
        raw('{"id":1,"result":' + "9" * 5000 + "}"),
        without_id(),
        wrong_id(),
        answer("many"),
        answer({}),
        answer([]),
        answer({"number": "0xf4240", "number ": "0x1", "hash": "0x12"}),
    ],
)
async def test_row_08_09_B27_whatever_a_node_sends_the_next_one_serves(
    crew: Crew, behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    crew.nodes[0].always(BY_NUMBER, behaviour)
    await serves_from_b(crew)
    assert crew.hits(BY_NUMBER) == [1, 1]
    assert all(len(str(record.__dict__.get("excerpt"))) < 400 for record in caplog.records)


@pytest.mark.parametrize("behaviour", [huge(), huge(chunked=True), gzip_bomb(1 << 26)], ids=lambda b: b.name)
async def test_row_10_a_body_without_end_is_left_at_the_cap(million: Record, behaviour: Behaviour) -> None:
    nodes = ScriptedNode.of_corpus(million), ScriptedNode.of_corpus(million)
    async with open_crew(*nodes, max_body_bytes=1 << 20) as crew:
        crew.nodes[0].always(BY_NUMBER, behaviour)
        await serves_from_b(crew)
        assert crew.hits(BY_NUMBER) == [1, 1]
        assert crew.nodes[0].sent_bytes < 32 << 20


# --- the wrong chain ------------------------------------------------------------------------------------------------


async def test_row_11_U15_B35_a_node_of_another_chain_is_never_used_and_looked_at_again_later(million: Record) -> None:
    stranger = ScriptedNode.of_corpus(million)
    stranger.chain_id = 5
    async with open_crew(stranger, ScriptedNode.of_corpus(million)) as crew:
        for _ in range(5):
            await serves_from_b(crew)
        assert crew.asked[0] == 0
        assert (crew.listed(0)["state"], crew.upstream.known_chain_id) == ("wrong-chain", 1)
        stranger.chain_id = 1
        crew.clock.at += 60.0
        await crew.upstream.sightings("latest")
        assert is_whole(await crew.fetch(MILLION))
        assert crew.judged[-1] == "a"


async def test_row_11_B35_an_address_that_comes_to_serve_another_chain_is_found_out(crew: Crew) -> None:
    await crew.fetch(MILLION)
    crew.nodes[0].chain_id = 5
    crew.clock.at += 300.0
    await serves_from_b(crew)
    assert crew.hits(BY_NUMBER) == [1, 1]


async def test_B35_all_of_another_chain_is_unavailable_and_no_data_is_asked_for(crew: Crew) -> None:
    for node in crew.nodes:
        node.chain_id = 5
    crew.clock.at += 300.0
    with pytest.raises(RpcUnavailable) as caught:
        await crew.fetch(MILLION)
    assert "serves chain 5, configured 1" in caught.value.message
    assert crew.asked == [1, 1]


async def test_B35_where_none_is_configured_the_first_node_decides_which_chain_it_is(million: Record) -> None:
    stranger = ScriptedNode.of_corpus(million)
    stranger.chain_id = 5
    async with open_crew(ScriptedNode.of_corpus(million), stranger, chain_id=None) as crew:
        assert await crew.upstream.chain_id() == 1
        await crew.upstream.name_of(1_000_000)
        assert [crew.listed(at)["state"] for at in (0, 1)] == ["ok", "wrong-chain"]
        crew.nodes[0].always("*", http(500))
        with pytest.raises(RpcUnavailable):
            await crew.fetch(MILLION)
        assert crew.hits(BY_NUMBER)[1] == 0


# --- blocks that are not there --------------------------------------------------------------------------------------


async def test_row_12_B20_B26_null_from_a_node_that_lost_the_block_is_asked_of_another(crew: Crew) -> None:
    crew.nodes[0].always(BY_NUMBER, null())
    await serves_from_b(crew)
    assert crew.clock.pauses == []


async def test_row_12_B45_null_from_all_is_absent_for_now_and_asked_again_the_next_time(crew: Crew) -> None:
    for node in crew.nodes:
        node.always(BY_NUMBER, null())
    for number in (1, 2):
        with pytest.raises(BlockNotOnSourceChain) as caught:
            await crew.fetch(MILLION)
        assert caught.value.retriable
        assert crew.hits(BY_NUMBER) == [number, number]
    for node in crew.nodes:
        node.always(BY_NUMBER, None)
    assert is_whole(await crew.fetch(MILLION))


async def test_row_13_a_height_above_every_head_costs_no_call(crew: Crew) -> None:
    with pytest.raises(BlockNotOnSourceChain) as caught:
        await crew.fetch(BlockRef(height=1_000_017))
    assert caught.value.message == "block 1000017 is above the head 1000000 of the source chain"
    assert crew.asked == [0, 0]


async def test_B25_B26_a_height_just_above_the_heads_is_not_yet_there_by_the_word_of_the_nodes(crew: Crew) -> None:
    with pytest.raises(BlockNotOnSourceChain):
        await crew.fetch(BlockRef(height=1_000_001))
    assert crew.hits(HEAD) == [1, 1]


async def test_B25_a_block_of_a_node_that_cannot_be_asked_is_not_absent_by_the_word_of_one_that_lags(
    million: Record,
) -> None:
    behind = ScriptedNode.of_corpus(million)
    behind.canonical = {999_999: behind.canonical[1_000_000]}
    behind.blocks[behind.canonical[999_999]] = {**million["block"], "number": "0xf423f"}
    async with open_crew(ScriptedNode.of_corpus(million), behind) as crew:
        crew.nodes[0].always(BY_NUMBER, http(503))
        with pytest.raises(RpcUnavailable):
            await crew.fetch(MILLION)
        with pytest.raises(RpcUnavailable):
            await crew.upstream.name_of(1_000_000)


@pytest.mark.parametrize(
    "message",
    [
        "header not found",
        "unknown block",
        "block not found",
        "Block with such an ID doesn't exist",
        "could not find block",
        "header for hash not found",
        "cannot find block",
        "One of the blocks specified in filter is after last accepted block",
        "Block requested not found. Request might be querying historical state",
        "block number is beyond current head",
    ],
)
async def test_row_14_what_vendors_say_for_null_is_null(crew: Crew, message: str) -> None:
    crew.nodes[0].always(BY_NUMBER, error(-32000, message))
    if "historical" in message:  # also the word for pruned: either way another node is asked
        assert is_whole(await crew.fetch(MILLION))
        return
    await serves_from_b(crew)
    with pytest.raises(BlockNotOnSourceChain):
        await crew.fetch(BlockRef(height=1_000_001))


# --- receipts -------------------------------------------------------------------------------------------------------


async def test_row_15_B22_null_receipts_are_asked_of_another_at_once(crew: Crew) -> None:
    crew.nodes[0].always(RECEIPTS, null())
    await serves_from_b(crew)
    assert crew.clock.pauses == []
    assert crew.hits(RECEIPTS) == [1, 1]
    assert crew.judged == ["b"]


async def test_row_15_B20_B22_receipts_that_no_node_has_are_waited_for_and_then_said_to_be_missing(crew: Crew) -> None:
    for node in crew.nodes:
        node.script(RECEIPTS, null(), null())
    assert is_whole(await crew.fetch(MILLION))
    assert crew.clock.pauses != []
    for node in crew.nodes:
        node.always(TX_RECEIPT, null())
        node.always(RECEIPTS, null())
    block = await crew.fetch(MILLION)
    assert (block.transactions_verdict, block.receipts_verdict) == (Verdict.PROVEN, Verdict.UNAVAILABLE)
    assert not block.settled


@pytest.mark.parametrize("each", [null(), error(-32601, "no such method")], ids=["null", "unsupported"])
async def test_row_16_B21_an_empty_list_for_a_block_with_transactions_is_no_answer(crew: Crew, each: Behaviour) -> None:
    crew.nodes[0].always(RECEIPTS, answer([]))
    crew.nodes[0].always(TX_RECEIPT, each)
    await serves_from_b(crew)


@pytest.mark.parametrize("whole", [False, True], ids=["receipt", "log"])
async def test_row_17_D2_B23_receipts_of_another_fork_are_refused_and_the_node_is_put_last(
    busy_crew: Crew, whole: bool
) -> None:
    foreign = "0x" + "22" * 32

    def move(receipts: list[Record]) -> None:
        for receipt in receipts if not whole else []:
            receipt["blockHash"] = foreign
        for log in [log for receipt in receipts for log in receipt["logs"]] if whole else []:
            log["blockHash"] = foreign

    busy_crew.nodes[0].always(RECEIPTS, changed(move))
    await serves_from_b(busy_crew, BUSY)
    assert busy_crew.judged == ["a", "b"]
    assert busy_crew.counts[0].invalid.total() == 1
    assert busy_crew.counts[1].invalid.total() == 0
    assert busy_crew.listed(0)["trusted"] is False
    await serves_from_b(busy_crew, BUSY)
    assert busy_crew.judged == ["a", "b", "b"]
    busy_crew.clock.at += 60.0
    await busy_crew.fetch(BUSY)
    assert busy_crew.judged[3:] == ["a", "b"]


async def test_row_18_B37_a_changed_status_costs_the_node_its_answer_and_its_place(busy_crew: Crew) -> None:
    busy_crew.nodes[0].always(RECEIPTS, changed(lambda receipts: receipts[3].update(status="0x0")))
    await serves_from_b(busy_crew, BUSY)
    assert busy_crew.judged == ["a", "b"]
    assert busy_crew.listed(0)["trusted"] is False


async def test_B37_receipts_that_all_nodes_have_wrong_are_the_best_there_is_and_nobody_is_blamed(
    busy_crew: Crew,
) -> None:
    for node in busy_crew.nodes:
        node.always(RECEIPTS, changed(lambda receipts: receipts[3].update(status="0x0")))
        node.always(TX_RECEIPT, changed(lambda receipt: receipt.update(status="0x0")))
    block = await busy_crew.fetch(BUSY)
    assert (block.transactions_verdict, block.receipts_verdict) == (Verdict.PROVEN, Verdict.UNMET)
    assert busy_crew.judged == ["a", "b", "a", "b"]
    assert [busy_crew.listed(at)["trusted"] for at in (0, 1)] == [True, True]


async def test_a_list_that_all_nodes_have_wrong_is_asked_for_receipt_by_receipt_once(busy_crew: Crew) -> None:
    for node in busy_crew.nodes:
        node.always(RECEIPTS, changed(lambda receipts: receipts[3].update(status="0x0")))
    block = await busy_crew.fetch(BUSY)
    assert (block.transactions_verdict, block.receipts_verdict) == (Verdict.PROVEN, Verdict.PROVEN)
    assert busy_crew.judged == ["a", "b", "a"]
    assert (busy_crew.hits(RECEIPTS), busy_crew.hits(TX_RECEIPT)) == ([1, 1], [93, 0])


async def test_of_several_doubtful_blocks_the_best_one_counts(busy_crew: Crew) -> None:
    busy_crew.nodes[0].always(TX_RECEIPT, null())
    busy_crew.nodes[0].always(RECEIPTS, null())
    busy_crew.nodes[1].always(RECEIPTS, changed(lambda receipts: receipts[3].update(status="0x0")))
    busy_crew.nodes[1].always(TX_RECEIPT, changed(lambda receipt: receipt.update(status="0x0")))
    assert (await busy_crew.fetch(BUSY)).receipts_verdict is Verdict.UNMET


async def test_a_doubtful_block_serves_while_the_other_node_is_down(busy_crew: Crew) -> None:
    busy_crew.nodes[0].always("*", http(503))
    busy_crew.nodes[1].always(RECEIPTS, changed(lambda receipts: receipts[3].update(status="0x0")))
    block = await busy_crew.fetch(BUSY)
    assert block.transaction_proof(5).root == bytes.fromhex(
        busy_crew.nodes[0].blocks[block_hash(busy_crew)]["transactionsRoot"][2:]
    )


def block_hash(crew: Crew) -> str:
    return next(iter(crew.nodes[0].blocks))


@pytest.mark.parametrize("ref", ["height", "hash"])
async def test_row_19_D1_another_valid_block_than_the_one_asked_for_is_refused(crew: Crew, ref: str) -> None:
    other = recorded("contiguous", "mainnet_1000002")["block"]
    crew.nodes[0].always(BY_NUMBER, answer(other))
    crew.nodes[0].always(BY_HASH, answer(other))
    wanted = MILLION if ref == "height" else BlockRef(block_hash=from_hex(block_hash(crew)))
    await serves_from_b(crew, wanted)
    assert crew.counts[0].invalid == {"identity": 1}


# --- two witnesses --------------------------------------------------------------------------------------------------


def _other_type(record: Record) -> None:
    record["block"]["transactions"][0] |= {"type": "0x7f"}


def _unknown_field(record: Record) -> None:
    record["block"] |= {"futureRoot": "0x" + "11" * 32, "gasUsed": "0x1"}


def _one_missing(record: Record) -> None:
    del record["block"]["transactions"][1], record["receipts"][1]


def _one_too_many(record: Record) -> None:
    record["block"]["transactions"].append(copy.deepcopy(record["block"]["transactions"][0]))
    record["receipts"].append(copy.deepcopy(record["receipts"][0]))


LIES = {
    "type": (_other_type, "transactions_type"),
    "header": (_unknown_field, "header_fields"),
    "missing": (_one_missing, "transactions_root"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_D2_what_one_node_refuses_for_good_another_gives(million: Record, lie: str) -> None:
    lying, check = copy.deepcopy(million), LIES[lie][1]
    LIES[lie][0](lying)
    async with open_crew(ScriptedNode.of_corpus(lying), ScriptedNode.of_corpus(million)) as crew:
        block = await crew.fetch(MILLION)
        assert (block.transactions_verdict, block.receipts_verdict) == (Verdict.PROVEN, Verdict.PROVEN)
        assert crew.hits(BY_NUMBER) == [1, 1]
        assert (crew.counts[0].invalid, crew.counts[1].invalid.total()) == ({check: 1}, 0)
        assert [crew.listed(at)["trusted"] for at in (0, 1)] == [False, True]
        await crew.fetch(MILLION)
        assert crew.hits(BY_NUMBER) == [1, 2]


@pytest.mark.parametrize("lie", LIES)
async def test_what_two_nodes_refuse_is_refused_for_good_and_nobody_is_blamed(million: Record, lie: str) -> None:
    strange = copy.deepcopy(million)
    LIES[lie][0](strange)
    async with open_crew(ScriptedNode.of_corpus(strange), ScriptedNode.of_corpus(strange)) as crew:
        assert (
            await refused_by(crew)
            == {
                "type": "UnsupportedTransactionType",
                "header": "UnsupportedBlockFormat",
                "missing": "UnsupportedBlockFormat",
            }[lie]
        )
        assert crew.hits(BY_NUMBER)[1] == (2 if lie == "missing" else 1)  # its receipts are asked for once more, singly
        assert [crew.listed(at)["trusted"] for at in (0, 1)] == [True, True]


@pytest.mark.parametrize("lie", LIES)
async def test_what_the_only_node_refuses_is_refused(million: Record, lie: str) -> None:
    strange = copy.deepcopy(million)
    LIES[lie][0](strange)
    async with open_crew(ScriptedNode.of_corpus(strange)) as crew:
        assert await refused_by(crew) != "InconsistentSource"


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(
    "trouble", [http(503), error(-32000, "internal"), null(), http(429, headers={"retry-after": "9"})]
)
async def test_what_one_node_refuses_while_the_other_cannot_be_asked_is_asked_again(
    million: Record, lie: str, trouble: Behaviour
) -> None:
    strange = copy.deepcopy(million)
    LIES[lie][0](strange)
    async with open_crew(ScriptedNode.of_corpus(strange), ScriptedNode.of_corpus(million)) as crew:
        for method in (BY_NUMBER, RECEIPTS):
            crew.nodes[1].always(method, trouble)
        assert await refused_by(crew) == "InconsistentSource"


async def test_two_nodes_that_refuse_for_different_reasons_are_no_two_witnesses(million: Record) -> None:
    nodes = []
    for lie in ("type", "missing"):
        nodes.append(copy.deepcopy(million))
        LIES[lie][0](nodes[-1])
    async with open_crew(*(ScriptedNode.of_corpus(each) for each in nodes)) as crew:
        assert await refused_by(crew) == "InconsistentSource"


async def test_a_node_that_keeps_no_block_that_old_is_no_witness_to_wait_for(million: Record) -> None:
    strange = copy.deepcopy(million)
    _other_type(strange)
    async with open_crew(ScriptedNode.of_corpus(strange), ScriptedNode.of_corpus(million)) as crew:
        crew.nodes[1].always(BY_NUMBER, error(4444, "pruned history unavailable"))
        assert await refused_by(crew) == "UnsupportedTransactionType"


async def refused_by(crew: Crew) -> str:
    """The code with which the transactions of the block are refused."""
    with pytest.raises(ProofError) as caught:
        (await crew.fetch(MILLION)).transaction_proof(0)
    return caught.value.code


# --- D1-D3 ----------------------------------------------------------------------------------------------------------


def _flip(text: str) -> str:
    return text[:-1] + ("0" if text[-1] != "0" else "1")


_DAMAGE: list[tuple[str, str, Callable[[Any], None]]] = [
    (BY_NUMBER, field, lambda block, field=field: block.update({field: _flip(block[field])}))  # type: ignore[misc]
    for field in (
        "hash",
        "parentHash",
        "stateRoot",
        "receiptsRoot",
        "transactionsRoot",
        "logsBloom",
        "gasUsed",
        "extraData",
    )
] + [
    (BY_NUMBER, "number", lambda block: block.update(number="0xf4241")),
    (BY_NUMBER, "transaction value", lambda block: block["transactions"][0].update(value="0x1")),
    (BY_NUMBER, "transaction lost", lambda block: block["transactions"].pop()),
    (BY_NUMBER, "transactions swapped", lambda block: block["transactions"].reverse()),
    (RECEIPTS, "gas", lambda receipts: receipts[0].update(cumulativeGasUsed="0x1")),
    (RECEIPTS, "root", lambda receipts: receipts[0].update(root=_flip(receipts[0]["root"]))),
    (RECEIPTS, "lost", lambda receipts: receipts.pop()),
    (RECEIPTS, "twice", lambda receipts: receipts.append(receipts[0])),
    (RECEIPTS, "swapped", lambda receipts: receipts.reverse()),
]


@pytest.mark.parametrize(("method", "what", "damage"), _DAMAGE, ids=[f"{what}" for _, what, _ in _DAMAGE])
async def test_D1_D2_damage_by_one_node_is_never_served_and_the_other_serves(
    crew: Crew, method: str, what: str, damage: Callable[[Any], None]
) -> None:
    crew.nodes[0].always(method, changed(lambda result: damage(result)))
    good = await crew.fetch(MILLION)
    assert is_whole(good)
    assert to_hex(good.block_hash) == block_hash(crew)
    assert to_hex(good.receipt_proof(0).root) == crew.nodes[1].blocks[block_hash(crew)]["receiptsRoot"]
    assert crew.hits(BY_NUMBER)[1] <= 1


async def test_D3_when_all_fail_the_same_check_it_is_said_once_and_nobody_is_blamed(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    for node in crew.nodes:
        node.always(BY_NUMBER, changed(lambda block: block.update(stateRoot=_flip(block["stateRoot"]))))
    with pytest.raises(InconsistentSource) as caught:
        await crew.fetch(MILLION)
    assert caught.value.extra == {"check": "header_hash"}
    assert [counts.invalid for counts in crew.counts] == [{"header_hash": 1}, {"header_hash": 1}]
    assert [record.levelname for record in caplog.records if "same_check" in record.getMessage()] == ["ERROR"]
    assert [crew.listed(at)["trusted"] for at in (0, 1)] == [True, True]
    assert crew.hits(BY_NUMBER) == [1, 1]


# --- pruned, too big, other spellings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "behaviour",
    [error(4444, "pruned history unavailable"), error(-32602, "history expired"), error(-32000, "missing trie node")],
)
async def test_B31_a_node_that_pruned_the_block_is_remembered_so_and_stays_well(
    crew: Crew, behaviour: Behaviour
) -> None:
    crew.nodes[0].always(BY_NUMBER, behaviour)
    for _ in range(7):
        await serves_from_b(crew)
    assert crew.hits(BY_NUMBER)[0] == 1
    listed = crew.listed(0)
    assert listed["breaker"] == "closed"
    assert isinstance(listed["capabilities"], dict)
    assert listed["capabilities"]["prunedBelow"] == 1_000_001


async def test_B31_when_all_have_pruned_it_there_is_no_archive_and_no_retry(crew: Crew) -> None:
    for node in crew.nodes:
        node.always(BY_NUMBER, error(4444, "pruned history unavailable"))
    with pytest.raises(HistoryUnavailable) as caught:
        await crew.fetch(MILLION)
    assert not caught.value.retriable
    assert crew.hits(BY_NUMBER) == [1, 1]


async def test_B31_pruned_at_one_and_silent_at_the_other_is_not_lost_for_good(crew: Crew) -> None:
    crew.nodes[0].always(BY_NUMBER, error(4444, "pruned history unavailable"))
    crew.nodes[1].always(BY_NUMBER, http(503))
    with pytest.raises(RpcUnavailable):
        await crew.fetch(MILLION)


async def test_B32_receipts_too_big_for_one_call_come_one_by_one_from_the_same_node(busy_crew: Crew) -> None:
    busy_crew.nodes[0].always(RECEIPTS, error(-32008, "Response is too big"))
    assert is_whole(await busy_crew.fetch(BUSY))
    assert busy_crew.asked[1] == 0
    assert busy_crew.hits(TX_RECEIPT) == [93, 0]


async def test_B28_receipts_that_a_limit_kept_back_are_asked_for_again_and_no_others(busy_crew: Crew) -> None:
    busy_crew.nodes[0].unsupported.add(RECEIPTS)
    limited = error(429, "too many requests")
    busy_crew.nodes[0].script(TX_RECEIPT, *[changed(lambda receipt: None)] * 56, *[limited] * 37)
    assert is_whole(await busy_crew.fetch(BUSY))
    assert busy_crew.hits(TX_RECEIPT) == [93 + 37, 0]


async def test_B29_B33_B34_what_was_learned_of_a_node_is_its_own(busy_crew: Crew) -> None:
    busy_crew.nodes[0].receipts_forms = {"object"}
    assert is_whole(await busy_crew.fetch(BUSY))
    forms = [evm.capabilities.receipts_form.value for evm in busy_crew.evms]
    assert forms == ["object", "hash"]


async def test_B24_a_list_with_a_hole_is_left_to_a_node_that_has_it_whole(busy_crew: Crew) -> None:
    busy_crew.nodes[0].unsupported.add(RECEIPTS)
    lost = busy_crew.nodes[0].blocks[block_hash(busy_crew)]["transactions"][50]["hash"]
    busy_crew.nodes[0].receipts[block_hash(busy_crew)] = [
        receipt
        for receipt in busy_crew.nodes[0].receipts[block_hash(busy_crew)] or []
        if receipt["transactionHash"] != lost
    ]
    await serves_from_b(busy_crew, BUSY)
    assert busy_crew.judged == ["b"]


# --- positions and hashes -------------------------------------------------------------------------------------------

UNKNOWN_TX = bytes(31) + b"\x01"
FIRST_TX = from_hex("0xea1093d492a1dcb1bef708f771a99a96ff05dcab81ca76c31940300177fcf49f")


async def test_the_first_node_that_has_a_transaction_is_believed(crew: Crew) -> None:
    crew.nodes[0].always(TX, null())
    position = await crew.upstream.position(FIRST_TX)
    assert position is not None
    assert (position.height, position.index) == (1_000_000, 0)
    assert crew.hits(TX) == [1, 1]


async def test_absence_is_the_word_of_all_nodes_that_have_not_failed_for_long(crew: Crew) -> None:
    assert await crew.upstream.position(UNKNOWN_TX) is None
    assert crew.hits(TX) == [1, 1]
    crew.nodes[0].always(TX, http(502))
    with pytest.raises(RpcUnavailable, match="another could not be asked"):
        await crew.upstream.position(UNKNOWN_TX)
    for _ in range(4):
        crew.clock.at += 1.0
        with contextlib.suppress(RpcUnavailable):
            await crew.upstream.position(UNKNOWN_TX)
    assert crew.evms[0].state.breakers[Part.LIGHT].opened_at is not None
    assert await crew.upstream.position(UNKNOWN_TX) is None


async def test_absence_is_not_the_word_of_one_node_while_the_other_rests(crew: Crew) -> None:
    crew.nodes[1].script(TX, http(429, **{"retry-after": "30"}))
    with pytest.raises(RpcUnavailable):
        await crew.upstream.position(UNKNOWN_TX)
    crew.nodes[0].always(TX, null())
    with pytest.raises(RpcUnavailable):
        await crew.upstream.position(FIRST_TX)
    crew.clock.at += 31.0
    assert await crew.upstream.position(FIRST_TX) is not None


async def test_a_position_that_turned_out_wrong_is_not_believed_again(crew: Crew) -> None:
    wrong = {"hash": to_hex(FIRST_TX), "blockHash": "0x" + "ab" * 32, "blockNumber": "0x5", "transactionIndex": "0x0"}
    crew.nodes[0].always(TX, answer(wrong))
    told = await crew.upstream.position(FIRST_TX)
    assert told is not None
    assert told.height == 5
    right = await crew.upstream.position(FIRST_TX, {told})
    assert right is not None
    assert right.height == 1_000_000
    assert crew.counts[0].invalid == {"position": 1}
    assert crew.listed(0)["trusted"] is False
    crew.nodes[0].always(TX, answer({**wrong, "blockNumber": "0x6"}))
    assert await crew.upstream.position(FIRST_TX, {told}) == right  # whoever lied comes last


async def test_a_position_that_all_nodes_insist_on_is_no_position(crew: Crew) -> None:
    wrong = {"hash": to_hex(FIRST_TX), "blockHash": "0x" + "ab" * 32, "blockNumber": "0x5", "transactionIndex": "0x0"}
    for node in crew.nodes:
        node.always(TX, answer(wrong))
    told = await crew.upstream.position(FIRST_TX)
    assert told is not None
    with pytest.raises(InconsistentSource):
        await crew.upstream.position(FIRST_TX, {told})


NAMED: list[Callable[[Any], None]] = [
    lambda block: block.update(hash="0x" + "ab" * 32),
    lambda block: block.update(parentHash="0x" + "ab" * 32),
    lambda block: block.update(hash="0x" + "ab" * 32, futureRoot="0x" + "cd" * 32),
]


@pytest.mark.parametrize("lie", NAMED)
async def test_which_block_is_where_is_what_hashes_to_its_name(million: Record, lie: Callable[[Any], None]) -> None:
    nodes = ScriptedNode.of_corpus(million), ScriptedNode.of_corpus(million)
    async with open_crew(*nodes, family="ethereum") as crew:
        crew.nodes[0].always(BY_NUMBER, changed(lie))
        name = await crew.upstream.name_of(1_000_000)
        assert name is not None
        assert to_hex(name.block_hash) == million["block"]["hash"]
        assert to_hex(name.parent_hash) == million["block"]["parentHash"]
        assert crew.hits(BY_NUMBER) == [1, 1]


async def test_where_a_block_is_is_what_hashes_to_its_name(million: Record) -> None:
    nodes = ScriptedNode.of_corpus(million), ScriptedNode.of_corpus(million)
    async with open_crew(*nodes, family="ethereum") as crew:
        crew.nodes[0].always(BY_HASH, changed(lambda block: block.update(number="0x5")))
        assert await crew.upstream.height_of(from_hex(million["block"]["hash"])) == 1_000_000
        assert crew.counts[0].invalid == {"header_hash": 1}


async def test_a_header_that_cannot_be_hashed_here_is_named_where_no_node_has_another(million: Record) -> None:
    strange = copy.deepcopy(million)
    strange["block"] |= {"hash": "0x" + "ab" * 32, "futureRoot": "0x" + "cd" * 32}
    nodes = ScriptedNode.of_corpus(strange), ScriptedNode.of_corpus(strange)
    async with open_crew(*nodes, family="ethereum") as crew:
        name = await crew.upstream.name_of(1_000_000)
        assert name is not None
        assert name.block_hash == bytes.fromhex("ab" * 32)
        assert [sighting.block for sighting in await crew.upstream.names_at(1_000_000)] == [name, name]


async def test_absence_is_not_the_word_of_one_that_lags(crew: Crew) -> None:
    crew.evms[0].state.note_head(1_000_003, crew.clock.now())
    crew.nodes[0].always(TX, http(502))
    with pytest.raises(RpcUnavailable):
        await crew.upstream.position(UNKNOWN_TX)
    crew.nodes[0].always(BY_HASH, http(502))
    with pytest.raises(RpcUnavailable):
        await crew.fetch(BlockRef(block_hash=UNKNOWN_TX))
    crew.clock.at += 61.0  # by now nobody knows that somebody was further
    assert await crew.upstream.position(UNKNOWN_TX) is None


async def test_absence_is_nobodys_word_where_nobody_answers(crew: Crew) -> None:
    for node in crew.nodes:
        node.always("*", http(502))
    with pytest.raises(RpcUnavailable):
        await crew.upstream.position(UNKNOWN_TX)
    with pytest.raises(RpcUnavailable):
        await crew.fetch(BlockRef(block_hash=UNKNOWN_TX))
    with pytest.raises(RpcUnavailable):
        await crew.upstream.name_of(1_000_000)


async def test_a_hash_that_no_node_knows_is_on_no_chain(crew: Crew) -> None:
    with pytest.raises(BlockNotOnSourceChain):
        await crew.fetch(BlockRef(block_hash=UNKNOWN_TX))
    assert crew.hits(BY_HASH) == [1, 1]


async def test_a_transaction_pending_here_may_be_mined_there(crew: Crew) -> None:
    crew.nodes[0].pending[to_hex(FIRST_TX)] = {
        "hash": to_hex(FIRST_TX), "blockHash": None, "blockNumber": None, "transactionIndex": None
    }  # fmt: skip
    assert await crew.upstream.position(FIRST_TX) is not None
    assert crew.hits(TX) == [1, 1]
    crew.nodes[1].always(TX, null())
    with pytest.raises(TxNotMined):
        await crew.upstream.position(FIRST_TX)


async def test_no_name_at_a_height_that_a_node_lost_and_no_claim_where_none_is_that_far(crew: Crew) -> None:
    assert await crew.upstream.name_of(999_999) is None
    with pytest.raises(BlockNotOnSourceChain):
        await crew.upstream.name_of(1_000_001)


# --- deadlines ------------------------------------------------------------------------------------------------------


async def test_T1_no_call_starts_with_less_time_than_an_answer_takes(crew: Crew) -> None:
    token = deadline.set(crew.clock.now() + 0.05)
    try:
        with pytest.raises(RequestTimeout) as caught:
            await crew.fetch(MILLION)
    finally:
        deadline.reset(token)
    assert caught.value.extra == {"stage": "fetch"}  # T3
    assert crew.asked == [0, 0]


async def test_T3_a_deadline_that_passes_on_the_way_names_the_stage_and_blames_nobody(crew: Crew) -> None:
    for node in crew.nodes:
        node.always(BY_NUMBER, hang())
    token = deadline.set(crew.clock.now() + 0.3)
    try:
        with pytest.raises(RequestTimeout) as caught:
            await crew.fetch(MILLION)
    finally:
        deadline.reset(token)
    assert caught.value.extra == {"stage": "fetch"}
    assert [evm.connections_held for evm in crew.evms] == [0, 0]
    for evm in crew.evms:
        assert evm.state.breakers[Part.BLOCK]._failures_in_a_row == 0
