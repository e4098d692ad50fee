"""Being told by one node that its head moved, over a line to it.

What is told is never believed: it is a reason to ask the node now rather than later. Whether silence means that nothing happened
is for `core.watch` to say; a subscription that it calls silent is made anew, and on another connection if that did not help.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping

import msgspec

from app.core.hexadecimal import parse_quantity
from app.core.watch import Watch

from . import jsonrpc
from .faults import ANSWERED, CallFailed, Fault
from .line import Line
from .messages import Announced
from .observer import UpstreamObserver
from .purse import Purse

CHECK_EVERY_S = 5.0

AGAIN_S = 30.0
"""A node that would not subscribe us is asked again after this long."""

REFUSED_AGAIN_S = 600.0
"""And after this long where it said that it never would, or serves another chain."""

MOST_IN_A_SECOND = 200
"""No chain makes so many blocks: a node that announces more is not listened to for `REFUSED_AGAIN_S`."""

EVENT = "eth_subscription"

logger = logging.getLogger("copath.upstream")


class Subscription:
    """`newHeads` of one node. `begin` it, then it lasts as long as the line. Fits the line's `Listener`."""

    def __init__(
        self,
        name: str,
        line: Line,
        purse: Purse,
        observer: UpstreamObserver,
        ids: Iterator[int],
        *,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chain_id: Callable[[], int | None] | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """`chain_id`: the one that the node has to serve, if the subscription has to ask it. `facts` name the node in lines."""
        self.line = line
        self.watch = Watch()
        self.announcements = 0
        self._name = name
        self._facts = facts or {"upstream": name}
        self._purse = purse
        self._observer = observer
        self._ids = ids
        self._clock = clock
        self._pause = pause
        self._chain_id = chain_id
        self._wanted = asyncio.Event()
        self._on_news: Callable[[], None] = lambda: None
        self._id: str | None = None
        self._complaint: str | None = None
        self._second_at = self._deaf_until = -REFUSED_AGAIN_S
        self._in_second = 0
        self._silences = 0
        """Subscriptions in a row that were given up without having announced anything."""
        line.listener = self

    def __repr__(self) -> str:
        return f"<Subscription of {self._name}, {self.word(self._clock())}>"

    def word(self, now: float) -> str:
        """How it stands, in one word for listings: live, silent, down, or off before anybody wanted it."""
        if not self._wanted.is_set():
            return "off"
        return "down" if self._id is None else "live" if self.watch.live(now) else "silent"

    def begin(self, on_news: Callable[[], None]) -> None:
        """From now on `on_news` is called, between awaits, when there is a reason to ask for the head."""
        self._on_news = on_news
        self._wanted.set()
        self.line.begin()

    def rest(self) -> None:
        """Nothing is to be announced until it is begun again. The line stays, for whoever else speaks over it."""
        self._wanted.clear()

    # --- for the line -----------------------------------------------------------------------------------------------

    async def attend(self) -> None:
        """As the line says."""
        try:
            while True:
                await self._wanted.wait()
                try:
                    await self._subscribe()
                except CallFailed as failure:
                    self._tell(failure)
                    await self._pause(failure.retry_after_s or (REFUSED_AGAIN_S if _lasts(failure) else AGAIN_S))
                    continue
                self._tell(None)
                self._on_news()  # what happened before was not announced
                await self._until_over()
        finally:
            was_live, self._id = self._id is not None, None
            self.watch.end()
            if was_live:
                self._on_news()

    def announced(self, event: Announced) -> None:
        """As the line says."""
        if event.subscription != self._id:
            return
        now = self._clock()
        self.announcements += 1
        self._purse.owe(EVENT)
        if self.watch.hear(event.height, event.block_hash, now):
            self._on_news()
        if now - self._second_at >= 1.0:
            self._second_at, self._in_second = now, 0
        self._in_second += 1
        if self._in_second > MOST_IN_A_SECOND:
            self._deaf_until = now + REFUSED_AGAIN_S
        if self._in_second > MOST_IN_A_SECOND or self._purse.closed_s((EVENT,)):
            self._id = None
            self.watch.end()
            self._on_news()
            self.line.drop()  # it would go on; the next one is asked for when its time has come, or there are units again

    # --- its own ----------------------------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        self._purse.require(EVENT)
        deaf_s = self._deaf_until - self._clock()
        if deaf_s > 0:
            raise CallFailed(Fault.UNAVAILABLE, "it announced more blocks than there can be", retry_after_s=deaf_s)
        if self._chain_id is not None:
            await self._require_chain(self._chain_id())
        raw = await self._ask("eth_subscribe", ["newHeads"])
        try:
            self._id = str(msgspec.json.decode(raw, type=str | int))
        except msgspec.MsgspecError:
            raise CallFailed(Fault.MALFORMED, "the node confirmed a subscription without naming it") from None
        self.watch.begin(self._clock())

    async def _require_chain(self, wanted: int | None) -> None:
        raw = await self._ask("eth_chainId", [])
        try:
            found = parse_quantity(msgspec.json.decode(raw, type=str | int))
        except (msgspec.MsgspecError, ValueError):
            raise CallFailed(Fault.MALFORMED, "the node sent a chain id that is no number") from None
        if wanted is not None and found != wanted:
            raise CallFailed(Fault.WRONG_CHAIN, f"the node announces blocks of chain {found}, not of {wanted}")

    async def _until_over(self) -> None:
        """Returns when it is time for another one, or nobody wants one any more; the one there was is no more then. Ends the
        connection where another one on the same was no better."""
        began_at = self._clock()
        while self._wanted.is_set() and not self.watch.silent(self._clock()):
            await self._pause(CHECK_EVERY_S)
        if not self._wanted.is_set():
            await self._unsubscribe()
            return
        logger.warning("upstream_subscription_silent", extra=self._facts)
        heard_at = self.watch.heard_at
        self._silences = 1 if heard_at is not None and heard_at >= began_at else self._silences + 1
        if self._silences > 1:
            self._silences, self._id = 0, None
            self.watch.end()
            self.line.drop()
            return
        await self._unsubscribe()

    async def _unsubscribe(self) -> None:
        old, self._id = self._id, None
        self.watch.end()
        try:
            await self._ask("eth_unsubscribe", [old])
        except CallFailed:
            return

    async def _ask(self, method: str, params: list[object]) -> bytes:
        cost = self._purse.prices.of((method,))
        await self._purse.turn(cost)
        self._purse.charge(cost)
        call_id = next(self._ids)
        started, result = self._clock(), "cancelled"
        try:
            reply = await self.line.ask(jsonrpc.encode_request(call_id, method, params), (call_id,))
            answer = jsonrpc.decode_response(reply.body, call_id)
            result = "ok"
        except CallFailed as failure:
            result = failure.result
            raise
        else:
            return answer
        finally:
            self._observer.on_call(method, result, self._clock() - started)

    def _tell(self, failure: CallFailed | None) -> None:
        """Said once for each complaint, and once when it is over."""
        complaint = None if failure is None else failure.message
        if complaint != self._complaint:
            if complaint is None:
                logger.info("upstream_subscription_live", extra=self._facts)
            else:
                logger.warning("upstream_subscription_failed", extra={**self._facts, "detail": complaint})
        self._complaint = complaint


def _lasts(failure: CallFailed) -> bool:
    return failure.fault in (ANSWERED | {Fault.WRONG_CHAIN}) - {Fault.RPC_ERROR}
