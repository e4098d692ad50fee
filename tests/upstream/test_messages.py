"""What a node sends over a WebSocket, told apart."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.upstream.messages import Announced, Answer, Nonsense, read_message
from tests.scripted_websocket import event

HASH = "0x" + "ab" * 32


@pytest.mark.parametrize(
    ("message", "ids"),
    [
        ('{"jsonrpc":"2.0","id":7,"result":{"a":1}}', (7,)),
        ('{"id":7,"result":null,"jsonrpc":"2.0"}', (7,)),
        ('{"jsonrpc":"2.0","result":{"id":9},"id":7}', (7,)),
        (' {"jsonrpc": "2.0", "id": 7, "error": {"code": -32000, "message": "x"}}', (7,)),
        ('{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}', ()),
        ('{"jsonrpc":"2.0","id":"7","result":1}', (7,)),
        ('{"jsonrpc":"2.0","id":7.0,"result":1}', (7,)),
        ('{"jsonrpc":"2.0","id":"seven","result":1}', ()),
        ('{"jsonrpc":"2.0","id":"' + "7" * 5000 + '","result":1}', ()),
        ('[{"id":"2","result":1},{"id":"1","result":2}]', (2, 1)),
        ('[{"id":2,"result":1},{"id":1,"result":2}]', (2, 1)),
        ("[]", ()),
    ],
)
def test_answers_are_told_by_their_ids(message: str, ids: tuple[int, ...]) -> None:
    assert read_message(message.encode()) == Answer(ids)


def test_an_announcement_names_a_subscription_and_a_block() -> None:
    told = event("0x9ce5", "0x1b4", HASH)
    assert read_message(json.dumps(told).encode()) == Announced("0x9ce5", 0x1B4, bytes.fromhex(HASH[2:]))


@pytest.mark.parametrize(
    "message",
    [
        event("0x1", "0xzz", HASH),
        event("0x1", "0x1", "0x12"),
        event("0x1", hex(1 << 63), HASH),
        {"method": "eth_subscription", "params": {"subscription": "0x1", "result": "0xabc"}},
        {"method": "eth_subscription"},
        {"method": "net_something", "params": [1]},
    ],
)
def test_events_of_no_use_are_none(message: object) -> None:
    assert read_message(json.dumps(message).encode()) is None


@pytest.mark.parametrize(
    "message", ["", "hello", "<html>", "7", '"x"', "{}", '{"result":1}', '{"id":', "[1]", "[" * 100_000]
)
def test_B27_what_is_neither_is_nonsense(message: str) -> None:
    with pytest.raises(Nonsense):
        read_message(message.encode())


@given(st.binary(max_size=200))
def test_no_message_is_a_crash(message: bytes) -> None:
    with contextlib.suppress(Nonsense):
        read_message(message)
