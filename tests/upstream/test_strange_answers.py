"""What a node may say that is no ordinary answer: refusals of one call, numbers without bounds, cookies, unforeseen faults."""

from __future__ import annotations

import json
import logging
from typing import Any

import orjson
import pytest

from app.core.breaker import BreakerState
from app.core.errors import HistoryUnavailable, ProofError, RpcUnavailable
from app.core.provable_block import Verdict
from app.upstream.faults import CallFailed, Fault
from app.upstream.reading import NodeReader
from app.upstream.standing import OFF_FIRST_S
from app.upstream.statuses import retry_after_s
from tests.scripted_behaviours import Behaviour, answer, changed, error, http, null, raw
from tests.scripted_node import ScriptedNode, closed_port
from tests.upstream.conftest import WALL, Rig, handed, open_rig
from tests.upstream.crew import BY_NUMBER, CHAIN_ID, HEAD, RECEIPTS, TX_RECEIPT, Crew, open_crew
from tests.upstream.test_failover import BUSY, MILLION, crew, serves_from_b  # noqa: F401
from tests.upstream.test_receipts import receipts_of

Record = dict[str, Any]

PLAN = json.dumps({"id": 1, "error": {"code": -32602, "message": "Archive requests require a personal token."}})
WORDS_OF_A_PLAN = [
    http(403, PLAN),
    http(402, '{"error":{"code":-32000,"message":"archive data needs the Growth plan"}}'),
    http(401, "Archive data is only available on a paid plan"),
    http(403, '{"error":"historical blocks: upgrade your plan"}'),
    error(-32002, "Archive data is not available on this node"),
]


# --- a refusal of one request ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", WORDS_OF_A_PLAN)
async def test_a_block_that_is_not_in_the_plan_costs_the_node_nothing(rig: Rig, refusal: Behaviour) -> None:
    await rig.evm.verify_chain()
    for _ in range(10):
        rig.node.script(BY_NUMBER, refusal)
        with pytest.raises(HistoryUnavailable):
            await rig.upstream.fetch(MILLION, handed)
    assert rig.evm.standing.up
    assert rig.evm.state.breaker_state(rig.clock.at) is BreakerState.CLOSED
    assert (await rig.upstream.fetch(MILLION, handed)).receipts_json is not None
    assert rig.node.hits[TX_RECEIPT] == 0


@pytest.mark.parametrize("refusal", WORDS_OF_A_PLAN)
async def test_receipts_that_are_not_in_the_plan_are_not_asked_for_one_by_one(
    busy_rig: Rig, refusal: Behaviour
) -> None:
    busy_rig.node.script(RECEIPTS, refusal)
    assert (await busy_rig.upstream.fetch(BUSY, handed)).receipts_json is None
    assert busy_rig.node.hits[TX_RECEIPT] == 0
    assert (await busy_rig.upstream.fetch(BUSY, handed)).receipts_json is not None
    assert busy_rig.node.hits[RECEIPTS] == 2


async def test_a_plan_that_refuses_everything_is_a_refusal_of_our_credentials(rig: Rig) -> None:
    rig.node.always("*", http(403, PLAN))
    with pytest.raises(RpcUnavailable):
        await rig.upstream.fetch(MILLION, handed)
    assert not rig.evm.standing.up
    assert rig.node.hits == {CHAIN_ID: 1}


async def test_a_plan_that_refuses_the_newest_block_does_not_make_the_tag_unknown(rig: Rig) -> None:
    await rig.evm.verify_chain()
    rig.node.always(BY_NUMBER, http(403, PLAN))
    with pytest.raises(ProofError):
        await rig.upstream.sightings("latest")


async def test_what_a_node_seemed_to_have_pruned_is_believed_again_when_it_gives_it(rig: Rig) -> None:
    rig.node.script(BY_NUMBER, error(4444, "pruned"))
    with pytest.raises(HistoryUnavailable):
        await rig.upstream.fetch(MILLION, handed)
    assert rig.evm.state.pruned_below == 1_000_001
    await rig.upstream.fetch(MILLION, handed)
    assert rig.evm.state.pruned_below == 1_000_000


