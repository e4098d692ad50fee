"""Anchors of our own making: the digest chain over recorded blocks, recomputed here by the definition."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import sha3
from eth_abi.abi import encode
from hypothesis import given, settings
from hypothesis import strategies as st

from app.anchors.ports import AnchorRow, AnchorRows
from app.anchors.self_attested import SelfAttested
from app.chain.chain import Chain
from app.core.block_building import build
from app.core.continuity import Bracket, cut
from app.core.errors import (
    AttestationsMissing,
    BlockBeforeOrAtGenesis,
    BlockNotReady,
    Internal,
    ProofError,
    RpcUnavailable,
)
from app.core.lasting import AnchorContradiction, StoreUnavailable
from app.core.provable_block import BuildRequest
from app.store.memory_anchors import MemoryAnchorRows
from tests.chain.recorded_chain import FIRST, LAST, SEPOLIA, Record, RecordedChain, bodies_of, from_hex, sepolia
from tests.fakes import Hold, HoldPoints, settle

DOWN = RpcUnavailable("down")


# --- the definition -------------------------------------------------------------------------------------------------


def keccak(data: bytes) -> bytes:
    return bytes(sha3.keccak_256(data).digest())


def leaf(transaction: Record, receipt: Record) -> bytes:
    """ABI of (type, [common fields, fields of the type, receipt fields]), from what the node says."""

    def number(name: str) -> int:
        return int(transaction[name], 16)

    to = transaction.get("to")
    common = [number("nonce"), number("gas"), from_hex(transaction["from"]), to is None]
    common += [bytes(20) if to is None else from_hex(to), number("value"), from_hex(transaction["input"])]
    r, s = number("r").to_bytes(32, "big"), number("s").to_bytes(32, "big")
    kind = number("type")
    if kind == 0:
        of_type = encode(["uint128", "uint256", "bytes32", "bytes32"], [number("gasPrice"), number("v"), r, s])
    else:
        assert kind == 2
        access = [
            (from_hex(entry["address"]), [from_hex(key) for key in entry["storageKeys"]])
            for entry in transaction["accessList"]
        ]
        fees = [number("chainId"), number("maxPriorityFeePerGas"), number("maxFeePerGas"), access]
        of_type = encode(
            ["uint64", "uint128", "uint128", "(address,bytes32[])[]", "uint8", "bytes32", "bytes32"],
            [*fees, number("v"), r, s],
        )
    logs = [
        (from_hex(log["address"]), [from_hex(topic) for topic in log["topics"]], from_hex(log["data"]))
        for log in receipt["logs"]
    ]
    of_receipt = [int(receipt["status"], 16), int(receipt["gasUsed"], 16), logs, from_hex(receipt["logsBloom"])]
    chunks = [
        encode(["uint64", "uint64", "address", "bool", "address", "uint256", "bytes"], common),
        of_type,
        encode(["uint8", "uint64", "(address,bytes32[],bytes)[]", "bytes"], of_receipt),
    ]
    return bytes(encode(["uint8", "bytes[]"], [kind, chunks]))


def root(record: Record) -> bytes:
    """The keccak tree over the leaves; 32 zero bytes without any."""
    pairs = zip(record["block"]["transactions"], record["receipts"], strict=True)
    level = [keccak(b"\0" + leaf(transaction, receipt)) for transaction, receipt in pairs]
    if not level:
        return bytes(32)
    while len(level) > 1:
        level += [bytes(32)] * (len(level) % 2)
        level = [keccak(b"\1" + left + right) for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def digests(genesis: int, roots: list[bytes]) -> dict[int, bytes]:
    """The first digest is over 40 bytes: there is none below it."""
    chained: dict[int, bytes] = {}
    previous = b""
    for height, one in enumerate(roots, genesis):
        previous = chained[height] = keccak(height.to_bytes(8, "big") + one + previous)
    return chained


def anchors_at(genesis: int, interval: int, every: int, finalized: int) -> tuple[list[int], list[int]]:
    """The attestations and checkpoints that stand once `finalized` was anchored."""
    anchored = [height for height in range(genesis, finalized + 1) if (height - genesis) % interval == 0]
    checkpoints = anchored[::every]
    newest = checkpoints[-1] if checkpoints else genesis
    return [height for height in anchored if height not in checkpoints and height > newest], checkpoints


def bracket_of(attestations: list[int], checkpoints: list[int], lo: int, hi: int) -> tuple[int, int] | None:
    for below, above in (
        (attestations, attestations),
        (checkpoints, checkpoints),
        (checkpoints, attestations),
        (attestations, checkpoints),
    ):
        lower, upper = [height for height in below if height < lo], [height for height in above if height >= hi]
        if lower and upper:
            return lower[-1], upper[0]
    return None


def made_up(height: int) -> bytes:
    return keccak(b"root" + height.to_bytes(8, "big"))


class Roots(HoldPoints):
    """Yields made-up roots, counts who is asked, and can be held or made to fail at one height: point `at:HEIGHT`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[int] = Counter()
        self.running = self.most_running = 0

    async def __call__(self, height: int) -> bytes:
        self.asked[height] += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.at(f"at:{height}")
            await asyncio.sleep(0)
            return made_up(height)
        finally:
            self.running -= 1


