"""The receipts of one block from one node: in one call where the node can, transaction by transaction where it cannot.

Receipts are asked for by block hash. A list with a hole in it never leaves this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from app.core.errors import ContentInvalid
from app.core.hexadecimal import encode_quantity, to_hex
from app.core.rpc_transaction import given, hash_field

from .decoding import decoded
from .evm import NULL, EvmNode
from .faults import CallFailed, Fault
from .retries import Patience
from .standing import ReceiptsForm

NULL_PAUSES_S = (0.2, 0.4, 0.8, 1.6)
"""Nodes answer null for receipts of a block they have just got, and have them a second later."""

_OF_THIS_BLOCK = frozenset({Fault.TOO_BIG, Fault.BODY_TOO_LARGE, Fault.NOT_SERVED, Fault.RPC_ERROR})
"""Faults of the call for all receipts of a block that say nothing about the calls for each of them."""

_OF_AN_UNKNOWN_FORM = frozenset({Fault.NOT_SERVED, Fault.RPC_ERROR})
"""How a node may answer to a form of the parameter that it does not know."""

Ask = Callable[[str, Sequence[object]], Awaitable[bytes]]
"""One call with its retries."""


class ReceiptsMissing(Exception):
    """The node has the block and not (all of) its receipts. `reason` is fit for a client; `pruned`: it had them once."""

    def __init__(self, reason: str, *, pruned: bool = False, null: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pruned = pruned
        self.null = null
        """It answers null for all of them at once: one by one it may have them."""


class AskEach(Exception):
    """The receipts do not come in one call; asking for each transaction's may help."""


class HeightNeeded(Exception):
    """The node wants the block by its number, which is not known yet."""


async def whole_list(
    node: EvmNode,
    ask: Ask,
    patience: Patience,
    block_hash: bytes,
    height: int | None,
    pauses_s: Sequence[float] | None = None,
) -> bytes:
    """The JSON text that `eth_getBlockReceipts` gave, never `null`: that is asked for again after each of `pauses_s`.

    Raises `AskEach`, `HeightNeeded`, `ReceiptsMissing`, or `CallFailed` when the node could not be asked.
    """
    if not node.capabilities.offers_block_receipts(patience.now()):
        raise AskEach
    for pause_s in (*(NULL_PAUSES_S if pauses_s is None else pauses_s), None):
        try:
            raw = await _in_some_form(node, ask, block_hash, height)
        except CallFailed as failure:
            if failure.fault is Fault.METHOD_NOT_SUPPORTED:
                node.capabilities.note_no_block_receipts(patience.now())
                raise AskEach from None
            if failure.fault in _OF_THIS_BLOCK:
                # The next block is asked for in one call again.
                raise AskEach from None
            if failure.fault is Fault.PRUNED:
                raise ReceiptsMissing("the node no longer keeps the receipts of this block", pruned=True) from None
            if failure.fault is not Fault.NOT_FOUND:
                raise
            raw = NULL
        if raw != NULL:
            return raw
        if pause_s is None or not await patience.wait(pause_s):
            break
    raise ReceiptsMissing("the node answers null for the receipts of a block that it has", null=True)


async def _in_some_form(node: EvmNode, ask: Ask, block_hash: bytes, height: int | None) -> bytes:
    """The first form of the parameter to which the node gives receipts is remembered."""
    refused: CallFailed | None = None
    for form in _forms(node.capabilities.receipts_form):
        if form is ReceiptsForm.NUMBER and height is None:
            raise HeightNeeded
        try:
            raw = await ask("eth_getBlockReceipts", [_spelled(form, block_hash, height)])
        except CallFailed as failure:
            unknown_form = failure.fault in _OF_AN_UNKNOWN_FORM and not node.capabilities.form_is_known
            if failure.fault is Fault.INVALID_PARAMS or unknown_form:
                refused = failure
                continue
            raise
        if raw != NULL:
            node.capabilities.note_receipts_form(form)
        return raw
    if refused is not None and refused.fault is not Fault.INVALID_PARAMS:
        raise refused
    raise AskEach


def _forms(learned: ReceiptsForm) -> Iterator[ReceiptsForm]:
    # By number last: a node behind a balancer may have another block there. The receipts root would tell.
    yield learned
    yield from (form for form in ReceiptsForm if form is not learned)


def _spelled(form: ReceiptsForm, block_hash: bytes, height: int | None) -> object:
    if form is ReceiptsForm.HASH:
        return to_hex(block_hash)
    if form is ReceiptsForm.OBJECT:
        return {"blockHash": to_hex(block_hash)}
    return encode_quantity(height or 0)


# --- what the texts say ---------------------------------------------------------------------------------------------


class _Hashed(msgspec.Struct):
    hash: object = None


class _Listed(msgspec.Struct):
    transactions: list[_Hashed | str | None]


class _Placed(msgspec.Struct, rename="camel"):
    transaction_hash: object = None
    block_hash: object = None


_listed_decoder = msgspec.json.Decoder(_Listed)
_placed_decoder = msgspec.json.Decoder(_Placed)


def is_empty_list(raw: bytes) -> bool:
    """Whether the JSON text is a list without items."""
    return len(raw) < 64 and raw[:1] == b"[" and not raw[1:-1].strip()


async def transaction_hashes(block_json: bytes) -> list[bytes]:
    """The hashes of the transactions that a block lists, in order.

    Raises `ReceiptsMissing` if the node does not name one of them, `ContentInvalid` for what is no list of transactions.
    """
    hashes = await decoded(_transaction_hashes, block_json)
    if None in hashes:
        raise ReceiptsMissing("the node gives receipts by transaction only, and no hash of a transaction of the block")
    return [each for each in hashes if each is not None]


def _transaction_hashes(block_json: bytes) -> list[bytes | None]:
    try:
        listed = _listed_decoder.decode(block_json).transactions
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ContentInvalid("decode", "the transactions of the block cannot be read") from None
    return [_hash_or_none(entry.hash if isinstance(entry, _Hashed) else entry) for entry in listed]


def _hash_or_none(text: object) -> bytes | None:
    try:
        return hash_field(text, "a hash") if given(text) else None
    except ContentInvalid:
        return None


def require_place(raw: bytes, tx_hash: bytes, block_hash: bytes) -> None:
    """The receipt names no other transaction, and no other block. Raises `ContentInvalid`.

    What it does not name is no matter: the receipts root decides.
    """
    try:
        placed = _placed_decoder.decode(raw)
        of_tx = (
            hash_field(placed.transaction_hash, "a receipt's transactionHash")
            if given(placed.transaction_hash)
            else tx_hash
        )
        in_block = hash_field(placed.block_hash, "a receipt's blockHash") if given(placed.block_hash) else block_hash
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ContentInvalid("decode", "a receipt cannot be read") from None
    if of_tx != tx_hash:
        raise ContentInvalid("receipt_identity", f"asked for the receipt of {to_hex(tx_hash)}, got another")
    if in_block != block_hash:
        raise ContentInvalid(
            "receipt_block_hash", f"a receipt is of block {to_hex(in_block)}, not of {to_hex(block_hash)}"
        )
