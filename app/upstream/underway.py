"""Calls that went out over one connection and whose answers may come in any order, or never."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from .faults import CallFailed, Fault
from .messages import Answer


@dataclass(slots=True, eq=False)
class Call:
    """One message that went out, and the future of what comes back. `size`: of a batch. `bulky`: the answer may be large."""

    answer: asyncio.Future[bytes]
    size: int
    bulky: bool


class UnderWay:
    """By id. Owned by the line; every change happens between awaits."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}

    def __repr__(self) -> str:
        return f"<UnderWay {len(self)}>"

    def __len__(self) -> int:
        return len(self._each())

    @contextmanager
    def expecting(self, ids: Sequence[int], *, bulky: bool) -> Iterator[Call]:
        """Inside, the answer to these ids is waited for; one that comes later is nobody's."""
        call = Call(asyncio.get_running_loop().create_future(), len(ids), bulky)
        for each in ids:
            self._calls[each] = call
        try:
            yield call
        finally:
            for each in ids:
                del self._calls[each]
            call.answer.cancel()  # a failure that nobody came for is none to tell of either

    def settle(self, answer: Answer, message: bytes) -> None:
        """Hands a message to whoever waits for it."""
        for call in self._whose(answer):
            if not call.answer.done():
                call.answer.set_result(message)

    def fail(self, failure: CallFailed) -> None:
        """The connection ended: none of them will be answered over it."""
        calls = self._each()
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(_for_call(failure, call, alone=len(calls) == 1))

    def _each(self) -> list[Call]:
        return list(dict.fromkeys(self._calls.values()))

    def _whose(self, answer: Answer) -> list[Call]:
        """Nobody's when the call was given up. Without an id it is an error that may be about anybody's, and is about a batch
        where there is one: those are refused as a whole."""
        if answer.ids:
            known = (self._calls[each] for each in answer.ids if each in self._calls)
            first = next(known, None)
            return [] if first is None else [first]
        calls = self._each()
        batches = [call for call in calls if call.size > 1]
        return batches if len(batches) == 1 else calls


def _for_call(failure: CallFailed, call: Call, *, alone: bool) -> CallFailed:
    """What the end of the connection means for one call. Of several, what was too large can only have been a large one's."""
    if failure.fault is Fault.BODY_TOO_LARGE and not (alone or call.bulky):
        return CallFailed(Fault.RESET, "the connection broke off")
    return failure.again()
