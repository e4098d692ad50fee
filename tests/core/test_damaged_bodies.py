"""Whatever a node sends, decoding ends in values or in an error that the chain knows: nothing else ever escapes."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import ContentInvalid, ProofError
from app.core.headers import hash_header
from app.core.receipts import decode_receipt, encodings, noncanonical_encodings
from app.core.rpc_json import (
    decode_block,
    decode_block_name,
    decode_position,
    decode_receipts,
    field_names,
    withdrawals_leaves,
)
from app.core.senders import recover_sender
from app.core.transactions import UnsupportedType, decode_transaction
from tests.corpus_files import family, recorded

_RECORDS = [
    recorded("full", "arbitrum-one_150000000"),
    recorded("full", "unichain-sepolia_35535698"),
    recorded("full", "sepolia_176160"),
    recorded("nonstandard", "bittensor-testnet_6646068"),
    recorded("nonstandard", "tempo-mainnet_17708868"),
    recorded("nonstandard", "tempo-mainnet_20660166"),
]

_junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**300), 2**300),
    st.floats(allow_nan=False),
    st.text(max_size=70),
    st.binary(max_size=40).map(lambda data: "0x" + data.hex()),
    st.integers(0, 2**260).map(hex),
    st.just([]),
    st.just({}),
    st.just([None]),
    st.just([[[]]]),
    st.just({"r": 1}),
)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, child in entries for path in _paths(child, (*at, key)))]


def _replaced(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = _replaced(value[path[0]], path[1:], junk)
    return copied


def _decode_all(block: Any, receipts: Any, family_: str, chain_id: int) -> None:
    raw = json.dumps(block).encode()
    for decode in (decode_block_name, decode_position):
        with contextlib.suppress(ContentInvalid, ProofError):
            decode(raw)
    try:
        decoded = decode_block(raw)
        field_names(decoded)
        if decoded.withdrawals is not None:
            withdrawals_leaves(decoded.withdrawals)
        hash_header(decoded, family_)
    except (ContentInvalid, ProofError):
        return
    for entry in decoded.transactions:
        if not isinstance(entry, bytes):
            try:
                _ = (entry.block_hash, entry.transaction_index)
                recover_sender(decode_transaction(entry, family_, chain_id))
            except (ContentInvalid, UnsupportedType):
                pass
    try:
        read = [decode_receipt(receipt, None) for receipt in decode_receipts(json.dumps(receipts).encode())]
    except ContentInvalid:
        return
    assert list(encodings(read, family_))
    list(noncanonical_encodings(read))


@settings(max_examples=400, deadline=None)
@given(data=st.data(), record=st.sampled_from(_RECORDS), junk=_junk)
def test_one_damaged_value_in_a_block_or_its_receipts(data: st.DataObject, record: dict[str, Any], junk: Any) -> None:
    bodies = [record["block"], record["receipts"]]
    path = data.draw(st.sampled_from(_paths(bodies)[1:]))
    block, receipts = _replaced(bodies, path, junk)
    _decode_all(block, receipts, family(record), record["chainId"])


@settings(max_examples=200, deadline=None)
@given(data=st.data(), record=st.sampled_from(_RECORDS))
def test_one_damaged_byte_in_the_text(data: st.DataObject, record: dict[str, Any]) -> None:
    raw = bytearray(json.dumps(record["block"]).encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ContentInvalid, ProofError):
        hash_header(decode_block(bytes(raw)), family(record))
