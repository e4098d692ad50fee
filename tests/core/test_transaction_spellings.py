from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import rlp as oracle
from hypothesis import strategies as st

from app.core.errors import ContentInvalid
from app.core.keccak import keccak
from tests.core.node_transactions import ALL_TYPES, FAMILY_OF, decode, first, number
from tests.corpus_files import files, fixtures, load, recorded


@pytest.mark.parametrize("change", [{"v": 0}, {"yParity": "0x0"}, {"yParity": "0x0", "v": "0x0"}])
@pytest.mark.parametrize("decimal", [True, False])
def test_B14_authorizations_with_decimal_numbers_and_v(change: dict[str, Any], decimal: bool) -> None:
    authorizations = [
        {"chainId": 1001, "address": "0x" + "a7" * 20, "nonce": 5, "y": 0, "r": 2**255 + 77, "s": 12345},
        {"chainId": 0, "address": "0x" + "a8" * 20, "nonce": 2**64 - 1, "y": 0, "r": 1, "s": 2},
    ]
    fields = [1001, 7, 1, 2, 21000, b"\x11" * 20, 0, b"", [], None, 1, 3, 4]
    fields[9] = [
        [each["chainId"], bytes.fromhex(each["address"][2:]), each["nonce"], each["y"], each["r"], each["s"]]
        for each in authorizations
    ]
    envelope = b"\x04" + oracle.encode(fields)
    spelled = [
        {
            "chainId": str(each["chainId"]) if decimal else hex(each["chainId"]),
            "address": each["address"],
            "nonce": each["nonce"] if decimal else hex(each["nonce"]),
            "r": str(each["r"]) if decimal else hex(each["r"]),
            "s": str(each["s"]) if decimal else hex(each["s"]),
        }
        | change
        for each in authorizations
    ]
    transaction = {
        "type": "0x4",
        "hash": "0x" + keccak(envelope).hex(),
        "chainId": "0x3e9",
        "nonce": "0x7",
        "maxPriorityFeePerGas": "0x1",
        "maxFeePerGas": "0x2",
        "gas": "0x5208",
        "to": "0x" + "11" * 20,
        "value": "0x0",
        "input": "0x",
        "accessList": [],
        "authorizationList": spelled,
        "yParity": "0x1",
        "r": "0x3",
        "s": "0x4",
    }
    decoded = decode(transaction)
    assert decoded.envelope == envelope
    assert [each.r for each in decoded.authorization_list] == [each["r"] for each in authorizations]
    assert [each.chain_id for each in decoded.authorization_list] == [1001, 0]

    # One entry that contradicts itself: both readings are tried, and the hash decides.
    spelled[1] |= {"yParity": "0x1", "v": "0x0"}
    assert decode(transaction).envelope == envelope
    # And nothing beyond what is written.
    spelled[1] |= {"yParity": "0x1", "v": "0x1"}
    with pytest.raises(ContentInvalid) as caught:
        decode(transaction)
    assert caught.value.check == "transaction_hash"


def test_B14_authorizations_as_frontier_nodes_write_them() -> None:
    (given,) = recorded("nonstandard", "bittensor-testnet_6646068")["block"]["transactions"]
    (authorization,) = decode(given, "frontier", 945).authorization_list
    assert authorization.chain_id == 945
    assert (authorization.nonce, authorization.y_parity, authorization.r, authorization.s) == (6, 0, 0, 0)


@pytest.mark.parametrize("type_", ["0x1", "0x2", "0x3", "0x4"])
def test_B15_v_or_y_parity_or_both(type_: str) -> None:
    given = first(type_)
    expected = decode(given).envelope
    parity = given.pop("yParity")
    del given["v"]
    other = "0x0" if parity == "0x1" else "0x1"
    for spelled in (
        {"v": parity},
        {"yParity": parity},
        {"v": parity, "yParity": parity},
        {"v": other, "yParity": parity},
        {"v": parity, "yParity": other},
        {"v": parity, "yParity": None},
        {"v": other},
        {"yParity": other},
        {"v": other, "yParity": other},
        {"v": None, "yParity": None},
        {},
        {"v": "0x1b"},
        {"v": "0x1c"},
        {"v": "0x25"},
    ):
        assert decode(given | spelled).envelope == expected
    # What hashes to another hash is refused, whatever the parity.
    with pytest.raises(ContentInvalid) as caught:
        decode(given | {"v": parity, "s": "0x1"})
    assert caught.value.check == "transaction_hash"


