"""A Creditcoin node in this process: the ChainInfo precompile's answers as of each block, over a transport that can be held or
made to fail. It answers as Creditcoin's precompile does, down to what it says of the newest checkpoint itself."""

from __future__ import annotations

import copy
import json
from collections import Counter
from dataclasses import dataclass, field

import httpx2
import sha3
from eth_abi.abi import encode

from tests.fakes import HoldPoints

URL = "http://creditcoin.example:9944/a-secret-path"
KEY = 2
CHAIN_ID = 11155111

_SELECTORS = {
    bytes(sha3.keccak_256(signature.encode()).digest())[:4]: signature.partition("(")[0]
    for signature in (
        "get_chain_by_key(uint64)",
        "get_attestation_genesis_height(uint64)",
        "get_latest_attestation_height_and_hash(uint64)",
        "get_latest_checkpoint_height_and_hash(uint64)",
        "get_attestation_bounds(uint64,uint64)",
        "get_attestation_height_for_digest(uint64,bytes32)",
        "get_checkpoint_for_height(uint64,uint64)",
    )
}

Ended = tuple[int, bytes, bool]
"""Height, digest, whether an attestation."""


@dataclass
class Attested:
    """What Creditcoin holds of one source chain."""

    genesis: int
    chain_id: int = CHAIN_ID
    encoding: int = 1
    attestations: dict[int, bytes] = field(default_factory=dict)
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    pruning_to: int | None = None
    """What is above was reverted, and is not gone yet: it is none of the newest, and is named to whoever asks for it."""

    def attest(self, height: int, digest: bytes) -> None:
        self.attestations[height] = digest

    def checkpoint(self, height: int) -> None:
        """The attestation there becomes a checkpoint, and those below it are gone."""
        self.checkpoints[height] = self.attestations[height]
        self.attestations = {at: digest for at, digest in self.attestations.items() if at > height}

    def revert(self, height: int) -> None:
        self.attestations = {at: digest for at, digest in self.attestations.items() if at <= height}
        self.checkpoints = {at: digest for at, digest in self.checkpoints.items() if at <= height}

    @property
    def newest(self) -> int | None:
        return max([*self.attestations, *self.checkpoints], default=None)

    def latest(self) -> Ended | None:
        height = max(self._standing(self.attestations), default=None)
        if height is not None:
            return height, self.attestations[height], True
        return self.latest_checkpoint()

    def latest_checkpoint(self) -> Ended | None:
        height = max(self._standing(self.checkpoints), default=None)
        return None if height is None else (height, self.checkpoints[height], False)

    def _standing(self, anchors: dict[int, bytes]) -> list[int]:
        return [height for height in anchors if self.pruning_to is None or height <= self.pruning_to]

    def below(self, height: int) -> Ended | None:
        last = max(self.checkpoints, default=-1)
        if last >= height:
            return max(((at, digest, False) for at, digest in self.checkpoints.items() if at < height), default=None)
        attested = [(at, digest, True) for at, digest in self.attestations.items() if at < height]
        return max(attested) if attested else self.latest_checkpoint()

    def above(self, height: int) -> Ended | None:
        if max(self.checkpoints, default=-1) > height:
            return min((at, digest, False) for at, digest in self.checkpoints.items() if at >= height)
        return min(((at, digest, True) for at, digest in self.attestations.items() if at >= height), default=None)


class FakeCreditcoin(HoldPoints, httpx2.AsyncBaseTransport):
    """Points: the names of the precompile's functions, and `finalized`. What is built is as of the next block; `finalize` makes
    it the state that is read."""

    def __init__(self, genesis: int = 0) -> None:
        super().__init__()
        self.next = Attested(genesis)
        self.blocks: list[Attested | None] = []
        self.listed = True
        self.asked: Counter[str] = Counter()
        self.finalized: int | None = None
        self.answer: httpx2.Response | Exception | None = None
        """Instead of what is right, while it is set."""

    def finalize(self, blocks: int = 1) -> int:
        """So many more blocks, the last with what was built since."""
        for _ in range(blocks):
            self.blocks.append(copy.deepcopy(self.next) if self.listed else None)
        self.finalized = len(self.blocks) - 1
        return self.finalized

    def cost(self) -> dict[str, int]:
        """What was asked since the last time."""
        asked, self.asked = self.asked, Counter()
        return dict(asked)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert str(request.url) == URL
        call = json.loads(await request.aread())
        name, arguments = "finalized", b""
        if call["method"] == "eth_call":
            to, block = call["params"]
            data = bytes.fromhex(to["data"][2:])
            assert to["to"] == "0x0000000000000000000000000000000000000fd3"
            name, arguments = _SELECTORS[data[:4]], data[4:]
        self.asked[name] += 1
        await self.at(name)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return streamed(self.answer)
        if name == "finalized":
            assert call == {**call, "method": "eth_getBlockByNumber", "params": ["finalized", False]}
            result: object = None if self.finalized is None else {"number": hex(self.finalized)}
        else:
            result = "0x" + self._said(name, int(block, 16), arguments).hex()
        return streamed(httpx2.Response(200, json={"jsonrpc": "2.0", "id": call["id"], "result": result}))

    def _said(self, name: str, block: int, arguments: bytes) -> bytes:
        state = self.blocks[block]
        key = int.from_bytes(arguments[:32], "big")
        assert key == KEY
        second = arguments[32:]
        if name == "get_chain_by_key":
            info = (0, 0, b"", 0) if state is None else (key, state.chain_id, b"Sepolia", state.encoding)
            return encode(["((uint64,uint64,bytes,uint8),bool)"], [(info, state is not None)])
        assert state is not None, "reverts: chain not supported"
        if name == "get_attestation_genesis_height":
            return encode(["uint64"], [state.genesis])
        if name == "get_latest_attestation_height_and_hash":
            return _newest(state.latest())
        if name == "get_latest_checkpoint_height_and_hash":
            return _newest(state.latest_checkpoint())
        if name == "get_attestation_bounds":
            lower, upper = (
                end or (0, bytes(32), False)
                for end in (state.below(int.from_bytes(second, "big")), state.above(int.from_bytes(second, "big")))
            )
            attested = any(lower[1]) and any(upper[1])
            types = ["uint64", "bytes32", "bool"]
            return encode([*types, *types, "bool"], [*lower, *upper, attested])
        if name == "get_attestation_height_for_digest":
            heights = [height for height, digest in state.attestations.items() if digest == second]
            return encode(["uint64", "bool"], [heights[0] if heights else 0, bool(heights)])
        assert name == "get_checkpoint_for_height"
        digest = state.checkpoints.get(int.from_bytes(second, "big"))
        return encode(["bytes32", "bool"], [digest or bytes(32), digest is not None])


def streamed(response: httpx2.Response) -> httpx2.Response:
    """The same, as it comes from a connection."""
    stream = httpx2.ByteStream(response.content)
    return httpx2.Response(response.status_code, headers=response.headers, stream=stream)


def _newest(end: Ended | None) -> bytes:
    return encode(["uint64", "bytes32", "bool", "bool"], [*(end or (0, bytes(32), False)), end is not None])
