"""From the JSON texts of a block and its receipts to a `ProvableBlock`: every check before anything is called proven.

Broken data (the header does not hash to the block's hash, a transaction not to its own, a foreign block hash, counts that differ)
raises `ContentInvalid`: another node may have better. A trie whose root is not met is a verdict, not an exception: the other trie
of the same block may well be served.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from app.core import merkle, trie
from app.core.errors import ContentInvalid, UnsupportedBlockFormat
from app.core.headers import Header, hash_header
from app.core.hexadecimal import to_hex
from app.core.keccak import keccak
from app.core.leaves import encode_leaf
from app.core.provable_block import ENCODER_VERSION, ZERO_HASH, BuildRequest, PackedLeaves, ProvableBlock, Verdict
from app.core.receipts import Receipt, decode_receipt, encodings, noncanonical_encodings
from app.core.rpc_json import RpcBlock, RpcReceipt, RpcTransaction, decode_block, decode_receipts, withdrawals_leaves
from app.core.senders import recover_sender
from app.core.transactions import Transaction, UnsupportedType, decode_transaction

_FOREIGN_WITHDRAWALS_ROOT = frozenset({"op-stack", "celo"})
"""Families whose `withdrawalsRoot` is, since Isthmus, the storage root of a contract and not a trie of the block's list."""


def build(request: BuildRequest) -> ProvableBlock:
    """The checked block. Raises `ContentInvalid` for broken data, `UnsupportedBlockFormat` for a header with fields that are not
    known here, `HeaderHashUnsupported` where the chain's hash cannot be recomputed."""
    rpc = decode_block(request.block_json)
    header = hash_header(rpc, request.family)
    _require_identity(request, header)
    _check_withdrawals(rpc, header, request.family)

    listing, listed_transactions = _choose_listing(_in_order(rpc, header), header, request)
    hashes, phantoms = listing.hashes, listing.phantoms
    decoded, missing = listed_transactions.decoded, listed_transactions.missing
    packed_transactions, transactions_verdict, transactions_detail = listed_transactions.trie

    receipts: list[Receipt] = []
    if hashes and header.receipts_root in (trie.EMPTY_ROOT, ZERO_HASH):
        # The header alone decides: no receipts that a node may give could be proven against it.
        detail = f"its receiptsRoot is {to_hex(header.receipts_root)} although there are transactions"
        packed_receipts, receipts_verdict, receipts_detail = None, Verdict.NOT_COMMITTED, detail
    elif request.receipts_json is None:
        packed_receipts = None
        receipts_verdict, receipts_detail = Verdict.UNAVAILABLE, request.receipts_error or "the node gave no receipts"
    else:
        rpc_receipts = decode_receipts(request.receipts_json)
        found = _receipts_trie(rpc_receipts, listing, missing, header, request.family)
        packed_receipts, receipts, receipts_verdict, receipts_detail = found

    leaves, leaves_verdict, leaves_detail = None, Verdict.UNAVAILABLE, "the chain has no anchors"
    if request.anchored and transactions_verdict is Verdict.PROVEN and receipts_verdict is Verdict.PROVEN:
        leaves, leaves_verdict, leaves_detail = _leaves(decoded, receipts)

    return ProvableBlock(
        version=ENCODER_VERSION,
        chain_id=request.chain_id,
        height=header.number,
        block_hash=header.hash,
        parent_hash=header.parent_hash,
        timestamp=header.timestamp,
        header_rlp=header.rlp,
        transaction_hashes=b"".join(hashes),
        phantom_hashes=b"".join(sorted(phantoms)),
        transactions=packed_transactions,
        transactions_verdict=transactions_verdict,
        transactions_detail=transactions_detail,
        receipts=packed_receipts,
        receipts_verdict=receipts_verdict,
        receipts_detail=receipts_detail,
        receipt_count=len(receipts),
        log_ends=_ends(len(receipt.logs) for receipt in receipts),
        leaves=leaves,
        leaves_verdict=leaves_verdict,
        leaves_detail=leaves_detail,
    )


def build_packed(request: BuildRequest) -> bytes:
    """`build`, as the bytes that leave a worker process."""
    return build(request).pack()


# --- the block ------------------------------------------------------------------------------------------------------


def _require_identity(request: BuildRequest, header: Header) -> None:
    """A valid block that is not the one asked for passes every recomputation: only the comparison with the question finds it."""
    if request.block_hash is not None and header.hash != request.block_hash:
        raise ContentInvalid("identity", f"asked for block {to_hex(request.block_hash)}, got {to_hex(header.hash)}")
    if request.height is not None and header.number != request.height:
        raise ContentInvalid("identity", f"asked for height {request.height}, got {header.number}")