@pytest.mark.parametrize(
    "limit", [error(-32011, "request limit reached"), error(-32010, "rate limited"), error(-32005, "limit exceeded")]
)
async def test_a_limit_is_waited_for_and_never_answered_with_many_calls(busy_rig: Rig, limit: Behaviour) -> None:
    busy_rig.node.always(RECEIPTS, limit)
    with pytest.raises(RpcUnavailable) as refused:
        await busy_rig.upstream.fetch(BUSY, handed)
    assert refused.value.retry_after_s == pytest.approx(1.0)
    assert (busy_rig.node.hits[RECEIPTS], busy_rig.node.hits[TX_RECEIPT]) == (1, 0)


@pytest.mark.parametrize(
    "of_one_block", [error(-32000, "transaction type not supported"), error(-32000, "the database is upset")]
)
async def test_an_error_of_one_block_leads_to_its_receipts_one_by_one(busy_rig: Rig, of_one_block: Behaviour) -> None:
    await busy_rig.upstream.fetch(BUSY, handed)
    busy_rig.node.always(RECEIPTS, of_one_block)
    assert len(receipts_of(await busy_rig.upstream.fetch(BUSY, handed))) == 93
    busy_rig.node.always(RECEIPTS, None)
    singly = busy_rig.node.hits[TX_RECEIPT]
    assert singly == 93
    await busy_rig.upstream.fetch(BUSY, handed)
    assert busy_rig.node.hits[TX_RECEIPT] == singly


async def test_receipts_that_are_null_in_one_call_may_be_had_one_by_one(busy_rig: Rig) -> None:
    busy_rig.node.always(RECEIPTS, null())
    assert len(receipts_of(await busy_rig.upstream.fetch(BUSY, handed))) == 93
    busy_rig.node.always(TX_RECEIPT, null())
    singly = busy_rig.node.hits[TX_RECEIPT]
    assert (await busy_rig.upstream.fetch(BUSY, handed)).receipts_json is None
    assert busy_rig.node.hits[TX_RECEIPT] == singly + 1  # one tells that there are none


async def test_a_method_that_was_missing_is_tried_again_after_a_while(busy_rig: Rig) -> None:
    busy_rig.node.unsupported = {RECEIPTS}
    await busy_rig.upstream.fetch(BUSY, handed)
    await busy_rig.upstream.fetch(BUSY, handed)
    assert busy_rig.node.hits[RECEIPTS] == 1
    for wait_s, asked in ((OFF_FIRST_S, 2), (OFF_FIRST_S, 2), (OFF_FIRST_S, 3)):  # the second time, after twice as long
        busy_rig.clock.at += wait_s
        await busy_rig.upstream.fetch(BUSY, handed)
        assert busy_rig.node.hits[RECEIPTS] == asked
    busy_rig.node.unsupported = set()
    busy_rig.clock.at += 4 * OFF_FIRST_S
    singly = busy_rig.node.hits[TX_RECEIPT]
    for _ in range(3):
        await busy_rig.upstream.fetch(BUSY, handed)
    assert (busy_rig.node.hits[RECEIPTS], busy_rig.node.hits[TX_RECEIPT]) == (6, singly)


async def test_a_batch_limit_is_raised_again_after_a_while(busy_rig: Rig) -> None:
    busy_rig.node.unsupported = {RECEIPTS}
    busy_rig.node.batch_limit = 30
    await busy_rig.upstream.fetch(BUSY, handed)
    learned = busy_rig.evm.capabilities.batch_limit
    assert learned <= 30
    busy_rig.node.batch_limit = None
    for _ in range(6):
        busy_rig.clock.at += 3600.0
        await busy_rig.upstream.fetch(BUSY, handed)
    assert busy_rig.evm.capabilities.batch_limit == 100


@pytest.mark.parametrize(
    "how", [error(-32000, "the parser is upset"), error(-32602, "not supported"), error(-32000, "x")]
)
async def test_a_form_that_a_node_does_not_know_is_not_the_last_one_that_is_tried(
    busy_rig: Rig, how: Behaviour
) -> None:
    def honest_reply(node: ScriptedNode, call: Any) -> Any:
        return {"jsonrpc": "2.0", "id": call["id"], "result": next(iter(node.receipts.values()))}

    refused = how.reply
    assert refused is not None
    busy_rig.node.always(
        RECEIPTS,
        Behaviour(
            "by form",
            reply=lambda node, call: (
                refused(node, call) if isinstance(call["params"][0], str) else honest_reply(node, call)
            ),
        ),
    )
    assert len(receipts_of(await busy_rig.upstream.fetch(BUSY, handed))) == 93
    assert busy_rig.evm.capabilities.receipts_form.value == "object"
    before = busy_rig.node.hits[RECEIPTS]
    await busy_rig.upstream.fetch(BUSY, handed)
    assert (busy_rig.node.hits[RECEIPTS], busy_rig.node.hits[TX_RECEIPT]) == (before + 1, 0)


