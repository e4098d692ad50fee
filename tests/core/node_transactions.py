"""Transactions as nodes sent them, for tests that change one thing about them."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec

from app.core.rpc_transaction import RpcTransaction
from app.core.transactions import Transaction, decode_transaction
from tests.corpus_files import recorded

FAMILY_OF = {"0x6a": "arbitrum", "0x7e": "op-stack"}
ALL_TYPES = ["0x0", "0x1", "0x2", "0x3", "0x4", "0x6a", "0x7e"]

_decoder = msgspec.json.Decoder(RpcTransaction)
_recorded_in = {
    "0x0": ("block-only", "mainnet_24476004"),
    "0x1": ("block-only", "mainnet_22017691"),
    "0x2": ("block-only", "mainnet_24476004"),
    "0x3": ("block-only", "mainnet_24476004"),
    "0x4": ("block-only", "mainnet_24476009"),
    "0x6a": ("full", "arbitrum-one_150000000"),
    "0x7e": ("full", "unichain-sepolia_35535698"),
}


def decode(given: dict[str, Any], family: str = "ethereum", chain_id: int = 1) -> Transaction:
    """The transaction that a node's JSON object stands for."""
    return decode_transaction(_decoder.decode(json.dumps(given)), family, chain_id)


def first(type_: str) -> dict[str, Any]:
    """A recorded transaction of one type; the caller may change it."""
    entries = recorded(*_recorded_in[type_])["block"]["transactions"]
    return copy.deepcopy(next(entry for entry in entries if entry["type"] == type_))


def number(value: Any) -> int:
    """A quantity of a recording."""
    return int(value, 16) if isinstance(value, str) and value.startswith("0x") else int(value)