@pytest.mark.parametrize("type_", ["0x1", "0x2", "0x3", "0x4"])
def test_B16_a_missing_access_list_is_empty_and_a_missing_chain_id_is_the_configured_one(type_: str) -> None:
    entries = [
        entry for entry in recorded("block-only", "mainnet_24476009")["block"]["transactions"] if entry["type"] == type_
    ]
    entries += [entry for entry in fixtures()["mixed3"]["block"]["transactions"] if entry["type"] == type_]
    empty = [entry for entry in entries if not entry["accessList"]]
    full = [entry for entry in [*entries, first(type_)] if entry["accessList"]]
    assert empty or full
    for given in empty:
        expected = decode(given).envelope
        for access_list in ({}, {"accessList": None}):
            bare = {key: value for key, value in given.items() if key != "accessList"} | access_list
            assert decode(bare).envelope == expected
    for given in full:
        with pytest.raises(ContentInvalid):
            decode(given | {"accessList": None})
    for given in [*empty, *full]:
        expected = decode(given).envelope
        nameless = {key: value for key, value in given.items() if key != "chainId"}
        assert (
            decode(nameless, chain_id=1).envelope
            == decode(nameless | {"chainId": None}, chain_id=1).envelope
            == expected
        )
        with pytest.raises(ContentInvalid):
            decode(nameless, chain_id=5)


def test_B16_storage_keys_in_snake_case() -> None:
    given = next(
        entry
        for path in files("block-only")
        for entry in load(path)["block"]["transactions"]
        if any(access["storageKeys"] for access in entry.get("accessList") or ())
    )
    expected = decode(given)
    assert sum(len(keys) for _, keys in expected.access_list) > 0
    renamed = [{"address": each["address"], "storage_keys": each["storageKeys"]} for each in given["accessList"]]
    assert decode(given | {"accessList": renamed}) == expected


@pytest.mark.parametrize(("v", "chain"), [(0x1B, None), (0x1C, None), (0x25, 1), (0x26, 1), (2 * 1001 + 35, 1001)])
def test_B17_the_chain_id_of_a_legacy_transaction_stands_in_v_or_nowhere(v: int, chain: int | None) -> None:
    envelope = oracle.encode([9, 20, 21000, b"\x11" * 20, 1, b"\x01", v, 5, 6])
    given: dict[str, Any] = {
        "hash": "0x" + keccak(envelope).hex(),
        "type": "0x0",
        "nonce": "0x9",
        "gasPrice": "0x14",
        "gas": "0x5208",
        "to": "0x" + "11" * 20,
        "value": "0x1",
        "input": "0x01",
        "v": hex(v),
        "r": "0x5",
        "s": "0x6",
    }
    for beside in ({}, {"chainId": None}, {"chainId": "0x1"}, {"chainId": "0x539"}, {"accessList": []}, {"type": None}):
        decoded = decode(given | beside, chain_id=5)
        assert decoded.envelope == envelope
        assert decoded.chain_id == chain
        assert decoded.y_parity == (v - 27 if chain is None else (v - 35) % 2)
    unsigned = [9, 20, 21000, b"\x11" * 20, 1, b"\x01"]
    signed = unsigned if chain is None else [*unsigned, chain, b"", b""]
    assert decode(given).signing_hash == keccak(oracle.encode(signed))
    del given["type"]
    assert decode(given).envelope == envelope


def test_B17_a_legacy_transaction_that_no_v_leads_to_its_hash_is_refused() -> None:
    given = first("0x0")
    for change in ({"s": "0x1"}, {"r": "0x1"}, {"nonce": hex(number(given["nonce"]) + 1)}):
        with pytest.raises(ContentInvalid):
            decode(given | change)


def test_B18_a_blob_transaction_is_encoded_without_its_blobs() -> None:
    given = first("0x3")
    decoded = decode(given | {"blobs": ["0x00"], "commitments": ["0x01"], "proofs": ["0x02"], "blobGasUsed": "0x20000"})
    fields = oracle.decode(decoded.envelope[1:])
    assert decoded.envelope[0] == 3
    assert len(fields) == 14
    assert int.from_bytes(fields[9], "big") == decoded.max_fee_per_blob_gas == number(given["maxFeePerBlobGas"])
    assert ["0x" + each.hex() for each in fields[10]] == given["blobVersionedHashes"]
    assert list(decoded.blob_versioned_hashes) == fields[10]


