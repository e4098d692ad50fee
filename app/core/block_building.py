"""From the JSON texts of a block and its receipts to a `ProvableBlock`: every check before anything is called proven.

Each trie has a verdict of its own: what cannot be read of one, or is broken (a transaction that does not hash to its hash, a
foreign block hash, counts that differ), does not take the other along. Only a header that does not hash to the block's hash, or
data of which nothing at all can be proven, raises `ContentInvalid`: another node may have better.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate

from app.core import merkle, trie
from app.core.errors import ContentInvalid, UnsupportedBlockFormat
from app.core.headers import Header, hash_header
from app.core.hexadecimal import to_hex
from app.core.keccak import keccak
from app.core.leaves import DEPOSIT_NONCE, encode_leaf
from app.core.provable_block import (
    ENCODER_VERSION,
    ZERO_HASH,
    BuildRequest,
    PackedLeaves,
    ProvableBlock,
    Verdict,
    pack_offsets,
)
from app.core.receipt_matching import MAX_NAMED_TYPES, MatchedReceipts, Named, match_receipts
from app.core.receipts import Receipt
from app.core.rpc_json import RpcBlock, RpcTransaction, decode_block, decode_receipts, withdrawals_leaves
from app.core.senders import recover_sender
from app.core.transactions import Transaction, UnsupportedType, alternatives, has_codec
from app.core.transactions_ethereum import SET_CODE

_FOREIGN_WITHDRAWALS_ROOT = frozenset({"op-stack", "celo"})
"""Families whose `withdrawalsRoot` is, since Isthmus, the storage root of a contract and not a trie of the block's list."""

MAX_FRUITLESS = 16
"""After so many transactions in a row that no spelling hashes to their hashes, only the spellings as given are tried."""

_NOTHING = frozenset({Verdict.BROKEN, Verdict.UNMET, Verdict.UNAVAILABLE, Verdict.PRUNED})
"""What leaves nothing to serve of a trie."""


