"""A checked block, packed: every proof that is ever served is cut from one of these.

Whoever builds one (`block_building`) believes nothing in what a node sent: the header must hash to the block's hash, every
transaction to its own, and a trie is called proven only when its root, rebuilt from all leaves, is the header's. What a block
cannot prove is written down as a verdict per trie, and refused later with the code that says so; nothing is guessed.

Layout: a few `bytes` objects with offsets. A block crosses the process boundary, and a proof is cut from it, without a look
at JSON.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec

from app.core import merkle, trie
from app.core.errors import (
    EmptyBlockTxProof,
    HistoryUnavailable,
    InconsistentSource,
    Internal,
    LogIndexOutOfBounds,
    NotCommittedByHeader,
    ProofError,
    TxIndexOutOfBounds,
    UnsupportedBlockFormat,
    UnsupportedTransactionType,
)
from app.core.hexadecimal import to_hex
from app.core.receipts import logs_of_leaf, parse_log

ENCODER_VERSION = 1
"""Part of every immutable URL and of every stored block: bump it whenever the bytes of any served proof would change."""

ZERO_HASH = bytes(32)


class Verdict(StrEnum):
    """What became of one trie of a block."""

    PROVEN = "proven"
    """The root was rebuilt and is the header's."""
    NOT_COMMITTED = "not-committed"
    """The header's root is of nothing, or over a form that no verifier takes."""
    UNSUPPORTED_TYPE = "unsupported-type"
    """There is no codec for a type: that it is there, the receipts root or more than one node says."""
    CLAIMED_TYPE = "claimed-type"
    """There is no codec, or none that fits, for a type: that it is there, or what it is, is one node's word."""
    UNMET = "unmet"
    """Everything can be read, and another root comes of it."""
    BROKEN = "broken"
    """The node's data contradicts itself or cannot be read: `detail` begins with the name of the check."""
    UNAVAILABLE = "unavailable"
    PRUNED = "pruned"


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The raw material of one block. `height` and `block_hash` are what was asked for: at least one of them is set."""

    family: str
    chain_id: int
    anchored: bool
    height: int | None
    block_hash: bytes | None
    block_json: bytes
    receipts_json: bytes | None
    receipts_error: str | None = None
    receipts_pruned: bool = False


@dataclass(frozen=True, slots=True)
class InclusionProof:
    """`value` stands under `key` in the trie of `root`; `nodes` lead there, root first, embedded nodes not repeated."""

    root: bytes
    key: bytes
    value: bytes
    nodes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class LogProof:
    """A receipt proof and one log of that receipt, with both of its coordinates."""

    receipt: InclusionProof
    tx_index: int
    index_in_receipt: int
    index_in_block: int
    rlp: bytes
    address: bytes
    topics: tuple[bytes, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class LeafProof:
    """A usc leaf and the siblings, leaf level first, that lead from its hash to `root`; True: the sibling is on the left."""

    root: bytes
    leaf: bytes
    siblings: tuple[tuple[bytes, bool], ...]


def pack_offsets(values: Iterable[int]) -> bytes:
    """Offsets as u32, little endian on every machine: packed blocks travel between processes and, stored, between machines."""
    packed = array("I", values)
    if sys.byteorder != "little":
        packed.byteswap()
    return packed.tobytes()


def offsets(packed: bytes) -> Sequence[int]:
    """The inverse of `pack_offsets`, without a copy where the machine is little endian too."""
    if sys.byteorder == "little":
        return memoryview(packed).cast("I")
    unpacked = array("I", packed)
    unpacked.byteswap()
    return unpacked


class PackedLeaves(msgspec.Struct, frozen=True, array_like=True):
    """The usc leaves of a block and the binary tree over them."""

    values: bytes
    value_ends: bytes
    tree: merkle.PackedTree

    def value(self, index: int) -> bytes:
        """The leaf bytes of one transaction. Requires 0 <= index < size."""
        ends = offsets(self.value_ends)
        start = ends[index - 1] if index else 0
        return self.values[start : ends[index]]


class ProvableBlock(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """One checked block. Immutable; safe to share between requests."""

    version: int
    chain_id: int
    height: int
    block_hash: bytes
    parent_hash: bytes
    timestamp: int
    header_rlp: bytes
    transaction_hashes: bytes
    """32 bytes a transaction, in order; what the node lists outside both tries is not among them. Where the transactions are
    not proven they are what the node says, and zero where it says nothing."""
    phantom_hashes: bytes
    """Hashes that the node lists for this block although neither trie commits to them, 32 bytes each."""
    transactions: trie.PackedTrie | None
    transactions_verdict: Verdict
    transactions_detail: str
    receipts: trie.PackedTrie | None
    receipts_verdict: Verdict
    receipts_detail: str
    receipt_count: int
    log_ends: bytes
    """Cumulative number of logs after each receipt, u32: block-wide log positions are counted here, never taken from a node."""
    leaves: PackedLeaves | None
    leaves_verdict: Verdict
    leaves_detail: str

    # --- what it is -------------------------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """The block as one `bytes`, for another process or a store."""
        return _encoder.encode(self)

    @property
    def transaction_count(self) -> int:
        """Transactions that the block lists, phantoms left out."""
        return len(self.transaction_hashes) // 32

    @property
    def log_count(self) -> int:
        """Logs of all receipts; 0 when the receipts are not proven."""
        ends = offsets(self.log_ends)
        return ends[-1] if len(ends) else 0

    @property
    def settled(self) -> bool:
        """Whether every verdict is a lasting property of the block, and not of what one node happened to give.

        That there is a type without a codec lasts where the receipts root commits to it, or more than one node says so.
        """
        lasting = (Verdict.PROVEN, Verdict.NOT_COMMITTED, Verdict.UNSUPPORTED_TYPE)
        if self.leaves_verdict is Verdict.BROKEN:
            return False
        return self.receipts_verdict in lasting and self.transactions_verdict in (*lasting, Verdict.UNMET)

    def borne_out(self) -> ProvableBlock:
        """The block, with the types without a codec that one node named borne out by another."""
        changes: dict[str, Any] = {
            name: Verdict.UNSUPPORTED_TYPE
            for name in ("transactions_verdict", "receipts_verdict")
            if getattr(self, name) is Verdict.CLAIMED_TYPE
        }
        return msgspec.structs.replace(self, **changes) if changes else self

    @property
    def broken_checks(self) -> list[str]:
        """The names of the checks that the node's data failed: it is broken, whatever else could be proven from it."""
        verdicts = (
            (self.transactions_verdict, self.transactions_detail),
            (self.receipts_verdict, self.receipts_detail),
            (self.leaves_verdict, self.leaves_detail),
        )
        return [_check_of(detail) for verdict, detail in verdicts if verdict is Verdict.BROKEN]

    @property
    def proven_hashes(self) -> bytes:
        """The hashes of the transactions, where they are proven; where not, they are a node's word, and this is empty."""
        return self.transaction_hashes if self.transactions_verdict is Verdict.PROVEN else b""

    @cached_property
    def size_bytes(self) -> int:
        """Memory this block holds: its buffers, and the objects around them."""
        held = len(self.header_rlp) + len(self.transaction_hashes) + len(self.phantom_hashes) + len(self.log_ends)
        for packed in (self.transactions, self.receipts):
            if packed is not None:
                held += len(packed.values) + len(packed.value_ends) + len(packed.nodes) + len(packed.node_ends)
                held += len(packed.parents) + len(packed.terminals)
        if self.leaves is not None:
            held += len(self.leaves.values) + len(self.leaves.value_ends) + len(self.leaves.tree.levels)
        return held + 2048

    def unavailable(self, details: Mapping[str, str]) -> ProvableBlock:
        """This block without the tries of these names, and why they are not known."""
        changes: dict[str, object] = {}
        for name, detail in details.items():
            changes |= {name: None, f"{name}_verdict": Verdict.UNAVAILABLE, f"{name}_detail": detail}
        return msgspec.structs.replace(self, **changes)

    def ask_again(self, in_s: Callable[[], float]) -> None:
        """In this process: after so many seconds the nodes are asked again for what this block lacks."""
        self.__dict__["_ask_again_in_s"] = in_s

    def transaction_hash(self, index: int) -> bytes:
        """Requires 0 <= index < transaction_count."""
        return self.transaction_hashes[32 * index : 32 * index + 32]

    def index_of(self, tx_hash: bytes) -> int | None:
        """Where the transaction stands in this block; None when it does not.

        Raises `NotCommittedByHeader` for one that the node lists here although the header commits to no such transaction.
        """
        found = None if tx_hash == ZERO_HASH else _aligned_find(self.transaction_hashes, tx_hash)
        if found is None and _aligned_find(self.phantom_hashes, tx_hash) is not None:
            raise NotCommittedByHeader(
                f"transaction {to_hex(tx_hash)} is listed for block {self.height}, but its header commits to no such transaction"
            )
        return found

    # --- cutting proofs ---------------------------------------------------------------------------------------------

    def transaction_proof(self, index: int) -> InclusionProof:
        """The proof of one transaction against `transactionsRoot`.

        Raises what the verdict of that trie says, `EmptyBlockTxProof`, or `TxIndexOutOfBounds`.
        """
        packed = self._proven(self.transactions, self.transactions_verdict, self.transactions_detail, "transactions")
        self._require_index(index, self.transaction_count)
        return _cut(packed, index)

    def receipt_proof(self, index: int) -> InclusionProof:
        """The proof of one receipt against `receiptsRoot`; errors as for a transaction."""
        packed = self._proven(self.receipts, self.receipts_verdict, self.receipts_detail, "receipts")
        # Some chains commit to a receipt of the block itself behind those of its transactions: nothing is served under its index.
        self._require_index(index, min(self.receipt_count, self.transaction_count))
        return _cut(packed, index)

    def log_proof_in_receipt(self, tx_index: int, log_index: int) -> LogProof:
        """The proof of the `log_index`-th log of one receipt. Raises `LogIndexOutOfBounds` beside the errors of a receipt."""
        receipt = self.receipt_proof(tx_index)
        first, end = self._log_range(tx_index)
        if not 0 <= log_index < end - first:
            raise LogIndexOutOfBounds(
                f"log_index {log_index} in receipt {tx_index} at height {self.height} out of bounds (len={end - first})"
            )
        return _log_proof(receipt, tx_index, log_index, first + log_index)

    def log_proof_in_block(self, log_index: int) -> LogProof:
        """The proof of the `log_index`-th log of the whole block, counted over the proven receipts."""
        self._proven(self.receipts, self.receipts_verdict, self.receipts_detail, "receipts")
        if self.receipt_count == 0:
            raise self._empty()
        ends = offsets(self.log_ends)
        if not 0 <= log_index < self.log_count:
            raise LogIndexOutOfBounds(
                f"log_index {log_index} at height {self.height} out of bounds (len={self.log_count})"
            )
        tx_index = bisect_right(ends, log_index)
        first, _ = self._log_range(tx_index)
        return _log_proof(self.receipt_proof(tx_index), tx_index, log_index - first, log_index)

    def leaf_proof(self, index: int) -> LeafProof:
        """The usc proof of one transaction with its receipt. Needs both tries proven, and a chain with anchors."""
        packed = self._proven_leaves()
        self._require_index(index, self.transaction_count)
        return LeafProof(packed.tree.root, packed.value(index), merkle.prove(packed.tree, index))

    @property
    def usc_root(self) -> bytes:
        """The root that a digest chain takes for this block: 32 zero bytes when the block is empty. Errors as `leaf_proof`."""
        return self._proven_leaves().tree.root

    # --- refusals ---------------------------------------------------------------------------------------------------

    def _proven(self, packed: trie.PackedTrie | None, verdict: Verdict, detail: str, what: str) -> trie.PackedTrie:
        if verdict is Verdict.PROVEN and packed is not None:
            return packed
        raise self._refused(verdict, detail, what)

    def _refused(self, verdict: Verdict, detail: str, what: str) -> ProofError:
        refusal = _refusal(verdict, detail, self.height, what)
        in_s: Callable[[], float] | None = self.__dict__.get("_ask_again_in_s")
        if refusal.retriable and in_s is not None:
            refusal.retry_after_s = in_s()
        return refusal

    def _proven_leaves(self) -> PackedLeaves:
        if self.leaves_verdict is Verdict.PROVEN and self.leaves is not None:
            return self.leaves
        for verdict, detail, what in (
            (self.transactions_verdict, self.transactions_detail, "transactions"),
            (self.receipts_verdict, self.receipts_detail, "receipts"),
        ):
            if verdict is not Verdict.PROVEN:
                raise self._refused(verdict, detail, what)
        if self.leaves_verdict is Verdict.UNAVAILABLE:
            raise Internal(f"block {self.height} was built without usc leaves")
        raise self._refused(self.leaves_verdict, self.leaves_detail, "usc leaves")

    def _require_index(self, index: int, count: int) -> None:
        if count == 0:
            raise self._empty()
        if not 0 <= index < count:
            raise TxIndexOutOfBounds(f"tx_index {index} at height {self.height} out of bounds (len={count})")

    def _empty(self) -> EmptyBlockTxProof:
        return EmptyBlockTxProof(f"block {self.height} is empty; tx proof unavailable (use a continuity-only proof)")

    def _log_range(self, tx_index: int) -> tuple[int, int]:
        ends = offsets(self.log_ends)
        return (ends[tx_index - 1] if tx_index else 0), ends[tx_index]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ProvableBlock)


