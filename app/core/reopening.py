"""A block that was packed before, believed as little as one that a node sends: whatever it says is derived again.

The header must hash to the block's hash, each trie is rebuilt from its values and must meet the header's root, transactions
must hash to their hashes, log positions are counted anew, and usc leaves are made again out of the transactions and receipts
that the tries hold, senders recovered from signatures. A checksum tells what decayed; this tells what was forged, or written
by a program with a fault. What no header decides, such as a transaction type that nothing here can encode, is no claim worth
keeping: `reopens` says so before anything is stored.

Not decided by any header, and the caller's to compare: `chain_id`, and whether the chain has anchors (a block that was built
without usc leaves stays one).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from app.core import trie
from app.core.block_building import not_committed, usc_leaves
from app.core.committed import decode_envelope, decode_receipt_leaf
from app.core.errors import ContentInvalid
from app.core.keccak import keccak
from app.core.provable_block import ZERO_HASH, ProvableBlock, Verdict, offsets, pack_offsets, unpack
from app.core.receipts import logs_of_leaf
from app.core.rlp import split_list, string_of

CHECK = "stored_block"
"""The name of every check here: which of them it was that failed, the detail tells."""

NO_LEAVES = (None, Verdict.UNAVAILABLE, "the chain has no anchors")

_NO_ROOTS = (trie.EMPTY_ROOT, ZERO_HASH)


@dataclass(frozen=True, slots=True)
class ReopenRequest:
    """A packed block, and the hash that it is kept under."""

    packed: bytes
    block_hash: bytes


def reopens(block: ProvableBlock) -> bool:
    """Whether `reopen` can derive all that the block says, if it is as it was built: cheap, to be asked before it is stored."""
    return block.transactions_verdict is Verdict.PROVEN and (
        block.receipts_verdict is Verdict.PROVEN
        or (block.receipts_verdict is Verdict.NOT_COMMITTED and _roots(block.header_rlp).receipts in _NO_ROOTS)
    )


def reopen(packed: bytes, block_hash: bytes) -> ProvableBlock:
    """The block, with everything in it derived again. Raises `ContentInvalid` when anything differs."""
    try:
        block = unpack(packed)
        if block.pack() != packed:
            raise _refused("it is spelt in another way than it would be packed")
        header = _check_header(block, block_hash)
        envelopes = _check_transactions(block, header)
        receipt_leaves = _check_receipts(block, header)
        _check_leaves(block, envelopes, receipt_leaves)
    except ValueError as error:
        raise _refused(str(error)) from error
    return block


def _refused(detail: str) -> ContentInvalid:
    return ContentInvalid(CHECK, detail)


@dataclass(frozen=True, slots=True)
class _Roots:
    """What is needed of a header."""

    number: int
    parent_hash: bytes
    timestamp: int
    transactions: bytes
    receipts: bytes


def _roots(header_rlp: bytes) -> _Roots:
    """The Yellow Paper's fields 0, 4, 5, 8 and 11. One chain wraps such a header: it is the fourth item of the list then."""
    fields = split_list(header_rlp)
    if len(fields) in (4, 5):
        fields = split_list(fields[3])
    if len(fields) < 15:
        raise ValueError("a header with fewer than fifteen fields")
    return _Roots(
        number=int.from_bytes(string_of(fields[8]), "big"),
        parent_hash=string_of(fields[0]),
        timestamp=int.from_bytes(string_of(fields[11]), "big"),
        transactions=string_of(fields[4]),
        receipts=string_of(fields[5]),
    )


def _check_header(block: ProvableBlock, block_hash: bytes) -> _Roots:
    if block.block_hash != block_hash:
        raise _refused("it is another block than the one it is kept under")
    if keccak(block.header_rlp) != block_hash:
        raise _refused("its header does not hash to its hash")
    header = _roots(block.header_rlp)
    if (block.height, block.parent_hash, block.timestamp) != (header.number, header.parent_hash, header.timestamp):
        raise _refused("its height, parent or time is not its header's")
    return header


def _check_transactions(block: ProvableBlock, header: _Roots) -> list[bytes]:
    if block.transactions_verdict is not Verdict.PROVEN or block.transactions is None or block.transactions_detail:
        raise _refused("its transactions are not proven")
    envelopes = _rebuilt(block.transactions, header.transactions, "transactions")
    hashes = [keccak(envelope) for envelope in envelopes]
    if b"".join(hashes) != block.transaction_hashes:
        raise _refused("its transactions do not hash to their hashes")
    # That a node lists these is its word; that the header commits to none of them is not.
    listed = block.phantom_hashes
    phantoms = [listed[at : at + 32] for at in range(0, len(listed), 32)]
    if len(listed) % 32 or phantoms != sorted(set(phantoms)):
        raise _refused("the transactions outside its tries are no list of hashes")
    if not set(phantoms).isdisjoint(hashes):
        raise _refused("a transaction is said to stand both inside and outside its tries")
    return envelopes


def _check_receipts(block: ProvableBlock, header: _Roots) -> list[bytes] | None:
    """The leaves of the receipts; None where the header commits to none although there are transactions."""
    if block.transaction_count and header.receipts in _NO_ROOTS:
        claimed = (block.receipts, block.receipts_verdict, block.receipts_detail)
        if claimed != (None, Verdict.NOT_COMMITTED, not_committed(header.receipts)):
            raise _refused("its receipts are not said to be left out by its header, which leaves them out")
        if block.receipt_count or block.log_ends:
            raise _refused("it counts receipts that it has not")
        return None
    if block.receipts_verdict is not Verdict.PROVEN or block.receipts is None or block.receipts_detail:
        raise _refused("its receipts are not proven")
    leaves = _rebuilt(block.receipts, header.receipts, "receipts")
    if block.receipt_count != len(leaves) or len(leaves) < block.transaction_count:
        raise _refused("it miscounts its receipts")
    if pack_offsets(accumulate(len(logs_of_leaf(leaf)) for leaf in leaves)) != block.log_ends:
        raise _refused("it miscounts its logs")
    return leaves


def _check_leaves(block: ProvableBlock, envelopes: list[bytes], receipt_leaves: list[bytes] | None) -> None:
    claimed = (block.leaves, block.leaves_verdict, block.leaves_detail)
    if claimed == NO_LEAVES:
        return
    if receipt_leaves is None:
        raise _refused("it has usc leaves without receipts")
    transactions = [decode_envelope(envelope) for envelope in envelopes]
    receipts = [decode_receipt_leaf(leaf) for leaf in receipt_leaves]
    if claimed != usc_leaves(transactions, receipts):
        raise _refused("its usc leaves are not those of its transactions and receipts")


def _rebuilt(packed: trie.PackedTrie, root: bytes, what: str) -> list[bytes]:
    """The values of a trie that is rebuilt from nothing else, node for node, and meets `root`."""
    if len(packed.value_ends) % 4:
        raise _refused(f"the offsets of its {what} are cut short")
    # Offsets that lead astray cut values whose offsets are others.
    ends = offsets(packed.value_ends)
    values = [packed.values[start:end] for start, end in zip((0, *ends), ends, strict=False)]
    rebuilt = trie.build_ordered(values)
    if rebuilt != packed:
        raise _refused(f"the trie of its {what} is not that of its values")
    if rebuilt.root != root and not (not values and root == ZERO_HASH):
        raise _refused(f"its {what} do not lead to the root in its header")
    return values
