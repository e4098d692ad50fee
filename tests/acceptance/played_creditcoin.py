"""Two real nodes: one is the source chain, the other plays Creditcoin, with contracts where its precompiles stand.

What is attested there is made of the source chain's blocks by Creditcoin's client package; nothing of ours takes part in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import eth_abi

from tests.acceptance.judging import Record
from tests.oracles import signing
from tests.oracles.anvil import CHAIN_ID, EMITTER_INIT, Anvil, running_anvil
from tests.oracles.sdk import Sdk, SdkError
from tests.oracles.signing import Account, Call
from tests.oracles.usc_verifier import compiled

PROVER, CHAIN_INFO = f"0x{0xFD2:040x}", f"0x{0xFD3:040x}"


class PlayedCreditcoin:
    """A node whose newest block is final at once. Each of these methods is one more block."""

    def __init__(self, anvil: Anvil, sdk: Sdk) -> None:
        self._anvil = anvil
        self._sdk = sdk
        for address, name in ((PROVER, "UscVerifier"), (CHAIN_INFO, "ChainInfo")):
            anvil.rpc("anvil_setCode", address, compiled(name)["deployedBytecode"])
        self._methods: dict[str, str] = compiled("ChainInfo")["methodIdentifiers"]
        self._sender = anvil.rpc("eth_accounts")[0]

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._anvil.url

    def height(self) -> int:
        """Of its newest block."""
        return self._anvil.height()

    def support(self, key: int, genesis: int, *, chain_id: int = CHAIN_ID, encoding: int = 1) -> None:
        """From now on there is a source chain under this key."""
        self._do("support(uint64,uint64,uint8,uint64)", key, chain_id, encoding, genesis)

    def attest(self, key: int, digests: Mapping[int, bytes]) -> None:
        """These heights, above all others, have these digests."""
        heights = sorted(digests)
        self._do("attest(uint64,uint64[],bytes32[])", key, heights, [digests[height] for height in heights])

    def checkpoint(self, key: int, height: int) -> None:
        """The attestation there is a checkpoint, and those below are gone."""
        self._do("checkpoint(uint64,uint64)", key, height)

    def revert(self, key: int, height: int) -> None:
        """Nothing above is attested any more."""
        self._do("revertTo(uint64,uint64)", key, height)

    def _do(self, signature: str, *values: object) -> None:
        types = signature.partition("(")[2][:-1].split(",")
        data = "0x" + self._methods[signature] + eth_abi.encode(types, values).hex()
        call = {"from": self._sender, "to": CHAIN_INFO, "data": data, "gas": hex(25_000_000)}
        tx_hash = self._anvil.rpc("eth_sendTransaction", call)
        self._anvil.mine()
        assert self._anvil.rpc("eth_getTransactionReceipt", tx_hash)["status"] == "0x1", signature

    def tells(self, call: str, key: int, **more: object) -> Any:
        """What the client package's `PrecompileChainInfoProvider` says."""
        return self._sdk.call(call, creditcoin=self.url, chainKey=key, **more)

    def accepts(self, body: Mapping[str, Any]) -> bool:
        """Whether the block prover takes a body, handed over by the client package's `PrecompileBlockProver`."""
        try:
            if "merkleProofs" not in body:
                return bool(self._sdk.call("verifySingle", creditcoin=self.url, body=body))
            items = [(int(height), item) for height, of in body["merkleProofs"].items() for item in of.values()]
            return bool(
                self._sdk.call(
                    "verifyBatch",
                    creditcoin=self.url,
                    chainKey=body["chainKey"],
                    heights=[height for height, _ in items],
                    transactions=[item["txBytes"] for _, item in items],
                    merkleProofs=[item["merkleProof"] for _, item in items],
                    continuityProof=body["continuityProof"],
                )
            )
        except SdkError:
            return False


@dataclass
class Source:
    """The source chain: what its blocks are, and their digests from `genesis` on."""

    anvil: Anvil
    sdk: Sdk
    genesis: int
    records: dict[int, Record] = field(default_factory=dict)
    roots: dict[int, bytes] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)

    def read(self) -> None:
        """Whatever was mined since."""
        for height in range(max(self.records, default=self.genesis - 1) + 1, self.anvil.height() + 1):
            record = {"block": self.anvil.block(height), "receipts": self.anvil.receipts(height)}
            root = self.sdk.root_of_block(record["block"]["transactions"], record["receipts"])
            self.records[height], self.roots[height] = record, root
            self.digests[height] = self.sdk.digest(height, root, self.digests.get(height - 1))

    def mine(self, blocks: int, *, every_type_at: tuple[int, ...] = (), empty_at: tuple[int, ...] = ()) -> None:
        """So many more blocks, each with a transaction, but for those that are told to be otherwise (counted from 0)."""
        for number in range(blocks):
            if number in every_type_at:
                self.anvil.mine_every_type()  # two blocks
                continue
            if number not in empty_at:
                account = Account.numbered(1000 + self.anvil.height())
                self.anvil.fund(account)
                self.anvil.send(signing.dynamic_fee(account, Call(None, data=EMITTER_INIT), CHAIN_ID))
            self.anvil.mine()
        self.read()

    def tx_hashes(self, height: int) -> list[str]:
        """Of the block at a height, in order."""
        return [transaction["hash"] for transaction in self.records[height]["block"]["transactions"]]


@contextmanager
def played_creditcoin(sdk: Sdk) -> Iterator[PlayedCreditcoin]:
    """A node that plays Creditcoin."""
    with running_anvil("--slots-in-an-epoch", "0") as anvil:
        yield PlayedCreditcoin(anvil, sdk)


@contextmanager
def source_chain(sdk: Sdk, genesis: int) -> Iterator[Source]:
    """A source chain with nothing in it yet."""
    with running_anvil() as anvil:
        yield Source(anvil, sdk, genesis)
