"""Recorded blocks of several chains and forks: their own headers, under their own hashes, and their own receipts."""

from __future__ import annotations

from typing import Any

import pytest
import rlp

from app.checker import Refused, check_native
from tests.checker.bodies import as_bytes, keccak, to_hex
from tests.corpus_files import recorded
from tests.oracles import trie_library

BYTES = ("parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot", "logsBloom")
NUMBERS = ("difficulty", "number", "gasLimit", "gasUsed", "timestamp")
SEAL = ("extraData", "mixHash", "nonce")
LATER = ("baseFeePerGas", "withdrawalsRoot", "blobGasUsed", "excessBlobGas", "parentBeaconBlockRoot", "requestsHash")
TEMPO = ("mainBlockGeneralGasLimit", "sharedGasLimit", "timestampMillisPart")

BLOCKS = [
    ("full", "mainnet_1000002"),
    ("full", "mainnet_15040708"),
    ("full", "mainnet_17034869"),
    ("full", "mainnet_19426587"),
    ("full", "mainnet_22869878"),
    ("full", "arbitrum-one_150000000"),
    ("full", "unichain-sepolia_35535698"),
    ("full", "sepolia_176160"),
    ("nonstandard", "tempo-mainnet_17708868"),
    ("nonstandard", "tempoModerato_6000178"),
]


def data(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def number(value: str | int) -> int:
    return value if isinstance(value, int) else int(value, 16)


def header_of(block: dict[str, Any]) -> bytes:
    fields: list[Any] = [data(block[name]) for name in BYTES]
    fields += [number(block[name]) for name in NUMBERS]
    fields += [data(block[name]) for name in SEAL]
    for name in LATER:
        if block.get(name) is not None:
            fields.append(data(block[name]) if name.endswith(("Root", "Hash")) else number(block[name]))
    if TEMPO[0] in block:
        fields = [*(number(block[name]) for name in TEMPO), fields]
    return bytes(rlp.encode(fields))


def leaf_of(receipt: dict[str, Any]) -> bytes:
    first = data(receipt["root"]) if receipt.get("root") else number(receipt["status"])
    logs = [
        [data(log["address"]), [data(topic) for topic in log["topics"]], data(log["data"])] for log in receipt["logs"]
    ]
    fields = [first, number(receipt["cumulativeGasUsed"]), data(receipt["logsBloom"]), logs]
    if receipt.get("depositReceiptVersion"):
        fields += [number(receipt["depositNonce"]), number(receipt["depositReceiptVersion"])]
    kind = number(receipt.get("type") or 0)
    return (bytes([kind]) if kind else b"") + bytes(rlp.encode(fields))


@pytest.mark.parametrize(("set_name", "name"), BLOCKS, ids=[name for _, name in BLOCKS])
def test_recorded_receipts_and_logs_are_accepted(set_name: str, name: str) -> None:
    record = recorded(set_name, name)
    block, receipts = (
        record["block"],
        sorted(record["receipts"], key=lambda receipt: number(receipt["transactionIndex"])),
    )
    header, leaves = header_of(block), [leaf_of(receipt) for receipt in receipts]
    assert to_hex(keccak(header)) == block["hash"]
    proofs = trie_library.proofs_of(leaves)
    seen = 0
    for index, receipt in enumerate(receipts):
        body: dict[str, Any] = {
            "format": "copath/1",
            "kind": "receipt",
            "chainKey": "1",
            "chainId": str(record["chainId"]),
            "blockNumber": number(block["number"]),
            "blockHash": block["hash"],
            "headerRlp": to_hex(header),
            "finality": {"level": "latest", "by": "rpc-tag", "sources": 1},
            "transactionHash": receipt["transactionHash"],
            "transactionIndex": index,
            "root": block["receiptsRoot"],
            "key": to_hex(rlp.encode(index)),
            "value": to_hex(leaves[index]),
            "nodes": [to_hex(node) for node in proofs[index]],
        }
        check_native(as_bytes(body), {"kind": "receipt", "transactionIndex": index})
        for place, log in enumerate(receipt["logs"]):
            encoded = rlp.encode([data(log["address"]), [data(topic) for topic in log["topics"]], data(log["data"])])
            shown = {field: log[field].lower() for field in ("address", "data")} | {"topics": log["topics"]}
            places = {"indexInReceipt": place, "indexInBlock": seen + place}
            check_native(as_bytes(body | {"kind": "log", "log": shown | places | {"rlp": to_hex(encoded)}}), {})
        seen += len(receipt["logs"])
        with pytest.raises(Refused) as caught:
            check_native(as_bytes(body | {"blockNumber": number(block["number"]) + 1}), {})
        assert caught.value.field == "blockNumber"