def _respelled(value: Any, style: str) -> Any:
    if not isinstance(value, str) or not value.startswith("0x"):
        return value
    digits = value[2:]
    match style:
        case "zeros":
            return "0x000" + digits
        case "upper":
            return "0X" + digits.upper()
        case "decimal":
            return str(int(digits or "0", 16))
        case _:
            return int(digits or "0", 16)


@pytest.mark.parametrize("style", ["zeros", "upper", "decimal", "number"])
@pytest.mark.parametrize("type_", ALL_TYPES)
def test_B34_quantities_in_any_spelling(type_: str, style: str) -> None:
    given = first(type_)
    family_ = FAMILY_OF.get(type_, "ethereum")
    expected = decode(given, family_)
    names = (
        "nonce gas gasPrice maxFeePerGas maxPriorityFeePerGas maxFeePerBlobGas value chainId v yParity r s type mint"
    )
    spelled = {key: _respelled(value, style) if key in names.split() else value for key, value in given.items()}
    assert decode(spelled, family_) == expected


def test_B34_zero_as_0x_and_minimal_numbers_in_the_envelope() -> None:
    envelope = oracle.encode([0x0A, 0, 21000, b"\x11" * 20, 0, b"", 27, 0xD0F1, 0xBEEF])
    given = {
        "hash": "0x" + keccak(envelope).hex(),
        "nonce": "0x0a",
        "gasPrice": "0x",
        "gas": "0x00005208",
        "to": "0x" + "11" * 20,
        "value": "0x00",
        "input": "0x",
        "v": "0x1B",
        "r": "0x" + "00" * 29 + "00d0f1",
        "s": "0xBEEF",
    }
    decoded = decode(given)
    assert decoded.envelope == envelope
    assert b"\x82\xd0\xf1" in decoded.envelope


@pytest.mark.parametrize("type_", ALL_TYPES)
def test_the_call_data_may_be_named_data(type_: str) -> None:
    given = first(type_)
    family_ = FAMILY_OF.get(type_, "ethereum")
    expected = decode(given, family_)
    given["data"] = given.pop("input")
    assert decode(given, family_) == expected
    assert decode(given | {"input": None}, family_) == expected


@pytest.mark.parametrize("to", [None, "", "0x", ...])
def test_a_creation_has_no_recipient_however_a_node_says_so(to: Any) -> None:
    given = next(entry for entry in fixtures()["mixed3"]["block"]["transactions"] if entry["to"] is None)
    given = {key: value for key, value in given.items() if key != "to"} | ({} if to is ... else {"to": to})
    assert decode(given).to == b""


def test_addresses_in_any_case() -> None:
    given = first("0x0")
    assert decode(given | {"to": "0x" + given["to"][2:].upper()}) == decode(given)


@hypothesis.given(
    nonce=st.integers(0, 2**64 - 1),
    value=st.integers(0, 2**256 - 1),
    data=st.binary(max_size=100),
    keys=st.lists(st.binary(min_size=32, max_size=32), max_size=3),
    parity=st.integers(0, 1),
    r=st.integers(1, 2**256 - 1),
)
def test_dynamic_fee_transactions_agree_with_another_encoder(
    nonce: int, value: int, data: bytes, keys: list[bytes], parity: int, r: int
) -> None:
    body = [1, nonce, 2, 3, 21000, b"\x22" * 20, value, data, [[b"\x33" * 20, keys]]]
    envelope = b"\x02" + oracle.encode([*body, parity, r, 7])
    decoded = decode(
        {
            "type": "0x2",
            "hash": "0x" + keccak(envelope).hex(),
            "chainId": "0x1",
            "nonce": hex(nonce),
            "maxPriorityFeePerGas": "0x2",
            "maxFeePerGas": "0x3",
            "gas": "0x5208",
            "to": "0x" + "22" * 20,
            "value": hex(value),
            "input": "0x" + data.hex(),
            "accessList": [{"address": "0x" + "33" * 20, "storageKeys": ["0x" + key.hex() for key in keys]}],
            "yParity": hex(parity),
            "r": hex(r),
            "s": "0x7",
        }
    )
    assert decoded.envelope == envelope
    assert decoded.signing_hash == keccak(b"\x02" + oracle.encode(body))