def _check_withdrawals(rpc: RpcBlock, header: Header, family: str) -> None:
    """Withdrawals are served nowhere; where the header commits to the list, a wrong list still tells a source not to trust."""
    if header.withdrawals_root is None or rpc.withdrawals is None or family in _FOREIGN_WITHDRAWALS_ROOT:
        return
    if trie.build_ordered(withdrawals_leaves(rpc.withdrawals)).root != header.withdrawals_root:
        raise ContentInvalid("withdrawals_root", f"the withdrawals of block {header.number} do not match its header")


def _in_order(rpc: RpcBlock, header: Header) -> list[RpcTransaction | bytes]:
    """The block's entries by transaction index. Where indexes are given they must be 0, 1, 2, ..."""
    entries = rpc.transactions
    indexed = [entry for entry in entries if not isinstance(entry, bytes)]
    for entry in indexed:
        if entry.block_hash is not None and entry.block_hash != header.hash:
            raise ContentInvalid(
                "block_hash", f"a transaction of block {to_hex(header.hash)} names {to_hex(entry.block_hash)}"
            )
    if all(entry.transaction_index is not None for entry in indexed) and len(indexed) == len(entries):
        if sorted(entry.transaction_index or 0 for entry in indexed) != list(range(len(entries))):
            raise ContentInvalid(
                "transaction_index", f"the transaction indexes of block {header.number} are not 0, 1, 2, ..."
            )
        return sorted(indexed, key=lambda entry: entry.transaction_index or 0)
    for position, entry in enumerate(entries):
        if not isinstance(entry, bytes) and entry.transaction_index not in (None, position):
            raise ContentInvalid(
                "transaction_index", f"transaction {position} of block {header.number} names another index"
            )
    return list(entries)


@dataclass(frozen=True, slots=True)
class _Listing:
    """The entries that may be in the tries, in order, and the hashes that a node lists although neither trie commits to them."""

    entries: list[RpcTransaction | bytes]
    phantoms: set[bytes]

    @property
    def hashes(self) -> list[bytes]:
        return [_hash_of(entry) for entry in self.entries]


@dataclass(frozen=True, slots=True)
class _Transactions:
    """What could be decoded, why the rest could not (its type, or None where only a hash was given), and the trie's verdict."""

    decoded: list[Transaction]
    missing: list[int | None]
    trie: tuple[trie.PackedTrie | None, Verdict, str]


def _hash_of(entry: RpcTransaction | bytes) -> bytes:
    return entry if isinstance(entry, bytes) else entry.hash


def _choose_listing(
    entries: list[RpcTransaction | bytes], header: Header, request: BuildRequest
) -> tuple[_Listing, _Transactions]:
    """Some chains' nodes list transactions that no trie commits to: the root decides which listing is the block."""
    first: tuple[_Listing, _Transactions] | None = None
    for listing in _listings(entries, header, request.family):
        decoded, missing = _decode_transactions(listing.entries, request)
        tried = listing, _Transactions(decoded, missing, _transactions_trie(decoded, missing, header))
        if tried[1].trie[1] is Verdict.PROVEN:
            return tried
        first = first or tried
    assert first is not None
    return first


def _listings(entries: list[RpcTransaction | bytes], header: Header, family: str) -> Iterator[_Listing]:
    if family == "polygon":
        # Before PIP-74 a state-sync transaction is listed and committed to by neither root. Its hash gives it away.
        state_sync = keccak(b"matic-bor-receipt-" + header.number.to_bytes(8, "big") + header.hash)
        yield _Listing([entry for entry in entries if _hash_of(entry) != state_sync], {state_sync})
        return
    yield _Listing(entries, set())
    if family == "hyperliquid":
        # System transactions are listed with a gas price of zero and stand outside both tries.
        system = {
            entry.hash for entry in entries if not isinstance(entry, bytes) and entry.gas_price in ("0x0", "0x", 0)
        }
        if system:
            yield _Listing([entry for entry in entries if _hash_of(entry) not in system], system)


# --- transactions ---------------------------------------------------------------------------------------------------


def _decode_transactions(
    entries: Sequence[RpcTransaction | bytes], request: BuildRequest
) -> tuple[list[Transaction], list[int | None]]:
    """The transactions that could be decoded, and why the others could not: their type, or None where only a hash was given."""
    decoded: list[Transaction] = []
    missing: list[int | None] = []
    for entry in entries:
        if isinstance(entry, bytes):
            missing.append(None)
            continue
        try:
            decoded.append(decode_transaction(entry, request.family, request.chain_id))
        except UnsupportedType as unsupported:
            missing.append(unsupported.type)
    return decoded, missing