def unpack(data: bytes) -> ProvableBlock:
    """The inverse of `ProvableBlock.pack`. Raises ValueError for bytes of another encoder version or of no block."""
    try:
        block = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError("not a packed block") from error
    if block.version != ENCODER_VERSION:
        raise ValueError(f"a packed block of encoder version {block.version}, not {ENCODER_VERSION}")
    return block


def _aligned_find(hashes: bytes, wanted: bytes) -> int | None:
    at = hashes.find(wanted)
    while at >= 0 and at % 32:
        at = hashes.find(wanted, at + 1)
    return at // 32 if at >= 0 else None


def _cut(packed: trie.PackedTrie, index: int) -> InclusionProof:
    return InclusionProof(packed.root, trie.ordered_key(index), trie.value(packed, index), trie.prove(packed, index))


def _log_proof(receipt: InclusionProof, tx_index: int, in_receipt: int, in_block: int) -> LogProof:
    rlp = logs_of_leaf(receipt.value)[in_receipt]
    log = parse_log(rlp)
    return LogProof(receipt, tx_index, in_receipt, in_block, rlp, log.address, log.topics, log.data)


def _refusal(verdict: Verdict, detail: str, height: int, what: str) -> ProofError:
    if verdict is Verdict.NOT_COMMITTED:
        return NotCommittedByHeader(f"the header of block {height} does not commit to its {what}: {detail}")
    if verdict in (Verdict.UNSUPPORTED_TYPE, Verdict.CLAIMED_TYPE):
        return UnsupportedTransactionType(f"block {height} holds an unsupported transaction type {detail}")
    if verdict is Verdict.UNMET and what != "receipts":
        return UnsupportedBlockFormat(f"the {what} of block {height} cannot be reconciled with its header: {detail}")
    if verdict is Verdict.PRUNED:
        return HistoryUnavailable(f"no upstream keeps the {what} of block {height} any longer: {detail}")
    message = f"no upstream gives {what} that match the header of block {height}: {detail}"
    if verdict is Verdict.BROKEN:
        return InconsistentSource(message, check=_check_of(detail))
    return InconsistentSource(message)


def _check_of(detail: str) -> str:
    return detail.partition(":")[0]
