"""From the JSON texts of a block and its receipts to a `ProvableBlock`: every check before anything is called proven.

Broken data (the header does not hash to the block's hash, a transaction not to its own, a foreign block hash, counts that differ)
raises `ContentInvalid`: another node may have better. A trie whose root is not met is a verdict, not an exception: the other trie
of the same block may well be served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from app.core import merkle, trie
from app.core.errors import ContentInvalid, UnsupportedBlockFormat
from app.core.headers import Header, hash_header
from app.core.hexadecimal import to_hex
from app.core.keccak import keccak
from app.core.leaves import encode_leaf
from app.core.provable_block import (
    ENCODER_VERSION,
    ZERO_HASH,
    BuildRequest,
    PackedLeaves,
    ProvableBlock,
    Verdict,
    pack_offsets,
)
from app.core.receipt_matching import Listing, hash_of, match_receipts
from app.core.receipts import Receipt
from app.core.rpc_json import RpcBlock, RpcTransaction, decode_block, decode_receipts, withdrawals_leaves
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
        packed_receipts = None
        receipts_verdict, receipts_detail = Verdict.NOT_COMMITTED, not_committed(header.receipts_root)
    elif request.receipts_json is None:
        packed_receipts = None
        receipts_verdict = Verdict.PRUNED if request.receipts_pruned else Verdict.UNAVAILABLE
        receipts_detail = request.receipts_error or "the node gave no receipts"
    else:
        rpc_receipts = decode_receipts(request.receipts_json)
        found = match_receipts(rpc_receipts, listing, missing, header, request.family)
        packed_receipts, receipts, receipts_verdict, receipts_detail = found
        if len(receipts) > len(hashes) and transactions_verdict in (Verdict.UNMET, Verdict.UNAVAILABLE):
            # The receipts are whole, so it is the transactions that are short: another node may have all of them.
            raise ContentInvalid(
                "count", f"{len(receipts)} receipts for {len(hashes)} transactions at height {header.number}"
            )

    leaves, leaves_verdict, leaves_detail = None, Verdict.UNAVAILABLE, "the chain has no anchors"
    if request.anchored and transactions_verdict is Verdict.PROVEN and receipts_verdict is Verdict.PROVEN:
        leaves, leaves_verdict, leaves_detail = usc_leaves(decoded, receipts)

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


def not_committed(receipts_root: bytes) -> str:
    """Why nothing can be proven of the receipts of a block with transactions and this root, which is of none."""
    return f"its receiptsRoot is {to_hex(receipts_root)} although there are transactions"


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
    whole = [entry for entry in rpc.transactions if not isinstance(entry, bytes)]
    for entry in whole:
        if entry.block_hash is not None and entry.block_hash != header.hash:
            raise ContentInvalid(
                "block_hash", f"a transaction of block {to_hex(header.hash)} names {to_hex(entry.block_hash)}"
            )
    if len(whole) < len(rpc.transactions):  # hashes: their order is all there is
        return rpc.transactions
    indexes = [entry.transaction_index for entry in whole]
    given = [index for index in indexes if index is not None]
    if len(given) == len(whole):
        if sorted(given) != list(range(len(whole))):
            raise ContentInvalid(
                "transaction_index", f"the transaction indexes of block {header.number} are not 0, 1, 2, ..."
            )
        placed: list[RpcTransaction | bytes] = [b""] * len(whole)
        for index, entry in zip(given, whole, strict=True):
            placed[index] = entry
        return placed
    if any(index not in (None, position) for position, index in enumerate(indexes)):
        raise ContentInvalid("transaction_index", f"a transaction of block {header.number} names another index")
    return rpc.transactions


@dataclass(frozen=True, slots=True)
class _Transactions:
    """What could be decoded, why the rest could not (its type, or None where only a hash was given), and the trie's verdict."""

    decoded: list[Transaction]
    missing: list[int | None]
    trie: tuple[trie.PackedTrie | None, Verdict, str]


def _choose_listing(
    entries: list[RpcTransaction | bytes], header: Header, request: BuildRequest
) -> tuple[Listing, _Transactions]:
    """Some chains' nodes list transactions that no trie commits to: the root decides which listing is the block."""
    first: tuple[Listing, _Transactions] | None = None
    for listing in _listings(entries, header, request.family):
        decoded, missing = _decode_transactions(listing.entries, request)
        tried = listing, _Transactions(decoded, missing, _transactions_trie(decoded, missing, header))
        if tried[1].trie[1] is Verdict.PROVEN:
            return tried
        first = first or tried
    assert first is not None
    return first


def _listings(entries: list[RpcTransaction | bytes], header: Header, family: str) -> Iterator[Listing]:
    if family == "polygon":
        # Before PIP-74 a state-sync transaction is listed and committed to by neither root. Its hash gives it away.
        state_sync = keccak(b"matic-bor-receipt-" + header.number.to_bytes(8, "big") + header.hash)
        yield Listing([entry for entry in entries if hash_of(entry) != state_sync], {state_sync})
        return
    yield Listing(entries, set())
    if family == "hyperliquid":
        # System transactions are listed with a gas price of zero and stand outside both tries.
        system = {
            entry.hash for entry in entries if not isinstance(entry, bytes) and entry.gas_price in ("0x0", "0x", 0)
        }
        if system:
            yield Listing([entry for entry in entries if hash_of(entry) not in system], system)


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


# --- usc leaves -----------------------------------------------------------------------------------------------------


def usc_leaves(
    transactions: Sequence[Transaction], receipts: Sequence[Receipt]
) -> tuple[PackedLeaves | None, Verdict, str]:
    """The leaves of a block both of whose tries are proven, the verdict, and why there are none.

    No root commits to `from` and `gasUsed`: the first is recovered from the signature, the second is a difference of
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
    return pack_offsets(accumulate(sizes))