def made_up_digests(genesis: int, last: int) -> dict[int, bytes]:
    return digests(genesis, [made_up(height) for height in range(genesis, last + 1)])


# --- what is anchored -----------------------------------------------------------------------------------------------


async def test_the_chain_starts_at_the_genesis_with_the_digest_of_40_bytes() -> None:
    anchors = SelfAttested(7, 100, 5, 10)
    await anchors.advance(105, Roots())
    bracket = anchors.bracket(101, 105)
    assert (bracket.lower, bracket.lower_digest) == (100, keccak((100).to_bytes(8, "big") + made_up(100)))
    assert (bracket.upper, bracket.upper_digest) == (105, made_up_digests(100, 105)[105])


async def test_nothing_is_anchored_before_the_first_interval_is_full() -> None:
    anchors = SelfAttested(7, 100, 5, 10)
    with pytest.raises(AttestationsMissing):
        anchors.bracket(101, 101)
    await anchors.advance(104, Roots())
    assert (anchors.genesis, anchors.attested_height, anchors.checkpoint_height) == (100, None, None)
    with pytest.raises(BlockNotReady):
        anchors.bracket(101, 104)
    await anchors.advance(105, Roots())
    assert (anchors.attested_height, anchors.checkpoint_height) == (105, None)


async def test_a_checkpoint_retires_the_attestations_up_to_it() -> None:
    anchors = SelfAttested(7, 0, 10, 3)
    await anchors.advance(29, Roots())
    assert (anchors.attested_height, anchors.checkpoint_height) == (20, None)
    assert anchors.bracket(11, 20).source == "attestation"
    await anchors.advance(30, Roots())
    assert (anchors.attested_height, anchors.checkpoint_height) == (30, 30)
    assert (anchors.bracket(11, 20).lower, anchors.bracket(11, 20).upper) == (0, 30)
    assert anchors.bracket(11, 20).source == "checkpoint"
    await anchors.advance(40, Roots())
    assert anchors.bracket(31, 40).source == "mixed_cp_lower_att_upper"


@settings(max_examples=60)
@given(
    genesis=st.integers(0, 1000),
    interval=st.integers(1, 6),
    every=st.integers(1, 5),
    steps=st.lists(st.integers(0, 17), min_size=1, max_size=6),
)
async def test_brackets_are_those_of_the_definition_however_finality_moved(
    genesis: int, interval: int, every: int, steps: list[int]
) -> None:
    anchors = SelfAttested(7, genesis, interval, every)
    finalized, roots = genesis - 3, Roots()
    for step in steps:
        finalized += step
        await anchors.advance(finalized, roots)
    attestations, checkpoints = anchors_at(genesis, interval, every, finalized)
    expected = made_up_digests(genesis, finalized)
    assert anchors.attested_height == max([*attestations, *checkpoints[1:]], default=None)
    assert anchors.checkpoint_height == max(checkpoints[1:], default=None)
    newest = max([*attestations, *checkpoints], default=genesis)
    for lo in range(genesis + 1, newest + 1):
        for hi in range(lo, newest + 1):
            bracket = anchors.bracket(lo, hi)
            assert (bracket.lower, bracket.upper) == bracket_of(attestations, checkpoints, lo, hi)
            assert bracket.lower_digest == expected[bracket.lower]
            assert bracket.upper_digest == expected[bracket.upper]
    assert set(roots.asked.values()) <= {1}
    assert sorted(roots.asked) == list(range(genesis, finalized + 1))


