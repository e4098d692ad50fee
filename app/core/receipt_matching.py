"""Which list of receipts, in which encoding, is the one that a header commits to: decided by the root alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from app.core import trie
from app.core.errors import ContentInvalid
from app.core.headers import Header
from app.core.hexadecimal import to_hex
from app.core.provable_block import ZERO_HASH, Verdict
from app.core.receipts import Receipt, decode_receipt, encodings, noncanonical_encodings
from app.core.rpc_json import RpcReceipt, RpcTransaction


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries that may be in the tries, in order, and the hashes that a node lists although neither trie commits to them."""

    entries: list[RpcTransaction | bytes]
    phantoms: set[bytes]

    @property
    def hashes(self) -> list[bytes]:
        """The hashes of the entries, as the node names them."""
        return [hash_of(entry) for entry in self.entries]


def hash_of(entry: RpcTransaction | bytes) -> bytes:
    """What the node calls the entry."""
    return entry if isinstance(entry, bytes) else entry.hash


def match_receipts(
    rpc_receipts: list[RpcReceipt], listing: Listing, missing: list[int | None], header: Header, family: str
) -> tuple[trie.PackedTrie | None, list[Receipt], Verdict, str]:
    """The receipts trie, its receipts as the root commits to them, the verdict, and why it is not proven.

    `missing` are the types of transactions that have no codec here. Raises `ContentInvalid` for broken data.
    """
    type_of = {entry.hash: entry.type for entry in listing.entries if not isinstance(entry, bytes)}
    receipts = [decode_receipt(each, type_of.get(each.transaction_hash or b"")) for each in rpc_receipts]
    _check_names(rpc_receipts, header)
    wanted = header.receipts_root
    rebuilt: bytes | None = None
    for chosen in _candidate_lists(receipts, listing, header):
        for name, leaves in encodings(chosen, family):
            packed = trie.build_ordered(leaves)
            if packed.root == wanted:
                return packed, [_as_committed(receipt, name) for receipt in chosen], Verdict.PROVEN, ""
            rebuilt = rebuilt or packed.root
        if not chosen and wanted == ZERO_HASH:
            return trie.build_ordered([]), [], Verdict.PROVEN, ""
    for name, leaves in noncanonical_encodings(receipts):
        if trie.build_ordered(leaves).root == wanted:
            return None, [], Verdict.NOT_COMMITTED, f"its receiptsRoot is over another encoding ({name})"
    unsupported = sorted({kind for kind in missing if kind is not None})
    if unsupported:
        return None, [], Verdict.UNSUPPORTED_TYPE, ", ".join(hex(kind) for kind in unsupported)
    return None, [], Verdict.UNMET, f"receiptsRoot {to_hex(wanted)}, rebuilt {to_hex(rebuilt or trie.EMPTY_ROOT)}"


def _as_committed(receipt: Receipt, encoding: str) -> Receipt:
    """The receipt without what the matching encoding left out: no root commits to that, so nothing may be made of it."""
    if receipt.status is not None and receipt.post_state is not None:
        before_byzantium = encoding == "post-state-first"
        receipt = replace(receipt, status=None) if before_byzantium else replace(receipt, post_state=None)
    if encoding == "regolith" or receipt.deposit_receipt_version is None:
        receipt = replace(receipt, deposit_nonce=None, deposit_receipt_version=None)
    return receipt


def _check_names(rpc_receipts: Iterable[RpcReceipt], header: Header) -> None:
    """Receipts, and their logs, that name another block are of another fork, whatever their count says."""
    for receipt in rpc_receipts:
        named = [receipt.block_hash, *(log.block_hash for log in receipt.logs)]
        for block_hash in named:
            if block_hash is not None and block_hash != header.hash:
                raise ContentInvalid(
                    "receipt_block_hash", f"a receipt of block {to_hex(header.hash)} names {to_hex(block_hash)}"
                )


def _candidate_lists(receipts: list[Receipt], listing: Listing, header: Header) -> Iterator[list[Receipt]]:
    """The lists of receipts that may be the block's, the plain one first: one receipt a transaction, matched by hash.

    Receipts beyond that (duplicates, block receipts of system calls) are admitted only where the root then matches; a
    transaction without a receipt is broken data, never a shorter list.
    """
    hashes = listing.hashes
    if any(receipt.transaction_hash is None for receipt in receipts):
        if len(receipts) != len(hashes):
            raise ContentInvalid(
                "count", f"{len(receipts)} receipts for {len(hashes)} transactions at height {header.number}"
            )
        yield _by_index(receipts, header)
        return
    unclaimed: dict[bytes, Receipt] = {}
    surplus: list[Receipt] = []
    wanted = set(hashes)
    for receipt in receipts:
        name = receipt.transaction_hash or b""
        if name in wanted and name not in unclaimed:
            unclaimed[name] = receipt
        elif name not in listing.phantoms:
            surplus.append(receipt)
    if len(unclaimed) != len(wanted):
        raise ContentInvalid(
            "count", f"{len(wanted) - len(unclaimed)} of {len(wanted)} receipts missing at height {header.number}"
        )
    matched = [unclaimed[name] for name in hashes]
    for position, receipt in enumerate(matched):
        if receipt.transaction_index not in (None, position):
            raise ContentInvalid(
                "transaction_index", f"receipt {position} of block {header.number} names another index"
            )
    yield matched
    if surplus:
        yield matched + surplus


def _by_index(receipts: list[Receipt], header: Header) -> list[Receipt]:
    if any(receipt.transaction_index is None for receipt in receipts):
        return receipts
    ordered = sorted(receipts, key=lambda receipt: receipt.transaction_index or 0)
    if [receipt.transaction_index for receipt in ordered] != list(range(len(ordered))):
        raise ContentInvalid("transaction_index", f"the receipt indexes of block {header.number} are not 0, 1, 2, ...")
    return ordered