# --- numbers and words without bounds -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        "Fri, 31 Dec 9999 23:59:59 -9959",
        "Mon, 01 Jan 0001 00:00:00 +2359",
        "Fri, 31 Dec 1999 23:59:59 +99999999999999999999",
        "Fri, 99 Foo 99999 99:99:99 GMT",
        "9" * 5000,
        "-5",
        "1e400",
        "nan",
        "١٢",
        "",
        ",",
        " " * 5000 + "x",
    ],
)
def test_row_05_a_wait_is_bounded_whatever_a_node_asks_for(header: str) -> None:
    wait_s = retry_after_s(header, WALL)
    assert wait_s is None or 0.0 <= wait_s <= 1e9


async def test_an_absurd_wait_costs_the_node_a_pause_and_nobody_an_answer(crew: Crew) -> None:  # noqa: F811
    crew.nodes[0].always("*", http(429, **{"retry-after": "Fri, 31 Dec 9999 23:59:59 -9959"}))
    await serves_from_b(crew)
    assert 1.0 <= crew.evms[0].standing.cooling_until - crew.clock.at <= 60.0  # type: ignore[operator]


STRANGE = {
    "number": [
        -1,
        1.5,
        1e400,
        2**63,
        2**300,
        hex(2**63),
        hex(2**4000),
        "-0x1",
        "9" * 5000,
        True,
        [],
        {},
        "0x",
        " 0x1",
        None,
    ],
    "chainId": [-1, 1.5, hex(2**63), hex(2**4000), "9" * 5000, [], {}, None, "mainnet"],
}


@pytest.mark.parametrize("number", STRANGE["chainId"], ids=lambda each: str(each)[:12])
async def test_a_chain_id_of_any_size_leaves_the_listing_readable(million: Record, number: Any) -> None:
    async with open_crew(
        ScriptedNode.of_corpus(million), ScriptedNode.of_corpus(million), chain_id=None, greeted=False
    ) as made:
        made.nodes[0].always(CHAIN_ID, answer(number))
        made.evms[1].standing.configured_chain_id = 1
        assert (await made.fetch(MILLION)).receipts_verdict is Verdict.PROVEN
        assert b'"b"' in orjson.dumps(made.upstream.states())
        assert made.upstream.known_chain_id == 1


@pytest.mark.parametrize("number", STRANGE["number"], ids=lambda each: str(each)[:12])
async def test_a_head_of_any_size_leaves_the_listing_readable(crew: Crew, number: Any) -> None:  # noqa: F811
    crew.nodes[0].always(BY_NUMBER, changed(lambda block: block.update(number=number)))
    crew.nodes[0].always(HEAD, answer(number))
    seen = {each.upstream: each.block for each in await crew.upstream.sightings("latest")}
    assert seen["b"] is not None
    orjson.dumps(crew.upstream.states())
    await serves_from_b(crew)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "behaviour",
    [
        raw(DEEP),
        raw('{"jsonrpc":"2.0","id":1,"result":' + DEEP + "}"),
        raw('{"jsonrpc":"2.0","id":1,"error":' + DEEP + "}"),
        answer({"number": DEEP}),
        answer(json.loads("[" * 500 + "]" * 500)),
        error(-32000, "x" * 500_000),
        error(10**30, "x"),
        http(500, "y" * 500_000),
        http(200, b"\xff\xfe\x00"),
        answer("0x"),
        answer({"hash": 5, "number": {}, "transactions": [None, 5]}),
    ],
    ids=range(11),
)
@pytest.mark.parametrize("method", [BY_NUMBER, RECEIPTS])
async def test_row_09_whatever_one_node_sends_the_other_answers(crew: Crew, behaviour: Behaviour, method: str) -> None:  # noqa: F811
    crew.nodes[0].always(method, behaviour)
    if method == RECEIPTS:
        crew.nodes[0].always(TX_RECEIPT, behaviour)
    block = await crew.fetch(MILLION)
    assert (block.transactions_verdict, block.receipts_verdict) == (Verdict.PROVEN, Verdict.PROVEN)
    assert crew.hits(BY_NUMBER)[1] == 1


