"""Anchors read from Creditcoin: brackets are the precompile's, remembered while they stand, and nothing reverted is served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import httpx2
import pytest
import sha3
from hypothesis import given, settings
from hypothesis import strategies as st

from app.anchors.creditcoin import LAGS_FOR_S, STALE_AFTER_S, Creditcoin
from app.anchors.node import CreditcoinNode
from app.core.continuity import Bracket
from app.core.errors import AttestationsMissing, BlockNotReady, Internal, RpcUnavailable
from tests.anchors.fake_creditcoin import CHAIN_ID, KEY, URL, FakeCreditcoin, streamed
from tests.fakes import ManualClock, settle


def digest_of(height: int, fork: int = 0) -> bytes:
    return bytes(sha3.keccak_256(f"{height} of {fork}".encode()).digest())


async def never(height: int) -> bytes:
    raise AssertionError(f"the root of {height} is nothing to Creditcoin's anchors")


class Reader:
    """A fake Creditcoin, and the source that reads it."""

    def __init__(self, genesis: int = 0) -> None:
        self.node = FakeCreditcoin(genesis)
        self.clock = ManualClock()
        self.chain_id: int | None = CHAIN_ID
        self.anchors = Creditcoin(
            KEY,
            CreditcoinNode(URL, transport=self.node, clock=self.clock.now),
            lambda: self.chain_id,
            clock=self.clock.now,
        )

    async def poll(self) -> None:
        await self.anchors.advance(None, never)

    async def attested(self, *heights: int, checkpoints: tuple[int, ...] = ()) -> None:
        """Creditcoin attested these heights, finalized that, and was polled."""
        for height in heights:
            self.node.next.attest(height, digest_of(height))
            if height in checkpoints:
                self.node.next.checkpoint(height)
        self.node.finalize()
        await self.poll()
        self.node.cost()


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    made = Reader()
    yield made
    await made.anchors.aclose()


def ends(bracket: Bracket) -> tuple[int, int]:
    return bracket.lower, bracket.upper


# --- what is read -----------------------------------------------------------------------------------------------------


async def test_what_is_told_is_as_of_a_finalized_block(reader: Reader) -> None:
    anchors, node = reader.anchors, reader.node
    node.next.genesis = 7
    await reader.attested(7, 10, 20)
    assert (anchors.genesis, anchors.attested_height, anchors.checkpoint_height) == (7, 20, None)
    node.next.attest(30, digest_of(30))
    await reader.poll()
    assert anchors.attested_height == 20
    with pytest.raises(BlockNotReady) as early:
        anchors.bracket(21, 21)
    assert early.value.extra == {"block_number": 21, "last_attested_block": 20}
    node.finalize()
    await reader.poll()
    assert anchors.attested_height == 30
    assert ends(await anchors.find(21, 21)) == (20, 30)


async def test_a_poll_of_a_block_that_was_read_costs_one_call(reader: Reader) -> None:
    await reader.attested(0, 10)
    await reader.poll()
    assert reader.node.cost() == {"finalized": 1}


async def test_the_block_that_was_read_and_its_age_are_told(reader: Reader) -> None:
    await reader.attested(0, 10)
    reader.clock.move(7)
    await reader.poll()
    assert reader.anchors.state() == {"state": "ok", "ageSeconds": 0.0, "asOfHeight": 0, "asOfAgeSeconds": 7.0}
    reader.node.finalize(3)
    await reader.poll()
    assert reader.anchors.state() == {"state": "ok", "ageSeconds": 0.0, "asOfHeight": 3, "asOfAgeSeconds": 0.0}


async def test_a_bracket_is_asked_for_once_for_all_heights_of_it(reader: Reader) -> None:
    anchors = reader.anchors
    await reader.attested(0, 10, 20, 30)
    assert anchors.bracket(14, 14) is None
    found = await anchors.find(14, 14)
    assert (ends(found), found.lower_digest, found.upper_digest) == ((10, 20), digest_of(10), digest_of(20))
    assert reader.node.cost() == {"get_attestation_bounds": 1}
    for height in range(11, 21):
        assert anchors.bracket(height, height) == await anchors.find(height, height) == found
    assert anchors.bracket(10, 10) is None
    assert anchors.bracket(20, 21) is None
    assert reader.node.cost() == {}


async def test_a_range_lies_between_the_anchor_below_it_and_the_one_above(reader: Reader) -> None:
    anchors = reader.anchors
    await reader.attested(0, 10, 20, 30, 40)
    assert ends(await anchors.find(11, 31)) == (10, 40)
    assert reader.node.cost() == {"get_attestation_bounds": 2}
    assert ends(await anchors.find(15, 39)) == (10, 40)
    assert reader.node.cost() == {}


async def test_kinds_of_brackets_on_both_sides_of_a_checkpoint(reader: Reader) -> None:
    anchors = reader.anchors
    await reader.attested(0, 10, 20, 30, 40, 50, checkpoints=(0, 30))
    assert (anchors.attested_height, anchors.checkpoint_height) == (50, 30)
    found = [await anchors.find(height, height) for height in (5, 30, 31, 50)]
    assert [(each.source, *ends(each)) for each in found] == [
        ("checkpoint", 0, 30),
        ("checkpoint", 0, 30),
        ("mixed_cp_lower_att_upper", 30, 40),
        ("attestation", 40, 50),
    ]


async def test_the_newest_checkpoint_is_its_own_upper_end_whatever_is_above(reader: Reader) -> None:
    await reader.attested(0, 10, 20, 30, checkpoints=(0, 30))
    assert ends(await reader.anchors.find(30, 30)) == (0, 30)


async def test_whoever_asks_for_the_same_height_waits_for_the_one_call(reader: Reader) -> None:
    await reader.attested(0, 10, 20)
    hold = reader.node.hold("get_attestation_bounds")
    asking = [asyncio.create_task(reader.anchors.find(height, height)) for height in [14] * 30]
    await hold.reached()
    await settle()
    asking[0].cancel()  # the one who asks leaves: the next one asks
    await settle()
    hold.release()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert {ends(each) for each in found[1:] if isinstance(each, Bracket)} == {(10, 20)}
    assert len(found) == 30
    assert reader.node.cost() == {"get_attestation_bounds": 2}
    assert reader.anchors._asking == {}


async def test_no_anchor_below_is_a_hole(reader: Reader) -> None:
    await reader.attested(10, 20)
    with pytest.raises(Internal, match="no anchor below block 10"):
        await reader.anchors.find(10, 10)


async def test_no_anchors_at_all(reader: Reader) -> None:
    with pytest.raises(RpcUnavailable, match="could not be asked for anchors yet"):
        reader.anchors.bracket(1, 1)
    assert (reader.anchors.heard, reader.anchors.state()) == (False, {"state": "unread"})
    await reader.attested()
    assert (reader.anchors.heard, reader.anchors.attested_height) == (True, None)
    with pytest.raises(AttestationsMissing):
        await reader.anchors.find(1, 1)


# --- checkpoints and reverts --------------------------------------------------------------------------------------------


async def test_a_checkpoint_retires_the_attestations_below_it(reader: Reader) -> None:
    anchors = reader.anchors
    await reader.attested(0, 10, 20, 30, 40, checkpoints=(0,))
    below, across, above = [await anchors.find(height, height) for height in (15, 25, 35)]
    first = await anchors.find(5, 5)
    assert all(anchors.holds(each) for each in (first, below, across, above))
    reader.node.next.checkpoint(30)
    reader.node.finalize()
    await reader.poll()
    assert [anchors.holds(each) for each in (first, below, across, above)] == [False, False, False, True]
    reader.node.cost()
    assert anchors.bracket(35, 35) == Bracket("mixed_cp_lower_att_upper", 30, digest_of(30), 40, digest_of(40))
    assert reader.node.cost() == {}
    assert ends(await anchors.find(15, 15)) == ends(await anchors.find(25, 25)) == (0, 30)
    assert anchors.reverts == 0


async def test_nothing_above_the_height_that_was_reverted_to_is_served(reader: Reader) -> None:
    anchors = reader.anchors
    await reader.attested(*range(0, 310, 10))
    kept, lost, across = [await anchors.find(lo, hi) for lo, hi in ((5, 5), (205, 205), (5, 205))]
    reader.node.next.revert(100)
    await reader.poll()
    assert anchors.holds(lost)
    reader.node.finalize()
    await reader.poll()
    assert (anchors.reverts, anchors.attested_height) == (1, 100)
    assert not anchors.holds(lost)
    assert not anchors.holds(across)
    for lo, hi in ((205, 205), (5, 205), (101, 101)):
        with pytest.raises(BlockNotReady):
            await anchors.find(lo, hi)
    assert await anchors.find(5, 5) == kept
    assert anchors.holds(kept)
    for height in (110, 120):  # attested again, otherwise
        reader.node.next.attest(height, digest_of(height, fork=1))
    reader.node.finalize()
    await reader.poll()
    assert (await anchors.find(115, 115)).upper_digest == digest_of(120, fork=1)


async def test_who_was_up_all_along_answers_as_a_fresh_one_while_a_revert_is_being_pruned(reader: Reader) -> None:
    anchors = reader.anchors
    await reader.attested(*range(0, 110, 10), checkpoints=(0, 40, 80))
    lost = await anchors.find(45, 45)  # up to the checkpoint at 80
    reader.node.next.pruning_to = 60
    reader.node.next.attest(60, digest_of(60, fork=1))
    reader.node.finalize()
    await reader.poll()
    assert (anchors.reverts, anchors.attested_height, anchors.checkpoint_height) == (1, 60, 40)
    assert not anchors.holds(lost)
    fresh = Creditcoin(KEY, CreditcoinNode(URL, transport=reader.node), lambda: CHAIN_ID, clock=reader.clock.now)
    await fresh.advance(None, never)
    for each in (anchors, fresh):
        with pytest.raises(RpcUnavailable):
            await each.find(45, 45)
        with pytest.raises(BlockNotReady):
            await each.find(75, 75)
    reader.node.next.revert(40)
    reader.node.next.attest(60, digest_of(60, fork=1))
    reader.node.next.pruning_to = None
    reader.node.finalize()
    for each in (anchors, fresh):
        await each.advance(None, never)
    found = [await each.find(45, 45) for each in (anchors, fresh)]
    assert found[0] == found[1]
    assert (found[0].upper, found[0].upper_digest) == (60, digest_of(60, fork=1))
    await fresh.aclose()


async def test_what_is_asked_for_while_a_revert_is_pruned_is_asked_for_again_in_the_next_block(reader: Reader) -> None:
    anchors = reader.anchors
    await reader.attested(0, 10, 20, 30)
    reader.node.next.revert(10)
    reader.node.finalize()
    await reader.poll()
    reader.node.next.attestations |= {20: digest_of(20), 40: digest_of(40, fork=1)}  # the one at 20 is not gone yet
    reader.node.finalize()
    await reader.poll()
    assert (await anchors.find(15, 15)).upper_digest == digest_of(20)
    reader.node.next.attestations[20] = digest_of(20, fork=1)
    reader.node.finalize()
    await reader.poll()
    assert (await anchors.find(15, 15)).upper_digest == digest_of(20, fork=1)


async def test_a_revert_that_was_made_up_for_between_two_polls_is_seen(reader: Reader) -> None:
    anchors = reader.anchors
    await reader.attested(0, 10, 20, 30)
    lost = await anchors.find(15, 15)
    reader.node.next.revert(10)
    for height in (20, 30, 40):
        reader.node.next.attest(height, digest_of(height, fork=1))
    reader.node.finalize(7)
    await reader.poll()
    assert (anchors.reverts, anchors.attested_height) == (1, 40)
    assert not anchors.holds(lost)
    assert (await anchors.find(15, 15)).upper_digest == digest_of(20, fork=1)


async def test_a_checkpoint_that_was_replaced_is_seen(reader: Reader) -> None:
    anchors = reader.anchors
    await reader.attested(0, 10, 20, 30, 40, checkpoints=(0, 20))
    lost = await anchors.find(15, 15)
    reader.node.next.revert(0)
    for height in (10, 20, 30, 40, 50):
        reader.node.next.attest(height, digest_of(height, fork=1))
        if height == 20:
            reader.node.next.checkpoint(20)
    reader.node.finalize()
    await reader.poll()
    assert anchors.reverts == 1
    assert not anchors.holds(lost)


async def test_a_remembered_anchor_that_stands_no_more_is_found_out_in_its_turn(reader: Reader) -> None:
    anchors = reader.anchors
    await reader.attested(*range(0, 200, 10))
    found = [await anchors.find(height, height) for height in range(5, 195, 10)]
    del reader.node.next.attestations[50]  # nothing else tells of it
    for _ in range(10):
        reader.node.finalize()
        await reader.poll()
    assert anchors.reverts == 1
    assert not any(anchors.holds(each) for each in found)


async def test_a_bracket_that_was_asked_for_before_a_revert_is_not_believed_after_it(reader: Reader) -> None:
    anchors, node = reader.anchors, reader.node
    await reader.attested(0, 10, 20, 30)
    hold = node.hold("get_attestation_bounds")
    asking, late = [asyncio.create_task(anchors.find(height, height)) for height in (15, 25)]
    await hold.reached()
    node.unhold()
    node.next.revert(10)
    node.next.attest(20, digest_of(20, fork=1))  # and no further
    node.finalize()
    await reader.poll()
    hold.release()
    assert (await asking).upper_digest == digest_of(20, fork=1)
    with pytest.raises(BlockNotReady):
        await late
    assert not any(anchors._spans.stands(height, digest_of(height)) for height in (20, 30))


@settings(max_examples=80, deadline=None)
@given(st.data())
async def test_whatever_happens_between_polls_brackets_are_those_of_the_last_finalized_block(
    data: st.DataObject,
) -> None:
    reader, fork = Reader(), 0
    node, anchors = reader.node, reader.anchors
    node.next.attest(0, digest_of(0))
    node.next.checkpoint(0)
    handed_out: list[Bracket] = []
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(0, 4))):
            newest = node.next.newest or 0
            if data.draw(st.integers(0, 3)) == 0 and newest:
                node.next.revert(10 * data.draw(st.integers(0, newest // 10)))
                fork += 1
                continue
            for height in range(newest + 10, newest + 10 * data.draw(st.integers(2, 6)), 10):
                node.next.attest(height, digest_of(height, fork))
                if height % 30 == 0:
                    node.next.checkpoint(height)
        node.finalize(data.draw(st.integers(1, 3)))
        await reader.poll()
        state = node.blocks[-1]
        assert state is not None
        assert (anchors.attested_height, anchors.checkpoint_height) == (state.newest, max(state.checkpoints))
        standing = {**state.attestations, **state.checkpoints}
        for bracket in handed_out:
            if anchors.holds(bracket):
                assert standing.get(bracket.lower) == bracket.lower_digest
                assert standing.get(bracket.upper) == bracket.upper_digest
        for height in (
            data.draw(st.lists(st.integers(1, max(1, state.newest or 0)), max_size=8)) if state.newest else ()
        ):
            bracket = await anchors.find(height, height)
            lower, upper = state.below(height), state.above(height)
            if height == max(state.checkpoints):
                upper = (height, state.checkpoints[height], False)
            assert lower is not None
            assert upper is not None
            assert (bracket.lower, bracket.lower_digest, bracket.upper, bracket.upper_digest) == (
                *lower[:2],
                *upper[:2],
            )
            assert anchors.holds(bracket)
            handed_out.append(bracket)
    await anchors.aclose()


# --- when it does not go well -------------------------------------------------------------------------------------------

BROKEN: dict[str, tuple[httpx2.Response | Exception, str]] = {
    "refused": (httpx2.ConnectError("to http://creditcoin.example:9944/a-secret-path"), "the node cannot be reached"),
    "slow": (httpx2.ConnectTimeout(""), "no connection in time"),
    "broken off": (httpx2.ReadError(""), "the connection broke off"),
    "not http": (httpx2.RemoteProtocolError("a-secret-path"), "the connection broke off"),
    "500": (httpx2.Response(500, text="at /a-secret-path"), "the node answered HTTP 500"),
    "redirect": (httpx2.Response(302, headers={"location": "/x"}), "the node answered HTTP 302"),
    "html": (httpx2.Response(200, text="<html>"), "the node sent a body that is not JSON"),
    "list": (httpx2.Response(200, text="[]"), "the node sent JSON that is no JSON-RPC response"),
    "error": (
        httpx2.Response(200, json={"id": 1, "error": {"code": -32000, "message": "of a-secret-path"}}),
        "the node answered with error -32000",
    ),
    "odd error": (httpx2.Response(200, json={"id": 1, "error": "a-secret-path"}), "the node answered with error"),
    "another call": (httpx2.Response(200, json={"id": 0, "result": "0x"}), "no response to the call"),
    "large": (httpx2.Response(200, text="0" * (1 << 20) + "0"), "the answer is larger than"),
    "coded": (httpx2.Response(200, headers={"content-encoding": "br"}), "a content coding that was not asked for"),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_node_that_cannot_be_asked_changes_nothing(reader: Reader, kind: str) -> None:
    anchors = reader.anchors
    await reader.attested(0, 10, 20)
    known = await anchors.find(5, 5)
    reader.node.finalize()
    answer, reason = BROKEN[kind]
    reader.node.answer = answer
    with pytest.raises(RpcUnavailable, match=reason) as failed:
        await reader.poll()
    with pytest.raises(RpcUnavailable, match=reason):
        await anchors.find(15, 15)
    assert failed.value.retriable
    assert anchors.attested_height == 20
    assert anchors.bracket(5, 5) == known
    assert anchors.holds(known)
    reader.clock.move(30)
    state = anchors.state()
    assert (state["state"], state["ageSeconds"]) == ("ok", 30.0)
    reader.clock.move(STALE_AFTER_S)
    assert anchors.state()["state"] == "stale"
    for shown in (str(failed.value), str(state), repr(anchors), repr(anchors._node)):
        assert "secret" not in shown
    reader.node.answer = None
    await reader.poll()
    assert anchors.state() == {"state": "ok", "ageSeconds": 0.0, "asOfHeight": 1, "asOfAgeSeconds": 0.0}
    assert ends(await anchors.find(15, 15)) == (10, 20)
    assert anchors.polls == {"ok": 2, "failed": 1, "refused": 0}


async def test_a_connection_that_was_closed_meanwhile_is_no_failure(reader: Reader) -> None:
    await reader.attested(0, 10)
    reader.node.finalize()
    reader.node.fail("finalized", httpx2.RemoteProtocolError("closed"))
    await reader.poll()
    assert reader.node.cost()["finalized"] == 2


async def test_a_poll_that_fails_in_the_middle_changes_nothing(reader: Reader) -> None:
    anchors = reader.anchors
    await reader.attested(0, 10, 20, 30, checkpoints=(0,))
    known = await anchors.find(5, 5)
    reader.node.next.revert(10)
    reader.node.next.genesis = 3
    reader.node.finalize()
    for point in ("get_chain_by_key", "get_attestation_genesis_height", "get_latest_checkpoint_height_and_hash"):
        reader.node.fail(point, httpx2.ConnectError(""))
        with pytest.raises(RpcUnavailable):
            await reader.poll()
        assert (anchors.genesis, anchors.attested_height, anchors.holds(known)) == (0, 30, True)
    await reader.poll()
    assert (anchors.genesis, anchors.attested_height) == (3, 10)


async def test_an_address_without_the_precompile_is_no_creditcoin(reader: Reader) -> None:
    await reader.attested(0, 10)
    reader.node.finalize()
    nothing = {"jsonrpc": "2.0", "result": "0x"}

    async def without_contract(request: httpx2.Request) -> httpx2.Response:
        number = int(request.content.split(b'"id": ')[1].split(b",")[0])
        result: object = {"number": "0x9"} if b"finalized" in request.content else "0x"
        return streamed(httpx2.Response(200, json={**nothing, "id": number, "result": result}))

    other = Creditcoin(KEY, CreditcoinNode(URL, transport=httpx2.MockTransport(without_contract)), lambda: None)
    with pytest.raises(RpcUnavailable, match="it answers nothing"):
        await other.advance(None, never)
    assert other.attested_height is None
    await other.aclose()


async def test_a_node_without_finalized_blocks_says_so(reader: Reader) -> None:
    with pytest.raises(RpcUnavailable, match="does not say which block is finalized"):
        await reader.poll()


async def test_a_node_that_lags_behind_another_at_the_same_address_is_not_believed(reader: Reader) -> None:
    anchors, node = reader.anchors, reader.node
    await reader.attested(0, 10)
    await reader.attested(20)
    node.finalized = 0
    for _ in range(3):
        with pytest.raises(RpcUnavailable, match="behind the block"):
            await reader.poll()
        assert anchors.attested_height == 20
        reader.clock.move(LAGS_FOR_S / 4)
    node.finalized = 1
    await reader.poll()
    assert (anchors.attested_height, anchors.reverts) == (20, 0)


async def test_a_creditcoin_that_was_begun_anew_is_read_anew(reader: Reader) -> None:
    anchors, node = reader.anchors, reader.node
    await reader.attested(0, 10)
    await reader.attested(20)
    known = await anchors.find(5, 5)
    node.finalized = 0
    with pytest.raises(RpcUnavailable):
        await reader.poll()
    reader.clock.move(LAGS_FOR_S)
    await reader.poll()
    assert anchors.attested_height == 10
    assert not anchors.holds(known)


REFUSED = {
    "no such chain": "Creditcoin supports no chain under key 2",
    "another chain": f"key 2 of Creditcoin is chain 1, the source chain is {CHAIN_ID}",
    "another encoding": "key 2 of Creditcoin has encoding 2: only 1 is known",
}


@pytest.mark.parametrize("why", REFUSED)
async def test_a_chain_that_creditcoin_does_not_attest_as_ours_has_no_anchors(reader: Reader, why: str) -> None:
    anchors, node = reader.anchors, reader.node
    await reader.attested(0, 10)
    known = await anchors.find(5, 5)
    node.listed = why != "no such chain"
    node.next.chain_id = 1 if why == "another chain" else CHAIN_ID
    node.next.encoding = 2 if why == "another encoding" else 1
    node.finalize()
    for _ in range(2):
        with pytest.raises(AttestationsMissing, match=REFUSED[why]):
            await reader.poll()
        assert anchors.attested_height is None
        assert not anchors.holds(known)
        with pytest.raises(AttestationsMissing, match=REFUSED[why]):
            await anchors.find(5, 5)
        assert anchors.state() == {"state": "refused", "reason": REFUSED[why]}
    node.listed, node.next.chain_id, node.next.encoding = True, CHAIN_ID, 1
    node.finalize()
    await reader.poll()
    assert anchors.state()["state"] == "ok"
    assert await anchors.find(5, 5) == known


async def test_the_chain_id_is_compared_once_it_is_known(reader: Reader) -> None:
    reader.chain_id = None
    await reader.attested(0, 10)
    assert reader.anchors.attested_height == 10
    reader.chain_id = 5
    reader.node.finalize()
    with pytest.raises(AttestationsMissing, match="the source chain is 5"):
        await reader.poll()


async def test_a_node_that_never_answers_is_given_up(reader: Reader) -> None:
    clock = ManualClock().drive()
    anchors = Creditcoin(KEY, CreditcoinNode(URL, transport=reader.node, timeout_s=5, clock=clock.now), lambda: None)
    hold = reader.node.hold("finalized")
    asking = asyncio.create_task(anchors.advance(None, never))
    await hold.reached()
    await clock.advance(4.9)
    assert not asking.done()
    await clock.advance(0.2)
    with pytest.raises(RpcUnavailable, match="no answer within 5 s"):
        await asking
    hold.release()


# --- the address --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "dialled"), [("ws://n.example:9944/k", "http"), ("wss://n.example/k", "https")])
async def test_a_websocket_address_is_asked_over_http(given: str, dialled: str) -> None:
    dialled_urls: list[httpx2.URL] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        dialled_urls.append(request.url)
        return streamed(httpx2.Response(500))

    node = CreditcoinNode(given, transport=httpx2.MockTransport(answer))
    await asyncio.gather(node.finalized_height(), return_exceptions=True)
    await node.aclose()
    assert [str(url) for url in dialled_urls] == [given.replace(given.split(":")[0], dialled, 1)]


@pytest.mark.parametrize("given", ["", "ftp://n.example", "http://", "n.example:9944", "http://[::1"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="the URL of a Creditcoin node"):
        CreditcoinNode(given)


async def test_no_log_line_tells_the_address(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await reader.attested(0, 10)
    assert "secret" not in caplog.text
