"""One node: JSON-RPC calls over HTTP or a WebSocket, only while the node is of the right chain and willing.

Retries and what an answer means are the business of whoever holds the node; here one call is one attempt.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TypeVar

import httpx2
import msgspec

from app.core.blocks import BlockName
from app.core.breaker import BreakerState
from app.core.deadlines import remaining_s, turn_left_s
from app.core.hexadecimal import parse_quantity
from app.core.purpose import Errand, Purpose, errand
from app.core.routing import LastError, NodeState, Part, Work

from . import jsonrpc
from .decoding import decoded
from .diary import Diary
from .faults import ANSWERED, BLAMED, CallFailed, Fault
from .observer import NoObserver, UpstreamObserver
from .posting import NodeLimits
from .purse import Purse
from .standing import Capabilities, Standing
from .subscription import Subscription
from .ways import Ways

NULL = b"null"

TYPICAL = {
    Work.LIGHT: ("eth_getBlockByNumber",),
    Work.BODIES: ("eth_getBlockByNumber", "eth_getBlockReceipts"),
}
"""What is mostly asked: what this costs tells whether a node is worth turning to."""

_ABOUT_NO_BLOCK = ("eth_chainId", "eth_blockNumber")

T = TypeVar("T")

logger = logging.getLogger("copath.upstream")


class EvmNode:
    """One node and everything that is known of it. `aclose` it.

    `name` is what logs, metrics and clients see; `chain_id` is the one configured, None to learn it from the node; `family` says
    how its headers hash, None not to check those of its heads;
    `derives_from` names the node that this one follows and can never be ahead of; nodes of a lower `priority` are asked first,
    None is the place among them. `url` may be that of a WebSocket, over which
    everything goes then, subscriptions too; beside another one, `ws_url` is for subscriptions alone.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        ws_url: str | None = None,
        chain_id: int | None = None,
        family: str | None = None,
        derives_from: str | None = None,
        priority: int | None = None,
        headers: Mapping[str, str] | None = None,
        limits: NodeLimits | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        observer: UpstreamObserver | None = None,
        purse: Purse | None = None,
        chain: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        trust_env: bool = True,
    ) -> None:
        self.name = name
        self.facts = {"upstream": name} if chain is None else {"upstream": name, "chain": chain}
        """How log lines name it: names are told apart within a chain alone."""
        self.family = family
        self.capabilities = Capabilities()
        self.unknown_tags: set[str] = set()
        """Tags that it said, the last time that it was asked, it does not know."""
        self.standing = Standing(chain_id)
        self.state = NodeState(name, derives_from, priority)
        self.observer: UpstreamObserver = observer or NoObserver()
        self.limits = limits or NodeLimits()
        self.purse = purse or Purse(clock=clock, wall_clock=wall_clock)
        self._clock = clock
        self._ids = count(1)
        self._verifying: asyncio.Task[int] | None = None
        self._diary = Diary(self.facts)
        self._ways = Ways(
            url,
            ws_url,
            headers,
            self.limits,
            transport=transport,
            observer=self.observer,
            clock=clock,
            wall_clock=wall_clock,
            trust_env=trust_env,
            on_lost=self.standing.forget_chain,
        )
        self.subscription: Subscription | None = None
        """To its heads, where it offers one."""
        if self._ways.line is not None:
            asked = None if self._ways.poster is None else lambda: self.chain_id
            self.subscription = Subscription(
                name,
                self._ways.line,
                self.purse,
                self.observer,
                self._ids,
                clock=clock,
                chain_id=asked,
                facts=self.facts,
            )

    def __repr__(self) -> str:
        state = "up" if self.standing.up else "down"
        return f"<EvmNode {self.name} {self._ways.origin} chain {self.standing.chain_id} {state}>"

    @property
    def chain_id(self) -> int | None:
        """The chain id that the node proved, or else the configured one; None while neither is known."""
        standing = self.standing
        return standing.configured_chain_id if standing.chain_id is None else standing.chain_id

    def now(self) -> float:
        """Monotonic seconds, on the node's clock."""
        return self._clock()

    def observed(self, now: float) -> NodeState:
        """What is known of the node, for whoever chooses between nodes for the errand in hand."""
        self._share_cooldown()
        closed_s = self.purse.closed_s(TYPICAL[Work.LIGHT])
        self.state.spent_until = now + closed_s if closed_s else None
        self.state.busy = frozenset(work for work, methods in TYPICAL.items() if self.purse.busy(methods))
        self.state.verified = self.standing.verified_at is not None and self.standing.up
        self.state.barred_until = self.standing.barred_until(now)
        self.state.cooling_until = self.standing.cooling_until
        return self.state

    def answers(self, now: float) -> bool:
        """Whether it is asked and answers: it serves this chain, denies us nothing, and has not failed again and again."""
        in_use = self.standing.word(now) == "ok" and not self.state.astray
        return in_use and self.state.breaker_state(now) is BreakerState.CLOSED

    def announces(self, now: float) -> bool:
        """Whether it would say by itself that its head moved, and is in use."""
        here = self.subscription
        return here is not None and here.watch.live(now) and self.standing.up and not self.state.astray

    def note_invalid(self, check: str) -> None:
        """What it sent failed a check, or another node corrected it."""
        self.observer.on_content_invalid(check)
        self._note_error(f"invalid data: {check.replace('_', ' ')}")

    def crashed(self, fault: Exception) -> CallFailed:
        """Handling what it sent ended in an error that nobody foresaw: its failure, with the stack in the log once."""
        self.note_invalid("unexpected")
        self._diary.crashed(fault, self._clock())
        return CallFailed(Fault.MALFORMED, "the node sent what could not be handled")

    def note_latest(self, block: BlockName, now: float) -> None:
        """It was asked for its newest block, and this is it."""
        self.state.note_head(block.height, now, block.timestamp)
        if self.subscription is not None:
            self.subscription.watch.see(block.height, block.block_hash, now)

    def batch_size(self, method: str) -> int:
        """The most calls of one method for one batch: as many as are believed to pass, and as may be made within a second."""
        affordable = self.purse.most_at_once(method)
        believed = self.capabilities.largest_batch(self._clock())
        return believed if affordable is None else min(believed, affordable)

    @property
    def connections_held(self) -> int:
        """Connections that calls hold at this moment."""
        return self._ways.held

    async def aclose(self) -> None:
        """Ends a chain check under way and closes every connection."""
        if self._verifying is not None and not self._verifying.done():
            self._verifying.cancel()
            await asyncio.wait([self._verifying])
        await self._ways.aclose()

    async def call(self, method: str, params: Sequence[object] = ()) -> bytes:
        """The JSON text of the call's result, `null` included. Raises `CallFailed`."""
        part = _part_of(method, params)
        await self.verify_chain(part)
        return await self._call(method, params, part)

    async def batch(self, calls: Sequence[jsonrpc.Call]) -> list[bytes | CallFailed]:
        """One outcome per call, in order. Raises `CallFailed` when there was no answer for any of them."""
        part = _part_of(*calls[0])
        await self.verify_chain(part)
        first_id = next(self._ids)
        for _ in calls[1:]:
            next(self._ids)

        def decode(body: bytes) -> list[bytes | CallFailed]:
            return jsonrpc.decode_batch(body, first_id, len(calls))

        content = jsonrpc.encode_batch(first_id, calls)
        ids = range(first_id, first_id + len(calls))
        outcomes = await self._exchange([method for method, _ in calls], part, content, ids, decode, lambda _: "ok")
        limits = [
            outcome for outcome in outcomes if isinstance(outcome, CallFailed) and outcome.fault is Fault.RATE_LIMITED
        ]
        if limits:
            # One limit, however many calls of the batch met it.
            self._note_failure(calls[0][0], part, limits[0])
            for limit in limits:
                limit.retry_after_s = limits[0].retry_after_s
        return outcomes

    async def verify_chain(self, part: Part = Part.LIGHT) -> int:
        """The chain id of the node, asked for only when it is due, on the way to a call for `part`. Raises `CallFailed`.

        Callers that need it at the same time share one call, which belongs to the node: none of them can cancel it, and none
        waits for it beyond its own turn.
        """
        now = self._clock()
        if self.standing.chain_is_known(now) and self.standing.chain_id is not None:
            return self.standing.chain_id
        if self._verifying is None or self._verifying.done():
            # In a context of its own: the deadline of whoever came first is not everybody's.
            task = asyncio.get_running_loop().create_task(
                self._verify(), name=f"verify-chain-{self.name}", context=contextvars.Context()
            )
            task.add_done_callback(_retrieve)
            self._verifying = task
        left_s, turn_s = remaining_s(now), turn_left_s(now)
        given_s = min((each for each in (left_s, turn_s) if each is not None), default=None)
        try:
            async with asyncio.timeout(given_s) as scope:
                return await asyncio.shield(self._verifying)
        except TimeoutError:
            if not scope.expired():
                raise
            if given_s == left_s:
                raise CallFailed(Fault.DEADLINE, "the deadline passed before the node named its chain") from None
            if self.purse.waiting:
                raise CallFailed(Fault.TURN_OVER, "its turn was over before the chain id could be asked for") from None
            self.state.note_failure(part, self._clock())
            failure = CallFailed(Fault.ATTEMPT_TIMEOUT, "the node did not name its chain in time")
            self._note_error(failure.what)
            raise failure from None
        except CallFailed as failure:
            raise failure.again() from None

    async def _verify(self) -> int:
        errand.set(Errand(Purpose.PROBE))  # of this task alone
        raw = await self._call("eth_chainId", (), Part.LIGHT)
        try:
            found = parse_quantity(msgspec.json.decode(raw, type=str | int))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise CallFailed(Fault.MALFORMED, "the node sent a chain id that is no number") from None
        if found >> 63:  # EIP-2294
            raise CallFailed(Fault.MALFORMED, "the node sent a chain id of more than 63 bits")
        self.standing.note_chain_id(found, self._clock())
        if self.standing.foreign_chain_id is not None:
            failure = self.standing.foreign()
            self._note_error(failure.what)
            logger.error("upstream_wrong_chain", extra={**self.facts, "detail": failure.message})
            raise failure
        return found

    async def _call(self, method: str, params: Sequence[object], part: Part) -> bytes:
        call_id = next(self._ids)

        def decode(body: bytes) -> bytes:
            return jsonrpc.decode_response(body, call_id)

        def result_of(answer: bytes) -> str:
            return "not_found" if answer == NULL else "ok"

        content = jsonrpc.encode_request(call_id, method, params)
        return await self._exchange([method], part, content, (call_id,), decode, result_of)

    async def _exchange(
        self,
        methods: Sequence[str],
        part: Part,
        content: bytes,
        ids: Sequence[int],
        decode: Callable[[bytes], T],
        result_of: Callable[[T], str],
    ) -> T:
        """One message with calls of these methods and ids, paid for before it starts."""
        method, cost = methods[0], self.purse.prices.of(methods)
        self._require_willing()
        await self.purse.turn(cost)
        self._require_willing()  # another call may have met a limit meanwhile
        self.purse.charge(cost)
        started = self._clock()
        self.state.begin(part, started)
        seconds: float | None = None
        result = "cancelled"
        try:
            reply = await self._ways.carry(content, ids, bulky=part is not Part.LIGHT or len(ids) > 1)
            seconds = reply.seconds
            # Outside the attempt's time: bytes in hand are not thrown away.
            answer = await decoded(decode, reply.body)
            result = result_of(answer)
            self._note_answer(part, seconds)
        except CallFailed as failure:
            result = failure.result
            self._note_failure(method, part, failure)
            if failure.fault in ANSWERED - BLAMED and seconds is not None:
                self.state.note_answer(part, self._clock(), seconds)
            raise
        except Exception as fault:  # noqa: BLE001 - whatever an answer leads to is this node's failure, and no more
            unforeseen = self.crashed(fault)
            result = unforeseen.result
            self._note_failure(method, part, unforeseen)
            raise unforeseen from None
        else:
            return answer
        finally:
            self.observer.on_call(method, result, self._clock() - started if seconds is None else seconds)

    def _require_willing(self) -> None:
        self._share_cooldown()
        refusal = self.standing.refusal(self._clock())
        if refusal is not None:
            raise refusal

    def _share_cooldown(self) -> None:
        """A limit that the calls of any node met holds for all that are paid from the same account."""
        until = self.purse.account.cooling_until
        if until is not None:
            self.standing.cooling_until = max(until, self.standing.cooling_until or until)

    def _note_answer(self, part: Part, seconds: float) -> None:
        self.standing.note_answer()
        self.state.note_answer(part, self._clock(), seconds)
        self._diary.stands(self.state, self._clock())

    def _note_error(self, what: str | None) -> None:
        if what is not None:
            self.state.last_error = LastError(what, self._clock())

    def _note_failure(self, method: str, part: Part, failure: CallFailed) -> None:
        if failure.denied and failure.fault is Fault.PRUNED and method in _ABOUT_NO_BLOCK:
            # Words of a plan beside a call that is about no block: it is us who are refused.
            failure.fault = Fault.DENIED
        failure.excerpt = self._ways.scrub(failure.excerpt)
        self.standing.note_failure(failure, self._clock())
        self._note_error(failure.what)
        if failure.fault is Fault.RATE_LIMITED and self.standing.cooling_until is not None:
            self.purse.account.cool(self.standing.cooling_until)
        if failure.fault in BLAMED:
            self.state.note_failure(part, self._clock())
        self._diary.failed(method, failure, self._clock())
        self._diary.stands(self.state, self._clock())


def _part_of(method: str, params: Sequence[object]) -> Part:
    if method in ("eth_getBlockReceipts", "eth_getTransactionReceipt"):
        return Part.RECEIPTS
    return Part.BLOCK if params[1:] == [True] else Part.LIGHT


def _retrieve(task: asyncio.Task[int]) -> None:
    # Its outcome was for whoever still waited; nobody may have.
    if not task.cancelled():
        task.exception()
