from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import rlp as oracle

from app.core.errors import ContentInvalid, HeaderHashUnsupported, UnsupportedBlockFormat
from app.core.headers import Header, hash_header, unknown_fields
from app.core.keccak import keccak
from app.core.rpc_json import RpcBlock, decode_block
from tests.corpus_files import family, files, fixtures, label, load, recorded

_BASE = [
    "parentHash",
    "sha3Uncles",
    "miner",
    "stateRoot",
    "transactionsRoot",
    "receiptsRoot",
    "logsBloom",
    "difficulty",
    "number",
    "gasLimit",
    "gasUsed",
    "timestamp",
    "extraData",
    "mixHash",
    "nonce",
]
_EXTRAS = [
    "baseFeePerGas",
    "withdrawalsRoot",
    "blobGasUsed",
    "excessBlobGas",
    "parentBeaconBlockRoot",
    "requestsHash",
    "blockAccessListHash",
    "slotNumber",
]
_QUANTITIES = {
    "difficulty",
    "number",
    "gasLimit",
    "gasUsed",
    "timestamp",
    "baseFeePerGas",
    "blobGasUsed",
    "excessBlobGas",
    "slotNumber",
}


def _parsed(block: dict[str, Any]) -> RpcBlock:
    # Two recordings have no list of transactions at all.
    return decode_block(json.dumps({"transactions": [], **block}).encode())


def _item(name: str, value: Any) -> bytes | int:
    if name in _QUANTITIES:
        return value if isinstance(value, int) else int(value, 16)
    return bytes.fromhex(value[2:])