async def test_no_cookie_of_a_node_is_kept_or_sent_back(rig: Rig) -> None:
    for number in range(20):
        rig.node.script(HEAD, raw('{"id":1}', **{"set-cookie": f"c{number}={'x' * 1000}; Path=/"}))
        with pytest.raises(CallFailed):
            await rig.evm.call(HEAD)
    await rig.evm.call(HEAD)
    poster = rig.evm._ways.poster
    assert poster is not None
    assert len(poster._pool.client.cookies.jar) == 0
    assert not any("cookie" in headers for headers in rig.node.headers)


# --- a net around one node's turn -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [KeyError("canary"), OverflowError("canary"), RecursionError("canary")])
async def test_a_fault_that_nobody_foresaw_is_one_nodes_failure(
    crew: Crew,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Exception,
) -> None:
    bodies = NodeReader.bodies

    async def breaking(self: NodeReader, *arguments: Any, **options: Any) -> Any:
        if self.node.name == "a":
            raise fault
        return await bodies(self, *arguments, **options)

    monkeypatch.setattr(NodeReader, "bodies", breaking)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await serves_from_b(crew)
    told = [record for record in caplog.records if record.getMessage() == "upstream_answer_unhandled"]
    assert len(told) == 1
    assert told[0].__dict__["upstream"] == "a"
    assert any("breaking" in frame for frame in told[0].__dict__["stack_frames"])
    assert "canary" not in str(told[0].__dict__)
    assert crew.counts[0].invalid["unexpected"] >= 1


async def test_a_fault_that_nobody_foresaw_leaves_the_other_heads(
    crew: Crew,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tagged = NodeReader.tagged

    async def breaking(self: NodeReader, tag: str) -> Any:
        if self.node.name == "a":
            raise OverflowError("date value out of range")
        return await tagged(self, tag)

    monkeypatch.setattr(NodeReader, "tagged", breaking)
    assert [each.upstream for each in await crew.upstream.sightings("latest")] == ["b"]


# --- the last error -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "what"),
    [
        (http(401, "bad key CANARY"), "authentication refused"),
        (http(429), "rate limited"),
        (http(502, "CANARY"), "HTTP 5xx"),
        (http(404, "CANARY"), "HTTP 4xx"),
        (raw("<html>CANARY"), "not JSON-RPC"),
        (error(-32000, "CANARY"), "JSON-RPC error"),
        (error(4444, "CANARY"), "data not kept"),
        (answer({"number": "CANARY"}), "invalid data: decode"),
        (changed(lambda block: block.update(number="0x1")), "invalid data: identity"),
    ],
)
async def test_the_last_error_of_a_node_is_listed_in_stable_words(rig: Rig, behaviour: Behaviour, what: str) -> None:
    await rig.evm.verify_chain()
    assert rig.upstream.states()[0]["lastError"] is None
    rig.node.always(BY_NUMBER, behaviour)
    with pytest.raises(ProofError):
        await rig.upstream.fetch(MILLION, handed)
    rig.clock.at += 5.0
    told = rig.upstream.states()[0]["lastError"]
    assert isinstance(told, dict)
    assert (told["what"], set(told)) == (what, {"what", "ageSeconds"})
    assert told["ageSeconds"] >= 5.0


async def test_the_last_error_tells_a_wrong_chain_and_a_node_that_is_not_there(million: Record) -> None:
    async with ScriptedNode.of_corpus(million) as node, open_rig(node, chain_id=5) as made:
        with pytest.raises(ProofError):
            await made.upstream.fetch(MILLION, handed)
        assert made.upstream.states()[0]["lastError"]["what"] == "wrong chain"  # type: ignore[index]
    with closed_port() as port:
        async with ScriptedNode.of_corpus(million) as node, open_rig(node, url=f"http://127.0.0.1:{port}") as made:
            with pytest.raises(ProofError):
                await made.upstream.fetch(MILLION, handed)
            assert made.upstream.states()[0]["lastError"]["what"] == "connection refused"  # type: ignore[index]


def test_every_fault_of_a_node_has_stable_words() -> None:
    ours = {Fault.DEADLINE, Fault.POOL_BUSY, Fault.TURN_OVER, Fault.SPENT, Fault.NOT_FOUND}
    assert {fault for fault in Fault if CallFailed(fault, "").what is None} == ours
