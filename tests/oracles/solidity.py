"""OpenZeppelin's `TrieProof` in an EVM of this process: what a contract would say of a proof.

The runtime bytecode of our harness contract is kept in `tests/solidity/`; `npm run solidity` in `tests/node/` makes it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyrevm

HARNESS = Path(__file__).parent.parent / "solidity" / "TrieProofHarness.json"
_CONTRACT = "0x00000000000000000000000000000000000c0de5"
_CALLER = "0x00000000000000000000000000000000000ca11e"
# From Osaka on a transaction may spend 2^24 gas, which a proof with a large leaf passes: the rules in force are
# those of Cancun, whose opcodes the harness is compiled for. No price is set on gas, so the amount is free.
_RULES = "CANCUN"
_GAS = 2**62


@functools.cache
def _machine() -> tuple[Any, dict[str, bytes]]:
    compiled = json.loads(HARNESS.read_text())
    evm = pyrevm.EVM(gas_limit=2**63, spec_id=_RULES)
    evm.insert_account_info(_CONTRACT, pyrevm.AccountInfo(code=bytes.fromhex(compiled["deployedBytecode"][2:])))
    selectors = {
        signature.partition("(")[0]: bytes.fromhex(selector)
        for signature, selector in compiled["methodIdentifiers"].items()
    }
    return evm, selectors


def _word(number: int) -> bytes:
    return number.to_bytes(32, "big")


def _tail(data: bytes) -> bytes:
    return _word(len(data)) + data + bytes(-len(data) % 32)


def _array_tail(items: Sequence[bytes]) -> bytes:
    tails = [_tail(item) for item in items]
    offset = 32 * len(items)
    heads = []
    for tail in tails:
        heads.append(_word(offset))
        offset += len(tail)
    return _word(len(items)) + b"".join(heads) + b"".join(tails)


def _arguments(root: bytes, *tails: bytes) -> bytes:
    if len(root) != 32:
        raise ValueError(f"a root has 32 bytes, not {len(root)}")
    offset = 32 * (1 + len(tails))
    heads = [root]
    for tail in tails:
        heads.append(_word(offset))
        offset += len(tail)
    return b"".join(heads) + b"".join(tails)


def verify_trie_proof(root: bytes, key: bytes, value: bytes, nodes: Sequence[bytes]) -> bool:
    """Whether OpenZeppelin accepts that the trie of `root` holds `value` under `key`. A revert is a refusal."""
    evm, selectors = _machine()
    calldata = selectors["verify"] + _arguments(root, _tail(key), _tail(value), _array_tail(nodes))
    try:
        answer = evm.message_call(caller=_CALLER, to=_CONTRACT, calldata=calldata, gas=_GAS, is_static=True)
    except RuntimeError as error:
        if "Revert" not in str(error):  # out of gas or a broken harness is no verdict
            raise
        return False
    if len(answer) != 32:
        raise RuntimeError(f"the harness answered {len(answer)} bytes")
    return answer[-1] == 1
