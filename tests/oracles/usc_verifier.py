"""Our Solidity verifier of usc proofs in an EVM of this process, where the block prover precompile would stand.

Bodies go in as a server sends them; their fields are handed over as an SDK hands them over. The runtime bytecode is kept in
`tests/solidity/`; `npm run solidity` in `tests/node/` makes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import eth_abi
import pyrevm

_COMPILED = Path(__file__).parent.parent / "solidity"
_VERIFIER, _STORE = f"0x{0xFD2:040x}", f"0x{0xFD3:040x}"
_CALLER = "0x00000000000000000000000000000000000ca11e"
_GAS = 2**62

_MERKLE, _CONTINUITY = "(bytes32,(bytes32,bool)[])", "(bytes32,bytes32[])"
_SINGLE = ["uint64", "uint64", "bytes", _MERKLE, _CONTINUITY]
_BATCH = ["uint64", "uint64[]", "bytes[]", f"{_MERKLE}[]", _CONTINUITY]


_REVERT = re.compile(r"Revert \{ gas_used: \d+, output: 0x([0-9a-f]*) \}")


class Reverted(Exception):
    """The contract refused; the text is its reason."""


def compiled(name: str) -> dict[str, Any]:
    """What the compiler made of one contract."""
    loaded: dict[str, Any] = json.loads((_COMPILED / f"{name}.json").read_text())
    return loaded


class UscVerifier:
    """The verifier, and a store of anchors beside it."""

    def __init__(self) -> None:
        self._evm = pyrevm.EVM(gas_limit=2**63, spec_id="CANCUN")
        self._selectors: dict[str, bytes] = {}
        for address, name in ((_VERIFIER, "UscVerifier"), (_STORE, "AnchorStore")):
            contract = compiled(name)
            code = bytes.fromhex(contract["deployedBytecode"][2:])
            self._evm.insert_account_info(address, pyrevm.AccountInfo(code=code))
            self._selectors |= {
                signature: bytes.fromhex(selector) for signature, selector in contract["methodIdentifiers"].items()
            }
        self.gas_used = 0
        """By the last call."""

    def set_attestation(self, chain_key: int, height: int, digest: bytes, *, exists: bool = True) -> None:
        """The chain attests the height with this digest from now on, or no longer."""
        self._set("setAttestation(uint64,uint64,bytes32,bool)", chain_key, height, digest, exists)

    def set_checkpoint(self, chain_key: int, height: int, digest: bytes, *, exists: bool = True) -> None:
        """There is a checkpoint at the height from now on, or no longer."""
        self._set("setCheckpoint(uint64,uint64,bytes32,bool)", chain_key, height, digest, exists)

    def verify(self, body: Mapping[str, Any], *, emit: bool = False) -> list[tuple[int, int, int]]:
        """Hands over the body of a single proof. Raises `Reverted`. The events, each as (chain key, height, index)."""
        values = (
            body["chainKey"],
            body["headerNumber"],
            _bytes(body["txBytes"]),
            _merkle(body["merkleProof"]),
            _continuity(body["continuityProof"]),
        )
        return self._verify("verifyAndEmit" if emit else "verify", _SINGLE, values)

    def verify_batch(self, body: Mapping[str, Any], *, emit: bool = False) -> list[tuple[int, int, int]]:
        """Hands over every transaction of a batch body in one call."""
        items = [(int(height), item) for height, of in body["merkleProofs"].items() for item in of.values()]
        return self.verify_many(
            body["chainKey"],
            [height for height, _ in items],
            [_bytes(item["txBytes"]) for _, item in items],
            [_merkle(item["merkleProof"]) for _, item in items],
            _continuity(body["continuityProof"]),
            emit=emit,
        )

    def accepts(self, body: Mapping[str, Any]) -> bool:
        """Whether the body of a single proof or of a batch is accepted."""
        try:
            (self.verify_batch if "merkleProofs" in body else self.verify)(body)
        except Reverted:
            return False
        return True

    def verify_many(
        self,
        chain_key: int,
        heights: Sequence[int],
        transactions: Sequence[bytes],
        merkle_proofs: Sequence[object],
        continuity: object,
        *,
        emit: bool = False,
    ) -> list[tuple[int, int, int]]:
        """One call with these arguments, whether they belong together or not."""
        values = (chain_key, heights, transactions, merkle_proofs, continuity)
        return self._verify("verifyAndEmit" if emit else "verify", _BATCH, values)

    def index_of(self, merkle_proof: Mapping[str, Any]) -> int:
        """`calculateTxIndex`."""
        answer = self._call(_VERIFIER, f"calculateTxIndex({_MERKLE})", [_MERKLE], (_merkle(merkle_proof),))
        return int.from_bytes(answer, "big")

    def _verify(self, name: str, types: Sequence[str], values: Sequence[object]) -> list[tuple[int, int, int]]:
        is_static = name == "verify"
        answer = self._call(_VERIFIER, f"{name}({','.join(types)})", types, values, is_static=is_static)
        assert answer == (1).to_bytes(32, "big"), "whatever does not revert is true"
        return [_event(log.topics, log.data[1]) for log in self._evm.result.logs]

    def _set(self, signature: str, *values: object) -> None:
        types = signature.partition("(")[2][:-1].split(",")
        self._call(_STORE, signature, types, values, is_static=False)

    def _call(
        self, address: str, signature: str, types: Sequence[str], values: Sequence[object], *, is_static: bool = True
    ) -> bytes:
        calldata = self._selectors[signature] + eth_abi.encode(types, values)
        try:
            answer = self._evm.message_call(
                caller=_CALLER, to=address, calldata=calldata, gas=_GAS, is_static=is_static
            )
        except RuntimeError as error:
            output = _REVERT.match(str(error))
            if output is None:  # out of gas or a broken contract is no verdict
                raise
            raise Reverted(_reason(bytes.fromhex(output[1]))) from None
        self.gas_used = self._evm.result.gas_used
        return bytes(answer)


def _reason(output: bytes) -> str:
    if output[:4] != bytes.fromhex("08c379a0"):
        return output.hex()
    (text,) = eth_abi.decode(["string"], output[4:])
    return str(text)


def _event(topics: Sequence[str], data: bytes) -> tuple[int, int, int]:
    name, chain_key, height = topics
    assert name == "0x8a8df984523447f746ce8bccdb04c87025c708eb62a2d070bdffb8945c8f391e"
    return int(chain_key, 16), int(height, 16), int.from_bytes(data, "big")


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _merkle(proof: Mapping[str, Any]) -> tuple[bytes, list[tuple[bytes, bool]]]:
    return _bytes(proof["root"]), [(_bytes(each["hash"]), each["isLeft"]) for each in proof["siblings"]]


def _continuity(proof: Mapping[str, Any]) -> tuple[bytes, list[bytes]]:
    return _bytes(proof["lowerEndpointDigest"]), [_bytes(root) for root in proof["roots"]]
