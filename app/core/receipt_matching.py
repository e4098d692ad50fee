"""Which list of receipts, in which encoding, is the one that a header commits to: decided by the root alone.

What the root decides is not asked before it: order, type and bloom of a receipt, and the transaction that it names, may be
told badly. A receipt or log that names another block is refused all the same: it is of another fork.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from app.core import trie
from app.core.errors import ContentInvalid
from app.core.headers import Header
from app.core.hexadecimal import to_hex
from app.core.provable_block import ZERO_HASH, Verdict
from app.core.receipts import Receipt, decode_receipt, encodings, noncanonical_encodings, readings
from app.core.rpc_json import RpcReceipt

MAX_NAMED_TYPES = 8
"""Of the types that a block holds and that have no codec, so many are named in a refusal."""


@dataclass(frozen=True, slots=True)
class Named:
    """A transaction as the block lists it: the hash, None where the node gives none, and the type, None where unknown."""

    hash: bytes | None
    type: int | None


@dataclass(frozen=True, slots=True)
class MatchedReceipts:
    """What became of the receipts: if they are proven, as the root commits to them; if not, why."""

    packed: trie.PackedTrie | None
    verdict: Verdict
    detail: str = ""
    receipts: list[Receipt] = field(default_factory=list)


def match_receipts(
    rpc_receipts: list[RpcReceipt],
    listed: Sequence[Named],
    phantoms: set[bytes],
    unsupported: Sequence[int],
    header: Header,
    family: str,
) -> MatchedReceipts:
    """The receipts that meet the root of `header`, or why there are none.

    `unsupported` are types among the transactions that have no codec here: their receipts may be of a form of their own.
    """
    type_of = {each.hash: each.type for each in listed if each.hash is not None}
    foreign = None
    try:
        for rpc in rpc_receipts:
            foreign = foreign or rpc.foreign_block(header.hash)
        receipts = [decode_receipt(each, type_of.get(each.transaction_hash or b"")) for each in rpc_receipts]
    except ContentInvalid as invalid:
        return MatchedReceipts(None, Verdict.BROKEN, str(invalid))
    if foreign is not None:  # of another fork, whatever their count says
        detail = f"receipt_block_hash: a receipt of block {to_hex(header.hash)} names {foreign}"
        return MatchedReceipts(None, Verdict.BROKEN, detail)
    wanted = header.receipts_root
    if not receipts and wanted == ZERO_HASH:
        return MatchedReceipts(trie.build_ordered([]), Verdict.PROVEN)
    rebuilt: bytes | None = None
    types = [each.type for each in listed]
    for chosen in _candidate_lists(receipts, [each.hash for each in listed], phantoms):
        for reading in readings(chosen, types):
            for name, leaves in encodings(reading, family):
                packed = trie.build_ordered(leaves)
                if packed.root == wanted:
                    committed = [_as_committed(receipt, name) for receipt in reading]
                    return MatchedReceipts(packed, Verdict.PROVEN, "", committed)
                rebuilt = rebuilt or packed.root
    for name, leaves in noncanonical_encodings(receipts):
        if trie.build_ordered(leaves).root == wanted:
            return MatchedReceipts(None, Verdict.NOT_COMMITTED, f"its receiptsRoot is over another encoding ({name})")
    missing = sum(1 for each in listed if each.hash is not None) - len(receipts)
    if missing > 0:
        return MatchedReceipts(
            None, Verdict.BROKEN, f"count: {missing} of {len(listed)} receipts missing at height {header.number}"
        )
    if unsupported:
        return MatchedReceipts(None, Verdict.CLAIMED_TYPE, ", ".join(map(hex, unsupported[:MAX_NAMED_TYPES])))
    detail = f"receiptsRoot {to_hex(wanted)}, rebuilt {to_hex(rebuilt or trie.EMPTY_ROOT)}"
    return MatchedReceipts(None, Verdict.UNMET, detail)


def _as_committed(receipt: Receipt, encoding: str) -> Receipt:
    """The receipt without what the matching encoding left out: no root commits to that, so nothing may be made of it."""
    if receipt.status is not None and receipt.post_state is not None:
        before_byzantium = encoding == "post-state-first"
        receipt = replace(receipt, status=None) if before_byzantium else replace(receipt, post_state=None)
    if encoding == "regolith" or receipt.deposit_receipt_version is None:
        receipt = replace(receipt, deposit_nonce=None, deposit_receipt_version=None)
    return receipt


def _candidate_lists(
    receipts: list[Receipt], hashes: Sequence[bytes | None], phantoms: set[bytes]
) -> Iterator[list[Receipt]]:
    """The lists of receipts that may be the block's, at most five and each another one, likeliest first.

    One receipt a transaction, matched by hash; those and the surplus (block receipts of system calls); as they were
    given; and by their indexes.
    """
    given = [receipt for receipt in receipts if receipt.transaction_hash not in phantoms]
    tried: set[tuple[int, ...]] = set()
    for chosen in _orders(receipts, given, hashes):
        order = tuple(map(id, chosen))
        if order not in tried:
            tried.add(order)
            yield chosen


def _orders(receipts: list[Receipt], given: list[Receipt], hashes: Sequence[bytes | None]) -> Iterator[list[Receipt]]:
    yield from _by_hash(given, hashes)
    yield given
    yield _by_index(given)
    yield receipts


def _by_hash(receipts: list[Receipt], hashes: Sequence[bytes | None]) -> Iterator[list[Receipt]]:
    """Nothing, if a transaction has no hash or no receipt. One that is listed twice has the first and the second."""
    unclaimed: defaultdict[bytes | None, deque[Receipt]] = defaultdict(deque)
    for receipt in receipts:
        unclaimed[receipt.transaction_hash].append(receipt)
    matched = []
    for name in hashes:
        if name is None or not unclaimed[name]:
            return
        matched.append(unclaimed[name].popleft())
    yield matched
    if len(matched) < len(receipts):
        claimed = set(map(id, matched))
        yield matched + [receipt for receipt in receipts if id(receipt) not in claimed]


def _by_index(receipts: list[Receipt]) -> list[Receipt]:
    """In the order of the indexes that they name; as given where one names none."""
    indexed = [(receipt.transaction_index, receipt) for receipt in receipts]
    if any(index is None for index, _ in indexed):
        return receipts
    return [receipt for _, receipt in sorted(indexed, key=lambda each: each[0] or 0)]
