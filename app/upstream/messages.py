"""What one message of a node over a WebSocket is: the answer to a call, a block that is announced, or neither. No I/O, no clock.

Sources: the JSON-RPC 2.0 specification, and the `eth_subscribe` pages of go-ethereum for announcements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from app.core.hexadecimal import parse_hash, parse_quantity

from .jsonrpc import plain_id


@dataclass(frozen=True, slots=True)
class Answer:
    """To these calls, of which several are those of a batch; to nobody knows which where there are none."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Announced:
    """A new head, under a subscription. Nothing of it is checked."""

    subscription: str
    height: int
    block_hash: bytes


class Nonsense(Exception):
    """The message is neither. Whoever sends one may send anything next."""


class _Message(msgspec.Struct):
    id: int | float | str | msgspec.UnsetType | None = msgspec.UNSET
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"null")


class _Head(msgspec.Struct):
    number: str | int
    hash: str


class _Event(msgspec.Struct):
    subscription: str | int
    result: _Head


_message_decoder = msgspec.json.Decoder(_Message)
_batch_decoder = msgspec.json.Decoder(list[_Message])
_event_decoder = msgspec.json.Decoder(_Event)

# How nearly every answer begins: what follows is not read here.
_BEGINNING = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,\s*"(?:result|error)"')


def read_message(message: bytes) -> Answer | Announced | None:
    """None: an event that is of no use here. Raises `Nonsense`."""
    beginning = _BEGINNING.match(message)
    if beginning is not None:
        return Answer((int(beginning[1]),))
    try:
        if message.lstrip()[:1] == b"[":
            answers = _batch_decoder.decode(message)
            ids = [plain_id(each.id) for each in answers]
            return Answer(tuple(each for each in ids if isinstance(each, int)))
        found = _message_decoder.decode(message)
    except (msgspec.MsgspecError, RecursionError):
        raise Nonsense from None
    if found.method is not None:
        return _announced(found)
    if found.id is msgspec.UNSET:
        raise Nonsense
    answered = plain_id(found.id)
    return Answer((answered,) if isinstance(answered, int) else ())


def _announced(event: _Message) -> Announced | None:
    if event.method != "eth_subscription":
        return None
    try:
        told = _event_decoder.decode(event.params)
        height, block_hash = parse_quantity(told.result.number), parse_hash(told.result.hash)
    except (msgspec.MsgspecError, ValueError):
        return None
    return None if height >> 63 else Announced(str(told.subscription), height, block_hash)