def _sealed(block: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The block with the hash of a header made of these fields, by another RLP implementation."""
    digest = keccak(oracle.encode([_item(name, block[name]) for name in names]))
    return block | {"hash": "0x" + digest.hex()}


def _plain(**changes: Any) -> dict[str, Any]:
    block = {name: value for name, value in fixtures()["mixed3"]["block"].items() if name in _BASE}
    return block | {"transactions": []} | changes


_LATER: dict[str, Any] = {
    "baseFeePerGas": "0x7",
    "withdrawalsRoot": "0x" + "a1" * 32,
    "blobGasUsed": "0x0",
    "excessBlobGas": "0x20000",
    "parentBeaconBlockRoot": "0x" + "a2" * 32,
    "requestsHash": "0x" + "a3" * 32,
    "blockAccessListHash": "0x" + "a4" * 32,
    "slotNumber": "0x1234",
}


# --- recorded blocks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", files("full", "contiguous", "block-only", "receipts-only"), ids=label)
def test_every_recorded_header_hashes_to_its_block_hash(path: Path) -> None:
    record = load(path)
    block = record["block"]
    header = hash_header(_parsed(block), family(record))
    assert "0x" + header.hash.hex() == block["hash"]
    assert keccak(header.rlp) == header.hash
    _check_values(header, block)


def _check_values(header: Header, block: dict[str, Any]) -> None:
    fields = oracle.decode(header.rlp)
    assert header.field_count == len(fields)
    for index, value in (
        (0, header.parent_hash),
        (3, header.state_root),
        (4, header.transactions_root),
        (5, header.receipts_root),
        (6, header.logs_bloom),
    ):
        assert fields[index] == value
    for index, number in ((8, header.number), (10, header.gas_used), (11, header.timestamp)):
        assert int.from_bytes(fields[index], "big") == number
    if header.withdrawals_root is None:
        assert block.get("withdrawalsRoot") is None
    else:
        assert header.withdrawals_root in fields


@pytest.mark.parametrize("path", files("nonstandard"), ids=label)
def test_every_odd_header_is_matched_or_refused_for_good(path: Path) -> None:
    record = load(path)
    block = _parsed(record["block"])
    if record["verification"]["header"] is True:
        assert "0x" + hash_header(block, family(record)).hash.hex() == record["block"]["hash"]
    else:
        with pytest.raises(HeaderHashUnsupported):
            hash_header(block, family(record))
        with pytest.raises(ContentInvalid):
            hash_header(block, "ethereum")


@pytest.mark.parametrize("path", files("negative"), ids=label)
def test_a_changed_header_is_refused(path: Path) -> None:
    record = load(path)
    block = {**record["block"], "transactions": [], "withdrawals": None}
    if record["ourChecks"]["header"]:
        hash_header(_parsed(block), family(record))
        return
    with pytest.raises(ContentInvalid) as caught:
        hash_header(_parsed(block), family(record))
    assert caught.value.check == "header_hash"


def test_tempo_wraps_an_ethereum_header() -> None:
    for name, width in (("tempo-mainnet_17708868", 4), ("tempo-mainnet_20660166", 5)):
        record = recorded("nonstandard", name)
        header = hash_header(_parsed(record["block"]), "tempo")
        outer = oracle.decode(header.rlp)
        assert len(outer) == width
        assert len(outer[3]) == header.field_count == 21
        assert outer[3][4] == header.transactions_root


# --- every form -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(len(_EXTRAS) + 1))
def test_headers_of_fifteen_to_twenty_three_fields(count: int) -> None:
    names = [*_BASE, *_EXTRAS[:count]]
    block = _sealed(_plain(**{name: _LATER[name] for name in _EXTRAS[:count]}), names)
    header = hash_header(_parsed(block), "ethereum")
    assert header.field_count == 15 + count
    assert (header.withdrawals_root is not None) is (count >= 2)


@pytest.mark.parametrize("count", range(len(_EXTRAS) + 1))
def test_fields_that_a_node_shows_beyond_those_that_are_hashed(count: int) -> None:
    block = _sealed(_plain(**_LATER), [*_BASE, *_EXTRAS[:count]])
    header = hash_header(_parsed(block), "ethereum")
    assert header.field_count == 15 + count
    assert (header.withdrawals_root is not None) is (count >= 2)


def test_null_is_absent_and_zero_is_present() -> None:
    absent: dict[str, Any] = dict.fromkeys(_EXTRAS)
    assert hash_header(_parsed(_sealed(_plain(**absent), _BASE)), "ethereum").field_count == 15
    zero = _sealed(_plain(**(absent | {"baseFeePerGas": "0x0"})), [*_BASE, "baseFeePerGas"])
    assert hash_header(_parsed(zero), "bsc").field_count == 16


def test_a_fork_without_withdrawals_skips_their_field() -> None:
    names = [*_BASE, "baseFeePerGas", "blobGasUsed", "excessBlobGas"]
    block = _sealed(_plain(**{name: _LATER[name] for name in names[15:]}), names)
    assert hash_header(_parsed(block), "ethereum").field_count == 18


def test_what_nodes_show_beside_the_header_is_not_hashed() -> None:
    beside = {
        "size": "0x1",
        "totalDifficulty": "0x2",
        "l1BlockNumber": "0x3",
        "sendCount": "0x4",
        "sendRoot": "0x" + "00" * 32,
        "uncles": [],
        "author": "0x" + "00" * 20,
    }
    block = _sealed(_plain(**beside), _BASE)
    assert hash_header(_parsed(block), "arbitrum").field_count == 15
    assert unknown_fields(_parsed(block)) == []


def test_numbers_in_any_spelling_and_addresses_in_any_case() -> None:
    block = _sealed(_plain(miner="0x" + "ab" * 20), _BASE)
    spelled = block | {
        "miner": "0x" + "AB" * 20,
        "number": int(block["number"], 16),
        "gasLimit": str(int(block["gasLimit"], 16)),
        "gasUsed": "0x000" + block["gasUsed"][2:].upper(),
        "difficulty": "0x",
    }
    assert hash_header(_parsed(spelled), "ethereum").rlp == hash_header(_parsed(block), "ethereum").rlp


def test_a_node_may_name_the_miner_author() -> None:
    block = _sealed(_plain(), _BASE)
    block["author"] = block.pop("miner")
    assert hash_header(_parsed(block), "ethereum").field_count == 15


_SEAL = "0x" + "5e" * 65
_AURA: list[dict[str, Any]] = [
    {"auraStep": "0x13f4a2b1", "auraSeal": _SEAL},
    {"step": 0x13F4A2B1, "signature": _SEAL},
    {"sealFields": ["0x8413f4a2b1", "0xb841" + _SEAL[2:]]},
]


@pytest.mark.parametrize("seal", _AURA)
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("base_fee", ["0x7", None])
def test_authority_round_headers_in_the_spelling_of_three_clients(
    seal: dict[str, Any], zeros: bool, base_fee: str | None
) -> None:
    block = _plain(baseFeePerGas=base_fee)
    items: list[Any] = [_item(name, block[name]) for name in _BASE[:13]]
    items += [0x13F4A2B1, bytes.fromhex(_SEAL[2:])]
    if base_fee is not None:
        items.append(int(base_fee, 16))
    if not zeros:
        del block["mixHash"], block["nonce"]
    block |= seal | {"hash": "0x" + keccak(oracle.encode(items)).hex()}
    assert hash_header(_parsed(block), "gnosis").field_count == len(items)


@pytest.mark.parametrize(
    "foreign",
    [
        {"withdrawalsRoot": "0x"},
        {"requestsHash": "none"},
        {"slotNumber": "soon"},
        {"signature": {"r": "0x1"}},
        {"signature": {"r": "0x1"}, "step": []},
        {"auraSeal": "0x12"},
        {"sealFields": ["0x8413f4", "0x80"]},
        {"sealFields": [{}]},
        {"mainBlockGeneralGasLimit": "0x1"},
        {"mainBlockGeneralGasLimit": [], "sharedGasLimit": "x", "timestampMillisPart": None},
        {"consensusContext": 7},
    ],
)
def test_a_name_that_a_chain_uses_for_something_else_does_not_hide_its_header(foreign: dict[str, Any]) -> None:
    block = _sealed(_plain(**foreign), _BASE)
    assert hash_header(_parsed(block), "ethereum").field_count == 15


# --- refusals -------------------------------------------------------------------------------------------------------


def test_unknown_header_fields_are_named_and_counted() -> None:
    block = _plain(newRoot="0x" + "00" * 32, otherNew="0x0", forgotten=None, hash="0x" + "77" * 32)
    with pytest.raises(UnsupportedBlockFormat) as caught:
        hash_header(_parsed(block), "ethereum")
    assert caught.value.extra == {"unknown_fields": ["newRoot", "otherNew"], "unknown_field_count": 2}
    assert "newRoot, otherNew" in caught.value.message


def test_unknown_fields_of_a_header_that_hashes_are_no_matter() -> None:
    block = _sealed(_plain(newRoot="0x" + "00" * 32), _BASE)
    assert hash_header(_parsed(block), "ethereum").field_count == 15


def test_what_a_node_names_its_fields_is_not_repeated_blindly() -> None:
    names = {"<script>": 1, "x" * 500: 1, "a b": 1, **{f"field{index}": 1 for index in range(50)}}
    with pytest.raises(UnsupportedBlockFormat) as caught:
        hash_header(_parsed(_plain(hash="0x" + "77" * 32, **names)), "ethereum")
    assert "<script>" not in caught.value.message
    assert len(caught.value.message) < 800
    assert caught.value.extra["unknown_field_count"] == 53


_NOTHING_IN_PLAIN = ("parentHash", "sha3Uncles", "miner", "difficulty", "mixHash", "nonce")
"""Fields that a header may leave unsaid, if what they then are is what it was hashed with."""


@pytest.mark.parametrize("name", [*_BASE, "hash"])
def test_a_header_without_one_of_its_fields(name: str) -> None:
    block = _sealed(_plain(), _BASE)
    for absent in ({key: value for key, value in block.items() if key != name}, block | {name: None}):
        if name in _NOTHING_IN_PLAIN:
            assert hash_header(_parsed(absent), "ethereum") == hash_header(_parsed(block), "ethereum")
            continue
        with pytest.raises(ContentInvalid) as caught:
            hash_header(_parsed(absent), "ethereum")
        assert caught.value.check == "header_hash"
        with pytest.raises(HeaderHashUnsupported):
            hash_header(_parsed(absent), "frontier")


_NOTHINGS: dict[str, list[Any]] = {
    "parentHash": ["0x" + "00" * 32],
    "sha3Uncles": ["0x" + "00" * 32],
    "miner": ["0x" + "00" * 20, "0x" + "5e" * 20],  # and whoever signed: a header of a signed chain has zero there
    "logsBloom": ["0x" + "00" * 256, "0x0000"],
    "difficulty": ["0x0", 0, "0"],
    "extraData": [],
    "mixHash": ["0x" + "00" * 32, "0x0", 0, "0"],
    "nonce": ["0x" + "00" * 8, "0x0", 0, "0", "0x0000"],
}


@pytest.mark.parametrize("names", [*([name] for name in _NOTHINGS), list(_NOTHINGS)], ids="-".join)
def test_null_absent_0x_and_zero_are_four_spellings_of_nothing(names: list[str]) -> None:
    zero: dict[str, Any] = {name: values[0] for name, values in _NOTHINGS.items() if values}
    zero["sha3Uncles"] = "0x" + keccak(b"\xc0").hex()
    block = _sealed(_plain(**zero | {"extraData": "0x"}), _BASE)
    expected = hash_header(_parsed(block), "ethereum")
    absent = {key: value for key, value in block.items() if key not in names}
    spelled = [absent, *(block | dict.fromkeys(names, nothing) for nothing in (None, "0x", "", "0x0"))]
    spelled += [block | {name: value} for name in names for value in _NOTHINGS[name]]
    for told in spelled:
        assert hash_header(_parsed(told), "ethereum") == expected
    with pytest.raises(ContentInvalid):
        hash_header(_parsed(absent | {"hash": "0x" + "77" * 32}), "ethereum")


@pytest.mark.parametrize("short", ["0x1234", "0x001234", 0x1234, str(0x1234), "0x0000000000001234"])
def test_a_seal_that_is_written_as_a_number_is_padded(short: Any) -> None:
    block = _sealed(_plain(nonce="0x0000000000001234", mixHash="0x" + "00" * 30 + "1234"), _BASE)
    expected = hash_header(_parsed(block), "ethereum")
    assert hash_header(_parsed(block | {"nonce": short}), "ethereum") == expected
    if short != "0x0000000000001234":
        assert hash_header(_parsed(block | {"nonce": short, "mixHash": short}), "ethereum") == expected
    for wrong in ("0x1235", "0x", None, "0x" + "12" * 9, {"deep": 1}):
        with pytest.raises(ContentInvalid):
            hash_header(_parsed(block | {"nonce": wrong}), "ethereum")


@pytest.mark.parametrize(
    "shown", [{"miner": "0x" + "5e" * 20}, {"miner": "0x" + "5e" * 20, "author": "0x" + "5f" * 20}]
)
@pytest.mark.parametrize("hashed", ["0x" + "00" * 20, "0x" + "5f" * 20])
def test_the_miner_is_who_the_hash_says(shown: dict[str, str], hashed: str) -> None:
    block = _sealed(_plain(miner=hashed), _BASE)
    if hashed in shown.values() or hashed == "0x" + "00" * 20:
        assert hash_header(_parsed(block | shown), "ethereum") == hash_header(_parsed(block), "ethereum")
    else:
        with pytest.raises(ContentInvalid):
            hash_header(_parsed(block | shown), "ethereum")


@pytest.mark.parametrize("nothing", [None, "0x", "", ...])
def test_a_base_fee_of_zero_may_be_left_out_where_later_fields_are_told(nothing: Any) -> None:
    names = [*_BASE, *_EXTRAS[:6]]
    block = _sealed(_plain(**{extra: _LATER[extra] for extra in _EXTRAS[:6]} | {"baseFeePerGas": "0x0"}), names)
    told = {key: value for key, value in block.items() if key != "baseFeePerGas"}
    if nothing is not ...:
        told["baseFeePerGas"] = nothing
    assert hash_header(_parsed(told), "ethereum") == hash_header(_parsed(block), "ethereum")


@pytest.mark.parametrize("name", [*_BASE, *_EXTRAS[:6]])
def test_any_changed_field_is_noticed(name: str) -> None:
    names = [*_BASE, *_EXTRAS[:6]]
    given = {extra: _LATER[extra] for extra in _EXTRAS[:6]} | {"miner": "0x" + "5e" * 20}
    block = _sealed(_plain(**given), names)
    value = block[name]
    changed = block | {name: value[:-1] + ("1" if value[-1] != "1" else "2") if name != "extraData" else value + "00"}
    with pytest.raises(ContentInvalid):
        hash_header(_parsed(changed), "ethereum")


@pytest.mark.parametrize(
    "change",
    [
        {"parentHash": "0x12"},
        {"parentHash": "0x" + "zz" * 32},
        {"miner": "0x" + "11" * 32},
        {"logsBloom": "0x"},
        {"logsBloom": "0x" + "00" * 255},
        {"nonce": "0x0"},
        {"extraData": "0x1"},
        {"extraData": "0xzz"},
        {"number": "0xzz"},
        {"number": hex(2**64)},
        {"number": "-1"},
        {"gasUsed": hex(2**300)},
        {"timestamp": 2**64},
        {"difficulty": hex(2**256)},
        {"baseFeePerGas": "0x" + "f" * 100_000},
        {"withdrawalsRoot": "0x"},
        {"hash": "0x12"},
        {"mainBlockGeneralGasLimit": {"deep": []}},
        {"auraSeal": "0x12"},
        {"auraSeal": "0x" + "5e" * 65, "auraStep": [1]},
        {"sealFields": ["0x8413f4", "0x80"]},
        {"sealFields": [{}, 1]},
    ],
)
def test_a_field_of_the_wrong_form_is_the_nodes_fault(change: dict[str, Any]) -> None:
    block = _sealed(_plain(), _BASE) | change
    if "hash" not in change:
        block["hash"] = "0x" + "77" * 32
    with pytest.raises(ContentInvalid):
        hash_header(_parsed(block), "ethereum")


@pytest.mark.parametrize("name", ["number", "gasUsed", "timestamp"])
def test_a_number_that_no_client_can_keep_is_refused_even_where_it_hashes(name: str) -> None:
    hash_header(_parsed(_sealed(_plain(**{name: hex(2**64 - 1)}), _BASE)), "ethereum")
    with pytest.raises(ContentInvalid):
        hash_header(_parsed(_sealed(_plain(**{name: hex(2**64)}), _BASE)), "ethereum")


def test_B67_a_timestamp_of_64_bits_is_exact() -> None:
    block = _sealed(_plain(timestamp=2**64 - 1, difficulty="0x" + "f" * 64), _BASE)
    assert hash_header(_parsed(block), "ethereum").timestamp == 2**64 - 1