async def test_a_second_instance_makes_the_same_anchors() -> None:
    one, other = SelfAttested(7, 3, 4, 3), SelfAttested(8, 3, 4, 3)
    await one.advance(60, Roots())
    for finalized in range(61):
        await other.advance(finalized, Roots())
    assert [one.bracket(lo, lo) for lo in range(4, 60)] == [other.bracket(lo, lo) for lo in range(4, 60)]


async def test_without_a_genesis_the_first_finalized_height_is_it() -> None:
    anchors = SelfAttested(7, None, 5, 10)
    assert anchors.genesis is None
    await anchors.advance(None, Roots())
    assert anchors.genesis is None
    await anchors.advance(37, Roots())
    assert (anchors.genesis, anchors.attested_height) == (37, None)
    await anchors.advance(42, Roots())
    assert (anchors.genesis, anchors.attested_height) == (37, 42)
    assert anchors.bracket(38, 42).lower_digest == made_up_digests(37, 37)[37]


async def test_what_is_anchored_is_not_asked_for_again() -> None:
    anchors, roots = SelfAttested(7, 10, 5, 10), Roots()
    for finalized in (5, 20, 20, 12, 3, 21):
        await anchors.advance(finalized, roots)
    assert roots.asked == Counter(range(10, 22))


async def test_a_bracket_holds_until_a_checkpoint_retires_one_of_its_ends() -> None:
    anchors = SelfAttested(7, 0, 10, 3)
    await anchors.advance(29, Roots())
    retired, kept = anchors.bracket(11, 20), await anchors.find(1, 10)
    assert (kept.lower, kept.upper) == (0, 10)
    assert anchors.holds(retired)
    await anchors.advance(30, Roots())
    assert not anchors.holds(retired)
    assert not anchors.holds(kept)
    standing = anchors.bracket(1, 10)
    assert (standing.lower, standing.upper) == (0, 30)
    assert anchors.holds(standing)
    for damaged in (replace(standing, upper_digest=bytes(32)), replace(standing, lower=1), replace(standing, upper=29)):
        assert not anchors.holds(damaged)


# --- when it does not go well ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [10, 11, 15, 17, 18, 25, 40])
async def test_what_was_reached_before_an_error_is_kept(failing: int) -> None:
    anchors, roots = SelfAttested(7, 10, 1, 100), Roots()
    roots.fail(f"at:{failing}", DOWN)
    with pytest.raises(RpcUnavailable):
        await anchors.advance(40, roots)
    reached = failing - 1
    assert anchors.attested_height == (reached if reached > 10 else None)
    await anchors.advance(40, roots)
    assert anchors.attested_height == 40
    assert anchors.bracket(39, 40).upper_digest == made_up_digests(10, 40)[40]
    assert all(roots.asked[height] == 1 for height in range(10, failing))


async def test_a_block_that_can_never_be_anchored_does_not_hold_back_those_below_it() -> None:
    anchors, roots = SelfAttested(7, 10, 1, 100), Roots()
    roots.fail("at:13", DOWN, times=None)
    for _ in range(3):
        with pytest.raises(RpcUnavailable):
            await anchors.advance(40, roots)
    assert anchors.attested_height == 12


async def test_an_error_waits_for_the_heights_below_it() -> None:
    anchors, roots = SelfAttested(7, 10, 1, 100), Roots()
    hold = roots.hold("at:11")
    roots.fail("at:13", DOWN)
    advancing = asyncio.create_task(anchors.advance(40, roots))
    await hold.reached()
    await settle()
    hold.release()
    with pytest.raises(RpcUnavailable):
        await advancing
    assert anchors.attested_height == 12