def build(request: BuildRequest) -> ProvableBlock:
    """The checked block. Raises `ContentInvalid` for data of which nothing can be proven, `UnsupportedBlockFormat` for a header
    with fields that are not known here, `HeaderHashUnsupported` where the chain's hash cannot be recomputed."""
    rpc = decode_block(request.block_json)
    header = hash_header(rpc, request.family)
    _require_identity(request, header)
    _check_withdrawals(rpc, header, request.family)

    listing = _choose_listing([read_entry(each) for each in rpc.transactions], header, request)
    matched = _matched_receipts(request, listing, header)
    packed_transactions, transactions_verdict, transactions_detail = _judged(listing, matched, request.family, header)
    broken = transactions_verdict is Verdict.BROKEN or matched.verdict is Verdict.BROKEN
    if broken and {transactions_verdict, matched.verdict} <= _NOTHING:
        check, _, detail = (
            transactions_detail if transactions_verdict is Verdict.BROKEN else matched.detail
        ).partition(": ")
        raise ContentInvalid(check, detail)

    leaves, leaves_verdict, leaves_detail = None, Verdict.UNAVAILABLE, "the chain has no anchors"
    if request.anchored and transactions_verdict is Verdict.PROVEN and matched.verdict is Verdict.PROVEN:
        leaves, leaves_verdict, leaves_detail = usc_leaves(listing.transactions, matched.receipts)

    return ProvableBlock(
        version=ENCODER_VERSION,
        chain_id=request.chain_id,
        height=header.number,
        block_hash=header.hash,
        parent_hash=header.parent_hash,
        timestamp=header.timestamp,
        header_rlp=header.rlp,
        transaction_hashes=_names(listing, transactions_verdict, matched, header),
        phantom_hashes=b"".join(sorted(listing.phantoms)),
        transactions=packed_transactions,
        transactions_verdict=transactions_verdict,
        transactions_detail=transactions_detail,
        receipts=matched.packed,
        receipts_verdict=matched.verdict,
        receipts_detail=matched.detail,
        receipt_count=len(matched.receipts),
        log_ends=_ends(len(receipt.logs) for receipt in matched.receipts),
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


# --- transactions ---------------------------------------------------------------------------------------------------


class _Kind(Enum):
    """What is wrong with an entry."""

    HASH_ONLY = auto()
    UNSUPPORTED = auto()  # there is no codec for its type, or for what it does with the type
    MISFIT = auto()  # there is a codec, and it cannot read the entry, or makes bytes of it that have another hash
    BROKEN = auto()


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why an entry has no leaf; `check` is the name of the check that it failed."""

    kind: _Kind
    check: str
    detail: str


@dataclass(slots=True)
class _Entry:
    """One listed transaction: how it is named, and once it was decoded what it may be, or why it cannot be told."""

    rpc: RpcTransaction | bytes
    hash: bytes | None
    type: int | None
    fault: _Fault | None = None
    alternatives: list[Transaction] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Listing:
    """The entries that may be in the tries, in order, the hashes that a node lists although neither trie commits to them,
    and the trie of the entries. `transactions` are set where it is proven."""

    entries: list[_Entry]
    phantoms: set[bytes]
    packed: trie.PackedTrie | None
    verdict: Verdict
    detail: str
    transactions: list[Transaction] = field(default_factory=list)

    @property
    def unsupported(self) -> list[int]:
        """The types of the entries that have no codec, or none for what they do with the type."""
        return _unsupported(self.entries)


def read_entry(rpc: RpcTransaction | bytes) -> _Entry:
    """The entry with what can be read of its name; whether it is well is found out when it is decoded."""
    if isinstance(rpc, bytes):
        return _Entry(rpc, rpc, None, _Fault(_Kind.HASH_ONLY, "hashes", "the node gave transaction hashes only"))
    entry = _Entry(rpc, None, None)
    try:
        entry.hash = rpc.hash
        entry.type = rpc.type
    except ContentInvalid as invalid:
        entry.fault = _Fault(_Kind.BROKEN, invalid.check, invalid.detail)
    return entry


def _decode(entries: Iterable[_Entry], header: Header, request: BuildRequest) -> None:
    """Every entry gets what it may be, or a fault. Where many in a row fail, what others would have written is not tried on."""
    spelled = to_hex(header.hash)
    fruitless = 0
    for entry in entries:
        rpc = entry.rpc
        if entry.fault is not None or isinstance(rpc, bytes):
            continue
        try:
            if rpc.block_hash_hex != spelled and rpc.block_hash not in (None, header.hash):
                detail = f"a transaction of block {spelled} names {to_hex(rpc.block_hash or b'')}"
                entry.fault = _Fault(_Kind.BROKEN, "block_hash", detail)
                continue
            derive = fruitless < MAX_FRUITLESS
            entry.alternatives = alternatives(rpc, request.family, request.chain_id, derive=derive)
            fruitless = 0
        except UnsupportedType as unsupported:
            entry.fault = _Fault(_Kind.UNSUPPORTED, "type", hex(unsupported.type))
        except ContentInvalid as invalid:
            fruitless += 1
            entry.fault = _Fault(_Kind.MISFIT, invalid.check, invalid.detail)


def _choose_listing(entries: list[_Entry], header: Header, request: BuildRequest) -> _Listing:
    """Some chains' nodes list transactions that no trie commits to, or list them out of order: the root decides which listing
    is the block."""
    _decode(entries, header, request)
    first: _Listing | None = None
    for listed, phantoms in _listings(entries, header, request.family):
        for order in _orders(listed):
            tried = _listing(order, phantoms, header)
            if tried.verdict is Verdict.PROVEN:
                return tried
            first = first or tried
    assert first is not None
    return first


def _listings(entries: list[_Entry], header: Header, family: str) -> Iterator[tuple[list[_Entry], set[bytes]]]:
    if family == "polygon":
        # Before PIP-74 a state-sync transaction is listed and committed to by neither root. Its hash gives it away.
        state_sync = keccak(b"matic-bor-receipt-" + header.number.to_bytes(8, "big") + header.hash)
        yield [entry for entry in entries if entry.hash != state_sync], {state_sync}
        return
    yield entries, set()
    if family == "hyperliquid":
        # System transactions are listed with a gas price of zero and stand outside both tries.
        system = {id(entry) for entry in entries if _is_free(entry.rpc)}
        if system:
            phantoms = {entry.hash for entry in entries if id(entry) in system and entry.hash is not None}
            yield [entry for entry in entries if id(entry) not in system], phantoms


def _is_free(rpc: RpcTransaction | bytes) -> bool:
    return not isinstance(rpc, bytes) and rpc.gas_price in ("0x0", "0x", 0)


def _orders(entries: list[_Entry]) -> Iterator[list[_Entry]]:
    """As listed; and by the indexes that the entries name, where all name one and that is another order."""
    yield entries
    indexed = []
    for entry in entries:
        index = None if isinstance(entry.rpc, bytes) else entry.rpc.transaction_index
        if index is None:
            return
        indexed.append((index, entry))
    ordered = [entry for _, entry in sorted(indexed, key=lambda each: each[0])]
    if any(one is not other for one, other in zip(ordered, entries, strict=True)):
        yield ordered


def _listing(entries: list[_Entry], phantoms: set[bytes], header: Header) -> _Listing:
    wanted = header.transactions_root
    if not entries:
        if wanted in (trie.EMPTY_ROOT, ZERO_HASH):
            return _Listing(entries, phantoms, trie.build_ordered([]), Verdict.PROVEN, "")
        detail = f"count: block {header.number} came without transactions, its header commits to some"
        return _Listing(entries, phantoms, None, Verdict.BROKEN, detail)
    if wanted in (trie.EMPTY_ROOT, ZERO_HASH):
        detail = f"its transactionsRoot is {to_hex(wanted)} although there are {len(entries)} transactions"
        return _Listing(entries, phantoms, None, Verdict.NOT_COMMITTED, detail)
    if any(entry.fault is not None for entry in entries):
        return _Listing(entries, phantoms, None, *_verdict_on_faults(entries))
    rebuilt: bytes | None = None
    for reading in range(max(len(entry.alternatives) for entry in entries)):
        # An entry without a hash may be several transactions: all such entries are read in the same way.
        transactions = [entry.alternatives[min(reading, len(entry.alternatives) - 1)] for entry in entries]
        packed = trie.build_ordered([transaction.envelope for transaction in transactions])
        if packed.root == wanted:
            return _Listing(entries, phantoms, packed, Verdict.PROVEN, "", transactions)
        rebuilt = rebuilt or packed.root
    detail = f"transactionsRoot {to_hex(wanted)}, rebuilt {to_hex(rebuilt or trie.EMPTY_ROOT)}"
    return _Listing(entries, phantoms, None, Verdict.UNMET, detail)


def _verdict_on_faults(entries: list[_Entry]) -> tuple[Verdict, str]:
    types = _unsupported(entries)
    if types:
        return Verdict.CLAIMED_TYPE, _listed_types(types)
    faults = [entry.fault for entry in entries if entry.fault is not None]
    wrong = next((fault for fault in faults if fault.kind is not _Kind.HASH_ONLY), None)
    if wrong is None:
        return Verdict.UNAVAILABLE, faults[0].detail
    return Verdict.BROKEN, f"{wrong.check}: {wrong.detail}"


def _unsupported(entries: list[_Entry]) -> list[int]:
    faulty = [(entry.type or 0, entry.fault.kind) for entry in entries if entry.fault is not None]
    return sorted({type_ for type_, kind in faulty if kind is _Kind.UNSUPPORTED})


def _listed_types(types: Iterable[int]) -> str:
    return ", ".join(map(hex, list(types)[:MAX_NAMED_TYPES]))


def _judged(
    listing: _Listing, matched: MatchedReceipts, family: str, header: Header
) -> tuple[trie.PackedTrie | None, Verdict, str]:
    """The trie of the transactions, its verdict and its detail, as the receipts bear on them where those are proven.

    They commit to a type for each transaction, and tell how many there are. That the transactions of one type all fail where
    everything else holds says that the chain means something else by the type than its family does: no other node has better.
    """
    if listing.verdict is Verdict.PROVEN or matched.verdict is not Verdict.PROVEN:
        return listing.packed, listing.verdict, listing.detail
    committed = [each.type for each in matched.receipts if each.transaction_hash != header.hash]
    entries = listing.entries
    without = sorted({each for each in committed if not has_codec(each, family)})
    if without and listing.verdict is not Verdict.NOT_COMMITTED:
        return None, Verdict.UNSUPPORTED_TYPE, _listed_types(without)
    if listing.verdict is Verdict.UNMET and len(committed) != len(entries):
        detail = f"count: {len(committed)} receipts for {len(entries)} transactions at height {header.number}"
        return None, Verdict.BROKEN, detail
    if listing.verdict is Verdict.BROKEN and len(committed) == len(entries):
        misfits = _misfits(entries)
        if misfits:
            return None, Verdict.CLAIMED_TYPE, f"{_listed_types(misfits)} in this form"
    return None, listing.verdict, listing.detail


def _misfits(entries: list[_Entry]) -> list[int]:
    """The types that a codec does not fit: none of its transactions hashes to its hash, and all others do. One transaction of
    a type that every chain has says too little."""
    failed: dict[int, int] = {}
    sound = set()
    for entry in entries:
        if entry.type is None:
            return []
        if entry.fault is None:
            sound.add(entry.type)
        elif entry.fault.kind is not _Kind.MISFIT:
            return []
        else:
            failed[entry.type] = failed.get(entry.type, 0) + 1
    if any(type_ in sound or (type_ <= SET_CODE and count < 2) for type_, count in failed.items()):
        return []
    return sorted(failed)


def _names(listing: _Listing, verdict: Verdict, matched: MatchedReceipts, header: Header) -> bytes:
    """The transaction hashes: as proven; else as the node lists them, or as its receipts name them where those are proven and
    the list has none or is not as long."""
    if verdict is Verdict.PROVEN:
        return b"".join([transaction.hash for transaction in listing.transactions])
    names = [entry.hash for entry in listing.entries]
    if matched.verdict is Verdict.PROVEN:
        # A receipt of the block itself, which some chains have, is of no transaction.
        named = [each.transaction_hash for each in matched.receipts if each.transaction_hash != header.hash]
        same = len(names) == len(named)
        names = [one or other for one, other in zip(names, named, strict=True)] if same else named
    return b"".join([name or ZERO_HASH for name in names])


# --- receipts -------------------------------------------------------------------------------------------------------


def _matched_receipts(request: BuildRequest, listing: _Listing, header: Header) -> MatchedReceipts:
    if header.receipts_root in (trie.EMPTY_ROOT, ZERO_HASH) and listing.entries:
        # The header alone decides: no receipts that a node may give could be proven against it.
        return MatchedReceipts(None, Verdict.NOT_COMMITTED, not_committed(header.receipts_root))
    if header.receipts_root == trie.EMPTY_ROOT and listing.verdict is Verdict.PROVEN:
        return MatchedReceipts(trie.build_ordered([]), Verdict.PROVEN)
    if request.receipts_json is None:
        verdict = Verdict.PRUNED if request.receipts_pruned else Verdict.UNAVAILABLE
        return MatchedReceipts(None, verdict, request.receipts_error or "the node gave no receipts")
    try:
        receipts = decode_receipts(request.receipts_json)
    except ContentInvalid as invalid:
        return MatchedReceipts(None, Verdict.BROKEN, str(invalid))
    listed = [Named(entry.hash, entry.type) for entry in listing.entries]
    return match_receipts(receipts, listed, listing.phantoms, listing.unsupported, header, request.family)


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
        if invalid.check == DEPOSIT_NONCE:  # that of the transaction is a node's word
            return None, Verdict.BROKEN, str(invalid)
        # Both tries are proven: a signature without a sender is a property of the block, not of this node's answer.
        return None, Verdict.UNMET, invalid.detail
    return PackedLeaves(b"".join(values), _ends(map(len, values)), merkle.build(values)), Verdict.PROVEN, ""


def _ends(sizes: Iterable[int]) -> bytes:
    return pack_offsets(accumulate(sizes))
