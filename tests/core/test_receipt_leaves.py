from __future__ import annotations

import pytest
import rlp as oracle
from hypothesis import given
from hypothesis import strategies as st

from app.core.receipts import Log, Receipt, bloom, decode_leaf, encode_log, encodings, logs_of_leaf, parse_log
from app.core.rlp import RlpError

_logs = st.builds(
    Log,
    address=st.binary(min_size=20, max_size=20),
    topics=st.lists(st.binary(min_size=32, max_size=32), max_size=6).map(tuple),
    data=st.binary(max_size=130),
)


@given(_logs)
def test_a_log_agrees_with_another_encoder(log: Log) -> None:
    assert encode_log(log) == oracle.encode([log.address, list(log.topics), log.data])
    assert parse_log(encode_log(log)) == log


@given(
    type_=st.sampled_from([0, 1, 2, 3, 4, 0x7F]),
    status=st.integers(0, 1),
    gas=st.integers(0, 2**64 - 1),
    logs=st.lists(_logs, max_size=4),
)
def test_a_leaf_gives_back_its_logs(type_: int, status: int, gas: int, logs: list[Log]) -> None:
    receipt = Receipt(
        type=type_, status=status, post_state=None, cumulative_gas_used=gas, logs_bloom=bloom(logs), logs=tuple(logs)
    )
    ((_, (leaf,)),) = encodings([receipt], "ethereum")
    plain = oracle.encode([status, gas, bloom(logs), [[log.address, list(log.topics), log.data] for log in logs]])
    assert leaf == (bytes((type_,)) if type_ else b"") + plain
    assert decode_leaf(leaf)[0] == type_
    assert logs_of_leaf(leaf) == [encode_log(log) for log in logs]


@given(st.lists(_logs, max_size=5), _logs)
def test_a_bloom_covers_each_log_and_grows_with_it(logs: list[Log], more: Log) -> None:
    before, after = int.from_bytes(bloom(logs), "big"), int.from_bytes(bloom([*logs, more]), "big")
    assert before | int.from_bytes(bloom([more]), "big") == after
    assert (after).bit_count() <= 3 * sum(1 + len(log.topics) for log in [*logs, more])


@pytest.mark.parametrize(
    "leaf", [b"", b"\x02", b"\x02\x80", b"\xc0", b"\xc3\x01\x02\x03", b"\xc4\x01\x02\x03\x04", b"\x80", b"\x02\xc5\x01"]
)
def test_what_is_no_receipt_leaf_is_refused(leaf: bytes) -> None:
    with pytest.raises(RlpError):
        logs_of_leaf(leaf)


@pytest.mark.parametrize("rlp", [b"\xc0", b"\xc2\x01\x01", b"\xc3\xc0\xc0\x01", b"\xc3\x01\x01\x01", b"\x80"])
def test_what_is_no_log_is_refused(rlp: bytes) -> None:
    with pytest.raises(RlpError):
        parse_log(rlp)