async def test_the_error_of_the_lowest_height_is_told() -> None:
    anchors, roots = SelfAttested(7, 10, 1, 100), Roots()
    roots.fail("at:15", RpcUnavailable("higher"))
    roots.fail("at:12", RpcUnavailable("lower"))
    with pytest.raises(RpcUnavailable, match="lower"):
        await anchors.advance(40, roots)


async def test_a_fault_of_our_own_goes_through_as_it_is() -> None:
    anchors, roots = SelfAttested(7, 10, 1, 100), Roots()
    roots.fail("at:12", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await anchors.advance(40, roots)
    assert roots.running == 0
    await anchors.advance(40, roots)
    assert anchors.attested_height == 40


async def test_what_was_reached_before_a_cancellation_is_kept_and_nothing_runs_on() -> None:
    anchors, roots = SelfAttested(7, 10, 1, 100), Roots()
    hold: Hold = roots.hold("at:21")
    advancing = asyncio.create_task(anchors.advance(40, roots))
    await hold.reached()
    await settle()
    advancing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await advancing
    assert roots.running == 0
    assert anchors.attested_height == 20
    hold.release()
    await anchors.advance(40, roots)
    assert anchors.bracket(39, 40).upper_digest == made_up_digests(10, 40)[40]


async def test_only_a_few_roots_are_asked_for_at_once() -> None:
    anchors, roots = SelfAttested(7, 0, 10, 10), Roots()
    await anchors.advance(200, roots)
    assert 2 <= roots.most_running <= 8


# --- kept beyond the process ----------------------------------------------------------------------------------------


def state_of(anchors: SelfAttested) -> tuple[object, ...]:
    """All that anybody can see of it."""
    newest = anchors.attested_height or 0
    brackets = [anchors.bracket(lo, lo) for lo in range((anchors.genesis or 0) + 1, newest + 1)]
    return anchors.genesis, newest, anchors.checkpoint_height, brackets


async def opened(rows: AnchorRows, genesis: int | None = 3, interval: int = 4, every: int = 3) -> SelfAttested:
    return await SelfAttested.opened(7, genesis, interval, every, rows)


@pytest.mark.parametrize("stopped_at", [2, 3, 4, 7, 14, 15, 16, 27, 60])
async def test_who_starts_again_goes_on_from_the_last_anchor(stopped_at: int) -> None:
    rows, straight = MemoryAnchorRows(), SelfAttested(7, 3, 4, 3)
    await (await opened(rows)).advance(stopped_at, Roots())
    await straight.advance(stopped_at, Roots())
    again, roots = await opened(rows), Roots()
    assert state_of(again) == state_of(straight)
    await again.advance(61, roots)
    await straight.advance(61, Roots())
    assert state_of(again) == state_of(straight)
    kept = [height for height in range(3, stopped_at + 1) if (height - 3) % 4 == 0]
    assert roots.asked == Counter(range(max(kept, default=2) + 1, 62))


async def test_two_processes_with_the_same_rows_make_the_same_anchors() -> None:
    rows = MemoryAnchorRows()
    one, other = await opened(rows, None), await opened(rows, None)
    await one.advance(10, Roots())
    await other.advance(25, Roots())  # later: the first claim to the genesis stands
    assert other.genesis == 10
    await one.advance(52, Roots())
    await other.advance(52, Roots())
    third = await opened(rows, None)
    assert state_of(one) == state_of(other) == state_of(third)
    await third.advance(60, Roots())
    await one.advance(60, Roots())
    assert state_of(one) == state_of(third)


async def test_a_process_that_lags_brings_back_nothing_that_is_retired() -> None:
    rows = MemoryAnchorRows()
    ahead, behind = await opened(rows, 0, 10, 3), await opened(rows, 0, 10, 3)
    await behind.advance(5, Roots())
    await ahead.advance(35, Roots())
    before = await rows.load()
    await behind.advance(25, Roots())
    assert await rows.load() == before
    assert [(row.height, row.kind) for row in before] == [(0, "genesis"), (30, "checkpoint")]


async def test_another_genesis_than_the_kept_one_is_refused_at_once() -> None:
    rows = MemoryAnchorRows()
    await (await opened(rows, 3)).advance(20, Roots())
    with pytest.raises(AnchorContradiction, match=r"anchors\.genesis is 4, but .* chain_key 7 start at 3"):
        await opened(rows, 4)
    assert (await opened(rows, None)).genesis == 3
    assert (await opened(rows, 3)).attested_height == 19


class FailingRows(MemoryAnchorRows):
    """Rows that cannot be had while `down`."""

    down = True

    async def load(self, above: int = -1) -> tuple[AnchorRow, ...]:
        self._require_up()
        return await super().load(above)

    async def claim_genesis(self, height: int) -> int:
        self._require_up()
        return await super().claim_genesis(height)

    async def add(self, rows: Sequence[AnchorRow]) -> None:
        self._require_up()
        await super().add(rows)

    def _require_up(self) -> None:
        if self.down:
            raise StoreUnavailable


async def test_rows_that_cannot_be_read_at_the_start_are_read_later() -> None:
    rows = FailingRows()
    rows.down = False
    await (await opened(rows)).advance(20, Roots())
    rows.down = True
    anchors, roots = await opened(rows), Roots()
    with pytest.raises(StoreUnavailable):
        await anchors.advance(30, roots)
    assert (anchors.attested_height, roots.asked) == (None, Counter())
    rows.down = False
    await anchors.advance(None, roots)
    assert anchors.attested_height == 19
    await anchors.advance(30, roots)
    assert (anchors.attested_height, min(roots.asked)) == (27, 20)


async def test_nothing_is_told_of_before_it_is_kept() -> None:
    rows = FailingRows()
    rows.down = False
    anchors = await opened(rows, 3, 1)
    await anchors.advance(10, Roots())
    rows.down = True
    with pytest.raises(StoreUnavailable):
        await anchors.advance(30, Roots())
    assert anchors.attested_height == 10
    rows.down = False
    await anchors.advance(30, Roots())
    straight = SelfAttested(7, 3, 1, 3)
    await straight.advance(30, Roots())
    assert state_of(anchors) == state_of(straight) == state_of(await opened(rows, 3, 1))


async def test_blocks_of_another_chain_are_not_anchored_over_those_that_are_kept() -> None:
    rows = MemoryAnchorRows()
    one, other = await opened(rows), await opened(rows)
    await one.advance(30, Roots())
    kept = await rows.load()

    async def other_root(height: int) -> bytes:
        return keccak(b"fork") if height == 12 else made_up(height)

    with pytest.raises(AnchorContradiction):
        await other.advance(30, other_root)
    assert await rows.load() == kept
    assert other.attested_height == 11


# --- over recorded blocks -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded_roots() -> dict[int, bytes]:
    return {height: root(sepolia(height)) for height in range(FIRST, LAST + 1)}


CHAINS = [(FIRST, 10, 3), (FIRST, 1, 1), (FIRST + 5, 7, 2), (FIRST, 63, 1), (FIRST, 3, 100)]
"""Genesis, interval, checkpoint_every."""


def built_root(height: int) -> bytes:
    given = bodies_of(sepolia(height))
    request = BuildRequest("ethereum", SEPOLIA, True, height, None, given.block_json, given.receipts_json)
    return build(request).usc_root


def test_the_recorded_range_is_worth_proving(recorded_roots: dict[int, bytes]) -> None:
    assert len(recorded_roots) == 64
    assert sum(one != bytes(32) for one in recorded_roots.values()) >= 9
    assert [built_root(height) for height in recorded_roots] == list(recorded_roots.values())


async def anchored(genesis: int, interval: int, every: int) -> tuple[Chain, SelfAttested, RecordedChain]:
    anchors = SelfAttested(7, genesis, interval, every)
    made = RecordedChain(anchors=anchors)
    await made.see(finalized=LAST)
    running = asyncio.create_task(made.chain.run())
    try:
        await made.chain.anchored.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return made.chain, anchors, made


@pytest.mark.parametrize(("genesis", "interval", "every"), CHAINS)
async def test_every_height_of_the_recorded_range_has_its_continuity_proof(
    genesis: int, interval: int, every: int, recorded_roots: dict[int, bytes]
) -> None:
    chain, anchors, made = await anchored(genesis, interval, every)
    expected = digests(genesis, [recorded_roots[height] for height in range(genesis, LAST + 1)])
    attestations, checkpoints = anchors_at(genesis, interval, every, LAST)
    newest = max([*attestations, *checkpoints])
    assert chain.attested_height == newest
    assert made.metric("chain_attested_head", chain="sepolia") == newest
    made.calls()
    for height in range(genesis + 1, newest + 1):
        chain.require_anchored(height, height)
        bracket: Bracket = anchors.bracket(height, height)
        assert (bracket.lower, bracket.upper) == bracket_of(attestations, checkpoints, height, height)
        assert (bracket.lower_digest, bracket.upper_digest) == (expected[bracket.lower], expected[bracket.upper])
        served = await chain.continuity(height, height)
        assert (served.upper_height, served.upper_digest) == (bracket.upper, expected[bracket.upper])
        assert served.proof.lower_endpoint_digest == expected[height - 1]
        assert list(served.proof.roots) == [recorded_roots[at] for at in range(height, bracket.upper + 1)]
        # What a verifier does: from the digest below, over the roots, to the anchor.
        running = served.proof.lower_endpoint_digest
        for at, one in enumerate(served.proof.roots, height):
            running = keccak(at.to_bytes(8, "big") + one + running)
        assert running == served.upper_digest
    assert made.calls() == {}


async def test_a_batch_runs_from_its_lowest_height_to_an_anchor_above_its_highest(
    recorded_roots: dict[int, bytes],
) -> None:
    chain, _, _ = await anchored(FIRST, 10, 3)
    expected = digests(FIRST, list(recorded_roots.values()))
    served = await chain.continuity(FIRST + 12, FIRST + 31)
    assert served.upper_height == FIRST + 60
    assert served.proof.lower_endpoint_digest == expected[FIRST + 11]
    assert list(served.proof.roots) == [recorded_roots[at] for at in range(FIRST + 12, FIRST + 61)]


async def test_heights_outside_the_anchors_are_refused_without_a_call() -> None:
    chain, _, made = await anchored(FIRST + 5, 7, 2)
    newest = chain.attested_height
    assert newest is not None
    made.calls()
    for lo, hi, refusal in (
        (FIRST + 5, FIRST + 5, BlockBeforeOrAtGenesis),
        (FIRST, FIRST + 20, BlockBeforeOrAtGenesis),
        (newest + 1, newest + 1, BlockNotReady),
        (newest, newest + 1, BlockNotReady),
    ):
        with pytest.raises(refusal):
            chain.require_anchored(lo, hi)
        with pytest.raises(refusal):
            await chain.continuity(lo, hi)
    with pytest.raises(BlockNotReady) as late:
        chain.require_anchored(newest, newest + 2)
    assert late.value.extra == {"block_number": newest + 2, "last_attested_block": newest}
    assert made.calls() == {}


async def test_a_root_of_another_block_is_found_before_it_is_served(recorded_roots: dict[int, bytes]) -> None:
    chain, anchors, _ = await anchored(FIRST, 10, 3)
    bracket = anchors.bracket(FIRST + 35, FIRST + 35)
    roots = [recorded_roots[at] for at in range(bracket.lower + 1, bracket.upper + 1)]
    assert cut(bracket, roots, FIRST + 35) == (await chain.continuity(FIRST + 35, FIRST + 35)).proof
    for at in range(len(roots)):
        damaged: list[Any] = [*roots]
        damaged[at] = keccak(b"other")
        with pytest.raises(Internal):
            cut(bracket, damaged, FIRST + 35)


async def test_two_servers_make_the_same_anchors_of_the_same_blocks() -> None:
    (one, _, _), (other, _, _) = await anchored(FIRST, 10, 3), await anchored(FIRST, 10, 3)
    for height in (FIRST + 1, FIRST + 30, FIRST + 59):
        assert await one.continuity(height, height) == await other.continuity(height, height)


async def test_a_genesis_that_is_not_known_is_no_height_to_serve() -> None:
    made = RecordedChain(anchors=SelfAttested(7, None, 10, 3))
    with pytest.raises(ProofError) as refused:
        made.chain.require_anchored(FIRST, FIRST)
    assert refused.value.code == "AttestationsMissing"