def _transactions_trie(
    decoded: list[Transaction], missing: list[int | None], header: Header
) -> tuple[trie.PackedTrie | None, Verdict, str]:
    count = len(decoded) + len(missing)
    wanted = header.transactions_root
    if count == 0:
        if wanted == trie.EMPTY_ROOT or wanted == ZERO_HASH:
            return trie.build_ordered([]), Verdict.PROVEN, ""
        raise ContentInvalid("count", f"block {header.number} came without transactions, its header commits to some")
    if wanted in (trie.EMPTY_ROOT, ZERO_HASH):
        return (
            None,
            Verdict.NOT_COMMITTED,
            f"its transactionsRoot is {to_hex(wanted)} although there are {count} transactions",
        )
    types = sorted({kind for kind in missing if kind is not None})
    if types:
        return None, Verdict.UNSUPPORTED_TYPE, ", ".join(hex(kind) for kind in types)
    if missing:
        return None, Verdict.UNAVAILABLE, "the node gave transaction hashes only"
    packed = trie.build_ordered([transaction.envelope for transaction in decoded])
    if packed.root == wanted:
        return packed, Verdict.PROVEN, ""
    return None, Verdict.UNMET, f"transactionsRoot {to_hex(wanted)}, rebuilt {to_hex(packed.root)}"


# --- receipts -------------------------------------------------------------------------------------------------------


def _receipts_trie(
    rpc_receipts: list[RpcReceipt], listing: _Listing, missing: list[int | None], header: Header, family: str
) -> tuple[trie.PackedTrie | None, list[Receipt], Verdict, str]:
    type_of = {entry.hash: entry.type for entry in listing.entries if not isinstance(entry, bytes)}
    receipts = [decode_receipt(each, type_of.get(each.transaction_hash or b"")) for each in rpc_receipts]
    _check_receipt_names(rpc_receipts, header)
    wanted = header.receipts_root
    rebuilt: bytes | None = None
    for chosen in _candidate_lists(receipts, listing, header):
        for _name, leaves in encodings(chosen, family):
            packed = trie.build_ordered(leaves)
            if packed.root == wanted:
                return packed, chosen, Verdict.PROVEN, ""
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


def _check_receipt_names(rpc_receipts: Iterable[RpcReceipt], header: Header) -> None:
    """Receipts, and their logs, that name another block are of another fork, whatever their count says."""
    for receipt in rpc_receipts:
        named = [receipt.block_hash, *(log.block_hash for log in receipt.logs)]
        for block_hash in named:
            if block_hash is not None and block_hash != header.hash:
                raise ContentInvalid(
                    "receipt_block_hash", f"a receipt of block {to_hex(header.hash)} names {to_hex(block_hash)}"
                )


def _candidate_lists(receipts: list[Receipt], listing: _Listing, header: Header) -> Iterator[list[Receipt]]:
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


# --- usc leaves -----------------------------------------------------------------------------------------------------


def _leaves(
    transactions: Sequence[Transaction], receipts: Sequence[Receipt]
) -> tuple[PackedLeaves | None, Verdict, str]:
    """No root commits to `from` and `gasUsed`: the first is recovered from the signature, the second is a difference of
    cumulative values, which the receipts root commits to."""
    values = []
    spent_before = 0
    if len(transactions) != len(receipts):
        return None, Verdict.UNMET, f"{len(receipts)} receipts for {len(transactions)} transactions"
    try:
        for transaction, receipt in zip(transactions, receipts, strict=True):
            gas_used = receipt.cumulative_gas_used - spent_before
            if gas_used < 0:
                return None, Verdict.UNMET, "the cumulative gas of its receipts falls"
            spent_before = receipt.cumulative_gas_used
            values.append(encode_leaf(transaction, receipt, recover_sender(transaction), gas_used))
    except UnsupportedType as unsupported:
        return None, Verdict.UNSUPPORTED_TYPE, hex(unsupported.type)
    except UnsupportedBlockFormat as unsupported_format:
        return None, Verdict.UNMET, unsupported_format.message
    except ContentInvalid as invalid:
        # Both tries are proven: a signature without a sender is a property of the block, not of this node's answer.
        return None, Verdict.UNMET, invalid.detail
    return PackedLeaves(b"".join(values), _ends(map(len, values)), merkle.build(values)), Verdict.PROVEN, ""


def _ends(sizes: Iterable[int]) -> bytes:
    return array("I", accumulate(sizes)).tobytes()
